"""The coordinator against ranks that are threads with real sockets: no Spark, no children."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from firesteel.cluster.coordinator import Coordinator
from firesteel.cluster.deadlines import Deadlines, setting
from firesteel.cluster.failure import Budget, Failure
from firesteel.cluster.wire import Link, answer_challenge
from firesteel.core.errors import EnvironmentMismatch, PlanError

SECRET = b"secret"


class Rank:
    """A rank as the coordinator sees it."""

    def __init__(
        self, coordinator: Coordinator, rank: int, secret: bytes = SECRET, task: int = 0, **versions: str
    ) -> None:
        self.rank = rank
        self.socket = socket.create_connection(coordinator.address, 5)
        answer_challenge(self.socket, SECRET)
        self.socket.settimeout(5)
        self.link = Link(self.socket)
        self.send("hello", rank=rank, task=task, host="here", versions=versions)
        self.answer = self.hear()

    def send(self, kind: str, buffers: Any = (), **fields: Any) -> None:
        self.link.send({"kind": kind, "generation": 0, **fields}, buffers)

    def hear(self) -> dict[str, Any] | None:
        received = self.link.receive()
        return None if received is None else received[0]

    def fail(self, kind: str, message: str, **more: Any) -> None:
        self.send("failed", failure=Failure(kind, self.rank, "here", message, **more).to_json())

    def board(self, verb: str, key: str, value: bytes | None = None, amount: int = 0) -> None:
        self.send("board", [] if value is None else [value], verb=verb, key=key, amount=amount, id=f"{verb} {key}")

    def beat_for(self, seconds: float) -> threading.Thread:
        def beat() -> None:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                self.send("beat", beat=[0, 0, 0])
                time.sleep(0.05)

        thread = threading.Thread(target=beat)
        thread.start()
        return thread


Make = Callable[..., Coordinator]


@pytest.fixture
def make() -> Iterator[Make]:
    with ExitStack() as stack:

        def build(world: int, **options: Any) -> Coordinator:
            options.setdefault("arrange", lambda reports: reports)
            options.setdefault("on_event", lambda rank, event, buffers: None)
            return stack.enter_context(Coordinator(world, SECRET, "127.0.0.1", **options))

        yield build


def wait_for_end(coordinator: Coordinator, seconds: float = 5.0) -> float:
    """Wait as a launch does; how long it took."""
    begin = time.monotonic()
    while not coordinator.wait(0.05):
        assert time.monotonic() - begin < seconds, "nothing ended this launch"
    return time.monotonic() - begin


def test_ranks_begin_together_once_all_are_ready(make: Make) -> None:
    coordinator = make(
        3, arrange=lambda reports: [{"part": r["rows"], "of": sum(x["rows"] for x in reports)} for r in reports]
    )
    ranks = [Rank(coordinator, rank) for rank in (2, 0, 1)]
    assert [rank.answer for rank in ranks] == [{"kind": "seated", "generation": 0}] * 3
    assert (coordinator.seated, coordinator.alive) == (3, 3)
    for rank in ranks[:2]:
        rank.send("ready", report={"rows": 10 * rank.rank})
    ranks[0].socket.settimeout(0.3)
    with pytest.raises(TimeoutError):
        ranks[0].hear()  # one is missing
    ranks[0].socket.settimeout(5)
    ranks[2].send("ready", report={"rows": 10})
    begun = {rank.rank: rank.hear() for rank in ranks}
    assert all(message["kind"] == "begin" for message in begun.values())
    assert [begun[rank]["assignment"] for rank in range(3)] == [{"part": 10 * rank, "of": 30} for rank in range(3)]


def test_it_ends_when_all_are_done_in_whatever_order_they_leave(make: Make) -> None:
    events: list[tuple[int, Any, list[bytearray]]] = []
    coordinator = make(2, on_event=lambda *event: events.append(event))
    first, second = Rank(coordinator, 0), Rank(coordinator, 1)
    second.send("done")
    second.link.close()
    assert not coordinator.wait(0.3)
    assert (coordinator.seated, coordinator.alive) == (2, 1)
    first.send("event", [b"weights"], event={"name": "result"})
    first.send("done")
    first.link.close()
    wait_for_end(coordinator)
    assert coordinator.failure is None
    assert events == [(0, {"name": "result"}, [bytearray(b"weights")])]
    assert coordinator.wait_until_left()


def test_what_an_older_generation_says_is_dropped(make: Make) -> None:
    events: list[Any] = []
    coordinator = make(1, on_event=lambda *event: events.append(event[1]))
    rank = Rank(coordinator, 0)
    rank.link.send({"kind": "event", "generation": -1, "event": "old"})
    rank.send("event", event="new")
    rank.send("done")
    wait_for_end(coordinator)
    assert events == ["new"]


def test_the_board(make: Make) -> None:
    coordinator = make(2)
    one, two = Rank(coordinator, 0), Rank(coordinator, 1)

    def answer(rank: Rank) -> tuple[Any, bool, bytes]:
        message, (value,) = rank.link.receive()
        return message["id"], message["answer"]["present"], bytes(value)

    one.board("check", "address")
    assert answer(one) == ("check address", False, b"")
    one.board("get", "address")  # waits
    one.socket.settimeout(0.2)
    with pytest.raises(TimeoutError):
        one.link.receive()
    one.socket.settimeout(5)
    two.board("set", "address", b"10.0.0.1")
    assert answer(two) == ("set address", True, b"10.0.0.1")
    assert answer(one) == ("get address", True, b"10.0.0.1")
    two.board("get", "address")
    assert answer(two) == ("get address", True, b"10.0.0.1")
    two.board("check", "address")
    assert answer(two)[1]
    one.board("get", "members")
    for rank, total in ((one, b"2"), (two, b"5")):
        rank.board("add", "members", amount=int(total) - (2 if rank is two else 0))
        if rank is one:
            assert {answer(one)[2], answer(one)[2]} == {b"2"}  # its own answer, and the get that waited
        else:
            assert answer(two)[2] == b"5"


def test_a_second_attempt_waits_and_never_takes_the_seat(make: Make) -> None:
    """A speculative copy that ended would be taken by Spark for the task's success, and the first attempt killed."""
    coordinator = make(1)
    first = Rank(coordinator, 0)
    second = Rank(coordinator, 0, task=1)
    assert second.answer == {"kind": "taken"}
    second.socket.settimeout(0.3)
    with pytest.raises(TimeoutError):
        second.hear()
    second.socket.settimeout(5)
    first.send("done")
    wait_for_end(coordinator)
    assert coordinator.failure is None
    coordinator.abort("the launch is over")
    assert second.hear()["kind"] == "abort"
    assert second.hear() is None


