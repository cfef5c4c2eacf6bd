"""The driver's end of a gang: seats ranks, hands each its assignment, hears of every failure first.

A small TCP server, bound to the driver's own address, open only to those who know the job's secret. Ranks take
their seats, say what they hold, and begin together once all have; then it passes on events, answers key-value
requests (how a group's members find each other) and hands out rows that live on the driver.

When a rank is lost, the gang re-forms: the others stop at once, a newcomer takes the empty seat (Spark's own retry of
the task, a duplicate attempt that waited, or the same task with a new connection), all say again what they hold, and
begin together in the next generation. What is said in an older generation is dropped.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from firesteel.cluster.board import Board, Reply
from firesteel.cluster.deadlines import Deadlines, setting
from firesteel.cluster.failure import Budget, Failure
from firesteel.cluster.gate import Gate
from firesteel.cluster.pulse import Beat
from firesteel.cluster.tls import Certificate
from firesteel.cluster.wire import Buffer, Link, WireError
from firesteel.core.errors import ClusterError, EnvironmentMismatch, SyncError

__all__ = ["Assignments", "Coordinator", "OnEvent", "OnFetch", "OnVisit", "Reports", "Visitor"]

_log = logging.getLogger(__name__)

_THREAD_SECONDS = 1.0
_ACCEPT_PAUSE_SECONDS = 0.2

Reports = list[dict[str, Any]]
Assignments = list[dict[str, Any]]
OnEvent = Callable[[int, dict[str, Any], list[bytearray]], None]
OnFetch = Callable[[dict[str, Any]], tuple[dict[str, Any], Sequence[Buffer]]]
OnVisit = Callable[[], "Visitor"]


class Visitor(Protocol):
    """The driver's ear for one visitor: a task of another job, which has no seat but something to ask."""

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """What to say. May take its time: nobody but this visitor waits for it."""

    def leave(self) -> None:
        """It has gone."""


@dataclass
class _Seat:
    rank: int
    link: Link
    host: str
    task: int | None = None
    """Spark's number of the task attempt."""
    is_being_served: bool = False
    """While the driver works on this rank's message it does not listen to it, and the silence is its own."""
    since: int = 0
    """The generation in which it was taken."""
    report: dict[str, Any] | None = None
    beat: Beat = field(default_factory=lambda: Beat())
    moved: float = field(default_factory=time.monotonic)
    """When its child last gave a sign of life."""


