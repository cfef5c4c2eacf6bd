"""What this machine offers to training, as a list of findings: what is there, what is missing, what to do about it.

Nothing here imports a framework or starts Spark, unless ``examine(run_spark=True)`` asks for one job.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from firesteel.cluster import java
from firesteel.cluster.context import active_context, init_context, stop_context
from firesteel.cluster.settings import available_cores, read_configured

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Finding", "Status", "can_train", "examine"]

Status = Literal["ok", "note", "problem"]

_GIB = 1024**3
_NVIDIA_SMI_TIMEOUT_SECONDS = 2.0
_LITTLE_DISK_BYTES = 2 * _GIB

# The last release is source only, and a plain pip install of it fails: its CMake files insist on an older C++.
_HOROVOD_BUILD = (
    "scripts/build-horovod PYTHON FOLDER, in Firesteel's repository, builds horovod==0.28.1 against the installed "
    "torch (with -std=c++17)"
)


@dataclass(frozen=True)
class _Package:
    """A package, the distributions that provide it, and what to do where it is missing."""

    module: str
    distributions: tuple[str, ...]
    advice: str
    can_train: bool = False


_REQUIRED = (
    _Package("pyarrow", ("pyarrow",), "pip install pyarrow"),
    _Package("numpy", ("numpy",), "pip install numpy"),
    _Package("pandas", ("pandas",), "pip install 'pandas<3'"),
)
_FRAMEWORKS = (
    _Package("torch", ("torch",), "pip install 'firesteel[torch]'", can_train=True),
    _Package(
        "tensorflow",
        ("tensorflow", "tensorflow-cpu", "tensorflow-macos"),
        "pip install 'firesteel[tensorflow]'",
        can_train=True,
    ),
    _Package("keras", ("keras",), "pip install 'firesteel[tensorflow]'"),
    _Package(
        "mxnet", ("mxnet",), "pip install 'firesteel[mxnet]' && pip install --no-deps mxnet==1.9.1", can_train=True
    ),
    _Package("openvino", ("openvino",), "pip install 'firesteel[openvino]'"),
    _Package("jax", ("jax",), "pip install jax"),
    _Package("horovod", ("horovod",), _HOROVOD_BUILD),
)


@dataclass(frozen=True)
class Finding:
    """One row of the report.

    Attributes:
        name: what was looked at.
        detail: what was found, in words.
        status: ``"ok"``; ``"note"`` for what is missing but not needed; ``"problem"`` for what prevents training.
        advice: what to do about it, where there is something to do.
    """

    name: str
    detail: str
    status: Status = "ok"
    advice: str = ""


def examine(*, run_spark: bool = False) -> list[Finding]:
    """Look at this process, machine and installation; takes about a second.

    Args:
        run_spark: also start an embedded session (or use the active one) and run one job through a Python worker.
    """
    findings = [
        Finding("Python", f"{platform.python_version()} ({sys.executable})"),
        _examine_java(),
        _examine_spark(),
        *_examine_required(),
        *_examine_frameworks(),
        _examine_cores(),
        _examine_memory(),
        _examine_gpus(),
        _examine_slots(),
        _examine_disk(),
    ]
    if run_spark:
        missing = [finding.name for finding in findings if finding.status == "problem" and finding.name != "training"]
        findings.append(_examine_job() if not missing else _skipped_job(missing))
    return findings


def can_train(findings: list[Finding]) -> bool:
    """Whether nothing that was found keeps training from working."""
    return all(finding.status != "problem" for finding in findings)


def _examine_java() -> Finding:
    search = java.search_java()
    passed_over = "".join(f"; passed over {reason}" for reason in search.passed_over if "not installed" not in reason)
    if search.found is None:
        return Finding("Java", f"none that runs Spark{passed_over}", "problem", java.ADVICE)
    found = search.found
    return Finding("Java", f"{found.version} from {found.source} ({found.home}){passed_over}")


def _examine_spark() -> Finding:
    version = _version("pyspark")
    if version is None:
        return Finding("Spark", "pyspark is not installed", "problem", "pip install 'pyspark>=4.0'")
    where = os.environ.get("SPARK_HOME")
    return Finding("Spark", f"{version} (SPARK_HOME={where})" if where else version)


def _examine_required() -> Iterator[Finding]:
    for package in _REQUIRED:
        version = _package_version(package)
        if version is None:
            yield Finding(package.module, "not installed", "problem", package.advice)
        else:
            yield Finding(package.module, version)


def _examine_frameworks() -> Iterator[Finding]:
    trainable = []
    for package in _FRAMEWORKS:
        version = _package_version(package)
        if version is None:
            yield Finding(package.module, "not installed", "note", package.advice)
        else:
            yield Finding(package.module, version)
            if package.can_train:
                trainable.append(package.module)
    if not trainable:
        yield Finding("training", "no framework to train with", "problem", "pip install 'firesteel[torch]'")


def _examine_cores() -> Finding:
    usable, all_of_them = available_cores(), os.cpu_count() or 1
    return Finding("cores", str(usable) if usable == all_of_them else f"{usable} of {all_of_them}")


def _examine_memory() -> Finding:
    import psutil

    memory = psutil.virtual_memory()
    total, free = memory.total, memory.available
    limit = _container_limit_bytes()
    if limit is not None and limit < total:
        return Finding("memory", f"{limit / _GIB:.1f} GiB (the container's limit), {min(free, limit) / _GIB:.1f} free")
    return Finding("memory", f"{total / _GIB:.1f} GiB, {free / _GIB:.1f} free")


def _container_limit_bytes() -> int | None:
    """The limit that a container sets, which the machine's own numbers do not show."""
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            return int(Path(path).read_text())
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return None


