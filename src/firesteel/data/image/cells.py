"""Values and their cells: how a field's values become an Arrow column, and how the column becomes values again.

=====================================  ==========================================================================
field                                  column
=====================================  ==========================================================================
IMAGE                                  binary: the file
NDARRAY, every length known            fixed size binary: the array's bytes, little-endian, in C order
NDARRAY, a length of -1 (or of 0)      struct of ``shape`` and ``data``
SCALAR                                 Arrow's own type
NDARRAY that Orca wrote                binary: a compressed ``.npz`` with one array
=====================================  ==========================================================================

The column's type tells them apart, so each file says itself how it is to be read. Nothing is ever unpickled. A fixed
size binary column is one buffer, of which NumPy makes one array: no Python object per row.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from io import BytesIO
from typing import TYPE_CHECKING, Any, Protocol
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from firesteel.core.errors import PlanError, SchemaError
from firesteel.data.file import read_bytes
from firesteel.data.image.schema import DType, FeatureType, Schema, SchemaField

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Block", "Column", "arrow_schema", "plain_columns", "read_columns", "row_of", "rows_in"]

Column = npt.NDArray[Any] | list[Any]
"""The values of several rows: stacked where they are numbers or have one shape, else a list."""

_MOST_BYTES = (1 << 31) - 1


# Writing


def arrow_schema(schema: Schema) -> pa.Schema:
    """The columns that a dataset's files have."""
    import pyarrow as pa

    # Not nullable, but for strings and bytes: Parquet then stores nothing but the values.
    return pa.schema(
        [pa.field(name, _arrow_type(field), nullable=_may_be_null(field)) for name, field in schema.items()]
    )


def plain_columns(schema: Schema) -> list[str]:
    """Columns that Parquet may well know more of: minimum, maximum, a dictionary. Not so those full of pixels."""
    return [name for name, field in schema.items() if field.feature_type is FeatureType.SCALAR]


def _arrow_type(field: SchemaField) -> pa.DataType:
    import pyarrow as pa

    if field.feature_type is FeatureType.IMAGE:
        return pa.binary()
    if field.feature_type is FeatureType.SCALAR:
        if field.dtype.is_number:
            return pa.from_numpy_dtype(_dtype(field))
        return pa.string() if field.dtype is DType.STRING else pa.binary()
    if _is_fixed(field):
        return pa.binary(_row_bytes(field))
    return pa.struct([pa.field("shape", pa.list_(pa.int64()), False), pa.field("data", pa.binary(), False)])


def _may_be_null(field: SchemaField) -> bool:
    return field.feature_type is FeatureType.SCALAR and not field.dtype.is_number


def _dtype(field: SchemaField) -> np.dtype[Any]:
    return np.dtype(field.dtype.value).newbyteorder("<")


def _row_bytes(field: SchemaField) -> int:
    return math.prod(field.shape) * _dtype(field).itemsize


def _is_fixed(field: SchemaField) -> bool:
    # Parquet has no fixed size of zero; one beyond an int is no block's size either.
    return -1 not in field.shape and 0 < _row_bytes(field) <= _MOST_BYTES


