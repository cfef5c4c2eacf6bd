"""A node's end of the feed: partitions come in over connections of their own, and are taken in batches.

Whoever feeds (``engine.feeder``) connects to the node itself, proves that it belongs to the cluster, and says which
partition it brings: a *lane*. It sends runs of items, as columns; it hears how many were taken, and may send no more
than so many bytes that were not. What is taken is taken once: should a task be repeated, it is told where to go on.

Nothing here makes Python values of items before the program asks for them.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from firesteel.cluster.gate import Gate
from firesteel.cluster.tls import Certificate, Sealed
from firesteel.cluster.wire import Buffer, Link, WireError
from firesteel.core.errors import PlanError, UnknownName
from firesteel.data.items import Column, decode, encode

__all__ = ["Inbox", "Queue", "Run"]

_log = logging.getLogger(__name__)

_HANDSHAKE_SECONDS = 10.0
_FAREWELL_SECONDS = 5.0
_GUESTS = 256

Key = tuple[str, int]
"""A pass over the data, and the partition."""


class Run(NamedTuple):
    """Some items that lie in one column, one after the other."""

    column: Column
    begin: int
    end: int

    def items(self) -> list[Any]:
        """As Python values."""
        return self.column.take(self.begin, self.end)


@dataclass(eq=False)
class _Lane:
    key: Key
    queue: Queue
    link: Link
    wants_results: bool
    position: int
    """Of the next item to be taken, counted from the partition's first."""
    answered: int = 0
    total: int | None = None
    runs: deque[Run] = field(default_factory=deque)
    outbox: deque[tuple[dict[str, Any], Sequence[Buffer]]] = field(default_factory=deque)
    told: int = 0
    """The position that the feeder knows of."""
    is_open: bool = True

    @property
    def is_taken(self) -> bool:
        """Whether nothing more will come of it."""
        return not self.is_open or (self.total is not None and self.position >= self.total)

    @property
    def is_done(self) -> bool:
        """Whether its feeder may go."""
        return self.is_taken and (not self.wants_results or self.answered == self.total)


