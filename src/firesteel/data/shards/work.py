"""What tasks do with shards, one by one. Importable functions, so that a closure carries its parameters and no more."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from firesteel.core.errors import PlanError
from firesteel.data.shards.kinds import is_frame, is_series, listed, type_name

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "assemble",
    "count",
    "distinct",
    "each",
    "extreme",
    "first",
    "head",
    "item",
    "length",
    "null_counts",
    "run_partition",
    "same",
    "sample",
    "select_key",
    "split_length",
    "stack_pairs",
    "transform",
    "without_nulls",
]


def run_partition(
    fn: Callable[[int, Iterator[Any]], Iterable[Any]], partition: int, shards: Iterator[Any]
) -> Iterator[Any]:
    """``fn`` on a partition's shards; its error says which partition that was."""
    try:
        yield from fn(partition, shards)
    except Exception as error:
        # A note keeps the function's own exception and traceback, and Spark prints it with them.
        note = f"This happened in partition {partition} of an XShards."
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
        raise


def each(fn: Callable[[Any], Any], partition: int, shards: Iterator[Any]) -> Iterator[Any]:
    """``fn`` on each shard."""
    return map(fn, shards)


def transform(
    func: Callable[..., Any], args: tuple[Any, ...], copies: bool, partition: int, shards: Iterator[Any]
) -> Iterator[Any]:
    """The user's function on each shard."""
    for shard in _own_copies(shards) if copies else shards:
        yield func(shard, *args)


def _own_copies(shards: Iterator[Any]) -> Iterator[Any]:
    """Each shard as a copy that its next user may change.

    Spark unpickles a cached shard anew for each use, but shards can share memory all the same: one object that was
    parallelized twice comes out of one pickle as one object, and an earlier function may have returned something that
    stays in this Python process, such as a ``SharedValue``'s value, where later jobs would see the change.
    """
    for shard in shards:
        try:
            own = copy.deepcopy(shard)
        except Exception:  # noqa: BLE001 (any class may refuse in its own way)
            own = shard  # what cannot be copied cannot be cached either: it was made for this use
        yield own


def head(n: int, shard: Any) -> tuple[str, Any]:
    """The type's name and the first rows, or ``None`` for a shard without rows."""
    if is_frame(shard) or is_series(shard):
        return type_name(shard), shard.head(n)
    has_rows = isinstance(shard, list) or (isinstance(shard, np.ndarray) and shard.ndim > 0)
    return type_name(shard), shard[:n] if has_rows else None


def length(shard: Any) -> int:
    """``len(shard)``, or 1."""
    try:
        return len(shard)
    except TypeError:
        return 1


def count(shards: Iterable[Any]) -> Iterator[int]:
    """How many shards."""
    yield sum(1 for _ in shards)


def item(key: Any, shard: Any) -> Any:
    """``shard[key]``."""
    return shard[key]


def select_key(key: Any, shard: Any) -> Any:
    """``shard[key]``, with an error that names the keys."""
    # NumPy's scalars have a __getitem__ that works for none of their users.
    if not hasattr(shard, "__getitem__") or (isinstance(shard, np.generic) and not isinstance(shard, np.void)):
        raise PlanError(f"No selection operation on shards of type {type_name(shard)}; the key was {key!r}")
    try:
        return shard[key]
    except KeyError:
        keys = shard.columns if is_frame(shard) else shard.keys() if hasattr(shard, "keys") else ()
        raise PlanError(f"Invalid key {key!r}; there are: {listed(keys)}") from None


def split_length(shard: Any) -> int:
    """Into how many parts a shard can be split."""
    return len(shard) if isinstance(shard, (list, tuple)) else 1


def stack_pairs(partition: int, shards: Iterator[Any]) -> Iterator[Any]:
    """The pairs of a partition as arrays."""
    features, labels = [], []
    for shard in shards:
        if not isinstance(shard, (tuple, list)) or len(shard) != 2:
            raise PlanError(f"stack_feature_labels works on (feature, label) pairs, found {type_name(shard)}")
        features.append(np.asarray(shard[0], dtype=np.float32))
        labels.append(np.asarray(shard[1], dtype=np.float32))
    if features:
        yield {"x": np.stack(features), "y": np.stack(labels)}


def assemble(feature_columns: list[str], label_columns: list[str], frame: pd.DataFrame) -> dict[str, Any]:
    """A frame as arrays of features and labels."""
    # Not frame[columns].to_numpy(): that makes objects of numbers beside booleans.
    x = np.stack([frame[name].to_numpy() for name in feature_columns], axis=1)  # (rows, features)
    y = np.stack([frame[name].to_numpy() for name in label_columns], axis=1)  # (rows, labels)
    return {"x": x, "y": y}


def distinct(series: pd.Series) -> Any:
    """A Series' distinct values, in order of first appearance."""
    return np.asarray(series.unique())


def extreme(which: str, name: Any, frame: pd.DataFrame) -> Any:
    """A column's largest or smallest value; ``None`` where all are null."""
    values = frame[name].dropna()
    if hasattr(values, "cat"):  # categories without an order have no largest one; their values do
        values = values.astype(values.cat.categories.dtype)
    return getattr(values, which)() if len(values) else None


def null_counts(columns: list[Any], frame: pd.DataFrame) -> list[int]:
    """How many nulls each of these columns has."""
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        raise PlanError(f"shards differ: one has no column {missing[0]!r}; it has: {listed(frame.columns)}")
    return [int(frame[name].isna().sum()) for name in columns]


def without_nulls(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows without a null."""
    return frame.dropna(axis="index")


def sample(options: dict[str, Any], frame: pd.DataFrame) -> pd.DataFrame:
    """Some of the rows."""
    return frame.sample(**options)


def first(fn: Callable[[Any], Any], shards: Iterable[Any]) -> Iterator[Any]:
    """``fn`` of the first shard.

    The next one is looked for as well: Spark ends a Python worker that leaves rows unread, and another has to load
    pandas again, which takes longer than most shards. With one shard to a partition this reads to the end.
    """
    source = iter(shards)
    for shard in source:
        next(source, None)
        yield fn(shard)
        return


def same(shard: Any) -> Any:
    """The shard itself."""
    return shard
