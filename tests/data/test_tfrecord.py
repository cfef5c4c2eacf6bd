"""TFRecord files as bytes, records and Arrow columns: no Spark, no TensorFlow."""

from __future__ import annotations

import gzip
import io
import os
import struct
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from firesteel.core.errors import PlanError, SchemaError, UnknownName
from firesteel.data.file import listdir, rmdir
from firesteel.data.tfrecord import (
    RecordError,
    example_schema,
    make_example,
    parse_example,
    read_records,
    write_records,
)
from firesteel.data.tfrecord.columns import Field, survey, to_columns, to_records
from firesteel.data.tfrecord.framing import frame, records_in
from firesteel.data.tfrecord.listing import File, escape, group
from firesteel.data.tfrecord.reading import read_blocks
from firesteel.data.tfrecord.wire import Block, Misfit

patient = settings(deadline=None, max_examples=200)

TYPES = {"float": pa.float32(), "int64": pa.int64(), "bytes": pa.binary()}


def file_of(records: Sequence[bytes]) -> bytes:
    return b"".join(frame(record) for record in records)


def read(data: bytes, **options: Any) -> list[bytes]:
    return list(read_records(io.BytesIO(data), name="some.tfrecord", **options))


# Framing


def test_a_record_looks_as_the_format_says() -> None:
    found = frame(b"123456789")
    assert found[:8] == struct.pack("<Q", 9)
    assert found[12:21] == b"123456789"
    # e3069283 is what CRC-32C's own test vector has; masked it is c78ab0e5.
    assert found[21:] == struct.pack("<I", 0xC78AB0E5)
    assert found[8:12] == frame(found[:8])[20:]


@patient
@given(st.lists(st.binary(max_size=300)), st.sampled_from([None, "gzip"]))
def test_records_come_back(records: list[bytes], compression: str | None) -> None:
    stream = io.BytesIO()
    assert write_records(stream, records, compression=compression) == len(records)
    assert read(stream.getvalue(), compression=compression) == records
    assert read(stream.getvalue()) == records  # gzip is seen from the first bytes


def test_records_larger_than_the_chunks_they_are_read_in(tmp_path: Path) -> None:
    records = [os.urandom(size) for size in (3 << 20, 5, (1 << 20) - 16, 1 << 20, 0)]
    for name in ("a.tfrecord", "a.tfrecord.gz"):
        assert write_records(tmp_path / name, records) == 5
        assert list(read_records(tmp_path / name)) == records
    assert gzip.decompress((tmp_path / "a.tfrecord.gz").read_bytes()) == (tmp_path / "a.tfrecord").read_bytes()
    offsets = [offset for offset, _ in records_in(tmp_path / "a.tfrecord")]
    assert offsets == np.cumsum([0, *(len(record) + 16 for record in records[:-1])]).tolist()


def test_a_file_that_fails_half_way_is_not_there(tmp_path: Path) -> None:
    def records() -> Any:
        yield b"first"
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        write_records(tmp_path / "a.tfrecord", records())
    assert list(tmp_path.iterdir()) == []


DAMAGES = {
    "the length": (5, "corrupt: the checksum of its length"),
    "the length's checksum": (9, "corrupt: the checksum of its length"),
    "the data": (14, "corrupt: the checksum of its 4 bytes of data"),
    "the data's checksum": (18, "corrupt: the checksum of its 4 bytes of data"),
}


@pytest.mark.parametrize("what", DAMAGES)
@pytest.mark.parametrize("number", [0, 2])
def test_damage_is_told_with_file_and_offset(what: str, number: int) -> None:
    data = bytearray(file_of([b"abcd"] * 3))
    place, message = DAMAGES[what]
    data[20 * number + place] ^= 1
    found = records_in(io.BytesIO(bytes(data)), name="some.tfrecord")
    assert [next(found)[0] for _ in range(number)] == [0, 20][:number]
    with pytest.raises(RecordError, match=rf"some.tfrecord, record at byte {20 * number}: {message}") as caught:
        next(found)
    assert (caught.value.path, caught.value.offset) == ("some.tfrecord", 20 * number)


