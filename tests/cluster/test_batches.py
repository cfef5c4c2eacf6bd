"""Rows for our jobs in small batches, and nobody else's session changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from firesteel.cluster.batches import in_small_batches

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

KEY = "spark.sql.execution.arrow.maxBytesPerBatch"


def lengths(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for batch in batches:
        yield pa.RecordBatch.from_pydict({"rows": [batch.num_rows], "first": [batch["id"][0].as_py()]})


def batches_of(df: DataFrame) -> list[int]:
    return [row.rows for row in df.mapInArrow(lengths, "rows long, first long").orderBy("first").collect()]


def test_wide_rows_come_in_small_batches_and_narrow_ones_as_before(spark: SparkSession) -> None:
    from pyspark.sql import functions as f

    narrow = spark.range(0, 3000, 1, 1)
    wide = narrow.withColumn("x", f.array_repeat(f.lit(1.5), 4096))  # 32 KiB each
    before = spark.conf.get(KEY)
    assert batches_of(wide)[0] > 1000
    small = batches_of(in_small_batches(wide))
    assert sum(small) == 3000
    assert max(small) <= 200, "of 4 MiB, give or take how Spark counts"
    assert batches_of(in_small_batches(narrow)) == [3000]
    assert spark.conf.get(KEY) == before
    assert type(spark).getActiveSession() is spark


def test_rows_columns_and_views_are_the_users(spark: SparkSession) -> None:
    spark.range(10).createOrReplaceTempView("seen_by_jobs")
    found = in_small_batches(spark.sql("SELECT id, id * 2 AS twice FROM seen_by_jobs"))
    assert found.columns == ["id", "twice"]
    assert np.array(found.orderBy("id").collect()).tolist() == [[n, 2 * n] for n in range(10)]


def test_a_size_that_the_user_has_set_stays(spark: SparkSession) -> None:
    spark.conf.set(KEY, "1m")
    try:
        df = spark.range(3)
        assert in_small_batches(df) is df
    finally:
        spark.conf.unset(KEY)
