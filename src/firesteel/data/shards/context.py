"""What XShards need of Spark: a SparkContext, and how many tasks it runs at the same time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from firesteel.core.errors import UnsupportedError

if TYPE_CHECKING:
    from pyspark import SparkContext

__all__ = ["connect_error", "refuse_connect", "spark_context", "task_slots"]


def connect_error() -> UnsupportedError:
    """What is said where there are no RDDs."""
    return UnsupportedError(
        "XShards needs RDDs, and Spark Connect has none. A Spark DataFrame works under Spark Connect: pass it "
        "where you would pass the XShards, with feature_cols and label_cols."
    )


def refuse_connect() -> None:
    """Raise it under Spark Connect."""
    from pyspark.sql.utils import is_remote

    if is_remote():
        raise connect_error()


def spark_context() -> SparkContext:
    """The SparkContext of this process."""
    refuse_connect()
    from pyspark import SparkContext

    return SparkContext.getOrCreate()


def task_slots(context: SparkContext) -> int:
    """How many tasks can run at the same time now; what the configuration says while no executor is there yet."""
    # Not defaultParallelism alone: a user may have set that to any number, and it knows nothing of spark.task.cpus.
    spark = context._jsc.sc()
    slots = spark.maxNumConcurrentTasks(spark.resourceProfileManager().defaultResourceProfile())
    return int(slots) or context.defaultParallelism
