"""Averaging (local SGD): every replica updates alone, and the weights are averaged every k steps."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from firesteel.core.ports import State, Trainable
from firesteel.sync.allreduce import AllReduce

__all__ = ["Averaging"]


class Averaging(AllReduce):
    """See ``core.ports.Sync``. Optimizer state stays each replica's own; rank 0's is what is saved."""

    def __init__(self, every: int = 1) -> None:
        self._every = every
        self._since = 0

    def commit(self, replica: Trainable, *, has_rows: bool = True) -> None:
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

    def own(self, replica: Trainable) -> bytes:
        """Everything: replicas differ until they are averaged."""
        if self._group.size == 1:
            return b""
        state = replica.state()
        head = json.dumps({"since": self._since, "sizes": {name: len(data) for name, data in state.items()}})
        return b"".join([head.encode(), b"\n", *state.values()])

    def restore(self, replica: Trainable, own: Sequence[bytes], rows: Sequence[int]) -> None:
        """Take back this rank's all; in a gang of another size, the average of the weights and rank 0's optimizer."""
        if not any(own):
            return
        if len(own) == self._group.size:
            self._since, state = _parted(own[self._group.rank])
            replica.load(state)
            return
        sums = [np.zeros_like(each) for each in replica.weights()]
        for part in reversed(own):  # rank 0's last: its optimizer stays
            replica.load(_parted(part)[1])
            for total, each in zip(sums, replica.weights(), strict=True):
                total += each
        replica.load_weights([total / len(own) for total in sums])

    def _average(self, replica: Trainable) -> None:
        self._since = 0
        weights = replica.weights()
        for array in weights:
            self._group.all_reduce(array)
            array /= self._group.size
        replica.load_weights(weights)


def _parted(data: bytes) -> tuple[int, State]:
    head, _, rest = data.partition(b"\n")
    about = json.loads(head)
    state: State = {}
    for name, size in about["sizes"].items():
        state[name], rest = rest[:size], rest[size:]
    return int(about["since"]), state
