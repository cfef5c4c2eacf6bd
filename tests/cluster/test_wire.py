"""What crosses a connection arrives as it was sent; what is not ours is refused before anything is made of it."""

from __future__ import annotations

import hmac
import json
import socket
import struct
import threading
import tracemalloc
import zlib
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


HUGE = 0xFFFFFFFF


@pytest.mark.parametrize(
    "foreign",
    [
        b"GET / HTTP/1.1\r\nHost: driver\r\n\r\n",
        struct.pack("!4sIHI", b"FSTL", HUGE, 0, 0),  # a header of ours that announces 4 GB of JSON
        struct.pack("!4sIHI", b"FSTL", 2, 1, zlib.crc32(b"{}")) + struct.pack("!Q", 1 << 62) + b"{}",
    ],
    ids=["http", "huge JSON", "huge buffer"],
)
def test_foreign_bytes_are_refused_before_anything_is_allocated(ends, foreign: bytes) -> None:
    ends[0].sendall(foreign)
    tracemalloc.start()
    with pytest.raises(WireError):
        Link(ends[1]).receive()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000


def frame(text: bytes, checksum: int | None = None) -> bytes:
    return struct.pack("!4sIHI", b"FSTL", len(text), 0, zlib.crc32(text) if checksum is None else checksum) + text


@pytest.mark.parametrize("text", [b"[1, 2]", b"{", b'"kind"', b"\xff"])
def test_only_json_objects_are_messages(ends, text: bytes) -> None:
    ends[0].sendall(frame(text))
    with pytest.raises(WireError):
        Link(ends[1]).receive()


def test_a_wrong_checksum_is_noticed(ends) -> None:
    ends[0].sendall(frame(json.dumps({"kind": "done"}).encode(), checksum=1))
    with pytest.raises(WireError, match="damaged"):
        Link(ends[1]).receive()


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
    nonce = bytes(32)
    ends[0].sendall(nonce)
    thread = threading.Thread(target=lambda: (ends[0].recv(64), ends[0].sendall(bytes(32))))
    thread.start()
    with pytest.raises(WireError, match="secret"):
        answer_challenge(ends[1], SECRET)
    thread.join()


def test_a_proof_cannot_be_sent_back(ends) -> None:
    """The driver's question, mirrored by somebody without the secret, is no answer."""
    mirrored = threading.Thread(target=lambda: ends[1].sendall(ends[1].recv(32) * 2))
    mirrored.start()
    assert not challenge(ends[0], SECRET)
    mirrored.join()


def test_proofs_are_compared_in_constant_time(ends, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    plain = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append((a, b)) or plain(a, b))
    shake(ends, SECRET)
    assert len(compared) == 2  # one on each side


def test_hearing_counts_also_in_the_middle_of_a_message(ends) -> None:
    link = Link(ends[1])
    before = link.heard
    ends[0].sendall(struct.pack("!4sIHI", b"FSTL", 2, 1, zlib.crc32(b"{}")) + struct.pack("!Q", 10) + b"{}12345")
    ends[1].settimeout(0.2)
    with pytest.raises(TimeoutError):
        link.receive()
    assert link.heard > before
