"""A group on Horovod's collectives, over its own gloo; and the place where its members find each other.

``hvd`` is Horovod's for all who import it in this process: users' creators and callbacks find it initialized.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy.typing as npt

from firesteel.core.errors import PlanError, SyncError
from firesteel.sync.gathering import gather_bytes

__all__ = ["RECIPE", "HorovodGroup", "Rendezvous", "check_installed"]

Array = npt.NDArray[Any]

RECIPE = (
    "build horovod==0.28.1, its last release, against the installed torch: scripts/build-horovod PYTHON FOLDER in "
    "Firesteel's repository makes a wheel of it (it forces -std=c++17, without which the build fails; four minutes), "
    "and make test-horovod tries it out"
)


def check_installed() -> None:
    """Raise ``PlanError`` with what to do where this process has no Horovod for torch."""
    try:
        import horovod.torch  # noqa: F401
    except ImportError as error:
        raise PlanError(f'backend="horovod" needs Horovod, which is not there ({error}): {RECIPE}') from error


class HorovodGroup:
    """See ``core.ports.Group``.

    Args:
        rank: this process's.
        size: how many there are.
        environment: the variables by which Horovod finds the others; set in this process.
    """

    def __init__(self, rank: int, size: int, environment: Mapping[str, str]) -> None:
        import horovod.torch as hvd
        import torch

        self.rank = rank
        self.size = size
        self._hvd: Any = hvd
        self._tensor: Any = torch.from_numpy
        os.environ.update(environment)
        try:
            hvd.init()
        except (RuntimeError, ValueError) as error:
            raise SyncError(f"replica {rank} could not join the others: {error}", rank=rank) from error

    def all_reduce(self, array: Array) -> None:
        """Sum over all ranks, in place."""
        if self.size > 1 and array.size:
            self._run(lambda name: self._hvd.allreduce_(self._tensor(array), op=self._hvd.Sum, name=name), "sum", array)

    def all_gather(self, array: Array, bounds: Sequence[tuple[int, int]]) -> None:
        """Rank r's part ``bounds[r]`` reaches all, in place."""
        for rank, (begin, end) in enumerate(bounds):
            if begin < end:
                self.broadcast(array[begin:end], rank)

    def broadcast(self, array: Array, root: int = 0) -> None:
        """``root``'s array reaches all, in place."""
        if self.size > 1 and array.size:
            self._run(lambda name: self._hvd.broadcast_(self._tensor(array), root, name=name), f"from{root}", array)

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """Every rank's bytes, on every rank."""
        return gather_bytes(self, data)

    def close(self) -> None:
        """Leave the group."""
        self._hvd.shutdown()

    def _run(self, collective: Any, kind: str, array: Array) -> None:
        # Horovod pairs calls by name, and remembers what it agreed on under one. They are ours, so that calls of the
        # user's own, which it counts through, do not come in between.
        try:
            collective(f"firesteel.{kind}.{array.dtype}.{array.size}")
        except (RuntimeError, ValueError) as error:
            raise SyncError(f"replica {self.rank} lost the others: {error}", rank=self.rank) from error


class Rendezvous:
    """Horovod's own meeting place: a small store behind HTTP, on one address. A context manager; driver only."""

    def __init__(self, bind: str) -> None:
        from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

        self._server: Any = RendezvousHTTPServer((bind, 0), RendezvousHandler, 0)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="firesteel-rendezvous", daemon=True)

    def __enter__(self) -> Rendezvous:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    def clear(self) -> None:
        """Forget what an earlier gang left: its addresses are nobody's."""
        self._server.init([])
