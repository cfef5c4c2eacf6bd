"""How often a replica can push its gradients and take the weights: ours, a bare socket, and Flask with pickle."""

from __future__ import annotations

import contextlib
import http.client
import multiprocessing
import pickle
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks.bench import Bench
from benchmarks.environments import Environment, python_of
from benchmarks.harness import Case, Figure, Goal

__all__ = ["cases"]

_SIZES = {"1 MB": 1 << 18, "40 MB": 10 * (1 << 20)}
_FLASK, _BARE, _SHARED, _TCP = "Flask and pickle", "bare socket copy", "firesteel, one machine", "firesteel, TCP"
_SECONDS = 2.0


def cases(bench: Bench) -> Iterator[Case]:
    """One client, one server, plain SGD; a gradient goes and the weights come back."""
    for size, floats in _SIZES.items():
        yield Case(
            title=f"Parameter server, {size}",
            about=f"One client pushes {floats:,} floats and pulls as many, for {_SECONDS:g} s. The bare socket copies "
            f"the same bytes both ways over loopback and computes nothing; the others apply plain SGD.",
            figures={
                "rate": Figure("exchanges", "1/s", _FLASK, {_SHARED: Goal(least=10.0)}),
                "of_socket": Figure("exchanges", "1/s", _BARE, {_SHARED: Goal(least=0.5)}),
            },
            subjects={
                _FLASK: partial(_rates, partial(_flask, floats)),
                _BARE: partial(_rates, partial(_bare, floats)),
                _SHARED: partial(_rates, partial(_ours, floats, is_local=True)),
                _TCP: partial(_rates, partial(_ours, floats, is_local=False)),
            },
        )


def _rates(open_: Callable[[], Any]) -> dict[str, float]:
    with open_() as exchange:
        exchange()
        count, begin = 0, time.perf_counter()
        while (seconds := time.perf_counter() - begin) < _SECONDS:
            exchange()
            count += 1
    return {"rate": count / seconds, "of_socket": count / seconds}


@contextlib.contextmanager
def _flask(floats: int) -> Iterator[Callable[[], None]]:
    python = python_of(Environment("flask", ("flask numpy",)))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen([python, "benchmarks/peers/flask_peer.py", str(port), str(floats)])
    gradient = [np.ones(floats, np.float32)]
    try:
        connection = _connected(port)

        def exchange() -> None:
            connection.request("POST", "/update", pickle.dumps(gradient, -1))
            connection.getresponse().read()
            connection.request("GET", "/parameters")
            pickle.loads(connection.getresponse().read())  # noqa: S301 - what is measured

        yield exchange
    finally:
        process.terminate()
        process.wait()


def _connected(port: int) -> http.client.HTTPConnection:
    for _ in range(200):
        with contextlib.suppress(OSError):
            connection = http.client.HTTPConnection("127.0.0.1", port)
            connection.connect()
            return connection
        time.sleep(0.05)
    raise TimeoutError("Flask did not start")


@contextlib.contextmanager
def _bare(floats: int) -> Iterator[Callable[[], None]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    process = multiprocessing.get_context("fork").Process(target=_echo, args=(ours, theirs, floats), daemon=True)
    process.start()
    theirs.close()
    data, room = np.ones(floats, np.float32), memoryview(np.empty(floats, np.float32)).cast("B")

    def exchange() -> None:
        ours.sendall(data)
        _fill(ours, room)

    try:
        yield exchange
    finally:
        ours.close()
        process.join()


def _echo(other: socket.socket, connection: socket.socket, floats: int) -> None:
    other.close()  # a fork has it too, and would never see its end
    room = memoryview(np.empty(floats, np.float32)).cast("B")
    with contextlib.suppress(OSError, EOFError):
        while True:
            _fill(connection, room)
            connection.sendall(room)


def _fill(connection: socket.socket, room: memoryview) -> None:
    got = 0
    while got < len(room):
        count = connection.recv_into(room[got:])
        if not count:
            raise EOFError
        got += count


@contextlib.contextmanager
def _ours(floats: int, *, is_local: bool) -> Iterator[Callable[[], None]]:
    """The server that a fit starts, with its gate, its frames and torch's SGD."""
    import torch
    from pyspark.sql import SparkSession
    from torch import nn

    from firesteel import init_context
    from firesteel.core import registry
    from firesteel.engine.address import dial
    from firesteel.engine.servers import Servers
    from firesteel.engine.serving import ServerJob
    from firesteel.sync.server import Client

    init_context("local", cores=1)
    framework: Any = registry.framework("torch")
    model = nn.Linear(floats, 1, bias=False)
    program = framework.capture(model, optimizer=torch.optim.SGD(model.parameters(), 1e-6), loss=nn.MSELoss())
    job = ServerJob(program, is_locked=True, staleness=None, seed=0, is_own_start=True)
    with Servers(SparkSession.builder.getOrCreate(), job) as servers:
        (address,) = servers.addresses
        if not is_local:
            address = type(address)(address.host, address.port, address.secret, "", address.certificate)
        replica = framework.replica(program, "cpu", 1)
        replica.start(None)
        client = Client([partial(dial, address)], (0,), replica=replica)
        client.enter()
        gradients, weights = replica.gradients(), replica.weights()
        for each in gradients:
            each[:] = 1  # as a backward does, wherever they lie
        yield lambda: client.push(gradients, step=0, into=(weights, ()))
        client.close()
