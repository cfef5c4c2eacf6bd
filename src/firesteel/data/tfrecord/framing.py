"""TFRecord's framing: records of bytes one after the other, each with its length and two checksums.

A record is its length (8 bytes, little-endian), the masked CRC-32C of those 8 bytes, the data, and the masked CRC-32C
of the data. What lies in the data is nobody's business here. No Spark, no TensorFlow, no protobuf.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import secrets
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import IO, Any

import numpy as np

from firesteel.core.errors import PlanError, UnknownName, missing_extra
from firesteel.data.file import files_of
from firesteel.data.tfrecord.wire import Block

__all__ = [
    "BLOCK_BYTES",
    "COMPRESSIONS",
    "RecordError",
    "blocks_in",
    "check_compression",
    "frame",
    "open_whole",
    "read_records",
    "records_in",
    "write_records",
]

BLOCK_BYTES = 4 << 20
"""How much of a file is read, and turned into columns, at a time. Small integers grow eightfold on the way."""
COMPRESSIONS = ("gzip", "none")

_HEAD_BYTES, _TAIL_BYTES = 12, 4
_HEAD, _TAIL, _LENGTH = struct.Struct("<QI"), struct.Struct("<I"), struct.Struct("<Q")
_MOST_BYTES = (1 << 31) - 1
"""No protobuf message, and no cell of Spark's, can be larger. It also keeps a damaged length from asking for more."""
_MOST_LENGTHS = 4096
_MASK_DELTA = 0xA282EAD8
_GZIP = b"\x1f\x8b\x08"
_GZIP_LEVEL = 6

File = str | os.PathLike[str] | IO[bytes]


class RecordError(PlanError):
    """A TFRecord file that cannot be read on.

    Attributes:
        path: the file.
        offset: where the record begins, in bytes; of what comes out of the compression where there is one.
    """

    def __init__(self, message: str, *, path: str, offset: int) -> None:
        super().__init__(message)
        self.path = path
        self.offset = offset

    @classmethod
    def at(cls, path: str, offset: int, what: str) -> RecordError:
        """One sentence: the file, the record, what is wrong with it."""
        return cls(f"{path}, record at byte {offset}: {what}", path=path, offset=offset)


def read_records(file: File, *, compression: str | None = None, name: str | None = None) -> Iterator[bytes]:
    """The records of a file, in order, checksums verified.

    Args:
        file: a path (a URL such as ``s3://…`` does as well), or a stream opened for reading bytes, which is not closed.
        compression: ``"gzip"``, ``"none"``, or ``None`` to see from the file's first bytes.
        name: what messages call a stream.

    Raises:
        RecordError: a checksum that does not match, or a file that ends inside a record; it has the file and the
            record's offset. Records before it have been given out by then.
    """
    for block in blocks_in(file, compression=compression, name=name):
        yield from block.records()


def records_in(file: File, *, compression: str | None = None, name: str | None = None) -> Iterator[tuple[int, bytes]]:
    """As ``read_records``, each record after its offset."""
    for block in blocks_in(file, compression=compression, name=name):
        offsets = (block.offset_of(place) for place in range(len(block)))
        yield from zip(offsets, block.records(), strict=True)


def blocks_in(
    file: File, *, compression: str | None = None, name: str | None = None, block_bytes: int = BLOCK_BYTES
) -> Iterator[Block]:
    """As ``read_records``, many at a time: about ``block_bytes`` of the file, or one larger record."""
    check_compression(compression)
    if isinstance(file, (str, os.PathLike)):
        files, path = files_of(file)
        with files.open(path, "rb") as stream:
            yield from _blocks(stream, compression, name or os.fspath(file), block_bytes)
    else:
        yield from _blocks(file, compression, name or str(getattr(file, "name", "the stream")), block_bytes)


def write_records(file: File, records: Iterable[bytes], *, compression: str | None = None) -> int:
    """Write records, and say how many there were.

    A path gets its content at the end and whole: until then it is written under another name in the same folder, which
    is made if need be. A stream is not closed.

    Args:
        file: a path or URL, or a stream opened for writing bytes.
        records: any bytes.
        compression: ``"gzip"``, ``"none"``, or ``None`` to go by a path's end (``.gz``).
    """
    check_compression(compression)
    if isinstance(file, (str, os.PathLike)):
        is_gzip = compression == "gzip" or (compression is None and os.fspath(file).endswith(".gz"))
        with open_whole(file) as stream:
            return _write(stream, records, is_gzip)
    return _write(file, records, compression == "gzip")


