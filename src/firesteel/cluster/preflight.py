"""What can be known before a job starts: task slots, addresses, package versions."""

from __future__ import annotations

import os
import platform
import re
import sys
import time
from collections.abc import Iterable
from importlib import metadata
from typing import TYPE_CHECKING

from firesteel.core.errors import ClusterError, NotEnoughSlots

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "await_slots",
    "bind_address",
    "check_slots",
    "cores_per_task",
    "driver_address",
    "is_decommissioning",
    "is_remote",
    "nodes",
    "package_versions",
    "setting_of",
    "slots",
    "use_own_python",
]

_LOCAL = re.compile(r"local(?:\[(\d+|\*)(?:,\s*\d+)?\])?$")
_PROBE_ROWS = 1 << 16
_ARRIVAL_SECONDS = 30.0
_LOOK_SECONDS = 0.1
_SESSION_PYTHON = "spark.sql.execution.pyspark.python"
_PARALLELISM = ("spark.default.parallelism", "spark.sql.leafNodeDefaultParallelism")
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


def is_remote(spark: SparkSession) -> bool:
    """Whether this is a Spark Connect session: it has no SparkContext, and nothing can reach this process."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def slots(spark: SparkSession) -> int:
    """How many tasks Spark can run at the same time: with the executors it has, or has been told to start."""
    cpus = cores_per_task(spark)
    if match := _LOCAL_CLUSTER.match(_master(spark)):
        return int(match[1]) * (int(match[2]) // cpus)
    match = _LOCAL.match(_master(spark))
    if is_remote(spark):
        if match and match[1] != "*":
            return int(match[1] or 1) // cpus
        now = _default_parallelism(spark) // cpus
    else:
        scala = spark.sparkContext._jsc.sc()
        now = int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().resourceProfileFromId(0)))
    executors, cores = _executors_to_come(spark), setting_of(spark, "spark.executor.cores")
    if match or not executors or not cores:
        return now
    return max(now, executors * (int(cores) // cpus))


def _default_parallelism(spark: SparkSession) -> int:
    """Into how many partitions Spark cuts where nobody says: its cores, unless configured. A small job tells."""
    from pyspark.sql.functions import max as largest
    from pyspark.sql.functions import spark_partition_id

    found = spark.range(0, _PROBE_ROWS).select(largest(spark_partition_id())).first()
    return 1 if found is None else int(found[0]) + 1


def nodes(spark: SparkSession) -> int:
    """How many nodes (executors) there are; a ``local[k]`` is one."""
    if _LOCAL.match(_master(spark)):
        return 1
    if match := _LOCAL_CLUSTER.match(_master(spark)):
        return int(match[1])
    alive = 0  # a Connect server does not tell
    if not is_remote(spark):
        alive = int(spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size()) - 1  # the driver is in that list too
    return max(1, alive, _executors_to_come(spark))


def _executors_to_come(spark: SparkSession) -> int:
    """How many executors Spark was told to start, or may start when there is work; 0 where nobody said."""
    if wanted := setting_of(spark, "spark.executor.instances"):
        return int(wanted)
    most, cores = setting_of(spark, "spark.cores.max"), setting_of(spark, "spark.executor.cores")
    if most and cores:  # a standalone cluster's way to say it
        return int(most) // int(cores)
    if setting_of(spark, "spark.dynamicAllocation.enabled") == "true":
        return int(setting_of(spark, "spark.dynamicAllocation.maxExecutors") or 0)
    return 0


def setting_of(spark: SparkSession, key: str) -> str | None:
    """A setting of the running Spark, classic or Connect; ``None`` where nobody set it."""
    if is_remote(spark):
        return spark.conf.get(key, None)
    return spark.sparkContext._conf.get(key)  # getConf copies all settings first, one call to the JVM for each


def _master(spark: SparkSession) -> str:
    return (spark.conf.get("spark.master", None) if is_remote(spark) else spark.sparkContext.master) or ""


def cores_per_task(spark: SparkSession) -> int:
    """Cores that Spark reserves for each task."""
    return int(setting_of(spark, "spark.task.cpus") or 1)


def check_slots(spark: SparkSession, asked: int, hint: str | None = None) -> int:
    """Slots there are. Raises ``NotEnoughSlots``, with the hint, when ``asked`` replicas could never run together."""
    growing = setting_of(spark, "spark.dynamicAllocation.enabled") == "true"
    if growing and is_remote(spark):
        raise ClusterError(
            "under Spark Connect replicas run in barrier mode, which Spark refuses with dynamic allocation: "
            "set spark.dynamicAllocation.enabled=false where the server is started"
        )
    if is_remote(spark) and any(setting_of(spark, key) for key in _PARALLELISM):
        return asked  # how many cores there are cannot be seen; Spark says so itself, after a while
    available = slots(spark)
    if asked > available and not growing:
        raise NotEnoughSlots(
            asked,
            available,
            hint or "Lower workers_per_node, or give Spark more: init_context(cores=...) or spark.executor.instances.",
        )
    return max(asked, available)


def await_slots(spark: SparkSession, asked: int, hint: str) -> None:
    """Wait for executors that are on their way to an application that has just started.

    Raises ``NotEnoughSlots`` at once where there will never be enough, else when they have had their time.
    """
    most = setting_of(spark, "spark.cores.max")
    is_local = _LOCAL.match(_master(spark)) or _LOCAL_CLUSTER.match(_master(spark))
    if is_local or (most and asked > int(most) // cores_per_task(spark)):
        check_slots(spark, asked, hint)
        return
    end = spark.sparkContext.startTime / 1000 + _ARRIVAL_SECONDS
    while slots(spark) < asked and time.time() < end:
        time.sleep(_LOOK_SECONDS)  # Spark tells nobody when an executor has come
    check_slots(spark, asked, hint)


def is_decommissioning(spark: SparkSession) -> bool:
    """Whether Spark is taking an executor away right now, or has just done so."""
    try:
        scheduler = spark.sparkContext._jsc.sc().taskScheduler()
        return bool(scheduler.executorsPendingDecommission().nonEmpty())
    except Exception:  # noqa: BLE001 - private to Spark: where it is not there, a loss is a loss
        return False


def use_own_python(spark: SparkSession) -> None:
    """Let a local session's workers run the driver's Python, where nobody chose one.

    PySpark would take ``python3`` from the path, which in a virtual environment that is not activated is another.
    """
    if is_remote(spark):
        is_ours = "SPARK_LOCAL_REMOTE" in os.environ  # PySpark's note that it started the server, on this machine
        if is_ours and not os.environ.get("PYSPARK_PYTHON") and not setting_of(spark, _SESSION_PYTHON):
            spark.conf.set(_SESSION_PYTHON, sys.executable)
        return
    context = spark.sparkContext
    is_chosen = os.environ.get("PYSPARK_PYTHON") or setting_of(spark, "spark.pyspark.python")
    if str(context.master).startswith("local") and not is_chosen and context.pythonExec == "python3":
        context.pythonExec = sys.executable


def driver_address(spark: SparkSession) -> str:
    """The driver's address as tasks reach it: Spark's own."""
    if _LOCAL.match(_master(spark)):
        return "127.0.0.1"
    return setting_of(spark, "spark.driver.host") or os.environ.get("SPARK_LOCAL_IP") or "127.0.0.1"


def bind_address(spark: SparkSession) -> str:
    """The address to which the coordinator binds: behind a container's network it is not the one that tasks see."""
    if _LOCAL.match(_master(spark)):
        return "127.0.0.1"
    return setting_of(spark, "spark.driver.bindAddress") or driver_address(spark)
