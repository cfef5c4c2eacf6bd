"""Early stopping on its way: the best value so far, how long nothing was better, the best epoch's weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from firesteel.core.plan import EarlyStopping, Position
from firesteel.core.ports import Trainable

__all__ = ["Patience"]


class Patience:
    """One rule, applied to one epoch's record after the other. Records are agreed, so all replicas stop together."""

    def __init__(self, rule: EarlyStopping | None, position: Position) -> None:
        self.best = position.best
        self.waited = position.waited
        self._rule = rule
        self._kept: tuple[list[Any], list[Any]] | None = None

    def is_over(self, record: dict[str, Any], replica: Trainable) -> bool:
        """Whether to stop after the epoch of this record. Epochs without the monitored value do not count."""
        rule = self._rule
        if rule is None or rule.monitor not in record:
            return False
        if rule.is_better(record[rule.monitor], self.best):
            self.best, self.waited = record[rule.monitor], 0
            if rule.restore_best_weights:
                self._kept = [w.copy() for w in replica.weights()], [f.copy() for f in replica.frozen()]
            return False
        self.waited += 1
        return self.waited >= max(1, rule.patience)

    def pack(self) -> tuple[dict[str, bytes], list[list[Any]]]:
        """The best epoch's weights as named bytes, and what they are; both empty where none are kept."""
        parts, kinds = {}, []
        for name, arrays in zip(("weights", "frozen"), self._kept or (), strict=False):
            parts[f"best {name}"] = b"".join(array.tobytes() for array in arrays)
            kinds.append([[array.dtype.str, len(array)] for array in arrays])
        return parts, kinds

    def unpack(self, parts: dict[str, bytes], kinds: list[list[Any]]) -> None:
        """The reverse of ``pack``."""
        found = []
        for name, kind in zip(("weights", "frozen"), kinds, strict=True):
            place, arrays = 0, []
            for dtype, count in kind:
                arrays.append(np.frombuffer(parts[f"best {name}"], dtype, count, place).copy())
                place += arrays[-1].nbytes
            found.append(arrays)
        self._kept = found[0], found[1]

    def restore(self, replica: Trainable) -> bool:
        """Go back to the best epoch's weights; false where none were kept."""
        if self._kept is None:
            return False
        weights, frozen = self._kept
        # Written in place first: where a replica shows its own memory, loading has nothing left to do.
        for mine, best in zip(replica.weights(), weights, strict=True):
            mine[...] = best
        replica.load_weights(weights)
        replica.load_frozen(frozen)
        return True
