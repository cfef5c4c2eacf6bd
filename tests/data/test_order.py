"""Which rows make which step: every row once, whatever the partitions, and however many replicas there are."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.data.order import Order, window_rows_for

counts_ = st.lists(st.integers(0, 60), min_size=1, max_size=8).filter(lambda counts: sum(counts) > 0)
orders = st.builds(
    Order,
    counts=counts_.map(tuple),
    batch_size=st.integers(1, 80),
    seed=st.integers(0, 2**31),
    shuffle=st.booleans(),
    window_rows=st.integers(1, 70),
)


def steps_of(order: Order, epoch: int) -> list[list[tuple[int, int]]]:
    """(partition, row) of each step."""
    taken = order.taken(0, order.steps, epoch)
    return [
        [
            (partition, int(row))
            for partition in range(len(order.counts))
            for row in order.at(partition, int(before[partition]), int(after[partition]), epoch)
        ]
        for before, after in pairwise(taken)
    ]


@given(orders, st.integers(0, 5))
@settings(deadline=None, max_examples=200)
def test_every_row_once_in_full_steps_but_the_last(order: Order, epoch: int) -> None:
    steps = steps_of(order, epoch)
    assert len(steps) == order.steps == -(-sum(order.counts) // order.batch_size)
    assert [len(step) for step in steps] == [order.step_rows(step) for step in range(order.steps)]
    assert all(len(step) == order.batch_size for step in steps[:-1])
    rows = sorted(row for step in steps for row in step)
    assert rows == [(partition, row) for partition, count in enumerate(order.counts) for row in range(count)]


@given(orders, st.integers(0, 5), st.data())
@settings(deadline=None, max_examples=150)
def test_any_stretch_is_the_same_as_that_of_the_whole(order: Order, epoch: int, data: st.DataObject) -> None:
    """A position is (epoch, step): whoever starts there finds the rows that follow, without those before."""
    first = data.draw(st.integers(0, order.steps))
    last = data.draw(st.integers(first, order.steps))
    fresh = Order(order.counts, order.batch_size, order.seed, order.shuffle, order.window_rows)
    np.testing.assert_array_equal(fresh.taken(first, last, epoch), order.taken(0, order.steps, epoch)[first : last + 1])
    for partition, count in enumerate(order.counts):
        begin = data.draw(st.integers(0, count))
        end = data.draw(st.integers(begin, count))
        np.testing.assert_array_equal(
            fresh.at(partition, begin, end, epoch), order.at(partition, 0, count, epoch)[begin:end]
        )


@given(orders, st.integers(0, 5))
@settings(deadline=None, max_examples=150)
def test_partitions_give_in_proportion_to_their_size(order: Order, epoch: int) -> None:
    taken = order.taken(0, order.steps, epoch)
    places = np.minimum(np.arange(order.steps + 1) * order.batch_size, order.rows)
    fair = places[:, None] * np.asarray(order.counts) / order.rows
    assert np.abs(taken - fair).max() < 2 + len(order.counts) / 2


@pytest.mark.parametrize("partitions", [2, 4, 12, 100])
@pytest.mark.parametrize("world", [2, 3, 4])
def test_equal_partitions_mean_equal_work(partitions: int, world: int) -> None:
    """Ranks hold runs of neighbouring partitions; those with equally many have shares that differ by a few rows."""
    if partitions % world:
        partitions *= world
    order = Order((500,) * partitions, 64 * world, seed=1)
    shares = np.diff(order.taken(0, order.steps - 1, 3), axis=0).reshape(-1, world, partitions // world).sum(axis=2)
    assert np.abs(shares - 64).max() <= 3


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    def rows(seed: int, epoch: int) -> list[list[tuple[int, int]]]:
        return steps_of(Order((40, 30), 16, seed, window_rows=16), epoch)

    assert rows(1, 0) == rows(1, 0)
    assert rows(1, 0) != rows(1, 1)
    assert rows(1, 0) != rows(2, 0)


def test_without_shuffling_rows_come_as_they_are_stored_in_every_epoch() -> None:
    order = Order((10, 5), 4, shuffle=False)
    assert steps_of(order, 0) == steps_of(order, 7)
    for partition in (0, 1):
        rows = [row for step in steps_of(order, 0) for p, row in step if p == partition]
        assert rows == sorted(rows)


@given(st.integers(1, 3000), st.integers(1, 400), st.integers(0, 100))
@settings(deadline=None)
def test_small_windows_keep_reads_together_and_still_part_neighbours(count: int, window_rows: int, epoch: int) -> None:
    order = Order((count,), 10, seed=3, window_rows=window_rows)
    rows = order.at(0, 0, count, epoch)
    assert sorted(rows.tolist()) == list(range(count))
    # What a window touches is bounded: that is what keeps a replica's resident set from growing with its data.
    starts = order._window_starts(0, epoch)
    for begin, end in pairwise(starts):
        chunk = max(1, window_rows // 16)
        assert end - begin <= max(window_rows, 16 * chunk)
        assert len(set((rows[begin:end] // chunk).tolist())) <= max(16, -(-window_rows // chunk))


def test_shuffling_in_windows_moves_rows_far() -> None:
    rows = Order((10_000,), 10, seed=0, window_rows=320).at(0, 0, 10_000, 0)
    assert np.abs(rows - np.arange(10_000)).mean() > 2000
    assert np.abs(np.diff(rows)).min() >= 1
    assert (np.abs(np.diff(rows)) == 1).mean() < 0.05


def test_many_partitions_do_not_make_it_slow_or_large() -> None:
    """A thousand partitions were shuffled again for every few steps while only so many windows were kept for all."""
    order = Order((5000,) * 1500, 1 << 14, seed=0, window_rows=window_rows_for(4, 1500))
    made = []
    plain = Order._shuffled
    try:
        Order._shuffled = lambda self, *args: made.append(args) or plain(self, *args)  # type: ignore[method-assign]
        for begin in range(0, 40, 4):
            taken = order.taken(begin, begin + 4, 0)
            for partition in range(1500):
                order.at(partition, int(taken[0, partition]), int(taken[-1, partition]), 0)
    finally:
        Order._shuffled = plain  # type: ignore[method-assign]
    assert len(made) == len(set(made))
    assert sum(rows.nbytes for rows in (kept for _, kept in order._kept.values())) < 200 << 20


@pytest.mark.parametrize(("row_bytes", "partitions"), [(1, 1), (4, 3), (600_000, 1), (10, 5000)])
def test_windows_of_all_partitions_together_have_a_bound(row_bytes: int, partitions: int) -> None:
    rows = window_rows_for(row_bytes, partitions)
    assert rows >= 4096
    assert rows == 4096 or rows * row_bytes * partitions <= 64 << 20
