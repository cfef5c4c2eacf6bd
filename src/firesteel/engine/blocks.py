"""Blocks of columns through a program, and rows one by one: what a task of a ``Map`` by names does, and a driver's.

A block is a partition, or so many of its rows that follow each other. Rows by themselves are computed many at a time:
those whose cells have one shape go through the replica together.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from firesteel.core.columns import ColumnReplica
from firesteel.core.errors import SchemaError
from firesteel.core.plan import Map
from firesteel.core.spec import Batch, TensorSpec, rows_of
from firesteel.data.cells import Read, Scattered, batch_of_rows, by_shape, checked

__all__ = ["Values", "Work", "noted", "partition_of_task", "results", "trimmed", "work_of"]

Array = npt.NDArray[Any]
Values = list[Any]
"""One ``Array`` or ``Scattered`` for each output."""


@dataclass(frozen=True)
class Work:
    """What a task does with its rows: a ``Map`` without its program, which travels by itself."""

    reads: tuple[Read, ...]
    outputs: tuple[TensorSpec, ...]
    each: str
    batch_size: int

    @property
    def operation(self) -> str:
        """What the user called."""
        return f"map_{self.each}s"


def work_of(plan: Map, reads: Sequence[Read]) -> Work:
    """The work of a plan."""
    return Work(tuple(reads), plan.outputs, plan.each, plan.batch_size)


def results(
    replica: ColumnReplica, work: Work, batches: Iterator[pa.RecordBatch], partition: int | None = None
) -> Iterator[tuple[pa.RecordBatch, Values]]:
    """Rows as they came, and the outputs for them. The first columns are those that are read."""
    if work.each == "row":
        seen = 0
        for rows in batches:
            if rows.num_rows:
                yield rows, _by_row(replica, work, rows, seen, partition)
            seen += rows.num_rows
        return
    for pieces in _blocks(batches, work.batch_size):
        outputs = _of_block(replica, work, pieces, partition)
        count = sum(piece.num_rows for piece in pieces)
        with noted(work.operation, partition):
            values = [checked(outputs[spec.name], spec, rows=count) for spec in work.outputs]
        begin = 0
        for piece in pieces:
            yield piece, [value[begin : begin + piece.num_rows] for value in values]
            begin += piece.num_rows


def trimmed(
    replica: ColumnReplica, work: Work, batches: Iterator[pa.RecordBatch], partition: int | None = None
) -> Iterator[Values]:
    """The outputs of each block, of which there may be any number of rows."""
    for pieces in _blocks(batches, work.batch_size):
        outputs = _of_block(replica, work, pieces, partition)
        with noted(work.operation, partition):
            values = [_with_rows(outputs[spec.name], spec) for spec in work.outputs]
            counts = {spec.name: len(value) for spec, value in zip(work.outputs, values, strict=True)}
            if len(set(counts.values())) > 1:
                found = ", ".join(f"{name} {count}" for name, count in counts.items())
                raise SchemaError(f"the outputs of one block have different numbers of rows: {found}")
        yield values


def _with_rows(value: Any, spec: TensorSpec) -> Array:
    array = np.asarray(value)
    if array.ndim == 0:
        raise SchemaError(f"output {spec.name!r} has no dimension for rows", column=spec.name)
    return checked(array, spec, rows=len(array))


def _blocks(batches: Iterator[pa.RecordBatch], size: int) -> Iterator[list[pa.RecordBatch]]:
    """Record batches, or parts of them, that make a block."""
    pieces: list[pa.RecordBatch] = []
    missing = size
    for rows in batches:
        begin = 0
        while begin < rows.num_rows:
            piece = rows.slice(begin, missing) if size else rows
            pieces.append(piece)
            begin += piece.num_rows
            missing -= piece.num_rows
            if size and not missing:
                yield pieces
                pieces, missing = [], size
    if pieces:
        yield pieces


def _of_block(
    replica: ColumnReplica, work: Work, pieces: Sequence[pa.RecordBatch], partition: int | None
) -> dict[str, Any]:
    with noted(work.operation, partition):
        columns = [
            pa.chunked_array([piece.column(place) for piece in pieces]) if len(pieces) > 1 else pieces[0].column(place)
            for place in range(len(work.reads))
        ]
        return replica.forward(batch_of_rows(work.reads, columns))


def _by_row(replica: ColumnReplica, work: Work, rows: pa.RecordBatch, seen: int, partition: int | None) -> Values:
    """The outputs of each row; ``seen`` rows of the partition came before."""
    count = rows.num_rows
    columns = [rows.column(place) for place in range(len(work.reads))]
    if not work.reads:
        with noted(work.operation, partition):
            one = replica.forward({})
            return [
                checked(np.broadcast_to(one[spec.name], (count, *np.shape(one[spec.name]))), spec)
                for spec in work.outputs
            ]
    parts: list[tuple[Array, dict[str, Any]]] = []
    with noted(work.operation, partition):
        for places, batch in by_shape(work.reads, columns):
            where = np.arange(count) if places is None else places
            found = _called(replica, batch, where + seen)
            if places is None and all(isinstance(found[spec.name], np.ndarray) for spec in work.outputs):
                return [checked(found[spec.name], spec, rows=count) for spec in work.outputs]
            parts.append((where, found))
        return [_scattered(parts, spec) for spec in work.outputs]


def _called(replica: ColumnReplica, batch: Batch, numbers: Array) -> dict[str, Any]:
    """All rows through the replica; where that fails, one by one, for the number of the row whose error it is."""
    try:
        return replica.rows(batch)
    except Exception:
        for row in range(rows_of(batch)):
            try:
                replica.rows({name: values[row : row + 1] for name, values in batch.items()})
            except Exception as error:
                error.add_note(f"row {numbers[row]} of the partition")
                raise
        raise


def _scattered(parts: Sequence[tuple[Array, dict[str, Any]]], spec: TensorSpec) -> Scattered:
    places: list[Array] = []
    arrays: list[Array] = []
    for where, found in parts:
        value = found[spec.name]
        if isinstance(value, np.ndarray):
            places.append(where)
            arrays.append(checked(value, spec, rows=len(where)))
        else:  # one shape came in, many came out
            places += [where[row : row + 1] for row in range(len(where))]
            arrays += [checked(np.asarray(each)[None], spec) for each in value]
    return Scattered(tuple(places), tuple(arrays))


@contextlib.contextmanager
def noted(operation: str, partition: int | None) -> Iterator[None]:
    """Say in an error which operation and partition it came from."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in {operation}" if partition is None else f"in {operation}, partition {partition}")
        raise


def partition_of_task() -> int:
    """The number of the partition that this task works on."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else context.partitionId()
