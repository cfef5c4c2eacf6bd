"""Passes over an RDD or a DataFrame that feed it to nodes: training, once or again and again; and inference."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark import RDD
from pyspark.core.rdd import PipelinedRDD

from firesteel.data.item_rows import kinds_of
from firesteel.engine.feeder import answer_items, feed_items, feed_rows
from firesteel.engine.feeding import Pass
from firesteel.engine.nodes import Nodes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["answers", "feed"]

_ROW_SCHEMA = "partition int"
_CANCEL_SECONDS = 10.0
_AHEAD = 2
"""Passes under way: while the last partitions of one are taken, the first of the next are on their way."""


def feed(nodes: Nodes, data: RDD[Any] | DataFrame, epochs: int, timeout_seconds: float, queue: str) -> None:
    """Feed ``data`` so many times; 0 means until the nodes have had enough. Driver only.

    Returns when all was taken, or when the nodes want no more. Raises what failed: a node, an item, or Spark's job.
    """
    nodes.check()
    under_way: list[_Feed] = []
    try:
        for _ in range(epochs) if epochs else itertools.count():
            while len(under_way) >= _AHEAD or (under_way and not under_way[-1].is_handed_out):
                _wait(nodes, under_way, queue)
                if nodes.feeding.is_over(queue):
                    break
            if nodes.feeding.is_over(queue):
                break
            under_way.append(_Feed(nodes, data, queue, timeout_seconds))
        while under_way and not nodes.feeding.is_over(queue):
            _wait(nodes, under_way, queue)
    finally:
        for each in under_way:
            each.close()
    nodes.check()


def _wait(nodes: Nodes, under_way: list[_Feed], queue: str) -> None:
    """Wait for a change, and close what is over."""
    last = under_way[-1]
    was_handed_out = last.is_handed_out
    nodes.wait(
        lambda: (
            under_way[0].is_over
            or any(each.has_failed for each in under_way)
            or last.is_handed_out != was_handed_out
            or nodes.feeding.is_over(queue)
        )
    )
    nodes.check()
    for each in list(under_way):
        each.check()
        if each.is_over:
            each.close()
            under_way.remove(each)


class _Feed:
    """One pass over the data: its Spark job, in a thread of its own."""

    def __init__(self, nodes: Nodes, data: RDD[Any] | DataFrame, queue: str, timeout_seconds: float) -> None:
        from pyspark.util import InheritableThread

        self.is_over = False
        self._nodes = nodes
        self._error: Exception | None = None
        self._tag = f"firesteel-feed-{secrets.token_hex(6)}"
        # Before the pass is open: nodes wait for what is.
        partitions = data.getNumPartitions() if isinstance(data, RDD) else None
        kinds = {} if isinstance(data, RDD) else kinds_of(data.schema)
        self._pass = nodes.feeding.open(queue, partitions)
        card = nodes.feed_card(self._pass, timeout_seconds)
        self._run: Callable[[], Any]
        if isinstance(data, RDD):
            self._context = data.context
            self._run = data.mapPartitionsWithIndex(partial(feed_items, card)).collect
        else:
            self._context = data.sparkSession.sparkContext
            self._run = data.mapInArrow(partial(feed_rows, card, kinds), _ROW_SCHEMA).collect
        self._thread = InheritableThread(target=self._work, name="firesteel-feed", daemon=True)
        self._thread.start()

    @property
    def is_handed_out(self) -> bool:
        """Whether the next pass may begin."""
        return self.is_over or self._pass.is_handed_out

    @property
    def has_failed(self) -> bool:
        """Whether ``check`` would raise."""
        return self._pass.error is not None or self._error is not None

    def check(self) -> None:
        """Raise what went wrong: a task's own error, as it was told, before Spark's report of it."""
        if self._pass.error is not None:
            raise self._pass.error
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Cancel what still runs, wait for its end, and let everybody forget about it."""
        if not self.is_over:
            self._context.cancelJobsWithTag(self._tag)
            self._thread.join(_CANCEL_SECONDS)
        self._nodes.feeding.close(self._pass)

    def _work(self) -> None:
        context = self._context
        context.addJobTag(self._tag)
        context.setInterruptOnCancel(True)
        try:
            self._run()
        except Exception as error:  # noqa: BLE001 - handed to the thread that waits
            self._error = error
        finally:
            context.removeJobTag(self._tag)
            self.is_over = True
            self._nodes.wake()


def answers(nodes: Nodes, rdd: RDD[Any], timeout_seconds: float, queue: str) -> RDD[Any]:
    """An RDD with one result for each item of ``rdd``; nothing runs before an action. Driver only."""
    nodes.check()
    current = nodes.feeding.open(queue, None, is_inference=True)
    card = nodes.feed_card(current, timeout_seconds)
    return _Answers(rdd, partial(answer_items, card), _Fault(nodes, current))


class _Fault:
    """Turns Spark's report of a failed job into what has failed."""

    def __init__(self, nodes: Nodes, current: Pass) -> None:
        self._nodes, self._pass = nodes, current

    def check(self) -> None:
        """Raise it, if it was a node or an item."""
        if self._pass.error is not None:
            raise self._pass.error
        self._nodes.check()


class _Answers(PipelinedRDD[Any, Any]):
    """An RDD whose actions raise what a node raised, and so do those of the RDDs that are mapped from it."""

    def __init__(self, prev: RDD[Any], func: Any, fault: _Fault, is_partitioned: bool = False) -> None:
        super().__init__(prev, func, is_partitioned)
        self._fault = fault

    def mapPartitionsWithIndex(  # noqa: N802 - Spark's name
        self,
        f: Callable[[int, Iterable[Any]], Iterable[Any]],
        preservesPartitioning: bool = False,  # noqa: N803
    ) -> RDD[Any]:
        """As Spark's; the errors stay the nodes' own."""
        return _Answers(self, f, self._fault, preservesPartitioning)

    def toLocalIterator(self, prefetchPartitions: bool = False) -> Iterator[Any]:  # noqa: N802, N803
        """As Spark's."""
        found = super().toLocalIterator(prefetchPartitions)

        def check_each() -> Iterator[Any]:
            while True:
                with _Checking(self._fault):
                    try:
                        value = next(found)
                    except StopIteration:
                        return
                yield value

        return check_each()


class _Checking:
    """While inside, Spark's errors are looked behind."""

    def __init__(self, fault: _Fault) -> None:
        self._fault = fault

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            self._fault.check()


def _checked(name: str) -> Callable[..., Any]:
    def action(self: _Answers, *arguments: Any, **options: Any) -> Any:
        with _Checking(self._fault):
            return getattr(PipelinedRDD, name)(self, *arguments, **options)

    action.__name__ = name
    action.__doc__ = getattr(PipelinedRDD, name).__doc__
    return action


# The actions that run jobs themselves; the others (sum, count, reduce, foreach, first, ...) are made of these.
for _name in (
    "collect",
    "collectWithJobGroup",
    "saveAsHadoopDataset",
    "saveAsHadoopFile",
    "saveAsNewAPIHadoopDataset",
    "saveAsNewAPIHadoopFile",
    "saveAsPickleFile",
    "saveAsSequenceFile",
    "saveAsTextFile",
    "take",
):
    setattr(_Answers, _name, _checked(_name))
