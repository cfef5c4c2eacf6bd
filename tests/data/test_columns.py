"""What users declare of outputs, and which dtype may be fed with which."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from firesteel.core.errors import PlanError
from firesteel.core.spec import TensorSpec
from firesteel.data.columns import cast_name, declared, fits


def test_a_schema_in_any_form() -> None:
    expected = {"z": TensorSpec("z", "float64", ()), "y": TensorSpec("y", "float32", (None, None))}
    assert declared({"z": ("double", []), "y": (np.float32, [None, -1])}) == expected
    assert declared("z double, y array<array<float>>") == expected
    assert declared("`z`: DOUBLE NOT NULL, y ARRAY< ARRAY<Float> >") == expected
    assert list(declared("`a b`` , c` int, d string")) == ["a b` , c", "d"]


@pytest.mark.parametrize(
    ("said", "dtype"),
    [
        (float, "float64"),
        (int, "int64"),
        (bool, "bool"),
        (str, "string"),
        (bytes, "binary"),
        ("float", "float32"),
        ("int", "int32"),
        ("bigint", "int64"),
        ("long", "int64"),
        ("int8", "int8"),
        (np.dtype("int16"), "int16"),
        (np.bool_, "bool"),
        (torch.float32, "float32"),
    ],
)
def test_dtypes_by_any_of_their_names(said: object, dtype: str) -> None:
    assert declared({"z": (said, ())})["z"].dtype == dtype


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"z": "double"}, r"\(dtype, cell shape\)"),
        ({"z": ("uint8", [])}, "uint8.*bigint"),
        ({"z": ("double", "2")}, "'z' must be a list"),
        ({"z": ("double", [True])}, "'z' must be a list"),
        ("z", "not a DDL string"),
        ("z map<int,int>", "no tensor"),
        (3, "DDL string"),
    ],
)
def test_what_is_no_schema(schema: object, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        declared(schema)


def test_which_dtype_may_feed_which() -> None:
    assert all(fits(one, two) for one in ("int8", "int64") for two in ("int16", "int64"))
    assert fits("float32", "float64")
    assert not fits("float64", "float32")
    assert not any(fits(one, two) for one, two in [("int8", "float64"), ("bool", "int8"), ("string", "int64")])
    assert fits("string", "binary")
    assert cast_name("int64", 2) == "array<array<bigint>>"
