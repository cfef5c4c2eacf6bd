"""A group, on gloo, on TensorFlow or in shared memory, does what ``core.ports.Group`` says, between real processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from sync.gang import Gang


@pytest.fixture(scope="module", params=["gloo", "tensorflow", "nearby"])
def gang(request: pytest.FixtureRequest) -> Iterator[Gang]:
    with Gang(2, request.param) as gang:
        yield gang


def test_sums_reach_all(gang: Gang) -> None:
    def work(group: Any) -> Any:
        array = np.arange(5, dtype=np.float64) * (group.rank + 1)
        counts = np.array([group.rank, 1])
        group.all_reduce(array)
        group.all_reduce(counts)
        return array.tolist(), counts.tolist(), group.rank, group.size

    for rank, (array, counts, own_rank, size) in enumerate(gang.run(work)):
        assert (own_rank, size) == (rank, 2)
        assert array == [0.0, 3.0, 6.0, 9.0, 12.0]
        assert counts == [1, 2]


def test_parts_of_different_length_are_gathered_in_place(gang: Gang) -> None:
    def work(group: Any, bounds: list[tuple[int, int]]) -> list[float]:
        array = np.full(7, -1.0, np.float32)
        begin, end = bounds[group.rank]
        array[begin:end] = group.rank + 10
        group.all_gather(array, bounds)
        return array.tolist()

    assert gang.run(work, [(0, 2), (2, 7)]) == [[10.0] * 2 + [11.0] * 5] * 2
    assert gang.run(work, [(0, 7), (7, 7)]) == [[10.0] * 7] * 2  # a rank without a part


def test_bytes_of_any_length_are_gathered(gang: Gang) -> None:
    def work(group: Any) -> list[bytes]:
        return group.gather_bytes(b"" if group.rank == 0 else b"one \x00 two")

    assert gang.run(work) == [[b"", b"one \x00 two"]] * 2


def test_roots_array_reaches_all(gang: Gang) -> None:
    def work(group: Any, root: int) -> list[int]:
        array = np.arange(3, dtype=np.int64) + 100 * group.rank
        group.broadcast(array, root)
        return array.tolist()

    assert gang.run(work, 0) == [[0, 1, 2]] * 2
    assert gang.run(work, 1) == [[100, 101, 102]] * 2
