"""What crosses a connection arrives as it was sent; what is not ours is refused before anything is made of it."""

from __future__ import annotations

import hmac
import json
import socket
import struct
import threading
import time
import tracemalloc
import zlib
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.cluster import wire
from firesteel.cluster.wire import Link, WireError, answer_challenge, challenge

SECRET = b"the job's own"

scalars = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(max_size=20)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)
messages = st.dictionaries(st.text(max_size=10), values, max_size=5)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    left.settimeout(5)
    right.settimeout(5)
    with left, right:
        yield left, right


@given(st.lists(st.tuples(messages, st.lists(st.binary(max_size=300), max_size=3)), min_size=1, max_size=4))
@settings(deadline=None)
def test_messages_arrive_whole_and_in_order(sent: list[tuple[dict, list[bytes]]]) -> None:
    left, right = socket.socketpair()
    with left, right:
        for message, buffers in sent:
            Link(left).send(message, buffers)
        link = Link(right)
        assert [link.receive() for _ in sent] == sent
        left.close()
        assert link.receive() is None


def test_buffers_larger_than_the_sockets_own(ends) -> None:
    data = bytearray(range(256)) * 40_000  # 10 MB
    sender = threading.Thread(target=Link(ends[0]).send, args=({"kind": "result"}, [data, b""]))
    sender.start()
    received = Link(ends[1]).receive()
    sender.join()
    assert received == ({"kind": "result"}, [data, bytearray()])


def test_threads_do_not_mix_their_messages(ends) -> None:
    link = Link(ends[0])

    def send(number: int) -> None:
        for _ in range(50):
            link.send({"n": number}, [bytes([number]) * 5000])

    threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    other = Link(ends[1])
    for _ in range(200):
        message, (data,) = other.receive()
        assert data == bytes([message["n"]]) * 5000
    for thread in threads:
        thread.join()


def frame(text: bytes, lengths: list[int] | None = None, json_bytes: int | None = None, **wrong: int) -> bytes:
    """A frame as the documentation of its format says, with what is wrong about it."""
    body = b"".join(struct.pack("!Q", length) for length in lengths or []) + text
    size = len(text) if json_bytes is None else json_bytes
    header = struct.pack("!4s?IHI", b"FSTL", False, size, len(lengths or []), wrong.get("body", zlib.crc32(body)))
    return header + struct.pack("!I", wrong.get("header", zlib.crc32(header))) + body


@pytest.mark.parametrize(
    ("foreign", "said"),
    [
        (b"GET / HTTP/1.1\r\nHost: driver\r\n\r\n", "an HTTP request"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40), "a TLS greeting"),
        (frame(b"{}", json_bytes=0xFFFFFFFF), "announced"),
        (frame(b"{}", [1 << 62]), "announced"),
        (frame(b"{}", [1 << 35, 1 << 35, 1]), "announced"),
    ],
    ids=["http", "tls", "huge JSON", "huge buffer", "buffers that are huge together"],
)
def test_foreign_bytes_are_refused_before_anything_is_allocated(ends, foreign: bytes, said: str) -> None:
    ends[0].sendall(foreign)
    tracemalloc.start()
    with pytest.raises(WireError, match=said):
        Link(ends[1]).receive()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000


