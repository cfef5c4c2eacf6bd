"""What the results were measured on: processor, memory, versions, how busy the machine was."""

from __future__ import annotations

import os
import platform
import re
from importlib import metadata
from pathlib import Path

import psutil

from firesteel.cluster.java import require_java

__all__ = ["facts"]

_PACKAGES = ("firesteel", "pyspark", "torch", "numpy", "pyarrow", "pandas")


def facts() -> dict[str, str]:
    """By name; nothing that tells whose machine it is."""
    java = require_java().version
    cores, load = os.cpu_count() or 0, os.getloadavg()[0]
    return {
        "processor": f"{_processor()}, {cores} cores",
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}, Java {java}",
        "packages": ", ".join(f"{name} {metadata.version(name)}" for name in _PACKAGES),
        "load before": f"{load:.2f} (of {cores})",
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.+)", cpuinfo.read_text()) if cpuinfo.exists() else None
    return found[1] if found else platform.processor() or platform.machine()
