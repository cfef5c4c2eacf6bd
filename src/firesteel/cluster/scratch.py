"""A child's own folder for temporary files: it goes with the child, however that one ends.

A child leaves without the interpreter's teardown, or is killed: what libraries would remove at their end (a loader's
sockets, a callback's files) stays. So the task gives it a folder, in its own place for such files, and removes that.
Where the task was killed too, the next one on that host does: it finds the folder, and nobody who holds its lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import os
import shutil
import tempfile

__all__ = ["Scratch"]

_PREFIX = "firesteel-tmp-"
_LONGEST = 64
"""Characters of a folder's path. A Unix socket's has 107 at most, and multiprocessing adds some forty."""


class Scratch:
    """The task's end. ``folder`` is ``None`` where there is no room for one: the child then has the task's place."""

    def __init__(self) -> None:
        self.folder: str | None = None
        self._lock = -1
        with contextlib.suppress(OSError):  # whoever needs the disk says that it is full
            sweep()
            if len(os.path.join(tempfile.gettempdir(), _PREFIX)) + 8 <= _LONGEST:
                while not self._take(tempfile.mkdtemp(prefix=_PREFIX)):
                    pass

    def variables(self) -> dict[str, str]:
        """For the child's environment."""
        if self.folder is None:
            return {}
        return {"TMPDIR": self.folder} | {name: value for name, value in _caches() if name not in os.environ}

    def remove(self) -> None:
        """Remove the folder with all that is in it, and those of tasks that were killed. May be called twice."""
        if self.folder is None:
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)
        self.folder = None
        with contextlib.suppress(OSError):
            sweep()

    def _take(self, folder: str) -> bool:
        try:
            lock = _locked(folder)
        except FileNotFoundError:
            return False  # another task took it for one of a dead task's
        except OSError:
            os.rmdir(folder)  # no locks here, and so nobody who would ever remove it
            raise
        if lock is not None and os.path.isdir(folder):  # else the same, a moment later
            self.folder, self._lock = folder, lock
            return True
        if lock is not None:
            os.close(lock)
        return False


def sweep() -> None:
    """Remove the folders of this user's tasks that are no more."""
    with os.scandir(tempfile.gettempdir()) as entries:
        found = [entry.path for entry in entries if entry.name.startswith(_PREFIX)]
    for folder in found:
        with contextlib.suppress(OSError):
            if os.lstat(folder).st_uid == os.getuid() and (lock := _locked(folder)) is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)


def _locked(folder: str) -> int | None:
    """A descriptor that holds the folder's lock until it is closed; ``None`` where another one does."""
    # Not the number of a process, which another one may have, or one in another container that shares the folder.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return descriptor


def _caches() -> list[tuple[str, str]]:
    """What libraries keep among temporary files for the next process, and where: it stays there."""
    place = tempfile.gettempdir()
    found = [("TFHUB_CACHE_DIR", os.path.join(place, "tfhub_modules"))]
    with contextlib.suppress(KeyError, OSError):  # a user without a name
        found.append(("TORCHINDUCTOR_CACHE_DIR", os.path.join(place, f"torchinductor_{getpass.getuser()}")))
    return found
