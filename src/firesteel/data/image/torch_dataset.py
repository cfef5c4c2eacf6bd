"""A dataset's rows for torch. This module needs torch; nothing loads it before a reader is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from firesteel.core.errors import PlanError, missing_extra
from firesteel.data.file import Path
from firesteel.data.image.rows import ShardRows

try:
    import torch
    from torch.utils.data import IterableDataset, get_worker_info
except ImportError:
    raise missing_extra("torch", "torch") from None

__all__ = ["ParquetIterableDataset"]

_MOST_WORKERS = 1024


class ParquetIterableDataset(IterableDataset[Any]):
    """See ``ParquetDataset.read_as_torch``.

    Iterating again is the next epoch, in this process and in loader workers alike, also where those are started anew
    for each epoch.
    """

    def __init__(
        self,
        path: Path,
        num_shards: int | None = None,
        rank: int | None = None,
        transforms: Callable[[dict[str, Any]], Any] | None = None,
        shuffle: bool = False,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
            raise PlanError(f"seed must be an int, found {seed!r}")
        self._rows = ShardRows(path, num_shards, rank, transforms, shuffle)
        self._seed = int(torch.randint(1 << 31, ())) if seed is None and shuffle else seed or 0
        # The next epoch of each worker. Workers count for themselves, in memory that they share with this process:
        # a loader makes new ones for each epoch, out of this object, which is not iterated itself.
        self._next = torch.zeros(_MOST_WORKERS if shuffle else 1, dtype=torch.int64)
        if shuffle:
            self._next.share_memory_()

    @property
    def num_rows(self) -> int:
        """The rows of this shard in an epoch. No ``len``: each worker may end with a batch that is not full."""
        return self._rows.count

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next iteration is, after a restart for example; from then on it is counted again."""
        self._next.fill_(epoch)

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        slot = worker % len(self._next)
        epoch = int(self._next[slot])
        self._next[slot] = epoch + 1
        return self._rows.rows(epoch, self._seed, worker, workers)
