"""How replicas exchange in a test: in memory, as they do on one machine, or over the network."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from pyspark.sql import SparkSession

SETTING = "spark.firesteel.sharedMemory"


@contextlib.contextmanager
def over_the_network(spark: SparkSession, is_so: bool = True) -> Iterator[None]:
    """While inside, replicas exchange through a library, as those of several machines do."""
    spark.conf.set(SETTING, str(not is_so).lower())
    try:
        yield
    finally:
        spark.conf.unset(SETTING)
