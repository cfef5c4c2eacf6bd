"""What is refused at the call, before any job: names, dtypes, shapes, each with what there is."""

from __future__ import annotations

import numpy as np
import pytest
from pyspark.sql import functions as F

import firesteel.frames as tfs
from firesteel.core.errors import PlanError, SchemaError
from frontends.frame_programs import graph, pair_sum, sum_of, z


@pytest.fixture(scope="module")
def df(spark):
    return spark.createDataFrame([(1.0, 2, [1.0, 2.0], "s")], "x double, n int, y array<double>, s string").withColumn(
        "t", F.current_timestamp()
    )


@pytest.fixture
def refused(jobs):
    """Calls what must raise a ``PlanError`` with these words in it, and start no job."""

    def check(call, *words, error=PlanError):
        before = jobs()
        with pytest.raises(error) as caught:
            call()
        assert jobs() == before
        assert isinstance(caught.value, (ValueError, TypeError))
        for word in words:
            assert word in str(caught.value), (word, str(caught.value))
        return caught.value

    return check


def test_inputs_without_columns(df, refused):
    refused(lambda: tfs.map_rows(tfs.program(lambda a, x, b: {"q": x}), df), "a, b", "x, n, y, s, t")
    with graph() as tf:
        tf.placeholder(tf.float64, name="not_needed")
        fetch = tf.add(tf.placeholder(tf.float64, name="a"), 1, name="z")
        found = refused(lambda: tfs.map_blocks(fetch, df), "a", "x, n, y, s, t", "feed_dict")
        assert found.column == "a"
        refused(lambda: tfs.map_blocks(fetch, df, {"b": "x"}), "b", "its inputs are: a")
        refused(lambda: tfs.map_blocks(fetch, df, {"a": "nowhere"}), "nowhere", "x, n, y, s, t", error=SchemaError)
        refused(lambda: tfs.map_blocks(fetch, df, {3: "x"}), "feed_dict")


def test_dtypes(df, refused):
    with graph() as tf:
        whole = tf.add(tf.placeholder(tf.int32, [None], name="x"), 1, name="z")
        found = refused(lambda: tfs.map_blocks(whole, df), "'x' is double", "int32", "col('x').cast('int')")
        assert (found.expected, found.found) == ("int32", "float64")
        real = tf.add(tf.placeholder(tf.float64, [None], name="n"), 1, name="w")
        refused(lambda: tfs.map_blocks(real, df), "'n' is int", "float64", "col('n').cast('double')")
        narrow = tf.add(tf.placeholder(tf.float32, [None, None], name="y"), 1, name="v")
        refused(lambda: tfs.map_blocks(narrow, df), "array<double>", "float32", "col('y').cast('array<float>')")
        text = tf.strings.length(tf.placeholder(tf.string, [None], name="x_1"), name="u")
        refused(lambda: tfs.map_blocks(text, df, {"x_1": "x"}), "double", "string")
        half = tf.cast(tf.placeholder(tf.float64, [None], name="x_2"), tf.float16, name="half")
        refused(lambda: tfs.map_blocks(half, df, {"x_2": "x"}), "'half' is float16", "tf.cast(half, tf.float32)")
    refused(lambda: tfs.map_rows(tfs.program(lambda t: {"q": t}), df), "'t' is timestamp", error=SchemaError)
    refused(lambda: tfs.map_rows(tfs.program(lambda x: {"q": x.astype("uint8")}), df), "uint8", "q.astype('int16')")
    refused(lambda: tfs.map_rows(tfs.program(lambda x: {"q": x + 1j}), df), "complex128", "imaginary")


def test_shapes(df, refused):
    with graph() as tf:
        flat = tf.add(tf.placeholder(tf.float64, [None], name="y"), 1, name="z")
        refused(lambda: tfs.map_blocks(flat, df), "'y' has shape [?]", "[?,?]", error=SchemaError)
        deep = tf.add(tf.placeholder(tf.float64, [None], name="x"), 1, name="w")
        refused(lambda: tfs.map_rows(deep, df), "'x' has shape [?]", "cells of shape []")
        known = tfs.append_shape(df, "y", [None, 2])
        three = tf.add(tf.placeholder(tf.float64, [None, 3], name="y3"), 1, name="v")
        refused(lambda: tfs.map_blocks(three, known, {"y3": "y"}), "[?,3]", "[?,2]")
        refused(lambda: tfs.map_blocks(three, df, {"y3": "y"}), "[?,3]", "[?,?]", "analyze", "append_shape")
        loose = tf.matmul(tf.placeholder(tf.float64, name="y4"), tf.ones([3, 1], tf.float64), name="u")
        refused(lambda: tfs.map_blocks(loose, known, {"y4": "y"}), "y4 [?,2]")
        scalar = tf.reduce_sum(tf.placeholder(tf.float64, [None], name="x5"), name="sum")
        refused(lambda: tfs.map_blocks(scalar, df, {"x5": "x"}), "'sum'", "rows")
        unknown = tf.py_func(lambda a: a, [tf.placeholder(tf.float64, [None], name="x6")], tf.float64, name="py")
        refused(lambda: tfs.map_blocks(unknown, df, {"x6": "x"}), "'py'", "schema=")
    refused(lambda: tfs.append_shape(df, "y", [None]), "'y' has 2 dimensions", "[?]")
    refused(lambda: tfs.append_shape(df, "nowhere", [None]), "nowhere", "x, n, y, s, t", error=SchemaError)
    refused(lambda: tfs.append_shape(df, "y", "2"), "'y'", "whole numbers")
    refused(lambda: tfs.map_blocks(z, df, block_size=0), "block_size")