@pytest.mark.parametrize("left", range(1, 20))
def test_every_truncation_is_told(left: int) -> None:
    data = file_of([b"abcd"] * 2)
    with pytest.raises(RecordError, match="record at byte 20: truncated: "):
        read(data[: 20 + left])
    with pytest.raises(RecordError, match=r"record at byte \d+: (truncated|corrupt): gzip cannot read on"):
        read(gzip.compress(data, mtime=0)[: -left - 8], compression="gzip")


def test_a_length_that_lies_costs_no_memory() -> None:
    for length, message in (((1 << 31) - 1, "truncated: "), (1 << 62, "it claims 4611686018427387904 bytes")):
        head = struct.pack("<Q", length)
        data = head + frame(head)[20:24] + b"x" * 1000  # with the right checksum
        tracemalloc.start()
        with pytest.raises(RecordError, match=message):
            read(data)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 4 << 20


def test_compression_that_is_not_there() -> None:
    with pytest.raises(RecordError, match="it looks like gzip"):
        read(gzip.compress(frame(b"x")), compression="none")
    with pytest.raises(RecordError, match=r"corrupt: gzip cannot read on \(Not a gzipped file"):
        read(frame(b"x"), compression="gzip")
    with pytest.raises(UnknownName, match="unknown compression 'zip'; there are: gzip, none"):
        read(b"", compression="zip")
    assert read(b"") == read(gzip.compress(b"")) == []


# Examples one at a time

floats = st.lists(st.floats(width=32, allow_nan=False), max_size=5).map(lambda values: np.array(values, np.float32))
integers = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20).map(lambda values: np.array(values, np.int64))
byte_strings = st.lists(st.binary(max_size=20), max_size=4)
features = st.dictionaries(st.text(max_size=4), st.one_of(floats, integers, byte_strings), max_size=4)


def kinds_of(feature: dict[str, Any]) -> dict[str, str]:
    return {name: "bytes" for name, values in feature.items() if isinstance(values, list)}


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        if isinstance(values, list):
            assert found[name] == values
        else:
            assert found[name].dtype == values.dtype
            assert found[name].tobytes() == values.tobytes()


@patient
@given(features)
def test_an_example_comes_back(feature: dict[str, Any]) -> None:
    record = make_example(feature, kinds_of(feature))
    assert_same(parse_example(record), feature)
    assert record == make_example(dict(reversed(feature.items())), kinds_of(feature))


def test_what_an_example_is_made_of() -> None:
    found = parse_example(
        make_example(
            {
                "flag": True,
                "number": 7,
                "half": 0.5,
                "text": "naïve",
                "several": ["a", b"\xff"],
                "image": np.arange(4, dtype=np.uint8).reshape(2, 2),
                "double": np.float64(1 / 3),
                "none": None,
                "whole": [1, 2],
                "empty": [],
            },
            kinds={"whole": "float", "empty": "int64"},
        )
    )
    assert {name: values if isinstance(values, list) else values.tolist() for name, values in found.items()} == {
        "flag": [1],
        "number": [7],
        "half": [0.5],
        "text": ["naïve".encode()],
        "several": [b"a", b"\xff"],
        "image": [0, 1, 2, 3],
        "double": [float(np.float32(1 / 3))],
        "whole": [1.0, 2.0],
        "empty": [],
    }
    assert {name: values.dtype for name, values in found.items() if not isinstance(values, list)} == {
        **dict.fromkeys(("half", "double", "whole"), np.float32),
        **dict.fromkeys(("flag", "number", "image", "empty"), np.int64),
    }


