"""Who has pushed what: each push counts once, however often it arrives, and nobody runs too far ahead."""

from __future__ import annotations

import threading
from collections.abc import Hashable

from firesteel.core.errors import SyncError

__all__ = ["Clock"]


class Clock:
    """Numbers of the pushes that were applied, by client. A client's pushes are numbered from 1, without gaps.

    Args:
        staleness: how many pushes a client may be ahead of the slowest that is still at work; ``None``: any number.
    """

    def __init__(self, staleness: int | None = None) -> None:
        self._staleness = staleness
        self._applied: dict[Hashable, int] = {}
        self._working: dict[Hashable, int] = {}
        self._change = threading.Condition()
        self._is_over = False

    @property
    def applied(self) -> int:
        """Pushes of all clients."""
        with self._change:
            return sum(self._applied.values())

    @property
    def is_alone(self) -> bool:
        """Whether there is one client at work, or none."""
        return len(self._working) < 2

    def enter(self, client: Hashable) -> int:
        """A client comes to work, perhaps not for the first time; the number of its last push that was applied."""
        with self._change:
            self._working[client] = self._working.get(client, 0) + 1  # an old connection may still be there
            self._change.notify_all()
            return self._applied.setdefault(client, 0)

    def leave(self, client: Hashable) -> None:
        """A client's connection is gone: nobody waits for it until it comes again."""
        with self._change:
            self._working[client] -= 1
            if not self._working[client]:
                del self._working[client]
            self._change.notify_all()

    def is_new(self, client: Hashable, number: int) -> bool:
        """Whether this push is still to be applied; ``SyncError`` where one before it is missing."""
        with self._change:
            last = self._applied.get(client, 0)
        if number > last + 1:
            raise SyncError(f"push {number} of client {client} came after push {last}: some are missing")
        return number == last + 1

    def advance(self, client: Hashable, number: int) -> None:
        """This push was applied."""
        with self._change:
            self._applied[client] = max(number, self._applied.get(client, 0))
            self._change.notify_all()

    def wait(self, client: Hashable) -> None:
        """Wait until this client is no longer too far ahead of the others."""
        if self._staleness is None:
            return
        limit = self._staleness
        with self._change:
            self._change.wait_for(lambda: self._is_over or self._lead(client) <= limit)

    def forget(self) -> None:
        """All numbers begin anew."""
        with self._change:
            self._applied.clear()
            self._change.notify_all()

    def close(self) -> None:
        """Let go of everybody who waits."""
        with self._change:
            self._is_over = True
            self._change.notify_all()

    def _lead(self, client: Hashable) -> int:
        slowest = min((self._applied[other] for other in self._working if other in self._applied), default=0)
        return self._applied.get(client, 0) - slowest
