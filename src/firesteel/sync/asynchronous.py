"""Asynchronous: every replica updates when it pleases, and adds what changed to weights that all share.

Nobody waits, so neither is the order of updates fixed, nor are two runs alike. The optimizer's state stays each
replica's own; rank 0's is what is saved.
"""

from __future__ import annotations

from typing import Any

from firesteel.core.errors import PlanError
from firesteel.core.ports import Group, Trainable
from firesteel.sync.allreduce import AllReduce

__all__ = ["Asynchronous"]


class Asynchronous(AllReduce):
    """See ``core.ports.Sync``. Needs a group with a store of weights (``sync.kvstore``); alone it is all-reduce."""

    def join(self, replica: Trainable, group: Group) -> None:
        """Start from rank 0's weights, and share them."""
        super().join(replica, group)
        store: Any = group
        self._store = store if group.size > 1 else None
        if group.size > 1:
            if not getattr(group, "is_async", False):
                raise PlanError("asynchronous updates need a store of weights, such as MXNet's dist_async")
            store.keep(replica.weights())

    def commit(self, replica: Trainable, *, has_rows: bool = True) -> None:
        """Update alone, add the change, take over what all have made of the weights meanwhile."""
        if self._store is None:
            super().commit(replica, has_rows=has_rows)
            return
        if not has_rows:  # nobody waits for this rank's part
            return
        before = [weights.copy() for weights in replica.weights()]
        replica.update(replica.again)
        after = replica.weights()
        self._store.add([new - old for new, old in zip(after, before, strict=True)])
        replica.load_weights(self._store.newest(after))

    def settle(self, replica: Trainable, rows: int) -> None:
        """All take over the same weights: those after everybody's last change."""
        if self._store is not None:
            self._store.newest(replica.weights())  # which comes after this rank's own changes
            self._store.meet()
            replica.load_weights(self._store.newest(replica.weights()))
            self._store.meet()
        super().settle(replica, rows)