@pytest.mark.parametrize(
    ("value", "kinds", "message"),
    [
        ([], {}, "empty list of unknown kind"),
        ([[1], [2, 3]], {}, "'x' cannot be made of a list of list"),
        (object(), {}, "'x' cannot be made of a list of object"),
        (["a", 1], {}, "'x' cannot be made of a list of str"),
        (1.5, {"x": "int64"}, "'x' cannot be made of a list of float; an Example holds integers"),
        (2**63, {}, "'x' cannot be made of a list of int"),
        ("a", {"x": "float"}, "an Example holds floats"),
        (1, {"x": "bytes"}, "an Example holds byte strings"),
    ],
)
def test_what_no_example_is_made_of(value: Any, kinds: dict[str, str], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        make_example({"x": value}, kinds)
    with pytest.raises(UnknownName, match="unknown kind of feature 'int'; there are: bytes, float, int64"):
        make_example({"x": 1}, {"x": "int"})


# Blocks of Examples


def columns_as_dicts(records: Sequence[bytes]) -> list[dict[str, Any]]:
    """The records, by way of columns."""
    fields = [
        Field(name, kind, TYPES[kind], is_array=True)
        for name, kinds in survey(Block.of(records)).items()
        for kind in kinds
    ]
    columns = [column.to_pylist() for column in to_columns(Block.of(records), fields)]
    rows = [dict(zip((field.name for field in fields), row, strict=True)) for row in zip(*columns, strict=True)]
    dtypes = {field.name: {"float": np.float32, "int64": np.int64}.get(field.kind) for field in fields}
    found = [
        {n: v if dtypes[n] is None else np.array(v, dtypes[n]) for n, v in row.items() if v is not None} for row in rows
    ]
    return found or [{} for _ in records]


blocks = st.fixed_dictionaries(
    {"f": st.one_of(st.none(), floats), "i": st.one_of(st.none(), integers), "b": st.one_of(st.none(), byte_strings)}
)


@patient
@given(st.lists(blocks, min_size=1, max_size=6))
@example([{"f": None, "i": None, "b": [b""]}, {"f": None, "i": None, "b": [b"", b""]}])
def test_blocks_come_back(rows: list[dict[str, Any]]) -> None:
    records = [make_example(row, {"b": "bytes"}) for row in rows]
    for found, row in zip(columns_as_dicts(records), rows, strict=True):
        assert_same(found, {name: values for name, values in row.items() if values is not None})


@patient
@given(st.lists(blocks, min_size=1, max_size=6))
def test_columns_make_the_very_bytes_that_they_came_from(rows: list[dict[str, Any]]) -> None:
    records = [make_example(row, {"b": "bytes"}) for row in rows]
    fields = [Field(name, kind, TYPES[kind], True) for name, kind in (("f", "float"), ("i", "int64"), ("b", "bytes"))]
    assert list(to_records(to_columns(Block.of(records), fields), fields)) == records


def wire(number: int, data: bytes) -> bytes:
    """A length-delimited field, written by hand."""
    assert len(data) < 128
    return bytes((number << 3 | 2, len(data))) + data


def by_hand(feature: bytes) -> bytes:
    return wire(1, wire(1, wire(1, b"x") + wire(2, feature)))


@patient
@given(st.lists(st.lists(st.sampled_from("abc" * 3 + "d"), max_size=4), min_size=1, max_size=20))
def test_features_in_any_order_and_twice(orders: list[list[str]]) -> None:
    """TensorFlow writes features in the order of a hash table; of a name that is there twice the last one counts."""
    entries = [
        [wire(1, wire(1, name.encode()) + wire(2, wire(3, wire(1, bytes((at,)))))) for at, name in enumerate(order)]
        for order in orders
    ]
    records = [wire(1, b"".join(each)) for each in entries]
    for found, record, order in zip(columns_as_dicts(records), records, orders, strict=True):
        assert_same(found, parse_example(record))
        assert {name: values.tolist() for name, values in found.items()} == {n: [at] for at, n in enumerate(order)}


FLOAT = struct.Struct("<f").pack
UNUSUAL = {
    "packed": (wire(2, wire(1, FLOAT(1) + FLOAT(2))), [1.0, 2.0]),
    "one by one": (wire(2, b"\x0d" + FLOAT(1) + b"\x0d" + FLOAT(2)), [1.0, 2.0]),
    "packed in two pieces": (wire(2, wire(1, FLOAT(1)) + wire(1, FLOAT(2))), [1.0, 2.0]),
    "packed and one by one": (wire(2, wire(1, FLOAT(1)) + b"\x0d" + FLOAT(2)), [1.0, 2.0]),
    "integers one by one": (wire(3, b"\x08\x01\x08\xac\x02"), [1, 300]),
    "a field from the future": (wire(9, b"new") + wire(3, wire(1, b"\x01")), [1]),
    "a field from the future inside": (wire(3, wire(1, b"\x01") + wire(7, b"new")), [1]),
    "two lists, of which the last counts": (wire(2, wire(1, FLOAT(1))) + wire(3, wire(1, b"\x05")), [5]),
    "lengths with bytes to spare": (b"\x1a\x85\x80\x00" + b"\x0a\x82\x00\x05\x06", [5, 6]),
    "no list": (b"", "absent"),
    "nothing but the future": (wire(9, b"new"), "absent"),
    "an empty list": (wire(2, b""), []),
    "an empty packed list": (wire(2, wire(1, b"")), []),
    "floats of three bytes": (wire(2, wire(1, b"abc")), None),
    "an integer without an end": (wire(3, wire(1, b"\x80")), None),
    "an integer of eleven bytes": (wire(3, wire(1, b"\x80" * 10 + b"\x01")), None),
    "a list longer than its feature": (b"\x12\x20" + b"\x0a\x04" + FLOAT(1), None),
    "strings that are cut": (wire(1, b"\x0a\x05ab"), None),
}


@pytest.mark.parametrize("what", UNUSUAL)
def test_every_way_to_write_a_list_is_read(what: str) -> None:
    feature, expected = UNUSUAL[what]
    usual = make_example({"x": np.array([9], np.float32)})
    is_float = expected == [] or (isinstance(expected, list) and isinstance(expected[0], float))
    if expected is None:
        with pytest.raises(Misfit, match="it is not a") as caught:
            survey(Block.of([usual, by_hand(feature)]))
        assert caught.value.place == 1
    elif expected == "absent":
        assert survey(Block.of([by_hand(feature)])) == {}
        column = to_columns(Block.of([usual, by_hand(feature)]), [Field("x", "float", pa.float32(), True)])[0]
        assert column.to_pylist() == [[9.0], None]
    else:
        records = [usual, by_hand(feature)] if is_float else [by_hand(feature)]
        field = Field("x", *(("float", pa.float32()) if is_float else ("int64", pa.int64())), True)
        assert to_columns(Block.of(records), [field])[0].to_pylist()[-1] == expected
        assert parse_example(records[-1])["x"].tolist() == expected  # type: ignore[union-attr]


MISFITS = {
    "another kind": (Field("x", "int64", pa.int64(), False), [1.5], "holds floats where the schema has one int64"),
    "two values": (Field("x", "float", pa.float32(), False), [1.0, 2.0], "has 2 values where the schema has one float"),
    "no value": (Field("x", "bytes", pa.binary(), False), [], "has 0 values"),
    "too large": (Field("x", "int64", pa.int8(), True), [1, 200], "has a value that does not fit into int8"),
    "no text": (Field("x", "bytes", pa.string(), False), [b"\xff"], "not UTF-8 .* name it in binary_features"),
    "never null": (Field("x", "int64", pa.int64(), False, False), None, "missing, and the schema says .* never null"),
    "no example": (Field("x", "int64", pa.int64(), False), b"\xff\xff", "it is not a tf.train.Example"),
}


@pytest.mark.parametrize("what", MISFITS)
def test_a_record_that_does_not_fit_is_told_with_file_and_offset(what: str, tmp_path: Path) -> None:
    field, value, message = MISFITS[what]
    good: dict[str, Any] = {"int64": 1, "float": 1.0, "bytes": "a"}
    first = make_example({"x": good[field.kind]})
    second = (
        value if isinstance(value, bytes) else make_example({"x": value, "y": 1}, {"x": "bytes"} if value == [] else {})
    )
    path = str(tmp_path / "a.tfrecord")
    write_records(path, [first, first, second])
    with pytest.raises(RecordError, match=f"a.tfrecord, record at byte {2 * (len(first) + 16)}: .*{message}"):
        list(read_blocks(path, [field]))


def test_blocks_are_of_bounded_size(tmp_path: Path) -> None:
    path = str(tmp_path / "a.tfrecord")
    records = [make_example({"x": np.arange(n, dtype=np.float32)}) for n in (10, 10, 1000, 10, 10)]
    write_records(path, records)
    field = Field("x", "float", pa.float32(), True)
    assert [rows for rows, _ in read_blocks(path, [field], block_bytes=300)] == [2, 1, 2]
    assert [rows for rows, _ in read_blocks(path, [field])] == [5]


def test_a_file_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    path = str(tmp_path / "a.tfrecord")
    record = make_example({"x": np.arange(50_000, dtype=np.float32), "y": np.arange(50_000)})
    write_records(path, (record for _ in range(100)))
    assert os.path.getsize(path) > 30 << 20
    tracemalloc.start()
    rows = sum(rows for rows, _ in read_blocks(path, [Field("x", "float", pa.float32(), True)]))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert rows == 100
    assert peak < 16 << 20


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([[1.0, None]]), "column 'x' has an array with a null in it"),
        (pa.array([[1e39]]), "column 'x' has a value beyond what the 32-bit floats"),
    ],
)
def test_columns_that_cannot_be_written(column: pa.Array, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        list(to_records([column], [Field("x", "float", pa.float64(), True)]))


def test_slices_are_written_as_they_are_seen() -> None:
    rows = [[1, 2], None, [], [3], [-1, 300]]
    column = pa.array(rows, pa.list_(pa.int64())).slice(1, 4)
    field = Field("x", "int64", pa.int64(), True)
    assert to_columns(Block.of(list(to_records([column], [field]))), [field])[0].to_pylist() == rows[1:]
    names = pa.array(["a", "b", None, ""]).slice(1)
    field = Field("x", "bytes", pa.string(), False)
    assert to_columns(Block.of(list(to_records([names], [field]))), [field])[0].to_pylist() == ["b", None, ""]


# No input crashes or hangs the reader


def outcome(data: bytes) -> list[tuple[int, bytes]] | RecordError:
    found = []
    try:
        found.extend(records_in(io.BytesIO(data), name="fuzz"))
    except RecordError as error:
        failure = error
    else:
        return found
    assert failure.offset >= 0
    assert str(failure).startswith(f"fuzz, record at byte {failure.offset}: ")
    return failure


@settings(deadline=None, max_examples=400)
@given(st.binary(max_size=200) | st.binary(max_size=100).map(lambda data: b"\x1f\x8b\x08" + data))
def test_any_bytes_are_records_or_a_clear_error(data: bytes) -> None:
    outcome(data)


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """Some bytes changed, taken out or put in."""
    changed = bytearray(data)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(changed)))
        how = draw(st.sampled_from(["change", "cut", "insert", "end"]))
        if how == "change" and at < len(changed):
            changed[at] = draw(st.integers(0, 255))
        elif how == "cut":
            del changed[at : at + draw(st.integers(1, 8))]
        elif how == "insert":
            changed[at:at] = draw(st.binary(min_size=1, max_size=8))
        else:
            del changed[at:]
    return bytes(changed)


