"""One Spark session for each process of a run, with room for three replicas: a JVM takes longer than most tests."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

# A busy machine is no finding: what a property says holds, however long it takes.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


def pytest_configure(config: pytest.Config) -> None:
    """Where several processes share the tests, each has its own temporary files: what is left there is its own."""
    if hasattr(config, "workerinput"):
        folder = tempfile.TemporaryDirectory(prefix="t-", ignore_cleanup_errors=True)
        config.add_cleanup(folder.cleanup)
        os.environ["TMPDIR"], tempfile.tempdir = folder.name, None


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    from firesteel import init_context, stop_context

    # Ours, for it finds Java where the machine has none. Two cores: a JVM that compiles little and collects on one
    # thread starts seconds earlier.
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["JDK_JAVA_OPTIONS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    # Hundreds of fits, one after the other: the second one need not import its framework again.
    conf = {"spark.sql.shuffle.partitions": "2", "spark.firesteel.keepWarmSeconds": "60"}
    init_context("local", cores=3, app_name="firesteel-tests", conf=conf)
    yield SparkSession.builder.getOrCreate()
    stop_context()


@pytest.fixture(scope="session")
def sc(spark: SparkSession) -> SparkContext:
    return spark.sparkContext
