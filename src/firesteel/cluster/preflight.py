"""What can be known before a job starts: task slots, addresses, package versions."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterable
from importlib import metadata
from typing import TYPE_CHECKING

from firesteel.core.errors import NotEnoughSlots

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "bind_address",
    "check_slots",
    "cores_per_task",
    "driver_address",
    "nodes",
    "package_versions",
    "slots",
    "use_own_python",
]

_LOCAL = re.compile(r"local(?:\[(\d+|\*)(?:,\s*\d+)?\])?$")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]$")


def package_versions(packages: Iterable[str]) -> dict[str, str]:
    """Versions as installed here, and Python's own (major and minor)."""
    versions = {"python": ".".join(platform.python_version_tuple()[:2])}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "none"
    return versions


def slots(spark: SparkSession) -> int:
    """How many tasks Spark can run at the same time: with the executors it has, or has been told to start."""
    context = spark.sparkContext
    cpus = cores_per_task(spark)
    if match := _LOCAL_CLUSTER.match(_master(spark)):
        return int(match[1]) * (int(match[2]) // cpus)
    scala = context._jsc.sc()
    now = int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().resourceProfileFromId(0)))
    conf = context.getConf()
    executors, cores = conf.get("spark.executor.instances"), conf.get("spark.executor.cores")
    if _LOCAL.match(_master(spark)) or not executors or not cores:
        return now
    return max(now, int(executors) * (int(cores) // cpus))


def nodes(spark: SparkSession) -> int:
    """How many nodes (executors) there are; a ``local[k]`` is one."""
    context = spark.sparkContext
    if _LOCAL.match(_master(spark)):
        return 1
    if match := _LOCAL_CLUSTER.match(_master(spark)):
        return int(match[1])
    wanted = context.getConf().get("spark.executor.instances")
    alive = int(context._jsc.sc().getExecutorMemoryStatus().size()) - 1  # the driver is in that list too
    return max(1, alive, int(wanted or 0))


def _master(spark: SparkSession) -> str:
    return spark.sparkContext.master or ""


def cores_per_task(spark: SparkSession) -> int:
    """Cores that Spark reserves for each task."""
    return int(spark.sparkContext.getConf().get("spark.task.cpus", "1") or 1)


def check_slots(spark: SparkSession, asked: int) -> int:
    """Slots there are. Raises ``NotEnoughSlots`` when ``asked`` replicas could never run together."""
    available = slots(spark)
    growing = spark.sparkContext.getConf().get("spark.dynamicAllocation.enabled", "false") == "true"
    if asked > available and not growing:
        raise NotEnoughSlots(
            asked,
            available,
            "Lower workers_per_node, or give Spark more: init_context(cores=...) or spark.executor.instances.",
        )
    return max(asked, available)


def use_own_python(spark: SparkSession) -> None:
    """Let a local session's workers run the driver's Python, where nobody chose one.

    PySpark would take ``python3`` from the path, which in a virtual environment that is not activated is another.
    """
    context = spark.sparkContext
    is_chosen = os.environ.get("PYSPARK_PYTHON") or context.getConf().get("spark.pyspark.python")
    if str(context.master).startswith("local") and not is_chosen and context.pythonExec == "python3":
        context.pythonExec = sys.executable


def driver_address(spark: SparkSession) -> str:
    """The driver's address as tasks reach it: Spark's own."""
    if _LOCAL.match(_master(spark)):
        return "127.0.0.1"
    conf = spark.sparkContext.getConf()
    return str(conf.get("spark.driver.host") or os.environ.get("SPARK_LOCAL_IP") or "127.0.0.1")


def bind_address(spark: SparkSession) -> str:
    """The address to which the coordinator binds: behind a container's network it is not the one that tasks see."""
    if _LOCAL.match(_master(spark)):
        return "127.0.0.1"
    return str(spark.sparkContext.getConf().get("spark.driver.bindAddress") or driver_address(spark))
