"""The driver's view of the feed: which node takes which partition, and what became of it.

Feeding tasks visit (``cluster.visit``) and ask. A partition goes to the node that is fed by the fewest others at the
moment, then to the one that has been given the fewest; a task that is repeated goes back to the node of its last
attempt, and a partition that was taken whole is not fed again.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from firesteel.cluster.deadlines import Overdue
from firesteel.core.errors import ClusterError

__all__ = ["Feeding", "Pass"]

_ERRORS: dict[str, type[Exception]] = {each.__name__: each for each in (TypeError, Overdue, ClusterError)}


@dataclass
class _Part:
    """A partition of a pass: the node that has it, the task that feeds it now, and whether all of it was taken."""

    node: int
    visitor: _Visitor | None = None
    is_done: bool = False


@dataclass
class Pass:
    """One pass over the data; or one inference, which has no partitions of its own, for each action runs it anew."""

    key: str
    queue: str
    partitions: int | None
    """How many there are; ``None`` until the first one comes, where only Spark knows."""
    is_open: bool = True
    parts: dict[int, _Part] = field(default_factory=dict)
    given: dict[int, int] = field(default_factory=dict)
    """By node, how many partitions it was given."""
    error: Exception | None = None
    """What a feeding task could not get over."""

    @property
    def is_handed_out(self) -> bool:
        """Whether every partition has a node."""
        return self.partitions is not None and len(self.parts) >= self.partitions


class _Visitor:
    """A feeding task that is here now; see ``cluster.coordinator.Visitor``."""

    def __init__(self, feeding: Feeding) -> None:
        self.node: int | None = None
        """The node that it feeds."""
        self.queue = ""
        self.part: _Part | None = None
        self._feeding = feeding

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """What to do."""
        return self._feeding.answer(self, question)

    def leave(self) -> None:
        """It has gone."""
        self._feeding.leave(self)


class Feeding:
    """Lives as long as the cluster.

    Args:
        members: the nodes that are fed.
        queues: the names there are.
        tell: sends a message to a node.
        why_lost: waits until it is known what became of a node that cannot be reached: the text of its failure, or
            ``None`` where it has returned.
        changed: called after every change.
        count_tasks: how many tasks a stage of Spark's has.
        may_speculate: whether Spark may run two attempts at a task at the same time.
    """

    def __init__(
        self,
        members: Sequence[int],
        queues: Sequence[str],
        tell: Callable[[int, dict[str, Any]], None],
        why_lost: Callable[[int], str | None],
        changed: Callable[[], None],
        count_tasks: Callable[[int], int | None],
        *,
        may_speculate: bool = False,
    ) -> None:
        self._members = list(members)
        self._queues = tuple(queues)
        self._tell = tell
        self._why_lost = why_lost
        self._changed = changed
        self._count_tasks = count_tasks
        self._may_speculate = may_speculate
        self._left: set[int] = set()
        self._over: set[str] = set()
        self._passes: dict[str, Pass] = {}
        self._visitors: set[_Visitor] = set()
        self._positions: dict[tuple[str, int], int] = {}  # how far a partition was taken by nodes that have returned
        self._expected: set[tuple[str, int]] = set()
        self._failure: str | None = None
        self._numbers = itertools.count()
        self._change = threading.Condition()

    def open(self, queue: str, partitions: int | None, *, is_inference: bool = False) -> Pass:
        """Begin a pass."""
        with self._change:
            key = f"{'inference' if is_inference else 'pass'}-{next(self._numbers)}"
            made = self._passes[key] = Pass(key, queue, 0 if is_inference else partitions)
            self._tell_expected()
            return made

    def close(self, done: Pass) -> None:
        """A pass is over: nodes may forget where its partitions stood."""
        with self._change:
            done.is_open = False
            del self._passes[done.key]
            self._positions = {place: at for place, at in self._positions.items() if place[0] != done.key}
            self._tell_expected()
            self._change.notify_all()
            for node in self._here():
                self._tell(node, {"kind": "forget", "pass": done.key})

    def is_over(self, queue: str) -> bool:
        """Whether nobody wants anything more under this name."""
        with self._change:
            return queue in self._over or not self._here()

    def end(self) -> None:
        """Tell all nodes that nothing more will come."""
        with self._change:
            for node in self._here():
                self._tell(node, {"kind": "end"})

    def fail(self, text: str) -> None:
        """The cluster has failed: whoever asks is told so."""
        with self._change:
            self._failure = self._failure or text
            self._change.notify_all()

    def hear(self, node: int, event: dict[str, Any]) -> None:
        """What a node tells: that it wants no more, or that its program has returned."""
        with self._change:
            if event["name"] == "terminate":
                self._over.add(event["queue"])
                for other in self._here():
                    if other != node:
                        self._tell(other, {"kind": "over", "queue": event["queue"]})
            elif event["name"] == "left":
                self._left.add(node)
                for key, partition, position in event["positions"]:
                    self._note(key, partition, position)
                self._tell_expected()
            self._change.notify_all()
        self._changed()

    def visitor(self) -> _Visitor:
        """The ear for a feeding task."""
        made = _Visitor(self)
        with self._change:
            self._visitors.add(made)
        return made

    # --- called by visitors ---

    def answer(self, visitor: _Visitor, question: dict[str, Any]) -> dict[str, Any]:
        """What a feeding task is to do."""
        lost = question.get("node")
        text = None if lost is None else self._why_lost(lost)
        with self._change:
            found = self._passes.get(question["pass"])
            if found is not None and found.partitions is None:
                found.partitions = self._count_tasks(question["stage"])
            if text is not None or self._failure is not None:
                return {"kind": "failed", "text": text or self._failure}
            if found is None:
                return {"kind": "over", "text": "nobody waits for this feed any more"}
            answer = self._answer(visitor, found, question)
            self._tell_expected()
            self._change.notify_all()
        self._changed()
        return answer

    def leave(self, visitor: _Visitor) -> None:
        """A feeding task has gone, done or not."""
        with self._change:
            self._visitors.discard(visitor)
            if visitor.part is not None and visitor.part.visitor is visitor:
                visitor.part.visitor = None
            self._tell_expected()
            self._change.notify_all()
        self._changed()

    # --- with the lock ---

    def _answer(self, visitor: _Visitor, current: Pass, question: dict[str, Any]) -> dict[str, Any]:
        kind, partition = question["kind"], question["partition"]
        if kind == "refused":
            current.error = current.error or _ERRORS.get(question["error"], ClusterError)(question["text"])
            return {"kind": "ok"}
        if kind == "done":
            assert visitor.part is not None
            visitor.part.is_done = True
            visitor.node = None
            return {"kind": "done"}
        gone = question.get("left", question.get("node"))
        if gone is not None:
            self._left.add(gone)
        if question["results"]:
            visitor.part = None
            return self._assign(visitor, current, partition, question.get("position", 0))
        self._note(current.key, partition, question.get("position", 0))
        part = current.parts.get(partition)
        if part is not None and part.visitor not in (None, visitor) and self._may_speculate:
            # Another attempt is at it: this one waits for its end, and has nothing to do if that was a good one.
            self._change.wait_for(lambda: part.visitor is None or self._failure is not None or not current.is_open)
        if part is not None and part.is_done:
            return {"kind": "done"}
        visitor.part = part
        answer = self._assign(visitor, current, partition, self._positions[current.key, partition])
        if visitor.part is not None:
            current.parts[partition] = visitor.part
        return answer

    def _assign(self, visitor: _Visitor, current: Pass, partition: int, position: int) -> dict[str, Any]:
        """A node for this task: the one that has the partition already, or the least busy."""
        visitor.node = None
        if current.queue in self._over:
            return {"kind": "over", "text": "a node has ended the feed (terminate)"}
        here = self._here()
        if not here:
            return {"kind": "over", "text": "all nodes have returned from their programs"}
        if visitor.part is None or visitor.part.node not in here:
            load = Counter(other.node for other in self._visitors)
            node = min(here, key=lambda each: (load[each], current.given.get(each, 0), each))
            current.given[node] = current.given.get(node, 0) + 1
            visitor.part = _Part(node)
        visitor.part.visitor = visitor
        visitor.node, visitor.queue = visitor.part.node, current.queue
        return {"kind": "node", "node": visitor.node, "position": position}

    def _note(self, key: str, partition: int, position: int) -> None:
        place = (key, partition)
        self._positions[place] = max(position, self._positions.get(place, 0))

    def _here(self) -> list[int]:
        return [node for node in self._members if node not in self._left]

    def _moves(self, current: Pass) -> bool:
        """Whether some partition is on its way from a node that has returned to another one."""
        return any(not part.is_done and part.node in self._left for part in current.parts.values())

    def _tell_expected(self) -> None:
        """Tell nodes whether something is on its way to them, where that has changed."""
        coming = {each.queue for each in self._passes.values() if not each.is_handed_out or self._moves(each)}
        fed = {(visitor.queue, visitor.node) for visitor in self._visitors}
        for queue, node in itertools.product(self._queues, self._here()):
            is_expected = queue in coming or (queue, node) in fed
            if is_expected != ((queue, node) in self._expected):
                self._expected ^= {(queue, node)}
                self._tell(node, {"kind": "expect", "queue": queue, "value": is_expected})
