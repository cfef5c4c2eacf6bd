"""A rank's seat, as its Spark task sees it: the connection to the coordinator, and the one child that trains.

The task owns the data, the heartbeat and the logs. The child imports the framework and does the work, and is
killed whole when the gang stops.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from firesteel.cluster.failure import Failure
from firesteel.cluster.preflight import package_versions
from firesteel.cluster.roles import Role
from firesteel.cluster.wire import Link, WireError, answer_challenge

__all__ = ["Aborted", "Invitation", "Seat", "UpstreamFailed"]

_BEAT_SECONDS = 0.5
_CONNECT_TIMEOUT_SECONDS = 10.0
_EXIT_TIMEOUT_SECONDS = 10.0
_LAST_LINES = 40


class UpstreamFailed(Exception):
    """The rows could not be computed: Spark itself reports why, so the task must not."""


class Aborted(Exception):
    """The gang was told to stop: this task has nothing left to do, and nothing to report."""


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
        self._begins: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._child: Child | None = None
        try:
            connection = socket.create_connection((invitation.host, invitation.port), _CONNECT_TIMEOUT_SECONDS)
            answer_challenge(connection, invitation.secret)
        except OSError as error:
            # The coordinator lives as long as its launch: nobody there means that the launch is over.
            raise Aborted(str(error)) from error
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._link = Link(connection)
        self.host = self._link.local_address
        self._link.send(
            {
                "kind": "hello",
                "rank": rank,
                "attempt": attempt,
                "host": self.host,
                "pid": os.getpid(),
                "versions": package_versions(invitation.packages),
            }
        )
        received = self._link.receive()
        if received is None or received[0]["kind"] != "seated":
            self._link.close()
            raise Aborted("the seat is not free")
        self.generation = int(received[0]["generation"])

    def __enter__(self) -> Seat:
        self._reader = threading.Thread(target=self._listen, name="firesteel-seat", daemon=True)
        self._reader.start()
        threading.Thread(target=self._beat, name="firesteel-heartbeat", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None and not isinstance(error, (Aborted, UpstreamFailed, GeneratorExit)):
            with contextlib.suppress(OSError):
                failure = Failure.of(error, rank=self.rank, host=self.host)
                self._link.send({"kind": "failed", "failure": failure.to_json()})
        self._over.set()
        if self._child is not None:
            self._child.kill()
        self._link.close()
        self._reader.join()

    def check(self) -> None:
        """Raise ``Aborted`` if the gang was stopped."""
        if self._over.is_set():
            raise Aborted

    def start_child(self, main: str, payload: bytes, descriptors: dict[str, int], role: Role) -> None:
        """Start this rank's process. It runs ``main`` ("module:function"), and inherits the descriptors."""
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
        self._child.link.send({"kind": "begin", "assignment": assignment, "generation": self.generation})
        failure = self._child.wait()
        self.check()
        if failure is not None:
            self._send({"kind": "failed", "failure": failure.to_json()})
            self._over.wait(_EXIT_TIMEOUT_SECONDS)
            raise Aborted
        self._send({"kind": "done"})

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
        with contextlib.suppress(WireError, OSError):
            while (received := self._link.receive()) is not None:
                message, buffers = received
                if message["kind"] == "abort":
                    break
                if message["kind"] == "begin":
                    self.generation = int(message["generation"])
                    self._begins.put(message["assignment"])
                elif self._child is not None:
                    self._child.tell(message, buffers)
        # Told to stop, or the driver is gone: either way nobody waits for this rank any more.
        self._over.set()
        self._begins.put(None)
        if self._child is not None:
            self._child.kill()


class Child:
    """The process of one rank. It dies with its task, whatever happens to either."""

    def __init__(
        self, seat: Seat, main: str, payload: bytes, descriptors: dict[str, int], role: Role, invitation: Invitation
    ) -> None:
        self._seat = seat
        self._failure: Failure | None = None
        self._is_done = False
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
        self._listener = threading.Thread(target=self._listen, name="firesteel-child", daemon=True)
        self._listener.start()
        self._logger = threading.Thread(target=self._pass_on_lines, name="firesteel-lines", daemon=True)
        self._logger.start()

    def tell(self, message: dict[str, Any], buffers: list[bytearray]) -> None:
        """Hand the driver's answer to the child."""
        with contextlib.suppress(OSError):
            self.link.send(message, buffers)

    def kill(self) -> None:
        """End the process now. May be called twice."""
        if self._process.poll() is None:
            self._process.kill()

    def wait(self) -> Failure | None:
        """Wait for the process to end; what went wrong, or ``None``."""
        status = self._process.wait()
        self._listener.join()
        self._logger.join(timeout=1.0)  # a grandchild may still hold the pipe
        self.link.close()
        if self._failure is not None or self._is_done:
            return self._failure
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        lines = "\n".join(self._lines)
        said = f"\nIts last lines:\n{lines}" if lines else ""
        return Failure("infrastructure", self._seat.rank, self._seat.host, f"its process {how}{said}")

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


def _search_path(invitation: Invitation) -> Iterator[str]:
    """The task's own search path, then the driver's places that exist here too: a user's module beside the script."""
    seen = set()
    for path in (*sys.path, *(each for each in invitation.sys_path if os.path.isdir(each))):
        if path and path not in seen:
            seen.add(path)
            yield path
