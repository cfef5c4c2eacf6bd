"""Shards from a Spark DataFrame over files whose columns have Spark's types: Parquet, and whatever Spark parsed.

pandas has no null among integers and booleans: such a column is float64 or object where a null is in the shard. It
is so in all shards here, if a null is in any.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from firesteel.core.errors import PlanError
from firesteel.data.quoting import quoted
from firesteel.data.shards import XShards, frames
from firesteel.data.tables.choice import Choice
from firesteel.data.tables.pieces import in_order, measure, plan, said, spark_errors

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import DataFrame

__all__ = ["to_shards"]


def to_shards(
    reader: str, df: DataFrame, names: Sequence[str], choice: Choice, slots: int, nanos: Sequence[str] = ()
) -> XShards:
    """The chosen columns of a DataFrame that reads files, in order of the files' names. Runs a job to count rows.

    Args:
        reader: for messages.
        df: the DataFrame.
        names: its columns, in the order in which ``choice`` has them.
        choice: which of them, under which names.
        slots: how many tasks run at the same time.
        nanos: columns of nanoseconds since 1970, which are times: Spark has none as fine as that.
    """
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import BooleanType, IntegralType

    fields = [df.schema[names[position]] for position in choice.positions]
    columns = [F.col(quoted(field.name)) for field in fields]
    times = [number for number, field in enumerate(fields) if field.name in nanos]
    unsure = [
        number
        for number, field in enumerate(fields)
        if isinstance(field.dataType, (BooleanType, IntegralType)) and number not in times
    ]
    try:
        found = measure(df, [columns[number] for number in unsure])
    except spark_errors() as error:
        raise PlanError(f"{reader}: {said(error)}") from error
    has_nulls = [
        number for place, number in enumerate(unsure) if any(row["rows"] > row[f"count {place}"] for row in found)
    ]
    objects = []
    for number in has_nulls:
        if isinstance(fields[number].dataType, BooleanType):
            objects.append(choice.chosen[number])
        else:
            columns[number] = columns[number].cast("double")
    chosen = df.select(*(column.alias(name) for column, name in zip(columns, choice.chosen, strict=True)))
    finish = partial(_finish, choice, objects, [choice.chosen[number] for number in times])
    if not found:
        return _nothing(chosen, finish)
    placed = plan(found, chosen.rdd.getNumPartitions(), slots)
    zone = frames.session_zone(df.sparkSession)
    cells = in_order(df, columns, placed, partial(_to_cell, times))
    return XShards(cells.mapPartitions(partial(_frames, choice.chosen, zone, finish)))


def _nothing(df: DataFrame, finish: Any) -> XShards:
    """One shard without rows, so that its columns can be seen."""
    return XShards(df.sparkSession.sparkContext.parallelize([finish(df.limit(0).toPandas())], 1))


def _finish(choice: Choice, objects: Sequence[str], times: Sequence[str], frame: pd.DataFrame) -> Any:
    """A frame as the user asked for it (task)."""
    frame = frame.astype({**dict.fromkeys(objects, object), **dict.fromkeys(times, "datetime64[ns]")})
    return frames.dress(choice.squeeze, choice.index_col, choice.dtype, frame)


def _to_cell(times: Sequence[int], batch: pa.RecordBatch) -> bytes:
    import pyarrow as pa

    for number in times:
        moments = batch.column(number).cast(pa.timestamp("ns"))
        batch = batch.set_column(number, batch.schema.names[number], moments)
    return frames.to_bytes(batch)


def _frames(names: list[str], zone: str, finish: Any, cells: Iterable[tuple[int, Any]]) -> Iterator[Any]:
    return frames.unpack_frames(names, zone, None, finish, ((cell,) for _, cell in cells))
