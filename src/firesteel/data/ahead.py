"""What comes next, made while the present is used."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import TypeVar

__all__ = ["ahead"]

T = TypeVar("T")

_END = object()
_LOOK_SECONDS = 0.1


def ahead(items: Iterator[T], depth: int = 2) -> Iterator[T]:
    """The same items, made by a thread that is up to ``depth`` ahead. Its errors are raised here, in their place."""
    line: queue.Queue[object] = queue.Queue(depth)
    is_over = threading.Event()

    def put(item: object) -> None:
        while not is_over.is_set():
            try:
                line.put(item, timeout=_LOOK_SECONDS)
                return
            except queue.Full:
                continue

    def make() -> None:
        try:
            for item in items:
                put(item)
                if is_over.is_set():
                    return
            put(_END)
        except BaseException as error:  # noqa: BLE001 - raised where the item was wanted
            put(_Raised(error))

    maker = threading.Thread(target=make, name="firesteel-ahead", daemon=True)
    maker.start()
    try:
        while (item := line.get()) is not _END:
            if isinstance(item, _Raised):
                raise item.error
            yield item  # type: ignore[misc]
    finally:
        is_over.set()
        maker.join()


class _Raised:
    def __init__(self, error: BaseException) -> None:
        self.error = error