RECORDS = [
    make_example({"f": np.arange(n, dtype=np.float32), "i": [n, -n], "b": ["a"] * n}, {"b": "bytes"}) for n in range(3)
]


@settings(deadline=None, max_examples=400)
@given(st.data(), st.booleans())
def test_a_damaged_file_gives_its_records_or_a_clear_error(data: st.DataObject, is_gzip: bool) -> None:
    whole = file_of(RECORDS)
    found = outcome(data.draw(damaged(gzip.compress(whole, mtime=0) if is_gzip else whole)))
    # Checksums stand between a damaged file and wrong records: what comes out is what went in.
    if isinstance(found, list):
        assert {record for _, record in found} <= set(RECORDS)


@settings(deadline=None, max_examples=600)
@given(st.data(), st.sampled_from(RECORDS))
def test_damaged_records_mean_what_protobuf_says(data: st.DataObject, record: bytes) -> None:
    """Checksums are right here, the Example is not: columns and protobuf's own way of reading must agree."""
    broken = data.draw(damaged(record))
    try:
        expected: dict[str, Any] | None = parse_example(broken)
    except PlanError:
        expected = None
    try:
        found: dict[str, Any] | None = columns_as_dicts([broken])[0]
    except Misfit:
        found = None
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        assert_same(found, expected)