def _examine_gpus() -> Finding:
    command = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=_NVIDIA_SMI_TIMEOUT_SECONDS, check=True)
    except FileNotFoundError:
        return Finding("GPU", "none (no nvidia-smi)", "note")
    except (OSError, subprocess.SubprocessError) as error:
        return Finding("GPU", f"nvidia-smi does not answer: {error}", "note", "check the driver: nvidia-smi")
    gpus = [line.strip() for line in run.stdout.splitlines() if line.strip()]
    return Finding("GPU", "; ".join(gpus)) if gpus else Finding("GPU", "none", "note")


def _examine_slots() -> Finding:
    context = active_context()
    if context is not None:
        return Finding("task slots", f"{context.defaultParallelism} (active session, {context.master})")
    master = read_configured(os.environ).get("spark.master")
    if master is not None:
        return Finding("task slots", f"known when a session runs (configured master: {master})")
    return Finding("task slots", f"{available_cores()} (a local session would be local[*])")


def _examine_disk() -> Finding:
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    detail = f"{free / _GIB:.1f} GiB free in {folder}"
    if free < _LITTLE_DISK_BYTES:
        return Finding("disk", detail, "note", "training data is spooled here: set TMPDIR to a larger disk")
    return Finding("disk", detail)


def _examine_job() -> Finding:
    from pyspark.sql import SparkSession

    is_active = active_context() is not None
    begin = time.monotonic()
    # Broad on purpose: whatever goes wrong in somebody's Spark is what a doctor has to report.
    try:
        context = init_context()
        started = time.monotonic() - begin
        spark = SparkSession.builder.getOrCreate()
        rows = spark.range(1, numPartitions=1).mapInArrow(_tell_python, "python string").collect()
        detail = f"ok on {context.master}: session {started:.1f} s, job {time.monotonic() - begin - started:.1f} s"
        return Finding("Spark job", f"{detail}, worker Python {rows[0]['python']}")
    except Exception as error:  # noqa: BLE001
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        advice = "run with spark_log_level='INFO' for Spark's own account"
        return Finding("Spark job", f"failed: {type(error).__name__}: {reason[:200]}", "problem", advice)
    finally:
        if not is_active:
            stop_context()


def _skipped_job(missing: list[str]) -> Finding:
    return Finding("Spark job", f"not run for want of {', '.join(missing)}", "problem")


def _tell_python(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in a task: proves that a worker starts, finds this package and reads Arrow."""
    import pyarrow as pa

    for _ in batches:
        yield pa.record_batch({"python": [platform.python_version()]})


def _package_version(package: _Package) -> str | None:
    for distribution in package.distributions:
        version = _version(distribution)
        if version is not None:
            return version
    # Some builds (Conda's, an operating system's) bring the module without a distribution's metadata.
    return "unknown version" if importlib.util.find_spec(package.module) is not None else None


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
