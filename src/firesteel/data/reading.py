"""Which columns of a DataFrame make which tensors of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from firesteel.core.errors import SchemaError
from firesteel.core.spec import Batch
from firesteel.data.arrow import Column, to_numpy
from firesteel.data.frame import columns_of, path_of
from firesteel.data.quoting import quoted
from firesteel.data.ragged import Ragged
from firesteel.data.spool import heap_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from firesteel.data.image.column import Images

__all__ = ["Reading", "Tensor", "check_inputs", "check_weights", "entry", "make_reading"]

_CELLS = ("bytes", "string")


@dataclass(frozen=True)
class Tensor:
    """One tensor of a batch, and the columns it is made of: several are joined along the last axis."""

    name: str
    columns: tuple[Column, ...]
    shape: tuple[int, ...] | None = None
    """A row's shape as the model has it: rows of as many values are brought into it."""

    def join(self, arrays: Sequence[Any]) -> Any:
        """The columns' arrays as one. Scalars count as vectors of length 1."""
        joined = self._joined(arrays)
        if self.shape is None or not isinstance(joined, np.ndarray) or joined.shape[1:] == self.shape:
            return joined
        if int(np.prod(joined.shape[1:])) != int(np.prod(self.shape)):
            if not len(joined):
                return np.zeros((0, *self.shape), joined.dtype)
            names = ", ".join(repr(column.name) for column in self.columns)
            raise SchemaError(
                f"rows of {names} have shape {joined.shape[1:]}, which does not become the model's {self.shape}",
                column=self.columns[0].name,
                expected=str(self.shape),
                found=str(joined.shape[1:]),
            )
        return joined.reshape(len(joined), *self.shape)

    def _joined(self, arrays: Sequence[Any]) -> Any:
        if len(arrays) == 1:
            return arrays[0]
        parts = [array[:, None] if array.ndim == 1 else array for array in arrays]
        if len({part.shape[:-1] for part in parts}) > 1:
            shapes = ", ".join(f"{c.name} {p.shape[1:]}" for c, p in zip(self.columns, parts, strict=True))
            raise SchemaError(f"columns that are joined into one input must have equal leading dimensions: {shapes}")
        return np.concatenate(parts, axis=-1)


