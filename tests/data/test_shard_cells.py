"""A shard as JSON and buffers comes back as it was."""

from __future__ import annotations

import datetime
import decimal
import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from firesteel.core.errors import SchemaError
from firesteel.data.shards.cells import decode, encode

FRAME = pd.DataFrame(
    {
        "int": np.array([1, 2], dtype=np.int8),
        "text": ["x", None],
        "category": pd.Categorical(["u", "v"], categories=["v", "u", "w"], ordered=True),
        "time": pd.to_datetime(["2020-01-01", "2021-02-03"]),
        "nullable": pd.array([1, None], dtype="Int64"),
        "string": pd.array(["q", None], dtype="string"),
        "zoned": pd.to_datetime(["2020-01-01", None]).tz_localize("Europe/Berlin"),
        "cells": [[1, 2], np.ones(2)],
        "exact": [datetime.date(2020, 1, 1), decimal.Decimal("1.50")],
        "flag": pd.array([True, None], dtype="boolean"),
    },
    index=pd.Index(["r", "s"], name="row"),
)
PANDAS = [
    FRAME,
    FRAME.iloc[:0],
    pd.DataFrame(),
    pd.DataFrame([[1, 2]], columns=["a", "a"]),
    pd.DataFrame({0: [1.0], "b": [2]}, index=pd.MultiIndex.from_tuples([("a", 1)], names=["p", None])),
    pd.DataFrame({"a": range(3)}, index=pd.date_range("2020", periods=3, freq="D")),
    pd.Series([1, 2], name="v", index=pd.RangeIndex(3, 7, 2)),
    pd.DataFrame({"t": pd.Series([datetime.datetime(2020, 1, 1), None], dtype=object)}),
    pd.Series([1], index=pd.Index([datetime.datetime(2020, 1, 1)], dtype=object)),
]


def same(left: Any, right: Any) -> bool:
    """Equal, and of the same types, all the way down."""
    if type(left) is not type(right):
        return False
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    return bool(left == right) or (left != left and right != right)


@pytest.mark.parametrize("value", PANDAS, ids=lambda value: str(value.shape))
def test_pandas_comes_back(value: Any) -> None:
    found = decode(*encode(value))
    check = pd.testing.assert_frame_equal if isinstance(value, pd.DataFrame) else pd.testing.assert_series_equal
    check(found, value, check_freq=True)


_dtypes = (
    arrays.integer_dtypes(endianness="?")
    | arrays.floating_dtypes()
    | arrays.boolean_dtypes()
    | arrays.datetime64_dtypes()
    | arrays.unicode_string_dtypes()
)
_leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.complex_numbers()
    | st.text()
    | st.binary()
    | arrays.arrays(_dtypes, arrays.array_shapes(min_dims=0))
    | st.builds(np.float32, st.floats(width=32))
)
_shards = st.recursive(
    _leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(), inner, max_size=4)
    ),
    max_leaves=8,
)


@given(_shards)
def test_any_structure_comes_back(shard: Any) -> None:
    text, buffers = encode(shard)
    assert same(decode(json.dumps(json.loads(text)), buffers), shard)


def test_arrays_without_rows_and_with_fields_come_back() -> None:
    shard = {"x": np.zeros((3, 0, 2), np.float32), "y": np.zeros(2, dtype=[("a", "<i4"), ("b", "<f8", (2,))])}
    assert same(decode(*encode(shard)), shard)


class Own:
    pass


@pytest.mark.parametrize(
    ("shard", "word"),
    [
        (Own(), "Own"),
        ([{"a": Own()}], "Own"),
        ({1: 2}, "keys"),
        (np.array([None]), "object"),
        (pd.DataFrame({"a": [Own()]}), "Own"),
        (pd.Series(pd.period_range("2020", periods=2, freq="D")), "period"),
    ],
)
def test_what_would_need_a_pickle_is_refused(shard: Any, word: str) -> None:
    with pytest.raises(SchemaError, match=word):
        encode(shard)