class Block:
    """Rows on their way into a file: checked when they are added, and copied, so that a caller may use arrays again.

    Args:
        schema: the fields.
        most_rows: when the block is full.
        most_bytes: likewise; a block holds one row at least.
    """

    def __init__(self, schema: Schema, most_rows: int, most_bytes: int) -> None:
        self._schema = schema
        row_bytes = sum(_row_bytes(field) for field in schema.values() if _is_array(field) and not field.is_ragged)
        self._most_rows = max(1, min(most_rows, most_bytes // max(1, row_bytes)))
        self._most_bytes = most_bytes
        self._columns = {name: _column(name, field, self._most_rows) for name, field in schema.items()}
        self.rows = 0
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether it should be written before the next row."""
        return self.rows >= self._most_rows or self._bytes >= self._most_bytes

    def add(self, row: Any, number: int) -> None:
        """Take a row in; ``number`` is its place in the dataset, for messages."""
        if not isinstance(row, dict):
            raise PlanError(f"row {number} must be a dict with the schema's keys, found {type(row).__qualname__}")
        if row.keys() != self._schema.keys():
            raise _other_keys(row, self._schema, number)
        for name, column in self._columns.items():
            try:
                self._bytes += column.put(self.rows, row[name])
            except PlanError as error:
                error.add_note(f"This is row {number} (from 0) of what was to be written.")
                raise
        self.rows += 1

    def take(self) -> pa.RecordBatch:
        """All rows as Arrow; the block is empty again."""
        import pyarrow as pa

        arrays = [column.take(self.rows) for column in self._columns.values()]
        self.rows = self._bytes = 0
        return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(self._schema))


def _other_keys(row: dict[Any, Any], schema: Schema, number: int) -> PlanError:
    missing = [str(name) for name in schema if name not in row]
    extra = [str(name) for name in row if name not in schema]
    said = [f"{words}: {', '.join(names)}" for words, names in (("missing", missing), ("extra", extra)) if names]
    return SchemaError(
        f"row {number} does not have the schema's keys ({', '.join(schema)}); {'; '.join(said)}",
        column=(missing or extra)[0],
    )


def _is_array(field: SchemaField) -> bool:
    """Whether values are numbers, in one array for all rows."""
    if field.feature_type is FeatureType.NDARRAY:
        return not field.is_ragged
    return field.feature_type is FeatureType.SCALAR and field.dtype.is_number


class _Values(Protocol):
    """The values of one field in a block."""

    def put(self, row: int, value: Any) -> int:
        """Check and keep a value; the bytes that it takes."""
        ...

    def take(self, rows: int) -> pa.Array:
        """All values as an Arrow column; then there are none."""
        ...


def _column(name: str, field: SchemaField, most_rows: int) -> _Values:
    if field.feature_type is FeatureType.IMAGE:
        return _Objects(name, field, _file_bytes)
    if field.feature_type is FeatureType.SCALAR and not field.dtype.is_number:
        return _Objects(name, field, _text if field.dtype is DType.STRING else _plain_bytes)
    if _is_array(field) and (field.feature_type is FeatureType.SCALAR or _is_fixed(field)):
        return _Stacked(name, field, most_rows)
    return _Ragged(name, field)


class _Stacked:
    """Values of one shape: one array."""

    def __init__(self, name: str, field: SchemaField, most_rows: int) -> None:
        self._shape = field.shape if field.feature_type is FeatureType.NDARRAY else ()
        self._is_scalar = field.feature_type is FeatureType.SCALAR
        self._type = _arrow_type(field)
        self._cast = _Cast(name, field)
        self._most_rows = most_rows
        self._array = np.empty((0, *self._shape), _dtype(field))

    def put(self, row: int, value: Any) -> int:
        if row >= len(self._array):
            # Grown, not made whole at once: many a dataset has fewer rows than a block.
            grown = np.empty((min(self._most_rows, max(16, 2 * row)), *self._shape), self._array.dtype)
            grown[:row] = self._array[:row]
            self._array = grown
        self._cast.into(self._array, row, value)
        return 0  # counted by the block, before

    def take(self, rows: int) -> pa.Array:
        import pyarrow as pa

        values = self._array[:rows]
        if self._is_scalar:
            return pa.array(values, self._type)
        return pa.FixedSizeBinaryArray.from_buffers(self._type, rows, [None, pa.py_buffer(values.tobytes())])


class _Ragged:
    """Arrays of any shape: the bytes of each, and its shape."""

    def __init__(self, name: str, field: SchemaField) -> None:
        self._type = _arrow_type(field)
        self._cast = _Cast(name, field)
        self._shapes: list[list[int]] = []
        self._data: list[bytes] = []

    def put(self, row: int, value: Any) -> int:
        array = self._cast.alone(value)
        self._shapes.append(list(array.shape))
        self._data.append(array.tobytes())
        return array.nbytes

    def take(self, rows: int) -> pa.Array:
        import pyarrow as pa

        shapes = pa.array(self._shapes, self._type.field("shape").type)
        data = pa.array(self._data, self._type.field("data").type)
        self._shapes, self._data = [], []
        return pa.StructArray.from_arrays([shapes, data], fields=list(self._type))


class _Objects:
    """Strings and bytes: a list."""

    def __init__(self, name: str, field: SchemaField, convert: Callable[[str, Any], str | bytes | None]) -> None:
        self._name = name
        self._type = _arrow_type(field)
        self._convert = convert
        self._values: list[str | bytes | None] = []

    def put(self, row: int, value: Any) -> int:
        converted = self._convert(self._name, value)
        self._values.append(converted)
        return 0 if converted is None else len(converted)

    def take(self, rows: int) -> pa.Array:
        import pyarrow as pa

        array = pa.array(self._values, self._type)
        self._values = []
        return array


def _file_bytes(name: str, value: Any) -> bytes:
    if not isinstance(value, (str, os.PathLike)):
        raise SchemaError(
            f"{name!r} is an IMAGE, so it must be the path of a file, found {type(value).__qualname__}", column=name
        )
    try:
        return read_bytes(value)
    except FileNotFoundError as error:
        raise SchemaError(f"{name!r}: the image file {os.fspath(value)} does not exist", column=name) from error


def _text(name: str, value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise SchemaError(f"{name!r} must be a string, found {type(value).__qualname__}", column=name)


def _plain_bytes(name: str, value: Any) -> bytes | None:
    if value is None or isinstance(value, (bytes, bytearray, memoryview)):
        return None if value is None else bytes(value)
    raise SchemaError(f"{name!r} must be bytes, found {type(value).__qualname__}", column=name)


class _Cast:
    """Checks values against a field's dtype and shape, and casts them.

    A cast must lose no kind: integers may become floats, floats must not become integers. Integers must fit, and a
    number must not become infinite.
    """

    def __init__(self, name: str, field: SchemaField) -> None:
        self._name = name
        self._dtype = _dtype(field)
        self._shape = field.shape if field.feature_type is FeatureType.NDARRAY else ()
        self._is_free = -1 in self._shape
        self._must_fit: dict[np.dtype[Any], bool] = {}
        self._limits: Any = np.iinfo(self._dtype) if self._dtype.kind in "iu" else None

    def check(self, value: Any) -> npt.NDArray[Any]:
        """The value as an array that can be cast."""
        try:
            array = np.asarray(value)
        except ValueError:  # lists of lists of several lengths
            raise self._refusal(f"{self._name!r} is no array: its rows have several lengths", "ragged lists") from None
        if array.dtype not in self._must_fit:  # the answer is the same for every row
            self._must_fit[array.dtype] = self._has_to_fit(array.dtype, value)
        if array.shape != self._shape and not self._has_shape(array.shape):
            message = f"{self._name!r} must have shape {self._shape}, found {array.shape}"
            raise self._refusal(message, str(array.shape), str(self._shape))
        if self._must_fit[array.dtype] and array.size:
            self._check_range(array)
        return array

    def into(self, target: npt.NDArray[Any], row: int, value: Any) -> None:
        """Check a value, and put it into its row."""
        array = self.check(value)
        target[row] = self._converted(array) if self._may_overflow(array) else array

    def alone(self, value: Any) -> npt.NDArray[Any]:
        """Check and cast a value."""
        return self._converted(self.check(value))

    def _may_overflow(self, array: npt.NDArray[Any]) -> bool:
        return self._dtype.kind == "f" and array.dtype != self._dtype  # integers were checked

    def _converted(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        try:
            with np.errstate(over="raise"):
                return array.astype(self._dtype, copy=False)
        except FloatingPointError:
            message = f"{self._name!r}: a number of {array.dtype.name} is too large for {self._dtype.name}"
            raise self._refusal(message, array.dtype.name) from None

    def _has_to_fit(self, found: np.dtype[Any], value: Any) -> bool:
        """Whether values have to be looked at; ``SchemaError`` where no value would do."""
        if found.kind in "iu" and self._dtype.kind in "iu":
            return not np.can_cast(found, self._dtype, "safe")
        if found.kind not in "biufc" or not np.can_cast(found, self._dtype, "same_kind"):
            what = type(value).__qualname__ if found.kind == "O" else found.name
            message = (
                f"{self._name!r} is declared as {self._dtype.name}, and {what} does not become that; cast it first"
            )
            raise self._refusal(message, what)
        return False

    def _has_shape(self, found: tuple[int, ...]) -> bool:
        if not self._is_free or len(found) != len(self._shape):
            return False
        return all(wanted in (-1, length) for wanted, length in zip(self._shape, found, strict=True))

    def _check_range(self, array: npt.NDArray[Any]) -> None:
        limits = self._limits
        for number in (int(array.min()), int(array.max())) if array.ndim else (int(array),):
            if not limits.min <= number <= limits.max:
                message = f"{self._name!r}: {number} ({array.dtype.name}) does not fit {self._dtype.name}"
                raise self._refusal(message, str(number))

    def _refusal(self, message: str, found: str, expected: str | None = None) -> SchemaError:
        return SchemaError(message, column=self._name, expected=expected or self._dtype.name, found=found)


# Reading


def read_columns(table: pa.Table, schema: Schema, source: str) -> dict[str, Column]:
    """The values of all fields, in memory of their own. ``source`` is the file, for messages."""
    missing = [name for name in schema if name not in table.column_names]
    if missing:
        there = ", ".join(table.column_names) or "none"
        raise SchemaError(f"{source} has no column {missing[0]!r}; there are: {there}", column=missing[0])
    return {name: _values(name, field, table.column(name), source) for name, field in schema.items()}


def rows_in(columns: dict[str, Column]) -> int:
    """How many rows there are."""
    return len(next(iter(columns.values())))


def row_of(columns: dict[str, Column], schema: Schema, index: int) -> dict[str, Any]:
    """One row: arrays (copies, so that rows do not keep each other alive), numbers, strings and bytes."""
    row: dict[str, Any] = {}
    for name, values in columns.items():
        if isinstance(values, np.ndarray) and schema[name].feature_type is FeatureType.NDARRAY:
            row[name] = np.array(values[index])
        else:
            row[name] = values[index]
    return row


def _values(name: str, field: SchemaField, column: pa.ChunkedArray, source: str) -> Column:
    import pyarrow as pa

    if field.feature_type is FeatureType.IMAGE:
        return column.to_pylist()  # type: ignore[no-any-return]
    if field.feature_type is FeatureType.SCALAR:
        return np.array(column.to_numpy(zero_copy_only=False))
    if pa.types.is_fixed_size_binary(column.type):
        return _stacked(name, field, column, source)
    if pa.types.is_struct(column.type):
        arrays = [array for chunk in column.chunks for array in _ragged(field, chunk)]
    else:
        arrays = [_from_npz(name, cell, source) for cell in column.to_pylist()]
    if field.is_ragged:
        return arrays
    return _stack(name, field, arrays, source)


def _stacked(name: str, field: SchemaField, column: pa.ChunkedArray, source: str) -> npt.NDArray[Any]:
    if column.type.byte_width != _row_bytes(field):
        raise SchemaError(
            f"{source}: cells of {name!r} have {column.type.byte_width} bytes, but the schema says {_row_bytes(field)}",
            column=name,
        )
    parts = [np.empty((0, *field.shape), _dtype(field))]
    for chunk in column.chunks:
        flat = np.frombuffer(chunk.buffers()[1], np.uint8)
        begin = chunk.offset * column.type.byte_width
        cells = flat[begin : begin + len(chunk) * column.type.byte_width]
        parts.append(cells.view(_dtype(field)).reshape(len(chunk), *field.shape))
    return np.concatenate(parts)  # a copy: Arrow's memory is read-only


def _ragged(field: SchemaField, chunk: pa.StructArray) -> list[npt.NDArray[Any]]:
    shapes = chunk.field("shape").to_pylist()
    return [
        np.frombuffer(cell.as_buffer(), _dtype(field)).reshape(shape).copy()
        for cell, shape in zip(chunk.field("data"), shapes, strict=True)
    ]


def _from_npz(name: str, cell: bytes | None, source: str) -> npt.NDArray[Any]:
    """An array that Orca wrote: as it was given then, for Orca does not cast."""
    try:
        if cell is None:
            raise ValueError("the cell is null")
        with np.load(BytesIO(cell), allow_pickle=False) as arrays:
            (array,) = arrays.values()
    except (ValueError, AttributeError, TypeError, EOFError, OSError, BadZipFile) as error:
        raise SchemaError(f"{source}: a cell of {name!r} is no array in an .npz: {error}", column=name) from error
    return array  # type: ignore[no-any-return]


def _stack(name: str, field: SchemaField, arrays: list[npt.NDArray[Any]], source: str) -> npt.NDArray[Any]:
    if not arrays:
        return np.empty((0, *field.shape), _dtype(field))
    try:
        return np.stack(arrays)
    except ValueError as error:
        shapes = ", ".join(sorted({str(array.shape) for array in arrays}))
        raise SchemaError(
            f"{source}: {name!r} is declared with shape {field.shape}, but has arrays of several shapes: {shapes}",
            column=name,
            expected=str(field.shape),
            found=shapes,
        ) from error
