"""Columns as tensors of their own dtype: what a column's type, metadata or data say of its tensor, before it is read.

Here nothing is converted on the way: an ``int`` column is an int32 tensor, a ``double`` one float64. A column's shape
counts the rows first; what is known of it beyond the type is kept in the column's metadata.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from firesteel.core.columns import DTYPES, Shape
from firesteel.core.errors import PlanError, SchemaError
from firesteel.core.spec import TensorSpec
from firesteel.data.arrow import Column

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField, StructType

__all__ = [
    "DTYPE_KEY",
    "SHAPE_KEY",
    "TensorColumn",
    "arrow_type",
    "cast_name",
    "declared",
    "field_of",
    "fits",
    "has_spark_type",
    "metadata_of",
    "of_arrow",
    "of_schema",
    "shape_of",
    "spark_name",
    "spark_type",
]

SHAPE_KEY = "firesteel.shape"
DTYPE_KEY = "firesteel.dtype"

# dtype: Spark's long name for it, the name that a cast is written with, Arrow's type
_TYPES: dict[str, tuple[str, str, pa.DataType]] = {
    "float64": ("double", "double", pa.float64()),
    "float32": ("float", "float", pa.float32()),
    "int64": ("long", "bigint", pa.int64()),
    "int32": ("integer", "int", pa.int32()),
    "int16": ("short", "smallint", pa.int16()),
    "int8": ("byte", "tinyint", pa.int8()),
    "bool": ("boolean", "boolean", pa.bool_()),
    "string": ("string", "string", pa.string()),
    "binary": ("binary", "binary", pa.binary()),
}
_NAMES = {name: dtype for dtype, names in _TYPES.items() for name in names[:2]} | {name: name for name in DTYPES}
_BUILTIN: dict[type, str] = {float: "float64", int: "int64", bool: "bool", str: "string", bytes: "binary"}
_NAMES |= {"str": "string", "bytes": "binary", "object": "binary"}


@dataclass(frozen=True)
class TensorColumn:
    """A column and its tensor.

    Attributes:
        dtype: one of ``core.columns.DTYPES``.
        shape: the rows first, then a cell's; ``None`` where a size is not known.
        is_vector: whether it holds Spark ML vectors.
    """

    name: str
    dtype: str
    shape: Shape
    is_vector: bool = False

    @property
    def cell(self) -> Shape:
        """A cell's shape."""
        return self.shape[1:]

    def reading(self) -> Column:
        """How Arrow's values of it are read."""
        depth = 0 if self.is_vector else len(self.cell)
        kind = {"string": "string", "binary": "bytes"}.get(self.dtype, "array" if depth else "scalar")
        dtype = "object" if self.dtype in ("string", "binary") else self.dtype
        return Column(self.name, "vector" if self.is_vector else kind, dtype, depth, self.cell)

    def spec(self, name: str | None = None) -> TensorSpec:
        """A cell of it."""
        return TensorSpec(name or self.name, self.dtype, self.cell)


def of_schema(schema: StructType) -> dict[str, TensorColumn | str]:
    """Each column's tensor, or its type's name where it has none. Of two columns of one name neither has one."""
    found: dict[str, TensorColumn | str] = {}
    for field in schema.fields:
        is_second = field.name in found
        found[field.name] = "one of several columns of that name" if is_second else _of_field(field)
    return found


def of_arrow(name: str, values: pa.Array, shape: Shape) -> TensorColumn | str:
    """The tensor of values that are here, whose shape is known; else their type's name."""
    leaf, rank = values.type, 1
    while pa.types.is_list(leaf) or pa.types.is_large_list(leaf) or pa.types.is_fixed_size_list(leaf):
        leaf, rank = leaf.value_type, rank + 1
    for dtype, (_, _, kind) in _TYPES.items():
        if leaf.equals(kind):
            return TensorColumn(name, dtype, (*shape, *(None for _ in range(rank - len(shape)))))
    return str(values.type)


def _of_field(field: StructField) -> TensorColumn | str:
    from pyspark.sql.types import ArrayType, UserDefinedType

    kind, rank = field.dataType, 1
    is_vector = isinstance(kind, UserDefinedType) and kind.simpleString() == "vector"
    while isinstance(kind, ArrayType):
        kind, rank = kind.elementType, rank + 1
    # Not typeName: a column of strings may be a char or a varchar.
    dtype = "float64" if is_vector else _NAMES.get("string" if _is_text(kind) else kind.typeName())
    if dtype is None:
        return field.dataType.simpleString()
    rank += is_vector
    said: Any = (field.metadata or {}).get(SHAPE_KEY)
    if not isinstance(said, list) or len(said) != rank or not all(isinstance(size, int) for size in said):
        said = [-1] * rank
    return TensorColumn(field.name, dtype, tuple(None if size < 0 else size for size in said), is_vector)


def _is_text(kind: DataType) -> bool:
    from pyspark.sql.types import CharType, StringType, VarcharType

    return isinstance(kind, (StringType, CharType, VarcharType))


# --- types ------------------------------------------------------------------------------------------------------------


def spark_name(dtype: str) -> str:
    """A dtype as Spark's schemas call it: ``double``, ``integer``, ``long``."""
    return _TYPES[dtype][0]


def has_spark_type(dtype: str) -> bool:
    """Whether Spark has numbers, booleans, strings or bytes of this dtype."""
    return dtype in _TYPES


def cast_name(dtype: str, depth: int = 0) -> str:
    """A dtype as a cast is written: ``int``, ``array<bigint>``."""
    return "array<" * depth + _TYPES[dtype][1] + ">" * depth


