"""Native: the framework agrees on gradients during the backward (torch's DDP); what is left is the update."""

from __future__ import annotations

from firesteel.core.ports import Group, Trainable
from firesteel.sync.allreduce import AllReduce
from firesteel.sync.nearby import NearbyGroup

__all__ = ["Native"]


class Native(AllReduce):
    """See ``core.ports.Sync``. All-reduce where the framework cannot do it for this program, or need not."""

    def join(self, replica: Trainable, group: Group) -> None:
        """Start from rank 0's weights; hand agreement over to the framework."""
        super().join(replica, group)
        self._is_native = group.size > 1 and replica.go_native(is_nearby=isinstance(group, NearbyGroup))

    def commit(self, replica: Trainable, *, has_rows: bool = True) -> None:
        """Update with what the backward agreed on."""
        if self._is_native:
            replica.update()
        else:
            super().commit(replica)
