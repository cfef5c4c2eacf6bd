"""Averaging (local SGD): every replica updates alone, and the weights are averaged every k steps."""

from __future__ import annotations

from firesteel.core.ports import Trainable
from firesteel.sync.allreduce import AllReduce

__all__ = ["Averaging"]


class Averaging(AllReduce):
    """See ``core.ports.Sync``. Optimizer state stays each replica's own; rank 0's is what is saved."""

    def __init__(self, every: int = 1) -> None:
        self._every = every
        self._since = 0

    def commit(self, replica: Trainable) -> None:
        """Update alone; average when it is time."""
        # Gradients are scaled by the replica's part of the step. Times the number of replicas, the average of one
        # step's weights is what all-reduce would have made of them (exactly so for plain SGD).
        for gradient in replica.gradients():
            gradient *= self._group.size
        replica.update(replica.again)
        self._since += 1
        if self._since >= self._every:
            self._average(replica)

    def settle(self, replica: Trainable, rows: int) -> None:
        """Average the weights too."""
        if self._since:
            self._average(replica)
        super().settle(replica, rows)

    def _average(self, replica: Trainable) -> None:
        self._since = 0
        weights = replica.weights()
        for array in weights:
            self._group.all_reduce(array)
            array /= self._group.size
        replica.load_weights(weights)
