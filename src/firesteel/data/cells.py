"""Cells of columns: blocks of one shape, rows sorted by shape, and results on their way back. No Python object per row.

Cells of a column may differ in shape. What a program is given has one shape, so rows are cut into groups whose cells
agree, by their offsets alone; what it gives for the groups is put back into the order of the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from firesteel.core.columns import shape_text
from firesteel.core.errors import PlanError, SchemaError
from firesteel.core.spec import Batch, TensorSpec
from firesteel.data.arrow import from_numpy, to_numpy
from firesteel.data.columns import TensorColumn, arrow_type

__all__ = [
    "Read",
    "Scattered",
    "batch_of_rows",
    "by_shape",
    "checked",
    "in_dtype",
    "lengths",
    "text_of",
    "to_arrow",
    "to_cells",
]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Read:
    """An input of a program, the column that it is read from, and the dtype that it wants."""

    name: str
    column: TensorColumn
    dtype: str

    def array(self, values: pa.Array | pa.ChunkedArray) -> Array:
        """These values as one array ``(rows, *cell)``, which nobody may write to: it may be Arrow's own memory.

        Raises:
            SchemaError: a null; cells of two shapes, or of another than declared; a value that the dtype cannot hold.
        """
        if isinstance(values, pa.ChunkedArray) and not self.column.cell:
            values = values.combine_chunks()  # so that also these are Arrow's memory
        array = to_numpy(values, self.column.reading())
        if self.dtype not in ("string", "binary"):
            array = in_dtype(array, self.dtype, f"column {self.column.name!r}", column=self.column.name)
        if array.flags.writeable:
            array.flags.writeable = False
        return array


def batch_of_rows(reads: Sequence[Read], columns: Sequence[pa.Array | pa.ChunkedArray]) -> Batch:
    """One block: every input as an array, from the columns at the same places. Runs in a task."""
    return {read.name: read.array(values) for read, values in zip(reads, columns, strict=False)}


def by_shape(reads: Sequence[Read], columns: Sequence[pa.Array]) -> Iterator[tuple[Array | None, Batch]]:
    """Rows in groups whose cells have one shape for each input: their places, and the arrays.

    Places are ``None`` when one group is all rows. Groups come in the order of their first rows.
    """
    every = [_shapes(read, values) for read, values in zip(reads, columns, strict=False)]
    found = [shapes for shapes in every if shapes is not None]
    if not found:
        yield None, batch_of_rows(reads, columns)
        return
    _, firsts, kinds = np.unique(np.concatenate(found, axis=1), axis=0, return_index=True, return_inverse=True)
    order = np.argsort(kinds.reshape(-1), kind="stable")
    ends = np.cumsum(np.bincount(kinds.reshape(-1)))
    for kind in np.argsort(firsts):
        places = order[ends[kind - 1] if kind else 0 : ends[kind]]
        taken = pa.array(places)
        yield places, batch_of_rows(reads, [values.take(taken) for values in columns])


def _shapes(read: Read, values: pa.Array) -> Array | None:
    """Each row's shape, ``(rows, axes)``; ``None`` where all are equal, or where an axis is declared."""
    if not read.column.cell or len(values) < 2:
        return None
    found = lengths(values, read.column)
    if (found == found[0]).all():
        return None
    for axis, size in enumerate(read.column.cell):
        other = found[:, axis] != (found[0, axis] if size is None else size)
        if size is not None and other.any():
            _raise_declared(read.column, tuple(int(each) for each in found[other.argmax()]))
    return found


def lengths(values: pa.Array, column: TensorColumn) -> Array:
    """The shape of each cell, ``(rows, axes)``; below a list of length zero a size is that of nothing: 0.

    Raises:
        SchemaError: a null, or a cell that is no rectangle.
    """
    while isinstance(values, pa.ExtensionArray):
        values = values.storage
    if values.null_count:
        _raise_null(column, "value")
    if column.is_vector:
        # A sparse vector says its size; of a dense one it is that of its values.
        dense = np.diff(values.field(3).offsets.to_numpy())
        sizes = values.field(1)
        is_said = sizes.is_valid().to_numpy(zero_copy_only=False)
        vectors: Array = np.where(is_said, sizes.fill_null(0).to_numpy(), dense)
        return vectors[:, None]
    rows = len(values)
    found = np.zeros((rows, len(column.cell)), np.int64)
    owner = np.arange(rows)  # the row that each list of this level belongs to
    for axis in range(len(column.cell)):
        if pa.types.is_fixed_size_list(values.type):
            sizes = np.full(len(values), values.type.list_size)
        else:
            sizes = np.diff(values.offsets.to_numpy()) if len(values) else np.zeros(0, np.int64)
        found[owner, axis] = sizes  # the last one of each row
        if (found[owner, axis] != sizes).any():
            place = int((found[owner, axis] != sizes).argmax())
            raise SchemaError(
                f"column {column.name!r} has a cell that is no rectangle: arrays of length {sizes[place]} and "
                f"{found[owner, axis][place]} at depth {axis + 1}",
                column=column.name,
            )
        values = values.flatten()
        if values.null_count:
            _raise_null(column, "inside an array")
        owner = np.repeat(owner, sizes)
    return found


def _raise_null(column: TensorColumn, what: str) -> None:
    raise SchemaError(
        f"column {column.name!r} has a null {what}; drop or fill such rows", column=column.name, found=f"a null {what}"
    )


