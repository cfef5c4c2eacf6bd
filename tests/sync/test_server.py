"""The parameter server: every push counts once and whole, whatever happens on its way."""

from __future__ import annotations

import copy
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load
from torch import nn

from firesteel.cluster.wire import Link, WireError
from firesteel.core import registry
from firesteel.core.errors import FiresteelError, SyncError
from firesteel.sync import make_sync
from firesteel.sync.server import Client, ParameterServer, ServerSync
from firesteel.sync.server.layout import Layout
from firesteel.sync.server.memory import SharedBuffers
from firesteel.sync.solo import SoloGroup
from firesteel.testing import check_sync

Pair = Callable[[], tuple[socket.socket, socket.socket]]


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        return ours, server.accept()[0]


class Served:
    """A server whose connections are made in this process; each has its own thread, as in the engine."""

    def __init__(self, server: ParameterServer, pair: Pair = socket.socketpair) -> None:
        self.server, self.pair = server, pair
        self.refused: list[Exception] = []
        self.threads: list[threading.Thread] = []
        self.ends: list[socket.socket] = []

    def dial(self) -> Link:
        ours, theirs = self.pair()
        self.ends.append(ours)
        thread = threading.Thread(target=self._serve, args=(Link(theirs),), daemon=True)
        self.threads.append(thread)
        thread.start()
        return Link(ours)

    def _serve(self, link: Link) -> None:
        try:
            self.server.serve(link)
        except (OSError, FiresteelError) as error:
            self.refused.append(error)
        finally:
            link.close()

    def join(self) -> None:
        for thread in self.threads:
            thread.join(5)
            assert not thread.is_alive()


def replica(size: int = 4, rate: float = 0.5, optimizer: Any = None, *, is_started: bool = True) -> Any:
    framework: Any = registry.framework("torch")
    model = nn.Linear(size, 1, bias=False)
    nn.init.zeros_(model.weight)
    made = torch.optim.SGD(model.parameters(), rate) if optimizer is None else optimizer(model)
    found = framework.replica(framework.capture(model, optimizer=made, loss=nn.MSELoss()), "cpu", 1)
    if is_started:
        found.start(None)
    return found


def batch(rows: int = 2, size: int = 4) -> dict[str, np.ndarray]:
    return {"x0": np.ones((rows, size), np.float32), "y0": np.ones(rows, np.float32)}


def gradient_of_ones(of: Any) -> list[np.ndarray]:
    found = of.gradients()
    for each in found:
        each[:] = 1
    return found


@contextmanager
def serving(
    *, size: int = 4, pair: Pair = socket.socketpair, is_locked: bool = True, **options: Any
) -> Iterator[Served]:
    server = ParameterServer(replica(size), is_locked=is_locked, **options)
    server.open([["x0", "<f4", [size]], ["y0", "<f4", []]])
    served = Served(server, pair)
    yield served
    server.close()
    for end in served.ends:
        end.close()
    served.join()


def client(served: Served, name: int = 0, **options: Any) -> Client:
    made = Client([served.dial], (name,), **{"patience_seconds": 3.0, **options})
    made.enter()
    return made


@pytest.mark.parametrize("is_locked", [True, False])
@pytest.mark.parametrize("pair", [socket.socketpair, tcp_pair])
def test_a_push_is_the_programs_own_update(is_locked: bool, pair: Pair) -> None:
    with serving(is_locked=is_locked, pair=pair) as served:
        mine = replica()
        one = client(served)
        for _ in range(3):
            one.push(gradient_of_ones(mine), step=1, into=(mine.weights(), ()))
        assert mine.weights()[0].tolist() == [-1.5] * 4
        one.push(None, step=2)
        one.pull(mine.weights())
        assert mine.weights()[0].tolist() == [-1.5] * 4
        one.close()


