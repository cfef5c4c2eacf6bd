"""A rank's seat, as its Spark task sees it: the connection to the coordinator, and the one child that trains.

The task owns the data, the heartbeat and the logs. The child imports the framework and does the work. It is killed
whole and started anew whenever the gang re-forms around a newcomer; what the task holds stays: rows, and the note that
the last child left about its newest commit.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Protocol

from firesteel.cluster.failure import Failure, with_lines
from firesteel.cluster.preflight import package_versions
from firesteel.cluster.process import Process, Spawned
from firesteel.cluster.pulse import PulseFile
from firesteel.cluster.roles import Role
from firesteel.cluster.scratch import Scratch
from firesteel.cluster.stem import Stem, fork, is_possible, keep
from firesteel.cluster.tls import join
from firesteel.cluster.wire import Buffer, Connection, Link, WireError, answer_challenge

__all__ = ["Aborted", "Invitation", "Place", "Seat", "UpstreamFailed", "connect", "search_path"]

_log = logging.getLogger(__name__)

_BEAT_SECONDS = 0.25
_CONNECT_TIMEOUT_SECONDS = 10.0
_RECONNECT_PAUSE_SECONDS = 0.2
_EXIT_TIMEOUT_SECONDS = 10.0
_LAST_LINES = 40

Give = Callable[[], Sequence[Buffer]]


class UpstreamFailed(Exception):
    """The rows could not be computed: Spark itself knows why, and reports it."""


class Aborted(Exception):
    """The gang was told to stop: this task has nothing left to do, and nothing to report."""


@dataclass(frozen=True)
class Invitation:
    """What a task needs in order to take its seat. Travels inside the Spark closure only."""

    host: str
    port: int
    secret: bytes = field(repr=False)
    world: int
    packages: tuple[str, ...] = ()
    sys_path: tuple[str, ...] = ()
    threads: int = 1
    reconnect_seconds: float = 60.0
    certificate: str | None = None
    """The driver's, where connections are encrypted; no other one is trusted."""
    first_rank: int = 0
    """Of the first task; the ranks before it live elsewhere."""
    leaves_early: bool = False
    """Whether a rank that is done may go, though others still work: nobody will need it again."""
    is_kept: bool = False
    """Whether the seat is not the task's but a keeper's (``cluster.keeper``), which outlives it."""
    keep_warm_seconds: float = 0.0
    """How long a stem (``cluster.stem``) waits for another fit."""


