"""Columns of a pandas frame as Arrow's, and back: what Spark would have sent to a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from firesteel.core.errors import SchemaError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["arrow_of"]


def arrow_of(series: pd.Series, name: str) -> pa.Array:
    """The values of a column. NaN is a number; ``None`` and ``pd.NA`` are null.

    Raises:
        SchemaError: the cells have no one type.
    """
    values: Any = series
    if isinstance(series.dtype, np.dtype):
        values = series.to_numpy()  # a pandas series would have its NaN taken for nulls
        if values.dtype.kind == "O":
            values = [_plain(cell) for cell in values]
    try:
        found = pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise SchemaError(f"column {name!r} has cells of no one type: {error}", column=name) from error
    whole = found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found
    return whole if (kind := _small(whole.type)) == whole.type else whole.cast(kind)


def _small(kind: pa.DataType) -> pa.DataType:
    """The type that Spark would have sent: pandas has some with wide offsets, and categories."""
    if pa.types.is_dictionary(kind):
        return _small(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_small(kind.value_type))
    return kind


def _plain(cell: Any) -> Any:
    """A cell that Arrow knows: of arrays only those of one axis."""
    if isinstance(cell, np.ndarray):
        return cell if cell.ndim == 1 else cell.tolist() if cell.ndim == 0 else [_plain(part) for part in cell]
    if isinstance(cell, (list, tuple)):
        return [_plain(part) for part in cell]
    return cell
