"""TensorFlow on the rows and blocks of a DataFrame: tensors of a graph, functions, layers.

One partition at a time, and failures last: every Python worker takes seconds to import TensorFlow.
"""

from __future__ import annotations

import io

import numpy as np
import pytest
from pyspark.errors import PythonException
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, IntegerType

import firesteel.frames as tfs
from frontends.frame_programs import graph, values, z

TEN = [float(number) for number in range(10)]
PLUS_3 = [(number + 3, number) for number in TEN]


@pytest.fixture(scope="module")
def ten(spark):
    return spark.range(0, 10, 1, 1).select(F.col("id").cast("double").alias("x"))


@pytest.mark.parametrize("kind", ["bigint", "int"])
def test_the_documents_example(spark, jobs, kind):
    df = spark.createDataFrame([(3, 4), (1, 2)], f"x {kind}, y {kind}").coalesce(1)
    before = jobs()
    with graph() as tf:
        x = tf.placeholder(tf.int32, name="x")
        y = tf.placeholder(tf.int32, name="y")
        output = tf.add(x, y * 3, name="z")
        output_df = tfs.map_rows(output, df)
    assert output_df.columns == ["z", "x", "y"]
    assert output_df.schema["z"].dataType == IntegerType()
    assert jobs() == before
    assert values(output_df) == [(15, 3, 4), (7, 1, 2)]
    assert jobs() > before


def test_blocks_and_rows_of_a_graph(spark, ten):
    with graph() as tf:
        fetch = tf.add(tf.placeholder(tf.float64, [None], name="x"), 3, name="z")
        for df in (ten, ten.repartitionByRange(3, "x"), ten.repartitionByRange(20, "x")):
            made = tfs.map_blocks(fetch, df)
            assert made.columns == ["z", "x"]
            assert values(made) == PLUS_3
    with graph() as tf:
        three = tf.Variable(tf.constant(3.0, tf.float64))
        assert values(tfs.map_blocks(tf.add(tfs.block(ten, "x"), three, name="z"), ten)) == PLUS_3
    with graph() as tf:
        assert values(tfs.map_rows(tf.add(tf.placeholder(tf.float64, [], name="x"), 3, name="z"), ten)) == PLUS_3
    with graph() as tf:
        assert values(tfs.map_rows(tf.add(tfs.row(ten, "x"), 3, name="z"), ten)) == PLUS_3


def test_functions_give_what_graphs_do(ten):
    import tensorflow as tf2

    with graph() as tf:
        fetch = tf.add(tf.placeholder(tf.float64, name="x"), 3, name="z")
    module = tf2.Module()
    module.three = tf2.Variable(3.0, dtype=tf2.float64)
    programs = {
        "graph": fetch,
        "tf.function": tf2.function(z),
        "signature": tf2.function(z, input_signature=[tf2.TensorSpec(None, tf2.float64)]),
        "plain function": tfs.program(lambda x: x + 3, kind="tensorflow", outputs=["z"]),
        "variable": tf2.function(lambda x: {"z": x + module.three}),
    }
    schema = tfs.map_blocks(z, ten).schema  # NumPy's
    for name, program in programs.items():
        for verb in (tfs.map_blocks, tfs.map_rows):
            made = verb(program, ten)
            assert made.schema == schema, (name, verb)
            assert values(made) == PLUS_3, (name, verb)


def test_keras_layers_and_models(spark):
    import keras

    rows = np.random.default_rng(0).standard_normal((7, 4)).astype("float32")
    df = spark.createDataFrame([(row.tolist(),) for row in rows], "features array<float>").coalesce(1)
    df = tfs.append_shape(df, "features", [None, 4])
    layer = keras.layers.Dense(2)
    made = values(tfs.map_blocks(layer, df, {"inputs": "features"}), "output")
    np.testing.assert_allclose(made, np.asarray(layer(rows)), rtol=1e-5)
    given = keras.Input((4,), name="features")
    model = keras.Model(given, keras.layers.Dropout(0.5)(keras.layers.Dense(3)(given)))
    np.testing.assert_allclose(values(tfs.map_blocks(model, df), "output"), np.asarray(model(rows)), rtol=1e-5)


def test_feed_dict_renames(spark):
    df = spark.createDataFrame([(1.0,), (2.0,)], "x_spark double").coalesce(1)
    with graph() as tf:
        block = tf.placeholder(tf.float64, [None], name="x_all")
        by_row = tf.add(tf.placeholder(tf.float64, [], name="x_tf"), 1, name="z")
        by_block = tf.add(block, 1, name="w")
        assert values(tfs.map_rows(by_row, df, feed_dict={"x_tf": "x_spark"})) == [(2.0, 1.0), (3.0, 2.0)]
        assert values(tfs.map_blocks(by_block, df, {block: "x_spark"})) == [(2.0, 1.0), (3.0, 2.0)]


