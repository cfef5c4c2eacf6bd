"""Rows of a DataFrame as items of a feed: an Arrow batch becomes the columns of ``data.items``, buffer by buffer.

A row arrives as a tuple, a struct inside it as a tuple, an array as a list, a map as a dict, a vector as a vector, a
null as None.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from firesteel.data.items import TAKEN, Described, encode, mixed, nest, raw

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

__all__ = ["Kinds", "kinds_of", "rows_as_items"]

Array = npt.NDArray[Any]

Kinds = dict[str, Any]
"""What Arrow's own types do not tell of a column: which structs are vectors. A tree of plain values."""

_SIMPLE = (
    "boolean",
    "byte",
    "short",
    "integer",
    "long",
    "float",
    "double",
    "string",
    "binary",
    "void",
    "char",
    "varchar",
)
_ML, _MLLIB = "pyspark.ml.linalg", "pyspark.mllib.linalg"
_DENSE = 1  # VectorUDT's "type" field


def kinds_of(schema: StructType) -> Kinds:
    """What ``rows_as_items`` has to know. Raises ``TypeError`` naming a column whose type cannot be fed."""
    return {"of": [_kind_of(field.dataType, field.name) for field in schema.fields]}


def _kind_of(kind: DataType, column: str) -> Kinds:
    from pyspark.sql.types import ArrayType, MapType, StringType, StructType

    if type(kind).__name__ == "VectorUDT":
        return {"vector": _MLLIB if type(kind).__module__.startswith("pyspark.mllib") else _ML}
    if isinstance(kind, StructType):
        return {"of": [_kind_of(field.dataType, column) for field in kind.fields]}
    if isinstance(kind, ArrayType):
        return {"of": [_kind_of(kind.elementType, column)]}
    if isinstance(kind, MapType) and isinstance(kind.keyType, StringType):
        return {"of": [{}, _kind_of(kind.valueType, column)]}
    if kind.typeName() not in _SIMPLE:
        raise TypeError(f"column {column!r} is of type {kind.simpleString()}: {TAKEN}")
    return {}


def rows_as_items(batch: pa.RecordBatch, kinds: Kinds) -> Described:
    """The rows of this batch, as tuples."""
    parts = [_encode(column, kind) for column, kind in zip(batch.columns, kinds["of"], strict=True)]
    return nest({"kind": "record", "count": batch.num_rows}, [], parts)


def _encode(values: pa.Array, kind: Kinds) -> Described:
    if pa.types.is_null(values.type):
        return Described({"kind": "none"}, [])
    if values.null_count == 0:
        return _encode_whole(values, kind)
    is_there = values.is_valid().to_numpy(zero_copy_only=False)
    nothing = Described({"kind": "none"}, [])
    return mixed(is_there.astype(np.uint8), [nothing, _encode_whole(values.drop_null(), kind)])


def _encode_whole(values: pa.Array, kind: Kinds) -> Described:
    """A column without nulls at this level."""
    found = values.type
    if pa.types.is_boolean(found):
        return Described({"kind": "bool", "dtype": "|b1"}, [raw(values.to_numpy(zero_copy_only=False))])
    if pa.types.is_integer(found) or pa.types.is_floating(found):
        numbers: Array = values.to_numpy()
        name = "int" if pa.types.is_integer(found) else "float"
        return Described({"kind": name, "dtype": numbers.dtype.str}, [raw(numbers)])
    if pa.types.is_string(found) or pa.types.is_large_string(found):
        return _strings("str", values)
    if pa.types.is_binary(found) or pa.types.is_large_binary(found):
        return _strings("bytes", values)
    if "vector" in kind:
        return _vectors(values, kind["vector"])
    if pa.types.is_struct(found):
        parts = [_encode(part, inner) for part, inner in zip(values.flatten(), kind["of"], strict=True)]
        return nest({"kind": "record", "count": len(values)}, [], parts)
    if pa.types.is_map(found):
        offsets, first, last = _offsets(values)
        keys, items = values.keys.slice(first, last - first), values.items.slice(first, last - first)
        lists = [_lists(offsets, _encode(part, inner)) for part, inner in zip((keys, items), kind["of"], strict=True)]
        return nest({"kind": "pairs"}, [], lists)
    offsets, first, last = _offsets(values)
    return _lists(offsets, _encode(values.values.slice(first, last - first), kind["of"][0]))


def _offsets(values: pa.Array) -> tuple[Array, int, int]:
    """Where each list begins, counted from the first one's begin; and where in their child the first and last lie."""
    if not len(values):
        return np.zeros(1, np.int64), 0, 0
    offsets: Array = values.offsets.to_numpy()
    return offsets - offsets[0], int(offsets[0]), int(offsets[-1])


def _lists(offsets: Array, elements: Described) -> Described:
    return nest({"kind": "list", "offsets": offsets.dtype.str}, [raw(offsets)], [elements])


def _strings(kind: str, values: pa.Array) -> Described:
    is_wide = pa.types.is_large_string(values.type) or pa.types.is_large_binary(values.type)
    dtype = np.dtype(np.int64 if is_wide else np.int32)
    _, places, data = values.buffers()
    if not len(values) or data is None:
        offsets: Array = np.zeros(len(values) + 1, dtype)
        return Described({"kind": kind, "offsets": dtype.str}, [raw(offsets), b""])
    offsets = np.frombuffer(places, dtype, len(values) + 1, offset=values.offset * dtype.itemsize)
    text = memoryview(data)[int(offsets[0]) : int(offsets[-1])]
    return Described({"kind": kind, "offsets": dtype.str}, [raw(offsets - offsets[0]), text])


def _vectors(values: pa.Array, module: str) -> Described:
    """Spark's vectors; dense ones of one length are one array, as they lie."""
    kinds, _, _, numbers = values.flatten()
    if len(values) and (kinds.to_numpy() == _DENSE).all():
        lengths = np.diff(numbers.offsets.to_numpy())
        if (lengths == lengths[0]).all():
            what = {"kind": "array", "dtype": "<f8", "count": len(values), "shape": [int(lengths[0])]}
            return nest({"kind": "dense", "module": module}, [], [Described(what, [raw(numbers.flatten().to_numpy())])])
    return encode([_vector(each, module) for each in values.to_pylist()])


def _vector(parts: dict[str, Any], module: str) -> Any:
    if module == _MLLIB:
        from pyspark.mllib.linalg import DenseVector, SparseVector
    else:
        from pyspark.ml.linalg import DenseVector, SparseVector  # type: ignore[assignment]
    if parts["type"] == _DENSE:
        return DenseVector(parts["values"])
    return SparseVector(parts["size"], parts["indices"], parts["values"])
