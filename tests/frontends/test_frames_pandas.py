"""The verbs on pandas frames: the same checks, layout and results, at once and without Spark."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import tensorflow.compat.v1 as tf

import firesteel.frames as tfs
from firesteel.core.errors import PlanError, SchemaError
from frontends.frame_programs import graph, pair_sum, sum_of, values, z

TEN = [float(number) for number in range(10)]
PLUS_3 = [(number + 3, number) for number in TEN]


@pytest.fixture
def ten():
    frame = pd.DataFrame({"x": TEN}, index=range(100, 110))
    kept = frame.copy()
    yield frame
    pd.testing.assert_frame_equal(frame, kept)


def test_maps(ten):
    for made in (tfs.map_blocks(z, ten), tfs.map_rows(z, ten), tfs.map_blocks(z, ten, block_size=3)):
        assert list(made.columns) == ["z", "x"]
        assert values(made) == PLUS_3
        assert list(made.index) == list(ten.index)
    sizes = tfs.map_blocks(tfs.program(lambda x: {"n": np.array([len(x)])}), ten, trim=True, block_size=4)
    assert values(sizes) == [4, 4, 2]
    assert list(sizes.index) == [0, 1, 2]


def test_maps_of_a_graph(ten):
    with graph() as tf:
        block = tf.add(tfs.block(ten, "x"), 3, name="z")
        row = tf.add(tfs.row(ten, "x", "x_tf"), tf.Variable(tf.constant(3.0, tf.float64)), name="w")
        assert values(tfs.map_blocks(block, ten)) == PLUS_3
        assert values(tfs.map_rows(block, ten)) == PLUS_3  # with a leading dimension for rows, as blocks
        assert values(tfs.map_rows(row, ten, feed_dict={"x_tf": "x"})) == PLUS_3
        assert values(tfs.map_blocks(tf.constant([2], name="c"), ten, trim=True)) == [2]
        with pytest.raises(ValueError, match="x_tf"):
            tfs.map_rows(row, ten)


def test_reductions():
    frame = pd.DataFrame({"y": [np.array([k, -k]) for k in TEN], "z": [[k, -k] for k in TEN]})
    with graph() as tf:
        y = tf.reduce_sum(tf.placeholder(tf.float64, [None, 2], name="y_input"), 0, name="y")
        low = tf.reduce_min(tf.placeholder(tf.float64, [None, 2], name="z_input"), 0, name="z")
        assert [each.tolist() for each in tfs.reduce_blocks([y, low], frame)] == [[45, -45], [0, -9]]
    assert tfs.reduce_rows(pair_sum("x"), pd.DataFrame({"x": TEN[:5]})) == 10.0
    assert tfs.reduce_rows(pair_sum("x"), pd.DataFrame({"x": [7]})) == 7
    with pytest.raises(ValueError, match="empty"):
        tfs.reduce_blocks(sum_of("x"), pd.DataFrame({"x": np.empty(0)}))
    with pytest.raises(TypeError, match="groupBy"):
        tfs.aggregate(sum_of("x"), pd.DataFrame({"x": TEN}).groupby("x"))


def test_cells_of_all_kinds():
    frame = pd.DataFrame(
        {
            "i": np.array([1, 2], "int32"),
            "f": np.array([1.5, np.nan], "float32"),
            "m": [np.arange(6.0).reshape(2, 3), np.ones((2, 3))],
            "ragged": [[1.0], [2.0, 3.0]],
            "s": ["a", "b"],
            "when": pd.to_datetime(["2024-01-01", "2024-01-02"]),
        }
    )
    made = tfs.map_blocks(tfs.program(lambda i, f, m: {"i2": i * 2, "f2": f, "m2": m.sum(axis=-1)}), frame)
    assert made["i2"].dtype == "int32"
    assert made["f2"].dtype == "float32"
    assert np.isnan(made["f2"][1])  # a number to NumPy, and no null
    assert [cell.tolist() for cell in made["m2"]] == [[3.0, 12.0], [3.0, 3.0]]
    rows = tfs.map_rows(tfs.program(lambda ragged: {"r2": ragged * 2, "n": ragged.size}), frame)
    assert [cell.tolist() for cell in rows["r2"]] == [[2.0], [4.0, 6.0]]
    assert rows["n"].tolist() == [1, 2]
    texts = tfs.map_rows(tfs.program(lambda s: {"t": s + "!"}), frame, schema="t string")
    assert texts["t"].tolist() == ["a!", "b!"]
    with graph() as tf:  # TensorFlow knows bytes; what is declared to be text is text
        joined = tf.strings.join([tf.placeholder(tf.string, [None], name="s"), "é"], name="t")
        assert tfs.map_blocks(joined, frame)["t"].tolist() == ["aé".encode(), "bé".encode()]
        assert tfs.map_blocks(joined, frame, schema="t string")["t"].tolist() == ["aé", "bé"]
    with pytest.raises(SchemaError, match="'when' is timestamp"):
        tfs.map_rows(tfs.program(lambda when: {"q": when}), frame)
    with pytest.raises(SchemaError, match=r"'x' has cells of no one type"):
        tfs.map_rows(z, pd.DataFrame({"x": [1, "two"]}))
    with pytest.raises(SchemaError, match="'x' has a null"):
        tfs.map_rows(z, pd.DataFrame({"x": [1.0, None]}, dtype=object))


def test_shapes_are_those_of_the_data():
    frame = pd.DataFrame({"y": [[1.0, 2.0], [3.0, 4.0]]})
    assert tfs.analyze(frame) is frame
    assert tfs.append_shape(frame, "y", [None, 2]) is frame
    assert tfs.explain(frame).splitlines() == ["root", " |-- y: array (nullable = false) double[2,2]"]
    with graph() as tf:
        assert tfs.block(frame, "y").shape.as_list() == [None, 2]
        three = tf.placeholder(tf.float64, [None, 3], name="three")
        with pytest.raises(ValueError, match=r"\[\?,3\].*\[2,2\]"):
            tfs.map_blocks(tf.identity(three, name="q"), frame, {"three": "y"})


def test_a_failure_names_its_row(ten):
    def picky(x):
        if x == 7:
            raise KeyError("seven")
        return x

    with pytest.raises(KeyError, match="seven") as caught:
        tfs.map_rows(picky, ten)
    assert caught.value.__notes__ == ["row 7 of the partition", "in map_rows"]


def test_empty_frames():
    frame = pd.DataFrame({"x": np.empty(0)})
    for made in (tfs.map_blocks(z, frame), tfs.map_rows(z, frame)):
        assert list(made.columns) == ["z", "x"]
        assert made["z"].dtype == np.float64
        assert len(made) == 0


def test_needs_no_spark_and_loads_no_framework():
    code = (
        "import sys, firesteel.frames as tfs\n"
        "tfs.__all__, dir(tfs)\n"
        "print(sorted({'pyspark', 'numpy', 'pandas', 'pyarrow'} & set(sys.modules)))\n"
        "import pandas as pd\n"
        "def z(x): return x + 3\n"
        "assert tfs.map_rows(z, pd.DataFrame({'x': [1.0]}))['z'].tolist() == [4.0]\n"
        "print(sorted({'pyspark', 'tensorflow', 'torch', 'jax'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["[]", "[]"], done.stderr


@pytest.mark.parametrize("dtype", [tf.float16, tf.uint8])
def test_an_input_of_a_type_that_spark_lacks_is_refused_in_words(dtype: Any) -> None:
    with tf.Graph().as_default():
        x = tf.placeholder(dtype, [None], name="x")
        with pytest.raises(ValueError, match=f"takes {dtype.name}; change the input, for Spark has no {dtype.name}"):
            tfs.map_blocks(tf.identity(x, name="z"), pd.DataFrame({"x": [1.0, 2.0]}))


def test_reduced_text_is_text_whatever_the_program(ten):
    frame = pd.DataFrame({"x": ["a", "c", "b"]})
    assert tfs.reduce_blocks(lambda x_input: {"x": np.array(max(x_input.tolist()))}, frame) == "c"
    with graph() as tf:
        given = tf.placeholder(tf.string, [None], name="x_input")
        assert tfs.reduce_blocks(tf.identity(tf.strings.reduce_join(given), name="x"), frame) == "acb"


def test_a_placeholder_is_named_as_its_column_also_with_a_slash(ten):
    frame = pd.DataFrame({"a/b": TEN, "x y": TEN})
    with graph() as tf, tf.name_scope("s"):
        assert tfs.block(frame, "x y", "xy").name == "s/xy:0"
    with graph() as tf:
        given = tfs.block(frame, "a/b")
        assert given.name == "a/b:0"
        assert list(tfs.map_blocks(tf.add(given, 3, name="z"), frame)["z"]) == [number + 3 for number in TEN]
        with pytest.raises(PlanError, match=r"'x y' cannot be an op's name .* tf_name, .* feed_dict"):
            tfs.block(frame, "x y")
        other = tf.add(tfs.block(frame, "x y", "xy"), 3, name="w")
        assert list(tfs.map_blocks(other, frame, feed_dict={"xy": "x y"})["w"]) == [number + 3 for number in TEN]


@pytest.mark.parametrize("kind", ["string[pyarrow]", "string", "category", "object"])
def test_every_kind_of_text_that_pandas_has(kind):
    frame = pd.DataFrame({"s": pd.Series(["a", "bb", "a"], dtype=kind)})
    made = tfs.map_rows(lambda s: {"n": np.int64(len(s))}, frame)
    assert list(made["n"]) == [1, 2, 1]


def test_lists_with_wide_offsets():
    cells = pd.Series([[1.0, 2.0], [3.0, 4.0]], dtype=pd.ArrowDtype(pa.large_list(pa.float64())))
    made = tfs.map_blocks(lambda x: {"s": x.sum(axis=1)}, pd.DataFrame({"x": cells}))
    assert list(made["s"]) == [3.0, 7.0]
