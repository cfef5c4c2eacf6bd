"""A group whose ranks are processes of one machine: buffers meet in memory that all of them see.

A library would carry them through the network stack, with threads of its own that want the cores on which the others
still compute: 3 ms of a small model's step of 7 (docs/adr/0027). Here a rank lays its numbers down, waits for the
others, and adds up its part; nothing runs beside it.

Each rank writes its own memory only, and has two halves of it, used in turn: who arrives at the next exchange has done
with the last one, and so the half before that is free.
"""

from __future__ import annotations

import mmap
import socket
from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from firesteel.core.errors import SyncError
from firesteel.core.lookout import Lookout
from firesteel.core.ports import Group
from firesteel.sync.gathering import gather_bytes

__all__ = ["HALF_BYTES", "NearbyGroup"]

Array = npt.NDArray[Any]

HALF_BYTES = 4 << 20
"""Longer buffers go in pieces: these stay in the processor's cache."""
_SMALL_BYTES = 64 << 10
"""Of all ranks together. So little is added up by every rank for itself, which saves waiting a second time."""


class NearbyGroup:
    """See ``core.ports.Group``.

    Args:
        library: the group beside which this one works: for what only a library can do, and left together with it.
        memories: every rank's memory, in rank order, of twice ``half_bytes`` each.
        links: a connection to every other rank, by rank; waits on it end with ``SyncError`` when its other end goes.
        timeout_seconds: how long the links wait.
        half_bytes: how much is exchanged at a time.
    """

    def __init__(
        self,
        library: Group,
        memories: Sequence[mmap.mmap],
        links: Mapping[int, socket.socket],
        timeout_seconds: float,
        half_bytes: int = HALF_BYTES,
    ) -> None:
        self.rank, self.size = library.rank, library.size
        self._library = library
        self._halves = [
            [np.frombuffer(m, np.uint8, half_bytes, half * half_bytes) for m in memories] for half in (0, 1)
        ]
        self._links = {other: (link, Lookout(link.fileno())) for other, link in links.items()}
        self._timeout = timeout_seconds
        self._room = half_bytes
        self._exchanges = 0

    def all_reduce(self, array: Array) -> None:
        """Sum over all ranks, in place: in the order of ranks, so that all have the same sum to the last bit."""
        flat = array.reshape(-1)
        room = self._room // array.itemsize
        for begin in range(0, len(flat), room):
            self._add_up(flat[begin : begin + room])
        if not np.may_share_memory(flat, array):  # it was not in one piece
            array[...] = flat.reshape(array.shape)

    def _add_up(self, piece: Array) -> None:
        parts = self._next_half(piece.dtype, len(piece))
        parts[self.rank][:] = piece
        self._arrive()
        if piece.nbytes * self.size <= _SMALL_BYTES:
            piece[:] = reduce(np.add, parts)
            return
        edges = list(pairwise(len(piece) * rank // self.size for rank in range(self.size + 1)))
        begin, end = edges[self.rank]
        mine = piece[begin:end]
        np.add(parts[0][begin:end], parts[1][begin:end], out=mine)
        for part in parts[2:]:
            mine += part[begin:end]
        parts[self.rank][begin:end] = mine  # the others have no use for what was there
        self._arrive()
        for rank, (begin, end) in enumerate(edges):
            if rank != self.rank:
                piece[begin:end] = parts[rank][begin:end]

    def all_gather(self, array: Array, bounds: Sequence[tuple[int, int]]) -> None:
        """Rank r's part ``bounds[r]`` reaches all, in place."""
        flat = array.reshape(-1)
        room = self._room // array.itemsize
        for place in range(0, max(end - begin for begin, end in bounds), room):
            pieces = [flat[begin + place : max(begin + place, min(end, begin + place + room))] for begin, end in bounds]
            self._spread(pieces)
        if not np.may_share_memory(flat, array):
            array[...] = flat.reshape(array.shape)

    def broadcast(self, array: Array, root: int = 0) -> None:
        """``root``'s array reaches all, in place."""
        size = array.size
        self.all_gather(array, [(0, size) if rank == root else (0, 0) for rank in range(self.size)])

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """Every rank's bytes, on every rank."""
        return gather_bytes(self, data)

    def close(self) -> None:
        """Leave the group, and the library's."""
        for link, _ in self._links.values():
            link.close()
        self._library.close()

    def _spread(self, pieces: Sequence[Array]) -> None:
        """Each rank's piece to all the others."""
        parts = self._next_half(pieces[0].dtype, self._room // pieces[0].itemsize)
        mine = pieces[self.rank]
        parts[self.rank][: len(mine)] = mine
        self._arrive()
        for rank, piece in enumerate(pieces):
            if rank != self.rank:
                piece[:] = parts[rank][: len(piece)]

    def _next_half(self, dtype: npt.DTypeLike, count: int) -> list[Array]:
        """Every rank's memory for the next exchange, as that many numbers."""
        self._exchanges += 1
        size = count * np.dtype(dtype).itemsize
        return [whole[:size].view(dtype) for whole in self._halves[self._exchanges % 2]]

    def _arrive(self) -> None:
        """Tell all the others that this rank is here, and wait until they all are."""
        other = -1
        try:
            for other, (link, _) in self._links.items():  # noqa: B007 - for the error
                link.send(b".")
            for other, (link, lookout) in self._links.items():
                lookout.look()
                if not link.recv(1):
                    raise SyncError(f"replica {self.rank} lost replica {other}: it has gone", rank=self.rank)
                lookout.learn()
        except BlockingIOError:
            raise SyncError(
                f"replica {self.rank} has waited {self._timeout:g} s for replica {other} (exchange_timeout)",
                rank=self.rank,
            ) from None
        except OSError as error:
            raise SyncError(f"replica {self.rank} lost replica {other}: {error}", rank=self.rank) from error
