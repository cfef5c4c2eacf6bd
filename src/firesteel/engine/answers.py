"""What tasks of evaluate and predict send back: blocks of bytes, or their failure as a value.

A failure comes back as a row, not as a Spark error: nothing is retried, and the driver raises it with the replica's
own traceback.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from firesteel.cluster.failure import Failure
from firesteel.core.spec import Batch
from firesteel.data.packed import PACKED_SCHEMA, cut, pack, unpack

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["ANSWER_SCHEMA", "answer", "collect", "failed", "packed_frame", "read_packed"]

ANSWER_SCHEMA = "kind string, header string, data binary"


def packed_frame(spark: SparkSession, batch: Batch, at_least: int) -> DataFrame:
    """Local arrays as a DataFrame of packed blocks, in order, over the slots."""
    rows = [pack(piece) for piece in cut(batch, at_least=max(1, at_least))]
    return spark.createDataFrame(rows, PACKED_SCHEMA, verifySchema=False)


def read_packed(batches: Iterator[pa.RecordBatch]) -> Iterator[Batch]:
    """The blocks of ``packed_frame``. Runs in a task."""
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
