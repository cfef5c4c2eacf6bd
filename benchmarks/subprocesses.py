"""Subjects that run in processes of their own and tell what they found in a line of JSON."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.bench import ROOT
from benchmarks.harness import CannotRun

__all__ = ["PEERS", "free_port", "run_json", "surroundings"]

PEERS = ROOT / "benchmarks" / "peers"
_TIMEOUT_SECONDS = 400.0


def run_json(command: Sequence[str], variables: Mapping[str, str], folder: Path = ROOT) -> Any:
    """The last line of its output that is a JSON object; ``folder`` is where it runs, and leaves what it leaves.

    Raises:
        CannotRun: it failed, printed none, or took too long; with the last line it had to say.
    """
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=surroundings(variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a JVM or a Ray node it started goes with it
    )
    try:
        out, errors = process.communicate(timeout=_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        raise CannotRun(f"no result after {_TIMEOUT_SECONDS:.0f} s") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for line in reversed(out.splitlines()):
        with contextlib.suppress(ValueError):
            found = json.loads(line)
            if isinstance(found, dict):
                return found
    raise CannotRun(_last_words(errors) or _last_words(out) or f"exit status {process.returncode}")


def surroundings(variables: Mapping[str, str]) -> dict[str, str]:
    """What is set for a subject's process: this package is within its reach."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": path, **variables}


def _last_words(text: str) -> str:
    """The last line that looks like the name of an error, else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = [line for line in lines if "Error" in line.split(":")[0] or "Exception" in line.split(":")[0]]
    return (named or lines or [""])[-1][:200]


def free_port() -> int:
    """A port of the loopback that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
