"""One shard's rows, epoch after epoch, for whatever framework asks: torch's loaders and TensorFlow's datasets.

Which rows a shard has depends on the dataset, the number of shards and whether rows are shuffled, and on nothing else.
Not on the seed and not on the epoch: processes that disagree on those still share out every row exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from firesteel.core.errors import PlanError
from firesteel.data.file import Path
from firesteel.data.image.cells import row_of, rows_in
from firesteel.data.image.layout import Piece, read_dataset, read_piece, share

__all__ = ["ShardRows", "check_shard"]

_WINDOW_BYTES = 64 << 20
"""Rows that are shuffled together are in memory together."""


def check_shard(num_shards: Any, rank: Any) -> tuple[int, int]:
    """``(num_shards, rank)``, or ``(1, 0)`` where neither is given; ``PlanError`` where they make no sense."""
    if num_shards is None and rank is None:
        return 1, 0
    if num_shards is None or rank is None:
        raise PlanError(f"num_shards and rank belong together; found num_shards={num_shards!r} and rank={rank!r}")
    for name, value in (("num_shards", num_shards), ("rank", rank)):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise PlanError(f"{name} must be an int, found {value!r}")
    if num_shards < 1 or not 0 <= rank < num_shards:
        raise PlanError(f"rank must be one of 0 … num_shards - 1, found rank={rank} of num_shards={num_shards}")
    return int(num_shards), int(rank)


class ShardRows:
    """The rows of one shard of a dataset. Reads the files' footers when made, and the rows when asked.

    Args:
        path: the dataset's folder.
        num_shards: into how many parts the rows are cut.
        rank: which part this is.
        transforms: a function of a row's dict, or ``None``.
        shuffle: whether each epoch has another order.
    """

    def __init__(
        self,
        path: Path,
        num_shards: int | None,
        rank: int | None,
        transforms: Callable[[dict[str, Any]], Any] | None,
        shuffle: bool,
    ) -> None:
        shards, self.rank = check_shard(num_shards, rank)
        if transforms is not None and not callable(transforms):
            raise PlanError(f"transforms must be a function of a row's dict, found {type(transforms).__qualname__}")
        self.schema, pieces = read_dataset(path)
        if shuffle:
            # Datasets are often sorted, by class for example: no shard should have one class alone.
            pieces = [pieces[place] for place in np.random.default_rng(0).permutation(len(pieces))]
        self.pieces = share(pieces, shards, self.rank)
        self.transforms = transforms
        self.shuffle = shuffle

    @property
    def count(self) -> int:
        """How many rows this shard has."""
        return sum(piece.rows for piece in self.pieces)

    def rows(self, epoch: int, seed: int, worker: int = 0, workers: int = 1) -> Iterator[Any]:
        """The rows of one of several workers, which together give each row of this shard once."""
        pieces = share(self.pieces, workers, worker)
        if self.shuffle:
            random = np.random.default_rng([abs(seed), epoch, self.rank, worker])
            found = self._shuffled(pieces, random)
        else:
            found = self._in_order(pieces)
        return found if self.transforms is None else map(self.transforms, found)

    def _in_order(self, pieces: list[Piece]) -> Iterator[dict[str, Any]]:
        for piece in pieces:
            columns = read_piece(piece, self.schema)
            for index in range(rows_in(columns)):
                yield row_of(columns, self.schema, index)

    def _shuffled(self, pieces: list[Piece], random: np.random.Generator) -> Iterator[dict[str, Any]]:
        shuffled = [pieces[place] for place in random.permutation(len(pieces))]
        for window in _windows(shuffled):
            read = [read_piece(piece, self.schema) for piece in window]
            sizes = [rows_in(columns) for columns in read]
            owner = np.repeat(np.arange(len(read)), sizes)
            index = np.concatenate([np.arange(size) for size in sizes])
            for place in random.permutation(len(owner)):
                yield row_of(read[owner[place]], self.schema, index[place])


def _windows(pieces: list[Piece]) -> Iterator[list[Piece]]:
    """Runs of pieces that fit into memory together; one at least."""
    window: list[Piece] = []
    size = 0
    for piece in pieces:
        taken = piece.rows * piece.row_bytes
        if window and size + taken > _WINDOW_BYTES:
            yield window
            window, size = [], 0
        window.append(piece)
        size += taken
    if window:
        yield window
