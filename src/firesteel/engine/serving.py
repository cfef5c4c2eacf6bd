"""The life of a parameter server's process: listens at once, brings its replica to life, serves until told to stop.

Started beside the driver by ``engine.servers``, with two inherited descriptors: the line to the driver, and the packed
program. It ends with the driver, whatever happens to that.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from firesteel.cluster.failure import Failure
from firesteel.cluster.gate import Gate
from firesteel.cluster.tls import Certificate
from firesteel.cluster.travel import unpack
from firesteel.cluster.wire import Link, WireError
from firesteel.core import registry
from firesteel.core.errors import FiresteelError
from firesteel.core.imports import import_ahead, importing
from firesteel.core.program import Program
from firesteel.sync.server import ParameterServer

__all__ = ["ServerJob", "main"]

_log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_BACKLOG = 128
_HANDSHAKE_SECONDS = 10.0


@dataclass(frozen=True)
class ServerJob:
    """What a server does. ``is_own_start``: from the program's own beginning, not from what a client loads."""

    program: Program
    is_locked: bool
    staleness: int | None
    seed: int
    is_own_start: bool


def main() -> None:
    """Entry point of ``python -m firesteel.engine.serving``."""
    with contextlib.suppress(OSError, AttributeError):  # Linux; elsewhere the end of the line does the same
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to handle
    control, program = int(sys.argv[1]), int(sys.argv[2])
    link = Link(socket.socket(fileno=control))
    received = link.receive()
    if received is None or os.getppid() != received[0]["parent"]:
        os._exit(1)
    logging.getLogger("firesteel").addHandler(_Teller(link))
    try:
        _Process(link, received[0], program).run(sys.argv[3:])
    except BaseException as error:  # noqa: BLE001 - whatever it was, the driver has to hear of it
        failure = Failure.of(error, rank=-1, host=received[0]["host"])
        with contextlib.suppress(OSError):
            link.send({"kind": "failed", "failure": failure.to_json()})
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


class _Teller(logging.Handler):
    """Passes warnings on to the driver's log."""

    def __init__(self, link: Link) -> None:
        super().__init__(logging.WARNING)
        self._link = link

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError, WireError):
            self._link.send({"kind": "log", "text": record.getMessage()})


class _Process:
    """One server's listening sockets, threads and replica."""

    def __init__(self, link: Link, start: dict[str, Any], program: int) -> None:
        self._link = link
        self._program = program
        secret = bytes.fromhex(start["secret"])
        certificate = Certificate() if start["is_encrypted"] else None
        self._ready = threading.Event()
        self._server: ParameterServer | None = None
        name = f"firesteel-{secrets.token_hex(8)}" if sys.platform == "linux" else ""
        listener = _listen(start["host"], start["port"])
        self._accept(
            listener, Gate(secret, world=_BACKLOG, timeout_seconds=_HANDSHAKE_SECONDS, certificate=certificate)
        )
        if name:
            here = socket.socket(socket.AF_UNIX)
            here.bind(f"\0{name}")
            here.listen(_BACKLOG)
            self._accept(here, Gate(secret, world=_BACKLOG, timeout_seconds=_HANDSHAKE_SECONDS))
        link.send(
            {
                "kind": "listening",
                "port": int(listener.getsockname()[1]),
                "name": name,
                "certificate": None if certificate is None else certificate.text,
            }
        )

    def run(self, ahead: Sequence[str]) -> None:
        """Bring the replica to life; then do what the driver says, until it hangs up."""
        import_ahead(ahead)
        with os.fdopen(self._program, "rb") as file:
            job: ServerJob = unpack(file.read())
        framework = registry.framework(job.program.framework)
        with importing():
            threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
            replica: Any = framework.replica(job.program, "cpu", threads)
        replica.seed(job.seed)
        replica.start(job.program.state)
        self._server = ParameterServer(replica, is_locked=job.is_locked, staleness=job.staleness, tell=self._tell)
        if job.is_own_start:
            self._server.open()
        self._ready.set()
        while (received := self._link.receive()) is not None:
            if received[0]["kind"] != "state":
                break
            state = self._server.state()
            about = {"kind": "state", "parts": list(state), "updates": self._server.updates}
            self._link.send(about, list(state.values()))
        self._server.close()

    def _tell(self, event: dict[str, Any]) -> None:
        self._link.send({"kind": "event", "event": event})

    def _accept(self, listener: socket.socket, gate: Gate) -> None:
        def forever() -> None:
            while True:
                connection, peer = listener.accept()
                host = peer[0] if isinstance(peer, tuple) else "this machine"
                threading.Thread(target=self._serve, args=(gate, connection, host), daemon=True).start()

        threading.Thread(target=forever, name="firesteel-accept", daemon=True).start()

    def _serve(self, gate: Gate, connection: socket.socket, host: str) -> None:
        with contextlib.closing(connection):
            stream = gate.admit(connection, host)
            if stream is None:
                return
            connection.settimeout(None)
            if connection.family != socket.AF_UNIX:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._ready.wait()
            assert self._server is not None
            try:
                self._server.serve(Link(stream, is_eager=connection.family == socket.AF_UNIX))
            except FiresteelError as error:
                _log.warning("a connection from %s to the parameter server was ended: %s", host, error)
            except OSError:
                pass  # it is gone; where it was needed, it comes back


def _listen(host: str, port: int) -> socket.socket:
    """A server on the preferred port of this address, or on any that is free."""
    family, _, _, _, place = socket.getaddrinfo(host.strip("[]"), 0, type=socket.SOCK_STREAM)[0]
    if port:
        # A port that is taken, or not for us, is no reason to fail.
        with contextlib.suppress(OSError, OverflowError):
            return socket.create_server((place[0], port), family=family, backlog=_BACKLOG)
    return socket.create_server((place[0], 0), family=family, backlog=_BACKLOG)


if __name__ == "__main__":
    main()
