"""The meeting room: how replicas agree. A dict of names is all the dispatch there is."""

from __future__ import annotations

from collections.abc import Callable

from firesteel.core.errors import UnknownName
from firesteel.core.ports import Sync
from firesteel.sync.allreduce import AllReduce
from firesteel.sync.asynchronous import Asynchronous
from firesteel.sync.averaging import Averaging
from firesteel.sync.native import Native
from firesteel.sync.sharded import Sharded

__all__ = ["AllReduce", "Asynchronous", "Averaging", "Native", "Sharded", "make_sync"]

_SYNCS: dict[str, Callable[[int], Sync]] = {
    "all-reduce": lambda every: AllReduce(),
    "asynchronous": lambda every: Asynchronous(),
    "averaging": lambda every: Averaging(every),
    "native": lambda every: Native(),
    "sharded": lambda every: Sharded(),
}


def make_sync(name: str, averaging_steps: int = 1) -> Sync:
    """The sync of this name."""
    if name not in _SYNCS:
        raise UnknownName("sync", name, _SYNCS)
    return _SYNCS[name](averaging_steps)
