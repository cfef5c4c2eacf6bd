"""Where a parameter server listens, and how a replica gets a connection to it."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass, field

from firesteel.cluster.seat import connect
from firesteel.cluster.wire import Link, WireError, answer_challenge

__all__ = ["Address", "dial"]

_CONNECT_TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True)
class Address:
    """One server. Travels inside the Spark closure only.

    Attributes:
        name: of its Unix socket, in the abstract namespace (Linux): the shorter way for who is on the same machine.
        certificate: where connections over the network are encrypted.
    """

    host: str
    port: int
    secret: bytes = field(repr=False)
    name: str = ""
    certificate: str | None = field(default=None, repr=False)


def dial(address: Address) -> Link:
    """A connection to a server, whose both ends have proven that they know the secret. ``OSError`` without one."""
    if address.name:
        with contextlib.suppress(OSError, WireError):  # another machine: no socket of that name
            return Link(_connect_here(address), is_eager=True)
    return Link(connect(address))


def _connect_here(address: Address) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(_CONNECT_TIMEOUT_SECONDS)
        connection.connect(f"\0{address.name}")
        answer_challenge(connection, address.secret)
        connection.settimeout(None)
    except BaseException:
        connection.close()
        raise
    return connection
