"""A Spark job of ours, and what is known of it where its tasks could not say anything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.errors import PythonException
from pyspark.sql.functions import udf

from firesteel.cluster.launch import Job, place

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


def nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass
    yield from ()


def test_a_task_whose_rows_fail_is_known_though_it_says_nothing(spark: SparkSession) -> None:
    rows = spark.range(40, numPartitions=4)
    broken = rows.select(udf(lambda x: 1 / (x - 25), "double")("id"))  # in the third partition
    job = Job(broken, nothing)
    job.join(60)
    assert isinstance(job.error, PythonException)
    place(job, {})
    assert (job.error.rank, bool(job.error.host)) == (2, True)  # type: ignore[attr-defined]


def test_what_a_task_has_said_of_its_rows_comes_first(spark: SparkSession) -> None:
    job = Job(spark.range(4, numPartitions=1).select(udf(lambda x: 1 / 0, "double")("id")), nothing)
    job.join(60)
    place(job, {3: "there"})
    assert (job.error.rank, job.error.host) == (3, "there")  # type: ignore[union-attr]


def test_a_job_that_went_well_has_no_failed_tasks(spark: SparkSession) -> None:
    job = Job(spark.range(4, numPartitions=2), nothing)
    job.join(60)
    assert job.error is None
    assert job.failed_tasks() == {}
