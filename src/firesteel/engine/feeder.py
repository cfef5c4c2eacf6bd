"""The feeding end, in a Spark task: a partition's items go to one node, and an inference's results come back.

The task asks the driver which node to feed, connects to that node's inbox and sends runs of items, a few megabytes
ahead of what was taken. It keeps what was not taken yet: should the node return early, the rest goes to another one.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from firesteel.cluster.deadlines import Overdue
from firesteel.cluster.seat import Invitation, connect
from firesteel.cluster.visit import Visit
from firesteel.cluster.wire import Link, WireError
from firesteel.core.errors import ClusterError
from firesteel.data.items import Column, decode, encode

if TYPE_CHECKING:
    import pyarrow as pa

    from firesteel.data.item_rows import Kinds

__all__ = ["FeedCard", "answer_items", "feed_items", "feed_rows"]

_RUN_BYTES = 1 << 20
_RUN_ITEMS = 8192
_GROWTH = 8
_RUN_SECONDS = 0.1
_AHEAD_BYTES = 4 << 20
_UNREAD_BYTES = 16 << 20
_LOOK_SECONDS = 0.5


@dataclass(frozen=True)
class FeedCard:
    """What a feeding task needs. Travels inside the Spark closure only.

    Attributes:
        invitation: to the cluster's driver.
        door: to a node, but for its address.
        places: by node, where its inbox is.
        roles: by node, what it is.
        key: of this pass over the data.
        queue: under which name.
        timeout_seconds: how long nothing may be taken.
    """

    invitation: Invitation
    door: Invitation
    places: dict[int, tuple[str, int]]
    roles: dict[int, str]
    key: str
    queue: str
    timeout_seconds: float

    def name(self, node: int) -> str:
        """A node, in words."""
        return f"node {node} ({self.roles[node]}) on {self.places[node][0]}"


class _Piece(NamedTuple):
    """Some items on their way: where in the partition the first one is, how many, and their columns."""

    first: int
    size: int
    what: dict[str, Any]
    buffers: list[Any]
    nbytes: int

    @property
    def end(self) -> int:
        return self.first + self.size


class _Refused(Exception):
    """An item that cannot be fed; its cause says why."""


def feed_items(card: FeedCard, partition: int, items: Iterable[Any]) -> Iterator[Any]:
    """Feed a partition of an RDD. The body of a task; gives nothing."""
    _deliver(card, partition, lambda start: _pieces(items, start))
    return iter(())


def feed_rows(card: FeedCard, kinds: Kinds, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Feed a partition of a DataFrame. The body of a task; gives nothing."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    _deliver(card, context.partitionId(), lambda start: _row_pieces(batches, kinds, start))
    yield from ()


def answer_items(card: FeedCard, partition: int, items: Iterable[Any]) -> Iterator[Any]:
    """Feed a partition of an RDD and give one result for each item, in order. The body of a task."""
    with Visit(card.invitation) as visit:
        feed = _Feed(card, partition, visit, lambda start: _pieces(items, start), wants_results=True)
        try:
            for lane in feed.lanes():
                yield from _exchange(feed, lane)
        except _Refused as refused:
            raise feed.refuse(refused.__cause__) from None


def _deliver(card: FeedCard, partition: int, pieces: Callable[[int], Iterator[_Piece]]) -> None:
    with Visit(card.invitation) as visit:
        feed = _Feed(card, partition, visit, pieces)
        try:
            for lane in feed.lanes():
                _send_all(feed, lane)
        except _Refused as refused:
            raise feed.refuse(refused.__cause__) from None


def _send_all(feed: _Feed, lane: _Lane) -> None:
    for piece in feed.pieces(lane):
        if not lane.wait_room():
            return
        lane.send(piece)
    lane.end(feed.end)
    lane.wait_closed()


def _exchange(feed: _Feed, lane: _Lane) -> Iterator[Any]:
    """Send and receive in turns: the thread that reads the partition is the one that gives results."""
    pieces = feed.pieces(lane)
    is_all_sent = False
    while True:
        for column, count in lane.results():
            yield from column.take(0, count)
        if lane.is_closed:
            return
        if not is_all_sent and lane.has_room():
            piece = next(pieces, None)
            if piece is not None:
                lane.send(piece)
                continue
            is_all_sent = True
            lane.end(feed.end)
        lane.wait_news(is_room_news=not is_all_sent)


# --- one partition ----------------------------------------------------------------------------------------------------


class _Feed:
    """A partition on its way: to one node as a rule, to the next one where that has returned."""

    def __init__(
        self,
        card: FeedCard,
        partition: int,
        visit: Visit,
        pieces: Callable[[int], Iterator[_Piece]],
        *,
        wants_results: bool = False,
    ) -> None:
        self.end = 0
        """Where the partition ends, once that is known."""
        self._card = card
        self._partition = partition
        self._visit = visit
        self._make_pieces = pieces
        self._source: Iterator[_Piece] | None = None
        self._kept: deque[_Piece] = deque()
        self._wants_results = wants_results

    def lanes(self) -> Iterator[_Lane]:
        """Lanes to work on, one after the other, until all was taken or nobody wants it. Raises what went wrong."""
        answer = self._ask("node")
        while answer["kind"] == "node":
            node, start = int(answer["node"]), int(answer["position"])
            try:
                lane = _Lane(self._card, node, self._partition, start, self._wants_results)
            except (OSError, WireError):  # it has just gone; the driver knows how
                answer = self._ask("lost", node=node)
                continue
            with lane:
                if not lane.is_closed:
                    yield lane
            answer = self._close(lane)
        if answer["kind"] == "failed":
            raise ClusterError(answer["text"])
        if answer["kind"] == "over" and self._wants_results:
            raise self.refuse(ClusterError(f"partition {self._partition} has items without a result: {answer['text']}"))

    def pieces(self, lane: _Lane) -> Iterator[_Piece]:
        """What has to go down this lane: what the last one left, then what the partition still has."""
        if self._source is None:
            self._source = self._make_pieces(lane.position)
            self.end = lane.position
        yield from (piece for piece in list(self._kept) if piece.end > lane.position)
        for piece in self._source:
            while self._kept and self._kept[0].end <= lane.position:
                self._kept.popleft()
            self._kept.append(piece)
            self.end = piece.end
            yield piece

    def refuse(self, error: BaseException | None) -> BaseException:
        """Tell the driver of an error that the user has to see as it is; the error, to be raised."""
        assert error is not None
        self._ask("refused", error=type(error).__name__, text=str(error))
        return error

    def _close(self, lane: _Lane) -> dict[str, Any]:
        """What to do after a lane has come to its end."""
        if lane.state == "done":
            return self._ask("done")
        if lane.state == "left":
            if self._wants_results and lane.answered < lane.position:
                missing = lane.position - lane.answered
                who = self._card.name(lane.node)
                text = f"{who} has returned with {missing} items of partition {self._partition} taken and not answered"
                raise self.refuse(ClusterError(text))
            return self._ask("node", left=lane.node, position=lane.position)
        if lane.state == "overdue":
            raise self.refuse(Overdue(lane.overdue_text()))
        if lane.state == "over":
            return {"kind": "over", "text": "a node has ended the feed (terminate)"}
        return self._ask("lost", node=lane.node)

    def _ask(self, question: str, **more: Any) -> dict[str, Any]:
        about = {"pass": self._card.key, "partition": self._partition, "results": self._wants_results}
        return self._visit.ask({"kind": question, "stage": _stage(), **about, **more})


class _Lane:
    """A connection to a node's inbox; a context manager. One thread sends; what comes back is received by another."""

    def __init__(self, card: FeedCard, node: int, partition: int, start: int, wants_results: bool) -> None:
        host, port = card.places[node]
        self.node = node
        self.state = ""
        """How it ended: ``done``, ``left``, ``over``, ``lost``, ``overdue``."""
        self._card = card
        self._partition = partition
        self._wants_results = wants_results
        self._change = threading.Condition()
        self._sent: deque[_Piece] = deque()
        self._unread_bytes = 0
        self._results: deque[tuple[Column, int, int]] = deque()
        self._moved = time.monotonic()
        self._threads: list[threading.Thread] = []
        self._link = Link(connect(replace(card.door, host=host, port=port)))
        try:
            hello = {"kind": "lane", "pass": card.key, "partition": partition, "queue": card.queue}
            self._link.send({**hello, "position": start, "results": wants_results})
            received = self._link.receive()
        except (OSError, WireError):
            self._link.close()
            raise
        answer = {"kind": "lost"} if received is None else received[0]
        self.position = self.answered = self.sent = int(answer.get("position", start))
        if answer["kind"] != "at":
            self.state = answer["kind"]

    def __enter__(self) -> _Lane:
        if not self.state:
            for target in (self._receive, self._watch):
                thread = threading.Thread(target=target, name="firesteel-lane", daemon=True)
                self._threads.append(thread)
                thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._end("lost")
        self._link.close()
        for thread in self._threads:
            thread.join()

    @property
    def is_closed(self) -> bool:
        """Whether nothing more is to be expected of it."""
        return bool(self.state) and not self._results

    def send(self, piece: _Piece) -> None:
        """Send the items that are not at the node yet."""
        skip = max(0, self.sent - piece.first)
        with self._change:
            if self.sent == self._waiting_from():
                self._moved = time.monotonic()
            self._sent.append(piece)
            self.sent = piece.end
        message = {"kind": "items", "count": piece.size, "skip": skip, "what": piece.what}
        with contextlib.suppress(OSError, WireError):  # the receiver notices, and hears the node's last word first
            self._link.send(message, piece.buffers)

    def end(self, total: int) -> None:
        """Say that there is no more."""
        with contextlib.suppress(OSError, WireError):
            self._link.send({"kind": "end", "total": total})

    def has_room(self) -> bool:
        """Whether something may be sent now."""
        with self._change:
            return self._has_room()

    def wait_room(self) -> bool:
        """Wait until something may be sent; false where it is over."""
        with self._change:
            self._change.wait_for(lambda: self.state or self._has_room())
            return not self.state

    def wait_news(self, *, is_room_news: bool) -> None:
        """Wait for results, for room, or for the end."""
        with self._change:
            self._change.wait_for(lambda: self.state or self._results or (is_room_news and self._has_room()))

    def wait_closed(self) -> None:
        """Wait for the end."""
        with self._change:
            self._change.wait_for(lambda: self.state)

    def results(self) -> Iterator[tuple[Column, int]]:
        """What has come, in order."""
        while True:
            with self._change:
                if not self._results:
                    return
                column, count, nbytes = self._results.popleft()
                self._unread_bytes -= nbytes
            yield column, count

    def overdue_text(self) -> str:
        """What to say of a node that does nothing."""
        limit = f"for {self._card.timeout_seconds:g} s (feed_timeout)"
        if self.position < self.sent:
            waiting = f"while {self.sent - self.position} items of partition {self._partition} wait for it"
            return f"{self._card.name(self.node)} has taken no item {limit} {waiting}"
        taken = f"of partition {self._partition}, of which it has {self.position - self.answered} unanswered"
        return f"{self._card.name(self.node)} has given no result {limit} {taken}"

    def _waiting_from(self) -> int:
        return self.answered if self._wants_results else self.position

    def _has_room(self) -> bool:
        while self._sent and self._sent[0].end <= self.position:
            self._sent.popleft()
        return sum(piece.nbytes for piece in self._sent) < _AHEAD_BYTES and self._unread_bytes < _UNREAD_BYTES

    def _receive(self) -> None:
        try:
            while (received := self._link.receive()) is not None:
                message, buffers = received
                kind = message["kind"]
                with self._change:
                    self._moved = time.monotonic()
                    if kind in ("taken", "left"):
                        self.position = int(message["position"])
                    elif kind == "results":
                        nbytes = sum(map(len, buffers))
                        self._results.append((decode(message["what"], buffers), int(message["count"]), nbytes))
                        self._unread_bytes += nbytes
                        self.answered += int(message["count"])
                    self._change.notify_all()
                if kind in ("done", "left", "over"):
                    self._end(kind)
                    return
        except (OSError, WireError):
            pass
        self._end("lost")

    def _watch(self) -> None:
        """Notice a node that does nothing."""
        with self._change:
            while not self.state:
                is_waiting = self._waiting_from() < self.sent
                if is_waiting and time.monotonic() - self._moved > self._card.timeout_seconds:
                    self.state = "overdue"
                    self._change.notify_all()
                    break
                self._change.wait(_LOOK_SECONDS)
        if self.state == "overdue":
            self._link.close()  # a send may hang in it

    def _end(self, state: str) -> None:
        with self._change:
            self.state = self.state or state
            self._change.notify_all()


