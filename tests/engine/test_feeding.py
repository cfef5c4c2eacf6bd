"""Feeders, inboxes and the driver's book over real connections: no Spark, no processes."""

from __future__ import annotations

import contextlib
import itertools
import pickle
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from firesteel.cluster.coordinator import Coordinator
from firesteel.cluster.deadlines import Overdue
from firesteel.cluster.seat import Invitation
from firesteel.cluster.tls import Certificate
from firesteel.core.errors import ClusterError, PlanError, UnknownName
from firesteel.engine.feeder import FeedCard, answer_items, feed_items
from firesteel.engine.feeding import Feeding, Pass
from firesteel.engine.inbox import Inbox, Queue

SECRET, DOOR = b"driver", b"node"


class Scene:
    """A driver's book and some nodes' inboxes, all in this process."""

    def __init__(self, stack: ExitStack, nodes: int, *, is_encrypted: bool = False, **options: Any) -> None:
        self.feeding = Feeding(
            range(nodes), ("input", "output"), self.tell, self.why_lost, lambda: None, int, **options
        )
        self.coordinator = stack.enter_context(
            Coordinator(
                1,
                SECRET,
                "127.0.0.1",
                arrange=lambda reports: reports,
                on_event=lambda *event: None,
                on_visit=self.feeding.visitor,
            )
        )
        self.failure: str | None = None
        self.told: list[tuple[int, dict[str, Any]]] = []
        self.inboxes: list[Inbox] = []
        sealed = Certificate.seal() if is_encrypted else None
        self.places = {}
        for number in range(nodes):
            listener = socket.create_server(("127.0.0.1", 0))
            self.places[number] = listener.getsockname()
            tell = self.event(number)
            self.inboxes.append(Inbox(listener, DOOR, sealed, ("input", "output"), tell))
            stack.callback(listener.close)
        host, port = self.coordinator.address
        self.invitation = Invitation(host, port, SECRET, 1)
        self.door = Invitation("", 0, DOOR, 1, certificate=sealed[0] if sealed else None)

    def event(self, number: int) -> Callable[[dict[str, Any]], None]:
        return lambda event: self.feeding.hear(number, event)

    def tell(self, node: int, message: dict[str, Any]) -> None:
        self.told.append((node, message))
        self.inboxes[node].hear(message)

    def why_lost(self, node: int) -> str | None:
        return self.failure

    def queue(self, node: int = 0) -> Queue:
        return self.inboxes[node].queue("input")

    def card(self, current: Pass, seconds: float = 20.0) -> FeedCard:
        roles = {number: f"worker:{number}" for number in self.places}
        return FeedCard(self.invitation, self.door, self.places, roles, current.key, "input", seconds)

    def open(self, partitions: int, **options: Any) -> Pass:
        return self.feeding.open("input", partitions, **options)

    def feed(self, current: Pass, partition: int, items: Iterable[Any], **options: Any) -> Feeder:
        return Feeder(lambda: list(feed_items(self.card(current, **options), partition, items)))