class Queue:
    """What is fed under one name."""

    def __init__(self, inbox: Inbox, name: str) -> None:
        self.name = name
        self.is_met = False
        """Whether the program has come to the end of the feed."""
        self._inbox = inbox
        self._change = inbox._change
        self._lanes: list[_Lane] = []
        self._is_ended = False
        self._is_over = False
        self._is_expected = False
        self._takers = 0
        self._last: tuple[_Lane | None, int] = (None, 0)

    def take(self, count: int, *, by_partition: bool) -> list[Run]:
        """The next items: ``count`` of them, or fewer at the end of the feed (or of a partition). Waits for them."""
        runs: list[Run] = []
        left = count
        bound: _Lane | None = None  # the only lane that this batch may be from
        with self._change:
            while left:
                lane = self._filled(bound)
                if lane is None:
                    if bound is not None and bound.is_taken:
                        break
                    if bound is None and self._is_at_end():
                        self.is_met = True
                        break
                    self._wait()
                    continue
                if by_partition or lane.wants_results:
                    bound = lane
                run = self._take_from(lane, left)
                runs.append(run)
                left -= run.end - run.begin
            self._last = (bound, count - left)
        return runs

    def answer(self, results: Iterable[Any]) -> None:
        """Send the last batch's results to where it came from. ``PlanError`` where it had another number of items."""
        values = list(results)
        lane, count = self._last
        if len(values) != count:
            raise PlanError(f"{len(values)} results for a batch of {count} items: each item needs one")
        if lane is None or not lane.wants_results or not values:
            return
        described = encode(values)
        message = {"kind": "results", "count": count, "what": described.what}
        with self._change:
            self._last = (None, 0)
            lane.answered += count
            lane.outbox.append((message, described.buffers))
            self._change.notify_all()

    def terminate(self) -> None:
        """Nobody here or elsewhere wants any more of it: what is queued is dropped, and feeders stop."""
        if not self._is_over:
            self._inbox.tell({"name": "terminate", "queue": self.name})
        self.stop()
        self.is_met = True

    def is_starved(self) -> bool:
        """Whether the program waits for items of which none are on their way, for now."""
        with self._change:
            return self._takers > 0 and self._is_idle()

    # --- called by the inbox ---

    def stop(self) -> None:
        """The feed was ended by some node."""
        with self._change:
            self._is_over = True
            for lane in self._lanes:
                lane.runs.clear()
                lane.outbox.append(({"kind": "over"}, ()))
                lane.is_open = False
            self._lanes.clear()
            self._change.notify_all()

    def end(self) -> None:
        """Nothing more will be fed, after what is on its way."""
        with self._change:
            self._is_ended = True
            self._change.notify_all()

    def expect(self, is_expected: bool) -> None:
        """Whether the driver has something for this node."""
        with self._change:
            self._is_expected = is_expected
            self._change.notify_all()

    def admit(self, lane: _Lane) -> bool:
        """Take a new lane; false where nobody wants it any more."""
        with self._change:
            if self._is_over:
                return False
            self._lanes.append(lane)
            self._change.notify_all()
            return True

    def drop(self, lane: _Lane) -> None:
        """Its feeder has gone."""
        with self._change:
            lane.is_open = False
            lane.runs.clear()
            if lane in self._lanes:
                self._lanes.remove(lane)
            self._change.notify_all()

    def sort_out(self, lane: _Lane) -> None:
        """Forget a lane of which everything was taken."""
        if lane.is_taken and lane in self._lanes:
            self._lanes.remove(lane)

    # --- with the lock ---

    def _wait(self) -> None:
        self._takers += 1
        try:
            self._change.wait()
        finally:
            self._takers -= 1

    def _filled(self, bound: _Lane | None) -> _Lane | None:
        lanes = self._lanes if bound is None else [bound]
        return next((lane for lane in lanes if lane.runs), None)

    def _take_from(self, lane: _Lane, count: int) -> Run:
        column, begin, end = lane.runs.popleft()
        middle = min(end, begin + count)
        if middle < end:
            lane.runs.appendleft(Run(column, middle, end))
        lane.position += middle - begin
        self.sort_out(lane)
        self._change.notify_all()
        return Run(column, begin, middle)

    def _is_at_end(self) -> bool:
        return self._is_over or (self._is_ended and not self._lanes and not self._is_expected)

    def _is_idle(self) -> bool:
        return not self._is_expected and not self._lanes and not self._is_at_end()


