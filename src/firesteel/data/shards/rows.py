"""Rows of shards: counted, cut, moved to another partition and joined again.

Pieces move whole, as arrays and frames: a shuffle of pieces, never one of rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from firesteel.core.errors import PlanError
from firesteel.data import structure
from firesteel.data.shards.kinds import is_frame, is_series

if TYPE_CHECKING:
    import numpy.typing as npt
    import pandas as pd

__all__ = [
    "WHOLE",
    "concat",
    "count_buckets",
    "gather",
    "gather_distinct",
    "measure",
    "return_distinct",
    "scatter",
    "scatter_buckets",
    "scatter_to_compare",
    "spread",
]

Placed = tuple[int, tuple[Any, Any]]
"""To which partition, and there: a position to sort by, and the piece."""

WHOLE = ""
"""The row kind of a shard that has no rows to cut."""


def _row_kind(shard: Any) -> str:
    """Shards of one kind can be joined."""
    if is_frame(shard):
        return "frame"
    if is_series(shard):
        return "series"
    if isinstance(shard, list):
        return "list"
    if isinstance(shard, np.ndarray):
        return "array" if shard.ndim > 0 else WHOLE
    if isinstance(shard, (dict, tuple)) and structure.is_structure(shard):
        return "structure"
    return WHOLE


def _row_count(shard: Any) -> int:
    return structure.rows(shard) if isinstance(shard, (dict, tuple)) else len(shard)


def _slice_rows(shard: Any, start: int, stop: int) -> Any:
    if is_frame(shard) or is_series(shard):
        return shard.iloc[start:stop]
    if isinstance(shard, (list, np.ndarray)):
        return shard[start:stop]
    return structure.cut(shard, [start, stop])[0]


def _join_rows(pieces: list[Any]) -> Any:
    """Pieces of one kind as one."""
    first = pieces[0]
    if len(pieces) == 1:
        return first
    if is_frame(first) or is_series(first):
        return concat(pieces)
    if isinstance(first, list):
        return list(chain.from_iterable(pieces))
    return structure.join(pieces)


def measure(shards: Iterable[Any]) -> Iterator[list[tuple[str, int]]]:
    """For each shard its kind and how many rows it has."""
    measured = []
    for shard in shards:
        kind = _row_kind(shard)
        measured.append((kind, 1 if kind == WHOLE else _row_count(shard)))
    yield measured


def scatter(
    starts: list[int], boundaries: list[int], cuts: bool, partition: int, shards: Iterator[Any]
) -> Iterator[Placed]:
    """``(target partition, (position, piece))``: positions count rows over all partitions, or whole shards."""
    start = starts[partition]
    target = 0
    for shard in shards:
        begin, end = start, start + (_row_count(shard) if cuts else 1)
        if boundaries[-1] == 0:  # no rows anywhere: one empty shard still tells columns and dtypes
            yield 0, (partition, shard)
        while start < end:
            while boundaries[target + 1] <= start:
                target += 1
            stop = min(end, boundaries[target + 1])
            yield target, (start, _slice_rows(shard, start - begin, stop - begin) if cuts else shard)
            start = stop


def gather(cuts: bool, pieces: Iterable[Placed]) -> Iterator[Any]:
    """The pieces of one partition, in order and joined."""
    ordered = [piece for _, piece in sorted((placed for _, placed in pieces), key=lambda placed: placed[0])]
    if not ordered or not cuts:
        yield from ordered
    else:
        yield _join_rows(ordered)


def concat(pieces: list[Any], axis: int | str = 0) -> Any:
    """``pandas.concat`` that keeps categorical columns categorical, also where shards have other categories."""
    import pandas as pd

    if axis in (1, "columns"):
        return pd.concat(pieces, axis=axis)
    if is_series(pieces[0]):
        return pd.concat(_with_one_category_dtype(pieces))
    names = [name for name, dtype in pieces[0].dtypes.items() if isinstance(dtype, pd.CategoricalDtype)]
    if names and all(piece.columns.is_unique and set(names) <= set(piece.columns) for piece in pieces):
        columns = {name: _with_one_category_dtype([piece[name] for piece in pieces]) for name in names}
        pieces = [piece.copy(deep=False) for piece in pieces]
        for position, piece in enumerate(pieces):
            for name in names:
                piece[name] = columns[name][position]
    return pd.concat(pieces)


def _with_one_category_dtype(columns: list[Any]) -> list[Any]:
    import pandas as pd

    dtypes = [column.dtype for column in columns]
    unordered = all(isinstance(dtype, pd.CategoricalDtype) and not dtype.ordered for dtype in dtypes)
    if not unordered or all(dtype == dtypes[0] for dtype in dtypes):
        return columns  # orders that differ have no common one: pandas falls back to objects
    try:
        categories = pd.api.types.union_categoricals(columns).categories
    except TypeError:  # of numbers here and of texts there
        return columns
    return [column.cat.set_categories(categories) for column in columns]


# Rows by key. A key falls into a bucket; there are more buckets than partitions, so that few keys do not meet by
# chance, and a large one does not drag many others along.


def count_buckets(columns: list[Any], buckets: int, frames: Iterable[pd.DataFrame]) -> Iterator[npt.NDArray[np.int64]]:
    """How many rows fall into each bucket."""
    found = np.zeros(buckets, dtype=np.int64)
    for frame in frames:
        found += np.bincount(_bucket_of(frame, columns, buckets), minlength=buckets)
    yield found


def spread(counts: npt.NDArray[np.int64], partitions: int) -> npt.NDArray[np.int64]:
    """A partition for each bucket: the largest first, each to the partition that has least."""
    targets = np.zeros(len(counts), dtype=np.int64)
    load = np.zeros(partitions, dtype=np.int64)
    for bucket in np.argsort(-counts, kind="stable"):
        targets[bucket] = target = int(np.argmin(load))
        load[target] += counts[bucket]
    return targets


def scatter_buckets(
    columns: list[Any], targets: npt.NDArray[np.int64], partition: int, frames: Iterator[pd.DataFrame]
) -> Iterator[Placed]:
    """Each frame's rows to the partitions of their buckets."""
    for number, frame in enumerate(frames):
        to = targets[_bucket_of(frame, columns, len(targets))]
        for target in np.unique(to):
            yield int(target), ((partition, number), frame[to == target])


