"""Messages between driver, tasks and children: a JSON object and raw buffers, in a checked frame.

Nothing that arrives is ever unpickled. A frame begins with a fixed header (magic, sizes, checksums), so that foreign
bytes are refused before anything is made of them, and memory grows with what has arrived, never with what was
announced.

A connection over a network opens with a challenge, in which both ends prove that they know the job's secret. Until
then it may say sixty-eight bytes and take no longer than its timeout. What the checks are for, and what they are not,
is in ``docs/adr/0016-control-plane-security.md``.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import secrets
import select
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from firesteel.core.errors import ClusterError
from firesteel.core.lookout import Lookout

__all__ = ["Allowance", "Connection", "Link", "Room", "WireError", "answer_challenge", "challenge"]

Buffer = bytes | bytearray | memoryview
Room = Callable[[dict[str, Any], list[int]], Sequence[memoryview] | None]
"""Where a message's buffers, of these lengths, are to be received; ``None``: in new ones. Raises to refuse them."""

# A frame: header and its checksum, each buffer's length, the JSON, the buffers, and a checksum of these if it has one.
_HEADER = struct.Struct("!4s?IHI")  # magic, whether buffers have a checksum, JSON bytes, buffers, checksum of JSON etc.
_LENGTH = struct.Struct("!Q")
_CHECKSUM = struct.Struct("!I")
_MAGIC = b"FSTL"
_MAX_JSON_BYTES = 64 << 20
_MAX_BUFFERS = 0xFFFF
_MAX_BUFFER_BYTES = 64 << 30
"""Of all buffers of a message together."""
_CHUNK_BYTES = 256 << 10
_LAST_WORD_SECONDS = 1.0

_GREETING = b"FSH1"
_NONCE_BYTES = 32
_SHOWN_BYTES = 16
_FOREIGN = {
    b"GET ": "an HTTP request",
    b"HEAD": "an HTTP request",
    b"POST": "an HTTP request",
    b"OPTI": "an HTTP request",
    b"CONN": "an HTTP request",
    b"PRI ": "an HTTP request",
    b"HTTP": "an HTTP answer",
    b"SSH-": "an SSH greeting",
    b"\x16\x03": "a TLS greeting",
}


class WireError(ClusterError):
    """Bytes on a connection that are not ours, or not whole."""


class Connection(Protocol):
    """What a ``Link`` asks of a socket. Plain sockets have it, and ``cluster.tls.TlsSocket``."""

    def sendall(self, data: Buffer, /) -> None:
        """Send all of it, however long that takes."""

    def send(self, data: Buffer, flags: int, /) -> int:
        """Send some of it; says how much."""

    def recv_into(self, buffer: memoryview, /) -> int:
        """Wait for bytes; how many came, 0 when the other end closed."""

    def gettimeout(self) -> float | None:
        """How long a wait may last."""

    def settimeout(self, seconds: float | None, /) -> None:
        """Set how long a wait may last."""

    def getsockname(self) -> Any:
        """This end's address."""

    def fileno(self) -> int:
        """The descriptor."""

    def shutdown(self, how: int, /) -> None:
        """End it for both sides; wakes who waits."""

    def close(self) -> None:
        """Give the descriptor back."""