class Coordinator:
    """Lives on the driver for the length of one launch; a context manager.

    Args:
        world: how many ranks there are.
        secret: the job's secret; it reaches the tasks inside the Spark closure and no other way.
        host: the driver's address, as tasks reach it.
        bind: the driver's own address that the server is bound to, where that is another one (a container's).
        arrange: turns all ranks' reports into their assignments; an error from it ends the launch.
        on_event: takes what ranks tell the driver; called by one thread at a time.
        on_fetch: answers a rank's request for data that lives on the driver.
        versions: packages and versions on the driver, which every task must have too.
        budget: which losses the gang gets over; none unless given.
        min_workers: how many seats must be taken for ``is_short_handed`` instead of a failure; default all.
        evict: ends a task attempt that is silent, so that Spark starts another: nobody else would notice.
        certificate: this job's own, where connections are to be encrypted.
        judge: may say more about a loss (that Spark took the executor away) before it is entered.
        on_visit: makes the ear for a visitor (``cluster.visit``); without it nobody visits.
        is_gang: ranks begin together; else each as soon as it is ready, and ``arrange`` gets one report at a time.
        ports: of which the first free one is taken; 0 is any.
    """

    def __init__(
        self,
        world: int,
        secret: bytes,
        host: str,
        *,
        bind: str | None = None,
        arrange: Callable[[Reports], Assignments],
        on_event: OnEvent,
        on_fetch: OnFetch | None = None,
        versions: dict[str, str] | None = None,
        deadlines: Deadlines | None = None,
        budget: Budget | None = None,
        min_workers: int | None = None,
        judge: Callable[[Failure], Failure] | None = None,
        evict: Callable[[int], None] | None = None,
        certificate: Certificate | None = None,
        on_visit: OnVisit | None = None,
        is_gang: bool = True,
        ports: Sequence[int] = (0,),
    ) -> None:
        self.world = world
        self.generation = 0
        self.is_short_handed = False
        """A seat stayed empty for too long, and those that are left are enough to go on with fewer."""
        self.is_complete = False
        """Whether all seats were taken at the same time, once."""
        self._arrange = arrange
        self._on_event = on_event
        self._on_fetch = on_fetch
        self._versions = versions or {}
        self.deadlines = deadlines or Deadlines()
        self._budget = budget or Budget()
        self._min_workers = min_workers or world
        self._judge = judge
        self._evict = evict
        self._on_visit = on_visit
        self._is_gang = is_gang
        self._silenced: dict[int, int | None] = {}
        self._has_begun = False
        self._reached = 0  # the newest step of any rank in this generation
        self._vacant_since = 0.0
        self._upstream: dict[int, str] = {}
        self._looked = time.monotonic()
        self._given: list[tuple[dict[str, Any] | None, list[bytearray]]] = []
        self._seats: dict[int, _Seat] = {}
        self._done: set[int] = set()
        self._board = Board()
        self._failure: Failure | Exception | None = None
        self._collateral: dict[int, Failure] = {}
        self._collateral_since = 0.0
        self._is_over = False
        self._change = threading.Condition()
        self._events = threading.Lock()
        self._gate = Gate(
            secret, world=world, timeout_seconds=self.deadlines.handshake_timeout_seconds, certificate=certificate
        )
        self._host = host
        self._server = _listen(bind or host, backlog=max(128, world), ports=ports)
        self._connections: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Coordinator:
        self._spawn(self._accept, "accept")
        return self

    def __exit__(self, *exc: object) -> None:
        self.abort("the launch is over")
        self._gate.close()
        with self._change:
            # Under the lock: a connection is either closed here, or sees that it came too late.
            _close(self._server)
            connections = list(self._connections)
            threads = list(self._threads)
        for connection in connections:
            _close(connection)
        for thread in threads:
            thread.join(_THREAD_SECONDS)

    @property
    def address(self) -> tuple[str, int]:
        """Where tasks connect."""
        return self._host.strip("[]"), int(self._server.getsockname()[1])

    @property
    def alive(self) -> int:
        """Ranks that are seated and not done."""
        with self._change:
            return len(set(self._seats) - self._done)

    @property
    def seated(self) -> int:
        """Ranks that have taken their seat, done or not."""
        with self._change:
            return len(self._done | set(self._seats))

    @property
    def done(self) -> frozenset[int]:
        """Ranks whose work has ended well."""
        with self._change:
            return frozenset(self._done)

    @property
    def hosts(self) -> dict[int, str]:
        """The ranks that are seated, and where from."""
        with self._change:
            return {rank: seat.host for rank, seat in self._seats.items()}

    @property
    def is_starved(self) -> bool:
        """Whether a seat is empty because its rows could not be computed."""
        with self._change:
            return bool(self._upstream)

    @property
    def starved(self) -> dict[int, str]:
        """Ranks whose rows could not be computed, and where they were."""
        with self._change:
            return dict(self._upstream)

    @property
    def silenced(self) -> int:
        """Tasks that may still run, as Spark sees it, but that nobody hears of."""
        with self._change:
            return len(self._silenced)

    def be_patient(self) -> None:
        """Whoever is missing may still come: Spark computes something for it."""
        with self._change:
            self._vacant_since = time.monotonic()

    @property
    def is_reforming(self) -> bool:
        """Whether a rank was lost and the gang has not begun again."""
        with self._change:
            return self.generation > 0 and not self._has_begun

    @property
    def failure(self) -> Failure | Exception | None:
        """What ended the launch, if something did."""
        return self._failure

    def wait(self, seconds: float) -> bool:
        """Wait for a change, at most so long. True once all ranks are done or something failed."""
        with self._change:
            if not self._finished():
                self._change.wait(seconds)
            overdue = self._overdue()
        if overdue is not None:
            self.fail(overdue)
            task = self._silenced.get(overdue.rank)
            if task is not None and self._evict is not None:
                self._evict(task)
        with self._change:
            return self._finished()

    def wait_until_left(self) -> bool:
        """Wait until every rank has closed its connection, for ``leave_timeout_seconds`` at most; whether all have."""
        with self._change:
            return self._change.wait_for(lambda: not self._seats, self.deadlines.leave_timeout_seconds)

    def abort(self, reason: str) -> None:
        """Tell every rank to stop its child and leave. May be called twice."""
        with self._change:
            self._is_over = True
            seats = list(self._seats.values())
            self._change.notify_all()
        for seat in seats:
            seat.link.send_last({"kind": "abort", "reason": reason})

    def tell(self, rank: int, message: dict[str, Any]) -> None:
        """Send a message to a rank's child (``Desk.messages``); nothing where the rank has left."""
        with self._change:
            seat = self._seats.get(rank)
        if seat is not None:
            self._tell(seat.link, message)

    def fail(self, failure: Failure | Exception) -> None:
        """Get over this failure, or record it as the one that counts and stop all ranks."""
        with self._change:
            if self._failure is not None or self._is_over:
                return
            if isinstance(failure, Failure) and failure.kind == "collateral":
                # A broken collective is what the survivors of a failure see; the failure itself may be a moment behind.
                if not self._collateral:
                    self._collateral_since = time.monotonic()
                self._collateral.setdefault(failure.rank, failure)
                self._change.notify_all()
                return
            if isinstance(failure, Failure):
                failure = failure if self._judge is None else self._judge(failure)
            if isinstance(failure, Failure) and self._budget.spend(
                failure, self.generation + 1, is_forming=not self._has_begun
            ):
                self._budget.incidents[-1].reach(self._reached)
                seats, generation = self._next_generation(), self.generation
            else:
                self._failure = failure = self._final(failure)
        if self._failure is not None:
            self.abort("another replica failed")
            return
        _log.info("a replica was lost, the gang re-forms: %s", failure)
        for seat in seats:
            seat.link.send_last({"kind": "reform", "generation": generation})

    def collect(self) -> tuple[dict[str, Any] | None, list[bytearray]]:
        """The newest note that a seated rank keeps, and what it is about; nothing when there is none."""
        with self._change:
            self._given.clear()
            kept = [(step, -seat.rank) for seat in self._seats.values() if (step := _kept_step(seat)) is not None]
            source = self._seats[-max(kept)[1]] if kept else None
        if source is None:
            return None, []
        self._tell(source.link, {"kind": "give"})
        with self._change:
            self._change.wait_for(lambda: self._given, self.deadlines.leave_timeout_seconds)
            return self._given[-1] if self._given else (None, [])

    # --- what follows runs in the server's own threads ---

    def _finished(self) -> bool:
        is_ended = self._failure is not None or self._is_over or self.is_short_handed
        return is_ended or len(self._done) == self.world

    def _next_generation(self) -> list[_Seat]:
        """Void what was agreed so far; those who have to hear of it."""
        self.generation += 1
        self._board = Board()
        self._done.clear()
        self._has_begun = False
        self._reached = 0
        self._collateral.clear()
        self._vacant_since = time.monotonic()
        for seat in self._seats.values():
            seat.report = None
            seat.moved = self._vacant_since
        self._change.notify_all()
        return list(self._seats.values())

    def _final(self, failure: Failure | Exception) -> Failure | Exception:
        """As the user gets to read it."""
        count = len(self._budget.incidents)
        if not isinstance(failure, Failure) or failure.kind not in ("infrastructure", "preemption", "collapse"):
            return failure
        if failure.kind == "collapse":
            return replace(failure, kind="infrastructure")
        failure = replace(failure, step=failure.step or self._reached or None)
        text = f"{failure.message}\n({count} losses were got over before this one; see max_failures)"
        return replace(failure, message=text) if count else failure

    def _overdue(self) -> Failure | None:
        now = time.monotonic()
        was_away = now - self._looked > self.deadlines.heartbeat_timeout_seconds / 2
        self._looked = now
        if was_away:  # the driver itself stood still (a laptop's lid): nobody could be heard
            for seat in self._seats.values():
                seat.link.heard = now
        return self._folded(now) or self._silent(now) or self._stalled(now) or self._vacant(now)

    def _folded(self, now: float) -> Failure | None:
        """What to make of ranks that say only that they lost the others, once nobody has anything better to say."""
        is_late = now - self._collateral_since > self.deadlines.collateral_grace_seconds
        if not self._collateral or (len(self._collateral) < self.world and not is_late):
            return None
        # A process that died of it may as well be the cause; one that was left alone is not.
        first = min(self._collateral.values(), key=lambda failure: failure.type_name == SyncError.__name__)
        return replace(first, kind="infrastructure")

    def _silent(self, now: float) -> Failure | None:
        limit = self.deadlines.heartbeat_timeout_seconds
        for seat in list(self._seats.values()):
            if now - seat.link.heard > limit and not seat.is_being_served:
                text = f"it was not heard of for {limit:g} s ({setting('heartbeat_timeout_seconds')})"
                self._vacate(seat)  # its own thread has nothing to add
                self._silenced[seat.rank] = seat.task
                seat.link.close()  # it may come back with a new connection
                return self._lost(seat, text)
        return None

    def _stalled(self, now: float) -> Failure | None:
        limit = self.deadlines.stall_timeout_seconds
        seats = [seat for rank, seat in self._seats.items() if rank not in self._done]
        if not self._has_begun or not seats or any(now - seat.moved < limit for seat in seats):
            return None
        late = min(seats, key=lambda seat: (seat.beat.is_waiting, seat.beat.step, seat.rank))
        text = f"nothing has moved for {limit:g} s ({setting('stall_timeout_seconds')}); the others wait for this one"
        return Failure("infrastructure", late.rank, late.host, text, step=late.beat.step or None)

    def _vacant(self, now: float) -> Failure | None:
        """Empty seats after a loss: nobody came in time."""
        limit = self.deadlines.reform_timeout_seconds
        missing = self.world - len(self._seats)
        if not self.is_complete or not missing or self._done or now - self._vacant_since < limit:
            return None
        if len(self._seats) >= self._min_workers:
            # Those who are left must have said what they keep.
            self.is_short_handed = all(seat.report is not None for seat in self._seats.values())
            self._change.notify_all()
            return None
        nobody = Failure(
            "infrastructure", next(r for r in range(self.world) if r not in self._seats), "?", "it is gone"
        )
        last = nobody
        if self._budget.incidents:
            last = replace(self._budget.incidents[-1].failure, step=self._budget.incidents[-1].lost_at)
        text = (
            f"{last.message}\nNobody took its seat within {limit:g} s ({setting('reform_timeout_seconds')}): "
            f"{len(self._seats)} of {self.world} replicas are left, and min_workers is {self._min_workers}"
        )
        return replace(last, message=text, kind="collapse")

    def _spawn(self, target: Callable[..., None], name: str, *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, name=f"firesteel-{name}", daemon=True)
        self._threads = [*filter(threading.Thread.is_alive, self._threads), thread]  # strangers come and go
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, peer = self._server.accept()
            except OSError as error:
                with self._change:
                    if self._is_over or self._server.fileno() < 0:
                        return
                    # Too many open files, or a peer that went at once: no reason to be deaf from here on.
                    _log.warning("a connection could not be accepted: %s", error)
                    self._change.wait(_ACCEPT_PAUSE_SECONDS)
                continue
            with self._change:
                if self._server.fileno() < 0:
                    connection.close()
                    return
                self._connections.add(connection)
                self._spawn(self._serve, f"peer-{peer[1]}", connection, peer)

    def _serve(self, connection: socket.socket, peer: tuple[str, int]) -> None:
        try:
            self._attend(connection, peer)
        finally:
            _close(connection)
            with self._change:
                self._connections.discard(connection)

    def _attend(self, connection: socket.socket, peer: tuple[str, int]) -> None:
        try:
            stream = self._gate.admit(connection, peer[0])
            if stream is None:
                return
            link = Link(stream)
            seat = self._seat(link, connection)
            if seat is None:
                return
            _settle(connection)
        except (OSError, WireError) as error:
            if not self._is_over:  # else it was closed by the end of the launch
                _log.warning("refused a connection from %s: %s", peer[0], error)
            return
        lost = "its process ended, or the connection to it was lost"
        try:
            while (received := link.receive()) is not None:
                seat.is_being_served = True
                self._serve_message(seat, *received)
                link.heard = time.monotonic()
                seat.is_being_served = False
        except WireError as error:
            lost = str(error)
        self._leave(seat, lost)

    def _serve_message(self, seat: _Seat, message: dict[str, Any], buffers: list[bytearray]) -> None:
        try:
            self._take(seat, message, buffers)
        except Exception as error:  # noqa: BLE001 - arrange, on_event and on_fetch are the driver's: it raises their error
            self.fail(error)

    def _seat(self, link: Link, connection: socket.socket) -> _Seat | None:
        received = link.receive()
        if received is not None and received[0].get("kind") == "visit":
            self._entertain(link, connection)
            return None
        if received is None or received[0].get("kind") != "hello":
            return None
        hello = received[0]
        rank = int(hello["rank"])
        for package, version in self._versions.items():
            found = str(hello["versions"].get(package))
            if found != version:
                self.fail(EnvironmentMismatch(rank, package, version, found))
        if seat := self._claim(rank, link, hello):
            return seat
        if not self._is_over and rank in self._seats:
            # A second attempt at a task whose first one lives (speculation). Were it to end, Spark would take the task
            # for done and kill the first: it waits, for the seat or for the end of the launch.
            self._tell(link, {"kind": "taken"})
            with self._change:
                self._change.wait_for(lambda: self._is_over or rank not in self._seats)
            if not _is_readable(link) and (seat := self._claim(rank, link, hello)):  # else it has gone meanwhile
                return seat
        self._tell(link, {"kind": "abort", "reason": "this launch needs nobody"})
        return None

    def _entertain(self, link: Link, connection: socket.socket) -> None:
        """Answer a visitor's questions until it goes."""
        if self._on_visit is None:
            return
        _settle(connection)
        visitor = self._on_visit()
        try:
            while (received := link.receive()) is not None:
                self._tell(link, visitor.answer(received[0]))
        except WireError as error:
            _log.debug("a visitor went: %s", error)
        except Exception as error:  # noqa: BLE001 - the visitor's ear is the driver's own, as are its errors
            self.fail(error)
        finally:
            visitor.leave()

    def _claim(self, rank: int, link: Link, hello: dict[str, Any]) -> _Seat | None:
        with self._change:
            if self._is_over or rank in self._seats or not 0 <= rank < self.world:
                return None
            seat = _Seat(rank, link, str(hello["host"]), hello["task"], since=self.generation)
            self._seats[rank] = seat
            self._silenced.pop(rank, None)
            self._upstream.pop(rank, None)
            self.is_complete = self.is_complete or len(self._seats) == self.world
            self._change.notify_all()
            generation = self.generation
        self._tell(link, {"kind": "seated", "generation": generation})
        return seat

    def _leave(self, seat: _Seat, lost: str) -> None:
        with self._change:
            # Of those who are done nothing more is needed, unless the gang may have to re-form.
            is_free = seat.rank in self._done and not self._budget.is_open
            expected = is_free or self._is_over or len(self._done) == self.world
            expected = expected or self._seats.get(seat.rank) is not seat
            if self._seats.get(seat.rank) is seat:
                self._vacate(seat)
            # A task that ends after its child did, or after its last will, is no second loss.
            last = self._budget.incidents[-1] if self._budget.incidents else None
            is_known = last is not None and seat.rank in last.ranks and seat.since < last.generation
            expected = expected or (is_known and not self._has_begun)
            self._change.notify_all()
        if not expected:
            self.fail(self._lost(seat, lost))

    def _lost(self, seat: _Seat, how: str) -> Failure:
        """A rank that could not say what happened."""
        # Its last beat may be many steps old. Ranks of a gang step together: the others know better (``Incident``).
        step = None if self._is_gang else seat.beat.step or None
        return Failure("infrastructure", seat.rank, seat.host, how, step=step)

    def _take(self, seat: _Seat, message: dict[str, Any], buffers: list[bytearray]) -> None:
        kind = message["kind"]
        if kind == "beat":
            beat = Beat(*message["beat"])
            if beat != seat.beat:
                seat.beat, seat.moved = beat, time.monotonic()
            with self._change:
                # Until the gang has begun again, a beat may still be that of a child before it.
                is_first = self.generation == 0
                if (self._has_begun or is_first) and message.get("generation", self.generation) == self.generation:
                    self._reached = max(self._reached, beat.step)
            return
        if kind == "given":
            with self._change:
                self._given.append((message["note"], buffers))
                self._change.notify_all()
            return
        if message.get("generation", self.generation) != self.generation:
            return  # a child that is being stopped
        if kind == "event":
            with self._events:
                self._on_event(seat.rank, message["event"], buffers)
        elif kind == "ready":
            self._ready(seat, message["report"], message.get("stood", 0))
        elif kind == "board":
            for link, answer, value in self._ask_board(seat.link, message, buffers):
                self._tell(link, answer, [value])
        elif kind == "fetch":
            assert self._on_fetch is not None
            answer, data = self._on_fetch(message["what"])
            self._tell(seat.link, {"kind": "fetched", "id": message["id"], "answer": answer}, data)
        elif kind == "failed":
            self._hear_of(seat, Failure.from_json(message["failure"]))
        elif kind == "done":
            with self._change:
                self._done.add(seat.rank)
                self._change.notify_all()

    def _hear_of(self, seat: _Seat, failure: Failure) -> None:
        if failure.kind != "upstream":
            self.fail(failure)
            return
        # Rows that could not be computed are Spark's to deal with: it computes lost ones again, tries the task again,
        # or ends the job with its own error.
        with self._change:
            if self._seats.get(seat.rank) is seat:
                self._vacate(seat)
                self._upstream[seat.rank] = seat.host

    def _vacate(self, seat: _Seat) -> None:
        del self._seats[seat.rank]
        self._vacant_since = time.monotonic()
        self._change.notify_all()

    def _ready(self, seat: _Seat, report: dict[str, Any], stood: int) -> None:
        with self._change:
            if self._budget.incidents and self._is_gang:
                self._budget.incidents[-1].reach(stood)
            seat.report = report
            seats = sorted(self._seats.values(), key=lambda each: each.rank) if self._is_gang else [seat]
            reports = [each.report for each in seats if each.report is not None]
            if self._is_gang and (len(reports) < self.world or self._has_begun):
                return
            self._has_begun = True
            generation = self.generation
        assignments = self._arrange(reports)
        for each, assignment in zip(seats, assignments, strict=True):
            each.moved = time.monotonic()
            self._tell(each.link, {"kind": "begin", "generation": generation, "assignment": assignment})

    def _ask_board(self, link: Link, message: dict[str, Any], buffers: list[bytearray]) -> list[Reply]:
        with self._change:
            return self._board.ask(link, message, buffers)

    def _tell(self, link: Link, message: dict[str, Any], buffers: Sequence[Buffer] = ()) -> None:
        with contextlib.suppress(OSError):  # it is gone; its own thread notices and says so
            link.send(message, buffers)


def _listen(host: str, backlog: int, ports: Sequence[int]) -> socket.socket:
    """A server on the first free port of these, at this address: a name, an IPv4 or an IPv6 one."""
    family, _, _, _, place = socket.getaddrinfo(host.strip("[]"), 0, type=socket.SOCK_STREAM)[0]
    for port in ports:
        try:
            return socket.create_server((place[0], port), family=family, backlog=backlog)
        except OSError as error:
            refused = error
    raise ClusterError(f"the driver cannot listen at {host}, port {' or '.join(map(str, ports))}: {refused.strerror}")


def _settle(connection: socket.socket) -> None:
    """It is no stranger's any more: it may be silent for as long as it likes."""
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _kept_step(seat: _Seat) -> int | None:
    kept = (seat.report or {}).get("kept")
    return None if kept is None else int(kept["step"])


def _is_readable(link: Link) -> bool:
    """Whether there is something to read, at once. Of a task that was told to wait that can only be its end."""
    try:
        return bool(select.select([link.fileno()], [], [], 0)[0])
    except (OSError, ValueError):
        return True


def _close(connection: socket.socket) -> None:
    # Before the close: a thread that waits in accept or recv would not notice it, and keep the port open.
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