class Inbox:
    """All that is fed to this node; lives in its process, for as long as its program runs.

    Args:
        listener: a socket that listens; ``None`` where nothing is ever fed.
        secret: the cluster's.
        sealed: for TLS, where connections are encrypted.
        queues: the names there are.
        tell: sends an event to the driver.
    """

    def __init__(
        self,
        listener: socket.socket | None,
        secret: bytes,
        sealed: Sealed | None,
        queues: Sequence[str],
        tell: Callable[[dict[str, Any]], None],
    ) -> None:
        self.tell = tell
        self._change = threading.Condition()
        self._queues = {name: Queue(self, name) for name in queues}
        self._ledger: dict[Key, int] = {}
        self._has_left = False
        self._lanes: dict[_Lane, threading.Thread] = {}
        """All that are connected, with the thread that writes to each."""
        self._listener = listener
        self.is_fed = listener is not None
        if listener is not None:
            certificate = Certificate(sealed) if sealed else None
            self._gate = Gate(secret, world=_GUESTS, timeout_seconds=_HANDSHAKE_SECONDS, certificate=certificate)
            _start(self._accept, "inbox")

    def queue(self, name: str) -> Queue:
        """The one of this name."""
        if name not in self._queues:
            raise UnknownName("queue", name, self._queues)
        return self._queues[name]

    def is_starved(self) -> bool:
        """Whether the program waits for items, and nothing is here or on its way."""
        return any(queue.is_starved() for queue in self._queues.values())

    def hear(self, message: dict[str, Any]) -> None:
        """What the driver says."""
        kind = message["kind"]
        if kind == "end":
            for queue in self._queues.values():
                queue.end()
        elif kind == "over":
            self._queues[message["queue"]].stop()
        elif kind == "expect":
            self._queues[message["queue"]].expect(message["value"])
        elif kind == "forget":
            with self._change:
                self._ledger = {key: at for key, at in self._ledger.items() if key[0] != message["pass"]}

    def leave(self) -> None:
        """The program has returned: what was not taken goes to others. Waits until their feeders know."""
        if self._listener is None:
            return
        with self._change:
            self._has_left = True
            for lane in self._lanes:
                if lane.is_open and not lane.is_done:
                    lane.outbox.append((_farewell(lane), ()))
                    self._drop(lane)
            unfinished = [[*key, position] for key, position in self._ledger.items()]
            writers = list(self._lanes.values())
        self.tell({"name": "left", "positions": unfinished})
        end = time.monotonic() + _FAREWELL_SECONDS
        for writer in writers:
            writer.join(max(0.0, end - time.monotonic()))
        with contextlib.suppress(OSError):  # a thread that waits in accept would not notice the close
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    # --- each connection's own threads ---

    def _accept(self) -> None:
        assert self._listener is not None
        while True:
            try:
                connection, peer = self._listener.accept()
            except OSError:
                return  # closed
            _start(partial(self._serve, connection, peer[0]), "feeder")

    def _serve(self, connection: socket.socket, host: str) -> None:
        try:
            stream = self._gate.admit(connection, host)
            if stream is None:
                return
            connection.settimeout(None)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = Link(stream)
            received = link.receive()
            if received is not None:
                self._receive(link, received[0])
        except (OSError, WireError) as error:
            _log.debug("a feeder's connection was lost: %s", error)
        finally:
            connection.close()

    def _receive(self, link: Link, hello: dict[str, Any]) -> None:
        key = (str(hello["pass"]), int(hello["partition"]))
        queue = self._queues[hello["queue"]]
        with self._change:
            for other in [each for each in self._lanes if each.key == key]:
                self._drop(other)  # an attempt that is no more, as Spark sees it, though its connection is still open
            position = max(int(hello["position"]), self._ledger.get(key, 0))
            lane = _Lane(key, queue, link, bool(hello["results"]), position, answered=position, told=position)
            if self._has_left or not queue.admit(lane):
                link.send(_farewell(lane) if self._has_left else {"kind": "over"})
                return
            link.send({"kind": "at", "position": position})
            writer = self._lanes[lane] = _start(lambda: self._write(lane), "lane")
        try:
            while (received := link.receive()) is not None:
                self._enter(lane, *received)
        finally:
            with self._change:
                self._drop(lane)
            writer.join()
            with self._change:
                del self._lanes[lane]

    def _drop(self, lane: _Lane) -> None:
        """Nothing more of it is taken; where it stood is known to whoever comes again."""
        if not lane.wants_results:
            self._ledger[lane.key] = max(lane.position, self._ledger.get(lane.key, 0))
        lane.queue.drop(lane)

    def _enter(self, lane: _Lane, message: dict[str, Any], buffers: list[bytearray]) -> None:
        with self._change:
            if message["kind"] == "end":
                lane.total = int(message["total"])
                lane.queue.sort_out(lane)
            elif lane.is_open:
                lane.runs.append(Run(decode(message["what"], buffers), int(message["skip"]), int(message["count"])))
            self._change.notify_all()

    def _write(self, lane: _Lane) -> None:
        """Say what was taken, and the results, until there is nothing more to say."""
        while True:
            with self._change:
                self._change.wait_for(
                    lambda: lane.outbox or lane.told != lane.position or lane.is_done or not lane.is_open
                )
                messages = list(lane.outbox)
                lane.outbox.clear()
                if lane.told != lane.position and lane.is_open:
                    messages.insert(0, ({"kind": "taken", "position": lane.position}, ()))
                lane.told = lane.position
                is_done = lane.is_done and lane.is_open
                is_last = lane.is_done or not lane.is_open
            try:
                for message, buffers in messages:
                    lane.link.send(message, buffers)
                if is_done:
                    lane.link.send({"kind": "done"})
            except (OSError, WireError):
                return  # its reader notices
            if is_last:
                return


def _start(target: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=target, name=f"firesteel-{name}", daemon=True)
    thread.start()
    return thread


def _farewell(lane: _Lane) -> dict[str, Any]:
    return {"kind": "left", "position": lane.position, "answered": lane.answered}
