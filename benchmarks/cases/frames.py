"""firesteel.frames: the five verbs beside what Spark offers for the same, on doubles and on arrays of floats."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import add
from typing import TYPE_CHECKING, Any

from benchmarks import data
from benchmarks.bench import Bench, drain, seconds
from benchmarks.harness import Case, Figure, Goal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["cases"]

_WIDTH, _KEYS, _BLOCK = 64, 1000, 10_000
_OURS, _UDF, _BARE, _ONE = "firesteel", "pandas_udf", "bare mapInArrow", "one call per row"


def cases(bench: Bench) -> Iterator[Case]:
    """Maps, then folds."""
    many, fewer = bench.rows(10_000_000), bench.rows(1_000_000)
    doubles = _doubles(bench, many)
    floats = bench.spark.read.parquet(data.array_parquet(bench.folder, fewer, _WIDTH)).drop("label")
    yield _blocks("doubles", doubles, "x", many, _double_udf, _double_bare)
    yield _blocks(f"rows of {_WIDTH} floats", floats, "features", fewer, _float_udf, _float_bare)
    yield _rows(bench, floats, fewer)
    yield _reduce(doubles, many)
    yield _aggregate(doubles, many)


def _doubles(bench: Bench, rows: int) -> DataFrame:
    path = str(bench.folder / f"doubles-{rows}")
    numbers = bench.spark.range(rows, numPartitions=4)
    numbers.selectExpr(f"id % {_KEYS} as key", "double(id) as x").write.mode("overwrite").parquet(path)
    return bench.spark.read.parquet(path)


def _blocks(kind: str, frame: DataFrame, column: str, rows: int, by_udf: Any, by_hand: Any) -> Case:
    import firesteel.frames as tfs

    def ours() -> None:
        program = tfs.program(_twice, outputs=["z"])
        drain(tfs.map_blocks(program, frame, feed_dict={"x": column}, block_size=_BLOCK))

    def rate(run: Callable[[], None]) -> float:
        return rows / seconds(run)

    def both() -> dict[str, float]:
        found = rate(ours)
        return {"udf": found, "bare": found}

    return Case(
        title=f"map_blocks over {kind}",
        about=f"{rows:,} {kind} from Parquet, 2·x + 3 in NumPy, all columns into a sink that drops them; two tasks.",
        figures={
            "udf": Figure(f"map_blocks, {kind}", "rows/s", _UDF, {_OURS: Goal(least=1.5)}, (_UDF, _OURS)),
            "bare": Figure(f"map_blocks, {kind}", "rows/s", _BARE, {_OURS: Goal(least=0.8)}, (_BARE, _OURS)),
        },
        subjects={
            _UDF: lambda: {"udf": rate(lambda: by_udf(frame))},
            _BARE: lambda: {"bare": rate(lambda: by_hand(frame))},
            _OURS: both,
        },
    )


def _twice(x: Any) -> Any:
    return 2 * x + 3


def _double_udf(frame: DataFrame) -> None:
    import pandas as pd
    from pyspark.sql.functions import pandas_udf

    def twice(cells: Any) -> Any:
        return _twice(cells)

    twice.__annotations__ = {"cells": pd.Series, "return": pd.Series}  # Spark reads them, and wants the classes
    drain(frame.withColumn("z", pandas_udf(twice, "double")("x")))


def _double_bare(frame: DataFrame) -> None:
    def run(batches: Any) -> Any:
        import pyarrow as pa

        for batch in batches:
            made = pa.array(_twice(batch.column("x").to_numpy()))
            yield pa.RecordBatch.from_arrays([made, *batch.columns], ["z", *batch.schema.names])

    drain(frame.mapInArrow(run, "z double, key bigint, x double"))


def _float_udf(frame: DataFrame) -> None:
    import numpy as np
    import pandas as pd
    from pyspark.sql.functions import pandas_udf

    def twice(cells: Any) -> Any:
        return pd.Series(list(_twice(np.stack(cells.to_numpy()))))

    twice.__annotations__ = {"cells": pd.Series, "return": pd.Series}
    drain(frame.withColumn("z", pandas_udf(twice, "array<float>")("features")))


def _float_bare(frame: DataFrame) -> None:
    def run(batches: Any) -> Any:
        import pyarrow as pa

        for batch in batches:
            cells = batch.column("features")
            made = pa.ListArray.from_arrays(cells.offsets, pa.array(_twice(cells.values.to_numpy())))
            yield pa.RecordBatch.from_arrays([made, cells], ["z", "features"])

    drain(frame.mapInArrow(run, "z array<float>, features array<float>"))


def _rows(bench: Bench, frame: DataFrame, rows: int) -> Case:
    import firesteel.frames as tfs

    few = bench.rows(100_000)
    part = bench.spark.read.parquet(data.array_parquet(bench.folder, few, _WIDTH)).drop("label")

    def ours() -> None:
        import tensorflow as tf

        with tf.Graph().as_default():
            cell = tf.compat.v1.placeholder(tf.float32, [None], name="features")
            drain(tfs.map_rows(tf.reduce_sum(2 * cell + 3, name="z"), frame))

    def one_by_one() -> None:
        drain(part.mapInArrow(_each_row, "z float, features array<float>"))

    return Case(
        title="map_rows of a TensorFlow graph",
        about=f"{rows:,} rows of {_WIDTH} floats from Parquet, a sum over each row as a graph; beside the same graph "
        f"in a session that is called once for each of {few:,} rows, so that both take seconds.",
        figures={"rate": Figure("map_rows", "rows/s", _ONE, {_OURS: Goal(least=20.0)})},
        subjects={
            _ONE: lambda: {"rate": few / seconds(one_by_one)},
            _OURS: lambda: {"rate": rows / seconds(ours)},
        },
    )


def _each_row(batches: Any) -> Any:
    import numpy as np
    import pyarrow as pa
    import tensorflow as tf

    tf1 = tf.compat.v1
    with tf.Graph().as_default():
        cell = tf1.placeholder(tf.float32, [None])
        total = tf.reduce_sum(2 * cell + 3)
        config = tf1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
        with tf1.Session(config=config) as session:
            run = session.make_callable(total, [cell])
            for batch in batches:
                cells = batch.column("features")
                rows = cells.values.to_numpy().reshape(-1, _WIDTH)
                made = pa.array(np.array([run(row) for row in rows], np.float32))
                yield pa.RecordBatch.from_arrays([made, cells], ["z", "features"])


def _reduce(frame: DataFrame, rows: int) -> Case:
    import firesteel.frames as tfs

    column = frame.select("x")

    def ours() -> None:
        def x(x_input: Any) -> Any:
            return x_input.sum(axis=0)

        tfs.reduce_blocks(x, column)

    theirs = "RDD reduce"
    return Case(
        title="reduce_blocks to one sum",
        about=f"{rows:,} doubles from Parquet, summed; beside `rdd.map(…).reduce(add)`.",
        figures={"rate": Figure("reduce_blocks", "rows/s", theirs, {_OURS: Goal(least=5.0)})},
        subjects={
            theirs: lambda: {"rate": rows / seconds(lambda: column.rdd.map(lambda row: row[0]).reduce(add))},
            _OURS: lambda: {"rate": rows / seconds(ours)},
        },
    )


def _aggregate(frame: DataFrame, rows: int) -> Case:
    import firesteel.frames as tfs

    def ours() -> None:
        def x(x_input: Any) -> Any:
            return x_input.sum(axis=0)

        drain(tfs.aggregate(x, frame.groupBy("key")))

    def by_pandas() -> None:
        def summed(group: Any) -> Any:
            return group.groupby("key", as_index=False).agg({"x": "sum"})

        drain(frame.groupBy("key").applyInPandas(summed, "key bigint, x double"))

    theirs = "applyInPandas"
    return Case(
        title="aggregate by key",
        about=f"{rows:,} doubles with {_KEYS:,} keys from Parquet, summed for each key.",
        figures={"rate": Figure("aggregate", "rows/s", theirs, {_OURS: Goal(least=1.0)})},
        subjects={
            theirs: lambda: {"rate": rows / seconds(by_pandas)},
            _OURS: lambda: {"rate": rows / seconds(ours)},
        },
    )