def spark_type(spec: TensorSpec) -> DataType:
    """The Spark type of a column with such cells: arrays, an axis each, of what is never null."""
    from pyspark.sql import types

    classes = {
        "float64": types.DoubleType,
        "float32": types.FloatType,
        "int64": types.LongType,
        "int32": types.IntegerType,
        "int16": types.ShortType,
        "int8": types.ByteType,
        "bool": types.BooleanType,
        "string": types.StringType,
        "binary": types.BinaryType,
    }
    kind: DataType = classes[spec.dtype]()
    for _ in spec.shape:
        kind = types.ArrayType(kind, containsNull=False)
    return kind


def arrow_type(spec: TensorSpec) -> pa.DataType:
    """The Arrow type of a column with such cells."""
    kind = _TYPES[spec.dtype][2]
    for _ in spec.shape:
        kind = pa.list_(kind)
    return kind


def field_of(spec: TensorSpec) -> StructField:
    """The Spark column with such cells, not nullable, with its metadata."""
    from pyspark.sql.types import StructField

    return StructField(spec.name, spark_type(spec), False, metadata_of(spec.dtype, (None, *spec.shape)))


def metadata_of(dtype: str, shape: Shape) -> dict[str, Any]:
    """What a column's metadata say of its tensor."""
    return {SHAPE_KEY: [-1 if size is None else size for size in shape], DTYPE_KEY: spark_name(dtype)}


def fits(found: str, wanted: str) -> bool:
    """Whether values of one dtype may be fed to an input of another: integers to integers, float32 to float64."""
    if found == wanted or (found in ("string", "binary") and wanted in ("string", "binary")):
        return True
    if found.startswith("int") and wanted.startswith("int"):
        return True  # a value that does not fit fails when it is read
    return (found, wanted) == ("float32", "float64")


# --- what users declare -----------------------------------------------------------------------------------------------


def declared(schema: Any) -> dict[str, TensorSpec]:
    """Outputs as a user declares them: ``{name: (dtype, cell shape)}``, or a DDL string, in the same order."""
    if isinstance(schema, str):
        return _parse(schema)
    if isinstance(schema, Mapping):
        found = {}
        for name, value in schema.items():
            if not isinstance(value, (tuple, list)) or len(value) != 2:
                raise PlanError(f"schema says {value!r} of {name!r}; write (dtype, cell shape), as in ('float64', [])")
            dtype, shape = value
            found[str(name)] = TensorSpec(str(name), dtype_of(dtype, str(name)), shape_of(shape, str(name)))
        return found
    fields = getattr(schema, "fields", None)
    if fields is None:
        raise PlanError(f"schema must be {{name: (dtype, cell shape)}} or a DDL string as 'z double', not {schema!r}")
    found = {}
    for field in fields:
        column = _of_field(field)
        if isinstance(column, str):
            raise SchemaError(f"schema says {column} of {field.name!r}, which no tensor holds", column=field.name)
        found[field.name] = replace(column.spec(), shape=column.cell)
    return found


def dtype_of(value: Any, name: str) -> str:
    """A dtype by any of its names: Spark's, NumPy's, a framework's own."""
    if isinstance(value, type) and value in _BUILTIN:  # as NumPy takes them: Spark's "int" and "float" are narrower
        return _BUILTIN[value]
    text = value if isinstance(value, str) else getattr(value, "name", None) or getattr(value, "__name__", None)
    text = str(value) if text is None else str(text)
    text = text.removeprefix("torch.")  # torch.float32 has no name but this
    if text in _NAMES:
        return _NAMES[text]
    try:
        text = np.dtype(text).name
    except TypeError:
        text = ""
    if text in _NAMES:
        return _NAMES[text]
    raise PlanError(f"schema says {value!r} of {name!r}, for which there is no column type; there are: {_known()}")


def shape_of(value: Any, name: str) -> Shape:
    """A shape with ``None`` or a negative number for what is not known."""
    if not isinstance(value, (list, tuple)) or not all(size is None or _is_whole(size) for size in value):
        raise PlanError(f"the shape of {name!r} must be a list of whole numbers and None, not {value!r}")
    return tuple(None if size is None or int(size) < 0 else int(size) for size in value)


def _is_whole(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


_FIELD = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^\s:`,]+))\s*(?::|\s)\s*([^`]*?)\s*$", re.DOTALL)
_ARRAY = re.compile(r"array\s*<\s*(.*)\s*>$", re.DOTALL)


def _parse(text: str) -> dict[str, TensorSpec]:
    """Spark's DDL, as far as tensors go. Spark's own parser lives in a JVM, which need not be there."""
    found: dict[str, TensorSpec] = {}
    for part in _split(text):
        match = _FIELD.match(part)
        if match is None:
            raise PlanError(f"schema {text!r} is not a DDL string as 'z double, y array<float>': {part.strip()!r}")
        name = (match[1] or match[2]).replace("``", "`")
        kind = re.sub(r"\s+not\s+null$", "", match[3].strip().lower())
        depth = 0
        while (inner := _ARRAY.match(kind)) is not None:
            kind, depth = inner[1].strip(), depth + 1
        if kind not in _NAMES:
            raise PlanError(f"schema says {kind!r} of {name!r}, for which there is no tensor; there are: {_known()}")
        found[name] = TensorSpec(name, _NAMES[kind], (None,) * depth)
    return found


def _split(text: str) -> Iterable[str]:
    """The fields; commas inside backquotes belong to a name."""
    return re.findall(r"(?:`[^`]*`|[^,`])+", text)


def _known() -> str:
    return ", ".join(f"{names[1]} ({dtype})" for dtype, names in _TYPES.items()) + ", and arrays of them"
