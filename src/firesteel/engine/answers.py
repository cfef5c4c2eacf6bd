"""What tasks of evaluate and predict send back: blocks of bytes, or their failure as a value.

A failure comes back as a row, not as a Spark error: nothing is retried, and the driver raises it with the replica's
own traceback.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from firesteel.cluster.failure import Failure
from firesteel.cluster.parcel import Parcel
from firesteel.cluster.preflight import is_remote
from firesteel.core.spec import Batch, rows_of
from firesteel.data.packed import PACKED_SCHEMA, as_buffers, cut, pack, unpack

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["ANSWER_SCHEMA", "Read", "answer", "collect", "failed", "local_frame", "read_packed"]

ANSWER_SCHEMA = "kind string, header string, data binary"

Read = Callable[[Iterator["pa.RecordBatch"]], Iterator[Batch]]
"""A task's way from its record batches to batches."""


def local_frame(spark: SparkSession, batch: Batch, at_least: int) -> tuple[DataFrame, Read]:
    """Local arrays in blocks, in order, over the slots: a DataFrame, and how its tasks read their blocks."""
    pieces = cut(batch, at_least=max(1, at_least))
    if not is_remote(spark):
        return spark.createDataFrame([pack(piece) for piece in pieces], PACKED_SCHEMA, verifySchema=False), read_packed
    # A Connect server would hold such a DataFrame in its memory, several times over. The file of a parcel it does not.
    header, buffers = as_buffers(batch)
    ends = list(accumulate((rows_of(piece) for piece in pieces), initial=0))
    count = len(ends) - 1
    parcel = Parcel.of(spark, buffers)
    return spark.range(0, count, 1, max(1, count)), partial(_read_parcel, parcel, header, tuple(ends))


def _read_parcel(
    parcel: Parcel, header: str, ends: tuple[int, ...], batches: Iterator[pa.RecordBatch]
) -> Iterator[Batch]:
    """The blocks whose numbers are this task's rows."""
    whole: Batch | None = None
    for rows in batches:
        for number in rows.column(0).to_pylist():
            whole = unpack(header, parcel.view()) if whole is None else whole
            yield {name: values[ends[number] : ends[number + 1]] for name, values in whole.items()}


def read_packed(batches: Iterator[pa.RecordBatch]) -> Iterator[Batch]:
    """Packed blocks, as they lie in a DataFrame. Runs in a task."""
    for rows in batches:
        for header, data in zip(rows.column("header"), rows.column("data"), strict=True):
            yield unpack(header.as_py(), data.as_buffer())


def answer(header: str, data: bytes, kind: str = "rows") -> pa.RecordBatch:
    """One block on its way to the driver. Runs in a task."""
    import pyarrow as pa

    arrays = [pa.array([kind]), pa.array([header]), pa.array([data], pa.binary())]
    return pa.RecordBatch.from_arrays(arrays, ["kind", "header", "data"])


def failed(error: Exception, step: int) -> pa.RecordBatch:
    """An exception, after ``step`` batches, on its way to the driver. Runs in a task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    rank = 0 if context is None else context.partitionId()
    failure = Failure.of(error, rank=rank, host=socket.gethostname(), step=step)
    return answer(json.dumps(failure.to_json()), b"", "failure")


def collect(answers: DataFrame) -> list[tuple[str, bytes]]:
    """All blocks, in order. Raises the first failure among them."""
    rows: list[Any] = answers.collect()
    for row in rows:
        if row["kind"] == "failure":
            raise Failure.from_json(json.loads(row["header"])).error()
    return [(row["header"], bytes(row["data"])) for row in rows]
