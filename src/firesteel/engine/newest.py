"""The newest state that the driver itself has: what a lost gang left with it, or this fit's last whole checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from firesteel.cluster.wire import Buffer
from firesteel.core.errors import CheckpointError
from firesteel.engine.checkpoint import CheckpointFolder
from firesteel.engine.commits import join

__all__ = ["Newest"]

_PIECE_BYTES = 8 << 20


class Newest:
    """Where a gang without survivors goes on from. Driver only."""

    def __init__(self, checkpoints: CheckpointFolder | None) -> None:
        self._checkpoints = checkpoints
        self._left: tuple[dict[str, Any], bytes] | None = None
        self._data = b""

    def leave(self, note: dict[str, Any] | None, buffers: Sequence[Buffer]) -> None:
        """Keep what a surviving rank handed over before its gang ended."""
        if note is not None and buffers:
            self._left = note, bytes(buffers[0])

    def find(self) -> dict[str, Any] | None:
        """``step`` and ``epoch`` of the newest state, which ``answer`` then gives out; ``None`` without any."""
        found = None if self._checkpoints is None else self._checkpoints.newest()
        left = self._left
        if found is not None and (left is None or left[0]["step"] < found.position.step):
            note = {"position": asdict(found.position)}
            parts = {f"state {name}": data for name, data in found.state.items()}
            self._data = b"".join(join(note, dict(parts)))
            return {"step": found.position.step, "epoch": found.position.epoch}
        if left is not None:
            self._data = left[1]
            return left[0]
        return None

    def answer(self, what: dict[str, Any]) -> tuple[dict[str, Any], list[bytes]]:
        """A rank's request for the state: first for its size, then piece by piece."""
        if what["state"] == "size":
            if not self._data:
                raise CheckpointError("there is no state on the driver")
            return {"bytes": len(self._data), "piece": _PIECE_BYTES}, []
        return {}, [self._data[what["state"] : what["state"] + _PIECE_BYTES]]
