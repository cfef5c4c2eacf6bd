"""A rank's rows served as batches, step by step, from any position.

A step's rows come from all partitions. A partition is held by one rank, or by several when there are fewer
partitions than ranks: its holders then divide its part of each step among them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from firesteel.core.spec import Batch
from firesteel.data.order import Order
from firesteel.data.spool import SpoolReader

__all__ = ["Feed", "Holding"]

_SPAN_ROWS = 1 << 16


@dataclass(frozen=True)
class Holding:
    """A rank's part in one partition: it is the ``index``-th of ``holders`` ranks that hold it."""

    partition: int
    begin: int
    index: int = 0
    holders: int = 1


class Feed:
    """Batches of one rank.

    Args:
        spool: the rows that this rank holds.
        order: which rows make which step, over all ranks.
        holdings: this rank's partitions.
    """

    def __init__(self, spool: SpoolReader, order: Order, holdings: tuple[Holding, ...]) -> None:
        self._spool = spool
        self._order = order
        self._holdings = holdings

    @property
    def order(self) -> Order:
        """The order over all ranks; its ``steps`` are this feed's too."""
        return self._order

    def after(self, lead: int) -> Feed:
        """The same rows without the first so many of an epoch's order."""
        return Feed(self._spool, replace(self._order, lead=lead), self._holdings) if lead else self

    def empty(self) -> Batch:
        """A batch of no rows."""
        return self._spool.empty()

    def batches(self, epoch: int, first_step: int = 0, last_step: int | None = None) -> Iterator[Batch]:
        """This rank's batch of each step from ``first_step`` on; one without rows where the rank has none in it."""
        last = self._order.steps if last_step is None else min(last_step, self._order.steps)
        # Row numbers are worked out for many steps at once: per step the Python cost is one split and one gather.
        span = max(1, _SPAN_ROWS // self._order.batch_size)
        for begin in range(first_step, last, span):
            end = min(begin + span, last)
            for rows in self._rows(epoch, begin, end):
                yield self._spool.take(rows, epoch) if len(rows) else self._spool.empty()

    def _rows(self, epoch: int, begin: int, end: int) -> list[npt.NDArray[np.int64]]:
        taken = self._order.taken(begin, end, epoch)
        numbers, steps = [], []
        for held in self._holdings:
            edges = taken[:, held.partition]
            lengths = np.diff(edges)
            if held.holders == 1:
                places = np.arange(edges[0], edges[-1])
                mine = lengths
            else:
                # Who gets the odd row moves on with the step, so that no holder is always the short one.
                turn = (np.arange(begin, end) + held.partition) % held.holders
                low = edges[:-1] + (lengths * held.index + turn) // held.holders
                high = edges[:-1] + (lengths * (held.index + 1) + turn) // held.holders
                mine = high - low
                places = np.repeat(low - np.concatenate([[0], np.cumsum(mine)[:-1]]), mine) + np.arange(mine.sum())
            rows = self._order.at(held.partition, int(edges[0]), int(edges[-1]), epoch)
            numbers.append(held.begin + rows[places - edges[0]])
            steps.append(np.repeat(np.arange(end - begin), mine))
        if not numbers:
            return [np.empty(0, np.int64)] * (end - begin)
        step = np.concatenate(steps)
        by_step = np.argsort(step, kind="stable")
        edges = np.searchsorted(step[by_step], np.arange(1, end - begin))
        return np.split(np.concatenate(numbers)[by_step], edges)
