"""Where the features lie in a block of Example records, found for all records at once.

An Example on the wire is tags and lengths around the bytes that matter, and writers write it in the same way: one
``Features``, in it an entry for each feature, in that a key and a value. ``walk`` follows all records of a block side
by side, one entry at a time, with NumPy: no Python object per record, and nothing is copied. What a writer may do but
hardly one does (numbers one by one instead of packed, a list in pieces, fields unknown here, an uneven block) is left
to protobuf: ``parse`` reads each record with it and takes the features as protobuf itself would write them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from firesteel.data.tfrecord.messages import messages

__all__ = ["Array", "Block", "Features", "Misfit", "Spans", "Unusual", "parse", "varints_at", "walk"]

Array = npt.NDArray[Any]

_HEAD_BYTES = 12
_ENTRY, _KEY, _VALUE = 0x0A, 0x0A, 0x12  # tags: field 1 and 2, with a length
_TOO_LONG = 1 << 40  # stands for a length of more than five bytes: beyond every block
_FEW_ROWS, _MANY_STEPS = 8, 64
_FEW_NAMES, _SHORT_NAME = 8, 64


@dataclass(frozen=True)
class Block:
    """Some records of a file: ``data[starts[i]:ends[i]]`` is one. ``offset`` is where ``data`` begins in the file."""

    data: bytes
    starts: Array
    ends: Array
    offset: int = 0

    @classmethod
    def of(cls, records: Sequence[bytes]) -> Block:
        """These records, one after the other."""
        ends = np.cumsum(np.fromiter(map(len, records), np.int64, len(records)))
        return cls(b"".join(records), np.concatenate(([0], ends[:-1]))[: len(records)], ends)

    def __len__(self) -> int:
        return len(self.starts)

    def offset_of(self, place: int) -> int:
        """Where a record begins in the file, with its head."""
        return self.offset + int(self.starts[place]) - _HEAD_BYTES

    def records(self) -> Iterator[bytes]:
        """One by one."""
        for start, end in zip(self.starts.tolist(), self.ends.tolist(), strict=True):
            yield self.data[start:end]


@dataclass(frozen=True)
class Spans:
    """One feature: the record ``rows[i]`` has it between ``begins[i]`` and ``ends[i]``. Rows ascend."""

    rows: Array
    begins: Array
    ends: Array


@dataclass(frozen=True)
class Features:
    """By name, and the bytes that the spans speak of."""

    data: bytes
    spans: dict[str, Spans]


class Misfit(Exception):
    """A record that cannot be what was asked for: its place in the block, and what is wrong with it."""

    def __init__(self, place: int, what: str) -> None:
        super().__init__(place, what)
        self.place = int(place)
        self.what = what


class Unusual(Exception):
    """A record that is written in another way than nearly all are, or is broken: protobuf has to say which."""

    def __init__(self, place: int) -> None:
        super().__init__(place)
        self.place = int(place)


def walk(block: Block, wanted: Collection[str] | None) -> Features:
    """The features of a block whose records are written as usual; those of other names than ``wanted`` are left out.

    Raises:
        Unusual: some record is not.
    """
    data = np.frombuffer(block.data, np.uint8)
    names = None if wanted is None else {name.encode() for name in wanted}
    pieces: dict[bytes, list[tuple[Array, Array, Array]]] = {}
    rows = np.flatnonzero(block.starts < block.ends)  # a record without a byte is an Example without features
    ends = block.ends[rows]
    starts = block.starts[rows]
    size, cursor = varints_at(data, starts + 1) if len(rows) else (starts, starts)
    _require((data[starts] == _ENTRY) & (cursor + size == ends), rows)
    steps = 0
    while len(rows):
        has_more = cursor < ends
        if not has_more.all():
            rows, cursor, ends = rows[has_more], cursor[has_more], ends[has_more]
            if not len(rows):
                break
        steps += 1
        if steps > _MANY_STEPS and len(rows) < _FEW_ROWS:  # side by side is no gain for so few
            raise Unusual(rows[0])
        size, entry = varints_at(data, cursor + 1)
        entry_end = entry + size
        key_size, key = varints_at(data, entry + 1)
        value_at = key + key_size
        value_size, value = varints_at(data, value_at + 1)
        tags = (_byte(data, cursor) == _ENTRY) & (_byte(data, entry) == _KEY) & (_byte(data, value_at) == _VALUE)
        # Lengths are not negative, so with these two every place is inside the record.
        _require(tags & (entry_end <= ends) & (value + value_size == entry_end), rows)
        for name, same in _by_name(block.data, data, key, key_size, rows):
            if names is None or name in names:
                pieces.setdefault(name, []).append((rows[same], value[same], entry_end[same]))
        cursor = entry_end
    return Features(block.data, {name.decode(): _joined(parts) for name, parts in pieces.items()})


def parse(block: Block, wanted: Collection[str] | None) -> Features:
    """The same for any block, by protobuf.

    Raises:
        Misfit: some record is no Example.
    """
    from_string, decode_error = messages().example.FromString, messages().decode_error
    raws: dict[str, tuple[list[int], list[bytes]]] = {}
    for row, record in enumerate(block.records()):
        try:
            example = from_string(record)
        except decode_error as error:
            raise Misfit(row, "it is not a tf.train.Example") from error
        example.DiscardUnknownFields()
        for name, feature in example.features.feature.items():
            if wanted is None or name in wanted:
                rows, raw = raws.setdefault(name, ([], []))
                rows.append(row)
                raw.append(feature.SerializeToString())
    parts: list[bytes] = []
    spans = {}
    begin = 0
    for name, (rows, raw) in raws.items():
        ends = begin + np.cumsum(np.fromiter(map(len, raw), np.int64, len(raw)))
        spans[name] = Spans(np.array(rows), np.concatenate(([begin], ends[:-1])), ends)
        parts += raw
        begin = int(ends[-1])
    return Features(b"".join(parts), spans)


def varints_at(data: Array, at: Array) -> tuple[Array, Array]:
    """The lengths that stand at these places, and where they end. Places may be anywhere; what is not there is junk."""
    byte = _byte(data, at).astype(np.int64)
    end = at + 1
    more = byte >= 0x80
    if not more.any():
        return byte, end
    value = byte & 0x7F
    for index in range(1, 5):
        byte = np.where(more, _byte(data, at + index), 0).astype(np.int64)
        value |= (byte & 0x7F) << (7 * index)
        end = end + more
        more = byte >= 0x80
        if not more.any():
            return value, end
    return np.where(more, _TOO_LONG, value), end


def _byte(data: Array, at: Array) -> Array:
    return data.take(at, mode="clip")


def _require(is_usual: Array, rows: Array) -> None:
    if not is_usual.all():
        raise Unusual(rows[is_usual.argmin()])


def _by_name(text: bytes, data: Array, keys: Array, sizes: Array, rows: Array) -> Iterator[tuple[bytes, Array | slice]]:
    """Which of these keys are the same. Mostly all are, for writers keep an order."""
    left = np.arange(len(keys))
    for _ in range(_FEW_NAMES):
        key, size = int(keys[left[0]]), int(sizes[left[0]])
        if size > _SHORT_NAME:
            break
        name = text[key : key + size]
        is_same = sizes[left] == size
        for index, byte in enumerate(name):
            is_same &= _byte(data, keys[left] + index) == byte
        _check_name(name, rows[left[0]])
        if is_same.all():
            yield name, slice(None) if len(left) == len(keys) else left
            return
        yield name, left[is_same]
        left = left[~is_same]
    # Many names, or long ones: one by one, lest a file of nothing but names takes for ever.
    found: dict[bytes, list[int]] = {}
    for index in left.tolist():
        found.setdefault(text[keys[index] : keys[index] + sizes[index]], []).append(index)
    for name, same in found.items():
        _check_name(name, rows[same[0]])
        yield name, np.array(same)


def _check_name(name: bytes, row: int) -> None:
    try:
        name.decode()
    except UnicodeDecodeError:
        raise Unusual(row) from None


def _joined(parts: Sequence[tuple[Array, Array, Array]]) -> Spans:
    if len(parts) == 1:
        return Spans(*parts[0])
    rows, begins, ends = (np.concatenate(each) for each in zip(*parts, strict=True))
    order = np.argsort(rows, kind="stable")
    rows = rows[order]
    _require(rows[1:] != rows[:-1], rows)  # a name that a record has twice
    return Spans(rows, begins[order], ends[order])