def test_many_clients_many_pushes_none_lost_none_twice_none_torn() -> None:
    size, clients, pushes = 50_000, 4, 30

    def work(served: Served, name: int, torn: list[int]) -> None:
        mine, one = replica(size), client(served, name)
        for step in range(pushes):
            one.push(gradient_of_ones(mine), step=step, into=(mine.weights(), ()))
            torn.append(len(np.unique(mine.weights()[0])) - 1)
        one.close()

    with serving(size=size) as served:
        torn: list[int] = []
        threads = [threading.Thread(target=work, args=(served, name, torn)) for name in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(torn) == clients * pushes
        assert set(torn) == {0}, "a pull saw weights in the middle of an update"
        assert served.server.updates == clients * pushes
        final = replica(size)
        client(served, 9).pull(final.weights())
        assert np.unique(final.weights()[0]).tolist() == [-0.5 * clients * pushes]


class LossyLink(Link):
    """Loses the connection at the given receives, after the request has arrived at the server."""

    lost: frozenset[int] = frozenset()
    count = 0

    def receive(self, room: Any = None) -> Any:
        LossyLink.count += 1
        if LossyLink.count in LossyLink.lost:
            super().receive(room)  # the server has done its work, and says so
            raise ConnectionResetError("lost")
        return super().receive(room)


@pytest.mark.parametrize("is_bound", [True, False])
def test_an_answer_that_is_lost_makes_no_second_update(is_bound: bool) -> None:
    with serving() as served:

        def dial() -> Link:
            link = served.dial()
            return LossyLink(link._socket)

        # Entering takes two answers (the second for the shared memory), a push one.
        LossyLink.count, LossyLink.lost = 0, frozenset({3, 7, 9})
        mine = replica()
        one = Client([dial], (0,), patience_seconds=3.0, replica=mine if is_bound else None)
        one.enter()
        for step in range(5):
            one.push(gradient_of_ones(mine), step=step)
        one.pull(mine.weights())
        assert LossyLink.count > 12, "nothing was lost, so nothing was tried"
        assert mine.weights()[0].tolist() == [-2.5] * 4
        assert served.server.updates == 5
        one.close()


@pytest.mark.parametrize("pair", [socket.socketpair, tcp_pair])
def test_a_push_that_is_under_way_when_the_connection_ends_is_applied_once(pair: Pair) -> None:
    with serving(pair=pair, is_locked=False) as served:
        mine = replica()
        one = client(served)
        for _ in range(4):
            one.push(gradient_of_ones(mine), step=1, into=(mine.weights(), ()), waits=False)
            served.ends[-1].shutdown(socket.SHUT_RDWR)  # before the server has said anything, or after
            one.end_push()
        assert len(served.ends) > 4, "no connection was lost, so nothing was tried"
        assert mine.weights()[0].tolist() == [-2.0] * 4
        assert served.server.updates == 4
        one.close()


def test_who_asks_for_something_else_hears_of_the_push_first() -> None:
    told: list[dict[str, Any]] = []
    with serving(is_locked=False, tell=told.append) as served:
        mine, one = replica(), client(served)
        one.push(gradient_of_ones(mine), step=1, into=(mine.weights(), ()), waits=False)
        one.tell({"name": "failed"})
        assert mine.weights()[0].tolist() == [-0.5] * 4
        assert told == [{"name": "failed"}]
        one.pull(mine.weights())
        assert mine.weights()[0].tolist() == [-0.5] * 4
        one.close()


def test_a_client_knows_whether_others_are_at_work() -> None:
    with serving(is_locked=False) as served:
        mine, other = replica(), client(served, 1)
        one = client(served)
        assert one.is_alone, "before the first answer nobody knows of others"
        one.push(gradient_of_ones(mine), step=1)
        assert not one.is_alone
        other.close()
        end = time.monotonic() + 3
        while not one.is_alone and time.monotonic() < end:
            one.push(gradient_of_ones(mine), step=1)
        assert one.is_alone
        one.close()


@pytest.mark.parametrize("pair", [socket.socketpair, tcp_pair])
def test_two_replicas_push_what_each_has_computed(pair: Pair) -> None:
    """Where memory is shared, gradients lie where the server reads them, and each client's are its own."""
    with serving(pair=pair) as served:
        ours = [replica(), replica()]
        before = [each.gradients()[0].ctypes.data for each in ours]
        clients = [client(served, name, replica=mine) for name, mine in enumerate(ours)]
        moved = [mine.gradients()[0].ctypes.data != place for mine, place in zip(ours, before, strict=True)]
        assert moved == [pair is socket.socketpair] * 2
        for mine, factor in zip(ours, (1.0, 10.0), strict=True):
            mine.backward(batch(), factor)
        for one, mine in [*zip(clients, ours, strict=True)] * 2:
            one.push(mine.gradients(), step=0, into=(mine.weights(), ()))
        # Of zeros the loss is 1 and every weight's gradient -2; the rate is a half.
        assert ours[1].weights()[0].tolist() == [(1 + 10) * 2.0] * 4
        for one in clients:
            one.close()


def test_a_client_killed_in_the_middle_of_a_push_changes_nothing() -> None:
    with serving(pair=tcp_pair) as served:
        mine, one = replica(), client(served, 1)
        one.push(gradient_of_ones(mine), step=1)
        link = one._ends[0]._line
        raw = link._socket
        frame = bytearray()
        raw_sendall, link._socket = raw.sendall, type("Tap", (), {"sendall": lambda self, data: frame.extend(data)})()
        link.send({"kind": "push", "number": 2, "step": 2, "is_empty": False, "pulls": False}, [bytes(24)])
        raw_sendall(bytes(frame[: len(frame) - 3]))
        raw.close()
        served.join()
        assert [type(error) for error in served.refused] == [WireError]
        assert served.server.updates == 1
        again = client(served, 1)  # another process in its place goes on where it stood
        assert again.pushes == 1
        again.push(gradient_of_ones(mine), step=2)
        assert served.server.updates == 2
        again.close()


def test_strange_requests_are_refused_and_the_server_goes_on() -> None:
    random = np.random.default_rng(5)
    strange: list[tuple[dict[str, Any], list[bytes]]] = [
        ({}, []),
        ({"kind": "pull"}, []),
        ({"kind": "push", "number": 1, "step": 1, "is_empty": False, "pulls": True}, [bytes(24)]),
        ({"kind": "enter"}, []),
        ({"kind": "enter", "client": 3, "generation": 0, "extras": False, "shares": False}, []),
        ({"kind": "enter", "client": [1], "generation": 4, "extras": False, "shares": False}, []),
        ({"kind": "load", "parts": ["model"], "tensors": [], "generation": 9, "step": "x"}, []),
        ({"kind": "state"}, []),
        ({"kind": "schedule"}, []),
        ({"kind": "tell", "event": {}}, []),
        ({"kind": ["push"]}, [random.bytes(100)]),
    ]
    with serving(pair=tcp_pair) as served:
        for message, buffers in strange:
            link = served.dial()
            received = None
            with suppress(OSError, WireError):  # refused while it was still being said
                link.send(message, buffers)
                received = link.receive()
            assert received is None or "error" in received[0], (message, received)
            link.close()
        entered = client(served)
        line = entered._ends[0]._line
        for buffers in ([bytes(15), bytes(8)], [bytes(16)], [bytes(1 << 20), bytes(8)]):
            received = None
            with suppress(OSError, WireError):
                line.send({"kind": "push", "number": 1, "step": 1, "is_empty": False, "pulls": False}, buffers)
                received = line.receive()
            assert received is None, "a push of another size was taken"
            entered.enter()
            line = entered._ends[0]._line
        for start in (b"", b"FSTL"):
            raw = served.dial()._socket
            with suppress(OSError):
                raw.sendall(start + random.bytes(500))
                raw.shutdown(socket.SHUT_WR)
                assert raw.recv(1) == b""
            raw.close()
        mine = replica()
        entered.push(gradient_of_ones(mine), step=1, into=(mine.weights(), ()))
        assert mine.weights()[0].tolist() == [-0.5] * 4
        assert served.server.updates == 1
        entered.close()


def test_a_push_out_of_turn_is_an_error() -> None:
    with serving() as served:
        one, mine = client(served), replica()
        one.pushes = 4
        with pytest.raises(SyncError, match=r"push 5 of client .* came after push 0"):
            one.push(gradient_of_ones(mine), step=1)
        one.close()


def test_a_server_that_is_gone_is_an_error_within_the_patience() -> None:
    def dial() -> Link:
        raise ConnectionRefusedError("nobody there")

    begin = time.monotonic()
    with pytest.raises(SyncError, match="parameter server cannot be reached: nobody there"):
        Client([dial], (0,), patience_seconds=0.3).enter()
    assert time.monotonic() - begin < 3


def test_a_fast_client_waits_for_the_slow_one() -> None:
    with serving(staleness=2) as served:
        fast, slow, mine = client(served, 0), client(served, 1), replica()
        done = []

        def run() -> None:
            for step in range(5):
                fast.push(gradient_of_ones(mine), step=step)
                done.append(step)

        thread = threading.Thread(target=run)
        thread.start()
        theirs = gradient_of_ones(replica())
        for ahead in range(2, 5):
            time.sleep(0.2)
            assert len(done) == ahead, "not two ahead of the slow one"
            slow.push(theirs, step=ahead)
        slow.close()  # whom nobody waits for any more
        thread.join(5)
        assert not thread.is_alive()
        fast.close()


def learn(sync: Any, of: Any, steps: int = 4) -> Any:
    """A short life of one replica."""
    sync.join(of, SoloGroup())
    random = np.random.default_rng(2)
    for step in range(steps):
        x = random.standard_normal((6, 4)).astype(np.float32)
        of.seed(step)
        of.backward({"x0": x, "y0": (x @ [1, 2, 3, 4]).astype(np.float32)}, 1.0)
        sync.commit(of)
        sync.schedule(of, "batch")
    sync.settle(of, 6)
    return sync.state(of)


def with_adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), 0.1)


