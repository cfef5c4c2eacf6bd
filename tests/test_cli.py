"""The command line: its output, its exit status, and one real job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from firesteel import cli
from firesteel.cluster.doctor import Finding

FINE = [Finding("Java", "17.0.1 from PATH"), Finding("jax", "not installed", "note", "pip install jax")]
BROKEN = [*FINE, Finding("training", "no framework to train with", "problem", "pip install 'firesteel[torch]'")]


@pytest.mark.parametrize(("findings", "status"), [(FINE, 0), (BROKEN, 1)])
def test_exit_status_says_whether_training_is_possible(
    findings: list[Finding], status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "examine", lambda run_spark: findings)
    assert cli.main(["doctor"]) == status
    text = capsys.readouterr().out
    assert cli.main(["doctor", "--json"]) == status
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] is (status == 0)
    assert [Finding(**finding) for finding in answer["findings"]] == findings
    for finding in findings:
        assert finding.detail in text
        assert finding.advice in text


def test_table() -> None:
    assert cli.format_findings(BROKEN).splitlines() == [
        "  Java      17.0.1 from PATH",
        "- jax       not installed",
        "            -> pip install jax",
        "! training  no framework to train with",
        "            -> pip install 'firesteel[torch]'",
        "",
        "Training is not possible yet: training.",
    ]
    assert cli.format_findings(FINE).endswith("Training is possible here.")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        cli.main(["--version"])
    assert raised.value.code == 0
    assert capsys.readouterr().out.startswith("firesteel ")


def test_without_a_command_it_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "doctor" in capsys.readouterr().err


def test_doctor_runs_a_job_when_asked(tmp_path: Path) -> None:
    """Through ``python -m``, in a process of its own, for it starts a JVM."""
    options = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    environment = {**os.environ, "JDK_JAVA_OPTIONS": options, "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, "-m", "firesteel", "doctor", "--spark", "--json"]
    run = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )
    (job,) = (row for row in json.loads(run.stdout)["findings"] if row["name"] == "Spark job")
    assert job["status"] == "ok", job
    assert "worker Python" in job["detail"]
