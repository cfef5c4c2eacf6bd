"""Functions of arrays on the rows and blocks of a DataFrame: lazy, the schema known at the call, every row once."""

from __future__ import annotations

import os
import tempfile

import numpy as np
import pytest
import torch
from pyspark.errors import PythonException
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DoubleType

import firesteel.frames as tfs
from frontends.frame_programs import Plus3, values, z

TEN = [float(number) for number in range(10)]
PLUS_3 = [(number + 3, number) for number in TEN]


@pytest.fixture(scope="module")
def ten(spark):
    """0.0 … 9.0 as x, by the number of partitions."""

    def make(partitions=3):
        return spark.range(0, 10, 1, partitions).select(F.col("id").cast("double").alias("x"))

    return make


# --- one program in every form ---


def test_every_kind_of_function_gives_the_same(ten):
    programs = {
        "numpy": z,
        "torch function": tfs.program(z, kind="torch"),
        "module": Plus3(),
        "lambda": tfs.program(lambda x: x + 3, outputs=["z"]),
        "default": tfs.program(lambda x, k=3: {"z": x + k}),
    }
    schemas = set()
    for name, program in programs.items():
        for verb in (tfs.map_blocks, tfs.map_rows):
            made = verb(program, ten(20 if name == "numpy" else 2))
            assert made.columns == ["z", "x"]
            assert values(made) == PLUS_3, (name, verb)
            schemas.add(made.schema.json())
    assert len(schemas) == 1


def test_a_jitted_jax_function(ten):
    jax = pytest.importorskip("jax", reason="JAX is not in this environment; arrays of its kind are not tried")
    made = [verb(jax.jit(z), ten()) for verb in (tfs.map_blocks, tfs.map_rows)]
    assert [values(each) for each in made] == [PLUS_3, PLUS_3]
    assert made[0].schema == tfs.map_blocks(z, ten()).schema


def test_a_modules_single_output_and_its_mode_are_kept(ten):
    module = torch.nn.Dropout(0.5)
    made = tfs.map_blocks(module, ten(), feed_dict={"input": "x"})
    assert values(made, "output") == TEN  # evaluation drops nothing
    assert module.training


# --- names, layout, schema ---


def test_nothing_runs_before_it_is_asked_for(ten, jobs):
    before = jobs()
    made = tfs.map_rows(tfs.program(lambda w: {"y": w}), tfs.map_blocks(z, ten()), feed_dict={"w": "z"})
    assert made.columns == ["y", "z", "x"]
    assert jobs() == before
    assert values(made, "y", "x") == PLUS_3


def test_new_columns_come_first_and_others_pass_through(spark):
    rows = spark.sql(
        "select x, timestamp'2024-02-29 12:00:00' + make_dt_interval(0, 0, 0, x) as t, named_struct('a', x, 'b', '') s,"
        " if(x > 1, null, x) as n, make_interval(0, 1) as i, map('k', x) as `m.n` from values (1.0D), (2.0D) as (x)"
    )
    program = tfs.program(lambda x: {"b": x * 2, "a": x + 1})
    for made in (tfs.map_blocks(program, rows), tfs.map_rows(program, rows)):
        assert made.columns == ["a", "b", "x", "t", "s", "n", "i", "m.n"]
        assert made.schema.fields[2:] == rows.schema.fields
        assert values(made.drop("i", "a", "b")) == values(rows.drop("i"))
        assert values(made, "a", "b") == [(2.0, 2.0), (3.0, 4.0)]


def test_outputs_are_not_nullable_and_carry_metadata(ten):
    made = tfs.map_blocks(tfs.program(lambda x: {"z": x, "w": np.stack([x, x], axis=1)}), ten())
    assert made.schema["w"].dataType == ArrayType(DoubleType(), False)
    assert not made.schema["w"].nullable
    assert made.schema["w"].metadata == {"firesteel.shape": [-1, 2], "firesteel.dtype": "double"}
    later = made.select(F.col("w").alias("v"), "x").filter("x > 3").withColumn("n", F.lit(1))
    assert tfs.explain(later).splitlines() == [
        "root",
        " |-- v: array (nullable = false) double[?,2]",
        " |-- x: double (nullable = false) double[?]",
        " |-- n: integer (nullable = false) integer[?]",
    ]


def test_columns_with_one_name_are_no_trouble_unless_read(spark):
    df = spark.createDataFrame([(1.0, "a", "b")], "x double, n string, n string")
    assert [tuple(row) for row in tfs.map_blocks(z, df).collect()] == [(4.0, 1.0, "a", "b")]
    with pytest.raises(ValueError, match=r"'n'.*several"):
        tfs.map_blocks(tfs.program(lambda n: {"q": n}), df)


