"""pandas frames to Spark DataFrames and back, through Arrow.

Batches travel inside binary cells, one cell a batch, so no Python object is made for a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from firesteel.core.errors import PlanError, SchemaError
from firesteel.data.shards.kinds import is_frame, listed, type_name

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import DataFrame

__all__ = [
    "arrow_types",
    "dress",
    "dtype_by_name",
    "one_schema",
    "pack_batches",
    "pack_frames",
    "plain_columns",
    "session_zone",
    "to_bytes",
    "unpack_batches",
    "unpack_frames",
]

_BATCH_ROWS = 10_000
"""Rows in one Arrow batch on its way to Spark: Spark's own default, and far from the 2 GB that a cell may hold."""


def session_zone(session: Any) -> str:
    """The time zone in which this session shows timestamps."""
    return str(session.conf.get("spark.sql.session.timeZone"))


def plain_columns(df: DataFrame) -> DataFrame:
    """The columns under names that are their positions, vectors as arrays.

    ``mapInArrow`` looks its columns up by name, and fails for one with a dot in it or for two of one name.
    """
    from pyspark.ml.functions import vector_to_array
    from pyspark.ml.linalg import VectorUDT
    from pyspark.mllib.linalg import VectorUDT as OldVectorUDT
    from pyspark.sql import functions as F  # noqa: N812 (everybody's name for it)

    fields = df.schema.fields
    numbered = df.toDF(*(str(position) for position in range(len(fields))))
    lists = {}
    for position, field in enumerate(fields):
        if isinstance(field.dataType, (VectorUDT, OldVectorUDT)):
            column = F.col(str(position))
            lists[str(position)] = F.when(column.isNotNull(), vector_to_array(column))  # which refuses null
    return numbered.withColumns(lists)


def dtype_by_name(dtype: Any, columns: Sequence[str]) -> Any:
    """``dtype`` with names for positions."""
    if not isinstance(dtype, dict):
        return dtype
    by_name = {}
    for key, kind in dtype.items():
        name = columns[key] if isinstance(key, int) and 0 <= key < len(columns) else key
        if name not in columns:
            raise PlanError(f"dtype: column {key!r} is not in current dataframe; there are: {listed(columns)}")
        by_name[name] = kind
    return by_name


def pack_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Each batch in a cell."""
    import pyarrow as pa

    for batch in batches:
        if batch.num_rows:
            yield pa.RecordBatch.from_arrays([pa.array([to_bytes(batch)], pa.binary())], names=["batch"])


def unpack_batches(cells: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches inside the cells."""
    import pyarrow as pa

    for batch in cells:
        for cell in batch.column(0):
            yield from pa.ipc.open_stream(cell.as_buffer())


def to_bytes(batch: pa.RecordBatch) -> bytes:
    """A batch as what a cell holds."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return, unused-ignore]


def unpack_frames(
    names: list[str], zone: str, shard_size: int | None, dress: Callable[[pd.DataFrame], Any], cells: Iterator[Any]
) -> Iterator[Any]:
    """Frames of ``shard_size`` rows, or of all rows of the partition, as ``dress`` leaves them."""
    import pyarrow as pa

    waiting: list[pa.RecordBatch] = []
    waiting_rows = 0
    for cell in cells:
        for batch in pa.ipc.open_stream(pa.py_buffer(cell[0])):
            waiting.append(batch)
            waiting_rows += batch.num_rows
        while shard_size is not None and waiting_rows >= shard_size:
            table = pa.Table.from_batches(waiting)
            yield dress(_to_frame(table.slice(0, shard_size), names, zone))
            waiting = table.slice(shard_size).to_batches()
            waiting_rows -= shard_size
    if waiting_rows:
        yield dress(_to_frame(pa.Table.from_batches(waiting), names, zone))


def dress(squeeze: bool, index_col: str | None, dtype: Any, frame: pd.DataFrame) -> Any:
    """A frame as the user asked for it: types, index, one column as a Series."""
    if dtype is not None:
        frame = frame.astype(dtype)
    if index_col is not None:
        frame = frame.set_index(index_col)
    return frame.iloc[:, 0] if squeeze and frame.shape[1] == 1 else frame


def _to_frame(table: pa.Table, names: list[str], zone: str) -> pd.DataFrame:
    """A frame that owns its memory, with pandas' usual dtypes."""
    import pandas as pd
    import pyarrow as pa

    series = []
    for name, column in zip(names, table.columns, strict=True):
        if pa.types.is_nested(column.type):
            cells = [_plain(cell, column.type) for cell in column.to_pylist()]
            values = pd.Series(cells, dtype=object)
        else:
            values = column.to_pandas(coerce_temporal_nanoseconds=True)
        if isinstance(values.dtype, pd.DatetimeTZDtype):
            values = values.dt.tz_convert(zone).dt.tz_localize(None)
        series.append(values.rename(name))
    # Joining columns copies them: Arrow's own buffers are read-only, and shards may be changed in place.
    return pd.concat(series, axis=1, copy=True)


def _plain(cell: Any, kind: pa.DataType) -> Any:
    """Arrow's Python value with dicts for maps, where it has lists of pairs."""
    import pyarrow as pa

    if cell is None or not pa.types.is_nested(kind):
        return cell
    if pa.types.is_map(kind):
        return {key: _plain(value, kind.item_type) for key, value in cell}
    if pa.types.is_struct(kind):
        return {field.name: _plain(cell[field.name], field.type) for field in kind}
    return [_plain(value, kind.value_type) for value in cell] if pa.types.is_nested(kind.value_type) else cell


