"""A log's events come out as they went in, whatever Spark does to the order of its rows."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from firesteel.cluster import eventlog
from firesteel.cluster.eventlog import EventLog, read_out
from firesteel.core.errors import ClusterError


def rows_of(log: EventLog) -> list[dict[str, Any]]:
    return [row for batch in log.rows() for row in batch.to_pylist()]


def read(rows: list[dict[str, Any]]) -> tuple[list[tuple[dict[str, Any], list[bytes]]], list[tuple[int, int]]]:
    """The events of these rows, and the windows that were asked for."""
    rows = random.Random(1).sample(rows, len(rows))
    windows = []

    def fetch(begin: int, end: int) -> Iterator[tuple[int, bytes]]:
        windows.append((begin, end))
        return ((row["number"], row["data"]) for row in rows if begin <= row["number"] < end and row["data"])

    found: list[tuple[dict[str, Any], list[bytes]]] = []
    heads = [(row["number"], row["text"], len(row["data"] or b"")) for row in rows]
    read_out(heads, fetch, lambda event, buffers: found.append((event, [bytes(each) for each in buffers])))
    return found, windows


def test_what_goes_in_comes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eventlog, "_PIECE_BYTES", 10)
    monkeypatch.setattr(eventlog, "_WINDOW_BYTES", 25)
    monkeypatch.setattr(eventlog, "_ROWS_IN_BATCH", 3)
    events: list[tuple[dict[str, Any], list[bytes]]] = [
        ({"name": "a"}, []),
        ({"name": "b", "text": "ü"}, [b"x" * 35, b"", b"y" * 4]),
        ({"name": "c"}, []),
        ({"name": "d"}, [b"z" * 10]),
        ({"name": "e"}, [b""]),
    ]
    with EventLog() as log:
        for event, buffers in events:
            log.add(event, buffers)
        found, windows = read(rows_of(log))
    assert found == events
    assert len(windows) == 2  # 49 bytes, about 25 at a time


def test_an_event_that_was_dropped() -> None:
    with EventLog() as log:
        first = log.add({"name": "a"}, [b"old"])
        log.add({"name": "b"}, [b"new"])
        log.drop(first)
        found, _ = read(rows_of(log))
    assert found == [({"name": "b"}, [b"new"])]


def test_an_empty_log() -> None:
    with EventLog() as log:
        assert read(rows_of(log)) == ([], [])


def test_lost_rows_are_noticed() -> None:
    with EventLog() as log:
        log.add({"name": "a"}, [b"one"])
        log.add({"name": "b"}, [b"two"])
        rows = rows_of(log)
    with pytest.raises(ClusterError, match="lost a part"):
        read(rows[:1] + rows[2:])