def test_an_attempt_after_the_end_finds_nothing_to_do(make: Make) -> None:
    coordinator = make(2)
    Rank(coordinator, 0).fail("user", "boom")
    wait_for_end(coordinator)
    assert Rank(coordinator, 0, task=1).answer["kind"] == "abort"
    assert Rank(coordinator, 1).answer["kind"] == "abort"


@pytest.mark.parametrize("rank", [-1, 2, 99])
def test_a_rank_that_is_not_of_this_world_has_no_seat(make: Make, rank: int) -> None:
    assert Rank(make(2), rank).answer["kind"] == "abort"


def test_a_stranger_learns_nothing_and_disturbs_nobody(make: Make) -> None:
    coordinator = make(1)
    with socket.create_connection(coordinator.address, 5) as stranger:
        assert len(stranger.recv(100)) == 36  # a question
        stranger.sendall(b"x" * 64)
        assert stranger.recv(100) == b""
    rank = Rank(coordinator, 0)
    rank.send("done")
    wait_for_end(coordinator)
    assert coordinator.failure is None


def test_a_connection_that_ends_is_noticed_within_a_second(make: Make) -> None:
    coordinator = make(2)
    alive, lost = Rank(coordinator, 0), Rank(coordinator, 1)
    lost.link.close()
    assert wait_for_end(coordinator) < 1.0
    assert (coordinator.failure.kind, coordinator.failure.rank) == ("infrastructure", 1)
    assert alive.hear()["kind"] == "abort"


