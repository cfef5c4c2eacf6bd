"""Early stopping on its way: the best value so far, how long nothing was better, the best epoch's weights."""

from __future__ import annotations

from typing import Any

from firesteel.core.plan import EarlyStopping
from firesteel.core.ports import Trainable

__all__ = ["Patience"]


class Patience:
    """One rule, applied to one epoch's record after the other. Records are agreed, so all replicas stop together."""

    def __init__(self, rule: EarlyStopping | None) -> None:
        self._rule = rule
        self._best: float | None = None
        self._waited = 0
        self._kept: tuple[list[Any], list[Any]] | None = None

    def is_over(self, record: dict[str, Any], replica: Trainable) -> bool:
        """Whether to stop after the epoch of this record. Epochs without the monitored value do not count."""
        rule = self._rule
        if rule is None or rule.monitor not in record:
            return False
        if rule.is_better(record[rule.monitor], self._best):
            self._best, self._waited = record[rule.monitor], 0
            if rule.restore_best_weights:
                self._kept = [w.copy() for w in replica.weights()], [f.copy() for f in replica.frozen()]
            return False
        self._waited += 1
        return self._waited >= max(1, rule.patience)

    def restore(self, replica: Trainable) -> None:
        """Go back to the best epoch's weights, where they were kept."""
        if self._kept is None:
            return
        weights, frozen = self._kept
        # Written in place first: where a replica shows its own memory, loading has nothing left to do.
        for mine, best in zip(replica.weights(), weights, strict=True):
            mine[...] = best
        replica.load_weights(weights)
        replica.load_frozen(frozen)
