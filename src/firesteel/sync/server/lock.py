"""A readers-writer lock: any number of pulls together, or one update alone."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

__all__ = ["ReadersWriterLock"]


class ReadersWriterLock:
    """A writer that waits goes before readers that come after it: updates are what everybody waits for."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._readers = 0
        self._waiting = 0
        self._is_writing = False

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Together with other readers, while nobody writes."""
        with self._change:
            self._change.wait_for(lambda: not self._is_writing and not self._waiting)
            self._readers += 1
        try:
            yield
        finally:
            with self._change:
                self._readers -= 1
                self._change.notify_all()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Alone."""
        with self._change:
            self._waiting += 1
            self._change.wait_for(lambda: not self._is_writing and not self._readers)
            self._waiting -= 1
            self._is_writing = True
        try:
            yield
        finally:
            with self._change:
                self._is_writing = False
                self._change.notify_all()