def scatter_to_compare(partitions: int, partition: int, frames: Iterator[pd.DataFrame]) -> Iterator[Placed]:
    """Rows to where those that equal them go too; their places go with them."""
    for number, frame in enumerate(frames):
        to = _bucket_of(frame, list(frame.columns), partitions)
        for target in np.unique(to):
            rows = np.flatnonzero(to == target)
            yield int(target), ((partition, number), (rows, frame.iloc[rows]))


def return_distinct(pieces: Iterable[Placed]) -> Iterator[Placed]:
    """Back to where they came from, those that are the first of their kind."""
    ordered = sorted((placed for _, placed in pieces), key=lambda placed: placed[0])
    if not ordered:
        return
    whole = concat([frame for _, (_, frame) in ordered])
    is_first = ~whole.duplicated().to_numpy()
    begin = 0
    for (partition, number), (rows, frame) in ordered:
        kept = is_first[begin : begin + len(rows)]
        begin += len(rows)
        if kept.any():
            yield partition, (number, (rows[kept], frame[kept]))


def gather_distinct(pieces: Iterable[Placed]) -> Iterator[pd.DataFrame]:
    """A partition's rows as they lay before."""
    found = [placed for _, placed in pieces]
    if found:
        numbers = np.concatenate([np.full(len(rows), number) for number, (rows, _) in found])
        rows = np.concatenate([rows for _, (rows, _) in found])
        yield concat([frame for _, (_, frame) in found]).iloc[np.lexsort((rows, numbers))]


def _bucket_of(frame: pd.DataFrame, columns: Sequence[Any], buckets: int) -> npt.NDArray[np.int64]:
    """Rows that are equal in these columns have the same number, in whichever shard they are."""
    import pandas as pd

    plain = pd.DataFrame({place: _comparable(frame[name]) for place, name in enumerate(columns)}, index=frame.index)
    try:
        hashes = pd.util.hash_pandas_object(plain, index=False).to_numpy()
    except TypeError as error:
        raise PlanError(f"rows cannot be compared by columns with such cells: {error}") from error
    found: npt.NDArray[np.int64] = (hashes % np.uint64(buckets)).astype(np.int64)
    return found


def _comparable(column: pd.Series) -> Any:
    """The column in a form in which equal values are equal bytes: one shard may have integers, another floats."""
    import pandas as pd

    if isinstance(column.dtype, pd.CategoricalDtype):
        column = column.astype(column.dtype.categories.dtype)
    if pd.api.types.is_numeric_dtype(column.dtype) and not pd.api.types.is_complex_dtype(column.dtype):
        return column.to_numpy(dtype=np.float64, na_value=np.nan) + 0.0  # -0.0 is 0.0
    if pd.api.types.is_datetime64_dtype(column.dtype):
        return column.to_numpy(dtype="datetime64[ns]")
    return column.to_numpy() if isinstance(column.dtype, np.dtype) else column