class Link:
    """One end of a connection. ``send`` may be called from several threads, ``receive`` from one.

    Args:
        connection: a socket.
        is_eager: whether messages mostly come within a fraction of a millisecond, from a process of the same machine.
    """

    def __init__(self, connection: Connection, *, is_eager: bool = False) -> None:
        self.heard = time.monotonic()
        """When bytes last arrived: also in the middle of a message, for a large one takes its time."""
        self._socket = connection
        self._sending = threading.Lock()
        self._sum = 0  # of the buffers that arrive
        self._lookout = Lookout(connection.fileno()) if is_eager else None
        # TCP's own checksum lets one damaged segment in 65,536 through. TLS notices by itself, and between two
        # processes of one machine there is no wire: there, buffers go without.
        self._sums_buffers = isinstance(connection, socket.socket) and connection.family != socket.AF_UNIX

    @property
    def local_address(self) -> str:
        """The address of this machine that the other end sees."""
        return str(self._socket.getsockname()[0])

    def fileno(self) -> int:
        """The socket's descriptor, for a child to inherit."""
        return self._socket.fileno()

    def send(self, message: dict[str, Any], buffers: Sequence[Buffer] = ()) -> None:
        """Send one message. Raises ``OSError`` when the other end is gone, ``WireError`` on one that is too large."""
        views = [memoryview(buffer).cast("B") for buffer in buffers]
        is_summed = self._sums_buffers and bool(views)
        head = _head(message, views, is_summed=is_summed)
        with self._sending:
            self._socket.sendall(head)
            if is_summed:
                self._send_summed(views)
            else:
                for view in views:
                    self._socket.sendall(view)

    def _send_summed(self, views: Sequence[memoryview]) -> None:
        checksum = 0
        for view in views:
            for start in range(0, view.nbytes, _CHUNK_BYTES):
                # By chunks: while this end sums up the next one, the other end works on the last.
                chunk = view[start : start + _CHUNK_BYTES]
                checksum = zlib.crc32(chunk, checksum)
                self._socket.sendall(chunk)
        self._socket.sendall(_CHECKSUM.pack(checksum))

    def send_last(self, message: dict[str, Any]) -> None:
        """Send without ever waiting for the other end: a connection that does not take it is closed instead."""
        frame = _head(message, [], is_summed=False)
        if self._sending.acquire(timeout=_LAST_WORD_SECONDS):
            try:
                if _has_room(self._socket) and self._socket.send(frame, socket.MSG_DONTWAIT) == len(frame):
                    return
            except (OSError, ValueError):
                pass  # full, or gone already
            finally:
                self._sending.release()
        self.close()

    def receive(self, room: Room | None = None) -> tuple[dict[str, Any], list[Any]] | None:
        """The next message, or ``None`` when the other end closed. Raises ``WireError`` on foreign bytes."""
        if self._lookout is not None:
            self._lookout.look()
        header = self._read(_HEADER.size + _CHECKSUM.size, is_start=True)
        if header is None:
            return None
        if self._lookout is not None:
            self._lookout.learn()
        magic, is_summed, json_bytes, count, checksum = _HEADER.unpack_from(header)
        if magic != _MAGIC:
            raise WireError(f"a connection sent {_name(header)} instead of a Firesteel message")
        if _CHECKSUM.pack(zlib.crc32(header[: _HEADER.size])) != header[_HEADER.size :]:
            raise WireError("the header of a message was damaged on its way")
        if json_bytes > _MAX_JSON_BYTES:
            raise WireError(f"a connection announced a message of {json_bytes} bytes, more than any of Firesteel's has")
        body = self._must(count * _LENGTH.size + json_bytes)
        if zlib.crc32(body) != checksum:
            raise WireError("a message was damaged on its way")
        lengths = [length for (length,) in _LENGTH.iter_unpack(body[: count * _LENGTH.size])]
        if sum(lengths) > _MAX_BUFFER_BYTES:
            raise WireError("a connection announced buffers larger than any that Firesteel sends")
        message = _parse(body[count * _LENGTH.size :])
        self._sum = 0
        places = None if room is None else room(message, lengths)
        if places is None:
            buffers: list[Any] = [self._must(length, is_summed=is_summed) for length in lengths]
        else:
            buffers = [self._fill(place, is_summed=is_summed) for place in places]
        if is_summed and _CHECKSUM.pack(self._sum) != self._must(_CHECKSUM.size):
            raise WireError("a buffer was damaged on its way")
        return message, buffers

    def close(self) -> None:
        """Close both directions; a thread that waits in ``receive`` comes back with ``None``."""
        with contextlib.suppress(OSError):  # already closed by the other end
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _must(self, size: int, *, is_summed: bool = False) -> bytearray:
        data = self._read(size, is_summed=is_summed)
        assert data is not None
        return data

    def _fill(self, place: memoryview, *, is_summed: bool) -> memoryview:
        """Receive into memory that is there already."""
        got = 0
        while got < place.nbytes:
            try:
                count = self._socket.recv_into(place[got : got + _CHUNK_BYTES] if is_summed else place[got:])
            except TimeoutError:
                raise
            except OSError:
                count = 0
            if count == 0:
                raise WireError("a connection ended in the middle of a message")
            if is_summed:
                self._sum = zlib.crc32(place[got : got + count], self._sum)
            got += count
            self.heard = time.monotonic()
        return place

    def _read(self, size: int, *, is_start: bool = False, is_summed: bool = False) -> bytearray | None:
        data = bytearray()
        # Through a small chunk into an array that grows: as fast as an array made whole at once (which has to be
        # cleared first), and it takes only as much memory as has arrived, plus an eighth.
        chunk = memoryview(bytearray(min(size, _CHUNK_BYTES)))
        while len(data) < size:
            try:
                count = self._socket.recv_into(chunk[: size - len(data)])
            except TimeoutError:
                raise
            except OSError:  # reset, or closed by another thread of ours: an end like any other
                count = 0
            if count == 0:
                if is_start and not data:
                    return None
                raise WireError("a connection ended in the middle of a message")
            try:
                data += chunk[:count]
            except MemoryError as error:
                raise WireError(f"there is no memory for a message with {size} bytes in one piece") from error
            if is_summed:
                self._sum = zlib.crc32(chunk[:count], self._sum)
            self.heard = time.monotonic()
        return data


