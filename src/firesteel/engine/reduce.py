"""Reduce by names: each partition's rows folded in its task, the results folded on the way to the driver, in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from firesteel.core import registry
from firesteel.core.columns import ColumnReplica
from firesteel.core.errors import PlanError
from firesteel.core.plan import Reduce
from firesteel.core.spec import Batch
from firesteel.data.cells import Read, batch_of_rows, text_of, to_arrow
from firesteel.data.quoting import quoted
from firesteel.engine.answers import ANSWER_SCHEMA, answer, collect, failed
from firesteel.engine.blocks import noted, partition_of_task
from firesteel.engine.folding import Folding, folding_of, joined, most_rows, result_read
from firesteel.engine.scorer import Scorer, make_scorer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["reduce_columns", "reduce_frame"]

_SMALL_BYTES = 4096  # results of this size are folded on the driver, however many partitions there are
_BRANCHES = 32  # else so many of neighbouring partitions in a task first
_MOST_PARTS = 64  # results that wait to be folded


def reduce_frame(df: DataFrame, plan: Reduce, reads: Sequence[Read]) -> Batch:
    """The one row that is left of all rows, as arrays ``(1, *cell)``. Driver; runs a job.

    ``reads`` are the columns that are folded, under their own names.
    """
    scorer, folding = make_scorer(df.sparkSession, plan), folding_of(plan)
    chosen = df.select(*(quoted(read.column.name) for read in reads))
    chosen = chosen.toDF(*(f"c{place}" for place in range(len(reads))))
    if not folding.is_algebraic:
        chosen = chosen.coalesce(1)
    answers = chosen.mapInArrow(partial(_fold_task, scorer, folding, tuple(reads)), ANSWER_SCHEMA)
    if folding.is_algebraic and not _is_small(folding):
        answers = _in_a_tree(answers, scorer, folding)
    found = sorted((int(header), data) for header, data in collect(answers))
    parts = [_unpacked(folding, data) for _, data in found]
    if not parts:
        raise _empty(folding)
    replica: Any = registry.framework(plan.program.framework).replica(plan.program, "cpu", 0)
    return _as_declared(folding, folding.fold(replica, joined(parts), is_raw=False))


def reduce_columns(plan: Reduce, reads: Sequence[Read], columns: Sequence[pa.Array]) -> Batch:
    """The same for columns that are here."""
    replica: Any = registry.framework(plan.program.framework).replica(plan.program, "cpu", 0)
    rows = pa.RecordBatch.from_arrays(list(columns), [read.name for read in reads])
    folding = folding_of(plan)
    with noted(f"reduce_{folding.each}s", None):
        found = _fold_batches(replica, folding, reads, iter([rows]))
    if found is None:
        raise _empty(folding)
    return _as_declared(folding, found)


def _as_declared(folding: Folding, row: Batch) -> Batch:
    """Text as text."""
    text = {spec.name for spec in folding.outputs if spec.dtype == "string"}
    return {name: text_of(values) if name in text else values for name, values in row.items()}


def _empty(folding: Folding) -> PlanError:
    return PlanError(f"reduce_{folding.each}s needs at least one row, and the DataFrame is empty")


def _is_small(folding: Folding) -> bool:
    return all(spec.is_known and spec.dtype not in ("string", "binary") for spec in folding.outputs) and (
        sum(spec.row_bytes for spec in folding.outputs) <= _SMALL_BYTES
    )


def _in_a_tree(answers: DataFrame, scorer: Scorer, folding: Folding) -> DataFrame:
    """Results of neighbouring partitions folded in tasks. Their places, in the headers, keep the order."""
    from pyspark.sql.functions import col, floor

    branch = floor(col("header").try_cast("bigint") / _BRANCHES)
    return answers.repartition(_BRANCHES, branch).mapInArrow(partial(_branch_task, scorer, folding), ANSWER_SCHEMA)


# --- in the tasks -----------------------------------------------------------------------------------------------------


def _fold_task(
    scorer: Scorer, folding: Folding, reads: tuple[Read, ...], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    try:
        filled = (rows for rows in batches if rows.num_rows)
        first = next(filled, None)
        if first is None:
            return  # an empty partition has no result, and need not wake anybody
        with noted(f"reduce_{folding.each}s", partition_of_task()):
            found = _fold_batches(scorer.wake().replica, folding, reads, _again(first, filled))
        assert found is not None
        answered = _answer(folding, partition_of_task(), found)
    except Exception as error:  # noqa: BLE001 - the driver raises it
        answered = failed(error, 0)
    yield answered


def _branch_task(scorer: Scorer, folding: Folding, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    branches: dict[int, list[tuple[int, bytes]]] = {}
    failures = []
    for rows in batches:
        for kind, header, data in zip(*(column.to_pylist() for column in rows.columns), strict=True):
            if kind == "failure":
                failures.append(pa.RecordBatch.from_pylist([{"kind": kind, "header": header, "data": data}]))
                continue
            branches.setdefault(int(header) // _BRANCHES, []).append((int(header), data))
    yield from failures[:1]
    for parts in branches.values():
        try:
            ordered = [_unpacked(folding, data) for _, data in sorted(parts)]
            with noted(f"reduce_{folding.each}s", None):
                found = folding.fold(scorer.wake().replica, joined(ordered), is_raw=False)
            answered = _answer(folding, parts[0][0], found)
        except Exception as error:  # noqa: BLE001 - the driver raises it
            answered = failed(error, 0)
        yield answered


def _answer(folding: Folding, place: int, rows: Batch) -> pa.RecordBatch:
    """One row, as the stream of a record batch, with its partition's number."""
    arrays = [to_arrow(rows[spec.name], spec) for spec in folding.outputs]
    packed = pa.RecordBatch.from_arrays(arrays, list(folding.names))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, packed.schema) as stream:
        stream.write_batch(packed)
    return answer(str(place), sink.getvalue().to_pybytes())


def _unpacked(folding: Folding, data: bytes) -> Batch:
    with pa.ipc.open_stream(data) as stream:
        rows = stream.read_next_batch()
    return batch_of_rows([result_read(spec) for spec in folding.outputs], rows.columns)


def _again(first: pa.RecordBatch, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from batches


def _fold_batches(
    replica: ColumnReplica, folding: Folding, reads: Sequence[Read], batches: Iterator[pa.RecordBatch]
) -> Batch | None:
    """All rows as one; ``None`` where there are none. Holds a block of rows, and a few results."""
    waiting: list[Batch] = []
    parts: list[Batch] = []
    count = 0
    for rows in batches:
        if not rows.num_rows:
            continue
        waiting.append(batch_of_rows(reads, rows.columns))
        count += rows.num_rows
        if folding.is_algebraic and count >= most_rows(waiting[0]):
            parts.append(folding.fold(replica, joined(waiting), is_raw=True))
            waiting, count = [], 0
        if len(parts) >= _MOST_PARTS:
            parts = [folding.fold(replica, joined(parts), is_raw=False)]
    if waiting:
        parts.append(folding.fold(replica, joined(waiting), is_raw=True))
    return folding.fold(replica, joined(parts), is_raw=False) if parts else None