@dataclass(frozen=True)
class Reading:
    """How a task turns record batches into batches. Columns are read by place: they are selected in this order."""

    tensors: tuple[Tensor, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors' names."""
        return tuple(tensor.name for tensor in self.tensors)

    @property
    def columns(self) -> tuple[Column, ...]:
        """All columns, in the order in which they are selected."""
        return tuple(column for tensor in self.tensors for column in tensor.columns)

    def in_columns(self, error: SchemaError) -> SchemaError:
        """The error about the user's column, where it names the tensor that was made of it."""
        by_tensor = {tensor.name: ", ".join(column.name for column in tensor.columns) for tensor in self.tensors}
        name = by_tensor.get(error.column or "")
        if name is None or error.column in {column.name for column in self.columns}:
            return error
        text = str(error).replace(repr(error.column), repr(name))
        return SchemaError(text, column=name, expected=error.expected, found=error.found)

    def select(self, df: DataFrame) -> list[Any]:
        """Spark expressions for the columns, renamed ``c0``, ``c1`` and so on."""
        paths = [path_of(df.schema, column.name) for column in self.columns]
        return [
            entry(quoted(*path), column.key).alias(f"c{index}")
            for index, (path, column) in enumerate(zip(paths, self.columns, strict=True))
        ]

    @property
    def images(self) -> dict[str, Images]:
        """The tensors that are images, and how they are decoded."""
        return {tensor.name: first.images for tensor in self.tensors if (first := tensor.columns[0]).images is not None}

    @property
    def files(self) -> tuple[str, ...]:
        """The files that these rows take in a spool."""
        heaps = [tensor.name for tensor in self.tensors if tensor.columns[0].kind in (*_CELLS, "image")]
        return (*self.names, *map(heap_of, heaps))

    def batch(self, rows: pa.RecordBatch, places: Sequence[int] | None = None, *, is_encoded: bool = False) -> Batch:
        """The tensors of these rows. Runs in a task.

        ``places`` are those of the columns, the first ones by default; with ``is_encoded`` images, strings and bytes
        stay as they are, ``Ragged``.
        """
        batch: Batch = {}
        at = iter(range(len(self.columns)) if places is None else places)
        for tensor in self.tensors:
            arrays = [_array(rows.column(next(at)), column, is_encoded) for column in tensor.columns]
            batch[tensor.name] = tensor.join(arrays)
        if "w" in batch:
            check_weights(batch["w"], self.tensors[-1].columns[0].name)
        return batch


def _array(values: pa.Array, column: Column, is_encoded: bool) -> Any:
    if column.images is None:
        is_plain = column.depth == 0 and column.kind in _CELLS
        return Ragged.of(values, column.name) if is_encoded and is_plain else to_numpy(values, column)
    cells = Ragged.of(values, column.name)
    return cells if is_encoded else column.images.decode(cells.cells())


def entry(name: str, key: str | None) -> Any:
    """The Spark column of this (quoted) name, or the entry ``key`` of a map in it."""
    from pyspark.sql.functions import col

    return col(name) if key is None else col(name).getItem(key)


def check_inputs(count: int, inputs: tuple[int, int | None], found: str) -> None:
    """Whether ``count`` tensors can be a model's ``inputs`` (at least, at most); ``found`` says what they are."""
    least, most = inputs
    if count < least or (most is not None and count > most):
        takes = str(least) if least == most else f"{least} to {most or 'any number of'}"
        raise SchemaError(
            f"the model takes {takes} inputs, but there are {count} {found}",
            expected=f"{takes} inputs",
            found=f"{count} {found}",
        )


def check_weights(weights: Any, name: str) -> None:
    """Row weights must not be negative."""
    if len(weights) and weights.min() < 0:
        raise SchemaError(f"column {name!r} has a negative row weight: {weights.min()}", column=name)


def make_reading(
    schema: StructType,
    features: Sequence[str],
    labels: Sequence[str] = (),
    weight: str | None = None,
    inputs: tuple[int, int | None] = (1, 1),
    keys: Callable[[str], Sequence[str]] | None = None,
    takes_strings: bool = False,
    dtypes: Mapping[str, str] | None = None,
    outputs: int | None = None,
) -> Reading:
    """Match columns to a model that takes ``inputs`` (at least, at most); ``SchemaError`` where they do not fit.

    ``keys`` tells the keys of a map column, which becomes a dict of tensors; ``takes_strings`` whether the model can be
    fed strings and bytes, ``dtypes`` which numbers it wants, by tensor, where not the default ones; ``outputs`` how
    many outputs the labels are for, where that is known: several columns of one are joined.
    """
    columns = columns_of(schema, features, role="feature", allow_strings=takes_strings)
    tensors: list[Tensor]
    if len(columns) == 1 and columns[0].kind == "map" and keys is not None:
        (column,) = columns
        kind = "array" if column.depth else "scalar"
        entries = {key: replace(column, kind=kind, key=key) for key in keys(column.name)}
        tensors = [Tensor(f"x.{key}", (each,)) for key, each in entries.items()]
    elif len(columns) > 1 and inputs[0] <= 1 and inputs[1] is not None and len(columns) > inputs[1]:
        if any(column.images for column in columns):
            names = ", ".join(column.name for column in columns)
            raise SchemaError(f"images are not joined with other columns into one input: {names}; the model takes one")
        tensors = [Tensor("x0", columns)]
    else:
        check_inputs(len(columns), inputs, f"feature columns: {', '.join(features)}")
        tensors = [Tensor(f"x{index}", (column,)) for index, column in enumerate(columns)]
    wanted = columns_of(schema, labels, role="label", allow_strings=takes_strings)
    if outputs == 1 and len(wanted) > 1:
        tensors.append(Tensor("y0", wanted))
    else:
        tensors += [Tensor(f"y{index}", (column,)) for index, column in enumerate(wanted)]
    if weight is not None:
        (column,) = columns_of(schema, [weight], role="sample weight")
        if column.kind != "scalar":
            raise SchemaError(f"column {weight!r} must hold one number per row, to be used as a weight", column=weight)
        tensors.append(Tensor("w", (Column(column.name, "scalar", "float32"),)))
    for column in (c for tensor in tensors for c in tensor.columns):
        if column.kind == "map" or (column.kind in _CELLS and not takes_strings):
            raise SchemaError(
                f"column {column.name!r} holds {column.kind}, which this model cannot be fed; "
                f"cast it to numbers, or mark a binary column with as_tensor_column (firesteel.data.frame) or "
                f"image_column (firesteel.data.image)",
                column=column.name,
                found=column.kind,
            )
    return Reading(tuple(_typed(tensor, (dtypes or {}).get(tensor.name)) for tensor in tensors))


def _typed(tensor: Tensor, dtype: str | None) -> Tensor:
    """The tensor with numbers of this dtype."""
    if dtype is None or np.dtype(dtype).kind not in "biuf":
        return tensor
    is_number = [column.kind in ("scalar", "array", "vector") and column.dtype != "object" for column in tensor.columns]
    columns = [replace(c, dtype=dtype) if is_one else c for c, is_one in zip(tensor.columns, is_number, strict=True)]
    return Tensor(tensor.name, tuple(columns))