def test_collateral_gives_way_to_what_happened(make: Make) -> None:
    coordinator = make(3)
    ranks = [Rank(coordinator, rank) for rank in range(3)]
    ranks[0].fail("collateral", "connection closed by peer")
    ranks[2].fail("collateral", "connection closed by peer")
    assert not coordinator.wait(0.2)
    ranks[1].fail("user", "RuntimeError: boom")
    assert wait_for_end(coordinator) < 1.0
    assert (coordinator.failure.kind, coordinator.failure.rank, coordinator.failure.message) == (
        "user",
        1,
        "RuntimeError: boom",
    )
    assert [rank.hear()["kind"] for rank in ranks] == ["abort"] * 3


def test_collateral_alone_is_reported_after_a_grace(make: Make) -> None:
    coordinator = make(2, deadlines=Deadlines(collateral_grace_seconds=0.3))
    rank = Rank(coordinator, 0)
    rank.fail("collateral", "the network is down")
    assert wait_for_end(coordinator) >= 0.25
    assert (coordinator.failure.kind, coordinator.failure.message) == ("infrastructure", "the network is down")


def test_when_all_have_lost_each_other_nobody_is_waited_for(make: Make) -> None:
    coordinator = make(2, deadlines=Deadlines(collateral_grace_seconds=30))
    left, dead = Rank(coordinator, 0), Rank(coordinator, 1)
    left.fail("collateral", "SyncError: connection closed by peer", type_name="SyncError")
    dead.fail("collateral", "its process was killed by signal 6 (SIGABRT)")
    assert wait_for_end(coordinator) < 1.0
    assert (coordinator.failure.kind, coordinator.failure.rank) == ("infrastructure", 1)


def test_the_first_failure_stays(make: Make) -> None:
    coordinator = make(2)
    one, two = Rank(coordinator, 0), Rank(coordinator, 1)
    one.fail("user", "first")
    wait_for_end(coordinator)
    two.fail("user", "second")
    two.link.close()
    time.sleep(0.2)
    assert coordinator.failure.message == "first"


def test_a_silent_rank_is_named_with_the_setting(make: Make) -> None:
    coordinator = make(2, deadlines=Deadlines(heartbeat_timeout_seconds=0.5))
    silent, beating = Rank(coordinator, 0), Rank(coordinator, 1)
    beats = beating.beat_for(0.9)
    wait_for_end(coordinator)
    beats.join()
    assert coordinator.failure.rank == silent.rank
    assert "spark.firesteel.heartbeatTimeoutSeconds" in coordinator.failure.message


def test_a_slow_driver_blames_nobody(make: Make) -> None:
    """A checkpoint that takes long to write must not look like silent ranks: it was the driver that did not listen."""
    coordinator = make(
        2, deadlines=Deadlines(heartbeat_timeout_seconds=0.4), on_event=lambda rank, event, buffers: time.sleep(0.5)
    )
    ranks = [Rank(coordinator, 0), Rank(coordinator, 1)]
    beats = [rank.beat_for(1.6) for rank in ranks]
    for rank in ranks:
        rank.send("event", event={"name": "checkpoint"})
    end = time.monotonic() + 1.4
    while time.monotonic() < end:
        assert not coordinator.wait(0.05), coordinator.failure
    for thread in beats:
        thread.join()


def test_abort_reaches_all_even_past_one_that_does_not_listen(make: Make) -> None:
    coordinator = make(3, on_fetch=lambda what: ({}, [bytes(50 << 20)]))
    deaf, *others = (Rank(coordinator, rank) for rank in range(3))
    deaf.send("fetch", id=1, what={})
    time.sleep(0.2)  # its connection is full now
    begin = time.monotonic()
    coordinator.abort("enough")
    assert time.monotonic() - begin < 5
    assert [rank.hear() for rank in others] == [{"kind": "abort", "reason": "enough"}] * 2


def test_a_plan_that_the_reports_show_to_be_wrong(make: Make) -> None:
    def arrange(reports: list[Any]) -> list[Any]:
        raise PlanError("the training data has no rows")

    coordinator = make(1, arrange=arrange)
    Rank(coordinator, 0).send("ready", report={})
    wait_for_end(coordinator)
    assert str(coordinator.failure) == "the training data has no rows"


def test_an_error_of_the_driver_is_raised_as_it_was(make: Make) -> None:
    def on_event(rank: int, event: Any, buffers: Any) -> None:
        raise OSError(28, "No space left on device", "/checkpoints")

    coordinator = make(1, on_event=on_event)
    Rank(coordinator, 0).send("event", event={})
    wait_for_end(coordinator)
    assert isinstance(coordinator.failure, OSError)