def _raise_declared(column: TensorColumn, found: tuple[int, ...]) -> None:
    raise SchemaError(
        f"column {column.name!r} is declared to have cells of shape {shape_text(column.cell)}, but has one of "
        f"{shape_text(found)}",
        column=column.name,
        expected=shape_text(column.cell),
        found=shape_text(found),
    )


# --- results ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scattered:
    """Results of groups of rows: ``arrays[i]`` are those of the rows at ``places[i]``, all with one number of axes."""

    places: tuple[Array, ...]
    arrays: tuple[Array, ...]

    def __len__(self) -> int:
        return sum(len(places) for places in self.places)


def in_dtype(array: Array, dtype: str, what: str, *, column: str | None = None, is_narrow: bool = False) -> Array:
    """The array in a dtype of its own kind: integers of another width, or float32 as float64; else ``SchemaError``.

    ``is_narrow``: also float64 as float32, where no value becomes infinite by it.
    """
    found = array.dtype.name
    if found == dtype:
        return array
    if array.dtype.kind in "iu" and dtype.startswith("int"):
        limits = np.iinfo(dtype)
        if array.size and (array.max() > limits.max or array.min() < limits.min):
            wrong = array[(array > limits.max) | (array < limits.min)][0]
            raise SchemaError(
                f"{what} has the value {wrong}, which {dtype} cannot hold", column=column, expected=dtype, found=found
            )
        return array.astype(dtype)
    if (found, dtype) == ("float32", "float64"):
        return array.astype(dtype)
    if is_narrow and (found, dtype) == ("float64", "float32"):
        with np.errstate(over="ignore"):
            narrow = array.astype(dtype)
        wrong = np.isinf(narrow) & np.isfinite(array)
        if wrong.any():
            raise SchemaError(f"{what} has the value {array[wrong][0]}, which {dtype} cannot hold", column=column)
        return narrow
    raise SchemaError(
        f"{what} is {found}, but {dtype} was expected; cast it", column=column, expected=dtype, found=found
    )


def checked(value: Any, spec: TensorSpec, *, rows: int | None = None, is_narrow: bool = False) -> Array:
    """A program's output ``(rows, *cell)`` in its dtype, if it is what it was said to be, with ``rows`` rows.

    Raises:
        SchemaError: another number of rows, shape or dtype.
    """
    array = np.asarray(value)
    what = f"output {spec.name!r}"
    if rows is not None and (array.ndim == 0 or len(array) != rows):
        found = f"{len(array)} rows" if array.ndim else "no dimension for rows"
        raise SchemaError(
            f"{what} has {found} for a block of {rows} rows; a program that gives another number needs trim=True",
            column=spec.name,
            expected=f"{rows} rows",
            found=found,
        )
    cell = array.shape[1:]
    if len(cell) != len(spec.shape) or any(
        size is not None and size != length for size, length in zip(spec.shape, cell, strict=True)
    ):
        raise SchemaError(
            f"{what} has cells of shape {shape_text(cell)}, but {shape_text(spec.shape)} was expected",
            column=spec.name,
            expected=shape_text(spec.shape),
            found=shape_text(cell),
        )
    if spec.dtype in ("string", "binary"):
        if array.dtype.kind not in "OSUT":
            raise SchemaError(
                f"{what} is {array.dtype}, but {spec.dtype} was expected",
                column=spec.name,
                expected=spec.dtype,
                found=array.dtype.name,
            )
        return array
    return in_dtype(array, spec.dtype, what, column=spec.name, is_narrow=is_narrow)


def to_arrow(value: Array | Scattered, spec: TensorSpec) -> pa.Array:
    """One output as Spark's column of it, in the order of the rows."""
    kind = arrow_type(spec)
    if not isinstance(value, Scattered):
        return _flat(value, kind)
    if not value.places:
        return pa.nulls(0, kind)
    # One after the other, then each to its row: taking copies in C, whatever the lengths.
    whole = pa.concat_arrays([_flat(array, kind) for array in value.arrays])
    places = np.concatenate(value.places)
    order = np.empty(len(places), np.int64)
    order[places] = np.arange(len(places))
    return whole.take(pa.array(order))


def _flat(array: Array, kind: pa.DataType) -> pa.Array:
    try:
        return from_numpy(array, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:  # bytes that are no text, a number among strings
        raise PlanError(f"an output does not become a column of {kind}: {error}") from error


def to_cells(value: Array | Scattered, rows: int) -> Any:
    """One output as pandas holds it: numbers as they are, arrays as an object each."""
    if not isinstance(value, Scattered):
        if value.ndim == 1:
            return value
        value = Scattered((np.arange(rows),), (value,))
    is_number = bool(value.arrays) and value.arrays[0].ndim == 1
    cells = np.empty(rows, value.arrays[0].dtype if is_number else object)
    for places, array in zip(value.places, value.arrays, strict=True):
        if is_number:
            cells[places] = array
            continue
        for place, cell in zip(places, array, strict=True):
            cells[place] = cell
    return cells


def text_of(cells: Any) -> Any:
    """Strings where a framework, which knows bytes alone, gave these for what was declared to be text."""
    if isinstance(cells, bytes):
        return cells.decode()
    if not isinstance(cells, np.ndarray):
        return cells
    found = np.empty(cells.shape, object)
    for place in np.ndindex(cells.shape):
        found[place] = text_of(cells[place])
    return found
