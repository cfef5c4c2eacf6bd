"""A group on gloo, through torch.distributed. Its members find each other on the gang's own board.

No rendezvous port is opened: keys and values go over the connections that the gang has already. gloo's data
connections listen on the one interface that reaches the driver.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy.typing as npt

from firesteel.core.errors import SyncError, missing_extra
from firesteel.core.ports import Board
from firesteel.sync.gathering import gather_bytes

try:
    import torch
    from torch import distributed
    from torch.distributed import Store  # type: ignore[attr-defined]
except ModuleNotFoundError as error:  # pragma: no cover
    raise missing_extra("torch", "torch") from error

__all__ = ["GlooGroup"]

Array = npt.NDArray[Any]


class _BoardStore(Store):
    """torch's key-value store on the gang's board."""

    def __init__(self, board: Board, prefix: str) -> None:
        super().__init__()
        self._board = board
        self._prefix = prefix

    def set(self, key: str, value: bytes | str) -> None:
        self._board("set", self._prefix + key, value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        return self._board("get", self._prefix + key) or b""

    def add(self, key: str, amount: int) -> int:
        return int(self._board("add", self._prefix + key, None, amount) or 0)

    def check(self, keys: list[str]) -> bool:
        return all(self._board("check", self._prefix + key) is not None for key in keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        for key in keys:
            self.get(key)

    def set_timeout(self, timeout: timedelta) -> None:
        pass  # the board has its own deadline

    def delete_key(self, key: str) -> bool:
        return False


class GlooGroup:
    """See ``core.ports.Group``. Also torch's default process group, so that DDP and SyncBatchNorm find it."""

    def __init__(
        self,
        rank: int,
        size: int,
        board: Board,
        interface: str | None,
        generation: int = 0,
        timeout_seconds: float = 1800,
    ) -> None:
        self.rank = rank
        self.size = size
        if interface is not None:
            os.environ["GLOO_SOCKET_IFNAME"] = interface
        try:
            # The store must outlive the group, which keeps only C++'s half of it.
            self._store = _BoardStore(board, f"gloo/{generation}/")
            distributed.init_process_group(
                "gloo", store=self._store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout_seconds)
            )
        except RuntimeError as error:
            raise SyncError(f"replica {rank} could not join the others: {error}", rank=rank) from error

    def all_reduce(self, array: Array) -> None:
        """Sum over all ranks, in place."""
        if self.size > 1:
            self._run(lambda: distributed.all_reduce(torch.from_numpy(array)))

    def all_gather(self, array: Array, bounds: Sequence[tuple[int, int]]) -> None:
        """Rank r's part ``bounds[r]`` reaches all, in place."""
        # One broadcast per part: parts may differ in length, and gloo is no slower so (2 ranks, 32 MB: 27 ms
        # against 38 ms for its all_gather).
        tensor = torch.from_numpy(array)
        parts = [(rank, tensor[begin:end]) for rank, (begin, end) in enumerate(bounds) if begin < end]
        works = [distributed.broadcast(part, rank, async_op=True) for rank, part in parts]
        self._run(lambda: [work.wait() for work in works])

    def broadcast(self, array: Array, root: int = 0) -> None:
        """``root``'s array reaches all, in place."""
        if self.size > 1:
            self._run(lambda: distributed.broadcast(torch.from_numpy(array), root))

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """Every rank's bytes, on every rank."""
        return gather_bytes(self, data)

    def close(self) -> None:
        """Leave the group."""
        distributed.destroy_process_group()

    def _run(self, collective: Any) -> None:
        try:
            collective()
        except RuntimeError as error:
            raise SyncError(f"replica {self.rank} lost the others: {error}", rank=self.rank) from error