def test_output_names(df, refused):
    refused(lambda: tfs.map_blocks(tfs.program(lambda x: {"x": x, "q": x}), df), "x", "x, n, y, s, t")
    refused(lambda: tfs.map_blocks(tfs.program(lambda x: {"S": x}), df), "S")  # Spark does not tell S from s
    refused(lambda: tfs.map_blocks(lambda x: x, df), "program(fn, outputs=['z'])")
    refused(lambda: tfs.map_blocks(tfs.program(lambda x: (x, x)), df), "2 values without names", "outputs=")
    refused(lambda: tfs.map_blocks(tfs.program(lambda x: (x, x), outputs=["q"]), df), "2 outputs", "named: q")
    refused(lambda: tfs.map_blocks(z, df, schema={"w": ("float64", []), "v": ("nonsense", [])}), "nonsense", "double")
    refused(lambda: tfs.map_blocks(z, df, schema="z interval"), "interval", "double")
    with graph() as tf:
        x = tf.placeholder(tf.float64, [None], name="x")
        a = tf.add(x, 1, name="a")
        refused(lambda: tfs.map_blocks([a, a], df), "a, a")
        first, second = tf.split(tf.stack([x, x]), 2, name="q")
        clash = tf.identity(x, name="q_1")
        refused(lambda: tfs.map_blocks([first, second, clash], df), "q_1")


def test_what_is_no_program(df, refused):
    import tensorflow as tf2

    for fetches in (3, "x", None, [], [z], [1, 2]):
        refused(lambda fetches=fetches: tfs.map_rows(fetches, df), "fetches must be", error=TypeError)
    refused(lambda: tfs.map_rows(tf2.constant(1.0), df), "tensor of a graph", error=TypeError)
    with graph() as tf:
        variable = tf.Variable(1.0, name="v")
        x = tf.placeholder(tf.float64, name="x")
        refused(lambda: tfs.map_rows(x.op, df), "tensor of a graph", error=TypeError)
        refused(lambda: tfs.map_rows([tf.add(x, 1), variable], df), "named 'v:0'", error=TypeError)
        with graph() as other:
            stranger = other.constant(1.0, name="stranger")
        refused(lambda: tfs.map_rows([x, stranger], df), "two graphs", "stranger:0")
    refused(lambda: tfs.map_rows(z, [1, 2]), "Spark or a pandas DataFrame, not list", error=TypeError)
    refused(lambda: tfs.aggregate(sum_of("x"), df), "groupBy", error=TypeError)
    refused(lambda: tfs.program(z, kind="fortran"), "fortran", "jax, numpy, tensorflow, torch")
    refused(lambda: tfs.program(3), "function", error=TypeError)


def test_block_and_row(df, refused):
    with graph() as tf:
        refused(lambda: tfs.block(df, "nowhere"), "nowhere", "x, n, y, s, t", error=SchemaError)
        refused(lambda: tfs.row(df, "t"), "'t' is timestamp", error=SchemaError)
        x = tfs.block(df, "x")
        assert (x.name, x.dtype, x.shape.as_list()) == ("x:0", tf.float64, [None])
        y = tfs.row(tfs.append_shape(df, "y", [5, 2]), "y", tf_name="why")
        assert (y.name, y.shape.as_list()) == ("why:0", [2])
        refused(lambda: tfs.block(df, "x"), "'x' already", "tf_name")
    refused(lambda: tfs.block(df, "x"), "tf.Graph().as_default()")


