"""Spark schemas to tensors, and outputs to Spark types; no session needed."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.ml.linalg import MatrixUDT, VectorUDT
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_type

from firesteel.core.errors import SchemaError
from firesteel.data.arrow import Column, vector_type
from firesteel.data.frame import as_tensor_column, column_of, columns_of, prediction_field, tensor_metadata


def field(kind: t.DataType, metadata: dict[str, Any] | None = None) -> t.StructField:
    return t.StructField("x", kind, True, metadata)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (t.ByteType(), Column("x", "scalar", "int64")),
        (t.ShortType(), Column("x", "scalar", "int64")),
        (t.IntegerType(), Column("x", "scalar", "int64")),
        (t.LongType(), Column("x", "scalar", "int64")),
        (t.BooleanType(), Column("x", "scalar", "bool")),
        (t.FloatType(), Column("x", "scalar", "float32")),
        (t.DoubleType(), Column("x", "scalar", "float32")),
        (t.DecimalType(10, 2), Column("x", "scalar", "float32")),
        (t.ArrayType(t.DoubleType()), Column("x", "array", "float32", 1)),
        (t.ArrayType(t.ArrayType(t.ShortType())), Column("x", "array", "int64", 2)),
        (t.ArrayType(t.BooleanType()), Column("x", "array", "bool", 1)),
        (t.ArrayType(t.DecimalType()), Column("x", "array", "float32", 1)),
        (VectorUDT(), Column("x", "vector", "float32")),
        (t.BinaryType(), Column("x", "bytes", "object")),
        (t.MapType(t.StringType(), t.LongType()), Column("x", "map", "int64")),
        (t.MapType(t.StringType(), t.ArrayType(t.FloatType())), Column("x", "map", "float32", 1)),
    ],
)
def test_the_table_of_types(kind: t.DataType, expected: Column) -> None:
    assert column_of(field(kind)) == expected


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        (t.StringType(), "StringIndexer"),
        (t.VarcharType(3), "StringIndexer"),
        (t.ArrayType(t.StringType()), "StringIndexer"),
        (t.DateType(), "unix_date"),
        (t.TimestampType(), "cast it to double"),
        (t.TimestampNTZType(), "cast it to timestamp"),
        (t.DayTimeIntervalType(), "cast it to a number"),
        (t.NullType(), "cast it to"),
        (MatrixUDT(), "array<array<double>>"),
        (t.ArrayType(VectorUDT()), "vector_to_array"),
        (t.ArrayType(t.BinaryType()), "as_tensor_column"),
        (t.StructType([field(t.LongType())]), "name one of its fields"),
        (t.MapType(t.LongType(), t.LongType()), "maps from string"),
        (t.MapType(t.StringType(), t.StringType()), "maps from string"),
    ],
)
def test_types_without_a_tensor(kind: t.DataType, advice: str) -> None:
    with pytest.raises(SchemaError) as caught:
        column_of(field(kind))
    assert "column 'x'" in str(caught.value)
    assert kind.simpleString() in str(caught.value)
    assert advice in str(caught.value)
    assert (caught.value.column, caught.value.found) == ("x", kind.simpleString())


def test_strings_where_the_model_takes_them() -> None:
    assert column_of(field(t.StringType()), allow_strings=True) == Column("x", "string", "object")
    nested = field(t.ArrayType(t.StringType()))
    assert column_of(nested, allow_strings=True) == Column("x", "array", "object", 1)
    schema = t.StructType([nested])
    assert columns_of(schema, ["x"], role="feature", allow_strings=True)[0].dtype == "object"


def test_tensors_in_binary() -> None:
    marked = field(t.BinaryType(), tensor_metadata("float32", (28, 28)))
    assert marked.metadata == {"tensor": {"dtype": "float32", "shape": [28, 28]}}
    assert column_of(marked) == Column("x", "tensor", "float32", shape=(28, 28))
    assert column_of(field(t.BinaryType(), tensor_metadata("uint8", ()))).shape == ()


@pytest.mark.parametrize(
    "declared",
    ["float32", {}, {"dtype": "float32"}, {"dtype": "float32", "shape": [None]}, {"dtype": "float32", "shape": [-1]},
     {"dtype": "str", "shape": [1]}, {"dtype": "nonsense", "shape": [1]}, {"dtype": None, "shape": [1]},
     {"dtype": "float32", "shape": [True]}, {"dtype": "float32", "shape": 3}],
)  # fmt: skip
def test_a_mark_that_cannot_be_read(declared: object) -> None:
    with pytest.raises(SchemaError, match="column 'x' is marked as a tensor, but"):
        column_of(field(t.BinaryType(), {"tensor": declared}))


def test_marks_that_cannot_be_made() -> None:
    with pytest.raises(SchemaError, match="dtype 'str'"):
        tensor_metadata("str", (1,))
    with pytest.raises(SchemaError, match="shape of whole numbers"):
        tensor_metadata("float32", (-1,))


SCHEMA = t.StructType(
    [
        t.StructField("id", t.LongType()),
        t.StructField("a", t.StructType([t.StructField("b", t.DoubleType()), t.StructField("c.d", t.LongType())])),
        t.StructField("e.f", t.BooleanType()),
        t.StructField("two", t.LongType()),
        t.StructField("two", t.LongType()),
    ]
)


def test_names_are_resolved_in_order() -> None:
    found = columns_of(SCHEMA, ["a.b", "id", "e.f", "a.c.d"], role="feature")
    assert [(column.name, column.dtype) for column in found] == [
        ("a.b", "float32"),
        ("id", "int64"),
        ("e.f", "bool"),
        ("a.c.d", "int64"),
    ]
    assert columns_of(SCHEMA, "id", role="label") == (Column("id", "scalar", "int64"),)
    assert columns_of(SCHEMA, [], role="label") == ()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none", "there is no feature column 'none'; the DataFrame has: id, a, e.f, two, two"),
        ("a.none", "there is no feature column 'a.none'; the struct 'a' has: b, c.d"),
        ("id.b", "there is no feature column 'id.b'"),
        ("", "there is no feature column ''"),
        ("two", "feature column 'two' is ambiguous: 2 columns are called 'two'"),
    ],
)
def test_names_that_are_not_there(name: str, message: str) -> None:
    with pytest.raises(SchemaError) as caught:
        columns_of(SCHEMA, ["id", name], role="feature")
    assert message in str(caught.value)
    assert caught.value.column == name


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ((), "float32", "float"),
        ((), "float16", "float"),
        ((), "bfloat16", "float"),
        ((), "float64", "double"),
        ((), "int32", "bigint"),
        ((), "uint8", "bigint"),
        ((), "bool", "boolean"),
        ((), "object", "string"),
        ((), "<U5", "string"),
        ((3,), "int64", "vector"),
        ((3,), "bool", "array<boolean>"),
        ((3,), "string", "array<string>"),
        ((2, 3), "float32", "array<array<float>>"),
        ((2, 3), "float64", "array<array<float>>"),
        ((2, 3), "int8", "array<array<bigint>>"),
        ((1, 2, 3), "bool", "array<array<array<boolean>>>"),
    ],
)
def test_prediction_types(shape: tuple[int, ...], dtype: str, expected: str) -> None:
    made = prediction_field("prediction", shape, dtype)
    assert (made.name, made.dataType.simpleString()) == ("prediction", expected)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("length", [1, 3])
def test_one_axis_of_floats_is_a_vector(dtype: str, length: int) -> None:
    assert prediction_field("p", (length,), dtype).dataType == VectorUDT()
    assert prediction_field("p", (length,), dtype, vectors=False).dataType == t.ArrayType(t.FloatType())


@pytest.mark.parametrize("dtype", ["complex64", "datetime64[s]", "nonsense"])
def test_outputs_that_spark_has_no_type_for(dtype: str) -> None:
    with pytest.raises(SchemaError, match="output 'p'"):
        prediction_field("p", (), dtype)


def test_the_vector_type_is_sparks() -> None:
    assert vector_type().equals(to_arrow_type(VectorUDT()), check_metadata=True)


class Frame:
    """As much of a DataFrame as marking a column needs."""

    def __init__(self, *fields: t.StructField) -> None:
        self.schema = t.StructType(list(fields))

    def withMetadata(self, column: str, metadata: dict[str, Any]) -> dict[str, Any]:
        return {column: metadata}


def test_marking_a_column_keeps_its_other_metadata() -> None:
    frame: Any = Frame(field(t.BinaryType(), {"comment": "pixels"}))
    marked: Any = as_tensor_column(frame, "x", "uint8", [2, 2])
    assert marked == {"x": {"comment": "pixels", "tensor": {"dtype": "uint8", "shape": [2, 2]}}}


def test_marking_what_is_not_binary() -> None:
    frame: Any = Frame(field(t.StringType()))
    with pytest.raises(SchemaError, match="column 'x' is of type string; only a binary column"):
        as_tensor_column(frame, "x", "uint8", [2, 2])
    with pytest.raises(SchemaError, match="there is no tensor column 'y'"):
        as_tensor_column(frame, "y", "uint8", [2, 2])
