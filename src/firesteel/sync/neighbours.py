"""How the ranks of a gang find out that they are on one machine, and hand each other their memory.

By names on the gang's board and Unix sockets in the kernel's own namespace: no port, no file. Who connects must belong
to the same user and know a secret that only the board has told.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import mmap
import os
import secrets
import socket
import struct
import time
from pathlib import Path

from firesteel.core.errors import SyncError
from firesteel.core.ports import Board, Group
from firesteel.sync import segments
from firesteel.sync.nearby import HALF_BYTES, NearbyGroup

__all__ = ["meet"]

_MEET_SECONDS = 60.0
_HELLO_SECONDS = 5.0
_SECRET_BYTES = 16
_HELLO = struct.Struct("<I")
_CREDENTIALS = struct.Struct("3i")
_TIMEOUT = struct.Struct("ll")
_BACKLOG = 128

_Card = dict[str, str]

_logger = logging.getLogger(__name__)


def meet(
    library: Group, board: Board, key: str, timeout_seconds: float = 1800.0, half_bytes: int = HALF_BYTES
) -> Group:
    """A group in shared memory where all ranks are on one machine; else ``library``, as it is.

    Args:
        library: the group that they have already.
        board: their board.
        key: theirs on the board; another one for every gang.
        timeout_seconds: how long an exchange may wait.
        half_bytes: see ``NearbyGroup``; the same on all ranks.
    """
    rank, size = library.rank, library.size
    with contextlib.ExitStack() as ours:
        home = _open_home(ours, 2 * half_bytes)
        board("set", f"{key}/{rank}", json.dumps(home and home.card).encode())
        cards = [json.loads(board("get", f"{key}/{each}") or b"null") for each in range(size)]
        if home is None or not all(cards) or len({card["place"] for card in cards}) > 1:
            return library
        links = home.connect(rank, cards)
        memories = [home.memory if each == rank else home.swap(rank, links[each], each) for each in range(size)]
        for link in links.values():
            _limit(link, timeout_seconds)
        return NearbyGroup(library, memories, links, timeout_seconds, half_bytes)


class _Home:
    """Where a rank can be found, and the memory that it hands over."""

    def __init__(self, listener: socket.socket, descriptor: int, memory: mmap.mmap, place: str) -> None:
        self._listener, self._descriptor = listener, descriptor
        self.memory = memory
        self._secret = secrets.token_bytes(_SECRET_BYTES)
        self.card = {"secret": self._secret.hex(), "address": listener.getsockname().hex(), "place": place}

    def connect(self, rank: int, cards: list[_Card]) -> dict[int, socket.socket]:
        """A connection to each other rank: to those before it this one goes, those after it come."""
        deadline = time.monotonic() + _MEET_SECONDS
        links: dict[int, socket.socket] = {}
        try:
            for other in range(rank):
                links[other] = _call(cards[other], rank)
            while len(links) < len(cards) - 1:
                self._listener.settimeout(max(0.001, deadline - time.monotonic()))
                connection, _ = self._listener.accept()
                caller = self._check(connection)
                if caller is None or caller in links or not rank < caller < len(cards):
                    _logger.warning("replica %d refused a connection that is none of its gang's", rank)
                    connection.close()
                else:
                    links[caller] = connection
        except OSError as error:
            for link in links.values():
                link.close()
            missing = sorted({*range(len(cards))} - {rank, *links})
            raise SyncError(
                f"replica {rank} could not reach replicas {missing} of its own machine within {_MEET_SECONDS:.0f} s "
                f"(meet_timeout): {error}. spark.firesteel.sharedMemory=false makes them use the network",
                rank=rank,
            ) from error
        return links

    def swap(self, rank: int, link: socket.socket, other: int) -> mmap.mmap:
        """The other's memory, for this one's."""
        try:
            link.settimeout(_MEET_SECONDS)
            segments.hand_over(link, self._descriptor)
            return segments.take_over(link, len(self.memory), f"replica {other}")
        except OSError as error:  # it went while all were meeting, or says nothing
            raise SyncError(f"replica {rank} lost replica {other} (meet_timeout): {error}", rank=rank) from error

    def _check(self, connection: socket.socket) -> int | None:
        """Which rank is calling; ``None`` for a stranger."""
        _, user, _ = _CREDENTIALS.unpack(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        if user != os.getuid():
            return None
        connection.settimeout(_HELLO_SECONDS)
        hello = b""
        with contextlib.suppress(OSError):
            while len(hello) < _SECRET_BYTES + _HELLO.size:
                piece = connection.recv(_SECRET_BYTES + _HELLO.size - len(hello))
                if not piece:
                    break
                hello += piece
        if not hmac.compare_digest(hello[:_SECRET_BYTES], self._secret) or len(hello) != _SECRET_BYTES + _HELLO.size:
            return None
        return int(_HELLO.unpack(hello[_SECRET_BYTES:])[0])


def _open_home(stack: contextlib.ExitStack, size: int) -> _Home | None:
    """``None`` where this system has no such memory or sockets."""
    place = _here()
    if place is None or not segments.can_make():
        return None
    try:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        listener.bind(b"\0firesteel-" + secrets.token_hex(16).encode())
        listener.listen(_BACKLOG)
        descriptor, memory = segments.make(size)
    except OSError as error:
        _logger.info("no shared memory here, replicas will use the network: %s", error)
        return None
    stack.callback(os.close, descriptor)
    return _Home(listener, descriptor, memory, place)


def _here() -> str | None:
    """What processes have in common that can reach each other by such sockets: the kernel, and its network's space."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        space = os.stat("/proc/self/ns/net")
    except OSError:
        return None
    return f"{boot} {space.st_dev} {space.st_ino}"


def _limit(link: socket.socket, seconds: float) -> None:
    """From now on a wait lasts no longer."""
    link.settimeout(None)
    # The kernel's own limit costs nothing; Python's would be a system call more for each wait.
    whole, rest = divmod(seconds, 1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEOUT.pack(int(whole), int(rest * 1e6)))


def _call(card: _Card, rank: int) -> socket.socket:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        link.settimeout(_MEET_SECONDS)
        link.connect(bytes.fromhex(card["address"]))
        link.sendall(bytes.fromhex(card["secret"]) + _HELLO.pack(rank))
    except OSError:
        link.close()
        raise
    return link