def test_other_versions_than_the_drivers_are_refused(make: Make) -> None:
    coordinator = make(2, versions={"python": "3.11", "torch": "2.13.0"})
    same = Rank(coordinator, 0, python="3.11", torch="2.13.0")
    assert same.answer["kind"] == "seated"
    assert Rank(coordinator, 1, python="3.11", torch="2.4.0").answer["kind"] == "abort"
    wait_for_end(coordinator)
    error = coordinator.failure
    assert isinstance(error, EnvironmentMismatch)
    assert (error.rank, error.package, error.on_driver, error.on_task) == (1, "torch", "2.13.0", "2.4.0")


def test_nothing_is_left_of_it() -> None:
    """The accepting thread would sit in accept() for ever, and keep the port, were the socket only closed."""
    before = set(threading.enumerate())
    with Coordinator(
        2, SECRET, "127.0.0.1", arrange=lambda reports: reports, on_event=lambda rank, event, buffers: None
    ) as coordinator:
        address = coordinator.address
        rank = Rank(coordinator, 0)
        half = socket.create_connection(address, 5)
        assert len(half.recv(36)) == 36  # and never answers the challenge
        assert len(set(threading.enumerate()) - before) >= 3
    assert set(threading.enumerate()) <= before
    assert rank.hear() == {"kind": "abort", "reason": "the launch is over"}
    assert rank.hear() is None
    assert half.recv(1) == b""
    half.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, 5)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "::1"])
def test_the_drivers_host_may_be_a_name_or_ipv6(host: str) -> None:
    options: Any = {"arrange": lambda reports: reports, "on_event": lambda rank, event, buffers: None}
    with Coordinator(1, SECRET, host, **options) as coordinator:
        assert coordinator.address[0] == host.strip("[]")
        assert Rank(coordinator, 0).answer["kind"] == "seated"


def test_tasks_may_see_another_address_than_the_one_it_is_bound_to() -> None:
    options: Any = {"arrange": lambda reports: reports, "on_event": lambda rank, event, buffers: None}
    with Coordinator(1, SECRET, "driver.example", bind="127.0.0.1", **options) as coordinator:
        host, port = coordinator.address
        assert host == "driver.example"
        socket.create_connection(("127.0.0.1", port), 5).close()
        with pytest.raises(OSError):  # noqa: PT011 - not on this machine's other addresses
            socket.create_connection(("127.0.0.2", port), 1)


# --- losses that are got over ---


def ready(rank: Rank, generation: int, step: int | None = None) -> None:
    kept = None if step is None else {"step": step, "epoch": 0, "slot": 0, "bytes": 3}
    rank.link.send({"kind": "ready", "generation": generation, "report": {"of": rank.rank, "kept": kept}})


def begun(ranks: list[Rank], generation: int) -> bool:
    messages = [rank.hear() for rank in ranks]
    return all((m["kind"], m["generation"]) == ("begin", generation) for m in messages)


def test_a_gang_re_forms_around_a_newcomer(make: Make) -> None:
    events: list[Any] = []
    coordinator = make(2, budget=Budget(infrastructure=1), on_event=lambda *event: events.append(event[1]))
    first, lost = Rank(coordinator, 0), Rank(coordinator, 1)
    for rank in (first, lost):
        ready(rank, 0)
    assert begun([first, lost], 0)
    lost.link.close()
    assert first.hear() == {"kind": "reform", "generation": 1}
    first.send("event", event="of a child that is being stopped")
    newcomer = Rank(coordinator, 1, task=1)
    assert newcomer.answer == {"kind": "seated", "generation": 1}
    ready(newcomer, 1)
    ready(first, 1, step=8)
    assert begun([first, newcomer], 1)
    for rank in (first, newcomer):
        rank.link.send({"kind": "event", "generation": 1, "event": rank.rank})
        rank.link.send({"kind": "done", "generation": 1})
    wait_for_end(coordinator)
    assert coordinator.failure is None
    assert sorted(events) == [0, 1]


