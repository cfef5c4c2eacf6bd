"""A process that a task has started, and how it ends: whole, with everything that it started in turn."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Protocol

__all__ = ["Process", "Spawned"]


class Process(Protocol):
    """As its task sees it."""

    parent: int
    """Whose child it is; it dies with that one."""
    lines: IO[bytes]
    """What it prints."""

    def kill(self) -> None:
        """End it at once. May be called by several threads, twice, and after its end."""
        ...

    def wait(self) -> int:
        """How it ended; by then nothing of its group is left. Called once."""
        ...


class Spawned:
    """A process that begins with a command."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], inherited: Iterable[int]) -> None:
        self.parent = os.getpid()
        self._reaping = threading.Lock()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=sorted(inherited),
            process_group=0,
            env=environment,
        )
        assert self._process.stdout is not None
        self.lines: IO[bytes] = self._process.stdout

    def kill(self) -> None:
        """See ``Process``."""
        # Not Popen.kill, which also reaps: that is for wait, which would wait for a process that is no more.
        with self._reaping:
            if self._process.returncode is None:
                os.kill(self._process.pid, signal.SIGKILL)

    def wait(self) -> int:
        """See ``Process``."""
        # Without reaping, where the system can: until then the number of its group is nobody else's.
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        else:
            self._process.wait()
        # What it started in turn (a loader's workers) would hold its pipes open, and nobody would ever end it.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with self._reaping:
            return self._process.wait()
