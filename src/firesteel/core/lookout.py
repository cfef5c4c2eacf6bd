"""Waiting for a neighbour's answer: look for a moment, then sleep.

Between two processes of one machine, to fall asleep and be woken takes longer than a small exchange does (a tenth of a
millisecond on a virtual machine). Who looks meanwhile has the answer at once, at the price of a core that nobody may
have to spare: so only where answers have mostly come that soon.
"""

from __future__ import annotations

import os
import select
import time

__all__ = ["Lookout"]

_SOON_SECONDS = 500e-6
_WEIGHT = 0.2


class Lookout:
    """For one connection: ``look`` before it is read, ``learn`` when something has come.

    Args:
        descriptor: of the connection; stays open as long as this is used.
    """

    def __init__(self, descriptor: int) -> None:
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)
        self._begin = 0.0
        self._usual = 0.0  # how long answers take, the last ones most of all

    def look(self) -> None:
        """Returns when there is something to read, or an end, or when it is better to sleep."""
        now = self._begin = time.perf_counter()
        if self._usual > _SOON_SECONDS:
            return
        end = now + _SOON_SECONDS
        while not self._poll.poll(0) and now < end:
            os.sched_yield()  # perhaps it is the one that is waited for who needs this core
            now = time.perf_counter()

    def learn(self) -> None:
        """Something has come."""
        waited = time.perf_counter() - self._begin
        self._usual += _WEIGHT * (min(waited, 10 * _SOON_SECONDS) - self._usual)
