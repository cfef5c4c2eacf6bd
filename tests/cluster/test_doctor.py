"""The findings as values: what is missing is said with what to do, and decides whether training is possible."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from firesteel.cluster import doctor, java
from firesteel.cluster.doctor import Finding, can_train, examine


def find(findings: list[Finding], name: str) -> Finding:
    (finding,) = (finding for finding in findings if finding.name == name)
    return finding


def hide(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    """Make these look as if they were not installed."""
    version, find_spec = doctor._version, importlib.util.find_spec
    monkeypatch.setattr(doctor, "_version", lambda name: None if name.split("-")[0] in modules else version(name))
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name in modules else find_spec(name, *rest)
    )


def test_every_subject_is_reported() -> None:
    names = [finding.name for finding in examine()]
    frameworks = ["torch", "tensorflow", "keras", "mxnet", "openvino", "jax", "horovod"]
    expected = ["Python", "Java", "Spark", "pyarrow", "numpy", "pandas", *frameworks]
    assert [name for name in names if name != "training"] == [
        *expected,
        *["cores", "memory", "GPU", "task slots", "disk"],
    ]


def test_what_is_missing_comes_with_what_to_do() -> None:
    findings = examine()
    for finding in findings:
        if "not installed" in finding.detail:
            assert finding.advice, finding.name
            assert finding.status != "ok"


def test_without_java_there_is_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "search_java", lambda: java.JavaSearch(None, ("PATH: /bin/java is Java 11.0.1",)))
    findings = examine()
    finding = find(findings, "Java")
    assert finding.status == "problem"
    assert "Java 11.0.1" in finding.detail
    assert "pip install 'firesteel[java]'" in finding.advice
    assert not can_train(findings)


def test_without_java_the_job_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "search_java", lambda: java.JavaSearch(None))
    assert "not run for want of Java" in find(examine(run_spark=True), "Spark job").detail


def test_without_a_framework_there_is_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "torch", "tensorflow", "mxnet")
    findings = examine()
    assert find(findings, "torch") == Finding("torch", "not installed", "note", "pip install 'firesteel[torch]'")
    assert find(findings, "training").status == "problem"
    assert not can_train(findings)


def test_one_framework_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    version = doctor._version
    hide(monkeypatch, "torch", "tensorflow")
    monkeypatch.setattr(doctor, "_version", lambda name: "1.9.1" if name == "mxnet" else version(name))
    assert "training" not in [finding.name for finding in examine()]


def test_a_missing_pyarrow_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "pyarrow")
    findings = examine()
    assert find(findings, "pyarrow").status == "problem"
    assert not can_train(findings)


def test_little_disk_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(Path())._replace(free=2**20)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    assert "TMPDIR" in find(examine(), "disk").advice


@pytest.mark.parametrize(
    ("outcome", "detail", "status"),
    [
        (FileNotFoundError("nvidia-smi"), "none (no nvidia-smi)", "note"),
        (subprocess.CalledProcessError(9, "nvidia-smi"), "nvidia-smi does not answer", "note"),
        (
            "NVIDIA H200, 143771 MiB\nNVIDIA H200, 143771 MiB\n",
            "NVIDIA H200, 143771 MiB; NVIDIA H200, 143771 MiB",
            "ok",
        ),
    ],
)
def test_gpus(monkeypatch: pytest.MonkeyPatch, outcome: str | Exception, detail: str, status: str) -> None:
    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        if isinstance(outcome, Exception):
            raise outcome
        return subprocess.CompletedProcess(command, 0, outcome, "")

    monkeypatch.setattr(subprocess, "run", run)
    finding = doctor._examine_gpus()
    assert finding.detail.startswith(detail)
    assert finding.status == status


def test_looking_imports_no_framework_and_no_spark() -> None:
    script = """
import sys
from firesteel.cluster.doctor import examine
examine()
print([name for name in ("torch", "tensorflow", "keras", "jax", "pyspark", "pyarrow") if name in sys.modules])
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout.strip() == "[]"