@pytest.mark.parametrize("servers", [1, 3])
def test_one_replica_learns_what_it_learns_alone(servers: int) -> None:
    from firesteel.sync import AllReduce

    alone = replica(optimizer=with_adam)
    wanted = learn(AllReduce(), alone)
    parts = [Served(ParameterServer(replica(optimizer=with_adam), is_locked=True)) for _ in range(servers)]
    mine = replica(optimizer=with_adam)
    sync = ServerSync([each.dial for each in parts], lambda: batch(0))
    found = learn(sync, mine)
    np.testing.assert_allclose(mine.weights()[0], alone.weights()[0], rtol=1e-6)
    mine.weights()[0][:] = 5
    sync.adopt(mine)  # as after going back to an earlier epoch
    sync.settle(mine, 0)
    assert load(sync.state(mine)["model"])["weight"].tolist() == [[5.0] * 4]
    sync.close()
    unpack = registry.framework("torch").unpack_tree  # type: ignore[attr-defined]
    theirs, ours = unpack(found["optimizer"])["optimizer"], unpack(wanted["optimizer"])["optimizer"]
    torch.testing.assert_close(theirs["state"], ours["state"])
    assert theirs["param_groups"] == ours["param_groups"]
    np.testing.assert_allclose(*(load(state["model"])["weight"] for state in (found, wanted)), rtol=1e-6)


