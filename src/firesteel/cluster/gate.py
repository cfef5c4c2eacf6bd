"""The coordinator's gate: who connects is a stranger until it has proven that it belongs to the job.

A stranger gets one thread, a few bytes and a few seconds, and there are never more than so many of them. When one too
many comes, the one that has waited longest has to go: a task of ours needs milliseconds, so that is never one of ours,
and a crowd at the gate keeps nobody out.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading

from firesteel.cluster.tls import Certificate
from firesteel.cluster.wire import Connection, WireError, challenge

__all__ = ["Gate"]

_log = logging.getLogger(__name__)

_STRANGERS = 64
_WARNINGS = 100


class Gate:
    """Lets a job's own tasks in. Made on the driver; ``admit`` is called by each connection's own thread.

    Args:
        secret: the job's secret.
        world: how many ranks may come at the same moment.
        timeout_seconds: how long a stranger may take, TLS and challenge together.
        certificate: for TLS; without one, connections are not encrypted.
    """

    def __init__(
        self, secret: bytes, *, world: int, timeout_seconds: float, certificate: Certificate | None = None
    ) -> None:
        self._secret = secret
        self._most = world + _STRANGERS
        self._timeout_seconds = timeout_seconds
        self._certificate = certificate
        self._strangers: dict[socket.socket, None] = {}  # in the order in which they came
        self._refused = 0
        self._is_closed = False
        self._lock = threading.Lock()

    def admit(self, connection: socket.socket, host: str) -> Connection | None:
        """The connection to talk through, or ``None``: then it was refused, and the log says why.

        Either way, the caller closes it. What is left of the timeout is still its timeout.
        """
        self._receive(connection)
        stream: Connection | None = None
        reason = "it does not know this job's secret"
        try:
            connection.settimeout(self._timeout_seconds)
            stream = self._certificate.accept(connection) if self._certificate else connection
            is_ours = challenge(stream, self._secret)
        except (OSError, WireError) as error:
            is_ours, reason = False, str(error)
        with self._lock:
            was_sent_away = connection not in self._strangers
            self._strangers.pop(connection, None)
        if is_ours and not was_sent_away:
            return stream
        self._refuse(host, f"more than {self._most} were waiting" if was_sent_away else reason)
        return None

    def close(self) -> None:
        """Send all strangers away: the launch is over. What is refused from now on is not worth a line."""
        with self._lock:
            self._is_closed = True
            for stranger in self._strangers:
                _send_away(stranger)
            self._strangers.clear()

    def _receive(self, connection: socket.socket) -> None:
        with self._lock:
            if self._is_closed:
                _send_away(connection)
                return
            self._strangers[connection] = None
            if len(self._strangers) > self._most:
                longest = next(iter(self._strangers))
                del self._strangers[longest]
                _send_away(longest)

    def _refuse(self, host: str, reason: str) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._refused += 1
            count = self._refused
        if count <= _WARNINGS:
            _log.warning("refused a connection from %s: %s", host, reason)
        if count == _WARNINGS:
            _log.warning("refused %d connections to this job; further ones are not reported", count)


def _send_away(stranger: socket.socket) -> None:
    """Wake its thread, which closes it."""
    with contextlib.suppress(OSError):
        stranger.shutdown(socket.SHUT_RDWR)
