"""Where a replica's batches come from, whichever way: its spool, or a stream that it makes itself.

Both give ``(batch, share, rows)`` for each step: this replica's rows, their part of the step, and the rows of the whole step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from firesteel.core.errors import PlanError
from firesteel.core.ports import Framework, Group
from firesteel.core.spec import Batch, Signature, TensorSpec, rows_of
from firesteel.data.feed import Feed, Holding
from firesteel.data.order import Order, window_rows_for
from firesteel.data.spool import Block, SpoolReader
from firesteel.engine.job import Stream

__all__ = ["SpoolSteps", "Steps", "StreamSteps", "spool_steps"]

Step = tuple[Batch, float, int]


class Steps(Protocol):
    """A data set as steps."""

    steps: int | None
    """In one pass; ``None`` when it is not known beforehand."""

    def run(self, data_pass: int, first: int) -> Iterator[Step]:
        """This replica's steps of one pass over the data, from ``first`` on."""
        ...


class SpoolSteps:
    """Steps from rows that this rank holds."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self.steps: int | None = feed.order.steps

    def run(self, data_pass: int, first: int) -> Iterator[Step]:
        """See ``Steps``."""
        for step, batch in enumerate(self._feed.batches(data_pass, first), first):
            rows = self._feed.order.step_rows(step)
            yield batch, rows_of(batch) / rows, rows


def spool_steps(
    assignment: dict[str, Any], spool: SpoolReader | None, descriptors: dict[str, int], *, batch_size: int, seed: int, shuffle: bool
) -> SpoolSteps:
    """Steps over a rank's spool, as the driver arranged it."""
    signature = Signature(tuple(TensorSpec(name, dtype, tuple(shape)) for name, dtype, shape in assignment["tensors"]))
    if spool is None:
        spool = SpoolReader(descriptors, signature, tuple(Block(*block) for block in assignment["blocks"]))
    counts = tuple(assignment["counts"])
    order = Order(counts, batch_size, seed, shuffle, window_rows_for(signature.row_bytes, len(counts)))
    return SpoolSteps(Feed(spool, order, tuple(Holding(*held) for held in assignment["holdings"])))


class StreamSteps:
    """Steps from a loader or a creator, which every replica runs for itself.

    Sharded by us: all replicas see the same batches, and each takes its part. Sharded by the user: each has rows of
    its own, and they agree before every step on how many there are, until nobody has any.
    """

    def __init__(self, stream: Stream, framework: Framework, group: Group, seed: int) -> None:
        self.steps: int | None = None
        self._framework = framework
        self._group = group
        self._seed = seed
        self._auto = stream.auto_shard
        self._batch_size = stream.batch_size
        self._source = stream.source
        if not self._auto and self._batch_size is not None:
            self._batch_size = self._batch_size // group.size + (group.rank < self._batch_size % group.size)
        if stream.is_creator:
            config = dict(stream.config)
            if not self._auto:
                config |= {"rank": group.rank, "num_shards": group.size}
            self._source = stream.source(config, self._batch_size)
        if framework.is_sharded(self._source):  # type: ignore[attr-defined]
            self._auto = False

    def run(self, data_pass: int, first: int) -> Iterator[Step]:
        """See ``Steps``. Resuming inside a pass reads over what was consumed."""
        batches = self._framework.stream(self._source, self._batch_size, self._seed, data_pass)
        empty: Batch | None = None
        number = -1
        while True:
            batch = next(batches, None)
            number += 1
            if batch is not None and empty is None:
                empty = {name: values[:0] for name, values in batch.items()}
            if self._auto:
                if batch is None:
                    return
                rows = rows_of(batch)
                if number >= first and rows:
                    mine = self._part(batch, rows, number)
                    yield mine, rows_of(mine) / rows, rows
                continue
            count = np.array([0 if batch is None else rows_of(batch), batch is not None], dtype=np.int64)
            self._group.all_reduce(count)
            if count[1] == 0:
                return
            if empty is None:
                raise PlanError("a replica's data creator gave no batch at all, so its shapes are not known")
            if number >= first and count[0]:
                yield (batch or empty), (0 if batch is None else rows_of(batch)) / int(count[0]), int(count[0])

    def _part(self, batch: Batch, rows: int, step: int) -> Batch:
        turn = step % self._group.size
        begin = (rows * self._group.rank + turn) // self._group.size
        end = (rows * (self._group.rank + 1) + turn) // self._group.size
        return {name: values[begin:end] for name, values in batch.items()}