@contextlib.contextmanager
def open_whole(file: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A stream whose bytes are in the file when the block ends well, and nowhere when it does not.

    They are written under another name first, which begins with a dot: readers pass such names over.
    """
    files, path = files_of(file)
    folder, slash, name = path.rpartition("/")
    part = f"{folder}{slash}.{name}.{secrets.token_hex(4)}.part"
    files.make_folder(folder or slash or ".")
    try:
        with files.open(part, "wb") as stream:
            yield stream
        files.move(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(part) if files.is_local else files.remove_tree(part)
        raise


def frame(record: bytes) -> bytes:
    """A record with its length and checksums, as it stands in the file."""
    if len(record) > _MOST_BYTES:
        raise PlanError(f"a record of {len(record)} bytes is too large; the most is {_MOST_BYTES}")
    length = _LENGTH.pack(len(record))
    return b"".join((length, _TAIL.pack(_masked(_crc()(length))), record, _TAIL.pack(_masked(_crc()(record)))))


def check_compression(compression: str | None) -> None:
    """``UnknownName`` for a compression that there is not."""
    if compression is not None and compression not in COMPRESSIONS:
        raise UnknownName("compression", compression, COMPRESSIONS)


@cache
def _crc() -> Callable[[bytes], int]:
    try:
        import google_crc32c
    except ImportError:
        raise missing_extra("google-crc32c", "tfrecord") from None
    found: Callable[[bytes], int] = google_crc32c.value
    return found


def _masked(crc: int) -> int:
    """A checksum as TFRecord stores it, so that the checksum of data which holds checksums is no special number."""
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


# --- writing ----------------------------------------------------------------------------------------------------------


def _write(stream: IO[bytes], records: Iterable[bytes], is_gzip: bool) -> int:
    count = 0
    with contextlib.ExitStack() as stack:
        if is_gzip:  # without name and time, so that equal records make equal files
            packed: Any = gzip.GzipFile("", "wb", _GZIP_LEVEL, stream, mtime=0)
            stream = stack.enter_context(packed)
        for record in records:
            stream.write(frame(record))
            count += 1
    return count


# --- reading ----------------------------------------------------------------------------------------------------------


def _blocks(stream: IO[bytes], compression: str | None, name: str, block_bytes: int) -> Iterator[Block]:
    chunk, _ = _fill(stream, b"", _HEAD_BYTES, name, 0)
    if compression == "gzip" or (compression is None and _is_gzip(chunk)):
        rest: Any = _Rest(chunk, stream)
        packed: Any = gzip.GzipFile(fileobj=rest)
        stream, chunk = packed, b""
        can_step_back = False  # gzip would begin anew
    else:
        can_step_back = stream.seekable()
    lengths: dict[bytes, int] = {}
    offset, wanted, is_end = 0, block_bytes, False
    while not is_end:
        if chunk and can_step_back:  # reading a piece again costs less than joining it to a whole block
            stream.seek(-len(chunk), os.SEEK_CUR)
            chunk = b""
        chunk, is_end = _fill(stream, chunk, wanted, name, offset, block_bytes)
        found = _scan(chunk, lengths)
        if found.starts:
            block = Block(chunk, np.array(found.starts), np.array(found.ends), offset)
            good = _count_good(block, found.sums)
            if good:
                yield Block(chunk, block.starts[:good], block.ends[:good], offset)
            if good < len(block):
                size = block.ends[good] - block.starts[good]
                what = f"corrupt: the checksum of its {size} bytes of data does not match"
                raise RecordError.at(name, block.offset_of(good), what)
        offset += found.until
        chunk = chunk[found.until :]
        if found.problem:
            if offset == 0:
                is_gzip = compression == "none" and chunk.startswith(_GZIP)
                found.problem += '; it looks like gzip: leave out compression="none"' if is_gzip else _STRANGE
            raise RecordError.at(name, offset, found.problem)
        wanted = max(block_bytes, found.needed)
    if 0 < len(chunk) < _HEAD_BYTES:
        raise RecordError.at(name, offset, f"truncated: {len(chunk)} bytes are left where a record's head has 12")
    if chunk:
        due, left = found.needed - _HEAD_BYTES - _TAIL_BYTES, len(chunk) - _HEAD_BYTES
        what = f"truncated: {due} bytes of data and a checksum of 4 should follow, {left} bytes are left"
        raise RecordError.at(name, offset, what)


_STRANGE = "; is it a TFRecord file at all?"


@dataclass
class _Scan:
    """The records in a chunk, whose data are yet to be verified.

    ``sums`` are the data's checksums, ``until`` is where the last record ends, ``needed`` how many bytes the next one
    has, ``problem`` what is wrong with it.
    """

    starts: list[int]
    ends: list[int]
    sums: list[int]
    until: int = 0
    needed: int = _HEAD_BYTES
    problem: str = ""


def _scan(chunk: bytes, lengths: dict[bytes, int]) -> _Scan:
    """Whole records from the beginning of a chunk. ``lengths`` are those of heads that have been verified.

    Records of the same length have the same head, so nearly all heads are known.
    """
    crc = _crc()
    found = _Scan([], [], [])
    add_start, add_end, add_sum = found.starts.append, found.ends.append, found.sums.append
    at, size = 0, len(chunk)
    while at + _HEAD_BYTES <= size:  # the one loop that runs once for each record
        head = chunk[at : at + _HEAD_BYTES]
        length = lengths.get(head)
        if length is None:
            length, head_sum = _HEAD.unpack(head)
            if _masked(crc(head[:8])) != head_sum:
                found.problem = "corrupt: the checksum of its length does not match"
                break
            if length > _MOST_BYTES:
                found.problem = f"it claims {length} bytes of data; the most is {_MOST_BYTES}"
                break
            if len(lengths) >= _MOST_LENGTHS:
                lengths.clear()
            lengths[head] = length
        start = at + _HEAD_BYTES
        end = start + length
        if end + _TAIL_BYTES > size:
            found.needed = end + _TAIL_BYTES - at
            break
        add_start(start)
        add_end(end)
        add_sum(crc(chunk[start:end]))
        at = end + _TAIL_BYTES
    found.until = at
    return found


def _count_good(block: Block, sums: list[int]) -> int:
    """How many records there are before the first whose data's checksum is another than the stored one."""
    data = np.frombuffer(block.data, np.uint8)
    stored = data[block.ends[:, None] + np.arange(_TAIL_BYTES)].view("<u4")[:, 0]
    crc = np.array(sums, np.uint32)
    is_good = (crc >> np.uint32(15) | crc << np.uint32(17)) + np.uint32(_MASK_DELTA) == stored
    return len(sums) if is_good.all() else int(is_good.argmin())


def _fill(
    stream: IO[bytes], chunk: bytes, wanted: int, name: str, offset: int, step: int = BLOCK_BYTES
) -> tuple[bytes, bool]:
    """The chunk with what follows in the stream, up to ``wanted`` bytes, and whether the stream has ended."""
    parts, have, is_end = [chunk] if chunk else [], len(chunk), False
    while have < wanted and not is_end:
        try:
            # In steps: a length that lies must not ask for more memory than the file has bytes.
            part = bytes(stream.read(min(step, wanted - have)))
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            what = "truncated" if isinstance(error, EOFError) else "corrupt"
            raise RecordError.at(name, offset, f"{what}: gzip cannot read on ({error})") from error
        if part:
            parts.append(part)
        have += len(part)
        is_end = not part
    return b"".join(parts), is_end  # which copies nothing where there is one part


def _is_gzip(head: bytes) -> bool:
    """Whether a file that begins so is gzip: it has gzip's first bytes, and they are not a record's good length."""
    if not head.startswith(_GZIP):
        return False
    return len(head) < _HEAD_BYTES or _HEAD.unpack(head)[1] != _masked(_crc()(head[:8]))


class _Rest:
    """A stream whose first bytes have been looked at already, whole again."""

    def __init__(self, first: bytes, stream: IO[bytes]) -> None:
        self._first = first
        self._stream = stream

    def read(self, count: int = -1) -> Any:
        if not self._first:
            return self._stream.read(count)
        size = len(self._first) if count < 0 else count
        found, self._first = self._first[:size], self._first[size:]
        return found if count >= 0 else found + self._stream.read()
