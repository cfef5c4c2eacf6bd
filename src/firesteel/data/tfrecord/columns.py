"""Blocks of Example records as Arrow columns, and columns as records: no Python object per number.

``wire`` says where each feature lies. Here its lists are taken out of all records at once: where the values begin, how
many there are and what they are is worked out by NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from firesteel.core.errors import SchemaError
from firesteel.data.tfrecord.messages import messages
from firesteel.data.tfrecord.wire import Array, Block, Features, Misfit, Spans, Unusual, parse, varints_at, walk

__all__ = ["KINDS", "MOST_FEATURES", "Field", "Seen", "pack_list", "survey", "to_columns", "to_records"]

KINDS = {"bytes": "byte strings", "float": "floats", "int64": "integers"}
"""What a feature can hold, and how messages call it."""

MOST_FEATURES = 10_000
"""Beyond that nobody wants a column for each: names hold data, and to look at them one by one takes for ever."""

_T = TypeVar("_T")

_KIND_OF_TAG = {0x0A: "bytes", 0x12: "float", 0x1A: "int64"}
_TAG_OF_KIND = {kind: tag for tag, kind in _KIND_OF_TAG.items()}
_VALUE_TAG = 0x0A  # field 1 of a list: a byte string, or packed numbers
_TAGS = np.array(list(_KIND_OF_TAG), np.uint8)
_VARINT_BYTES = 10  # of the largest 64-bit number
_ALL_BITS = (1 << 64) - 1
_FEW_BYTES, _FEW_NUMBERS = 16, 16


@dataclass(frozen=True)
class Field:
    """A column, and the feature that it is made of.

    Attributes:
        name: of both.
        kind: one of ``KINDS``.
        type: Arrow's type of a value (of an element, for an array).
        is_array: whether a row has any number of values, else one.
        is_nullable: whether a record may lack the feature.
    """

    name: str
    kind: str
    type: pa.DataType
    is_array: bool
    is_nullable: bool = True

    @property
    def column_type(self) -> pa.DataType:
        """Arrow's type of the column."""
        return pa.list_(pa.field("element", self.type)) if self.is_array else self.type

    def __str__(self) -> str:
        return f"{'an array of' if self.is_array else 'one'} {self.type}"


@dataclass(frozen=True)
class Seen:
    """What one kind of values looked like in some records.

    Attributes:
        place: the first record with such values.
        is_single: whether each of these records has one value.
        is_text: whether all values are UTF-8; numbers are not.
    """

    place: int
    is_single: bool
    is_text: bool


def to_columns(block: Block, fields: Sequence[Field]) -> list[pa.Array]:
    """One column for each field, with a row for each record. Features without a field are not looked at.

    Raises:
        Misfit: a record that is no Example, or that does not fit the fields.
    """
    return _read(block, {field.name for field in fields}, lambda features: _columns(features, fields, len(block)))


def survey(block: Block) -> dict[str, dict[str, Seen]]:
    """What the records have: feature, kind, and how it looks. A feature that never has a kind is not there.

    Raises:
        Misfit: a record that is no Example.
    """
    return _read(block, None, _survey)


def _read(block: Block, wanted: Collection[str] | None, take: Callable[[Features], _T]) -> _T:
    """What ``take`` makes of the features: of those found at a walk if records are as usual, else by protobuf."""
    try:
        return take(walk(block, wanted))
    except Unusual:
        pass
    try:
        return take(parse(block, wanted))
    except Unusual as unusual:  # protobuf has let it pass, and written it in a way that we cannot read
        raise Misfit(unusual.place, "it cannot be read") from unusual


def _columns(features: Features, fields: Sequence[Field], row_count: int) -> list[pa.Array]:
    columns = []
    for field in fields:
        values = _unpack(features.data, features.spans.get(field.name))
        try:
            columns.append(_fit(values, field, row_count))
        except Misfit as misfit:
            raise Misfit(misfit.place, f"feature {field.name!r} {misfit.what}") from misfit
    return columns


def _survey(features: Features) -> dict[str, dict[str, Seen]]:
    if len(features.spans) > MOST_FEATURES:
        row = max(int(spans.rows[0]) for spans in features.spans.values())
        raise Misfit(row, f"by here there are more than {MOST_FEATURES:,} features; pass schema= with those to read")
    found = {}
    for name, spans in features.spans.items():
        kinds = {
            values.kind: Seen(int(values.rows[0]), bool((values.counts == 1).all()), _is_text(values))
            for values in _unpack(features.data, spans)
        }
        if kinds:
            found[name] = kinds
    return found