def test_a_length_that_is_a_lie_costs_nothing(ends) -> None:
    """A gigabyte is announced, and a kilobyte comes."""
    ends[0].sendall(frame(b"{}", [1 << 30]) + bytes(1024))
    ends[0].close()
    tracemalloc.start()
    with pytest.raises(WireError, match="middle"):
        Link(ends[1]).receive()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_without_memory_for_it_a_message_is_refused(ends, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(bytearray):
        def __iadd__(self, other: object) -> Full:
            raise MemoryError

    monkeypatch.setattr(wire, "bytearray", Full, raising=False)
    ends[0].sendall(frame(b"{}"))
    with pytest.raises(WireError, match="no memory"):
        Link(ends[1]).receive()


def test_what_would_be_refused_is_not_sent(ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_MAX_JSON_BYTES", 100)
    monkeypatch.setattr(wire, "_MAX_BUFFER_BYTES", 100)
    link = Link(ends[0])
    for message, buffers in (({"text": "x" * 100}, []), ({}, [bytes(60), bytes(60)]), ({}, [b""] * 70_000)):
        with pytest.raises(WireError, match="more than one may hold"):
            link.send(message, buffers)
    link.send({"still": "fine"})
    assert Link(ends[1]).receive() == ({"still": "fine"}, [])


@pytest.mark.parametrize("text", [b"[1, 2]", b"{", b'"kind"', b"\xff", b"[" * 100_000, b"", '{"a":1}'.encode("utf-16")])
def test_only_json_objects_are_messages(ends, text: bytes) -> None:
    ends[0].sendall(frame(text))
    with pytest.raises(WireError):
        Link(ends[1]).receive()


def test_a_wrong_checksum_is_noticed(ends) -> None:
    ends[0].sendall(frame(json.dumps({"kind": "done"}).encode(), body=1))
    with pytest.raises(WireError, match="damaged"):
        Link(ends[1]).receive()


def test_a_wrong_header_is_noticed_before_its_lengths_are_believed(ends) -> None:
    ends[0].sendall(frame(b"{}", json_bytes=1000, header=1))
    with pytest.raises(WireError, match="header"):
        Link(ends[1]).receive()


def test_over_a_network_buffers_have_a_checksum(monkeypatch: pytest.MonkeyPatch) -> None:
    """TCP's own is weak, and a model with one wrong weight is the worst that can arrive."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        left = socket.create_connection(server.getsockname(), 5)
        right, _ = server.accept()
    with left, right:
        right.settimeout(5)
        link, other = Link(left), Link(right)
        link.send({"kind": "result"}, [b"weights", b"", bytearray(700_000)])
        assert other.receive() == ({"kind": "result"}, [b"weights", b"", bytearray(700_000)])
        plain = zlib.crc32
        monkeypatch.setattr(zlib, "crc32", lambda data, start=0: plain(data, start) ^ (len(data) == 7))
        link.send({"kind": "result"}, [b"weights"])
        monkeypatch.undo()
        with pytest.raises(WireError, match="a buffer was damaged"):
            other.receive()


@given(st.integers(1, 10_000))
@settings(deadline=None)
def test_a_truncated_message_is_not_an_end(cut: int) -> None:
    left, right = socket.socketpair()
    with left, right:
        whole, other = socket.socketpair()
        with whole, other:
            Link(whole).send({"kind": "result"}, [b"x" * 100])
            data = other.recv(10_000)
        left.sendall(data[: 1 + cut % (len(data) - 1)])
        left.close()
        with pytest.raises(WireError, match="middle"):
            Link(right).receive()


def test_the_last_word_never_waits(ends) -> None:
    """An abort to a rank that reads nothing any more must not hold up the driver."""
    ends[0].settimeout(None)
    link = Link(ends[0])

    def fill() -> None:
        with pytest.raises(OSError):  # noqa: PT011 - closed under it, whichever way that shows
            link.send({}, [bytes(50 << 20)])

    stuck = threading.Thread(target=fill)
    stuck.start()
    speaker = threading.Thread(target=link.send_last, args=({"kind": "abort"},))
    speaker.start()
    speaker.join(5)
    assert not speaker.is_alive()
    stuck.join(5)
    assert not stuck.is_alive()


def test_the_last_word_never_waits_on_a_socket_with_a_timeout(ends) -> None:
    """Such a socket waits for room before it sends, however it is asked."""
    ends[0].settimeout(0.01)
    link = Link(ends[0])
    with pytest.raises(TimeoutError):
        link.send({}, [bytes(50 << 20)])
    ends[0].settimeout(60)
    start = time.monotonic()
    link.send_last({"kind": "abort"})
    assert time.monotonic() - start < 5
    assert ends[0].fileno() < 0


def shake(ends, task_secret: bytes, driver_secret: bytes = SECRET) -> tuple[bool, BaseException | None]:
    """The handshake's two outcomes: does the driver accept, and what does the task raise."""
    raised: list[BaseException | None] = [None]

    def task() -> None:
        try:
            answer_challenge(ends[1], task_secret)
        except WireError as error:
            raised[0] = error

    thread = threading.Thread(target=task)
    thread.start()
    accepted = challenge(ends[0], driver_secret)
    if not accepted:
        ends[0].close()
    thread.join()
    return accepted, raised[0]


def test_who_knows_the_secret_is_let_in(ends) -> None:
    assert shake(ends, SECRET) == (True, None)


@pytest.mark.parametrize("wrong", [b"", b"the job's owm", SECRET + b" "])
def test_who_does_not_is_refused(ends, wrong: bytes) -> None:
    accepted, error = shake(ends, wrong)
    assert not accepted
    assert isinstance(error, WireError)


def test_a_false_driver_is_found_out(ends) -> None:
    """Whoever answers at the driver's port must know the secret too: it only sees a proof for its own question."""
    ends[0].sendall(b"FSH1" + bytes(32))
    thread = threading.Thread(target=lambda: (ends[0].recv(68), ends[0].sendall(b"FSH1" + bytes(32))))
    thread.start()
    with pytest.raises(WireError, match="secret"):
        answer_challenge(ends[1], SECRET)
    thread.join()


def test_a_proof_cannot_be_sent_back(ends) -> None:
    """The driver's question, mirrored by somebody without the secret, is no answer."""

    def mirror() -> None:
        question = ends[1].recv(36)
        ends[1].sendall(question + question[4:])

    mirrored = threading.Thread(target=mirror)
    mirrored.start()
    assert not challenge(ends[0], SECRET)
    mirrored.join()


def test_a_proof_is_good_for_one_connection_only(ends) -> None:
    """What a task once answered, played back: the driver asks something else each time."""
    heard: list[bytes] = []

    class Tapped:
        def __getattr__(self, name: str) -> object:
            return getattr(ends[0], name)

        def recv_into(self, buffer: memoryview) -> int:
            count = ends[0].recv_into(buffer)
            heard.append(bytes(buffer[:count]))
            return count

    assert shake((Tapped(), ends[1]), SECRET) == (True, None)
    ends[1].sendall(b"".join(heard))
    assert not challenge(ends[0], SECRET)


@pytest.mark.parametrize(
    ("said", "named"),
    [
        (b"GET / HTTP/1.1\r\n", "an HTTP request"),
        (b"\x16\x03\x01\x02\x00", "a TLS greeting"),
        (b"\x00", "foreign bytes"),
        (b"FSTL" + bytes(100), "foreign bytes"),
    ],
)
def test_who_speaks_another_language_is_refused_at_the_first_word(ends, said: bytes, named: str) -> None:
    """At once, and not when it has sent enough, or when its time is over."""
    ends[1].sendall(said)
    with pytest.raises(WireError, match=named):
        challenge(ends[0], SECRET)
    ends[0].sendall(said)
    ends[1].recv(36)
    with pytest.raises(WireError, match=named):
        answer_challenge(ends[1], SECRET)


def test_what_foreigners_say_is_shown_escaped(ends) -> None:
    """Nobody writes a second line into our log."""
    ends[1].sendall(b"\nERROR root: all is lost\x1b[2J")
    with pytest.raises(WireError) as refused:
        challenge(ends[0], SECRET)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 100


@pytest.mark.parametrize("silent", [b"", b"FSH1", b"FSH1" + bytes(63)])
def test_who_leaves_half_way_is_refused(ends, silent: bytes) -> None:
    ends[1].sendall(silent)
    ends[1].shutdown(socket.SHUT_WR)
    with pytest.raises(WireError, match="closed"):
        challenge(ends[0], SECRET)


def test_a_byte_now_and_then_does_not_win_time(ends) -> None:
    """A slow loris: each byte in good time, all of them never."""
    is_over = threading.Event()

    def drip() -> None:
        for byte in b"FSH1" + bytes(64):
            if is_over.wait(0.05):
                return
            ends[1].send(bytes([byte]))

    dripping = threading.Thread(target=drip)
    dripping.start()
    ends[0].settimeout(0.3)
    start = time.monotonic()
    with pytest.raises(TimeoutError):
        challenge(ends[0], SECRET)
    took_seconds = time.monotonic() - start
    is_over.set()
    dripping.join()
    assert took_seconds < 3


def test_proofs_are_compared_in_constant_time(ends, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    plain = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append((a, b)) or plain(a, b))
    shake(ends, SECRET)
    assert len(compared) == 2  # one on each side


def test_hearing_counts_also_in_the_middle_of_a_message(ends) -> None:
    link = Link(ends[1])
    before = link.heard
    ends[0].sendall(frame(b"{}", [10]) + b"12345")
    ends[1].settimeout(0.2)
    with pytest.raises(TimeoutError):
        link.receive()
    assert link.heard > before
