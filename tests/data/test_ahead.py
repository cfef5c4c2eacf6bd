"""Items made ahead are the same items, with their errors in their place."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from firesteel.data.ahead import ahead


def test_items_come_in_order_and_ahead() -> None:
    made: list[int] = []

    def items() -> Iterator[int]:
        for number in range(10):
            made.append(number)
            yield number

    found = ahead(items(), depth=2)
    assert next(found) == 0
    for _ in range(100):
        if len(made) >= 3:
            break
        threading.Event().wait(0.01)
    assert 3 <= len(made) <= 5
    assert list(found) == list(range(1, 10))


def test_an_error_comes_where_its_item_would() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("boom")

    found = ahead(items())
    assert next(found) == 1
    with pytest.raises(ValueError, match="boom"):
        next(found)


def test_no_thread_is_left() -> None:
    found = ahead(iter(range(1000)))
    next(found)
    found.close()  # type: ignore[attr-defined]
    assert not [thread for thread in threading.enumerate() if thread.name == "firesteel-ahead"]
