"""Whatever arrives, the parser of frames says no in its own words, in little memory, or finds what was sent."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.cluster.wire import Link, WireError, answer_challenge, challenge

SECRET = b"the job's own"

quick = settings(deadline=None, max_examples=200)


class Script:
    """A connection that says what it was told to, in pieces of these sizes, and keeps what it hears."""

    def __init__(self, data: bytes = b"", sizes: list[int] | None = None) -> None:
        self.heard = bytearray()
        self.received = 0
        self._data = memoryview(data)
        self._sizes = sizes or []

    def recv_into(self, buffer: memoryview) -> int:
        size = self._sizes.pop(0) if self._sizes else len(buffer)
        piece = self._data[: min(size, len(buffer))]
        buffer[: len(piece)] = piece
        self._data = self._data[len(piece) :]
        self.received += len(piece)
        return len(piece)

    def sendall(self, data: bytes) -> None:
        self.heard += data

    def gettimeout(self) -> None:
        return None


def read(data: bytes, sizes: list[int] | None = None) -> list[Any]:
    """Every message, and how it ended: ``None``, or the error."""
    link = Link(Script(data, sizes))
    found: list[Any] = []
    while True:
        try:
            received = link.receive()
        except WireError as error:
            return [*found, str(error)]
        found.append(received)
        if received is None:
            return found


def written(message: dict[str, Any], buffers: list[bytes], *, is_summed: bool) -> bytes:
    script = Script()
    link = Link(script)
    link._sums_buffers = is_summed
    link.send(message, buffers)
    return bytes(script.heard)


def crafted(magic: bytes, is_summed: bool, json_bytes: int, count: int, body: bytes) -> bytes:
    """What somebody sends who knows the format, and lies: all checksums are right."""
    covered = body[: count * 8 + json_bytes]
    header = struct.pack("!4s?IHI", magic, is_summed, json_bytes, count, zlib.crc32(covered))
    return header + struct.pack("!I", zlib.crc32(header)) + body


scalars = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(max_size=10)
bodies = st.dictionaries(st.text(max_size=5), scalars | st.lists(scalars, max_size=3), max_size=3)
frames = st.builds(written, bodies, st.lists(st.binary(max_size=50), max_size=3), is_summed=st.booleans())
lies = st.builds(
    crafted,
    st.sampled_from([b"FSTL", b"FSTM"]),
    st.booleans(),
    st.integers(0, 40) | st.integers(0, 2**32 - 1),
    st.integers(0, 4) | st.integers(0, 2**16 - 1),
    st.binary(max_size=100) | st.sampled_from([b"{}", bytes(8) + b"{}", b"\xff" * 8 + b"{}", b'{"a":' * 20]),
)


@given(st.lists(st.binary(max_size=60) | frames | lies, max_size=4), st.integers(0, 300))
@quick
def test_it_raises_nothing_but_its_own_error(parts: list[bytes], cut: int) -> None:
    """Anything else raised in ``receive`` fails this test. What it returns is whole messages."""
    data = b"".join(parts)
    for message in read(data[: max(cut, len(data) // 2)])[:-1]:
        assert isinstance(message[0], dict)
        assert all(isinstance(buffer, bytearray) for buffer in message[1])


@given(st.lists(frames, min_size=1, max_size=3), st.binary(max_size=30), st.lists(st.integers(1, 40), max_size=60))
@quick
def test_it_does_not_matter_how_the_stream_is_cut(whole: list[bytes], rest: bytes, sizes: list[int]) -> None:
    data = b"".join(whole) + rest
    assert read(data, sizes) == read(data)
    assert read(data, [1] * len(data)) == read(data)
    assert len(read(b"".join(whole))) == len(whole) + 1


@given(bodies, st.lists(st.binary(min_size=1, max_size=50), min_size=1, max_size=3), st.data(), st.integers(1, 255))
@quick
def test_a_changed_byte_is_noticed(message: dict, buffers: list[bytes], data: st.DataObject, change: int) -> None:
    """Any one, in any place; what follows is never taken for a message."""
    frame = bytearray(written(message, buffers, is_summed=True))
    frame[data.draw(st.integers(0, len(frame) - 1))] ^= change
    (outcome,) = read(bytes(frame) + written({}, [], is_summed=True))
    assert isinstance(outcome, str)


@given(bodies, st.lists(st.binary(max_size=50), max_size=3), st.data(), st.integers(1, 255))
@quick
def test_without_a_checksum_of_buffers_all_else_is_noticed(message, buffers, data, change: int) -> None:
    frame = bytearray(written(message, buffers, is_summed=False))
    end = len(frame) - sum(map(len, buffers))
    frame[data.draw(st.integers(0, end - 1))] ^= change
    (outcome,) = read(bytes(frame))
    assert isinstance(outcome, str)


@given(st.integers(0, 2**26), st.lists(st.integers(0, 2**36), max_size=3), st.integers(0, 2**21))
@settings(deadline=None, max_examples=40)
def test_memory_grows_with_what_arrives(json_bytes: int, lengths: list[int], sent: int) -> None:
    """Not with what was announced."""
    lies = b"".join(struct.pack("!Q", length) for length in lengths)
    honest = crafted(b"FSTL", False, 2, len(lengths), lies + b"{}") + bytes(sent)
    dishonest = crafted(b"FSTL", False, json_bytes, len(lengths), lies) + bytes(sent)
    for data in (honest, dishonest):
        script = Script(data)
        link = Link(script)
        tracemalloc.start()
        try:
            link.receive()
        except WireError:
            pass
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        # An eighth, and all of it once more where JSON is taken apart; a chunk; the interpreter's own.
        assert peak < 2.25 * script.received + (256 << 10) + 100_000


@given(st.binary(max_size=200) | st.binary(min_size=64, max_size=64).map(lambda data: b"FSH1" + data))
@quick
def test_nobody_guesses_a_proof(data: bytes) -> None:
    with contextlib.suppress(WireError):
        assert challenge(Script(data), SECRET) is False
    with pytest.raises(WireError):
        answer_challenge(Script(data), SECRET)