def test_outputs_of_one_op_and_trim(spark):
    three = spark.range(0, 3, 1, 1).select(F.col("id").cast("int").alias("x"))
    with graph() as tf:
        made = tfs.map_blocks(tf.constant([2], name="z"), three, trim=True)
        assert values(made) == [2]
        assert made.columns == ["z"]
        low, high = tf.split(tf.range(6), 2, name="part")
        assert tfs.map_blocks([high, low], three).columns == ["part", "part_1", "x"]
        assert values(tfs.map_blocks([high, low], three)) == [(0, 3, 0), (1, 4, 1), (2, 5, 2)]


def test_ragged_rows(spark):
    df = spark.createDataFrame([([1.0],), ([2.0, 2.1],), ([],), ([3.0, 3.1],)], "y array<double>").coalesce(1)
    with graph() as tf:
        y = tf.placeholder(tf.float64, [None], name="y")
        made = tfs.map_rows([tf.identity(y, name="same"), tf.reduce_sum(y, name="sum")], df)
    assert values(made, "same", "sum") == [([1.0], 1.0), ([2.0, 2.1], 4.1), ([], 0.0), ([3.0, 3.1], 6.1)]


def test_rows_of_a_graph_with_branches_loops_and_variables(spark):
    df = spark.createDataFrame([([float(k), 1.0], float(k)) for k in range(6)], "y array<double>, w double").coalesce(1)
    with graph() as tf:
        y, w = tf.placeholder(tf.float64, [None], name="y"), tf.placeholder(tf.float64, [], name="w")
        weights = tf.get_variable("weights", initializer=tf.constant([1.0, 10.0], tf.float64))
        old = tf.Variable(tf.constant(2.0, tf.float64), use_resource=False)
        fetches = [
            tf.identity(tf.cond(w > 2, lambda: w * 2, lambda: w - 1), name="branch"),
            tf.identity(tf.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a + y), (0, y))[1], name="loop"),
            tf.reduce_sum(weights * y * old, name="dot"),
            tf.constant(7, tf.int64, name="same"),
        ]
        made = tfs.map_rows(fetches, df)
    assert values(made, "branch", "loop", "dot", "same") == [
        (2.0 * k if k > 2 else k - 1.0, [4.0 * k, 4.0], 2.0 * (k + 10.0), 7) for k in range(6)
    ]


def test_images_are_decoded_row_by_row(spark):
    from PIL import Image

    pictures = []
    for height, width in ((2, 3), (4, 1), (2, 3)):
        file = io.BytesIO()
        Image.fromarray(np.full((height, width, 3), 100, np.uint8)).save(file, format="JPEG")
        pictures.append((bytearray(file.getvalue()),))
    df = spark.createDataFrame(pictures, "image binary").coalesce(1)
    with graph() as tf:
        decoded = tf.image.decode_jpeg(tf.placeholder(tf.string, [], name="image"), channels=3)
        with pytest.raises(ValueError, match=r"uint8.*tf.cast\(DecodeJpeg, tf.int16\)"):
            tfs.map_rows(decoded, df)
        made = tfs.map_rows(tf.cast(decoded, tf.int32, name="pixels"), df)
    found = [np.array(cell) for cell in values(made, "pixels")]
    assert [cell.shape for cell in found] == [(2, 3, 3), (4, 1, 3), (2, 3, 3)]
    assert all(abs(cell - 100).max() <= 2 for cell in found)


@pytest.mark.parametrize("kind", ["double", "float", "int", "bigint"])
def test_types_come_back_as_they_went(spark, kind):
    number = float if kind in ("double", "float") else int
    cells = [(number(k), [[number(k), number(5), number(6)], [number(7)] * 3]) for k in (1, 2)]
    df = spark.createDataFrame(cells, f"s {kind}, m array<array<{kind}>>").coalesce(1)
    df = tfs.append_shape(df, "m", [None, 2, 3])
    element = df.schema["s"].dataType
    with graph() as tf:
        s, m = tfs.block(df, "s"), tfs.block(df, "m")
        made = tfs.map_blocks([tf.identity(s, name="s1"), tf.add(m, m, name="m2"), tf.ones_like(s, name="c")], df)
    assert made.schema["s1"].dataType == made.schema["c"].dataType == element
    assert made.schema["m2"].dataType == ArrayType(ArrayType(element, False), False)
    assert made.schema["m2"].metadata["firesteel.shape"] == [-1, 2, 3]
    doubled = [[[2 * each for each in row] for row in cell] for _, cell in cells]
    assert values(made, "s1", "m2", "c") == [(k + 1, doubled[k], 1) for k in (0, 1)]


