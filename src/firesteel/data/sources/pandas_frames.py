"""pandas DataFrames on the driver, by the rules of Spark columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from firesteel.core.errors import SchemaError
from firesteel.core.spec import Batch
from firesteel.data.reading import Reading, make_reading
from firesteel.data.sources.kinds import Asked, Columns, Local

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

__all__ = ["is_pandas", "pandas_reading", "read_pandas", "take"]


def take(data: Any, asked: Asked) -> Local | None:
    """The frame's columns as arrays."""
    if not is_pandas(data):
        return None
    return Local(read_pandas(data, pandas_reading(data, asked.columns, asked.inputs(), asked)))


def is_pandas(data: object) -> bool:
    """A pandas DataFrame."""
    return any(cls.__module__.startswith("pandas.") and cls.__name__ == "DataFrame" for cls in type(data).__mro__)


def pandas_reading(
    data: pd.DataFrame, columns: Columns, inputs: tuple[int, int | None], asked: Asked | None = None
) -> Reading:
    """How frames like this one become batches, by the rules of Spark columns and what is ``asked`` besides."""
    import pyarrow as pa
    from pyspark.errors import PySparkTypeError
    from pyspark.sql.pandas.types import from_arrow_schema

    features, labels = columns.require()
    wanted = dict.fromkeys([*features, *labels, *([columns.weight] if columns.weight else [])])
    missing = [name for name in wanted if name not in data.columns]
    if missing:
        known = ", ".join(map(str, data.columns))
        raise SchemaError(f"column {missing[0]!r} does not exist; there are: {known}", column=missing[0])
    arrays = {name: _arrow(data[name], name) for name in wanted}
    try:
        schema = from_arrow_schema(pa.schema([(name, array.type) for name, array in arrays.items()]))
    except PySparkTypeError as error:
        raise SchemaError(f"a column does not become a tensor: {error}") from error
    if asked is None:
        return make_reading(schema, features, labels, columns.weight, inputs)
    more = (asked.takes_strings, asked.dtypes, asked.outputs)
    return make_reading(schema, features, labels, columns.weight, inputs, None, *more)


def read_pandas(data: pd.DataFrame, reading: Reading) -> Batch:
    """A frame's columns as a batch. Runs in a task, and on the driver."""
    import pyarrow as pa

    missing = [column.name for column in reading.columns if column.name not in data.columns]
    if missing:
        raise SchemaError(f"shards differ: one has no column {missing[0]!r}", column=missing[0])
    arrays = [_arrow(data[column.name], column.name) for column in reading.columns]
    return reading.batch(pa.RecordBatch.from_arrays(arrays, [f"c{index}" for index in range(len(arrays))]))


def _arrow(series: pd.Series[Any], name: str) -> pa.Array:
    import pyarrow as pa

    try:
        array = pa.array(_plain(series), from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise SchemaError(f"column {name!r} does not become a tensor: {error}", column=name) from error
    array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    if pa.types.is_unsigned_integer(array.type):  # types that Spark has not
        return array.cast(pa.int64())
    return array.cast(pa.float32()) if pa.types.is_float16(array.type) else array


def _plain(series: pd.Series[Any]) -> Any:
    """Cells that are arrays, as lists where Arrow would refuse them (more than one axis)."""
    if series.dtype == object and len(series) and isinstance(series.iloc[0], np.ndarray) and series.iloc[0].ndim > 1:
        return [cell.tolist() for cell in series]
    return series
