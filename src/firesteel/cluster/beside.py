"""A program that runs beside a rank, in a process of its own that dies with the one that started it: TensorBoard."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from types import TracebackType

from firesteel.cluster.child import die_with_parent
from firesteel.cluster.ports import listed_ports, reserve
from firesteel.core.errors import ClusterError, missing_extra

__all__ = ["TensorBoard", "main", "require_tensorboard"]

_PORT = "TENSORBOARD_PORT"
_START_SECONDS = 120.0
_LOOK_SECONDS = 0.1
_LAST_BYTES = 4000


def require_tensorboard() -> None:
    """Raise, with the line that installs it, where there is no TensorBoard."""
    if importlib.util.find_spec("tensorboard") is None:
        raise missing_extra("tensorboard", "tensorboard")


class TensorBoard:
    """TensorBoard on a folder; a context manager. ``wait`` until it answers.

    Args:
        log_dir: the folder.
        host: the address to listen at.
    """

    def __init__(self, log_dir: str, host: str) -> None:
        require_tensorboard()
        with reserve(listed_ports(os.environ.get(_PORT), _PORT), _PORT) as bound:
            self.port = int(bound.getsockname()[1])
        self._host = host
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        command = ["tensorboard.main", "--logdir", log_dir, "--host", host, "--port", str(self.port)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "firesteel.cluster.beside", str(os.getpid()), *command],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            process_group=0,
            # It has nothing to compute, and must not take a device that the program wants.
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self.pid = self._process.pid
        self._ending = threading.Lock()

    def __enter__(self) -> TensorBoard:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        self._output.close()

    def end(self) -> None:
        """End it, and wait until it is gone. May be called twice, from several threads."""
        with self._ending:
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signal.SIGKILL)
                self._process.wait()

    def wait(self) -> None:
        """Return once it answers. Raises ``ClusterError`` with its last words where it does not."""
        end = time.monotonic() + _START_SECONDS
        while True:
            with contextlib.suppress(OSError), socket.create_connection((self._host, self.port), _LOOK_SECONDS):
                return
            try:
                status = self._process.wait(_LOOK_SECONDS)
                raise ClusterError(f"TensorBoard ended with status {status}: {self._last_words()}")
            except subprocess.TimeoutExpired:
                pass
            if time.monotonic() > end:
                raise ClusterError(f"TensorBoard did not answer within {_START_SECONDS:g} s: {self._last_words()}")

    def _last_words(self) -> str:
        self._output.seek(0)
        return self._output.read()[-_LAST_BYTES:].decode(errors="replace").strip()


def main() -> None:
    """Entry point of ``python -m firesteel.cluster.beside PARENT MODULE …``: be that program, while PARENT lives."""
    parent, module, *arguments = sys.argv[1:]
    die_with_parent()
    if os.getppid() != int(parent):
        os._exit(1)  # it died before we asked to die with it
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])


if __name__ == "__main__":
    main()
