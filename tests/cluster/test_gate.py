"""A job's own tasks come in, whoever else is at the gate; everybody else is sent away, and the log says so."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from firesteel.cluster import gate as module
from firesteel.cluster.gate import Gate
from firesteel.cluster.tls import Certificate, join
from firesteel.cluster.wire import Link, answer_challenge

SECRET = b"the job's own"


class House:
    """A server with a gate, as the coordinator is one: a thread for each connection."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.admitted: list[Any] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = self._server.getsockname()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                connection, peer = self._server.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection, peer[0]))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket, host: str) -> None:
        with connection:
            stream = self.gate.admit(connection, host)
            if stream is not None:
                self.admitted.append(stream)
                Link(stream).send({"kind": "seated"})

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, 5)

    def close(self) -> None:
        self.gate.close()
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for thread in self._threads:
            thread.join(5)
            assert not thread.is_alive()


@pytest.fixture
def house(request: pytest.FixtureRequest) -> Iterator[House]:
    options = {"world": 2, "timeout_seconds": 5.0, **getattr(request, "param", {})}
    made = House(Gate(SECRET, **options))
    yield made
    made.close()


def enter(house: House, secret: bytes = SECRET) -> Any:
    with house.connect() as connection:
        answer_challenge(connection, secret)
        return Link(connection).receive()


def ended(connection: socket.socket) -> bool:
    """Whether the other end closed it."""
    try:
        while connection.recv(100):
            pass
    except ConnectionResetError:
        pass
    return True


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == module.__name__]


def test_who_knows_the_secret_comes_in(house) -> None:
    assert enter(house) == ({"kind": "seated"}, [])


def test_with_a_certificate_the_connection_is_encrypted() -> None:
    certificate = Certificate()
    house = House(Gate(SECRET, world=1, timeout_seconds=5.0, certificate=certificate))
    with house.connect() as connection:
        stream = join(connection, certificate.text)
        answer_challenge(stream, SECRET)
        assert Link(stream).receive() == ({"kind": "seated"}, [])
    assert house.admitted[0] is not None
    house.close()


@pytest.mark.parametrize(
    ("said", "logged"),
    [
        (b"GET /metrics HTTP/1.1\r\n", "it sent an HTTP request (b'GET /metrics HTT')"),
        (b"\x16\x03\x01\x02\x00\x01", "it sent a TLS greeting"),
        (b"\x8a\xff\x00" * 50, "it sent foreign bytes"),
        (b"FSH1" + bytes(64), "it does not know this job's secret"),
        (b"FSH1" + bytes(10), "it closed the connection before it had proven itself"),
        (b"", "it closed the connection before it had proven itself"),
    ],
    ids=["http", "tls", "noise", "guess", "half", "nothing"],
)
def test_strangers_are_refused_and_the_log_says_why(house, caplog, said: bytes, logged: str) -> None:
    with caplog.at_level(logging.WARNING, module.__name__), house.connect() as stranger:
        stranger.sendall(said)
        with contextlib.suppress(OSError):  # already thrown out
            stranger.shutdown(socket.SHUT_WR)
        assert ended(stranger)
        assert enter(house) is not None
    (line,) = lines(caplog)
    assert line.startswith("refused a connection from 127.0.0.1: ")
    assert logged in line
    assert len(house.admitted) == 1


@pytest.mark.parametrize("house", [{"timeout_seconds": 0.3}], indirect=True)
def test_who_says_nothing_has_to_go(house, caplog) -> None:
    start = time.monotonic()
    with caplog.at_level(logging.WARNING, module.__name__), house.connect() as stranger:
        assert ended(stranger)
    assert time.monotonic() - start < 3
    assert "timed out" in lines(caplog)[0]


def test_a_crowd_keeps_nobody_out(house, caplog) -> None:
    """They come first, say nothing, and are many: those who wait longest make room."""
    with caplog.at_level(logging.WARNING, module.__name__):
        crowd = [house.connect() for _ in range(100)]
        assert enter(house) is not None
        assert ended(crowd[0])
        assert len(house.gate._strangers) <= 2 + 64
        end = time.monotonic() + 5
        while not any("more than 66 were waiting" in line for line in lines(caplog)):
            assert time.monotonic() < end
            time.sleep(0.01)
    for stranger in crowd:
        stranger.close()


def test_at_its_end_all_are_sent_away_without_a_line(caplog) -> None:
    house = House(Gate(SECRET, world=1, timeout_seconds=60.0))
    with caplog.at_level(logging.WARNING, module.__name__), house.connect() as stranger:
        assert len(stranger.recv(36)) == 36
        house.close()
        assert ended(stranger)
    assert lines(caplog) == []


def test_the_log_is_not_theirs_to_fill(house, caplog, monkeypatch) -> None:
    monkeypatch.setattr(module, "_WARNINGS", 3)
    with caplog.at_level(logging.WARNING, module.__name__):
        for _ in range(6):
            with house.connect() as stranger:
                stranger.sendall(b"hello?")
                assert ended(stranger)
    assert len(lines(caplog)) == 4
    assert "further ones are not reported" in lines(caplog)[-1]
