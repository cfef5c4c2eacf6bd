"""Items of a feed: what goes in comes out, of whatever type and in whatever nesting, from any part of a column."""

from __future__ import annotations

import collections
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.ml.linalg import Vectors
from pyspark.mllib.linalg import Vectors as OldVectors
from pyspark.sql import Row
from pyspark.sql.types import ArrayType, DateType, IntegerType, MapType, StringType, StructField, StructType

from firesteel.data.item_rows import kinds_of, rows_as_items
from firesteel.data.items import Column, Described, Records, decode, encode

ODD: list[Any] = [
    1,
    -(2**63),
    2**70,
    2.5,
    float("inf"),
    1j,
    True,
    None,
    "é",
    "",
    "\ud800",
    b"x\x00",
    bytearray(b"q"),
    np.float32(3),
    np.int8(-3),
    np.bool_(True),
    np.str_("abc"),
    np.datetime64("2020-01-01"),
    np.arange(3),
    np.arange(4.0).reshape(2, 2),
    np.array(5, np.int16),
    np.zeros((0, 3)),
    np.array(["a", "bcd"]),
    np.asfortranarray(np.arange(6).reshape(2, 3)),
    [1, [2, "a"], ()],
    [],
    (1, (2, 3)),
    (),
    {"a": 1, "b": [1, 2]},
    {"b": 1},
    {},
    Vectors.dense([1.0, 2.0]),
    Vectors.sparse(3, [1], [2.0]),
    OldVectors.dense([1.0]),
]


def sent(described: Described) -> Column:
    """Through JSON and plain bytes, as over a connection."""
    buffers = [bytearray(memoryview(buffer).cast("B")) for buffer in described.buffers]
    return decode(json.loads(json.dumps(described.what)), buffers)


def same(one: Any, two: Any) -> bool:
    if type(one) is not type(two):
        return False
    if isinstance(one, np.ndarray):
        return one.dtype == two.dtype and one.shape == two.shape and bool((one == two).all())
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, dict):
        return list(one) == list(two) and all(same(one[key], two[key]) for key in one)
    return bool(one == two)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.recursive(
            st.sampled_from(ODD),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.lists(inner, max_size=3).map(tuple)
                | st.dictionaries(st.text(max_size=2), inner, max_size=3)
            ),
            max_leaves=6,
        ),
        max_size=12,
    ),
    st.data(),
)
def test_any_values_come_back_as_they_were(values: list[Any], data: st.DataObject) -> None:
    column = sent(encode(values))
    begin = data.draw(st.integers(0, len(values)))
    end = data.draw(st.integers(begin, len(values)))
    assert same(column.take(begin, end), values[begin:end])
    assert same(column.take(0, len(values)), values)


def test_rows_are_one_column_for_each_place() -> None:
    column = sent(encode([(number, [number / 2] * 3, str(number)) for number in range(100)]))
    assert isinstance(column, Records)
    assert column.columns[0].take(3, 5) == [3, 4]
    assert column.take(7, 8) == [(7, [3.5] * 3, "7")]


def test_a_row_and_a_named_tuple_arrive_as_tuples() -> None:
    pair = collections.namedtuple("pair", "a b")
    assert sent(encode([Row(a=1, b="x"), pair(2, "y")])).take(0, 2) == [(1, "x"), (2, "y")]


def test_an_array_that_arrives_may_be_changed_and_is_nobody_elses() -> None:
    first, second = sent(encode([np.zeros(3), np.ones(3)])).take(0, 2)
    first += 5
    assert second.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("bad", "name"),
    [
        ({1, 2}, "a set"),
        (object(), "an object"),
        ({1: 2}, "a dict with a key of type int"),
        (np.array([None]), "a NumPy array of dtype object"),
        ([{"a": (len,)}], "builtin_function_or_method"),
    ],
)
def test_what_cannot_be_fed_is_named(bad: Any, name: str) -> None:
    with pytest.raises(TypeError, match=name):
        encode([1, bad])


# --- rows of a DataFrame ----------------------------------------------------------------------------------------------


def field(name: str, kind: Any) -> StructField:
    return StructField(name, kind)


def test_arrow_rows_become_tuples_without_a_python_value_on_the_way() -> None:
    schema = StructType(
        [
            field("i", IntegerType()),
            field("s", StringType()),
            field("a", ArrayType(StringType())),
            field("m", MapType(StringType(), IntegerType())),
            field("t", StructType([field("x", IntegerType()), field("y", StringType())])),
        ]
    )
    rows: list[Any] = [
        (1, "é", ["a", None], {"k": 1}, (1, "u")),
        (None, None, None, None, None),
        (3, "", [], {}, (None, "w")),
        (4, "z", ["b"], {"p": 2, "q": None}, (5, None)),
    ]
    kinds = [pa.int32(), pa.string(), pa.list_(pa.string()), pa.map_(pa.string(), pa.int32())]
    kinds.append(pa.struct([("x", pa.int32()), ("y", pa.string())]))
    columns = list(zip(*rows, strict=True))
    columns[4] = tuple(None if each is None else dict(zip("xy", each, strict=True)) for each in columns[4])
    columns[3] = tuple(None if each is None else list(each.items()) for each in columns[3])
    batch = pa.RecordBatch.from_arrays(
        [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)], schema.names
    )
    for part, wanted in ((batch, rows), (batch.slice(1, 2), rows[1:3]), (batch.slice(4), [])):
        assert sent(rows_as_items(part, kinds_of(schema))).take(0, part.num_rows) == wanted


def test_numbers_of_arrow_keep_their_values() -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "f": pa.array([1.5, 2.5], pa.float32()),
            "d": pa.array([[0.1, 0.2], [0.3]], pa.list_(pa.float64())),
            "b": pa.array([True, False]),
            "y": pa.array([b"\x00", b""], pa.binary()),
        }
    )
    column = sent(rows_as_items(batch, {"of": [{}, {"of": [{}]}, {}, {}]}))
    assert same(column.take(0, 2), [(1.5, [0.1, 0.2], True, b"\x00"), (2.5, [0.3], False, b"")])


def test_a_column_that_cannot_be_fed_is_named_with_its_type() -> None:
    with pytest.raises(TypeError, match="column 'when' is of type date"):
        kinds_of(StructType([field("when", DateType())]))