def test_a_file_of_nothing_but_names_takes_no_time() -> None:
    field = Field("x", "int64", pa.int64(), False)
    one = make_example({f"name {number}": number for number in range(20_000)} | {"x": 7})
    many = [make_example({f"name {number}": 1, "x": number}) for number in range(20_000)]
    begin = time.process_time()
    assert to_columns(Block.of([one]), [field])[0].to_pylist() == [7]
    assert to_columns(Block.of([one, *many]), [field])[0].to_pylist() == [7, *range(20_000)]
    for records in ([one], many):
        with pytest.raises(Misfit, match="more than 10,000 features; pass schema="):
            survey(Block.of(records))
    assert time.process_time() - begin < 5


# Smaller things


def test_the_schema_of_one_record() -> None:
    record = make_example(
        {"b": b"\xff", "s": "a", "i": 1, "f": [1.0, 2.0], "e": np.zeros(0, np.int64), "t": ["a", "b"]}
    )
    expected = "struct<b:binary,e:array<bigint>,f:array<float>,i:bigint,s:string,t:array<string>>"
    assert example_schema(record).simpleString() == expected
    assert "s:binary" in example_schema(record, binary_features=["s"]).simpleString()
    assert example_schema(record, binary_features="s") == example_schema(record, binary_features=["s"])
    assert "f:array<double>" in example_schema(record, float_type="double").simpleString()
    with pytest.raises(UnknownName, match="unknown feature in binary_features 'z'; there are: b, e, f, i, s, t"):
        example_schema(record, binary_features=["z"])
    with pytest.raises(PlanError, match="the record cannot be read: it is not a"):
        example_schema(b"\xff")


def test_files_are_shared_out_in_order() -> None:
    files = [File(f"f{number:02}", size) for number, size in enumerate([200 << 20, 1, 1, 1, 64 << 20, 64 << 20])]
    assert [[file.path for file in each] for each in group(files, slots=1)] == [
        ["f00"],
        ["f01", "f02", "f03", "f04"],
        ["f05"],
    ]
    assert len(group(files[1:4], slots=8)) == 3
    assert group(files[:1], slots=100) == [(files[0],)]


def test_names_of_folders() -> None:
    assert escape("a=b/c d%é") == "a%3Db%2Fc d%25é"


def test_files_elsewhere() -> None:
    path = "memory://bucket/below/a b%.tfrecord"
    write_records(path, [b"x", b"y"])
    assert list(read_records(path)) == [b"x", b"y"]
    assert listdir("memory://bucket/below") == ["a b%.tfrecord"]
    rmdir("memory://bucket/below")
    with pytest.raises(FileNotFoundError):
        list(read_records(path))