@pytest.mark.parametrize("name", ["all-reduce", "averaging", "sharded", "native", "hogwild", "locked"])
def test_the_contract_of_a_sync(name: str) -> None:
    framework: Any = registry.framework("torch")
    torch.manual_seed(2)
    # No gradient here is 0 but for rounding: Adam would make whole steps of that.
    model = nn.Sequential(nn.Linear(4, 3, bias=False), nn.BatchNorm1d(3), nn.Linear(3, 1))
    parts = {"optimizer": torch.optim.Adam(model.parameters(), 0.05), "loss": nn.MSELoss()}
    program = framework.capture(model, **parts)

    def make() -> Any:
        if name not in ("hogwild", "locked"):
            return make_sync(name)
        copied = framework.replica(copy.deepcopy(program), "cpu", 1)
        copied.start(None)
        served = Served(ParameterServer(copied, is_locked=name == "locked"))
        return ServerSync([served.dial], lambda: batch(0))

    random = np.random.default_rng(3)
    rows = {name: random.normal(size=values.shape).astype(np.float32) for name, values in batch(6).items()}
    check_sync(make, framework, program, rows)


def test_servers_begin_anew_for_a_new_gang() -> None:
    served = Served(ParameterServer(replica(), is_locked=True))
    first, second = replica(), replica()
    old = ServerSync([served.dial], lambda: batch(0))
    old.join(first, SoloGroup())
    first.backward(batch(), 1.0)
    old.commit(first)
    new = ServerSync([served.dial], lambda: batch(0), step=7)
    new.join(second, SoloGroup())
    assert second.weights()[0].tolist() == [0.0] * 4, "not rank 0's state, but what the lost gang left"
    assert served.server.updates == 0
    # A rank of the lost gang that still lives: it is not heard, with its old connection or a new one.
    for _ in range(2):
        with pytest.raises(SyncError, match="another gang"):
            old.commit(first)
    assert served.server.updates == 0
    new.close()
    served.join()


def test_memory_that_could_be_cut_is_not_taken() -> None:
    layout = Layout.of([np.zeros(4, np.float32)], [np.zeros(6, np.float32)], None)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        memory = os.memfd_create("x")
        os.ftruncate(memory, 4096)
        socket.send_fds(ours, [b"m"], [memory])
        os.close(memory)
        with pytest.raises(SyncError, match="sealed"):
            SharedBuffers.take(layout, theirs.fileno())
        SharedBuffers.make(layout, ours.fileno())
        SharedBuffers.take(layout, theirs.fileno())
        other = Layout.of([np.zeros(4000, np.float32)], [np.zeros(6000, np.float32)], None)
        SharedBuffers.make(layout, ours.fileno())
        with pytest.raises(SyncError, match="another size"):
            SharedBuffers.take(other, theirs.fileno())
