"""Rows that live on the driver, pulled by ranks over the connections they have: local arrays, validation sets."""

from __future__ import annotations

from typing import Any

from firesteel.cluster.child import Desk
from firesteel.core.errors import PlanError
from firesteel.core.spec import Batch, Signature, rows_of
from firesteel.data.packed import BLOCK_BYTES, pack, unpack
from firesteel.data.spool import SpoolReader, SpoolWriter, heap_of

__all__ = ["Relay", "pull"]

_CELL_BYTES = 64 << 10


class Relay:
    """Driver's end: named sets of rows."""

    def __init__(self) -> None:
        self._sets: dict[str, Batch] = {}

    def add(self, name: str, batch: Batch) -> None:
        """Offer these rows under ``name``."""
        lengths = {tensor: len(values) for tensor, values in batch.items()}
        if len(set(lengths.values())) > 1:
            raise PlanError(f"arrays must have the same size in first dimension: {lengths}")
        self._sets[name] = batch

    def has(self, name: str) -> bool:
        """Whether there is such a set."""
        return name in self._sets

    def rows(self, name: str) -> int:
        """How many there are."""
        return rows_of(self._sets[name])

    def describe(self, name: str) -> list[list[Any]]:
        """The tensors, as JSON."""
        return [[key, values.dtype.str, list(values.shape[1:])] for key, values in self._sets[name].items()]

    def answer(self, what: dict[str, Any]) -> tuple[dict[str, Any], list[bytes]]:
        """A rank's request for some rows; see ``Coordinator.on_fetch``."""
        piece = {key: values[what["begin"] : what["end"]] for key, values in self._sets[what["set"]].items()}
        header, data = pack(piece)
        return {"header": header}, [data]


def pull(desk: Desk, name: str, signature: Signature, begin: int, end: int) -> SpoolReader:
    """Rank's end: rows ``begin`` … ``end`` of a set, in a spool of this process."""
    cells = [spec.name for spec in signature if spec.dtype == "|O"]
    # Nobody knows how long a cell of bytes is.
    step = max(1, BLOCK_BYTES // max(1, signature.row_bytes + len(cells) * _CELL_BYTES))
    with SpoolWriter((*signature.names, *map(heap_of, cells))) as writer:
        for low in range(begin, end, step):
            answer, (data,) = desk.fetch({"set": name, "begin": low, "end": min(low + step, end)})
            writer.append(0, unpack(answer["header"], data))
        # Its maps outlive the files. Cells of bytes are described by where they lie, once there are any.
        return SpoolReader(writer.descriptors, writer.signature or signature, writer.blocks)
