"""Predict for rows that are not in a DataFrame: arrays on the driver, shards, streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from firesteel.cluster.preflight import is_remote
from firesteel.cluster.travel import pack as pack_object
from firesteel.core import registry
from firesteel.core.errors import PlanError, UnsupportedError
from firesteel.core.spec import Batch, rows_of
from firesteel.data.packed import pack, unpack
from firesteel.data.shards import XShards
from firesteel.data.sources import Columns, is_pandas, pandas_reading, read_pandas, shard_batch
from firesteel.data.sources.rdds import as_shards
from firesteel.engine.answers import ANSWER_SCHEMA, Read, answer, collect, failed, local_frame
from firesteel.engine.feeds import create
from firesteel.engine.job import Stream
from firesteel.engine.outputs import add_columns, contained, finish_shard
from firesteel.engine.scorer import Outputs, Scorer, first_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import RDD
    from pyspark.sql import SparkSession

__all__ = ["open_stream", "score_arrays", "score_rows", "score_shards", "score_stream"]


# --- arrays -----------------------------------------------------------------------------------------------------------


def score_arrays(spark: SparkSession, scorer: Scorer, batch: Batch, world: int) -> Outputs:
    """Outputs for local arrays, in their order."""
    if rows_of(batch) == 0:
        return scorer.try_out(batch)
    frame, read = local_frame(spark, batch, world)
    answers = frame.mapInArrow(partial(_score_task, scorer, read), ANSWER_SCHEMA)
    flat = [unpack(header, data) for header, data in collect(answers)]
    return _nested({name: np.concatenate([part[name] for part in flat]) for name in flat[0]})


def _score_task(scorer: Scorer, read: Read, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    blocks = read(batches)
    batch = next(blocks, None)
    if batch is None:
        return
    done = 0
    try:
        with scorer.open() as score:
            while batch is not None:
                yield answer(*pack(_flat(score(batch))))
                done += 1
                batch = next(blocks, None)
    except Exception as error:  # noqa: BLE001 - the driver raises it
        yield failed(error, done)


def _flat(outputs: Outputs, prefix: str = "") -> Batch:
    flat: Batch = {}
    for name, value in outputs.items():
        flat |= _flat(value, f"{prefix}{name}\x1f") if isinstance(value, dict) else {prefix + name: value}
    return flat


def _nested(flat: Batch) -> Outputs:
    nested: Outputs = {}
    for path, value in flat.items():
        *parents, name = path.split("\x1f")
        at = nested
        for parent in parents:
            at = at.setdefault(parent, {})
        at[name] = value
    return nested


# --- shards -----------------------------------------------------------------------------------------------------------


def score_shards(
    shards: XShards,
    scorer: Scorer,
    columns: Columns,
    inputs: Callable[[], tuple[int, int | None]],
    names: tuple[str, ...] | None,
    check: Callable[[Batch], None] | None = None,
) -> XShards:
    """Each shard with its predictions, lazily; the first one that has rows is looked at, and says what does not fit.

    ``check`` is asked what else does not.
    """
    check = check or (lambda batch: None)
    first = _first(shards)
    if is_pandas(first):
        reading = pandas_reading(first, columns, inputs())
        rows = read_pandas(first[:1], reading)
        check(rows)
        sample = scorer.try_out(rows)
        add_columns(first[:1], sample, names)
        none = first_rows(sample, 0)
        return shards._map_partitions(
            partial(_score_each, scorer, partial(read_pandas, reading=reading), partial(add_columns, names=names), none)
        )
    if names is not None:
        raise PlanError("output_cols names columns, and these shards have none: predictions are under 'prediction'")
    check(shard_batch(first, "prediction", inputs()))
    finish_shard(first, {"prediction": None})
    read = partial(shard_batch, verb="prediction")
    return shards._map_partitions(partial(_score_each, scorer, read, finish_shard, None))


def score_rows(
    rows: RDD[Any],
    scorer: Scorer,
    columns: Columns,
    inputs: Callable[[], tuple[int, int | None]],
    names: tuple[str, ...] | None,
) -> RDD[Any]:
    """A prediction for each row of an RDD, lazily and in order."""
    return score_shards(as_shards(rows), scorer, columns, inputs, names).rdd.flatMap(_prediction_rows)


def _prediction_rows(shard: dict[str, Any]) -> Iterator[Any]:
    return _each_row(shard["prediction"])


def _each_row(value: Any) -> Iterator[Any]:
    if isinstance(value, np.ndarray):
        yield from value
    elif isinstance(value, dict):
        for row in zip(*map(_each_row, value.values()), strict=True):
            yield dict(zip(value, row, strict=True))
    else:
        for row in zip(*map(_each_row, value), strict=True):
            yield type(value)(row)


def _first(shards: XShards) -> Any:
    """The first shard, or where that is an empty frame, the first that is not."""
    for only_filled in (False, True):
        found = shards.rdd.filter(_is_filled).take(1) if only_filled else shards.take(1)
        if found and (only_filled or _is_filled(found[0])):
            return found[0]
    raise PlanError("the XShards has no shard with rows to predict")


def _is_filled(shard: Any) -> bool:
    return not is_pandas(shard) or len(shard) > 0


def _score_each(
    scorer: Scorer,
    read: Callable[[Any], Batch],
    finish: Callable[[Any, Outputs], Any],
    none: Outputs | None,
    partition: int,
    shards: Iterator[Any],
) -> Iterator[Any]:
    with scorer.open() as score:
        for shard in shards:
            # An empty frame does not tell its columns' types; ``none`` are the outputs for no rows.
            yield finish(shard, none if none is not None and len(shard) == 0 else score(read(shard)))


# --- streams ----------------------------------------------------------------------------------------------------------


def score_stream(spark: SparkSession, scorer: Scorer, stream: Stream, steps: int | None, inputs: int) -> XShards:
    """Lazily score a loader's or creator's batches, in their order: one shard each, in one partition.

    One partition, for only its end tells how many batches there are. ``inputs`` is how many the model needs.
    """
    if is_remote(spark):
        raise UnsupportedError(
            "a loader's or creator's predictions come as an XShards, which needs RDDs, and Spark Connect has none; "
            "predict on a DataFrame or on arrays works there"
        )
    work = pack_object((stream, steps, inputs), "the data")
    return XShards(spark.sparkContext.parallelize([0], 1).mapPartitions(partial(_score_streamed, scorer, work)))


def _score_streamed(scorer: Scorer, work: bytes, _: Iterator[int]) -> Iterator[Any]:
    stream, steps, inputs = scorer.unpack(work)
    framework: Any = registry.framework(scorer.framework)
    source, size, _is_own = open_stream(framework, stream, 0, 1)
    with scorer.open() as score:
        batches = framework.stream(source, size, 0, 0, has_labels=False, inputs=inputs)
        for number, batch in enumerate(batches):
            if number == steps:
                return
            yield {"prediction": contained(score(batch))}


def open_stream(framework: Any, stream: Stream, rank: int, world: int) -> tuple[Any, int | None, bool]:
    """A rank's loader, its batch size, and whether its rows are the rank's own. Runs in a task."""
    source, size = stream.source, stream.batch_size
    if stream.auto_shard is False and size is not None:
        size = max(1, size // world + (rank < size % world))
    if stream.is_creator:
        source = create(framework, stream, rank, world, size)
    return source, size, framework.take_shard(source, rank, world) or stream.auto_shard is False
