"""Programs that train together and know of each other by ``TF_CONFIG`` alone: under Spark, and in two shells."""

from __future__ import annotations

import json
import os
import threading
from typing import Any, NamedTuple

from firesteel.cluster.ports import interface_of
from firesteel.cluster.roles import TRAINING
from firesteel.core import registry
from firesteel.core.errors import PlanError
from firesteel.core.ports import Board, Group
from firesteel.engine.nodes import this_node
from firesteel.sync.neighbours import meet

__all__ = ["Seats", "fit_together", "is_first", "seats"]

_WEEK_SECONDS = 7 * 24 * 3600.0

_group: Group | None = None
_joining = threading.Lock()


class Seats(NamedTuple):
    """Those who train, and which of them this process is."""

    rank: int
    places: tuple[str, ...]


def seats() -> Seats | None:
    """What ``TF_CONFIG`` says; ``None`` where there is none, or this process does not train."""
    text = os.environ.get("TF_CONFIG")
    if not text:
        return None
    try:
        config = json.loads(text)
        task, cluster = config.get("task", {}), config.get("cluster", {})
        role, index = str(task.get("type", "worker")), int(task.get("index", 0))
        places = [(each, number, str(place)) for each in TRAINING for number, place in enumerate(cluster.get(each, ()))]
    except (ValueError, AttributeError, TypeError) as error:
        raise PlanError(f"TF_CONFIG cannot be read ({error}): {text}") from error
    if role not in TRAINING or not places:
        return None
    mine = [rank for rank, (each, number, _) in enumerate(places) if (each, number) == (role, index)]
    if not mine:
        raise PlanError(f"TF_CONFIG names the task {role}:{index}, which its cluster does not have: {text}")
    return Seats(mine[0], tuple(place for _, _, place in places))


def is_first() -> bool:
    """Whether this process is the first of those who train; also where it is alone."""
    found = seats()
    return found is None or found.rank == 0


def fit_together(model: Any) -> Any:
    """The ``fit`` of a Keras model with all who train; ``None`` where this process is alone."""
    found = seats()
    if found is None or len(found.places) < 2:
        return None
    framework: Any = registry.framework("keras")
    return framework.together(model, _join(found), _is_starved).fit


def _is_starved() -> bool:
    node = this_node()
    return node is not None and node.inbox.is_starved()


def _join(found: Seats) -> Group:
    """The group of all who train; one for the life of this process. Waits for the others."""
    global _group
    with _joining:
        if _group is None:
            from firesteel.sync.gloo import GlooGroup

            node = this_node()
            if node is not None:
                node.release_port()
            board = _board(found)
            host = _split(found.places[found.rank])[0]
            rank, size = found.rank, len(found.places)
            library = GlooGroup(rank, size, board, interface_of(host), timeout_seconds=_WEEK_SECONDS)
            _group = meet(library, board, "memory", _WEEK_SECONDS)
        return _group


def _board(found: Seats) -> Board:
    """A key-value board at the first one's address."""
    from datetime import timedelta

    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    host, port = _split(found.places[0])
    store = TCPStore(
        host,
        port,
        len(found.places),
        is_master=found.rank == 0,
        wait_for_workers=False,
        timeout=timedelta(seconds=_WEEK_SECONDS),
    )

    def ask(verb: str, key: str, value: bytes | None = None, amount: int = 0) -> bytes | None:
        if verb == "set":
            store.set(key, value or b"")  # type: ignore[arg-type]
        elif verb == "add":
            return str(store.add(key, amount)).encode()
        elif verb == "check":
            return b"" if store.check([key]) else None
        return bytes(store.get(key)) if verb == "get" else None

    return ask


def _split(place: str) -> tuple[str, int]:
    host, _, port = place.rpartition(":")
    return host.strip("[]"), int(port)
