"""Verbs on rows that are not in a DataFrame: arrays on the driver, streams, shards. And evaluate, for all kinds.

Rows travel in packed blocks. A task's failure comes back as a row, not as a Spark error: nothing is retried, and
the driver raises it with the replica's own traceback.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from firesteel.cluster.failure import Failure
from firesteel.cluster.travel import pack as pack_object
from firesteel.core import registry
from firesteel.core.errors import PlanError
from firesteel.core.metrics import Metric
from firesteel.core.spec import Batch, rows_of
from firesteel.data.packed import PACKED_SCHEMA, cut, pack, unpack
from firesteel.data.reading import Reading
from firesteel.data.shards import XShards
from firesteel.data.sources import Frame, Local, Packed, Source
from firesteel.engine.fold import Fold
from firesteel.engine.job import Stream
from firesteel.engine.score import Scorer

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = ["contained", "evaluate", "score_arrays", "score_shards", "score_stream"]

_ANSWER_SCHEMA = "partition int, kind string, header string, data binary"


# --- evaluate ---------------------------------------------------------------------------------------------------------


def evaluate(
    spark: SparkSession,
    scorer: Scorer,
    source: Source,
    stream: Stream | None,
    metrics: Mapping[str, Metric],
    *,
    world: int,
    steps: int | None,
) -> Fold:
    """Every row once through the program; losses and metric states merged on the driver."""
    rows = None if steps is None else steps * scorer.batch_size
    read: Callable[..., Iterator[Batch]]
    if isinstance(source, Frame):
        df = source.df.select(*source.reading.select(source.df))
        df = df if rows is None else df.limit(rows)
        read = partial(_read_columns, source.reading)
    elif isinstance(source, Packed):
        df, read = source.df, _read_packed
    elif isinstance(source, Local):
        batch = source.batch if rows is None else {k: v[:rows] for k, v in source.batch.items()}
        df, read = _spread(spark, batch, world), _read_packed
    else:
        assert stream is not None
        df, read = spark.range(0, world, 1, world), partial(_read_stream, scorer.framework, stream, world, steps)
    work = pack_object((dict(metrics), read), "metrics or data")
    answers = df.mapInArrow(partial(_fold_task, scorer, work), _ANSWER_SCHEMA).collect()
    _raise_failure(answers)
    whole = Fold.fresh(metrics).merge(bytes(answer["data"]) for answer in answers)
    if whole.rows == 0:
        raise PlanError("there are no rows to evaluate")
    return whole


def _fold_task(scorer: Scorer, work: bytes, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    replica = None
    failure = None
    try:
        metrics, read = scorer.unpack(work)
        fold = Fold.fresh(metrics)
        for batch in read(batches):
            replica = replica or scorer.replica()
            for piece in _pieces(batch, scorer.batch_size):
                fold.feed(replica, piece)
    except Exception as error:  # noqa: BLE001 - the driver raises it
        failure = error
    if failure is not None:
        yield _answer("failure", json.dumps(_failure(failure).to_json()), b"")
    elif replica is not None:
        yield _answer("fold", "", fold.to_bytes())


def _pieces(batch: Batch, size: int) -> Iterator[Batch]:
    for begin in range(0, rows_of(batch), size):
        yield {name: values[begin : begin + size] for name, values in batch.items()}


def _read_columns(reading: Reading, batches: Iterator[pa.RecordBatch]) -> Iterator[Batch]:
    return (reading.batch(rows) for rows in batches if rows.num_rows)


def _read_packed(batches: Iterator[pa.RecordBatch]) -> Iterator[Batch]:
    for rows in batches:
        for header, data in zip(rows.column("header"), rows.column("data"), strict=True):
            yield unpack(header.as_py(), data.as_buffer())


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
    source, is_own = _open_stream(framework, stream, rank, world)
    for number, batch in enumerate(framework.stream(source, stream.batch_size, 0, 0)):
        if steps is not None and number >= steps:
            return
        if is_own or number % world == rank:
            yield batch


def _open_stream(framework: Any, stream: Stream, rank: int, world: int) -> tuple[Any, bool]:
    source = stream.source
    if stream.is_creator:
        config = dict(stream.config)
        if not stream.auto_shard:
            config |= {"rank": rank, "num_shards": world}
        source = source(config, stream.batch_size)
    return source, framework.is_sharded(source) or not stream.auto_shard


# --- predict ----------------------------------------------------------------------------------------------------------


def score_arrays(spark: SparkSession, scorer: Scorer, batch: Batch, world: int) -> dict[str, Any]:
    """Outputs for local arrays, in their order."""
    if rows_of(batch) == 0:
        raise PlanError("there are no rows to predict")
    df = _spread(spark, batch, world)
    answers = df.mapInArrow(partial(_score_task, scorer), _ANSWER_SCHEMA).collect()
    _raise_failure(answers)
    flat = [unpack(answer["header"], bytes(answer["data"])) for answer in answers]
    return _nested({name: np.concatenate([part[name] for part in flat]) for name in flat[0]})


def _score_task(scorer: Scorer, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    try:
        for batch in _read_packed(batches):
            header, data = pack(_flat(scorer.open()(batch)))
            yield _answer("rows", header, data)
    except Exception as error:  # noqa: BLE001 - the driver raises it
        yield _answer("failure", json.dumps(_failure(error).to_json()), b"")


def score_shards(
    shards: XShards, scorer: Scorer, read: Callable[[Any], Batch], finish: Callable[[Any, dict[str, Any]], Any]
) -> XShards:
    """Lazily score each shard: ``read`` gives its rows, ``finish(shard, outputs)`` the shard that is returned."""
    return shards._map_partitions(partial(_score_each, scorer, read, finish))


def _score_each(
    scorer: Scorer,
    read: Callable[[Any], Batch],
    finish: Callable[[Any, dict[str, Any]], Any],
    partition: int,
    shards: Iterator[Any],
) -> Iterator[Any]:
    for shard in shards:
        yield finish(shard, scorer.open()(read(shard)))


def score_stream(spark: SparkSession, scorer: Scorer, stream: Stream, steps: int | None) -> XShards:
    """Lazily score a loader's or creator's batches, in their order: one shard each, in one partition.

    One partition, for only its end tells how many batches there are.
    """
    work = pack_object((stream, steps), "the data")
    return XShards(spark.sparkContext.parallelize([0], 1).mapPartitions(partial(_score_streamed, scorer, work)))


def _score_streamed(scorer: Scorer, work: bytes, _: Iterator[int]) -> Iterator[Any]:
    stream, steps = scorer.unpack(work)
    score = scorer.open()
    framework: Any = registry.framework(scorer.framework)
    source, _is_own = _open_stream(framework, stream, 0, 1)
    batches = framework.stream(source, stream.batch_size, 0, 0, has_labels=False)
    for number, batch in enumerate(batches):
        if steps is not None and number >= steps:
            return
        yield {"prediction": contained(score(batch))}


def contained(outputs: dict[str, Any]) -> Any:
    """Outputs as users get them: one array alone, several in a list, named ones in a dict."""
    if list(outputs) == ["prediction"]:
        return outputs["prediction"]
    if all(name == f"_{index}" for index, name in enumerate(outputs)):
        return list(outputs.values())
    return outputs


# --- blocks -----------------------------------------------------------------------------------------------------------


def _spread(spark: SparkSession, batch: Batch, world: int) -> Any:
    """Local arrays as a DataFrame of packed blocks, in order, over the slots."""
    rows = [pack(piece) for piece in cut(batch, at_least=max(1, world))]
    return spark.createDataFrame(rows, PACKED_SCHEMA, verifySchema=False)


def _answer(kind: str, header: str, data: bytes) -> pa.RecordBatch:
    import pyarrow as pa
    from pyspark import TaskContext

    context = TaskContext.get()
    partition = 0 if context is None else context.partitionId()
    return pa.RecordBatch.from_arrays(
        [pa.array([partition], pa.int32()), pa.array([kind]), pa.array([header]), pa.array([data], pa.binary())],
        ["partition", "kind", "header", "data"],
    )


def _failure(error: Exception) -> Failure:
    from pyspark import TaskContext

    context = TaskContext.get()
    return Failure.of(error, rank=0 if context is None else context.partitionId(), host=socket.gethostname())


def _raise_failure(answers: list[Any]) -> None:
    for answer in answers:
        if answer["kind"] == "failure":
            raise Failure.from_json(json.loads(answer["header"])).error()


def _flat(outputs: dict[str, Any], prefix: str = "") -> Batch:
    flat: Batch = {}
    for name, value in outputs.items():
        flat |= _flat(value, f"{prefix}{name}\x1f") if isinstance(value, dict) else {prefix + name: value}
    return flat


def _nested(flat: Batch) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for path, value in flat.items():
        *parents, name = path.split("\x1f")
        at = nested
        for parent in parents:
            at = at.setdefault(parent, {})
        at[name] = value
    return nested
