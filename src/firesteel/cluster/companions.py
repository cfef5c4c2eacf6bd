"""Processes that a rank starts beside its own: a framework's servers. They end with it, whatever happens.

Each runs one importable function. The rank waits for them at its own end; one that ends before that is told to the
driver, for those who wait for its answers would wait for ever.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping

from firesteel.cluster.child import die_with_parent

__all__ = ["Companions", "main"]

_EXIT_TIMEOUT_SECONDS = 5.0


class Companions:
    """A rank's companions. ``on_loss`` is told, in a thread of ours, which one is gone and how."""

    def __init__(self, on_loss: Callable[[str], None]) -> None:
        self._on_loss = on_loss
        self._is_closing = False
        self._processes: list[subprocess.Popen[bytes]] = []
        self._threads: list[threading.Thread] = []

    def start(self, name: str, function: str, environment: Mapping[str, str]) -> None:
        """Start a process that runs ``function`` ("module:function"). What it prints is the rank's to pass on."""
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "firesteel.cluster.companions", function, str(os.getpid())],
            stdin=subprocess.DEVNULL,
            env={**os.environ, **environment},
        )
        thread = threading.Thread(target=self._watch, args=(name, process), name=f"firesteel-{name}", daemon=True)
        self._processes.append(process)
        self._threads.append(thread)
        thread.start()

    def leave(self) -> None:
        """From now on they may end."""
        self._is_closing = True

    def close(self) -> None:
        """Wait until they have ended, and end those that do not."""
        self.leave()
        end = time.monotonic() + _EXIT_TIMEOUT_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        self.end()

    def end(self) -> None:
        """End them now."""
        self.leave()
        for process, thread in zip(self._processes, self._threads, strict=True):
            if thread.is_alive():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
                thread.join()

    def _watch(self, name: str, process: subprocess.Popen[bytes]) -> None:
        status = process.wait()
        if not self._is_closing:
            how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
            self._on_loss(f"the {name} that ran beside it {how}")


def main() -> None:
    """Entry point of ``python -m firesteel.cluster.companions module:function parent``."""
    die_with_parent()
    if os.getppid() != int(sys.argv[2]):
        os._exit(1)  # the parent died before we asked to die with it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    module, _, function = sys.argv[1].partition(":")
    getattr(importlib.import_module(module), function)()


if __name__ == "__main__":
    main()