def pack_frames(schema: pa.Schema, zone: str, partition: int, frames: Iterator[pd.DataFrame]) -> Iterator[tuple[bytes]]:
    """Frames as rows of one cell each, for Spark."""
    import pyarrow as pa

    for frame in frames:
        arrays = [_to_arrow(_column(frame, field.name), zone, field.type) for field in schema]
        for batch in pa.Table.from_arrays(arrays, schema=schema).to_batches(max_chunksize=_BATCH_ROWS):
            yield (to_bytes(batch),)


@dataclass(frozen=True)
class Found:
    """A column's type in one shard. ``is_blank``: of NaN alone, which says nothing: others may have texts or dates."""

    kind: pa.DataType
    is_blank: bool = False

    def with_other(self, other: Found) -> Found | None:
        """The type that holds both; ``None`` if there is none."""
        if self.is_blank or other.is_blank:
            return other if self.is_blank else self
        one = _one_type(self.kind, other.kind)
        return None if one is None else Found(one)


def arrow_types(zone: str, frame: Any) -> dict[str, Found] | SchemaError:
    """Each column's type as Spark will have it. An error is returned, not raised, so that the driver can raise it."""
    import pyarrow as pa

    if not is_frame(frame):
        return SchemaError(f"to_spark_df: found a shard of type {type_name(frame)} among Pandas DataFrames")
    names = [str(name) for name in frame.columns]
    if len(set(names)) < len(names):
        return SchemaError(f"to_spark_df: a shard has two columns of one name; its columns: {listed(names)}")
    types: dict[str, Found] = {}
    for name in names:
        column = _column(frame, name)
        try:
            is_blank = column.dtype.kind == "f" and bool(column.isna().all())
            types[name] = Found(_to_arrow(column, zone).type, is_blank)
        except (pa.ArrowException, TypeError, ValueError) as error:
            return SchemaError(
                f"to_spark_df: column {name!r} of dtype {column.dtype} has no single Arrow type: {error}",
                column=name,
                found=str(column.dtype),
            )
    return types


def _column(frame: pd.DataFrame, name: str) -> pd.Series:
    """The column whose name reads so: Spark's names are strings, pandas' need not be."""
    position = [str(other) for other in frame.columns].index(name)
    return frame.iloc[:, position]


def _to_arrow(column: pd.Series, zone: str, kind: pa.DataType | None = None) -> pa.Array:
    """The column as Spark takes it; NaN, NaT and None are null. Without ``kind`` its type is found from the values."""
    import pyarrow as pa

    if column.dtype == object and any(_is_deep(cell) for cell in column):
        # Arrow takes cells that are arrays of one dimension, and lists of any depth.
        cells = [cell.tolist() if _is_deep(cell) else cell for cell in column]
        column = column._constructor(cells, index=column.index, dtype=object)
    array = pa.array(column, from_pandas=True)
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_timestamp(array.type) and array.type.tz is None:
        # An hour that the clock shows twice, or never, has no right answer; these are Spark's own and the next one.
        local = array.to_pandas().dt.tz_localize(zone, ambiguous=False, nonexistent="shift_forward")
        array = pa.array(local, from_pandas=True)
    kind = _spark_type(array.type) if kind is None else kind
    if array.null_count == len(array):  # of which nothing but nulls can be made, and not every cast is there
        return pa.nulls(len(array), kind)
    # Not safe for times only: Spark has microseconds, pandas nanoseconds.
    return array.cast(kind, safe=not pa.types.is_temporal(kind))


def _is_deep(cell: Any) -> bool:
    return isinstance(cell, np.ndarray) and cell.ndim != 1


def _spark_type(kind: pa.DataType) -> pa.DataType:
    """The Arrow type that Spark has for this one: same values, sometimes wider."""
    import pyarrow as pa

    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC")
    if pa.types.is_duration(kind):
        return pa.duration("us")
    if pa.types.is_list(kind):
        return pa.list_(_spark_type(kind.value_type))
    wider = {
        pa.uint8(): pa.int16(),
        pa.uint16(): pa.int32(),
        pa.uint32(): pa.int64(),
        pa.float16(): pa.float32(),
        pa.date64(): pa.date32(),
    }
    return wider.get(kind, kind)


def one_schema(found: list[dict[str, Found] | SchemaError]) -> pa.Schema:
    """The schema that all shards have (driver)."""
    import pyarrow as pa

    merged: dict[str, Found] | None = None
    for types in found:
        if isinstance(types, SchemaError):
            raise types
        if merged is None:
            merged = dict(types)
        if types.keys() != merged.keys():
            raise SchemaError(
                f"to_spark_df: shards have other columns: {listed(merged)} and {listed(types)}",
                expected=listed(merged),
                found=listed(types),
            )
        for name, other in types.items():
            one = merged[name].with_other(other)
            if one is None:
                raise SchemaError(
                    f"to_spark_df: column {name!r} has other types: {merged[name].kind} and {other.kind}",
                    column=name,
                    expected=str(merged[name].kind),
                    found=str(other.kind),
                )
            merged[name] = one
    return pa.schema([(name, each.kind) for name, each in (merged or {}).items()])


def _one_type(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    import pyarrow as pa

    if left == right or pa.types.is_null(right):
        return left
    if pa.types.is_null(left):
        return right
    if pa.types.is_list(left) and pa.types.is_list(right):
        inner = _one_type(left.value_type, right.value_type)
        return None if inner is None else pa.list_(inner)
    if pa.types.is_decimal(left) and pa.types.is_decimal(right):
        scale = max(left.scale, right.scale)
        whole = max(left.precision - left.scale, right.precision - right.scale)
        return pa.decimal128(min(38, whole + scale), scale)
    if {pa.types.is_integer(left), pa.types.is_integer(right)} == {True, False} and pa.float64() in (left, right):
        return pa.float64()
    return None