def test_reduce_rows_names(df, refused):
    x, xn = df.select("x"), df.select("x", "n")
    refused(lambda: tfs.reduce_rows(pair_sum("x"), xn), "missing inputs: n_1, n_2", "columns are: x, n")
    refused(lambda: tfs.reduce_rows(tfs.program(lambda x_1: {"x": x_1}), x), "missing inputs: x_2")
    refused(lambda: tfs.reduce_rows(tfs.program(lambda x_1, x_2, w: {"x": x_1}), x), "belong to no column: w")
    refused(lambda: tfs.reduce_rows(tfs.program(lambda x_1, x_2: {"q": x_1}), x), "columns without an output: x", "q")
    with graph() as tf:
        one, two = (tf.placeholder(tf.float64, [], name=f"x_{k}") for k in (1, 2))
        good = tf.add(one, two, name="x")
        refused(lambda: tfs.reduce_rows(good, xn), "n_1, n_2", "columns without an output: n")
        refused(lambda: tfs.reduce_rows([good, tf.add(one, two, name="q")], x), "outputs without a column: q")
        extra = tf.placeholder(tf.float64, [], name="extra")
        refused(lambda: tfs.reduce_rows(tf.add(good, extra, name="x_9"), x), "extra", "x_9")
    with graph() as tf:
        one, two = (tf.placeholder(tf.float32, [], name=f"x_{k}") for k in (1, 2))
        refused(lambda: tfs.reduce_rows(tf.add(one, two, name="x"), x), "double", "float32", "cast('float')")


def test_reduce_blocks_names(df, refused):
    refused(lambda: tfs.reduce_blocks(z, df), "x_input", "inputs that belong to no output: x")
    refused(lambda: tfs.reduce_blocks(sum_of("nowhere"), df), "missing columns: nowhere", "x, n, y, s, t")
    refused(lambda: tfs.reduce_blocks(tfs.program(lambda x_input: {"q": x_input.sum()}), df), "q", "x")
    refused(lambda: tfs.reduce_blocks(tfs.program(lambda x_input: {"x": x_input}), df), "'x' has shape [?]", "[]")
    any_of = tfs.program(lambda x_input: {"x": (x_input > 0).any()})
    refused(lambda: tfs.reduce_blocks(any_of, df), "'x' is bool", "float64")
    with graph() as tf:
        flat = tf.placeholder(tf.float64, [], name="x_input")
        refused(lambda: tfs.reduce_blocks(tf.identity(flat, name="x"), df), "[]", "[?]")
    with graph() as tf:
        narrow = tf.placeholder(tf.float32, [None], name="x_input")
        refused(lambda: tfs.reduce_blocks(tf.reduce_sum(narrow, name="x"), df), "double", "float32")
    with graph() as tf:
        fixed = tf.placeholder(tf.float64, [5], name="x_input")
        refused(lambda: tfs.reduce_blocks(tf.reduce_sum(fixed, name="x"), df), "[5]", "must be unknown: [?]")
    with graph() as tf:
        given = tf.placeholder(tf.float64, [None], name="x_input")
        wide = tf.cast(tf.reduce_sum(given), tf.float32, name="x")
        refused(lambda: tfs.aggregate(wide, df.groupBy("n")), "'x' is float32", "double")


def test_aggregate_refuses_what_it_cannot_group(df, refused):
    refused(lambda: tfs.aggregate(sum_of("x"), df.rollup("n")), "rollup")
    refused(lambda: tfs.aggregate(sum_of("x"), df.groupBy("n").pivot("s", ["s"])), "pivot")
    refused(lambda: tfs.aggregate(sum_of("x"), df.groupBy("x")), "key columns: x")
    folded = df.withColumn("c", F.collate(F.col("s"), "UTF8_LCASE"))
    refused(lambda: tfs.aggregate(sum_of("x"), folded.groupBy("c")), "'c'", "UTF8_LCASE")
    not_associative = tfs.program(lambda x_1, x_2: {"x": x_1 - x_2}, algebraic=False)
    refused(lambda: tfs.reduce_rows(not_associative, df.select("x")), "reduce_blocks")


def test_empty_frames_have_nothing_to_reduce(spark):
    empty = spark.createDataFrame([], "x double")
    for call in (lambda: tfs.reduce_rows(pair_sum("x"), empty), lambda: tfs.reduce_blocks(sum_of("x"), empty)):
        with pytest.raises(ValueError, match="is empty"):
            call()
    assert tfs.aggregate(sum_of("x"), empty.groupBy((F.col("x") > 1).alias("k"))).collect() == []


def test_types_of_arguments_are_numpys_own(df):
    """A number arrives as the column has it, and read-only as it will be."""
    seen = {}

    def look(x, n, y):
        seen.update(x=x, n=n, y=y)
        return x

    tfs.map_rows(look, df)
    assert [type(seen[name]) for name in "xn"] == [np.float64, np.int32]
    assert not seen["y"].flags.writeable
