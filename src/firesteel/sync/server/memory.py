"""Memory that a client and a server on the same machine share: gradients go in, weights come out, nothing is sent.

Made by the client and handed over through their Unix socket; elsewhere the buffers are sent.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from firesteel.sync import segments
from firesteel.sync.server.layout import Layout

__all__ = ["SharedBuffers", "can_share"]

Array = npt.NDArray[Any]

_ALIGNMENT = 64


def can_share(descriptor: int) -> bool:
    """Whether descriptors can be handed over this connection, and there is memory without a name."""
    if not segments.can_make():
        return False
    with contextlib.closing(_socket(descriptor)) as connection:
        return connection.family == socket.AF_UNIX


class SharedBuffers:
    """The buffers of one client's exchanges with one server, in memory that both see."""

    def __init__(self, layout: Layout, mapped: mmap.mmap) -> None:
        self._mapped = mapped
        whole = np.frombuffer(mapped, np.uint8)
        parts, place = [], 0
        for size in (*layout.push_bytes, *layout.pull_bytes):
            parts.append(whole[place : place + size])
            place = _aligned(place + size)
        count = len(layout.push_bytes)
        self._push, self._pull = parts[:count], parts[count:]

    @classmethod
    def make(cls, layout: Layout, descriptor: int) -> SharedBuffers:
        """Client's side: make the memory and hand it over ``descriptor``, a Unix socket's."""
        memory, mapped = segments.make(_size(layout))
        try:
            with contextlib.closing(_socket(descriptor)) as connection:
                segments.hand_over(connection, memory)
        finally:
            os.close(memory)
        return cls(layout, mapped)

    @classmethod
    def take(cls, layout: Layout, descriptor: int) -> SharedBuffers:
        """Server's side: take the memory that the client hands over. ``SyncError`` where it is not as agreed."""
        with contextlib.closing(_socket(descriptor)) as connection:
            mapped = segments.take_over(connection, _size(layout), "a client")
        return cls(layout, mapped)

    @property
    def push(self) -> list[Array]:
        """Where gradients lie, as bytes: a replica may keep its own there."""
        return self._push

    @property
    def pull(self) -> list[Array]:
        """Where weights are laid down, as bytes: a replica may keep its own there, for as long as it waits for them."""
        return self._pull

    def put_push(self, arrays: Sequence[Array]) -> None:
        """Client: lay the gradients down."""
        _copy(self._push, [_bytes(array) for array in arrays])

    def put_pull(self, arrays: Sequence[Array]) -> None:
        """Server: lay the weights down."""
        _copy(self._pull, [_bytes(array) for array in arrays])

    def pull_into(self, arrays: Sequence[Array]) -> None:
        """Client: take the weights over."""
        _copy([_bytes(array) for array in arrays], self._pull)


def _copy(targets: Sequence[Array], sources: Sequence[Array]) -> None:
    for target, source in zip(targets, sources, strict=True):
        if target.ctypes.data != source.ctypes.data:
            np.copyto(target, source)


def _bytes(array: Array) -> Array:
    return array.view(np.uint8)


def _size(layout: Layout) -> int:
    sizes = [*layout.push_bytes, *layout.pull_bytes]
    return max(mmap.PAGESIZE, sum(map(_aligned, sizes)))


def _aligned(place: int) -> int:
    return -(-place // _ALIGNMENT) * _ALIGNMENT


def _socket(descriptor: int) -> socket.socket:
    """A second object for the same connection: closing it closes nothing."""
    return socket.socket(fileno=os.dup(descriptor))