class Feeder(threading.Thread):
    """A feeding task, in a thread."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._work, self.error, self.found = work, None, None
        self.start()

    def run(self) -> None:
        try:
            self.found = self._work()
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            self.error = error

    def end(self, seconds: float = 10.0) -> Any:
        self.join(seconds)
        assert not self.is_alive(), "it still feeds"
        if self.error is not None:
            raise self.error
        return self.found


Make = Callable[..., Scene]


@pytest.fixture
def make() -> Iterator[Make]:
    with ExitStack() as stack:
        yield lambda nodes=1, **options: Scene(stack, nodes, **options)


def taken(queue: Queue, count: int, *, by_partition: bool = False) -> list[Any]:
    return [item for run in queue.take(count, by_partition=by_partition) for item in run.items()]


def drain(queue: Queue, count: int = 7) -> list[Any]:
    found: list[Any] = []
    while not queue.is_met:
        found += taken(queue, count)
    return found


def eventually(is_so: Callable[[], bool], seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, "it never became so"
        time.sleep(0.01)


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "tls"])
def test_batches_of_any_size_then_the_end(make: Make, is_encrypted: bool) -> None:
    scene = make(is_encrypted=is_encrypted)
    queue = scene.queue()
    feeder = scene.feed(scene.open(1), 0, range(10))
    assert sum(taken(queue, 2)) == 1
    assert not queue.is_met
    assert sum(taken(queue, 4)) == 14
    found: list[Any] = []
    last = threading.Thread(target=lambda: found.extend(taken(queue, 10)))
    last.start()
    feeder.end()  # all is taken, though the last batch still waits for more
    assert not queue.is_met
    scene.feeding.end()
    last.join(5)
    assert (found, queue.is_met) == ([6, 7, 8, 9], True)
    assert taken(queue, 3) == []


def test_what_waits_is_bounded_and_what_is_taken_makes_room(make: Make) -> None:
    scene = make()
    made = itertools.count()
    megabyte = bytes(1 << 20)

    def items() -> Iterator[bytes]:
        for _ in range(64):
            next(made)
            yield megabyte

    feeder = scene.feed(scene.open(1), 0, items())
    time.sleep(0.5)
    ahead = int(repr(made)[6:-1])
    assert 4 <= ahead <= 7, "a few megabytes ahead, whatever the partition has"
    for _ in range(64):
        assert len(taken(scene.queue(), 1)[0]) == 1 << 20
    feeder.end()


def test_a_partition_goes_to_whoever_has_the_least(make: Make) -> None:
    scene = make(2)
    current = scene.open(4)
    feeders = [scene.feed(current, partition, [partition] * 3) for partition in range(4)]
    eventually(lambda: current.is_handed_out)
    scene.feeding.end()
    found = [Counter(drain(scene.queue(node))) for node in (0, 1)]
    for feeder in feeders:
        feeder.end()
    assert all(set(each.values()) == {3} and len(each) == 2 for each in found)
    assert set(found[0]) | set(found[1]) == {0, 1, 2, 3}


def test_a_repeated_task_goes_on_where_the_last_one_stood(make: Make) -> None:
    scene = make(2)
    current = scene.open(1)

    has_taken = threading.Event()

    def dies() -> Iterator[int]:
        yield from range(9)  # as many as are sent at once
        has_taken.wait(10)
        raise RuntimeError("the task is lost")

    first = scene.feed(current, 0, dies())
    queue = scene.queue(0)
    got = taken(queue, 5)
    has_taken.set()
    with pytest.raises(RuntimeError, match="the task is lost"):
        first.end()
    again = scene.feed(current, 0, range(60))
    more: list[Any] = []
    while len(got) + len(more) < 60:
        more += taken(queue, 5)
    again.end()
    assert got + more == list(range(60))
    assert scene.feed(current, 0, range(60)).end() == []  # done is done


def test_what_a_node_that_returns_has_not_taken_goes_to_another(make: Make) -> None:
    scene = make(2)
    feeder = scene.feed(scene.open(1), 0, range(100))
    assert taken(scene.queue(0), 30) == list(range(30))
    scene.inboxes[0].leave()
    scene.feeding.end()
    assert drain(scene.queue(1)) == list(range(30, 100))
    feeder.end()


def test_when_all_have_returned_feeding_is_over(make: Make) -> None:
    scene = make()
    feeder = scene.feed(scene.open(2), 0, itertools.count())
    taken(scene.queue(), 5)
    scene.inboxes[0].leave()
    feeder.end()
    assert scene.feeding.is_over("input")
    assert scene.feed(scene.open(1), 1, range(3)).end() == []


def test_one_that_wants_no_more_ends_it_for_all(make: Make) -> None:
    scene = make(2)
    current = scene.open(2)
    feeders = [scene.feed(current, partition, itertools.count()) for partition in range(2)]
    eventually(lambda: current.is_handed_out)
    taken(scene.queue(0), 50)
    scene.queue(0).terminate()
    for feeder in feeders:
        feeder.end()
    assert scene.queue(0).is_met
    assert drain(scene.queue(1)) == []
    assert scene.feeding.is_over("input")
    assert not scene.feeding.is_over("output")


def test_results_come_back_in_order_as_they_are_made(make: Make) -> None:
    scene = make(2)
    card = scene.card(scene.open(0, is_inference=True))

    def square(queue: Queue) -> None:
        while not queue.is_met:
            batch = taken(queue, 4, by_partition=True)
            queue.answer([item**2 for item in batch])

    for node in (0, 1):
        threading.Thread(target=square, args=(scene.queue(node),), daemon=True).start()
    sizes = [1, 2, 0, 3, 4, 5, 6, 0, 7, 8, 9, 10]
    tasks = [Feeder(lambda n=n, size=size: list(answer_items(card, n, range(size)))) for n, size in enumerate(sizes)]
    assert [task.end() for task in tasks] == [[number**2 for number in range(size)] for size in sizes]
    large = list(answer_items(card, 99, [number + 0.5 for number in range(50_000)]))
    assert large == [(number + 0.5) ** 2 for number in range(50_000)]
    scene.feeding.end()


def test_as_many_results_as_items(make: Make) -> None:
    scene = make()
    task = Feeder(lambda: list(answer_items(scene.card(scene.open(0, is_inference=True)), 0, range(4))))
    queue = scene.queue()
    assert len(taken(queue, 4, by_partition=True)) == 4
    with pytest.raises(PlanError, match="3 results for a batch of 4 items"):
        queue.answer([1, 2, 3])
    queue.answer(["a", "b", "c", "d"])
    assert task.end() == ["a", "b", "c", "d"]


def test_a_node_that_returns_without_an_answer_is_named(make: Make) -> None:
    scene = make()
    current = scene.open(0, is_inference=True)
    task = Feeder(lambda: list(answer_items(scene.card(current), 3, range(10))))
    taken(scene.queue(), 4, by_partition=True)
    scene.inboxes[0].leave()
    with pytest.raises(ClusterError, match=r"node 0 \(worker:0\) .* 4 items of partition 3 taken and not answered"):
        task.end()
    assert isinstance(current.error, ClusterError)


def test_a_node_that_takes_nothing_is_named_after_the_timeout(make: Make) -> None:
    scene = make()
    current = scene.open(1)
    began = time.monotonic()
    with pytest.raises(Overdue, match=r"node 0 \(worker:0\) .* 1 s \(feed_timeout\) .* 5 items of partition 0"):
        scene.feed(current, 0, range(5), seconds=1.0).end()
    assert time.monotonic() - began < 4
    assert isinstance(current.error, TimeoutError)


def test_an_item_that_cannot_be_fed_is_told_to_the_driver(make: Make) -> None:
    scene = make()
    current = scene.open(1)
    with pytest.raises(TypeError, match="a set"):
        scene.feed(current, 0, [1, {2}]).end()
    assert isinstance(current.error, TypeError)


def test_a_failed_node_ends_the_feed_with_its_own_error(make: Make) -> None:
    scene = make()
    feeder = scene.feed(scene.open(1), 0, itertools.count())
    taken(scene.queue(), 5)
    scene.failure = "node 0 (worker:0) failed: boom"
    for lane in list(scene.inboxes[0]._lanes):
        lane.link.close()
    with pytest.raises(ClusterError, match="boom"):
        feeder.end()
    scene.feeding.fail("boom")
    with pytest.raises(ClusterError, match="boom"):
        scene.feed(scene.open(1), 0, range(3)).end()


def test_a_program_is_starved_when_nothing_is_on_its_way(make: Make) -> None:
    scene = make(2)
    current = scene.open(2)
    waiting = threading.Thread(target=lambda: taken(scene.queue(1), 5), daemon=True)
    waiting.start()
    time.sleep(0.1)
    assert not scene.inboxes[1].is_starved()  # partitions are still to be handed out
    first, second = scene.feed(current, 0, [1]), scene.feed(current, 1, [2])
    assert taken(scene.queue(0), 1)
    first.end()
    second.end()
    eventually(lambda: scene.inboxes[1].is_starved())
    assert not scene.inboxes[0].is_starved()  # nobody waits there
    another = scene.open(1)
    assert not scene.inboxes[1].is_starved()
    scene.feeding.close(another)
    scene.feeding.end()
    waiting.join(5)
    assert not waiting.is_alive()


def test_strangers_are_not_let_in(make: Make) -> None:
    scene = make()
    with socket.create_connection(scene.places[0], 5) as stranger:
        stranger.sendall(pickle.dumps({"kind": "lane"}))
        stranger.settimeout(5)
        with contextlib.suppress(ConnectionError):
            while stranger.recv(64):  # our greeting, then the end
                pass
    feeder = scene.feed(scene.open(1), 0, [1])
    assert taken(scene.queue(), 1) == [1]
    feeder.end()


def test_an_unknown_queue_is_an_error_with_those_there_are(make: Make) -> None:
    with pytest.raises(UnknownName, match="input, output"):
        make().inboxes[0].queue("other")
