"""Parameter servers beside the driver: started for one fit, watched, and gone with it."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from firesteel.cluster.failure import Failure, with_lines
from firesteel.cluster.preflight import bind_address, driver_address, is_remote
from firesteel.cluster.roles import Role
from firesteel.cluster.tls import wanted
from firesteel.cluster.travel import pack
from firesteel.cluster.wire import Link, WireError
from firesteel.core import registry
from firesteel.core.errors import ClusterError, UnsupportedError
from firesteel.engine.address import Address
from firesteel.engine.serving import ServerJob

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Servers", "check_reachable"]

_log = logging.getLogger(__name__)

_START_SECONDS = 60.0
_ANSWER_SECONDS = 300.0
_END_SECONDS = 5.0
_LAST_LINES = 40
_SERVER_BYTES = 256 << 20
_MOST_SERVERS = 4


def check_reachable(spark: SparkSession, what: str) -> None:
    """Raise ``UnsupportedError`` where no task could reach a server beside this process."""
    if is_remote(spark):
        raise UnsupportedError(
            f"{what} needs a parameter server beside the driver, which a Spark Connect session cannot reach: "
            f"use a classic session, or DLEstimator(sync='allreduce')"
        )


class Servers:
    """One or more server processes; a context manager. Driver only.

    Args:
        spark: a classic session; it says which address tasks can reach, and whether to encrypt.
        job: what the servers do.
        may_cut: whether several processes may share the weights, where these are large: one would copy and update
            while all its clients wait.
        port: preferred port of the first; 0, or one that is taken: any.
        host: the address to bind to and to tell the tasks, in the place of the driver's own.
    """

    def __init__(
        self, spark: SparkSession, job: ServerJob, *, may_cut: bool = False, port: int = 0, host: str | None = None
    ) -> None:
        read = lambda key: spark.conf.get(key, None)  # noqa: E731
        self._payload = pack(job, "the program")
        self._ahead = registry.imports_of(job.program)
        self._about = {"host": host or bind_address(spark), "is_encrypted": wanted(read)}
        self._host = host or driver_address(spark)
        most = min(os.cpu_count() or 1, _MOST_SERVERS) if may_cut else 1
        count = max(1, min(len(self._payload) // _SERVER_BYTES, most))
        self._ports = [port, *[0] * (count - 1)]
        self._processes: list[_Server] = []

    def __enter__(self) -> Servers:
        try:
            for port in self._ports:
                self._processes.append(_Server(self._payload, self._ahead, {**self._about, "port": port}, self._host))
            self.addresses = tuple(process.address() for process in self._processes)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.end()

    def check(self) -> None:
        """Raise what ended a server, if something did."""
        for process in self._processes:
            process.check()

    def events(self, seconds: float = 0.0) -> Iterator[dict[str, Any]]:
        """What clients have told meanwhile, in their order; waits so long for the first."""
        with contextlib.suppress(queue.Empty):
            yield self._processes[0].events.get(timeout=seconds) if seconds else self._processes[0].events.get_nowait()
            while True:
                yield self._processes[0].events.get_nowait()

    def state(self) -> tuple[dict[str, bytes], int]:
        """The program's state as the one server has it, and how many pushes it has applied."""
        return self._processes[0].state()

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Of the servers."""
        return tuple(process.pid for process in self._processes)


class _Server:
    """One process, and the line to it."""

    def __init__(self, payload: bytes, ahead: Sequence[str], about: dict[str, Any], host: str) -> None:
        self.events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[dict[str, Any], list[Any]] | None] = queue.SimpleQueue()
        self._failure: Failure | None = None
        self._is_ending = False
        self._lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._secret = secrets.token_bytes(32)
        self._host = host
        ours, theirs = socket.socketpair()
        self._link = Link(ours)
        places = [path for path in sys.path if path]
        with theirs, tempfile.TemporaryFile() as program:
            program.write(payload)
            program.seek(0)
            # Not python -c or a fork: a process that knows nothing of the driver's threads.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "firesteel.engine.serving", str(theirs.fileno()), str(program.fileno()), *ahead],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs.fileno(), program.fileno()),
                process_group=0,
                env={
                    "TF_CPP_MIN_LOG_LEVEL": "2",
                    **os.environ,
                    **Role(0, 1).environment(),
                    "PYTHONPATH": os.pathsep.join(places),
                },
            )
        self.pid = self._process.pid
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._listen, self._read_lines)]
        for thread in self._threads:
            thread.start()
        self._link.send({**about, "secret": self._secret.hex(), "parent": os.getpid()})

    def address(self) -> Address:
        """Where it listens; waits until it does."""
        found, _ = self._answer(_START_SECONDS)
        return Address(self._host.strip("[]"), found["port"], self._secret, found["name"], found["certificate"])

    def check(self) -> None:
        """Raise what ended it, if something did."""
        if self._failure is not None:
            raise self._failure.error()
        if self._process.poll() is not None and not self._is_ending:
            raise self._gone()

    def state(self) -> tuple[dict[str, bytes], int]:
        """Its state, and how many pushes it has applied."""
        with contextlib.suppress(OSError):
            self._link.send({"kind": "state"})
        about, buffers = self._answer(_ANSWER_SECONDS)
        return {name: bytes(data) for name, data in zip(about["parts"], buffers, strict=True)}, int(about["updates"])

    def end(self) -> None:
        """End it and wait until it is gone. May be called twice."""
        self._is_ending = True
        # At once: it holds nothing that anybody still wants, and may be in the middle of an import.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        self._link.close()
        for thread in self._threads:
            thread.join()

    def _answer(self, seconds: float) -> tuple[dict[str, Any], list[Any]]:
        try:
            found = self._answers.get(timeout=seconds)
        except queue.Empty:
            raise ClusterError(f"the parameter server did not answer within {seconds:.0f} s") from None
        if found is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_SECONDS)
            self.check()
            raise self._gone()
        return found

    def _gone(self) -> ClusterError:
        status = self._process.poll()
        how = "has ended" if status is None or status >= 0 else f"was killed by signal {-status}"
        return ClusterError(with_lines(f"the parameter server {how}", self._lines))

    def _listen(self) -> None:
        with contextlib.suppress(WireError, OSError):
            while (received := self._link.receive()) is not None:
                message = received[0]
                if message["kind"] == "event":
                    self.events.put(message["event"])
                elif message["kind"] == "log":
                    _log.warning("%s", message["text"])
                elif message["kind"] == "failed":
                    self._failure = Failure.from_json(message["failure"])
                else:
                    self._answers.put(received)
        self._answers.put(None)

    def _read_lines(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            for line in stream:
                if text := line.decode(errors="replace").rstrip():
                    self._lines.append(text)
                    _log.debug("parameter server: %s", text)
