"""XShards of pandas frames, or of dicts and tuples of ndarrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from firesteel.core.errors import PlanError, SchemaError, UnsupportedError
from firesteel.core.spec import Batch, rows_of
from firesteel.data.packed import PACKED_SCHEMA, pack, pack_error
from firesteel.data.shards import XShards
from firesteel.data.sources import frames
from firesteel.data.sources.arrays import batch_from, check_arrays, is_arrays
from firesteel.data.sources.kinds import Asked, Columns, Packed, Source
from firesteel.data.sources.pandas_frames import is_pandas, pandas_reading

if TYPE_CHECKING:
    from pyspark import RDD

__all__ = ["packed", "shard_batch", "take"]


def take(data: Any, asked: Asked) -> Source | None:
    """Frames become a DataFrame; arrays travel packed. The first shard says which, and what does not fit."""
    if not isinstance(data, XShards):
        return None
    shards, columns = data, asked.columns
    try:
        first = shards.first()
    except ValueError as error:
        raise PlanError(f"the XShards has no shard, so there are no rows for {columns.verb}") from error
    if is_pandas(first):
        pandas_reading(first, columns, asked.inputs(), asked)  # says what does not fit before all shards are looked at
        return frames.take(shards.to_spark_df(), asked)
    names = tuple(shard_batch(first, columns.verb, asked.inputs() if asked.counts_inputs else None))
    return packed(shards.rdd.mapPartitions(partial(_packed_rows, columns.verb, names)), names)


def packed(rows: RDD[tuple[str, bytes]], names: tuple[str, ...]) -> Packed:
    """An RDD of packed blocks as the engine takes it."""
    return Packed(_session().createDataFrame(rows, PACKED_SCHEMA, verifySchema=False), names)


def _session() -> Any:
    from pyspark.sql import SparkSession

    return SparkSession.builder.getOrCreate()


def _packed_rows(verb: str, names: tuple[str, ...], shards: Iterable[Any]) -> Iterator[tuple[str, bytes]]:
    try:
        for shard in shards:
            batch = shard_batch(shard, verb)
            if tuple(batch) != names:
                raise SchemaError(f"shards differ: the first has {', '.join(names)}, another has {', '.join(batch)}")
            if rows_of(batch):
                yield pack(batch)
    except PlanError as error:
        yield pack_error(error)


def shard_batch(shard: Any, verb: str, inputs: tuple[int, int | None] | None = None) -> Batch:
    """A shard's rows: a dict with ``x`` (``y``, ``w``), or a tuple of them. Runs in tasks, and first on the driver.

    ``inputs`` is how many the model takes, to be checked.
    """
    columns = Columns(None, None, None, verb)
    if isinstance(shard, tuple) and len(shard) == 2 and not is_arrays(list(shard)) and verb != "prediction":
        raise UnsupportedError(
            "each shard is one (feature, label) pair; call stack_feature_labels() first, which makes arrays of them"
        )
    if verb == "prediction" and isinstance(shard, tuple):
        shard = shard[0]
    if isinstance(shard, dict):
        for key in ("x",) if verb == "prediction" else ("x", "y"):
            if key not in shard:
                there = ", ".join(map(str, shard))
                raise SchemaError(f"shards for {verb} must have the key {key!r}; there are: {there}", column=key)
    batch = batch_from(shard, columns)
    if batch is None and isinstance(shard, dict):
        found = ", ".join(f"{key}: {type(shard[key]).__qualname__}" for key in ("x", "y", "w") if key in shard)
        raise SchemaError(f"shards for {verb} must hold ndarrays, or lists of them; found {found}", column="x")
    if batch is None:
        wanted = "{'x': …}" if verb == "prediction" else "{'x': …, 'y': …} or (x, y)"
        kind = type(shard).__qualname__
        raise UnsupportedError(f"shards of {kind} cannot be used for {verb}; they must be {wanted} of ndarrays")
    if inputs is not None:
        check_arrays(batch, inputs)
    return batch
