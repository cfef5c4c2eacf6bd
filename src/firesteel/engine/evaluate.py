"""Evaluate: every row once through a program, losses and metric states folded in the tasks, merged on the driver."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from firesteel.cluster.travel import pack as pack_object
from firesteel.core import registry
from firesteel.core.errors import PlanError
from firesteel.core.metrics import as_metrics
from firesteel.core.plan import Reduce
from firesteel.core.spec import Batch, rows_of
from firesteel.data.reading import Reading
from firesteel.data.sources import Frame, Local, Packed, Source
from firesteel.engine.answers import ANSWER_SCHEMA, Read, answer, collect, failed, local_frame, read_packed
from firesteel.engine.fold import Fold
from firesteel.engine.job import Stream
from firesteel.engine.local import open_stream
from firesteel.engine.scorer import Scorer, pieces

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = ["evaluate"]


def evaluate(
    spark: SparkSession, plan: Reduce, scorer: Scorer, source: Source, stream: Stream | None, *, world: int
) -> Fold:
    """Loss and metrics over all rows, or over the plan's steps. ``stream`` stands for a streamed ``source``."""
    metrics = as_metrics(plan.metrics)
    rows = None if plan.steps is None else plan.steps * plan.batch_size
    read: Read
    if isinstance(source, Frame):
        df = source.df.select(*source.reading.select(source.df))
        read = partial(_read_columns, source.reading)
    elif isinstance(source, Packed):
        df, read = source.df, read_packed
    elif isinstance(source, Local):
        df, read = local_frame(spark, source.batch, world)
    else:
        assert stream is not None
        df, read = spark.range(0, world, 1, world), partial(_read_stream, scorer.framework, stream, world, plan.steps)
        rows = None
    if rows is not None:
        df = df.limit(rows)  # in one partition; a packed block is at least a row
    work = pack_object((dict(metrics), read), "metrics or data")
    answers = df.mapInArrow(partial(_fold_task, scorer, work, rows), ANSWER_SCHEMA)
    whole = Fold.fresh(metrics).merge(data for _, data in collect(answers))
    if whole.rows == 0:
        raise PlanError("there are no rows to evaluate")
    return whole


def _fold_task(
    scorer: Scorer, work: bytes, limit: int | None, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    step = 0
    try:
        metrics, read = scorer.unpack(work)
        fold = Fold.fresh(metrics)
        living = None
        for batch in _up_to(limit, read(batches)):
            if living is None:  # a task without rows need not wake anybody
                living = scorer.wake()
                living.callbacks.call("before_val_epoch")
            for piece in pieces(batch, scorer.batch_size):
                living.callbacks.call("before_val_iter")
                fold.feed(living.replica, piece)
                living.callbacks.call("after_val_iter")
                step += 1
        if living is None:
            return
        living.callbacks.call("after_val_epoch")
        found = answer("", fold.to_bytes())
    except Exception as error:  # noqa: BLE001 - the driver raises it
        found = failed(error, step)
    yield found


def _up_to(limit: int | None, batches: Iterator[Batch]) -> Iterator[Batch]:
    for batch in batches:
        if limit is None:
            yield batch
        elif limit > 0:
            yield {name: values[:limit] for name, values in batch.items()}
            limit -= rows_of(batch)


def _read_columns(reading: Reading, batches: Iterator[pa.RecordBatch]) -> Iterator[Batch]:
    return (reading.batch(rows) for rows in batches if rows.num_rows)


def _read_stream(
    name: str, stream: Stream, world: int, steps: int | None, batches: Iterator[pa.RecordBatch]
) -> Iterator[Batch]:
    """This task's batches: every world-th one, or all of what a creator made for it."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    for _ in batches:
        pass  # one row to be awake for
    rank = context.partitionId()
    framework = registry.framework(name)
    source, size, is_own = open_stream(framework, stream, rank, world)
    for number, batch in enumerate(framework.stream(source, size, 0, 0)):
        if steps is not None and number >= steps:
            return
        if is_own or number % world == rank:
            yield batch
