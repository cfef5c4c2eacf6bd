"""All-reduce: sum the gradients, which are weighted by rows already; every replica makes the same update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from firesteel.core.ports import Group, State, Trainable

__all__ = ["AllReduce"]


class AllReduce:
    """See ``core.ports.Sync``. The other syncs start from this one."""

    def join(self, replica: Trainable, group: Group) -> None:
        """Start from rank 0's weights and state."""
        self._group = group
        for values, load in ((replica.weights(), replica.load_weights), (replica.frozen(), replica.load_frozen)):
            for array in values:
                group.broadcast(array)
            load(values)

    def commit(self, replica: Trainable, *, has_rows: bool = True) -> None:
        """Sum the gradients and update."""
        self._sum(replica)
        replica.update(lambda: self._again(replica))

    def settle(self, replica: Trainable, rows: int) -> None:
        """Average the state outside the gradient, weighted by the rows that each replica saw since the last time."""
        buffers = replica.buffers()
        if not buffers or self._group.size == 1:
            return
        packed = np.concatenate([*(buffer * rows for buffer in buffers), [float(rows)]])
        self._group.all_reduce(packed)
        if packed[-1] == 0:
            return
        edges = np.cumsum([len(buffer) for buffer in buffers])
        replica.load_buffers(np.split(packed[:-1] / packed[-1], edges[:-1]))

    def state(self, replica: Trainable) -> State:
        """Every replica has everything."""
        return replica.state()

    def schedule(self, replica: Trainable, event: str, figures: Mapping[str, float] | None = None) -> None:
        """Every replica has its own, and all count the same."""
        replica.schedule(event, figures)

    def adopt(self, replica: Trainable) -> None:
        """They are each replica's own."""

    def own(self, replica: Trainable) -> bytes:
        """The state outside the gradient."""
        return b"" if self._group.size == 1 else _packed(replica)

    def restore(self, replica: Trainable, own: Sequence[bytes], rows: Sequence[int]) -> None:
        """Take back this rank's state outside the gradient, or the average of all."""
        if not any(own):
            return
        if len(own) == self._group.size:
            mine = np.frombuffer(own[self._group.rank])
        else:
            weights = np.asarray(rows, dtype=np.float64) if sum(rows) else np.ones(len(own))
            mine = np.average([np.frombuffer(part) for part in own], axis=0, weights=weights)
        edges = np.cumsum([len(buffer) for buffer in replica.buffers()])
        replica.load_buffers([part.copy() for part in np.split(mine, edges[:-1])])

    def _sum(self, replica: Trainable) -> None:
        for gradient in replica.gradients():
            self._group.all_reduce(gradient)

    def _again(self, replica: Trainable) -> None:
        replica.again()
        self._sum(replica)


def _packed(replica: Trainable) -> bytes:
    buffers = replica.buffers()
    return np.concatenate(buffers).astype(np.float64).tobytes() if buffers else b""
