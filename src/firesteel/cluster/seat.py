"""A rank's seat, as its Spark task sees it: the connection to the coordinator, and the one child that trains.

The task owns the data, the heartbeat and the logs. The child imports the framework and does the work, and is
killed whole when the gang stops.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from firesteel.cluster.failure import Failure
from firesteel.cluster.preflight import package_versions
from firesteel.cluster.roles import Role
from firesteel.cluster.wire import Link, WireError, answer_challenge

__all__ = ["Aborted", "Invitation", "Seat", "UpstreamFailed"]

_log = logging.getLogger(__name__)

_BEAT_SECONDS = 0.5
_CONNECT_TIMEOUT_SECONDS = 10.0
_EXIT_TIMEOUT_SECONDS = 10.0
_LAST_LINES = 40


class UpstreamFailed(Exception):
    """The rows could not be computed: Spark itself knows why, and reports it."""


class Aborted(Exception):
    """The gang was told to stop: this task has nothing left to do, and nothing to report.

    ``is_upstream`` says that it was for want of rows. Then this attempt has to read them all the same, so that
    Spark sees its own error again and ends the job with it.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.is_upstream = reason == "upstream"


@dataclass(frozen=True)
class Invitation:
    """What a task needs in order to take its seat. Travels inside the Spark closure only."""

    host: str
    port: int
    secret: bytes
    world: int
    packages: tuple[str, ...] = ()
    sys_path: tuple[str, ...] = ()
    threads: int = 1


class Seat:
    """One rank's seat; a context manager. Raises ``Aborted`` where the gang was stopped by somebody else."""

    def __init__(self, invitation: Invitation, rank: int, attempt: int) -> None:
        self.rank = rank
        self.world = invitation.world
        self._invitation = invitation
        self._over = threading.Event()
        self._starting = threading.Lock()
        self._begins: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._child: Child | None = None
        self._threads: list[threading.Thread] = []
        self.generation = 0
        self._link = Link(_connect(invitation))
        self.host = self._link.local_address
        try:
            self.generation = self._sit_down(attempt)
        except BaseException:
            self._link.close()
            raise

    def _sit_down(self, attempt: int) -> int:
        """Ask for the seat; returns the gang's generation."""
        hello = {"kind": "hello", "rank": self.rank, "attempt": attempt, "host": self.host, "pid": os.getpid()}
        self._send({**hello, "versions": package_versions(self._invitation.packages)})
        answer: dict[str, Any] = {"kind": "abort", "reason": "the driver closed the connection"}
        with contextlib.suppress(WireError):
            while (received := self._link.receive()) is not None:
                answer = received[0]
                if answer["kind"] != "taken":  # else another attempt has the seat, and this one waits until it is over
                    break
        if answer["kind"] != "seated":
            raise Aborted(answer.get("reason", ""))
        return int(answer["generation"])

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
        self._over.set()
        if self._child is not None:
            self._child.end()
        self._link.close()
        for thread in self._threads:
            thread.join()

    def check(self) -> None:
        """Raise ``Aborted`` if the gang was stopped."""
        if self._over.is_set():
            raise Aborted

    def start_child(self, main: str, payload: bytes, descriptors: dict[str, int], role: Role) -> None:
        """Start this rank's process. It runs ``main`` ("module:function"), and inherits the descriptors."""
        with self._starting:
            self.check()
            self._child = Child(self, main, payload, descriptors, role, self._invitation)

    def ready(self, report: dict[str, Any]) -> dict[str, Any]:
        """Tell what this rank holds; returns its assignment once all ranks have told."""
        self._send({"kind": "ready", "report": report})
        assignment = self._begins.get()
        if assignment is None:
            raise Aborted
        return assignment

    def work(self, assignment: dict[str, Any]) -> None:
        """Let the child work on the assignment, until it is done or the gang is stopped."""
        assert self._child is not None
        self._child.tell({"kind": "begin", "assignment": assignment, "generation": self.generation})
        failure = self._child.wait()
        if failure is not None:
            # The driver has been told, and tells everybody to stop: leaving before would look like another failure.
            self._over.wait(_EXIT_TIMEOUT_SECONDS)
            raise Aborted
        self.check()
        self._send({"kind": "done"})

    def report(self, failure: Failure) -> None:
        """Tell the driver at once, unless the gang was stopped: then nobody wants to know."""
        if not self._over.is_set():
            with contextlib.suppress(Aborted):
                self._send({"kind": "failed", "failure": failure.to_json()})

    def forward(self, message: dict[str, Any], buffers: list[bytearray]) -> None:
        """Pass a child's message on to the driver."""
        with contextlib.suppress(OSError):  # the driver is gone: the reader notices and ends this seat
            self._link.send({**message, "generation": self.generation}, buffers)

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._link.send({**message, "generation": self.generation})
        except OSError as error:
            raise Aborted(str(error)) from error

    def _beat(self) -> None:
        while not self._over.wait(_BEAT_SECONDS):
            with contextlib.suppress(OSError):
                self._link.send({"kind": "beat"})

    def _listen(self) -> None:
        reason = "the driver is gone"
        with contextlib.suppress(WireError, OSError):
            while (received := self._link.receive()) is not None:
                message, buffers = received
                if message["kind"] == "abort":
                    reason = message["reason"]
                    break
                if message["kind"] == "begin":
                    self.generation = int(message["generation"])
                    self._begins.put(message["assignment"])
                elif self._child is not None:
                    self._child.tell(message, buffers)
        # Told to stop, or the driver is gone: either way nobody waits for this rank any more.
        _log.debug("rank %d stops: %s", self.rank, reason)
        with self._starting:  # a child that the task is just about to start must not outlive this
            self._over.set()
        self._begins.put(None)
        if self._child is not None:
            self._child.end()
        # Only now, with the child gone, has this rank left. (The task itself may still wait for a row.)
        self._link.close()


