"""Rows per second of what people do to tables before training: XShards, pandas-on-Spark and plain RDDs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.bench import Bench, drain, seconds
from benchmarks.harness import Case, Figure

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["cases", "make_frame"]

_COLUMNS, _KEYS, _SHARD_ROWS = 10, 1000, 100_000
_PANDAS, _RDD, _OURS = "pandas-on-Spark", "plain RDD of rows", "firesteel"


def cases(bench: Bench) -> Iterator[Case]:
    """Three kinds of work on the same rows, which every subject makes in its tasks."""
    rows = bench.rows(2_000_000 if bench.is_quick else 10_000_000)
    few = max(1, rows // 10)  # plain RDDs take minutes for what the others do in seconds
    yield _case("a function of each row", rows, few, bench, _transform_shards, _transform_pandas, _transform_rdd)
    yield _case("sums by key", rows, few, bench, _group_shards, _group_pandas, _group_rdd)
    yield _case("into a DataFrame", rows, few, bench, _frame_shards, _frame_pandas, _frame_rdd)


def _case(kind: str, rows: int, few: int, bench: Bench, ours: Work, theirs: Work, plain: Work) -> Case:
    spark = bench.spark
    return Case(
        title=f"Tables: {kind}",
        about=f"{rows:,} rows of {_COLUMNS} columns (a key of {_KEYS:,} values and doubles), made in the tasks, "
        f"{_SHARD_ROWS:,} rows to a shard; a plain RDD has {few:,} of them. Making them is part of the time.",
        figures={"rate": Figure(kind, "rows/s", _PANDAS)},
        subjects={
            _PANDAS: lambda: {"rate": rows / seconds(lambda: theirs(spark, rows))},
            _RDD: lambda: {"rate": few / seconds(lambda: plain(spark, few))},
            _OURS: lambda: {"rate": rows / seconds(lambda: ours(spark, rows))},
        },
    )


Work = Callable[[Any, int], None]


def make_frame(rows: int, shard: int) -> pd.DataFrame:
    """One shard of the table."""
    import pandas as pd

    random = np.random.default_rng(shard)
    columns: dict[str, Any] = {"k": random.integers(0, _KEYS, rows)}
    return pd.DataFrame(columns | {f"v{i}": random.random(rows) for i in range(1, _COLUMNS)})


# --- ours ---


def _shards(spark: Any, rows: int) -> Any:
    from firesteel import XShards

    size = min(rows, _SHARD_ROWS)
    count = max(1, rows // size)
    return XShards(spark.sparkContext.parallelize(range(count), count)).transform_shard(partial(make_frame, size))


def _change(frame: pd.DataFrame) -> pd.DataFrame:
    frame["s"] = frame["v1"] * 2 + frame["v2"]
    return frame


def _transform_shards(spark: Any, rows: int) -> None:
    _shards(spark, rows).transform_shard(_change)["s"].transform_shard(np.sum).collect()


def _group_shards(spark: Any, rows: int) -> None:
    _shards(spark, rows).group_by("k", {"v1": "sum", "v2": "avg"}).collect()


def _frame_shards(spark: Any, rows: int) -> None:
    drain(_shards(spark, rows).to_spark_df())


# --- pandas on Spark: from a DataFrame that pandas makes in tasks, its fastest way in ---


def _made(spark: Any, rows: int) -> Any:
    from pyspark.sql.types import DoubleType, LongType, StructField, StructType

    size = min(rows, _SHARD_ROWS)
    count = max(1, rows // size)
    fields = [StructField("k", LongType()), *(StructField(f"v{i}", DoubleType()) for i in range(1, _COLUMNS))]
    numbers = spark.range(0, count, 1, count)
    return numbers.mapInPandas(partial(_frames_of, size), StructType(fields))


def _frames_of(size: int, batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for batch in batches:
        for number in batch["id"]:
            yield make_frame(size, int(number))


def _transform_pandas(spark: Any, rows: int) -> None:
    frame = _made(spark, rows).pandas_api()
    (frame["v1"] * 2 + frame["v2"]).sum()


def _group_pandas(spark: Any, rows: int) -> None:
    _made(spark, rows).pandas_api().groupby("k").agg({"v1": "sum", "v2": "mean"}).to_pandas()


def _frame_pandas(spark: Any, rows: int) -> None:
    drain(_made(spark, rows).pandas_api().to_spark())


# --- rows as tuples ---


def _rows(spark: Any, rows: int) -> Any:
    size = min(rows, _SHARD_ROWS)
    count = max(1, rows // size)
    return spark.sparkContext.parallelize(range(count), count).flatMap(partial(_tuples, size))


def _tuples(size: int, number: int) -> Iterator[tuple[Any, ...]]:
    return make_frame(size, number).itertuples(index=False, name=None)


def _transform_rdd(spark: Any, rows: int) -> None:
    _rows(spark, rows).map(lambda row: row[1] * 2 + row[2]).sum()


def _group_rdd(spark: Any, rows: int) -> None:
    _rows(spark, rows).map(lambda row: (row[0], row[1])).reduceByKey(operator.add).collect()


def _frame_rdd(spark: Any, rows: int) -> None:
    names = ["k", *(f"v{i}" for i in range(1, _COLUMNS))]
    drain(
        spark.createDataFrame(_rows(spark, rows), ", ".join(f"{n} {'bigint' if n == 'k' else 'double'}" for n in names))
    )
