"""Stages of the pipeline door through Spark Connect: they transform and are saved; a server is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_stages_through_connect(tmp_path: Path) -> None:
    here = Path(__file__).parent
    environment = {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "PYTHONPATH": os.pathsep.join([str(here.parent), *(path for path in sys.path if path)]),
    }
    done = subprocess.run(
        [sys.executable, str(here / "pipeline_client.py"), str(tmp_path)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "all of it" in done.stdout
