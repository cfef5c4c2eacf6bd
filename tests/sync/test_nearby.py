"""Ranks of one machine exchange in memory that they share, and notice at once who is gone."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.core.errors import SyncError
from firesteel.sync import neighbours as module
from firesteel.sync.nearby import NearbyGroup
from firesteel.sync.neighbours import meet
from sync.gang import Gang

DTYPES = ("float32", "float64", "int64", "uint8")


class Library:
    """What a rank has already; here it is only left."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


class Board:
    """The gang's board, in one process."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def __call__(self, verb: str, key: str, value: bytes | None = None, amount: int = 0) -> bytes | None:
        with self._changed:
            if verb == "set":
                assert value is not None
                self.values[key] = value
                self._changed.notify_all()
                return b""
            assert self._changed.wait_for(lambda: key in self.values, 20)
            return self.values[key]


def together(size: int, work: Callable[[int], Any]) -> list[Any]:
    """``work`` of every rank, in threads: what they share is memory all the same."""
    found: list[Any] = [None] * size

    def one(rank: int) -> None:
        try:
            found[rank] = work(rank)
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            found[rank] = error

    threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), "an exchange does not end"
    return found


@contextlib.contextmanager
def met(size: int, **options: Any) -> Iterator[list[Any]]:
    board = Board()
    groups = together(size, lambda rank: meet(Library(rank, size), board, "key", **options))  # type: ignore[arg-type]
    for group in groups:
        assert isinstance(group, NearbyGroup), group
    yield groups
    for group in groups:
        group.close()


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_exchanges_are_right_at_any_length(data: st.DataObject) -> None:
    """Several in a row, longer and shorter than what fits at a time: halves are never reused too early."""
    size = data.draw(st.integers(2, 4), label="ranks")
    lengths = data.draw(st.lists(st.integers(0, 700), min_size=1, max_size=6), label="lengths")
    dtype = np.dtype(data.draw(st.sampled_from(DTYPES), label="dtype"))
    random = np.random.default_rng(data.draw(st.integers(0, 99), label="seed"))
    given_ = [[random.integers(0, 9, n).astype(dtype) for n in lengths] for _ in range(size)]
    cuts = [sorted(random.integers(0, n + 1, size - 1).tolist()) for n in lengths]

    with met(size, half_bytes=512) as groups:

        def work(rank: int) -> Any:
            group, found = groups[rank], []
            for index, n in enumerate(lengths):
                summed, sent, whole = given_[rank][index].copy(), given_[rank][index].copy(), np.zeros(n, dtype)
                group.all_reduce(summed)
                group.broadcast(sent, index % size)
                edges = [0, *cuts[index], n]
                bounds = [(edges[i], edges[i + 1]) for i in range(size)]
                begin, end = bounds[rank]
                whole[begin:end] = given_[rank][index][begin:end]
                group.all_gather(whole, bounds)
                found.append((summed, sent, whole))
            return found

        results = together(size, work)
    for found in results:
        for index, (summed, sent, whole) in enumerate(found):
            np.testing.assert_array_equal(summed, sum(given_[r][index] for r in range(size)))
            np.testing.assert_array_equal(sent, given_[index % size][index])
            edges = [0, *cuts[index], lengths[index]]
            parts = [given_[r][index][edges[r] : edges[r + 1]] for r in range(size)]
            np.testing.assert_array_equal(whole, np.concatenate(parts))


def test_sums_are_the_same_to_the_last_bit_on_all_ranks(neighbours: Gang) -> None:
    def work(group: Any) -> Any:
        random = np.random.default_rng(group.rank)
        found = []
        for count in (3, 5_000, 300_000, 3_000_000):  # by every rank for itself, and by parts in one piece and in three
            array = random.standard_normal(count).astype(np.float32)
            group.all_reduce(array)
            found.append(array)
        return found

    ranks = neighbours.run(work)
    for first, *others in zip(*ranks, strict=True):
        for other in others:
            np.testing.assert_array_equal(first.view(np.uint32), other.view(np.uint32))
    randoms = [np.random.default_rng(rank) for rank in range(3)]
    for count, first in zip((3, 5_000, 300_000, 3_000_000), ranks[0], strict=True):
        parts = [random.standard_normal(count).astype(np.float32) for random in randoms]
        np.testing.assert_array_equal(first, parts[0] + parts[1] + parts[2])


def test_arrays_of_several_axes_and_not_in_one_piece() -> None:
    with met(2) as groups:

        def work(rank: int) -> Any:
            square, turned = np.full((3, 4), rank + 1.0), np.arange(12.0).reshape(3, 4).T * (rank + 1)
            alone = np.array(5.0 + rank)
            for array in (square, turned, alone):
                groups[rank].all_reduce(array)
            return square, turned, alone

        for square, turned, alone in together(2, work):
            assert (square == 3.0).all()
            np.testing.assert_array_equal(turned, np.arange(12.0).reshape(3, 4).T * 3)
            assert alone == 11.0


def test_who_goes_is_noticed_at_once() -> None:
    with Gang(3, "nearby") as gang:
        gang.run(lambda group: group.all_reduce(np.ones(1)))

        def work(group: Any) -> Any:
            begin = time.monotonic()
            try:
                group.all_reduce(np.ones(1000))
            except SyncError as error:
                return str(error), time.monotonic() - begin
            return "no error", 0.0

        gang.kill(2)
        for rank, (text, seconds) in enumerate(gang.run(work)):
            assert text.startswith(f"replica {rank} lost replica "), text
            assert seconds < 10


def test_a_wait_ends_and_says_which_deadline() -> None:
    told = r"replica 0 has waited 0.3 s for replica 1 \(exchange_timeout\)"
    with met(2, timeout_seconds=0.3) as groups, pytest.raises(SyncError, match=told):
        groups[0].all_reduce(np.ones(3))


def test_a_stranger_is_refused(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    board, strangers = Board(), []

    def call(card: dict[str, str], rank: int) -> socket.socket:
        for hello in (b"", b"x" * 7, b"x" * 20, bytes.fromhex(card["secret"]) + b"\7\0\0\0"):
            stranger = socket.socket(socket.AF_UNIX)
            stranger.connect(bytes.fromhex(card["address"]))
            stranger.sendall(hello)
            stranger.shutdown(socket.SHUT_WR)
            strangers.append(stranger)
        return called(card, rank)

    called = module._call
    monkeypatch.setattr(module, "_call", call)
    groups = together(2, lambda rank: meet(Library(rank, 2), board, "key"))  # type: ignore[arg-type]
    assert [type(group) for group in groups] == [NearbyGroup] * 2
    assert caplog.text.count("refused a connection that is none of its gang's") == 4
    for stranger in strangers:
        assert stranger.recv(1) == b""
        stranger.close()

    def work(rank: int) -> list[float]:
        array = np.full(2, float(rank))
        groups[rank].all_reduce(array)
        return array.tolist()

    assert together(2, work) == [[1.0, 1.0]] * 2


def test_who_goes_while_all_meet_is_lost_and_nobodys_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a sync's error: the gang forms again. An error of the user's would end the fit."""
    board, called = Board(), module._call

    def call_and_go(card: dict[str, str], rank: int) -> socket.socket:
        called(card, rank).close()
        raise SystemExit

    monkeypatch.setattr(module, "_call", call_and_go)
    left, gone = together(2, lambda rank: meet(Library(rank, 2), board, "key"))  # type: ignore[arg-type]
    assert isinstance(gone, SystemExit)
    assert isinstance(left, SyncError), left
    assert "replica 1" in str(left)


def test_ranks_of_several_machines_use_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    places = iter(["one", "two"])
    monkeypatch.setattr(module, "_here", lambda: next(places))
    board = Board()
    groups = together(2, lambda rank: meet(Library(rank, 2), board, "key"))  # type: ignore[arg-type]
    assert [type(group) for group in groups] == [Library] * 2


def test_a_system_without_such_memory_uses_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([True, False])  # one rank of two
    monkeypatch.setattr(module.segments, "can_make", lambda: next(answers))
    board = Board()
    groups = together(2, lambda rank: meet(Library(rank, 2), board, "key"))  # type: ignore[arg-type]
    assert [type(group) for group in groups] == [Library] * 2


def test_nothing_stays_open() -> None:
    def count() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    with met(2) as groups:
        libraries = [group._library for group in groups]
    del groups
    before = count()
    for _ in range(3):
        with met(3):
            pass
    assert count() <= before
    assert all(library.is_closed for library in libraries)
