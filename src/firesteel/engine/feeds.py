"""Where a replica's batches come from, whichever way: its spool, or a stream that it makes itself."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from firesteel.cluster.child import Desk
from firesteel.core.errors import PlanError
from firesteel.core.ports import Framework, Group
from firesteel.core.spec import Batch, Signature, TensorSpec, rows_of
from firesteel.data.ahead import ahead
from firesteel.data.feed import Feed, Holding
from firesteel.data.image.spool import ImageSpool
from firesteel.data.order import Order, window_rows_for
from firesteel.data.spool import Block, SpoolReader
from firesteel.engine.job import FitJob, Stream
from firesteel.engine.relay import pull

__all__ = ["ResizedSteps", "SpoolSteps", "Step", "Steps", "StreamSteps", "create", "open_training", "open_validation"]


BEFORE_ALL = -1
"""The number of the pass that only looks at the first batch: data that counts its passes must not count it."""


class Step(NamedTuple):
    """One step, as one replica sees it."""

    batch: Batch
    """This replica's rows; it may have none."""
    share: float
    """Their part of the step's rows."""
    rows: int
    """Rows of the step, over all replicas."""
    is_last: bool
    """Whether the pass over the data ends with it."""


class Steps(Protocol):
    """A data set as steps."""

    steps: int | None
    """In one pass; ``None`` when it is not known beforehand."""

    def run(self, data_pass: int, first: int, lead: int = 0) -> Iterator[Step]:
        """This replica's steps of one pass over the data, from ``first`` on.

        ``lead``: rows that come before step 0; only where rows have an order of ours.
        """
        ...

    def sample(self) -> Batch | None:
        """Some rows, or none, in the shape that all have; ``None`` where this replica cannot know it."""
        ...


def open_training(job: FitJob, desk: Desk, assignment: dict[str, Any], framework: Framework, group: Group) -> Steps:
    """The rows that a fit trains on, as this rank was assigned them."""
    steps = _open_training(job, desk, assignment, framework, group)
    return steps if job.plan.pass_steps is None else ResizedSteps(steps, job.plan.pass_steps)


def _open_training(job: FitJob, desk: Desk, assignment: dict[str, Any], framework: Framework, group: Group) -> Steps:
    plan = job.plan
    if job.stream is not None:
        return StreamSteps(job.stream, framework, group, plan.seed)
    assert plan.batch_size is not None
    signature = _signature(assignment["tensors"])
    if job.is_relayed:
        spool = pull(desk, "train", signature, 0, assignment["counts"][0])
    elif job.images:
        blocks = tuple(Block(*block) for block in assignment["blocks"])
        spool = ImageSpool(desk.descriptors, signature, blocks, job.images, plan.seed, desk.threads)
    else:
        spool = SpoolReader(desk.descriptors, signature, tuple(Block(*block) for block in assignment["blocks"]))
    counts = tuple(assignment["counts"])
    order = Order(counts, plan.batch_size, plan.seed, plan.shuffle, window_rows_for(signature.row_bytes, len(counts)))
    feed = Feed(spool, order, tuple(Holding(*held) for held in assignment["holdings"]))
    return SpoolSteps(feed, is_ahead=bool(job.images))


