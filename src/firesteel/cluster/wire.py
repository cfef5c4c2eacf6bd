"""Messages between driver, tasks and children: a JSON object and raw buffers, in a checked frame.

Nothing that arrives is ever unpickled. A frame begins with a fixed header (magic, sizes, checksum of the JSON), so
that foreign bytes are refused before anything is allocated for them.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import secrets
import socket
import struct
import threading
import time
import zlib
from collections.abc import Sequence
from typing import Any

from firesteel.core.errors import ClusterError

__all__ = ["Link", "WireError", "answer_challenge", "challenge"]

Buffer = bytes | bytearray | memoryview

_HEADER = struct.Struct("!4sIHI")  # magic, JSON bytes, buffers, checksum
_LENGTH = struct.Struct("!Q")
_MAGIC = b"FSTL"
_MAX_JSON_BYTES = 64 << 20
_MAX_BUFFER_BYTES = 64 << 30
_NONCE_BYTES = 32
_LAST_WORD_SECONDS = 1.0


class WireError(ClusterError):
    """Bytes on a connection that are not ours, or not whole."""


class Link:
    """One end of a connection. ``send`` may be called from several threads, ``receive`` from one."""

    def __init__(self, connection: socket.socket) -> None:
        self.heard = time.monotonic()
        """When bytes last arrived: also in the middle of a message, for a large one takes its time."""
        self._socket = connection
        self._sending = threading.Lock()

    @property
    def local_address(self) -> str:
        """The address of this machine that the other end sees."""
        return str(self._socket.getsockname()[0])

    def fileno(self) -> int:
        """The socket's descriptor, for a child to inherit."""
        return self._socket.fileno()

    def send(self, message: dict[str, Any], buffers: Sequence[Buffer] = ()) -> None:
        """Send one message. Raises ``OSError`` when the other end is gone."""
        views = [memoryview(buffer).cast("B") for buffer in buffers]
        head = _head(message, views)
        with self._sending:
            self._socket.sendall(head)
            for view in views:
                self._socket.sendall(view)

    def send_last(self, message: dict[str, Any]) -> None:
        """Send without ever waiting for the other end: a connection that does not take it is closed instead."""
        frame = _head(message, [])
        if self._sending.acquire(timeout=_LAST_WORD_SECONDS):
            try:
                if self._socket.send(frame, socket.MSG_DONTWAIT) == len(frame):
                    return
            except OSError:
                pass  # full, or gone already
            finally:
                self._sending.release()
        self.close()

    def receive(self) -> tuple[dict[str, Any], list[bytearray]] | None:
        """The next message, or ``None`` when the other end closed. Raises ``WireError`` on foreign bytes."""
        head = self._read(_HEADER.size, is_start=True)
        if head is None:
            return None
        magic, json_bytes, count, checksum = _HEADER.unpack(head)
        if magic != _MAGIC or json_bytes > _MAX_JSON_BYTES:
            raise WireError("a connection sent bytes that are not a Firesteel message")
        lengths = [_LENGTH.unpack(self._must(_LENGTH.size))[0] for _ in range(count)]
        if any(length > _MAX_BUFFER_BYTES for length in lengths):
            raise WireError("a connection announced a buffer larger than any that Firesteel sends")
        text = self._must(json_bytes)
        if zlib.crc32(text) != checksum:
            raise WireError("a message was damaged on its way")
        try:
            message = json.loads(bytes(text))
        except ValueError as error:
            raise WireError("a message is not JSON") from error
        if not isinstance(message, dict):
            raise WireError("a message is not a JSON object")
        return message, [self._must(length) for length in lengths]

    def close(self) -> None:
        """Close both directions; a thread that waits in ``receive`` comes back with ``None``."""
        with contextlib.suppress(OSError):  # already closed by the other end
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _must(self, size: int) -> bytearray:
        data = self._read(size, is_start=False)
        assert data is not None
        return data

    def _read(self, size: int, *, is_start: bool) -> bytearray | None:
        data = bytearray(size)
        view = memoryview(data)
        got = 0
        while got < size:
            try:
                count = self._socket.recv_into(view[got:])
            except TimeoutError:
                raise
            except OSError:  # reset, or closed by another thread of ours: an end like any other
                count = 0
            if count == 0:
                if is_start and got == 0:
                    return None
                raise WireError("a connection ended in the middle of a message")
            got += count
            self.heard = time.monotonic()
        return data


def _head(message: dict[str, Any], views: Sequence[memoryview]) -> bytes:
    """A frame up to where its buffers begin."""
    text = json.dumps(message, separators=(",", ":")).encode()
    lengths = b"".join(_LENGTH.pack(view.nbytes) for view in views)
    return _HEADER.pack(_MAGIC, len(text), len(views), zlib.crc32(text)) + lengths + text


def challenge(connection: socket.socket, secret: bytes) -> bool:
    """Driver's side: does the other end know the job's secret? It learns in turn that we do."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    connection.sendall(nonce)
    answer = _exactly(connection, _NONCE_BYTES * 2)
    if answer is None:
        return False
    theirs, proof = answer[:_NONCE_BYTES], answer[_NONCE_BYTES:]
    if not hmac.compare_digest(proof, _proof(secret, b"task", nonce)):
        return False
    connection.sendall(_proof(secret, b"driver", theirs))
    return True


def answer_challenge(connection: socket.socket, secret: bytes) -> None:
    """Task's side of ``challenge``. Raises ``WireError`` when the other end is not our driver."""
    nonce = _exactly(connection, _NONCE_BYTES)
    if nonce is None:
        raise WireError("the driver closed the connection before it was opened")
    mine = secrets.token_bytes(_NONCE_BYTES)
    connection.sendall(mine + _proof(secret, b"task", nonce))
    proof = _exactly(connection, _NONCE_BYTES)
    if proof is None or not hmac.compare_digest(proof, _proof(secret, b"driver", mine)):
        raise WireError("the process at the driver's address does not know this job's secret")


def _proof(secret: bytes, role: bytes, nonce: bytes) -> bytes:
    return hmac.new(secret, role + nonce, hashlib.sha256).digest()


def _exactly(connection: socket.socket, size: int) -> bytes | None:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            return None
        data += part
    return data
