"""The parameter server as a sync: push what a backward left, pull what the server has made of everybody's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from firesteel.core.ports import Group, State, Trainable
from firesteel.core.spec import Batch
from firesteel.sync.allreduce import AllReduce
from firesteel.sync.server.client import Client, Dial

__all__ = ["ServerSync"]

Array = npt.NDArray[Any]


class ServerSync(AllReduce):
    """See ``core.ports.Sync``. Replicas do not wait for each other; settling, they take the server's weights.

    Args:
        dials: how each server is reached.
        sample: a batch of no rows in the shape of those that are trained on, for the server to get ready.
        generation: of the gang; a new one begins anew from rank 0's state.
        step: updates done before.
    """

    def __init__(
        self, dials: Sequence[Dial], sample: Callable[[], Batch | None], *, generation: int = 0, step: int = 0
    ) -> None:
        self._dials = dials
        self._sample = sample
        self._generation = generation + 1  # 0 is a server that nobody has loaded
        self._step = step

    def join(self, replica: Trainable, group: Group) -> None:
        """Give rank 0's state to the servers; start from it."""
        self._group = group
        self._client = Client(self._dials, (group.rank,))
        if group.rank == 0:
            sample = self._sample() or {}
            tensors = [[name, values.dtype.str, list(values.shape[1:])] for name, values in sample.items()]
            self._client.load(replica.state(), tensors, self._generation, self._step)
        group.all_reduce(np.zeros(1))  # not before that is done
        self._client.enter(self._generation)
        self._take(replica)
        frozen = replica.frozen()
        for array in frozen:
            group.broadcast(array)
        replica.load_frozen(frozen)
        group.all_reduce(np.zeros(1))  # nobody pushes before all have the same start

    def commit(self, replica: Trainable, *, has_rows: bool = True) -> None:
        """Push the gradients, take over the weights."""
        self._step += 1
        weights = replica.weights()
        # Without rows there is nothing to say: an update with zeros would still move Adam's averages.
        self._client.push(replica.gradients() if has_rows else None, step=self._step, into=(weights, ()))
        replica.load_weights(weights)

    def settle(self, replica: Trainable, rows: int) -> None:
        """Wait for all, and take what came of all their pushes."""
        self._group.all_reduce(np.zeros(1))
        self._take(replica)
        super().settle(replica, rows)
        self._group.all_reduce(np.zeros(1))  # nobody pushes while another still pulls

    def state(self, replica: Trainable) -> State:
        """The server's, and the state outside the gradient as this replica has it."""
        self._group.all_reduce(np.zeros(1))
        self._take(replica)
        if self._client.is_sliced:
            found = replica.state(self._client.slices())
        else:
            theirs = self._client.state()
            found = {**theirs, "model": replica.state()["model"]}
        self._group.all_reduce(np.zeros(1))
        return found

    def schedule(self, replica: Trainable, event: str, figures: Mapping[str, float] | None = None) -> None:
        """Advance the schedule here, and at an epoch's end at the servers; there they count steps themselves."""
        super().schedule(replica, event, figures)
        if event == "epoch" and self._group.rank == 0:
            plain = {name: value for name, value in (figures or {}).items() if isinstance(value, (int, float))}
            self._client.schedule(event, plain)

    def close(self) -> None:
        """Leave the servers."""
        self._client.close()

    def _take(self, replica: Trainable) -> None:
        weights = replica.weights()
        self._client.pull(weights)
        replica.load_weights(weights)
