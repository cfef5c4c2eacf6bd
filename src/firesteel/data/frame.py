"""What a Spark schema says about tensors, before any row is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from firesteel.core.errors import SchemaError
from firesteel.data.arrow import Column
from firesteel.data.image.column import images_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructField, StructType

__all__ = ["as_tensor_column", "column_of", "columns_of", "path_of", "prediction_field", "tensor_metadata"]

_TENSOR = "tensor"  # the key in a field's metadata


def column_of(field: StructField, *, allow_strings: bool = False) -> Column:
    """The tensor that a column becomes, from its type (and, for binary, its metadata) alone.

    ``allow_strings`` is for models whose input is a string: strings and arrays of them then pass as objects.

    Raises:
        SchemaError: the type has no tensor; the message says what to cast the column to.
    """
    from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType

    kind = field.dataType
    if isinstance(kind, BinaryType):
        return _binary_column(field)
    if _is_vector(kind):
        return Column(field.name, "vector", "float32")
    if isinstance(kind, MapType) and isinstance(kind.keyType, StringType):
        dtype, depth = _numbers(kind.valueType, allow_strings=False)
        if dtype is not None:
            return Column(field.name, "map", dtype, depth)
    dtype, depth = _numbers(kind, allow_strings=allow_strings)
    if dtype is None:
        raise SchemaError(
            f"column {field.name!r} is of type {kind.simpleString()}, which does not become a tensor; {_advice(kind)}",
            column=field.name,
            expected="numbers, booleans, arrays of them, an ML vector, or binary",
            found=kind.simpleString(),
        )
    if isinstance(kind, ArrayType):
        return Column(field.name, "array", dtype, depth)
    return Column(field.name, "string" if dtype == "object" else "scalar", dtype)


def columns_of(
    schema: StructType, names: Sequence[str], *, role: str, allow_strings: bool = False
) -> tuple[Column, ...]:
    """The columns of these names, in the order asked for; one name alone may come as a string.

    ``"a.b"`` is the column of that very name if there is one, else the field ``b`` of the struct column ``a``.

    Args:
        schema: of the DataFrame; names are compared exactly, also where Spark would ignore their case.
        names: what the user asked for.
        role: a word for the messages, such as ``"feature"``.
        allow_strings: as in ``column_of``.

    Raises:
        SchemaError: no such column (the message lists those there are), or several of that name.
    """
    wanted = (names,) if isinstance(names, str) else tuple(names)
    return tuple(column_of(_resolve(schema, name, role)[0], allow_strings=allow_strings) for name in wanted)


def path_of(schema: StructType, name: str) -> tuple[str, ...]:
    """The column that ``name`` stands for, and the fields inside it if it is a struct; as in ``columns_of``."""
    return _resolve(schema, name, "")[1]


def prediction_field(name: str, shape: tuple[int, ...], dtype: str, *, vectors: bool = True) -> StructField:
    """The column that holds a model's output, whose rows have this shape and dtype.

    One axis of numbers is an ML vector, or with ``vectors=False`` an ``array<float>``; other axes are nested arrays. A
    vector holds doubles whatever the dtype, an array holds floats also for float64. ``dtype`` is NumPy's name
    (``"bfloat16"`` and ``"string"`` are understood without a package for them).
    """
    from pyspark.sql.types import ArrayType, BooleanType, DoubleType, FloatType, LongType, StringType, StructField

    kind = _dtype_kind(name, dtype)
    element: DataType
    if kind in "fi" and len(shape) == 1 and vectors:
        from pyspark.ml.linalg import VectorUDT  # here, for it loads all of pyspark.ml

        return StructField(name, VectorUDT())
    if kind == "f":
        element = DoubleType() if dtype == "float64" and not shape else FloatType()
    else:
        element = {"i": LongType(), "b": BooleanType(), "U": StringType()}[kind]
    for _ in shape:
        element = ArrayType(element)
    return StructField(name, element)


def tensor_metadata(dtype: str, shape: Sequence[int]) -> dict[str, Any]:
    """Field metadata that makes a binary column a tensor: each value holds one array of this dtype and shape.

    The bytes are the array's own in C order and, unless ``dtype`` says otherwise (``">f4"``), little-endian.
    """
    if not _is_number(dtype):
        raise SchemaError(f"a tensor column cannot have dtype {dtype!r}; it holds numbers or booleans")
    if not _is_shape(shape):
        raise SchemaError(f"a tensor column needs a shape of whole numbers, not {shape!r}")
    return {_TENSOR: {"dtype": str(dtype), "shape": [int(length) for length in shape]}}


def as_tensor_column(df: DataFrame, column: str, dtype: str, shape: Sequence[int]) -> DataFrame:
    """The same DataFrame (driver, no job) with a binary column marked as a tensor; its other metadata stays.

    The mark travels with the column through ``select`` and Parquet files; an expression over the column loses it.
    """
    field, _ = _resolve(df.schema, column, "tensor", is_top_only=True)
    marked = {**field.metadata, **tensor_metadata(dtype, shape)}
    if field.dataType.typeName() != "binary":
        raise SchemaError(
            f"column {column!r} is of type {field.dataType.simpleString()}; only a binary column can hold tensors",
            column=column,
            expected="binary",
            found=field.dataType.simpleString(),
        )
    return df.withMetadata(column, marked)


# --- types to dtypes --------------------------------------------------------------------------------------------------


def _numbers(kind: DataType, *, allow_strings: bool) -> tuple[str | None, int]:
    """The dtype inside (nested) arrays of something, and how deep it is; ``None`` if it is no number."""
    from pyspark.sql.types import (
        ArrayType,
        BooleanType,
        CharType,
        FractionalType,
        IntegralType,
        StringType,
        VarcharType,
    )

    depth = 0
    while isinstance(kind, ArrayType):
        kind, depth = kind.elementType, depth + 1
    if isinstance(kind, BooleanType):
        return "bool", depth
    if isinstance(kind, IntegralType):  # byte, short, int, long
        return "int64", depth
    if isinstance(kind, FractionalType):  # float, double, decimal
        return "float32", depth
    if allow_strings and isinstance(kind, (StringType, CharType, VarcharType)):
        return "object", depth
    return None, depth


def _is_vector(kind: DataType) -> bool:
    from pyspark.sql.types import UserDefinedType

    # By name, for importing pyspark.ml.linalg loads all of pyspark.ml; a column of that type has loaded it already.
    return isinstance(kind, UserDefinedType) and (kind.module(), type(kind).__name__) == (
        "pyspark.ml.linalg",
        "VectorUDT",
    )


def _binary_column(field: StructField) -> Column:
    images = images_of(field.metadata)
    if images is not None:
        return Column(field.name, "image", images.dtype, images=images)
    declared = (field.metadata or {}).get(_TENSOR)
    if declared is None:
        return Column(field.name, "bytes", "object")
    dtype, shape = (declared.get("dtype"), declared.get("shape")) if isinstance(declared, Mapping) else (None, None)
    if not _is_number(dtype) or not _is_shape(shape):
        raise SchemaError(
            f"column {field.name!r} is marked as a tensor, but not in a way that can be read: {declared!r}; "
            'mark it with firesteel\'s as_tensor_column, as in {"dtype": "float32", "shape": [28, 28]}',
            column=field.name,
            expected="a dtype of numbers and a shape of whole numbers",
            found=repr(declared),
        )
    return Column(field.name, "tensor", str(dtype), shape=tuple(int(length) for length in shape or ()))


def _is_number(dtype: object) -> bool:
    try:
        return isinstance(dtype, (str, np.dtype, type)) and np.dtype(dtype).kind in "biuf"
    except TypeError:  # NumPy knows no such name
        return False


def _is_shape(shape: object) -> bool:
    return isinstance(shape, (list, tuple)) and all(
        isinstance(length, (int, np.integer)) and not isinstance(length, bool) and length >= 0 for length in shape
    )


def _dtype_kind(name: str, dtype: str) -> str:
    """``f``, ``i``, ``b`` or ``U``: floats, integers, booleans, strings."""
    if dtype == "bfloat16":  # only ml_dtypes teaches NumPy this name
        return "f"
    if dtype in ("string", "object", "str"):
        return "U"
    kinds = {"f": "f", "i": "i", "u": "i", "b": "b", "U": "U", "S": "U", "T": "U"}
    try:
        return kinds[np.dtype(dtype).kind]
    except (KeyError, TypeError):  # a kind without a column type, or a name that NumPy does not know
        raise SchemaError(
            f"output {name!r} has dtype {dtype}, for which Spark has no column type", column=name, found=dtype
        ) from None


# --- names and advice -------------------------------------------------------------------------------------------------


def _resolve(
    schema: StructType, name: str, role: str, *, is_top_only: bool = False
) -> tuple[StructField, tuple[str, ...]]:
    """The field of this name, carrying the whole name as its own, and the way to it."""
    from pyspark.sql.types import StructField, StructType

    fields, inside, rest = schema.fields, "", name
    path: tuple[str, ...] = ()
    while True:
        found = [field for field in fields if field.name == rest]
        head, dot, tail = (rest, "", "") if found or is_top_only else rest.partition(".")
        if dot:
            found = [field for field in fields if field.name == head]
        if len(found) > 1:
            raise SchemaError(
                f"{role} column {name!r} is ambiguous: {len(found)} columns are called {inside + head!r}; "
                "rename all but one",
                column=name,
                found=f"{len(found)} columns of that name",
            )
        if found and not dot:
            return StructField(name, found[0].dataType, found[0].nullable, found[0].metadata), (*path, rest)
        if not found or not isinstance(found[0].dataType, StructType):
            there = ", ".join(field.name for field in fields) or "none"
            where = f"the struct {inside[:-1]!r}" if inside else "the DataFrame"
            raise SchemaError(
                f"there is no {role} column {name!r}; {where} has: {there}",
                column=name,
                expected=name,
                found=there,
            )
        fields, inside, rest, path = found[0].dataType.fields, f"{inside}{head}.", tail, (*path, head)


def _advice(kind: DataType) -> str:
    """What to do with a column of a type that has no tensor."""
    from pyspark.sql.types import ArrayType, MapType, StructType, UserDefinedType

    inner = kind
    while isinstance(inner, ArrayType):
        inner = inner.elementType
    if isinstance(inner, UserDefinedType):
        if type(inner).__name__ == "MatrixUDT":
            return "turn the matrix into an array<array<double>>"
        if type(inner).__name__ == "VectorUDT":
            return "turn the vectors into arrays with pyspark.ml.functions.vector_to_array"
        return "turn it into an array of numbers"
    if isinstance(inner, StructType):
        return "name one of its fields, as in 'struct.field'" if inner is kind else "turn it into an array of numbers"
    if isinstance(inner, MapType):
        return "only maps from string to numbers or arrays of numbers do"
    return _ADVICE.get(inner.typeName(), "cast it to a number, such as double")


_ADVICE = {
    "string": "cast it to double if it holds numbers, or index it (StringIndexer); models with string inputs take it",
    "date": "cast it to a number of days with unix_date, as bigint",
    "timestamp": "cast it to double (seconds since 1970)",
    "timestamp_ntz": "cast it to timestamp, then to double (seconds since 1970)",
    "binary": "mark it with as_tensor_column if each value is a tensor, with image_column if it is an image",
    "void": "cast it to the type that it should have, such as double",
}
_ADVICE["varchar"] = _ADVICE["char"] = _ADVICE["string"]
