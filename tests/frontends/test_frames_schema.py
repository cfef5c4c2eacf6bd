"""analyze, append_shape, explain: what is known of columns, and what the data says."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as F

import firesteel.frames as tfs
from firesteel.core.errors import SchemaError


def lines(df):
    return tfs.explain(df).splitlines()[1:]


@pytest.fixture(scope="module")
def pairs(spark):
    return spark.range(0, 10, 1, 1).select(F.array(F.col("id").cast("double"), -F.col("id").cast("double")).alias("y"))


def test_one_partition(pairs, jobs):
    before = jobs()
    assert lines(pairs) == [" |-- y: array (nullable = false) double[?,?]"]
    assert jobs() == before
    known = tfs.analyze(pairs)
    assert jobs() == before + 1
    assert lines(known) == [" |-- y: array (nullable = false) double[10,2]"]
    assert known.schema["y"].metadata == {"firesteel.shape": [10, 2], "firesteel.dtype": "double"}
    assert known.collect() == pairs.collect()
    assert lines(known.filter("y[0] > 3").select(F.col("y").alias("w"))) == [
        " |-- w: array (nullable = false) double[10,2]"
    ]


def test_sizes_that_differ_are_not_known(spark):
    uneven = spark.range(0, 10, 1, 3).select(F.array("id", "id").alias("y"))
    assert lines(tfs.analyze(uneven)) == [" |-- y: array (nullable = false) long[?,2]"]
    ragged = spark.createDataFrame([([1.0],), ([1.0, 2.0],)], "y array<double>").coalesce(1)
    assert lines(tfs.analyze(ragged)) == [" |-- y: array (nullable = false) double[2,?]"]
    even = spark.range(0, 8, 1, 4).select(F.col("id").cast("float").alias("f"))
    assert lines(tfs.analyze(even)) == [" |-- f: float (nullable = false) float[2]"]
    holes = even.filter("f >= 4")  # two of four partitions are empty, and count for nothing
    assert lines(tfs.analyze(holes)) == [" |-- f: float (nullable = false) float[2]"]
    deep = spark.createDataFrame([([[1], [2]],), ([[3], [4]],), ([],)], "d array<array<int>>").coalesce(1)
    assert lines(tfs.analyze(deep)) == [" |-- d: array (nullable = false) integer[3,?,1]"]


def test_all_types(spark):
    from pyspark.ml.linalg import Vectors

    one = spark.createDataFrame([(1, Vectors.dense([1.0, 2.0]))], ["n", "v"]).coalesce(1)
    row = one.selectExpr(
        "cast(n as smallint) h", "cast(n as tinyint) b", "n = 1 as f", "'s' as s", "binary('b') as raw", "n", "v",
        "timestamp'2024-01-01' as t", "struct(n) as st", "cast(n as decimal(3,1)) as d", "array('p', 'q') as names",
    )  # fmt: skip
    before = {line.split(":")[0]: line for line in lines(row)}
    assert before[" |-- n"] == " |-- n: long (nullable = true) long[?]"
    assert before[" |-- t"] == " |-- t: timestamp (nullable = false) <no tensor info>"
    known = tfs.analyze(row)
    assert lines(known) == [
        " |-- h: short (nullable = false) short[1]",
        " |-- b: byte (nullable = false) byte[1]",
        " |-- f: boolean (nullable = false) boolean[1]",
        " |-- s: string (nullable = false) string[1]",
        " |-- raw: binary (nullable = false) binary[1]",
        " |-- n: long (nullable = false) long[1]",
        " |-- v: vector (nullable = false) double[1,2]",
        " |-- t: timestamp (nullable = false) <no tensor info>",
        " |-- st: struct (nullable = false) <no tensor info>",
        " |-- d: decimal (nullable = true) <no tensor info>",
        " |-- names: array (nullable = false) string[1,2]",
    ]
    assert known.collect() == row.collect()


def test_print_schema(pairs, capsys):
    assert tfs.print_schema(pairs) is None
    assert capsys.readouterr().out == "root\n |-- y: array (nullable = false) double[?,?]\n"


def test_append_shape_declares(spark, jobs):
    df = spark.createDataFrame([([1.0, 2.0], 1)], "y array<double>, n int").coalesce(1)
    before = jobs()
    for shape, text in (([None, 2], "[?,2]"), ((-1, 0), "[?,0]"), ([3, None], "[3,?]")):
        assert lines(tfs.append_shape(df, "y", shape))[0] == f" |-- y: array (nullable = true) double{text}"
    assert lines(tfs.append_shape(df, F.col("n"), [-1]))[1] == " |-- n: integer (nullable = true) integer[?]"
    assert jobs() == before
    noted = df.withMetadata("y", {"mine": 1})
    assert tfs.append_shape(noted, "y", [None, 2]).schema["y"].metadata["mine"] == 1


def test_nulls_are_told_by_column(spark):
    df = spark.createDataFrame([(1, [1.0], None), (2, [None], None)], "n int, y array<double>, t timestamp")
    with pytest.raises(SchemaError, match="'y' has a null inside an array") as caught:
        tfs.analyze(df)
    assert caught.value.column == "y"
    with pytest.raises(SchemaError, match="'n' has a null value"):
        tfs.analyze(df.select(F.when(F.col("n") == 1, F.col("n")).alias("n")))
    assert (
        lines(tfs.analyze(df.select("n", "t").coalesce(1)))[1] == " |-- t: timestamp (nullable = true) <no tensor info>"
    )


def test_an_empty_frame_says_nothing(spark):
    assert lines(tfs.analyze(spark.createDataFrame([], "y array<double>"))) == [
        " |-- y: array (nullable = false) double[?,?]"
    ]
