"""RDDs with one row to an element: ``(x, y)`` or ``{"x": …, "y": …}`` of ndarrays and numbers; for prediction ``x``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from firesteel.core.errors import PlanError, SchemaError, UnsupportedError
from firesteel.core.spec import Batch
from firesteel.data.packed import pack, pack_error
from firesteel.data.shards import XShards
from firesteel.data.sources.kinds import Asked, Packed
from firesteel.data.sources.shards import packed, shard_batch

if TYPE_CHECKING:
    from pyspark import RDD

__all__ = ["as_shards", "is_rdd", "stack", "take"]

_BLOCK_ROWS = 1024


def take(data: Any, asked: Asked) -> Packed | None:
    """Rows stacked in the tasks, block by block. The first row says what they are."""
    if not is_rdd(data):
        return None
    first = data.take(1)
    if not first:
        raise PlanError(f"the RDD has no elements, so there are no rows for {asked.columns.verb}")
    verb = asked.columns.verb
    if not isinstance(first[0], (tuple, dict)) and verb != "prediction":
        found = type(first[0]).__qualname__
        raise UnsupportedError(f"an RDD of {found} cannot be used for {verb}; its elements must be rows (x, y)")
    names = tuple(shard_batch(stack(first), verb, asked.inputs() if asked.counts_inputs else None))
    return packed(data.mapPartitions(partial(_packed_rows, verb, names)), names)


def is_rdd(data: object) -> bool:
    """An RDD."""
    return any(cls.__module__ == "pyspark.core.rdd" and cls.__name__ == "RDD" for cls in type(data).__mro__)


def as_shards(rdd: RDD[Any]) -> XShards:
    """The features of the rows, in blocks, as shards to be scored."""
    return XShards(rdd.mapPartitions(_feature_blocks))


def stack(rows: list[Any]) -> Any:
    """Rows of one structure as one structure of arrays with a row axis."""
    first = rows[0]
    if isinstance(first, dict):
        return {key: stack([_part(row, key) for row in rows]) for key in first}
    if isinstance(first, (tuple, list)):
        parts = [stack([_part(row, place) for row in rows]) for place in range(len(first))]
        return tuple(parts) if isinstance(first, tuple) else parts
    arrays = [np.asarray(row) for row in rows]
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise SchemaError(f"elements of the RDD differ in shape: {', '.join(map(str, sorted(shapes)[:3]))}")
    return np.stack(arrays)


def _part(row: Any, key: Any) -> Any:
    try:
        return row[key]
    except (KeyError, IndexError, TypeError):
        raise SchemaError(f"elements of the RDD differ: one has no part {key!r}") from None


def _feature_blocks(rows: Iterable[Any]) -> Iterator[Any]:
    source = iter(rows)
    while block := list(islice(source, _BLOCK_ROWS)):
        yield {"x": stack([_features(row) for row in block])}


def _features(row: Any) -> Any:
    if isinstance(row, dict):
        return row.get("x", row)
    return row[0] if isinstance(row, tuple) else row


def _packed_rows(verb: str, names: tuple[str, ...], rows: Iterable[Any]) -> Iterator[tuple[str, bytes]]:
    source = iter(rows)
    try:
        while block := list(islice(source, _BLOCK_ROWS)):
            batch: Batch = shard_batch(stack(block), verb)
            if tuple(batch) != names:
                raise SchemaError(f"elements differ: the first has {', '.join(names)}, another has {', '.join(batch)}")
            yield pack(batch)
    except PlanError as error:
        yield pack_error(error)
