"""Between driver and task nobody reads or changes anything, and neither end takes another for the one it wants."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from firesteel.cluster import tls
from firesteel.cluster.tls import Certificate, TlsSocket, join, wanted
from firesteel.cluster.wire import Link, WireError, answer_challenge, challenge
from firesteel.core.errors import PlanError

SECRET = b"the job's own"


@pytest.fixture(scope="module")
def certificate() -> Certificate:
    return Certificate()


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The driver's end and the task's."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        task = socket.create_connection(server.getsockname(), 5)
        driver, _ = server.accept()
    driver.settimeout(5)
    with task, driver:
        yield driver, task


def meanwhile(call: Callable[..., Any], *args: Any) -> Callable[[], Any]:
    """Run it in a thread; what is returned waits for the result, or for the error as a value."""
    found: list[Any] = []

    def body() -> None:
        try:
            found.append(call(*args))
        except (OSError, WireError) as error:
            found.append(error)

    thread = threading.Thread(target=body)
    thread.start()

    def wait() -> Any:
        thread.join(10)
        assert not thread.is_alive()
        return found[0]

    return wait


def secured(sockets, certificate: Certificate) -> tuple[TlsSocket, TlsSocket]:
    driver = meanwhile(certificate.accept, sockets[0])
    task = join(sockets[1], certificate.text)
    return driver(), task


@pytest.fixture
def links(sockets, certificate) -> tuple[Link, Link]:
    driver, task = secured(sockets, certificate)
    return Link(driver), Link(task)


def test_messages_arrive_as_over_a_plain_socket(links) -> None:
    data = bytearray(range(256)) * 40_000  # 10 MB, many records
    sending = meanwhile(links[1].send, {"kind": "result"}, [data, b""])
    assert links[0].receive() == ({"kind": "result"}, [data, bytearray()])
    sending()
    links[0].send({"kind": "begin"})
    assert links[1].receive() == ({"kind": "begin"}, [])
    links[1].close()
    assert links[0].receive() is None


def test_the_challenge_runs_inside(sockets, certificate) -> None:
    driver, task = secured(sockets, certificate)
    accepted = meanwhile(challenge, driver, SECRET)
    answer_challenge(task, SECRET)
    assert accepted() is True


def test_threads_send_while_another_receives(links) -> None:
    """In both directions at once, and from several threads: the use that ``ssl.SSLSocket`` breaks under."""

    def send(link: Link, number: int) -> None:
        for _ in range(30):
            link.send({"n": number}, [bytes([number]) * 50_000])

    def hear(link: Link) -> int:
        for _ in range(90):
            message, (data,) = link.receive()
            assert data == bytes([message["n"]]) * 50_000
        return 90

    waits = [meanwhile(send, link, number) for link in links for number in range(3)]
    hearing = meanwhile(hear, links[0])
    assert hear(links[1]) == 90
    assert hearing() == 90
    assert [wait() for wait in waits] == [None] * 6


def test_the_last_word_never_waits(links, sockets) -> None:
    for each in sockets:
        each.settimeout(None)
    stuck = meanwhile(links[0].send, {}, [bytes(50 << 20)])
    start = time.monotonic()
    links[0].send_last({"kind": "abort"})
    assert time.monotonic() - start < 5
    assert isinstance(stuck(), OSError)  # closed under it


def test_the_last_word_arrives_where_there_is_room(links) -> None:
    links[0].send_last({"kind": "abort"})
    assert links[1].receive() == ({"kind": "abort"}, [])


def test_closing_wakes_the_thread_that_receives(links, sockets) -> None:
    sockets[0].settimeout(None)
    waiting = meanwhile(links[0].receive)
    links[0].close()
    assert waiting() is None


class Relay:
    """Somebody between the two: keeps what passes, and may change a byte of it."""

    def __init__(self, change_after: int = -1) -> None:
        self.seen = bytearray()
        self._change_after = change_after
        self._ends = [socket.socketpair() for _ in range(2)]
        self.driver, self.task = self._ends[0][0], self._ends[1][0]
        for each in (self.driver, self.task):
            each.settimeout(5)
        self._threads = [
            threading.Thread(target=self._pass_on, args=(self._ends[source][1], self._ends[1 - source][1]))
            for source in (0, 1)
        ]

    def __enter__(self) -> Relay:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        for each in (self.driver, self.task):
            each.close()
        for thread in self._threads:
            thread.join()
        for pair in self._ends:
            pair[1].close()

    def change_next(self) -> None:
        self._change_after = len(self.seen)

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        # An end that is closed with bytes still unread resets the connection: for us too that is its end.
        with contextlib.suppress(ConnectionError):
            while data := bytearray(source.recv(65536)):
                # What the task says, that is: TLS itself may still have something to tell it.
                if self._change_after >= 0 and source is self._ends[1][1]:
                    data[len(data) // 2] ^= 1
                    self._change_after = -1
                self.seen += data
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)


def test_nobody_on_the_way_can_read_it(certificate) -> None:
    with Relay() as relay:
        driver, task = secured((relay.driver, relay.task), certificate)
        Link(task).send({"kind": "result", "name": "weights"}, [b"confidential" * 10])
        assert Link(driver).receive() is not None
        assert len(relay.seen) > 500
        for word in (b"result", b"weights", b"confidential", b"FSTL"):
            assert word not in relay.seen


def test_nobody_on_the_way_can_change_it(certificate) -> None:
    with Relay() as relay:
        driver, task = secured((relay.driver, relay.task), certificate)
        relay.change_next()
        Link(task).send({"kind": "result"}, [bytes(1000)])
        with pytest.raises(WireError, match="damaged"):
            Link(driver).receive()


def test_another_certificate_is_refused(sockets, certificate) -> None:
    """Made by the same program, in the same way, for another job."""
    driver = meanwhile(Certificate().accept, sockets[0])
    with pytest.raises(WireError, match="TLS could not be agreed on"):
        join(sockets[1], certificate.text)
    assert isinstance(driver(), WireError)


def test_the_certificate_is_pinned_whoever_else_is_trusted(sockets, certificate, monkeypatch) -> None:
    """The comparison does not lean on OpenSSL's opinion of the chain."""
    plain = tls._context

    def trusting(protocol: int) -> ssl.SSLContext:
        context = plain(protocol)
        if protocol == ssl.PROTOCOL_TLS_CLIENT:
            context.check_hostname = False
            context.load_verify_locations(cadata=other.text)
        return context

    other = Certificate()
    monkeypatch.setattr(tls, "_context", trusting)
    driver = meanwhile(other.accept, sockets[0])
    with pytest.raises(WireError, match="another certificate"):
        join(sockets[1], certificate.text)
    driver()


