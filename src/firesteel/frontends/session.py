"""The Spark session that a door works with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["session_of"]


def session_of(data: Any) -> SparkSession:
    """The session of a DataFrame, else the active one, else a new one of ours."""
    from pyspark.sql import SparkSession

    from firesteel.cluster.context import init_context
    from firesteel.cluster.preflight import use_own_python

    if not hasattr(data, "sparkSession"):
        init_context()
    spark: SparkSession = data.sparkSession if hasattr(data, "sparkSession") else SparkSession.builder.getOrCreate()
    use_own_python(spark)
    return spark
