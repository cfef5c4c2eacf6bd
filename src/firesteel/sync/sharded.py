"""Sharded: sum the gradients, each rank updates its slice of the weights, all gather the slices.

BigDL's way, and today's ZeRO-1: the optimizer's state and work are cut by the number of ranks.
"""

from __future__ import annotations

from firesteel.core.ports import Group, State, Trainable
from firesteel.sync.allreduce import AllReduce

__all__ = ["Sharded"]


class Sharded(AllReduce):
    """See ``core.ports.Sync``. Where an optimizer cannot work on slices, every rank updates everything."""

    def join(self, replica: Trainable, group: Group) -> None:
        """Start from rank 0's weights; take this rank's slice."""
        super().join(replica, group)
        bounds = [replica.bounds(rank, group.size) for rank in range(group.size)]
        self._is_cut = group.size > 1 and bounds[0] is not None
        if self._is_cut:
            self._bounds = [each for each in bounds if each is not None]
            replica.take_slice(self._bounds[group.rank])

    def commit(self, replica: Trainable, *, has_rows: bool = True) -> None:
        """Sum, update the slice, gather."""
        super().commit(replica)
        if self._is_cut:
            weights = replica.weights()
            for index, array in enumerate(weights):
                self._group.all_gather(array, [bounds[index] for bounds in self._bounds])
            replica.load_weights(weights)

    def state(self, replica: Trainable) -> State:
        """Gather the optimizer's slices."""
        if not self._is_cut:
            return replica.state()
        return replica.state(self._group.gather_bytes(replica.optimizer_slice()))