class Child:
    """The process of one rank. It dies with its task, whatever happens to either."""

    def __init__(
        self, seat: Seat, main: str, payload: bytes, descriptors: dict[str, int], role: Role, invitation: Invitation
    ) -> None:
        self._seat = seat
        self._failure: Failure | None = None
        self._is_done = False
        self._ended = threading.Event()
        self._reaping = threading.Lock()
        self._lines: deque[str] = deque(maxlen=_LAST_LINES)
        ours, theirs = socket.socketpair()
        self.link = Link(ours)
        with theirs, tempfile.TemporaryFile() as program:
            # The program came inside the Spark closure; it goes on through a file without a name, not a socket.
            program.write(payload)
            program.seek(0)
            inherited = {**descriptors, "": theirs.fileno(), "program": program.fileno()}
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-m", "firesteel.cluster.child", str(theirs.fileno()), str(program.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=sorted(inherited.values()),
                process_group=0,
                env={**os.environ, **role.environment(), "PYTHONPATH": os.pathsep.join(_search_path(invitation))},
            )
        self.link.send(
            {
                "kind": "start",
                "main": main,
                "descriptors": descriptors,
                "rank": seat.rank,
                "world": seat.world,
                "host": seat.host,
                "device": role.device,
                "threads": role.threads,
                "parent": os.getpid(),
            }
        )
        self._readers = [
            threading.Thread(target=self._listen, name="firesteel-child", daemon=True),
            threading.Thread(target=self._pass_on_lines, name="firesteel-lines", daemon=True),
        ]
        for thread in (*self._readers, threading.Thread(target=self._watch, name="firesteel-watch", daemon=True)):
            thread.start()

    def tell(self, message: dict[str, Any], buffers: Sequence[bytearray] = ()) -> None:
        """Hand the driver's answer to the child."""
        with contextlib.suppress(OSError):  # it has ended; its watcher says how
            self.link.send(message, buffers)

    def end(self) -> None:
        """End the process now and wait until it is gone. May be called twice, by several threads."""
        # Not Popen.kill, which also reaps: that is the watcher's, who would wait for a process that is no more.
        with self._reaping:
            if self._process.returncode is None:
                os.kill(self._process.pid, signal.SIGKILL)
        self._ended.wait()

    def wait(self) -> Failure | None:
        """Wait for the process to end; what went wrong, or ``None``."""
        self._ended.wait()
        return self._failure

    def _watch(self) -> None:
        _wait_for_exit(self._process)
        # What it started in turn (a loader's workers) would hold its pipes open, and nobody would ever end it.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with self._reaping:
            status = self._process.wait()
        for thread in self._readers:
            thread.join()
        self.link.close()
        if self._failure is None and not self._is_done:
            self._failure = Failure("infrastructure", self._seat.rank, self._seat.host, self._last_words(status))
        if self._failure is not None:
            self._seat.report(self._failure)
        self._ended.set()

    def _last_words(self, status: int) -> str:
        how = f"ended with status {status}"
        if status < 0:
            how = f"was killed by signal {-status} ({signal.Signals(-status).name})"
        if status == -signal.SIGKILL:
            how += "; if nobody killed it, the machine ran out of memory"
        lines = "\n".join(self._lines)
        return f"its process {how}\nIts last lines:\n{lines}" if lines else f"its process {how}"

    def _listen(self) -> None:
        with contextlib.suppress(WireError, OSError):
            while (received := self.link.receive()) is not None:
                message, buffers = received
                if message["kind"] == "failed":
                    self._failure = Failure.from_json(message["failure"])
                elif message["kind"] == "done":
                    self._is_done = True
                else:
                    self._seat.forward(message, buffers)

    def _pass_on_lines(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            for line in stream:
                text = line.decode(errors="replace").rstrip()
                if text:
                    self._lines.append(text)
                    self._seat.forward({"kind": "event", "event": {"name": "line", "text": text}}, [])


def _connect(invitation: Invitation) -> socket.socket:
    """A connection to the coordinator. It lives as long as its launch: nobody there means that the launch is over."""
    try:
        connection = socket.create_connection((invitation.host, invitation.port), _CONNECT_TIMEOUT_SECONDS)
    except OSError as error:
        raise Aborted(str(error)) from error
    try:
        answer_challenge(connection, invitation.secret)
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except (OSError, WireError) as error:  # by now the port may be another launch's
        connection.close()
        raise Aborted(str(error)) from error
    return connection


def _wait_for_exit(process: subprocess.Popen[bytes]) -> None:
    """Wait without reaping, where the system can: until then the number of its group is nobody else's."""
    if hasattr(os, "waitid"):
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    else:
        process.wait()


def _search_path(invitation: Invitation) -> Iterator[str]:
    """The task's own search path, then the driver's places that exist here too: a user's module beside the script."""
    seen = set()
    for path in (*sys.path, *(each for each in invitation.sys_path if os.path.isdir(each))):
        if path and path not in seen:
            seen.add(path)
            yield path
