"""Commit points: the whole state of a training, kept beside the replica, so that a loss costs a few steps.

A rank's task holds two files without names and lends them to its child, which writes them in turn; the note that it
leaves with the task says which one is whole. They stay in the page cache, outlive the child, and vanish with the task.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import struct
import tempfile
from collections.abc import Sequence
from types import TracebackType
from typing import IO, Any

from firesteel.cluster.child import Desk
from firesteel.cluster.wire import Buffer
from firesteel.data.spool import spool_directory

__all__ = ["CommitFiles", "Commits", "join", "split"]

_LENGTH = struct.Struct("<Q")
_SLOTS = 2
_SHARE_OF_TIME = 0.005
"""What commits may cost, as a part of the training's time: half of what is promised."""
_FIRST_STEPS = 8
_REMEMBERED = 4


def join(note: dict[str, Any], parts: dict[str, Buffer]) -> list[Buffer]:
    """A note and named bytes, as pieces to be written one after the other."""
    head = json.dumps({"note": note, "parts": {name: len(data) for name, data in parts.items()}}).encode()
    return [_LENGTH.pack(len(head)) + head, *parts.values()]


def split(data: Buffer) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The reverse of ``join``, from the pieces in one."""
    view = memoryview(data)
    (length,) = _LENGTH.unpack(view[: _LENGTH.size])
    place = _LENGTH.size + length
    about = json.loads(bytes(view[_LENGTH.size : place]))
    parts = {}
    for name, size in about["parts"].items():
        parts[name] = bytes(view[place : place + size])
        place += size
    return about["note"], parts


class CommitFiles:
    """The task's end; a context manager."""

    def __init__(self) -> None:
        place = spool_directory()
        self._files: list[IO[bytes]] = [tempfile.TemporaryFile(dir=place) for _ in range(_SLOTS)]  # noqa: SIM115

    def __enter__(self) -> CommitFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files:
            file.close()

    @property
    def descriptors(self) -> dict[str, int]:
        """For the child to inherit."""
        return {f"commit {slot}": file.fileno() for slot, file in enumerate(self._files)}

    def read(self, kept: dict[str, Any] | None) -> list[bytes]:
        """The commit that a note is about, in one piece; nothing without a note."""
        return [] if kept is None else [_read(self._files[kept["slot"]].fileno(), kept["bytes"])]


class Commits:
    """The child's end: writes commits, and reads the one that a child before it left."""

    def __init__(self, desk: Desk, kept: dict[str, Any] | None, first_step: int) -> None:
        self._desk = desk
        self._kept = kept
        self.due = first_step + _FIRST_STEPS
        """The step after which to commit next."""
        self._costs: list[float] = []
        self._is_first = True

    def plan(self, step: int, cost_seconds: float, step_seconds: float) -> None:
        """Set the next one so that commits take their small part of the time and no more.

        From figures that all replicas have: a commit is something that they do together.
        """
        if self._is_first:
            # It pays for imports and allocations, and says little about the others.
            self._is_first = False
            self.due = step + max(1, min(self._steps_for(cost_seconds, step_seconds), _FIRST_STEPS * 4))
            return
        self._costs = [*self._costs[-_REMEMBERED:], cost_seconds]  # one may be slow for reasons of its own
        self.due = step + max(1, self._steps_for(statistics.median_low(self._costs), step_seconds))

    @staticmethod
    def _steps_for(cost_seconds: float, step_seconds: float) -> int:
        return math.ceil(cost_seconds / (_SHARE_OF_TIME * max(step_seconds, 1e-6)))

    def write(self, step: int, epoch: int, pieces: Sequence[Buffer]) -> None:
        """Write a commit and leave the note. Raises ``OSError`` where the disk is full; the last one stays whole."""
        slot = 0 if self._kept is None else (self._kept["slot"] + 1) % _SLOTS
        descriptor = self._desk.descriptors[f"commit {slot}"]
        place = 0
        for piece in pieces:
            view = memoryview(piece)
            while view:
                count = os.pwrite(descriptor, view, place)
                view, place = view[count:], place + count
        self._kept = {"slot": slot, "bytes": place, "step": step, "epoch": epoch}

    def leave_note(self) -> None:
        """Tell the task of the commit just written: from here on it counts."""
        assert self._kept is not None
        self._desk.keep(self._kept)

    def read(self) -> bytes:
        """The newest commit of this rank."""
        assert self._kept is not None
        return _read(self._desk.descriptors[f"commit {self._kept['slot']}"], self._kept["bytes"])


def _read(descriptor: int, size: int) -> bytes:
    pieces, place = [], 0
    while place < size and (piece := os.pread(descriptor, size - place, place)):
        pieces.append(piece)
        place += len(piece)
    return b"".join(pieces)
