"""Memory that processes of one machine share: it has no name on disk and is sealed against being cut.

It is handed over as a descriptor through a Unix socket, and vanishes with its last holder, however that ends. Linux
only.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import socket

from firesteel.core.errors import SyncError

__all__ = ["can_make", "hand_over", "make", "take_over"]

_SEALS = ("F_SEAL_SHRINK", "F_SEAL_GROW", "F_SEAL_SEAL")


def can_make() -> bool:
    """Whether there is memory without a name on this system."""
    return hasattr(os, "memfd_create") and hasattr(fcntl, "F_ADD_SEALS")


def make(size: int) -> tuple[int, mmap.mmap]:
    """New memory: a descriptor to hand over and then close, and the memory itself. ``OSError`` where there is none."""
    descriptor = os.memfd_create("firesteel", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _seals())
        return descriptor, mmap.mmap(descriptor, size)
    except BaseException:
        os.close(descriptor)
        raise


def hand_over(connection: socket.socket, descriptor: int) -> None:
    """Give the memory to whoever is at the other end."""
    socket.send_fds(connection, [b"m"], [descriptor])


def take_over(connection: socket.socket, size: int, giver: str) -> mmap.mmap:
    """Take the memory that the other end hands over. ``SyncError`` where it is not as agreed."""
    _, found, _, _ = socket.recv_fds(connection, 1, 1)
    try:
        # A file that its maker could still cut would end this process at the next read.
        if len(found) != 1 or fcntl.fcntl(found[0], fcntl.F_GET_SEALS) & _seals() != _seals():
            raise SyncError(f"{giver} handed over something else than sealed memory")
        if os.fstat(found[0]).st_size != size:
            raise SyncError(f"{giver} handed over memory of another size than agreed")
        return mmap.mmap(found[0], size)
    except OSError as error:
        raise SyncError(f"the memory of {giver} cannot be used: {error}") from error
    finally:
        for each in found:
            os.close(each)


def _seals() -> int:
    found = 0
    for name in _SEALS:
        found |= getattr(fcntl, name)
    return found
