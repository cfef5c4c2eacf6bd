"""The parameter server as a sync: push what a backward left, pull what the server has made of everybody's."""

from __future__ import annotations

import secrets
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
        step: updates done before.
    """

    def __init__(self, dials: Sequence[Dial], sample: Callable[[], Batch | None], *, step: int = 0) -> None:
        self._dials = dials
        self._sample = sample
        self._step = step
        self._is_adopted = False

    def join(self, replica: Trainable, group: Group) -> None:
        """Give rank 0's state to the servers; start from it."""
        self._group = group
        # Where the optimizer cannot work on slices, the first server has everything.
        count = len(self._dials)
        is_sliced = count > 1 and replica.bounds(0, count) is not None
        self._client = Client(self._dials if is_sliced else self._dials[:1], (group.rank,), replica=replica)
        # A number for this gang: ranks of one before it, should they still live, are not heard any more.
        gang = np.array([secrets.randbits(62)], np.int64)
        group.broadcast(gang)
        if group.rank == 0:
            sample = self._sample() or {}
            tensors = [[name, values.dtype.str, list(values.shape[1:])] for name, values in sample.items()]
            self._client.load(replica.state(), tensors, int(gang[0]), self._step)
        group.all_reduce(np.zeros(1))  # not before that is done
        self._client.enter(int(gang[0]))
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
            self._client.schedule(event, dict(figures or {}))

    def adopt(self, replica: Trainable) -> None:
        """From now on the replicas' own weights count, not the servers'."""
        self._is_adopted = True

    def close(self) -> None:
        """Leave the servers."""
        self._client.close()

    def _take(self, replica: Trainable) -> None:
        if self._is_adopted:
            return
        weights = replica.weights()
        self._client.pull(weights)
        replica.load_weights(weights)