def to_records(columns: Sequence[pa.Array], fields: Sequence[Field]) -> Iterator[bytes]:
    """One record for each row. A null is a feature that the record does not have. Equal rows make equal bytes.

    Raises:
        SchemaError: a null inside an array, or a double beyond what 32 bits hold.
    """
    new = messages().envelope
    names = [field.name for field in fields]
    raws = [_features(column, field) for column, field in zip(columns, fields, strict=True)]
    for row in zip(*raws, strict=True):
        message = new()
        message.features.SetInParent()  # there also when it is empty, as TensorFlow has it
        feature = message.features.feature
        for name, raw in zip(names, row, strict=True):
            if raw is not None:
                feature[name] = raw
        yield message.SerializeToString(deterministic=True)  # sorted by name


def pack_list(kind: str, values: Any) -> bytes:
    """A feature with these values, an array of numbers or a sequence of bytes."""
    if kind == "bytes":
        return _bytes_feature([bytes(value) for value in values])
    if kind == "float":
        return _head(kind, 4 * len(values)) + np.asarray(values, "<f4").tobytes()
    numbers = np.asarray(values, np.int64)
    if len(numbers) <= _FEW_NUMBERS:  # NumPy's many small steps would take longer
        packed = b"".join([_varint(number & _ALL_BITS) for number in numbers.tolist()])
    else:
        packed = _to_varints(numbers)[0].tobytes()
    return _head(kind, len(packed)) + packed


# --- features to columns ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Values:
    """The values of one kind that a feature has in a block: ``counts[i]`` of them belong to the record ``rows[i]``."""

    kind: str
    rows: Array
    counts: Array
    values: pa.Array

    def row_of(self, value: int) -> int:
        """The record that has this value."""
        return int(self.rows[np.searchsorted(np.cumsum(self.counts), value, side="right")])


def _fit(found: Sequence[_Values], field: Field, row_count: int) -> pa.Array:
    for values in found:
        if values.kind != field.kind:
            raise Misfit(values.rows[0], f"holds {KINDS[values.kind]} where the schema has {field}")
    if not found:
        if row_count and not field.is_nullable:
            raise Misfit(0, "is missing, and the schema says that it is never null")
        return pa.nulls(row_count, field.column_type)
    (values,) = found
    absent = None
    if len(values.rows) < row_count:
        absent = np.ones(row_count, bool)
        absent[values.rows] = False
        if not field.is_nullable:
            raise Misfit(int(absent.argmax()), "is missing, and the schema says that it is never null")
    if field.is_array:
        counts = np.zeros(row_count + 1, np.int64)
        counts[values.rows + 1] = values.counts
        offsets, mask = pa.array(np.cumsum(counts), pa.int32()), None if absent is None else pa.array(absent)
        return pa.ListArray.from_arrays(offsets, _cast(values, field), type=field.column_type, mask=mask)
    if (values.counts != 1).any():
        at = int((values.counts != 1).argmax())
        what = f"has {values.counts[at]} values where the schema has {field}; make it an array in the schema"
        raise Misfit(values.rows[at], what)
    elements = _cast(values, field)
    if absent is None:
        return elements
    places = np.zeros(row_count, np.int64)
    places[values.rows] = np.arange(len(values.rows))
    return elements.take(pa.array(places, mask=absent))


def _cast(values: _Values, field: Field) -> pa.Array:
    """The values in the type that the schema wants."""
    if pa.types.is_boolean(field.type):
        return pa.array(values.values.to_numpy(zero_copy_only=False) != 0)
    try:
        return values.values.cast(field.type)
    except pa.ArrowInvalid:
        for at in range(len(values.values)):  # which one it was
            try:
                values.values[at : at + 1].cast(field.type)
            except pa.ArrowInvalid:
                what = f"has a value that does not fit into {field.type}"
                if values.kind == "bytes":
                    what = "has bytes that are not UTF-8 where the schema has strings; name it in binary_features"
                raise Misfit(values.row_of(at), what) from None
        raise


def _is_text(values: _Values) -> bool:
    if values.kind != "bytes":
        return False
    try:
        values.values.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _unpack(data: bytes, spans: Spans | None) -> list[_Values]:
    """The values of a feature, one entry for each kind that some record has.

    Raises:
        Unusual: a list that is not written as usual.
    """
    if spans is None:
        return []
    has_kind = spans.begins < spans.ends  # a feature without a byte has no list: as good as absent
    if not has_kind.all():
        spans = Spans(spans.rows[has_kind], spans.begins[has_kind], spans.ends[has_kind])
    if not len(spans.rows):
        return []
    lists = _Lists.of(data, spans)
    tags = lists.as_bytes[spans.begins]
    found = []
    for tag in np.unique(tags).tolist():
        chosen = lists if (tags == tag).all() else lists.where(tags == tag)
        counts, values = _DECODERS[_KIND_OF_TAG[tag]](chosen)
        found.append(_Values(_KIND_OF_TAG[tag], chosen.rows, counts, values))
    return found