def _head(message: dict[str, Any], views: Sequence[memoryview], *, is_summed: bool) -> bytes:
    """A frame up to where its buffers begin."""
    text = json.dumps(message, separators=(",", ":")).encode()
    total = sum(view.nbytes for view in views)
    if len(text) > _MAX_JSON_BYTES or len(views) > _MAX_BUFFERS or total > _MAX_BUFFER_BYTES:
        raise WireError(
            f"a message of {len(text)} bytes with {len(views)} buffers of {total} bytes in all is more than one may "
            f"hold: {_MAX_JSON_BYTES} bytes and {_MAX_BUFFERS} buffers of {_MAX_BUFFER_BYTES} bytes in all"
        )
    body = b"".join(_LENGTH.pack(view.nbytes) for view in views) + text
    header = _HEADER.pack(_MAGIC, is_summed, len(text), len(views), zlib.crc32(body))
    return header + _CHECKSUM.pack(zlib.crc32(header)) + body


def _parse(text: bytearray) -> dict[str, Any]:
    try:
        message = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise WireError("a message is not JSON") from error
    if not isinstance(message, dict):
        raise WireError("a message is not a JSON object")
    return message


def _has_room(connection: Connection) -> bool:
    """Whether a send would take something now. One with a timeout waits for that, whatever its flags say."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLOUT)
    return bool(poll.poll(0))


class Allowance:
    """A connection's timeout, counted over a whole exchange instead of each wait.

    Else whoever sends a byte now and then could stay for ever. What is left over stays the connection's timeout, so
    that exchanges that follow each other share it.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        timeout_seconds = connection.gettimeout()
        self._end = None if timeout_seconds is None else time.monotonic() + timeout_seconds

    def spend(self) -> None:
        """To be called before each wait. Raises ``TimeoutError`` when nothing is left."""
        if self._end is None:
            return
        left_seconds = self._end - time.monotonic()
        if left_seconds <= 0:
            raise TimeoutError("timed out")
        self._connection.settimeout(left_seconds)


def challenge(connection: Connection, secret: bytes) -> bool:
    """Driver's side: does the other end know the job's secret? It learns in turn that we do.

    All of it has to be done within the connection's timeout. Raises ``WireError`` where the other end does not even
    speak our language, ``TimeoutError`` where it is too slow.
    """
    allowance = Allowance(connection)
    mine = secrets.token_bytes(_NONCE_BYTES)
    connection.sendall(_GREETING + mine)
    answer = _said(connection, _NONCE_BYTES + hashlib.sha256().digest_size, allowance)
    theirs, proof = answer[:_NONCE_BYTES], answer[_NONCE_BYTES:]
    if not hmac.compare_digest(proof, _proof(secret, b"task", mine, theirs)):
        return False
    connection.sendall(_GREETING + _proof(secret, b"driver", mine, theirs))
    return True


def answer_challenge(connection: Connection, secret: bytes) -> None:
    """Task's side of ``challenge``. Raises ``WireError`` when the other end is not our driver."""
    allowance = Allowance(connection)
    theirs = _said(connection, _NONCE_BYTES, allowance)
    mine = secrets.token_bytes(_NONCE_BYTES)
    connection.sendall(_GREETING + mine + _proof(secret, b"task", theirs, mine))
    try:
        proof = _said(connection, hashlib.sha256().digest_size, allowance)
    except _Ended as error:
        raise WireError("the driver does not take this job's secret, or its launch is over") from error
    if not hmac.compare_digest(proof, _proof(secret, b"driver", theirs, mine)):
        raise WireError("the process at the driver's address does not know this job's secret")


class _Ended(WireError):
    """The other end closed while it was asked to prove itself."""


def _proof(secret: bytes, role: bytes, driver_nonce: bytes, task_nonce: bytes) -> bytes:
    """That its maker knows the secret, now (both nonces) and in this role: no proof can be used a second time."""
    return hmac.digest(secret, _GREETING + role + driver_nonce + task_nonce, "sha256")


def _said(connection: Connection, size: int, allowance: Allowance) -> bytes:
    """The next ``size`` bytes after a greeting. Foreign ones are refused at the first that differs."""
    data = bytearray()
    wanted = len(_GREETING) + size
    chunk = memoryview(bytearray(wanted))
    while len(data) < wanted:
        allowance.spend()
        count = connection.recv_into(chunk[: wanted - len(data)])
        data += chunk[:count]
        if not _GREETING.startswith(data[: len(_GREETING)]):
            raise WireError(f"it sent {_name(data)}")
        if count == 0:
            raise _Ended("it closed the connection before it had proven itself")
    return bytes(data[len(_GREETING) :])


def _name(data: bytearray) -> str:
    """Foreign bytes, for a log: what they seem to be, and the first of them, escaped."""
    guess = next((name for start, name in _FOREIGN.items() if data.startswith(start)), "foreign bytes")
    return f"{guess} ({bytes(data[:_SHOWN_BYTES])!r})"