def test_a_key_of_an_older_form_is_not_on_the_board(make: Make) -> None:
    coordinator = make(2, budget=Budget(infrastructure=1))
    first, lost = Rank(coordinator, 0), Rank(coordinator, 1)
    first.board("set", "address", b"old")
    first.hear()
    lost.link.close()
    assert first.hear()["kind"] == "reform"
    first.send("board", verb="check", key="address", amount=0, id=1, generation=1)
    assert first.link.receive()[0]["answer"] == {"present": False}


def test_ranks_lost_together_are_one_incident_and_one_lost_twice_is_two(make: Make) -> None:
    budget = Budget(infrastructure=2)
    coordinator = make(3, budget=budget)
    first, second, third = (Rank(coordinator, rank) for rank in range(3))
    second.link.close()
    third.link.close()
    assert {first.hear()["generation"], first.hear()["generation"]} == {1, 2}
    assert [incident.ranks for incident in budget.incidents] == [{1, 2}]
    Rank(coordinator, 1, task=1).link.close()
    assert first.hear()["kind"] == "reform"
    assert [incident.ranks for incident in budget.incidents] == [{1, 2}, {1}]
    Rank(coordinator, 1, task=2).link.close()
    wait_for_end(coordinator)
    assert "2 losses were got over" in coordinator.failure.message


def test_a_rank_that_cannot_say_where_it_stood_was_where_the_others_are(make: Make) -> None:
    budget = Budget(infrastructure=3)
    coordinator = make(2, budget=budget)
    first, lost = Rank(coordinator, 0), Rank(coordinator, 1)
    for rank in (first, lost):
        rank.send("ready", report={})
    assert first.hear()["kind"] == lost.hear()["kind"] == "begin"
    lost.send("beat", beat=[1, 1, 0])
    first.send("beat", beat=[1, 24, 1])
    first.board("set", "heard", b"")
    first.hear()
    lost.link.close()
    assert first.hear()["kind"] == "reform"
    assert budget.incidents[0].lost_at == 24
    first.send("beat", beat=[1, 25, 1], generation=1)  # of the child that was ended
    first.send("ready", report={}, stood=25, generation=1)
    newcomer = Rank(coordinator, 1, task=1)
    newcomer.send("ready", report={}, generation=1)
    assert first.hear()["kind"] == newcomer.hear()["kind"] == "begin"
    assert budget.incidents[0].to_json()["lost_at_step"] == 25
    newcomer.send("failed", failure=Failure("infrastructure", 1, "here", "killed", step=9).to_json(), generation=1)
    assert first.hear()["kind"] == "reform"
    first.send("ready", report={}, stood=10, generation=2)
    newcomer.send("ready", report={}, generation=2)
    assert first.hear()["kind"] == "begin"
    assert budget.incidents[1].lost_at == 9, "what it says itself counts more"
    newcomer.link.close()
    assert first.hear()["kind"] == "reform"
    assert budget.incidents[2].lost_at is None, "steps before the last loss are no news"
    budget.incidents[2].reach(8)  # the commit point that they go on from
    assert budget.incidents[2].lost_at == 8


def test_a_task_that_ends_after_its_child_did_is_no_second_loss(make: Make) -> None:
    budget = Budget(infrastructure=1)
    coordinator = make(2, budget=budget)
    first, lost = Rank(coordinator, 0), Rank(coordinator, 1)
    lost.fail("infrastructure", "its process was killed")
    assert [rank.hear()["kind"] for rank in (first, lost)] == ["reform", "reform"]
    lost.link.close()
    newcomer = Rank(coordinator, 1, task=1)
    assert "seated" in (newcomer.answer["kind"], newcomer.answer["kind"] == "taken" and newcomer.hear()["kind"])
    assert coordinator.failure is None


def test_kinds_have_their_own_budgets(make: Make) -> None:
    coordinator = make(2, budget=Budget(infrastructure=0, preemption=1))
    first, lost = Rank(coordinator, 0), Rank(coordinator, 1)
    lost.fail("preemption", "SIGTERM")
    assert first.hear()["kind"] == "reform"
    lost.send("failed", failure=Failure("infrastructure", 1, "here", "boom").to_json(), generation=1)
    wait_for_end(coordinator)
    assert coordinator.failure.message.startswith("boom")


