"""A few bytes shared by a task and its child: which step the child is in, and that it moves.

Written without a message and read after any death: so the last step of a process that was killed is known, and
one that hangs is told from one that waits for the others.
"""

from __future__ import annotations

import mmap
import struct
import tempfile
from typing import NamedTuple

__all__ = ["Beat", "Pulse", "PulseFile"]

_FORMAT = struct.Struct("=qqq")


class Beat(NamedTuple):
    """Where a child stands."""

    sign: int = 0
    """Grows with every sign of life."""
    step: int = 0
    """The step that it is in; 0 before the first."""
    is_waiting: int = 0
    """Whether it waits for the other ranks."""


class PulseFile:
    """The task's end: makes the bytes, which have no name on disk, and reads them."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - see close
        self._file.truncate(_FORMAT.size)
        self._bytes = mmap.mmap(self._file.fileno(), _FORMAT.size)

    @property
    def descriptor(self) -> int:
        """For the child to inherit."""
        return self._file.fileno()

    def read(self) -> Beat:
        """Where the child stands."""
        return Beat(*_FORMAT.unpack(self._bytes[: _FORMAT.size]))

    def reset(self) -> None:
        """For the next child."""
        self._bytes[: _FORMAT.size] = bytes(_FORMAT.size)

    def close(self) -> None:
        """Give the bytes back."""
        self._bytes.close()
        self._file.close()


class Pulse:
    """The child's end."""

    def __init__(self, descriptor: int) -> None:
        self._bytes = mmap.mmap(descriptor, _FORMAT.size)
        self._count = 0

    def beat(self, step: int, *, is_waiting: bool = False) -> None:
        """A sign of life, in this step."""
        self._count += 1
        _FORMAT.pack_into(self._bytes, 0, self._count, step, is_waiting)