# --- blocks ---


def test_trim_gives_any_number_of_rows(spark, ten):
    three = spark.range(0, 3, 1, 1)
    made = tfs.map_blocks(tfs.program(lambda: np.array([2]), outputs=["z"]), three, trim=True)
    assert made.columns == ["z"]
    assert values(made) == [2]
    more = tfs.program(lambda x: {"x": np.concatenate([x, x])})  # trimmed, it may be called as a column is
    assert values(tfs.map_blocks(more, ten(2), trim=True)) == [*TEN[:5], *TEN[:5], *TEN[5:], *TEN[5:]]
    fewer = tfs.program(lambda x: {"m": x[:1], "n": np.array([len(x)])})
    assert values(tfs.map_blocks(fewer, ten(20), trim=True)) == [(x, 1) for x in TEN]  # none of an empty partition
    assert values(tfs.map_blocks(tfs.program(lambda x: {"m": x[:0]}), ten(3), trim=True)) == []
    uneven = tfs.program(lambda x: {"m": x, "n": x[:1]})
    with pytest.raises(PythonException, match="different numbers of rows: m 5, n 1"):
        tfs.map_blocks(uneven, ten(2), trim=True).collect()


def test_without_trim_the_number_of_rows_must_stay(spark):
    made = tfs.map_blocks(tfs.program(lambda: np.array([2]), outputs=["z"]), spark.range(0, 3, 1, 1))
    with pytest.raises(PythonException, match="'z' has 1 rows for a block of 3 rows"):
        made.collect()


