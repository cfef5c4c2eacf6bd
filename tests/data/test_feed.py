"""Ranks that hold any partitions in any way see every row once; a step is the same for any number of them."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.data.feed import Feed, Holding
from firesteel.data.order import Order
from firesteel.data.spool import SpoolReader, SpoolWriter


def make_feeds(stack: ExitStack, order: Order, held: list[list[int]]) -> list[Feed]:
    """One feed per rank; ``held`` has each rank's partitions. Row r of partition p is the number 1000 p + r."""
    feeds = []
    holders = {p: [rank for rank, mine in enumerate(held) if p in mine] for p in range(len(order.counts))}
    for rank, mine in enumerate(held):
        writer = stack.enter_context(SpoolWriter(("x",)))
        writer.append(99, {"x": np.array([-1])})  # so that rows do not begin at 0, and every spool has a signature
        begins = {}
        at = 1
        for partition in mine:
            count = order.counts[partition]
            begins[partition] = at
            writer.append(partition, {"x": 1000 * partition + np.arange(count)})
            at += count
        reader = SpoolReader(writer.descriptors, writer.signature, writer.blocks)
        holdings = tuple(Holding(p, begins[p], holders[p].index(rank), len(holders[p])) for p in mine)
        feeds.append(Feed(reader, order, holdings))
    return feeds


@st.composite
def layouts(draw: st.DrawFn) -> tuple[Order, list[list[int]]]:
    counts = tuple(draw(st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(sum)))
    order = Order(
        counts,
        draw(st.integers(1, 60)),
        draw(st.integers(0, 99)),
        draw(st.booleans()),
        draw(st.sampled_from([1, 5, 16, 1000])),
    )
    world = draw(st.integers(1, 5))
    held: list[list[int]] = [[] for _ in range(world)]
    for partition in range(len(counts)):  # each is held by somebody, some by several
        ranks = draw(st.sets(st.integers(0, world - 1), min_size=1, max_size=world))
        for rank in sorted(ranks):
            held[rank].append(partition)
    return order, held


def epoch_of(feeds: list[Feed], epoch: int, first: int = 0) -> list[list[list[int]]]:
    """Rows by step and rank."""
    steps = zip(*(feed.batches(epoch, first) for feed in feeds), strict=True)
    return [[batch["x"].tolist() for batch in step] for step in steps]


@given(layouts(), st.integers(0, 3))
@settings(deadline=None, max_examples=150)
def test_every_row_exactly_once_for_any_holders(layout, epoch: int) -> None:
    order, held = layout
    with ExitStack() as stack:
        steps = epoch_of(make_feeds(stack, order, held), epoch)
    assert [sum(map(len, step)) for step in steps] == [order.step_rows(step) for step in range(order.steps)]
    rows = sorted(row for step in steps for part in step for row in part)
    assert rows == [1000 * p + row for p, count in enumerate(order.counts) for row in range(count)]


@given(layouts(), st.integers(0, 3))
@settings(deadline=None, max_examples=150)
def test_a_step_is_the_same_for_any_number_of_ranks(layout, epoch: int) -> None:
    order, held = layout
    with ExitStack() as stack:
        many = epoch_of(make_feeds(stack, order, held), epoch)
        alone = epoch_of(make_feeds(stack, order, [list(range(len(order.counts)))]), epoch)
    for ours, single in zip(many, alone, strict=True):
        assert sorted(row for part in ours for row in part) == sorted(single[0])


@given(layouts(), st.integers(0, 3), st.data())
@settings(deadline=None, max_examples=100)
def test_from_any_position_on(layout, epoch: int, data: st.DataObject) -> None:
    order, held = layout
    first = data.draw(st.integers(0, order.steps))
    with ExitStack() as stack:
        whole = epoch_of(make_feeds(stack, order, held), epoch)
        assert epoch_of(make_feeds(stack, order, held), epoch, first) == whole[first:]


@given(st.integers(1, 5), st.integers(1, 200), st.integers(1, 64))
@settings(deadline=None)
def test_holders_of_one_partition_share_it_evenly(world: int, rows: int, batch_size: int) -> None:
    order = Order((rows,), batch_size)
    with ExitStack() as stack:
        steps = epoch_of(make_feeds(stack, order, [[0]] * world), 0)
    for step in steps:
        sizes = [len(part) for part in step]
        assert max(sizes) - min(sizes) <= 1
    sums = np.sum([[len(part) for part in step] for step in steps], axis=0)
    assert sums.max() - sums.min() <= max(world, 2)


def test_spans_do_not_show() -> None:
    """Row numbers are worked out for many steps at once; where such a span ends must not matter."""
    order = Order((70_000, 3, 66_001), 500, seed=4, window_rows=5000)
    with ExitStack() as stack:
        seen: list[int] = []
        for step in epoch_of(make_feeds(stack, order, [[0], [1, 2]]), 1):
            assert sum(map(len, step)) in (500, order.rows % 500)
            seen += [row for part in step for row in part]
    assert len(seen) == order.rows


@given(layouts(), st.integers(0, 3), st.integers(0, 99), st.integers(1, 60))
@settings(max_examples=100)
def test_with_another_batch_size_an_epoch_goes_on_behind_the_rows_that_were_seen(
    layout: tuple[Order, list[list[int]]], epoch: int, steps: int, batch_size: int
) -> None:
    order, held = layout
    seen = min(steps * order.batch_size, order.rows)
    with ExitStack() as stack:
        feeds = make_feeds(stack, order, held)
        first = [row for step in epoch_of(feeds, epoch)[:steps] for rows in step for row in rows]
        others = make_feeds(stack, replace(order, batch_size=batch_size, _kept={}), held)
        rest = epoch_of([feed.after(seen) for feed in others], epoch)
    assert [sum(map(len, step)) for step in rest] == [
        min(batch_size, order.rows - place) for place in range(seen, order.rows, batch_size)
    ]
    found = first + [row for step in rest for rows in step for row in rows]
    assert sorted(found) == [1000 * p + row for p, count in enumerate(order.counts) for row in range(count)]
