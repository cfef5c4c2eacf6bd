"""Which rows make step k of an epoch: a pure function of the seed, the epoch and the partitions' row counts.

Nothing here knows how many replicas there are. That is what makes N replicas learn what one does, and what
makes a position in the data just (epoch, step): whoever holds the rows can find its place again.

Every partition gives rows to every step in proportion to its size, so that ranks which hold partitions of
equal size have equal work. Inside a partition the rows come in storage order, or shuffled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Order", "window_rows_for"]

Indices = npt.NDArray[np.int64]

_GOLDEN = 0.6180339887498949
_CHUNKS_PER_WINDOW = 16
_WINDOW_BYTES = 64 << 20


def window_rows_for(row_bytes: int, partitions: int) -> int:
    """How many rows are shuffled together.

    All partitions have a window open at the same time, so each gets its part of a budget; what a replica keeps
    resident then does not grow with its data. Small partitions fit one window: they are shuffled completely.
    """
    return max(4096, min(1 << 20, _WINDOW_BYTES // max(1, row_bytes)) // max(1, partitions))


@dataclass(frozen=True)
class Order:
    """The order of one data set.

    Args:
        counts: rows in each partition.
        batch_size: rows of a step, over all replicas.
        seed: fixes the shuffling together with the epoch.
        shuffle: whether rows are shuffled inside their partition, and partitions against each other.
        window_rows: rows that are shuffled together (see ``window_rows_for``).
        lead: rows, the first of the order, that come before step 0.
    """

    counts: tuple[int, ...]
    batch_size: int
    seed: int = 0
    shuffle: bool = True
    window_rows: int = 1 << 20
    lead: int = 0
    _kept: dict[tuple[str, int], tuple[Any, Indices]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def rows(self) -> int:
        """Rows in one epoch, the lead included."""
        return sum(self.counts)

    @property
    def steps(self) -> int:
        """Steps in one epoch; the last may be short."""
        return -(-(self.rows - self.lead) // self.batch_size)

    def step_rows(self, step: int) -> int:
        """Rows that all replicas together see in this step of an epoch."""
        return max(0, min(self.batch_size, self.rows - self.lead - step * self.batch_size))

    def taken(self, first_step: int, last_step: int, epoch: int) -> Indices:
        """Rows taken from each partition before steps ``first_step`` … ``last_step``: shape (steps + 1, partitions)."""
        steps = np.arange(first_step, last_step + 1, dtype=np.int64)
        places = np.minimum(self.lead + steps * self.batch_size, self.rows)
        counts = np.asarray(self.counts, dtype=np.int64)
        if len(counts) == 1:
            return places[:, None]
        return _apportion(places, counts, self._offsets(epoch))

    def at(self, partition: int, begin: int, end: int, epoch: int) -> Indices:
        """Row numbers inside ``partition`` that stand at its places ``begin`` … ``end`` of this epoch."""
        if not self.shuffle:
            return np.arange(begin, end, dtype=np.int64)
        starts = self._window_starts(partition, epoch)
        parts = []
        window = int(np.searchsorted(starts, begin, side="right")) - 1
        while begin < end:
            stop = min(end, int(starts[window + 1]))
            rows = self._window(partition, window, epoch)
            parts.append(rows[begin - int(starts[window]) : stop - int(starts[window])])
            begin, window = stop, window + 1
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def _offsets(self, epoch: int) -> npt.NDArray[np.float64]:
        # Golden-ratio offsets are spread evenly over any run of neighbouring partitions, hence over the ranks that
        # hold such runs: with equal partitions, shares in a step differ by a row or two. A turn per epoch
        # keeps the same partitions from always meeting.
        turn = np.random.default_rng([self.seed, epoch]).random() if self.shuffle else 0.0
        offsets = (np.arange(1, len(self.counts) + 1) * _GOLDEN + turn) % 1.0
        return np.clip(offsets, 2.0**-20, 1 - 2.0**-20)

    def _chunk_rows(self) -> int:
        return max(1, self.window_rows // _CHUNKS_PER_WINDOW)

    def _chunk_order(self, partition: int, epoch: int) -> Indices:
        random = np.random.default_rng([self.seed, epoch, partition])
        chunks = -(-self.counts[partition] // self._chunk_rows())
        return self._remember("chunks", partition, (epoch,), lambda: random.permutation(chunks))

    def _window_starts(self, partition: int, epoch: int) -> Indices:
        count = self.counts[partition]
        if count <= self.window_rows:
            return np.array([0, count], dtype=np.int64)
        chunk = self._chunk_rows()
        sizes = np.full(-(-count // chunk), chunk, dtype=np.int64)
        sizes[self._chunk_order(partition, epoch) == len(sizes) - 1] = count - chunk * (len(sizes) - 1)
        ends = np.cumsum(sizes)[_CHUNKS_PER_WINDOW - 1 :: _CHUNKS_PER_WINDOW]
        return np.unique(np.concatenate([[0], ends, [count]]))

    def _window(self, partition: int, window: int, epoch: int) -> Indices:
        return self._remember("window", partition, (epoch, window), lambda: self._shuffled(partition, window, epoch))

    def _shuffled(self, partition: int, window: int, epoch: int) -> Indices:
        count = self.counts[partition]
        random = np.random.default_rng([self.seed, epoch, partition, window + 1])
        if count <= self.window_rows:
            return random.permutation(count)
        # A window is a handful of chunks from all over the partition, so that neighbours in storage are parted
        # while reads stay in long runs.
        chunk = self._chunk_rows()
        chunks = self._chunk_order(partition, epoch)[window * _CHUNKS_PER_WINDOW : (window + 1) * _CHUNKS_PER_WINDOW]
        rows = (chunks[:, None] * chunk + np.arange(chunk)).ravel()
        return random.permutation(rows[rows < count])

    def _remember(self, kind: str, partition: int, place: tuple[int, ...], make: Callable[[], Indices]) -> Indices:
        # An epoch goes through a partition's windows one after the other, so the last of each is all that is kept:
        # what that takes does not depend on how many rows there are.
        kept = self._kept.get((kind, partition))
        if kept is None or kept[0] != place:
            kept = self._kept[kind, partition] = (place, make())
        return kept[1]


def _apportion(places: Indices, counts: Indices, offsets: npt.NDArray[np.float64]) -> Indices:
    """How many of the first ``place`` rows each partition gives: shape (places, partitions); rows sum to the place.

    Row j of a partition of n rows has the key (j + offset) / n, and the global order is that of the keys. So a
    partition's part never shrinks as the place grows (a divisor method), and is never off by more than a row or so.
    """
    total = int(counts.sum())
    partitions = len(counts)

    def below(keys: npt.NDArray[np.float64]) -> Indices:
        return np.clip(np.ceil(counts * keys[:, None] - offsets), 0, counts).astype(np.int64)

    if total == 0:
        return np.zeros((len(places), partitions), dtype=np.int64)
    low = np.maximum(0.0, (places - partitions - 1) / total)
    high = np.minimum(1.0, (places + partitions + 1) / total)
    given = below(high)
    while True:
        open_ = given.sum(axis=1) != places
        middle = (low + high) / 2
        open_ &= (middle > low) & (middle < high)
        if not open_.any():
            break
        parts = below(middle[open_])
        short = parts.sum(axis=1) < places[open_]
        indices = np.flatnonzero(open_)
        low[indices[short]] = middle[indices[short]]
        high[indices[~short]] = middle[indices[~short]]
        given[indices[~short]] = parts[~short]
    # Keys that are equal to the last bit: the partitions concerned give way in their order.
    for index in np.flatnonzero(given.sum(axis=1) != places):
        least = below(low[index : index + 1])[0]
        missing = int(places[index] - least.sum())
        tied = np.flatnonzero(given[index] > least)
        least[tied[:missing]] += 1
        given[index] = least
    return given