def test_block_size(spark):
    df = spark.range(0, 1050, 1, 1).select(F.col("id").cast("double").alias("x"))
    count = tfs.program(lambda x: {"n": np.array([len(x)])})
    assert values(tfs.map_blocks(count, df, trim=True, block_size=100)) == [100] * 10 + [50]
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "64")  # blocks that are not batches of Spark's
    try:
        assert values(tfs.map_blocks(count, df, trim=True, block_size=100)) == [100] * 10 + [50]
        centred = tfs.program(lambda x: {"c": x - x.mean()})
        first = [x // 100 * 100 for x in range(1050)]
        means = [(begin + min(1050, begin + 100) - 1) / 2 for begin in first]
        assert values(tfs.map_blocks(centred, df, block_size=100)) == [(x - means[x], x) for x in range(1050)]
        assert values(tfs.map_blocks(centred, df)) == [(x - 524.5, x) for x in range(1050)]
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def test_memory_does_not_grow_with_the_partition(spark):
    """Fifty blocks need no more than one: in one partition of 400 MB the task's peak stays far below that."""
    import resource

    df = spark.range(0, 1_000_000, 1, 1).select(F.array_repeat(F.col("id").cast("double"), 50).alias("y"))

    def peak(y):
        return {"mb": np.array([resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]), "n": np.array([len(y)])}

    rows = values(tfs.map_blocks(tfs.program(peak), df, trim=True, block_size=20_000))
    assert [n for _, n in rows] == [20_000] * 50
    assert rows[-1][0] - rows[1][0] < 100


def test_a_block_is_the_whole_partition_whatever_is_asked_of_the_result(ten):
    made = tfs.map_blocks(tfs.program(lambda x: {"s": np.full_like(x, x.sum())}), ten(2))
    assert values(made.filter("x > 3").limit(1)) == [(10.0, 4.0)]
    assert values(made.limit(2)) == [(10.0, 0.0), (10.0, 1.0)]
    assert made.take(1)[0]["s"] == 10.0
    assert [row["s"] for row in made.filter("s > 20").collect()] == [35.0] * 5


def test_take_computes_no_more_partitions_than_needed(ten):
    def first_only(x):
        assert x.max() < 1, "a partition that nobody asked for"
        return x

    assert tfs.map_blocks(tfs.program(first_only, outputs=["z"]), ten(10)).take(1) == [(0.0, 0.0)]


def test_blocks_are_views_of_arrows_memory_and_leave_no_files(spark):
    df = spark.range(0, 1_000_000, 1, 2).select(F.col("id").cast("double").alias("x"))
    there = set(os.listdir(tempfile.gettempdir()))

    def look(x):
        return {"is_view": np.array([not x.flags.owndata and not x.flags.writeable]), "n": np.array([len(x)])}

    assert values(tfs.map_blocks(tfs.program(look), df, trim=True)) == [(True, 500_000)] * 2
    total = tfs.map_blocks(z, df).agg(F.sum("z")).first()[0]
    assert total == 999_999 * 500_000 + 3_000_000
    assert not [name for name in set(os.listdir(tempfile.gettempdir())) - there if name.startswith("firesteel")]


# --- rows ---


def test_ragged_rows(spark):
    df = spark.createDataFrame([([1.0],), ([2.0, 2.1],), ([],), ([3.0, 3.1],)], "y array<double>").coalesce(1)
    made = tfs.map_rows(tfs.program(lambda y: {"same": y, "sum": y.sum()}), df)
    assert made.schema["same"].metadata["firesteel.shape"] == [-1, -1]
    assert values(made, "same", "y") == [([1.0], [1.0]), ([2.0, 2.1], [2.0, 2.1]), ([], []), ([3.0, 3.1], [3.0, 3.1])]
    assert values(made, "sum") == [1.0, 4.1, 0.0, 6.1]
    with pytest.raises(PythonException, match=r"'y'.*length 1 and 2"):
        tfs.map_blocks(tfs.program(lambda y: {"q": y}), df).collect()


def test_rows_of_nested_arrays_in_many_shapes(spark):
    cells = [[[1.0, 2.0]], [[1.0], [2.0]], [[3.0, 4.0]], [[5.0]], []]
    df = spark.createDataFrame([(cell, k) for k, cell in enumerate(cells)], "y array<array<double>>, k int").coalesce(1)
    made = tfs.map_rows(tfs.program(lambda y, k: {"t": y.T, "k2": k * 2}), df)
    expected = [[[1.0], [2.0]], [[1.0, 2.0]], [[3.0], [4.0]], [[5.0]], []]
    assert values(made, "t", "k2") == [(cell, 2 * k) for k, cell in enumerate(expected)]
    crooked = spark.createDataFrame([([[1.0], [2.0, 3.0]],), ([[1.0]],)], "y array<array<double>>").coalesce(1)
    with pytest.raises(PythonException, match="'y' has a cell that is no rectangle"):
        tfs.map_rows(tfs.program(lambda y: {"q": y}), crooked).collect()


def test_rows_are_not_called_one_by_one(spark, sc):
    """Ten thousand rows of one shape are a handful of calls."""
    df = spark.range(0, 10_000, 1, 1).select(F.col("id").cast("double").alias("x"))
    calls = sc.accumulator(0)

    def count(x):
        calls.add(1)
        return {"z": x * 2 + 1}

    for kind in ("numpy", "torch"):
        before = calls.value
        assert values(tfs.map_rows(tfs.program(count, kind=kind), df), "z") == [2.0 * x + 1 for x in range(10_000)]
        assert 0 < calls.value - before < 20, kind


# --- types ---


@pytest.mark.parametrize("kind", ["double", "float", "int", "bigint", "smallint", "tinyint"])
def test_types_come_back_as_they_went(spark, kind):
    number = float if kind in ("double", "float") else int
    cells = [(number(k), [number(k), number(9)], [[number(k)] * 3, [number(4)] * 3]) for k in (1, 2, 3)]
    df = spark.createDataFrame(cells, f"s {kind}, v array<{kind}>, m array<array<{kind}>>")
    element = df.schema["s"].dataType
    program = tfs.program(lambda s, v, m: {"s1": s, "v1": v + v, "m1": m, "c": np.ones_like(s)})
    for verb in (tfs.map_rows, tfs.map_blocks):
        made = verb(program, df)
        assert made.schema["s1"].dataType == made.schema["c"].dataType == element
        assert made.schema["v1"].dataType == ArrayType(element, False)
        assert made.schema["m1"].dataType == ArrayType(ArrayType(element, False), False)
        expected = [(s, [2 * each for each in v], m, 1, s, v, m) for s, v, m in cells]
        assert values(made, "s1", "v1", "m1", "c", "s", "v", "m") == expected


def test_strings_bytes_and_booleans(spark):
    rows = [("a", bytearray(b"\xff"), True, 1.0), ("é", bytearray(b""), False, 3.0)]
    df = spark.createDataFrame(rows, "s string, b binary, f boolean, x double")
    assert values(tfs.map_blocks(tfs.program(lambda x, f: {"big": (x > 2) | f}), df), "big") == [True, True]
    shout = tfs.program(lambda s, b: {"t": s + "!", "n": len(b)})
    made = tfs.map_rows(shout, df, schema={"t": (str, []), "n": ("int64", ())})
    assert values(made, "t", "n") == [("a!", 1), ("é!", 0)]
    with pytest.raises(ValueError, match=r"schema=\{'t': \('string', \[\]\)\}"):
        tfs.map_rows(shout, df)


def test_vectors_dense_and_sparse(spark):
    from pyspark.ml.linalg import Vectors

    rows = [(Vectors.dense([1.0, 2.0]), 1), (Vectors.sparse(2, {1: 5.0}), 2)]
    df = spark.createDataFrame(rows, ["v", "k"]).coalesce(1)
    made = tfs.map_blocks(tfs.program(lambda v: {"w": v * 2}), df)
    assert made.schema["w"].dataType == ArrayType(DoubleType(), False)
    assert values(made, "w", "v", "k") == [([2.0, 4.0], *rows[0]), ([0.0, 10.0], *rows[1])]
    longer = df.union(spark.createDataFrame([(Vectors.dense([7.0]), 3)], ["v", "k"])).coalesce(1)
    assert values(tfs.map_rows(tfs.program(lambda v: {"s": v.sum()}), longer), "s") == [3.0, 5.0, 7.0]


def test_nulls(spark):
    rows = [(1.0, None, [1.0]), (None, 2.0, [None])]
    df = spark.createDataFrame(rows, "x double, y double, a array<double>").coalesce(1)
    for verb in (tfs.map_blocks, tfs.map_rows):
        with pytest.raises(PythonException, match="'x' has a null"):
            verb(z, df).collect()
        with pytest.raises(PythonException, match="'a' has a null inside an array"):
            verb(tfs.program(lambda a: {"q": a}), df).collect()
    some = df.filter("x is not null")
    assert values(tfs.map_blocks(z, some)) == [(4.0, 1.0, None, [1.0])]


def test_empty_frames(spark):
    df = spark.createDataFrame([], "x double, y array<float>")
    for made in (tfs.map_blocks(z, df), tfs.map_rows(z, df), tfs.map_blocks(z, df, trim=True)):
        assert made.columns[0] == "z"
        assert made.collect() == []


# --- what goes wrong in the data or in the program ---


def test_a_functions_own_error_names_row_partition_and_line(ten):
    def picky(x):
        if x == 7:
            raise KeyError("seven is not liked")
        return x

    with pytest.raises(PythonException) as caught:
        tfs.map_rows(picky, ten(3)).collect()
    text = str(caught.value)
    assert 'raise KeyError("seven is not liked")' in text
    assert "in map_rows, partition 2" in text
    assert "row 1 of the partition" in text
    assert values(tfs.map_rows(z, ten(3))) == PLUS_3  # the session goes on


def test_a_function_that_cannot_take_zeros_needs_a_schema(spark):
    df = spark.createDataFrame([(2.0,), (4.0,)], "x double")

    def inverse(x):
        if (x == 0).any():
            raise ZeroDivisionError("no zeros here")
        return 1 / x

    with pytest.raises(ValueError, match=r"no zeros here.*schema="):
        tfs.map_blocks(inverse, df)
    for schema in ({"inverse": ("float64", [])}, "inverse double", "`inverse`: DOUBLE NOT NULL"):
        made = tfs.map_blocks(inverse, df, schema=schema)
        assert made.schema["inverse"].dataType == DoubleType()
        assert values(made, "inverse") == [0.5, 0.25]
    with pytest.raises(PythonException, match="'inverse' is float64, but float32 was expected"):
        tfs.map_blocks(inverse, df, schema="inverse float").collect()


# --- streams ---


def test_streams_are_mapped_as_frames_are(spark, tmp_path):
    from firesteel.core.errors import UnsupportedError

    spark.range(0, 6, 1, 2).select(F.col("id").cast("double").alias("x")).write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema("x double").parquet(str(tmp_path / "in"))
    made = tfs.map_rows(tfs.program(lambda z: {"y": z * 2}), tfs.map_blocks(z, stream))
    query = made.writeStream.format("memory").queryName("frames").trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    assert sorted(values(spark.table("frames"))) == [((x + 3) * 2, x + 3, x) for x in range(6)]
    for refused in (
        lambda: tfs.reduce_blocks(tfs.program(lambda x_input: {"x": x_input.sum()}), stream),
        lambda: tfs.aggregate(tfs.program(lambda x_input: {"x": x_input.sum()}), stream.groupBy()),
        lambda: tfs.analyze(stream),
    ):
        with pytest.raises(UnsupportedError, match="foreachBatch"):
            refused()