@pytest.mark.parametrize(
    "foreign", [b"GET / HTTP/1.1\r\nHost: driver\r\n\r\n", b"FSH1" + bytes(64), bytes(200), b"\x16\x03\x01\xff\xff" * 9]
)
def test_who_does_not_speak_tls_is_refused(sockets, certificate, foreign: bytes) -> None:
    sockets[1].sendall(foreign)
    sockets[1].shutdown(socket.SHUT_WR)
    with pytest.raises(WireError, match="TLS"):
        certificate.accept(sockets[0])


def test_old_tls_is_refused(sockets, certificate) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cadata=certificate.text)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    driver = meanwhile(certificate.accept, sockets[0])
    with pytest.raises(WireError):
        TlsSocket(sockets[1], context, is_server=False)
    assert "version" in str(driver()) or "protocol" in str(driver())


def test_a_driver_without_tls_is_refused_and_says_what_it_heard(sockets, certificate) -> None:
    driver = meanwhile(challenge, sockets[0], SECRET)
    with pytest.raises(WireError, match="TLS"):
        join(sockets[1], certificate.text)
    assert "a TLS greeting" in str(driver())


def test_a_byte_now_and_then_does_not_win_time(sockets, certificate) -> None:
    is_over = threading.Event()

    def drip() -> None:
        for byte in b"\x16\x03\x01\x02\x00" + bytes(100):
            if is_over.wait(0.05):
                return
            sockets[1].send(bytes([byte]))

    dripping = meanwhile(drip)
    sockets[0].settimeout(0.3)
    start = time.monotonic()
    with pytest.raises(TimeoutError):
        certificate.accept(sockets[0])
    took_seconds = time.monotonic() - start
    is_over.set()
    dripping()
    assert took_seconds < 3


def test_the_key_is_on_disk_only_encrypted_and_for_a_moment(tmp_path: Path, monkeypatch) -> None:
    found: dict[str, Any] = {}
    plain = ssl.SSLContext.load_cert_chain

    def load(self: ssl.SSLContext, path: str, **options: Any) -> None:
        found.update(text=Path(path).read_text(), mode=stat.S_IMODE(os.stat(path).st_mode))
        plain(self, path, **options)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", load)
    made = Certificate()
    assert list(tmp_path.iterdir()) == []
    assert found["mode"] == 0o600
    assert "BEGIN ENCRYPTED PRIVATE KEY" in found["text"]
    assert "PRIVATE" not in made.text


def test_each_job_has_its_own() -> None:
    assert Certificate().text != Certificate().text


def test_without_cryptography_the_error_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(ImportError, match=r"pip install 'firesteel\[tls\]'"):
        Certificate()


def test_tasks_do_without_cryptography(sockets, certificate, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    secured(sockets, certificate)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, False),
        ({"spark.authenticate": "true"}, False),  # proves who is who, and encrypts nothing; so do we, always
        ({"spark.network.crypto.enabled": "true"}, True),
        ({"spark.network.crypto.enabled": "false"}, False),
        ({"spark.authenticate": "true", "spark.authenticate.enableSaslEncryption": "TRUE"}, True),
        ({"spark.ssl.rpc.enabled": "true"}, True),
        ({"spark.ssl.enabled": "true"}, True),
        ({"spark.ssl.ui.enabled": "true"}, False),
        ({"spark.firesteel.tls": "true"}, True),
        ({"spark.firesteel.tls": "false", "spark.network.crypto.enabled": "true"}, False),
    ],
)
def test_it_follows_sparks_own_encryption(settings: dict[str, str], expected: bool) -> None:
    assert wanted(settings.get) is expected


def test_a_setting_that_is_neither() -> None:
    with pytest.raises(PlanError, match=r"spark\.firesteel\.tls must be true or false"):
        wanted({"spark.firesteel.tls": "yes"}.get)