@dataclass(frozen=True)
class _Lists:
    """Lists of one feature: an entry for each record that has one."""

    data: bytes
    as_bytes: Array  # the same, a number for each byte
    rows: Array  # which record
    lists: Array  # where its list begins,
    values: Array  # the list's only value (or packed values); where the list ends, if it has none or several
    ends: Array  # where the list ends
    is_single: Array  # whether it has such an only value

    @classmethod
    def of(cls, data: bytes, spans: Spans) -> _Lists:
        """Raises ``Unusual`` where a feature is more than one list, or has numbers that are not in one piece."""
        numbers = np.frombuffer(data, np.uint8)
        tags = numbers[spans.begins]
        size, lists = varints_at(numbers, spans.begins + 1)
        is_usual = np.isin(tags, _TAGS) & (lists + size == spans.ends)
        size, values = varints_at(numbers, lists + 1)
        starts_well = numbers.take(lists, mode="clip") == _VALUE_TAG
        is_single = starts_well & (values + size == spans.ends) & (lists < spans.ends)
        is_usual &= is_single | (lists == spans.ends) | (tags == _TAG_OF_KIND["bytes"])
        if not is_usual.all():
            raise Unusual(spans.rows[is_usual.argmin()])
        return cls(data, numbers, spans.rows, lists, np.where(is_single, values, spans.ends), spans.ends, is_single)

    def where(self, chosen: Array) -> _Lists:
        """Some of them."""
        parts = (self.rows, self.lists, self.values, self.ends, self.is_single)
        return _Lists(self.data, self.as_bytes, *(part[chosen] for part in parts))

    def payload(self) -> tuple[Array, Array]:
        """The bytes of the only values, joined, and how many each has."""
        begins, ends = self.values, self.ends
        sizes = ends - begins
        count, total, size = len(sizes), int(sizes.sum()), int(sizes[0])
        if count > 1 and (sizes == size).all():
            # Equally long and equally far apart, as in nearly every data set: columns of a table.
            step = int(begins[1] - begins[0])
            if step >= size and (np.diff(begins) == step).all():
                table = np.lib.stride_tricks.as_strided(
                    self.as_bytes[begins[0] :], (count, size), (step, 1), writeable=False
                )
                return np.ascontiguousarray(table).reshape(-1), sizes
        if total <= _FEW_BYTES * count:
            before = np.cumsum(sizes) - sizes
            return self.as_bytes[np.repeat(begins - before, sizes) + np.arange(total)], sizes
        parts = [self.data[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
        return np.frombuffer(b"".join(parts), np.uint8), sizes


def _decode_floats(lists: _Lists) -> tuple[Array, pa.Array]:
    data, sizes = lists.payload()
    if (sizes % 4).any():
        raise Unusual(lists.rows[(sizes % 4 != 0).argmax()])
    return sizes // 4, pa.Array.from_buffers(pa.float32(), len(data) // 4, [None, pa.py_buffer(data)])


def _decode_integers(lists: _Lists) -> tuple[Array, pa.Array]:
    data, sizes = lists.payload()
    is_last = data < 0x80  # the last byte of a number
    ends = np.cumsum(sizes)
    is_cut = sizes > 0
    if len(data):
        is_cut &= ~is_last[np.maximum(ends, 1) - 1]
    if is_cut.any():
        raise Unusual(lists.rows[is_cut.argmax()])
    until = np.concatenate(([0], np.cumsum(is_last)))  # how many numbers have ended before each byte
    counts = np.diff(until[ends], prepend=0)
    if is_last.all():  # small numbers, a byte each
        return counts, pa.array(data.astype(np.int64))
    lasts = np.flatnonzero(is_last)
    firsts = np.concatenate(([0], lasts[:-1] + 1))
    lengths = lasts - firsts + 1
    too_long = (lengths > _VARINT_BYTES) | ((lengths == _VARINT_BYTES) & (data[lasts] > 1))
    if too_long.any():
        raise Unusual(lists.rows[np.searchsorted(np.cumsum(counts), too_long.argmax(), side="right")])
    numbers = np.zeros(len(lasts), np.uint64)
    for index in range(int(lengths.max())):
        has = lengths > index
        byte = data[firsts[has] + index].astype(np.uint64) & np.uint64(0x7F)
        numbers[has] |= byte << np.uint64(7 * index)
    return counts, pa.array(numbers.view(np.int64))


def _decode_bytes(lists: _Lists) -> tuple[Array, pa.Array]:
    if lists.is_single.all():
        data, sizes = lists.payload()
        return np.ones(len(sizes), np.int64), _binary(data, sizes)
    from_string, decode_error = messages().bytes_list.FromString, messages().decode_error
    counts, values = np.ones(len(lists.rows), np.int64), []
    for index, (begin, end) in enumerate(zip(lists.lists.tolist(), lists.ends.tolist(), strict=True)):
        try:
            entries = from_string(lists.data[begin:end]).value
        except decode_error as error:
            raise Unusual(lists.rows[index]) from error
        counts[index] = len(entries)
        values.extend(entries)
    return counts, pa.array(values, pa.binary())


_DECODERS: Mapping[str, Callable[[_Lists], tuple[Array, pa.Array]]] = {
    "bytes": _decode_bytes,
    "float": _decode_floats,
    "int64": _decode_integers,
}


def _binary(data: Array, sizes: Array) -> pa.Array:
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), len(sizes), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


# --- columns to features ----------------------------------------------------------------------------------------------


def _features(column: pa.Array, field: Field) -> list[bytes | None]:
    """A feature for each row."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if field.is_array:
        counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
        elements = column.flatten()  # without those below a null
        if elements.null_count:
            raise SchemaError(
                f"column {field.name!r} has an array with a null in it, which TFRecord cannot hold; "
                "leave such elements out, or put a value in their place",
                column=field.name,
            )
    else:
        counts = pc.is_valid(column).to_numpy(zero_copy_only=False).astype(np.int64)
        elements = column.drop_null()
    ends = np.cumsum(counts)
    raws: list[bytes | None]
    if field.kind == "bytes":
        values = elements.cast(pa.binary()).to_pylist()
        raws = [
            _bytes_feature(values[end - count : end]) for end, count in zip(ends.tolist(), counts.tolist(), strict=True)
        ]
    else:
        data, ends = _pack_floats(elements, ends, field) if field.kind == "float" else _pack_integers(elements, ends)
        begins = [0, *ends.tolist()]
        kind = field.kind
        raws = [_head(kind, end - begin) + data[begin:end] for begin, end in pairwise(begins)]
    if column.null_count:
        raws = [raw if is_valid else None for raw, is_valid in zip(raws, pc.is_valid(column).to_pylist(), strict=True)]
    return raws


def _pack_floats(elements: pa.Array, ends: Array, field: Field) -> tuple[bytes, Array]:
    numbers = elements.to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        narrow = numbers.astype("<f4")
    if (np.isinf(narrow) & ~np.isinf(numbers)).any():
        raise SchemaError(
            f"column {field.name!r} has a value beyond what the 32-bit floats of TFRecord hold (3.4e38)",
            column=field.name,
        )
    return narrow.tobytes(), ends * 4


def _pack_integers(elements: pa.Array, ends: Array) -> tuple[bytes, Array]:
    data, sizes = _to_varints(elements.cast(pa.int64()).to_numpy(zero_copy_only=False))
    return data.tobytes(), np.concatenate(([0], np.cumsum(sizes)))[ends]


def _to_varints(numbers: Array) -> tuple[Array, Array]:
    """Integers as protobuf writes them, seven bits to a byte, and how many bytes each takes."""
    bits = numbers.astype(np.int64, copy=False).view(np.uint64)
    sizes = np.ones(len(bits), np.int64)
    for index in range(1, _VARINT_BYTES):
        sizes += bits >= np.uint64(1 << (7 * index))
    begins = np.cumsum(sizes) - sizes
    data = np.empty(int(sizes.sum()), np.uint8)
    for index in range(int(sizes.max(initial=0))):
        has = sizes > index
        byte = (bits[has] >> np.uint64(7 * index)) & np.uint64(0x7F)
        data[begins[has] + index] = byte.astype(np.uint8) | np.where(sizes[has] > index + 1, 0x80, 0).astype(np.uint8)
    return data, sizes


def _bytes_feature(values: Sequence[bytes]) -> bytes:
    entries = b"".join([part for value in values for part in (_value_head(len(value)), value)])
    return bytes((_TAG_OF_KIND["bytes"],)) + _varint(len(entries)) + entries


@lru_cache(4096)
def _head(kind: str, size: int) -> bytes:
    """What stands before ``size`` bytes of packed numbers: the list's tag and length, its entry's tag and length."""
    entry = _value_head(size) if size else b""
    return bytes((_TAG_OF_KIND[kind],)) + _varint(len(entry) + size) + entry


def _value_head(size: int) -> bytes:
    return bytes((_VALUE_TAG,)) + _varint(size)


def _varint(number: int) -> bytes:
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)