def _stage() -> int | None:
    """The number of the stage that this task belongs to."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return None if context is None else int(context.stageId())


# --- pieces -----------------------------------------------------------------------------------------------------------


def _pieces(items: Iterable[Any], start: int) -> Iterator[_Piece]:
    """The items from ``start`` on, in pieces of about a megabyte; sooner where items are slow in coming."""
    left = iter(items)
    next(itertools.islice(left, start, start), None)  # a repeated task goes on where the last one stood
    first, wanted = start, 1
    while batch := _gather(left, wanted):
        try:
            described = encode(batch)
        except TypeError as error:
            raise _Refused from error
        nbytes = described.nbytes
        yield _Piece(first, len(batch), described.what, described.buffers, nbytes)
        first += len(batch)
        wanted = min(wanted * _GROWTH, _RUN_ITEMS, max(1, _RUN_BYTES * len(batch) // max(1, nbytes)))


def _gather(left: Iterator[Any], wanted: int) -> list[Any]:
    batch = []
    end = time.monotonic() + _RUN_SECONDS
    for item in left:
        batch.append(item)
        if len(batch) >= wanted or time.monotonic() > end:
            break
    return batch


def _row_pieces(batches: Iterator[pa.RecordBatch], kinds: Kinds, start: int) -> Iterator[_Piece]:
    from firesteel.data.item_rows import rows_as_items

    first = 0
    for batch in batches:
        rows = max(1, _RUN_BYTES * batch.num_rows // max(1, batch.nbytes))
        begin = max(0, start - first)
        for low in range(begin, batch.num_rows, rows):
            part = batch.slice(low, min(rows, batch.num_rows - low))
            described = rows_as_items(part, kinds)
            yield _Piece(first + low, part.num_rows, described.what, described.buffers, described.nbytes)
        first += batch.num_rows