def test_strings_are_binary_unless_declared(spark):
    df = spark.createDataFrame([("a", bytearray(b"\xff")), ("é", bytearray(b""))], "s string, b binary").coalesce(1)
    with graph() as tf:
        upper = tf.strings.upper(tfs.block(df, "s"), encoding="utf-8", name="up")
        made = tfs.map_blocks(upper, df)
        assert made.schema["up"].dataType.typeName() == "binary"
        assert [bytes(cell) for cell in values(made, "up")] == [b"A", "É".encode()]
        assert values(tfs.map_blocks(upper, df, schema={"up": ("string", [])}), "up") == ["A", "É"]
        assert tfs.map_blocks(upper, df, schema="up string").schema["up"].dataType.typeName() == "string"
        assert values(tfs.map_rows(tf.strings.length(tfs.row(df, "b"), name="n"), df), "n") == [1, 0]


def test_trained_values_travel(ten):
    with graph() as tf:
        v = tf.get_variable("v", initializer=tf.constant(3.0, tf.float64))
        u = tf.get_variable("u", initializer=tf.constant(1.0, tf.float64))
        fetch = tf.identity(tf.placeholder(tf.float64, [None], name="x") * 0 + v + u, name="z")
        with tf.Session() as session:
            session.run(v.initializer)
            session.run(v.assign(7.0))
            made = tfs.map_blocks(fetch, ten)
            with pytest.raises(ValueError, match="no value in the session: u"):
                tfs.map_blocks(fetch, ten, initial_variables=False)
            session.run([u.initializer, v.assign(100.0)])
        tf.placeholder(tf.float64, name="later")
        assert values(made, "z") == [8.0] * 10  # frozen by the call
        assert values(tfs.map_blocks(fetch, ten), "z") == [4.0] * 10


# --- failures ---


def test_an_integer_that_does_not_fit_fails_and_never_wraps(spark):
    with graph() as tf:
        fetch = tf.add(tf.placeholder(tf.int32, [None], name="x"), 0, name="z")
    fits = spark.createDataFrame([(2**31 - 1,), (-(2**31),)], "x bigint").coalesce(1)
    assert values(tfs.map_blocks(fetch, fits), "z") == [2**31 - 1, -(2**31)]
    with pytest.raises(PythonException, match="'x' has the value 2147483648, which int32 cannot hold"):
        tfs.map_blocks(fetch, spark.createDataFrame([(1,), (2**31,)], "x bigint").coalesce(1)).collect()


def test_a_declared_shape_that_is_wrong_fails_when_it_is_read(spark):
    df = spark.createDataFrame([([1.0, 2.0],), ([3.0, 4.0],)], "y array<double>").coalesce(1)
    with graph() as tf:
        two = tf.reduce_sum(tf.placeholder(tf.float64, [None, 2], name="y"), 1, name="s")
        with pytest.raises(ValueError, match=r"\[\?,2\].*\[\?,\?\].*analyze.*append_shape"):
            tfs.map_blocks(two, df)
        assert values(tfs.map_blocks(two, tfs.append_shape(df, "y", [None, 2])), "s") == [3.0, 7.0]
        three = tf.reduce_sum(tf.placeholder(tf.float64, [None, 3], name="y3"), 1, name="s3")
        wrong = tfs.map_blocks(three, tfs.append_shape(df, F.col("y"), [-1, 3]), {"y3": "y"})
    with pytest.raises(PythonException, match="'y' has rows of length 2, but length 3 was expected"):
        wrong.collect()


def test_a_graphs_own_error_names_the_row(spark):
    df = spark.createDataFrame([(bytearray(b"no picture"),)], "image binary").coalesce(1)
    with graph() as tf:
        decoded = tf.cast(tf.image.decode_jpeg(tf.placeholder(tf.string, [], name="image")), tf.int32, name="pixels")
        made = tfs.map_rows(decoded, df)
    with pytest.raises(PythonException) as caught:
        made.collect()
    assert "JPEG" in str(caught.value)
    assert "row 0 of the partition" in str(caught.value)
    assert "in map_rows, partition 0" in str(caught.value)
