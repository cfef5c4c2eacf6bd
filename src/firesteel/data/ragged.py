"""Cells of bytes of any length, without an object for each: one run of bytes and where each cell begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from firesteel.core.errors import SchemaError

__all__ = ["Ragged"]


@dataclass(frozen=True)
class Ragged:
    """A column of bytes; as far as a batch is concerned, an array of rows."""

    data: npt.NDArray[np.uint8]
    edges: npt.NDArray[np.int64]
    """Cell ``i`` lies between ``edges[i]`` and ``edges[i + 1]``."""

    @classmethod
    def of(cls, values: Any, name: str) -> Ragged:
        """A binary Arrow array, as it lies in memory."""
        if values.null_count:
            raise SchemaError(
                f"column {name!r} has {values.null_count} null rows; fill or drop them", column=name, found="null"
            )
        wide = values.type.id == _large_binary().id
        _, offsets, data = values.buffers()
        edges = np.frombuffer(offsets, np.int64 if wide else np.int32)[values.offset : values.offset + len(values) + 1]
        bytes_ = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
        return cls(bytes_, edges.astype(np.int64))

    @classmethod
    def of_objects(cls, values: npt.NDArray[Any], name: str) -> Ragged:
        """An array of bytes and strings, these as UTF-8."""
        if values.ndim != 1:
            raise SchemaError(
                f"{name!r} has several strings in a row, of which rows for training hold one", column=name
            )
        cells = [value.encode() if isinstance(value, str) else bytes(value) for value in values]
        edges = np.concatenate([[0], np.cumsum([len(cell) for cell in cells])]).astype(np.int64)
        return cls(np.frombuffer(b"".join(cells), np.uint8), edges)

    def __len__(self) -> int:
        return len(self.edges) - 1

    def __getitem__(self, rows: slice) -> Ragged:
        begin, end, _ = rows.indices(len(self))
        return Ragged(self.data, self.edges[begin : end + 1])

    def cells(self) -> list[memoryview]:
        """Each cell's bytes, not copied."""
        view = self.data.data
        return [view[begin:end] for begin, end in zip(self.edges[:-1], self.edges[1:], strict=True)]

    def run(self) -> npt.NDArray[np.uint8]:
        """All bytes, one cell after the other."""
        return self.data[self.edges[0] : self.edges[-1]]

    def places(self, begin: int) -> npt.NDArray[np.int64]:
        """``(begin, length)`` of each cell in a file to which ``run`` is written at ``begin``."""
        return np.stack([self.edges[:-1] - self.edges[0] + begin, np.diff(self.edges)], axis=1)


def _large_binary() -> Any:
    import pyarrow as pa

    return pa.large_binary()