def open_validation(
    job: FitJob, desk: Desk, assignment: dict[str, Any], framework: Framework, group: Group
) -> Steps | None:
    """This rank's part of the rows that a fit is validated on."""
    plan = job.plan.validation
    if plan is None:
        return None
    if job.validation_stream is not None:
        return StreamSteps(job.validation_stream, framework, group, job.plan.seed, plan.steps)
    about = assignment["validation"]
    rows = about["rows"] if plan.steps is None else min(about["rows"], plan.steps * plan.batch_size)
    groups = -(-rows // plan.rows_together)  # the last one may be short; whoever needs it whole will say so
    edges = [min(rows, groups * rank // desk.world * plan.rows_together) for rank in (desk.rank, desk.rank + 1)]
    begin, end = edges
    spool = pull(desk, "validation", _signature(about["tensors"]), begin, end)
    order = Order((end - begin,), max(1, plan.batch_size // desk.world), shuffle=False)
    return SpoolSteps(Feed(spool, order, (Holding(0, 0),)))


def _signature(tensors: list[list[Any]]) -> Signature:
    return Signature(tuple(TensorSpec(name, dtype, tuple(shape)) for name, dtype, shape in tensors))


class SpoolSteps:
    """Steps from rows that this rank holds; ``is_ahead``: made by a thread, where that takes longer than a copy."""

    def __init__(self, feed: Feed, *, is_ahead: bool = False) -> None:
        self._feed = feed
        self._is_ahead = is_ahead
        self.steps: int | None = feed.order.steps

    def run(self, data_pass: int, first: int, lead: int = 0) -> Iterator[Step]:
        """See ``Steps``."""
        feed = self._feed.after(lead)
        batches = feed.batches(data_pass, first)
        for step, batch in enumerate(ahead(batches) if self._is_ahead else batches, first):
            rows = feed.order.step_rows(step)
            yield Step(batch, rows_of(batch) / rows, rows, step + 1 == feed.order.steps)

    def sample(self) -> Batch | None:
        """See ``Steps``."""
        return self._feed.empty()


class ResizedSteps:
    """A data set made to last so many steps: cut, or begun anew as often as it takes."""

    def __init__(self, inner: Steps, count: int) -> None:
        self.steps: int | None = count
        self._inner = inner
        self._count = count

    def run(self, data_pass: int, first: int, lead: int = 0) -> Iterator[Step]:
        """See ``Steps``."""
        number = 0
        while number < self._count:
            begin = number
            for step in self._inner.run(data_pass, 0):
                if number >= first:
                    yield step._replace(is_last=number + 1 == self._count)
                number += 1
                if number == self._count:
                    return
            if number == begin:
                return  # no rows

    def sample(self) -> Batch | None:
        """See ``Steps``."""
        return self._inner.sample()


def create(framework: Any, stream: Stream, rank: int, size: int, batch_size: int | None) -> Any:
    """What a stream's creator makes for this rank. A framework may call creators in a way of its own."""
    if hasattr(framework, "create"):
        return framework.create(stream, rank, size)
    mine = {"rank": rank, "num_shards": size} if stream.auto_shard is False else {}
    return stream.source({**stream.config, **mine}, batch_size)


class StreamSteps:
    """Steps from a loader or a creator, which every replica runs for itself.

    Sharded by us: all replicas see the same batches, and each takes its part. Sharded by the user: each has rows of
    its own, and they agree before every step on how many there are, until nobody has any.
    """

    def __init__(self, stream: Stream, framework: Framework, group: Group, seed: int, limit: int | None = None) -> None:
        self.steps: int | None = None
        self._framework = framework
        self._group = group
        self._seed = seed
        self._limit = limit
        self._batch_size = stream.batch_size
        is_own = stream.auto_shard is False
        if is_own:
            self._batch_size = _share(stream.batch_size, group)
        if stream.is_creator:
            # Creators that draw numbers draw the same ones on every rank, for all must yield the same rows.
            random.seed(seed)
            np.random.seed(seed % 2**32)
            if hasattr(framework, "seed_process"):
                framework.seed_process(seed)
            source = create(framework, stream, group.rank, group.size, self._batch_size)
            is_sharded = getattr(framework, "is_sharded", None)
            if not is_own and group.size > 1 and is_sharded is not None and is_sharded(source):
                # It divides the rows itself, which shows only now: once more, for this replica's share of a step.
                self._batch_size = _share(stream.batch_size, group)
                source = create(framework, stream, group.rank, group.size, self._batch_size)
        else:
            source = stream.source
        self._is_own = framework.take_shard(source, group.rank, group.size) or is_own
        self._source = source

    def run(self, data_pass: int, first: int, lead: int = 0) -> Iterator[Step]:
        """See ``Steps``. Resuming inside a pass reads over what was consumed."""
        batches = self._framework.stream(self._source, self._batch_size, self._seed, data_pass)
        shares = self._own_rows(batches) if self._is_own else self._our_parts(batches)
        # One step ahead: whether a step is the last is known before it is made.
        ready: tuple[Batch, float, int] | None = None
        for number, share in enumerate(shares):
            if ready is not None:
                yield Step(*ready, is_last=False)
            ready = None if number < first else share
            if self._limit is not None and number + 1 == self._limit:
                break
        if ready is not None:
            yield Step(*ready, is_last=True)

    def sample(self) -> Batch | None:
        """See ``Steps``."""
        source = self._source
        if isinstance(source, Iterator):  # what is read of it is gone: put back what is looked at
            source = list(itertools.islice(self._source, 1))
            self._source = itertools.chain(source, self._source)
        return next(iter(self._framework.stream(source, self._batch_size, self._seed, BEFORE_ALL)), None)

    def _our_parts(self, batches: Iterator[Batch]) -> Iterator[tuple[Batch, float, int]]:
        rank, size = self._group.rank, self._group.size
        for number, batch in enumerate(batches):
            rows = rows_of(batch)
            # Who gets the odd row moves on with the step, so that no rank is always the short one.
            turn = number % size
            begin, end = (rows * rank + turn) // size, (rows * (rank + 1) + turn) // size
            if rows:
                yield {name: values[begin:end] for name, values in batch.items()}, (end - begin) / rows, rows

    def _own_rows(self, batches: Iterator[Batch]) -> Iterator[tuple[Batch, float, int]]:
        batch = next(batches, None)
        empty = self._empty(batch)
        while True:
            mine = 0 if batch is None else rows_of(batch)
            count = np.array([mine, batch is not None], dtype=np.int64)
            self._group.all_reduce(count)
            if count[1] == 0:
                return
            rows = int(count[0])
            if rows:
                yield (empty if batch is None else batch), mine / rows, rows
            batch = next(batches, None)

    def _empty(self, batch: Batch | None) -> Batch:
        """A batch of no rows, in the shape that somebody's first batch has: this rank may have none at all."""
        mine = [] if batch is None else [[name, v.dtype.str, list(v.shape[1:])] for name, v in batch.items()]
        for data in self._group.gather_bytes(json.dumps(mine).encode()):
            if tensors := json.loads(data):
                return {name: np.empty((0, *shape), dtype) for name, dtype, shape in tensors}
        raise PlanError("the data creator gave no batch on any replica")


def _share(rows: int | None, group: Group) -> int | None:
    """This replica's part of a step's rows; at least one."""
    return None if rows is None else max(1, rows // group.size + (group.rank < rows % group.size))