class Seat:
    """One rank's seat; a context manager. Raises ``Aborted`` where the gang was stopped by somebody else."""

    def __init__(self, invitation: Invitation, rank: int, task: int | None = None) -> None:
        self.rank = rank
        self.world = invitation.world
        self.generation = 0
        """The gang's; it grows whenever the gang re-forms."""
        self.kept: dict[str, Any] | None = None
        """The last note that a child of this seat left (``Desk.keep``)."""
        self.give: Give | None = None
        """Called when the driver asks for what the note is about."""
        self.on_line: Callable[[str], None] | None = None
        """Takes the lines that the child prints, which else go to the driver as events."""
        self.on_begun: Callable[[], None] | None = None
        """Called when all ranks begin."""
        self.on_stop: Callable[[], None] | None = None
        """Ends what runs beside the child; called, perhaps twice, before the seat is given up."""
        self.gpus: tuple[str, ...] = ()
        """What Spark gave to the task."""
        self.pulse = PulseFile()
        self._invitation = invitation
        self._task = task
        self._over = threading.Event()
        self._change = threading.Condition()
        self._assignment: tuple[int, dict[str, Any]] | None = None
        self._recipe: tuple[str, bytes, dict[str, int], Role, tuple[str, ...], bool] | None = None
        self._child: Child | None = None
        self._stood = 0  # the step that the last child that had begun was in at its end
        self.stem: Stem | None = None
        """From which this rank's processes come, where they do."""
        self._threads: list[threading.Thread] = []
        try:
            self._link, self.generation = self._sit_down()
        except (OSError, WireError) as error:  # nobody there: the launch is over, or the port is another one's
            raise Aborted(str(error)) from error
        self.host = self._link.local_address

    def __enter__(self) -> Seat:
        for target in (self._listen, self._beat):
            thread = threading.Thread(target=target, name=f"firesteel-{target.__name__.strip('_')}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, (Aborted, GeneratorExit)):
            failure = Failure.of(error, rank=self.rank, host=self.host)
            self.report(replace(failure, kind="upstream") if isinstance(error, UpstreamFailed) else failure)
        self._stop()
        if self._invitation.is_kept:
            return  # a keeper leaves by its own end
        self._link.close()
        for thread in self._threads:
            thread.join()
        self.pulse.close()

    def check(self) -> None:
        """Raise ``Aborted`` if the gang was stopped."""
        if self._over.is_set():
            raise Aborted

    def prepare(
        self,
        main: str,
        payload: bytes,
        descriptors: dict[str, int],
        role: Role,
        ahead: Sequence[str] = (),
        *,
        has_scratch: bool = False,
    ) -> None:
        """Start this rank's process. It runs ``main`` ("module:function"), and inherits the descriptors.

        ``ahead``: what may be imported once for this process and those that may have to follow it (``cluster.stem``).
        ``has_scratch``: whether its temporary files go with it (``cluster.scratch``).
        """
        self._recipe = (main, payload, descriptors, role, tuple(ahead), has_scratch)
        self._renew_child()

    def ready(self, report: dict[str, Any]) -> dict[str, Any]:
        """Tell what this rank holds; returns its assignment once all ranks have told, in the gang's newest form."""
        while True:
            generation = self.generation
            self._renew_child()
            self._send({"kind": "ready", "report": {**report, "kept": self.kept}, "stood": self._stood}, generation)
            assignment = self._await_assignment(generation)
            self.check()
            if assignment is not None:
                return assignment

    def work(self, assignment: dict[str, Any]) -> bool:
        """Let the child work on the assignment. True when all ranks are done; false when the gang has re-formed."""
        assert self._child is not None
        assert self._assignment is not None
        child, generation = self._child, self._assignment[0]
        if self.on_begun is not None:
            self.on_begun()
        self._stood = 0
        child.begin(generation, {**assignment, "kept": self.kept})
        with self._change:
            self._change.wait_for(lambda: self._has_news(generation) or child.is_over)
        if not self._has_news(generation):
            if child.failure is None:
                self._send({"kind": "done"}, generation)
                if self._invitation.leaves_early:
                    return True
                # Nobody leaves before all are done: should one be lost now, the others are needed once more.
                limit = None
            else:
                # The driver has been told, and tells everybody what to do now: leaving would look like another failure.
                limit = _EXIT_TIMEOUT_SECONDS
            with self._change:
                self._change.wait_for(lambda: self._has_news(generation), limit)
        if self.generation != generation:
            return False
        if child.failure is None and child.is_over:
            return True
        raise Aborted

    def rest(self) -> None:
        """Wait until the gang is stopped; what the task keeps for the others is needed until then."""
        self._over.wait()

    def leave(self, reason: str) -> None:
        """End the child and give up the seat, for whatever this task lived on is gone. From any thread."""
        _log.debug("rank %d leaves: %s", self.rank, reason)
        self._stop()

    def report(self, failure: Failure, generation: int | None = None) -> None:
        """Tell the driver at once, unless the gang was stopped: then nobody wants to know."""
        if not self._over.is_set():
            self._send({"kind": "failed", "failure": failure.to_json()}, generation)

    def forward(self, message: dict[str, Any], buffers: Sequence[Buffer], generation: int | None = None) -> None:
        """Pass a child's message on to the driver."""
        self._send(message, generation, buffers)

    def hang_up(self) -> None:
        """Drop the connection to the driver; the seat comes back. How a lost network is tried out."""
        self._link.close()

    def notify(self) -> None:
        """Something about the child has changed."""
        with self._change:
            self._change.notify_all()

    def _send(self, message: dict[str, Any], generation: int | None = None, buffers: Sequence[Buffer] = ()) -> None:
        number = self.generation if generation is None else generation
        # Where the connection is lost, the listener finds out; what was said in an older generation is void anyway.
        with contextlib.suppress(OSError):
            self._link.send({**message, "generation": number}, buffers)

    def _has_news(self, generation: int) -> bool:
        return self._over.is_set() or self.generation != generation

    def _assigned(self, generation: int) -> dict[str, Any] | None:
        found = self._assignment
        return found[1] if found is not None and found[0] == generation else None

    def _await_assignment(self, generation: int) -> dict[str, Any] | None:
        """The assignment of this generation; ``None`` when there is news instead."""
        with self._change:
            self._change.wait_for(lambda: self._has_news(generation) or self._assigned(generation) is not None)
            return self._assigned(generation)

    def _renew_child(self) -> None:
        """A child that has not begun anything: the present one, or another."""
        old = self._child
        if old is not None and not old.is_used and not old.is_over:
            return
        if old is not None:
            old.end()
        assert self._recipe is not None
        with self._change:  # the listener ends the child it sees: none may be started behind its back
            self.check()
            self._stood = max(self._stood, self.pulse.read().step)
            self.pulse.reset()
            self._child = Child(self, *self._recipe, self._invitation)

    def _stop(self) -> None:
        """No child from here on, and none left."""
        with self._change:
            self._over.set()
            child = self._child
            self._change.notify_all()
        if child is not None:
            child.end()
        with self._change:
            stem, self.stem = self.stem, None
        if stem is not None:
            keep(stem, self._invitation.keep_warm_seconds)
        if self.on_stop is not None:
            self.on_stop()

    def _sit_down(self) -> tuple[Link, int]:
        """Connect and ask for the seat; the connection, and the gang's generation."""
        link = Link(connect(self._invitation))
        try:
            hello = {"kind": "hello", "rank": self.rank, "task": self._task, "host": link.local_address}
            link.send({**hello, "versions": package_versions(self._invitation.packages)})
            answer: dict[str, Any] = {"kind": "abort", "reason": "the driver closed the connection"}
            while (received := link.receive()) is not None:
                answer = received[0]
                if answer["kind"] != "taken":  # else another attempt has the seat, and this one waits for its end
                    break
                if self._invitation.is_kept:  # its keeper does not depend on its task
                    raise Aborted("another keeper has this seat")
            if answer["kind"] != "seated":
                raise Aborted(answer.get("reason", ""))
            return link, int(answer["generation"])
        except BaseException:
            link.close()
            raise

    def _beat(self) -> None:
        while not self._over.wait(_BEAT_SECONDS):
            self._send({"kind": "beat", "beat": self.pulse.read()})

    def _listen(self) -> None:
        reason = self._hear()
        while reason is None and self._come_back():
            reason = self._hear()
        # Told to stop, or the driver is gone: either way nobody waits for this rank any more.
        _log.debug("rank %d stops: %s", self.rank, reason)
        self._stop()
        # Only now, with the child gone, has this rank left. (The task itself may still wait for a row.) A keeper leaves
        # by its own end, which closes the connection: whoever waits for that finds no process any more.
        if not self._invitation.is_kept:
            self._link.close()

    def _hear(self) -> str | None:
        """Take the driver's messages. Returns why to stop, or ``None`` when the connection was lost."""
        with contextlib.suppress(WireError, OSError):
            while (received := self._link.receive()) is not None:
                message, buffers = received
                if message["kind"] == "abort":
                    return str(message["reason"])
                if message["kind"] == "begin":
                    with self._change:
                        self._assignment = (int(message["generation"]), message["assignment"])
                        self._change.notify_all()
                elif message["kind"] == "reform":
                    self._reform(int(message["generation"]))
                elif message["kind"] == "give":
                    given = self.give() if self.give is not None else ()
                    self._send({"kind": "given", "note": self.kept}, None, given)
                elif self._child is not None:
                    self._child.tell(message, buffers)
        return None

    def _reform(self, generation: int) -> None:
        """Another form of the gang: what the child works on is void."""
        with self._change:
            self.generation = generation
            child = self._child
            self._change.notify_all()
        if child is not None and child.is_used:
            child.end()  # at once: its peers are gone, and it may hang in a collective

    def _come_back(self) -> bool:
        """Take the seat again after the connection was lost; rows and notes are still here."""
        end = time.monotonic() + self._invitation.reconnect_seconds
        while not self._over.is_set() and time.monotonic() < end:
            try:
                link, generation = self._sit_down()
            except (Aborted, ConnectionRefusedError, WireError):
                return False  # the launch is over
            except OSError:  # no way there, for now
                self._over.wait(_RECONNECT_PAUSE_SECONDS)
                continue
            self._link = link
            self._reform(generation)
            return True
        return False


class Child:
    """The process of one rank. It dies with its task, whatever happens to either."""

    def __init__(
        self,
        seat: Seat,
        main: str,
        payload: bytes,
        descriptors: dict[str, int],
        role: Role,
        ahead: tuple[str, ...],
        has_scratch: bool,
        invitation: Invitation,
    ) -> None:
        self.failure: Failure | None = None
        """What went wrong, once it is over."""
        self.is_used = False
        """Whether it was given an assignment."""
        self._seat = seat
        self._generation: int | None = None
        self._is_done = False
        self._is_unwanted = False
        self._ended = threading.Event()
        self._lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._outbox: queue.SimpleQueue[tuple[dict[str, Any], Sequence[Buffer]] | None] = queue.SimpleQueue()
        self._scratch = Scratch() if has_scratch else None
        try:
            self._begin(main, payload, descriptors, role, ahead, invitation)
        except BaseException:
            self._clean_up()
            raise

    def _begin(
        self,
        main: str,
        payload: bytes,
        descriptors: dict[str, int],
        role: Role,
        ahead: tuple[str, ...],
        invitation: Invitation,
    ) -> None:
        seat = self._seat
        ours, theirs = socket.socketpair()
        self.link = Link(ours)
        with theirs, tempfile.TemporaryFile() as program:
            # The program came inside the Spark closure; it goes on through a file without a name, not a socket.
            program.write(payload)
            program.seek(0)
            inherited = [theirs.fileno(), program.fileno(), seat.pulse.descriptor, *descriptors.values()]
            self._process = self._start(inherited, role, ahead, os.pathsep.join(search_path(invitation)))
        start = {
            "kind": "start",
            "main": main,
            "descriptors": descriptors,
            "pulse": seat.pulse.descriptor,
            "rank": seat.rank,
            "generation": seat.generation,
            "world": seat.world,
            "host": seat.host,
            "device": role.device,
            "threads": role.threads,
            "parent": self._process.parent,
            "task": os.getpid(),
        }
        self.tell(start)
        self._helpers = [
            threading.Thread(target=target, name=f"firesteel-{name}", daemon=True)
            for target, name in ((self._listen, "child"), (self._pass_on_lines, "lines"), (self._write, "outbox"))
        ]
        for thread in (*self._helpers, threading.Thread(target=self._watch, name="firesteel-watch", daemon=True)):
            thread.start()

    def _start(self, inherited: list[int], role: Role, ahead: tuple[str, ...], path: str) -> Process:
        around = {**os.environ, **role.surroundings(), "PYTHONPATH": path}
        own = role.identity() | (self._scratch.variables() if self._scratch is not None else {})
        if ahead and is_possible():
            self._seat.stem, forked = fork(self._seat.stem, ahead, around, own, inherited)
            return forked
        words = [sys.executable, "-u", "-m", "firesteel.cluster.child", *(str(number) for number in inherited[:2])]
        return Spawned(words, {**around, **own}, inherited)

    @property
    def is_over(self) -> bool:
        """Whether the process is gone, and everything it had to say has been heard."""
        return self._ended.is_set()

    def begin(self, generation: int, assignment: dict[str, Any]) -> None:
        """Give it its work, in this form of the gang."""
        self._generation = generation
        self.is_used = True
        self.tell({"kind": "begin", "assignment": assignment, "generation": generation})

    def tell(self, message: dict[str, Any], buffers: Sequence[Buffer] = ()) -> None:
        """Hand it a message. Never waits: a child that does not listen must not make the seat deaf."""
        self._outbox.put((message, buffers))

    def end(self) -> None:
        """End the process now and wait until it is gone. May be called twice, by several threads."""
        self._is_unwanted = True
        self._process.kill()
        self._ended.wait()

    def _watch(self) -> None:
        status = self._process.wait()
        self._outbox.put(None)
        for thread in self._helpers:
            thread.join()
        self.link.close()
        self._clean_up()
        if self.failure is None and not self._is_done:
            self.failure = self._lost(status)
        elif self.failure is not None and self._seat.on_line is not None:
            self.failure = replace(self.failure, message=with_lines(self.failure.message, self._lines))
        if self.failure is not None and not self._is_unwanted:
            self._seat.report(self.failure, self._generation)
        self._ended.set()
        self._seat.notify()

    def _clean_up(self) -> None:
        if self._scratch is not None:
            self._scratch.remove()

    def _lost(self, status: int) -> Failure:
        how = f"ended with status {status}"
        if status < 0:
            how = f"was killed by signal {-status} ({signal.Signals(-status).name})"
        if status == -signal.SIGKILL:
            how += "; if nobody killed it, the machine ran out of memory"
        text = with_lines(f"its process {how}", self._lines)
        kind = "preemption" if status == -signal.SIGTERM else "infrastructure"
        if status == -signal.SIGABRT and self.is_used and self._seat.world > 1:
            kind = "collateral"  # a collective's own threads may abort the process when a peer is lost
        return Failure(kind, self._seat.rank, self._seat.host, text, step=self._seat.pulse.read().step or None)

    def _listen(self) -> None:
        with contextlib.suppress(WireError, OSError):
            while (received := self.link.receive()) is not None:
                message, buffers = received
                if message["kind"] == "failed":
                    self.failure = Failure.from_json(message["failure"])
                elif message["kind"] == "done":
                    self._is_done = True
                elif message["kind"] == "keep":
                    self._seat.kept = message["note"]
                elif message["kind"] == "hang up":
                    self._seat.hang_up()
                else:
                    self._seat.forward(message, buffers, self._generation)

    def _write(self) -> None:
        while (item := self._outbox.get()) is not None:
            with contextlib.suppress(OSError):  # it has ended; its watcher says how
                self.link.send(*item)

    def _pass_on_lines(self) -> None:
        with self._process.lines as stream:
            for line in stream:
                text = line.decode(errors="replace").rstrip()
                if text:
                    self._lines.append(text)
                if self._seat.on_line is not None:
                    self._seat.on_line(text)
                elif text:
                    event = {"kind": "event", "event": {"name": "line", "text": text}}
                    self._seat.forward(event, [], self._generation)


class Place(Protocol):
    """Where a process of this job listens, and what proves that it is one."""

    @property
    def host(self) -> str:
        """Its address."""
        ...

    @property
    def port(self) -> int:
        """Its port."""
        ...

    @property
    def secret(self) -> bytes:
        """What both ends know."""
        ...

    @property
    def certificate(self) -> str | None:
        """Its certificate, where connections are encrypted."""
        ...


def connect(invitation: Place) -> Connection:
    """A connection to the coordinator, or a server; both ends have proven that they know the job's secret."""
    connection = socket.create_connection((invitation.host, invitation.port), _CONNECT_TIMEOUT_SECONDS)
    try:
        stream = join(connection, invitation.certificate) if invitation.certificate else connection
        answer_challenge(stream, invitation.secret)
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except (OSError, WireError):
        connection.close()
        raise
    return stream


def search_path(invitation: Invitation) -> Iterator[str]:
    """The task's own search path, then the driver's places that exist here too: a user's module beside the script."""
    seen = set()
    for path in (*sys.path, *(each for each in invitation.sys_path if os.path.isdir(each))):
        if path and path not in seen:
            seen.add(path)
            yield path