def test_a_duplicate_that_waited_takes_the_seat_of_one_that_dies(make: Make) -> None:
    coordinator = make(1, budget=Budget(infrastructure=1))
    first = Rank(coordinator, 0)
    gone, duplicate = Rank(coordinator, 0, task=1), Rank(coordinator, 0, task=2)
    assert gone.answer == duplicate.answer == {"kind": "taken"}
    gone.link.close()  # one that has left meanwhile must not get it
    first.link.close()
    assert duplicate.hear()["kind"] == "seated"


def test_nobody_comes(make: Make) -> None:
    deadlines = Deadlines(reform_timeout_seconds=0.3)
    coordinator = make(2, budget=Budget(infrastructure=1), deadlines=deadlines)
    _, lost = Rank(coordinator, 0), Rank(coordinator, 1)
    lost.link.close()
    wait_for_end(coordinator)
    assert "1 of 2 replicas are left" in coordinator.failure.message
    assert "spark.firesteel.reformTimeoutSeconds" in coordinator.failure.message
    assert (coordinator.failure.kind, coordinator.failure.rank) == ("infrastructure", 1)


def test_those_who_are_left_hand_over_the_newest_that_they_keep(make: Make) -> None:
    deadlines = Deadlines(reform_timeout_seconds=0.3)
    coordinator = make(3, budget=Budget(infrastructure=1), deadlines=deadlines, min_workers=2)
    older, newer, lost = (Rank(coordinator, rank) for rank in range(3))
    lost.link.close()
    for rank, step in ((older, 4), (newer, 5)):
        assert rank.hear()["kind"] == "reform"
        ready(rank, 1, step)
    wait_for_end(coordinator)
    assert coordinator.is_short_handed
    assert coordinator.failure is None

    def give() -> None:
        assert newer.hear() == {"kind": "give"}
        newer.send("given", [b"all"], note={"step": 5})

    giver = threading.Thread(target=give)
    giver.start()
    assert coordinator.collect() == ({"step": 5}, [bytearray(b"all")])
    giver.join()


def test_rows_that_could_not_be_computed_are_sparks_affair(make: Make) -> None:
    coordinator = make(2, budget=Budget(infrastructure=1))
    first, starved = Rank(coordinator, 0), Rank(coordinator, 1)
    starved.fail("upstream", "cut")
    starved.link.close()
    assert not coordinator.wait(0.3)
    assert coordinator.is_starved
    again = Rank(coordinator, 1, task=1)
    assert again.answer == {"kind": "seated", "generation": 0}
    assert not coordinator.is_starved
    first.socket.settimeout(0.2)
    with pytest.raises(TimeoutError):
        first.hear()


def test_the_one_that_hangs_is_named_not_those_who_wait_for_it(make: Make) -> None:
    coordinator = make(2, deadlines=Deadlines(stall_timeout_seconds=0.5))
    ranks = [Rank(coordinator, 0), Rank(coordinator, 1)]
    for rank in ranks:
        ready(rank, 0)
    assert begun(ranks, 0)
    ranks[0].send("beat", beat=[5, 3, 1])  # in step 3, waiting
    ranks[1].send("beat", beat=[4, 3, 0])
    wait_for_end(coordinator)
    assert (coordinator.failure.rank, coordinator.failure.step) == (1, 3)
    assert "spark.firesteel.stallTimeoutSeconds" in coordinator.failure.message


def test_the_last_step_of_a_rank_that_dies_is_known(make: Make) -> None:
    coordinator = make(1)
    rank = Rank(coordinator, 0)
    rank.send("beat", beat=[9, 37, 0])
    rank.link.close()
    wait_for_end(coordinator)
    assert coordinator.failure.step == 37


# --- deadlines ---


def test_every_deadline_is_a_spark_setting() -> None:
    conf = {"spark.firesteel.seatTimeoutSeconds": "7", "spark.firesteel.collateralGraceSeconds": "0.5"}
    assert Deadlines.of(conf.get) == Deadlines(seat_timeout_seconds=7.0, collateral_grace_seconds=0.5)
    assert Deadlines.of({}.get) == Deadlines()
    assert setting("leave_timeout_seconds") == "spark.firesteel.leaveTimeoutSeconds"


@pytest.mark.parametrize("value", ["soon", "0", "-3", "nan"])
def test_a_deadline_that_is_none(value: str) -> None:
    with pytest.raises(PlanError, match="seatTimeoutSeconds"):
        Deadlines.of({"spark.firesteel.seatTimeoutSeconds": value}.get)
