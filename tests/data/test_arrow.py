"""Arrow columns and ndarrays: what goes in comes out, and what cannot is refused by the column's name."""

from __future__ import annotations

import gc
import sys
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from firesteel.core.errors import PlanError, SchemaError, UnknownName
from firesteel.data.arrow import Column, from_numpy, map_to_numpy, to_numpy, vector_type

Array = npt.NDArray[Any]

NUMBERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"]
dtypes = st.sampled_from([*NUMBERS, "bool"])


@st.composite
def arrays(draw: st.DrawFn, least_length: int = 1) -> Array:
    """Any dtype, 0 to 6 rows, rows of up to three axes."""
    dtype = draw(dtypes)
    row = draw(st.lists(st.integers(least_length, 4), max_size=3))
    rows = draw(st.integers(0, 6))
    return draw(hnp.arrays(dtype, (rows, *row)))


def list_type(dtype: str, row: tuple[int, ...], how: str) -> pa.DataType:
    """Lists over a dtype, nested as a row's axes are: ``"list"``, ``"large"`` or ``"fixed"``."""
    kind = pa.from_numpy_dtype(np.dtype(dtype))
    for length in reversed(row):
        kind = {"list": pa.list_(kind), "large": pa.large_list(kind), "fixed": pa.list_(kind, length)}[how]
    return kind


def column_for(array: Array, dtype: str | None = None, name: str = "x") -> Column:
    depth = array.ndim - 1
    return Column(name, "array" if depth else "scalar", dtype or array.dtype.name, depth)


def assert_same(found: Array, expected: Array) -> None:
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert found.flags.c_contiguous
    assert found.flags.aligned
    assert found.tobytes() == np.ascontiguousarray(expected).tobytes()  # bit for bit: NaN and -0.0 too


how_lists = st.sampled_from(["list", "large", "fixed"])


@given(arrays(), how_lists)
def test_what_goes_in_comes_out(array: Array, how: str) -> None:
    values = from_numpy(array, list_type(array.dtype.name, array.shape[1:], how))
    values.validate(full=True)
    expected = array if len(array) or how == "fixed" else np.empty((0,) * array.ndim, array.dtype)
    assert_same(to_numpy(values, column_for(array)), expected)


@given(arrays(), how_lists, st.data())
def test_slices_with_offsets(array: Array, how: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(array)))
    stop = data.draw(st.integers(start, len(array)))
    values = from_numpy(array, list_type(array.dtype.name, array.shape[1:], how)).slice(start, stop - start)
    column = Column("x", column_for(array).kind, array.dtype.name, array.ndim - 1, array.shape[1:])
    assert_same(to_numpy(values, column), array[start:stop])


@given(arrays(), st.lists(st.integers(0, 6), max_size=4))
def test_chunks(array: Array, cuts: list[int]) -> None:
    kind = list_type(array.dtype.name, array.shape[1:], "list")
    values = pa.chunked_array([from_numpy(part, kind) for part in np.split(array, sorted(cuts))], type=kind)
    expected = array if len(array) else np.empty((0,) * array.ndim, array.dtype)
    assert_same(to_numpy(values, column_for(array)), expected)


@given(arrays(least_length=0))
def test_a_declared_shape_survives_empty_axes(array: Array) -> None:
    values = from_numpy(array, list_type(array.dtype.name, array.shape[1:], "list"))
    column = Column("x", column_for(array).kind, array.dtype.name, array.ndim - 1, array.shape[1:])
    assert_same(to_numpy(values, column), array)


@given(arrays(), st.data())
def test_tensors_in_binary(array: Array, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(array)))
    kind = data.draw(st.sampled_from([pa.binary(), pa.large_binary(), pa.binary(array[:1].nbytes or 1)]))
    if pa.types.is_fixed_size_binary(kind) and not len(array):
        kind = pa.binary()
    values = from_numpy(array, kind)
    values.validate(full=True)
    column = Column("x", "tensor", array.dtype.name, shape=array.shape[1:])
    assert_same(to_numpy(values.slice(start), column), array[start:])


@given(arrays(), st.booleans())
def test_a_column_not_in_c_order(array: Array, backwards: bool) -> None:
    turned = array[::-1] if backwards else np.asfortranarray(array)
    values = from_numpy(turned, list_type(array.dtype.name, array.shape[1:], "fixed"))
    assert_same(to_numpy(values, column_for(array)), turned)
    tensor = Column("x", "tensor", array.dtype.name, shape=array.shape[1:])
    assert_same(to_numpy(from_numpy(turned, pa.binary()), tensor), turned)


def test_no_python_happens_per_row() -> None:
    """Interpreter events (calls, also of C functions) are as many for ten rows as for ten thousand."""

    def events(rows: int) -> int:
        vectors = pa.array(
            [{"type": i % 2, "size": 4, "indices": [1], "values": [1.0] * (4 if i % 2 else 1)} for i in range(rows)],
            vector_type(),
        )
        table: list[tuple[pa.Array, Column]] = [
            (from_numpy(np.zeros(rows), pa.float64()), Column("x", "scalar", "float32")),
            (
                from_numpy(np.zeros((rows, 3, 2)), list_type("float64", (3, 2), "list")),
                Column("x", "array", "int64", 2),
            ),
            (from_numpy(np.zeros((rows, 3), bool), list_type("bool", (3,), "list")), Column("x", "array", "bool", 1)),
            (from_numpy(np.zeros((rows, 3)), pa.binary()), Column("x", "tensor", "float64", shape=(3,))),
            (vectors, Column("x", "vector", "float32")),
        ]
        seen = 0

        def count(*_: object) -> None:
            nonlocal seen
            seen += 1

        gc.collect()
        gc.disable()  # what others have left to be finalized is not ours to count
        sys.setprofile(count)
        try:
            for values, column in table:
                from_numpy(to_numpy(values, column), vector_type() if column.kind == "vector" else values.type)
        finally:
            sys.setprofile(None)
            gc.enable()
        return seen

    events(2)  # what happens once: lazy imports, caches
    # The least of three: a finalizer that the garbage collector happens to run is counted too.
    assert min(events(10) for _ in range(3)) == min(events(10_000) for _ in range(3))


def test_a_column_of_the_right_dtype_is_a_view() -> None:
    array = np.arange(12, dtype=np.float32).reshape(4, 3)
    values = from_numpy(array, pa.list_(pa.float32()))
    assert np.shares_memory(to_numpy(values.slice(1), Column("x", "array", "float32", 1)), array)
    raw = from_numpy(array, pa.binary())
    assert np.shares_memory(to_numpy(raw, Column("x", "tensor", "float32", shape=(3,))), array)


# --- refusals ---------------------------------------------------------------------------------------------------------


@given(st.integers(0, 3), st.integers(0, 23), st.booleans(), st.integers(0, 3))
def test_a_null_at_any_level_is_refused(level: int, where: int, is_chunked: bool, before: int) -> None:
    row = [[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]]
    rows: list[Any] = [row, row, row]
    kind = pa.list_(pa.list_(pa.list_(pa.float64())))
    sizes = (3, 2, 2, 2)
    path = [int(i) for i in np.unravel_index(where, sizes)][: level + 1]
    rows = pa.array(rows, kind).to_pylist()  # deep copy
    at: Any = rows
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = None
    values = pa.array([row] * before + rows, kind).slice(before)
    with pytest.raises(SchemaError, match=r"column 'x' has a null .*; drop or fill such rows") as caught:
        to_numpy(pa.chunked_array([values]) if is_chunked else values, Column("x", "array", "float32", 3))
    assert caught.value.column == "x"


def test_a_null_outside_the_slice_does_no_harm() -> None:
    values = pa.array([[1, None], None, [3, 4], [5, 6], None], pa.list_(pa.int32())).slice(2, 2)
    assert to_numpy(values, Column("x", "array", "int64", 1)).tolist() == [[3, 4], [5, 6]]


@given(st.lists(st.integers(0, 4), min_size=2, max_size=6), st.booleans())
def test_ragged_rows_are_refused_with_two_lengths(lengths: list[int], is_chunked: bool) -> None:
    rows = [[1.0] * length for length in lengths]
    values = pa.array(rows, pa.list_(pa.float32()))
    if is_chunked:
        values = pa.chunked_array([values.slice(i, 1) for i in range(len(values))])
    column = Column("x", "array", "float32", 1)
    if len(set(lengths)) == 1:
        assert to_numpy(values, column).shape == (len(lengths), lengths[0])
        return
    other = next(length for length in lengths if length != lengths[0])
    with pytest.raises(SchemaError, match=f"column 'x' has rows of length {lengths[0]} and {other}"):
        to_numpy(values, column)


def test_ragged_inside_a_row() -> None:
    values = pa.array([[[1, 2], [3, 4]], [[5, 6], [7]]])
    with pytest.raises(SchemaError, match="column 'x' has arrays at depth 2 of length 2 and 1"):
        to_numpy(values, Column("x", "array", "int64", 2))


def test_a_declared_length_is_checked() -> None:
    with pytest.raises(SchemaError, match="column 'x' has rows of length 2, but length 3 was expected"):
        to_numpy(pa.array([[1, 2]]), Column("x", "array", "int64", 1, (3,)))


@pytest.mark.parametrize(
    ("values", "column", "message"),
    [
        (pa.array(["a"]), Column("x", "scalar", "float32"), "holds string, but numbers was"),
        (pa.array([[1]]), Column("x", "scalar", "int64"), "holds list<"),
        (pa.array([1]), Column("x", "array", "int64", 1), "lists nested 1 deep"),
        (pa.array([1]), Column("x", "string", "object"), "strings"),
        (pa.array(["a"]), Column("x", "bytes", "object"), "bytes"),
        (pa.array([1]), Column("x", "vector", "float32"), "vector"),
        (pa.array([1]), Column("x", "tensor", "float32", shape=(1,)), "binary"),
        (pa.array([b"abcd"]), Column("x", "tensor", "float32"), "without a declared shape"),
        (pa.array([0], pa.timestamp("us")), Column("x", "scalar", "int64"), "holds timestamp"),
        (pa.array([0], pa.date32()), Column("x", "scalar", "int64"), "holds date32"),
        (pa.array([{"a": 1}]), Column("x", "map", "int64"), "is a map"),
        (pa.array([None, 1.5]), Column("x", "scalar", "float32"), "null value"),
        (pa.array([None]), Column("x", "scalar", "float32"), "null value"),
        (pa.array(["a", None]), Column("x", "string", "object"), "null value"),
    ],
)
def test_what_does_not_fit_the_column(values: pa.Array, column: Column, message: str) -> None:
    with pytest.raises(SchemaError, match=message) as caught:
        to_numpy(values, column)
    assert caught.value.column == "x"


def test_an_unknown_kind() -> None:
    with pytest.raises(UnknownName, match="scalar"):
        Column("x", "matrix", "float32")


# --- dtypes -----------------------------------------------------------------------------------------------------------


@given(hnp.arrays(st.sampled_from(NUMBERS), st.integers(0, 8)), st.sampled_from(NUMBERS))
def test_a_cast_keeps_the_values_or_is_refused(array: Array, dtype: str) -> None:
    values, column = pa.array(array), column_for(array, dtype)
    wanted = np.dtype(dtype)
    fits = [_fits(value, wanted) for value in array.tolist()]
    if all(fits):
        assert_same(to_numpy(values, column), array.astype(wanted))
    else:
        with pytest.raises(SchemaError, match="column 'x' has a value"):
            to_numpy(values, column)


def _fits(value: float, dtype: np.dtype[Any]) -> bool:
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            return bool(np.isfinite(dtype.type(value))) or not np.isfinite(value)
    info = np.iinfo(dtype)
    return bool(np.isfinite(value)) and int(value) == value and info.min <= int(value) <= info.max


@pytest.mark.parametrize("value", [1.5, float("nan"), float("inf"), 2.0**63, -(2.0**64)])
def test_floats_that_are_no_int64(value: float) -> None:
    with pytest.raises(SchemaError, match="column 'x' has a value"):
        to_numpy(pa.array([0.0, value]), Column("x", "scalar", "int64"))


def test_booleans_and_numbers() -> None:
    flags = pa.array([True, False, True] * 5).slice(4, 5)  # bits that start inside a byte
    assert to_numpy(flags, Column("x", "scalar", "float32")).tolist() == [0.0, 1.0, 1.0, 0.0, 1.0]
    assert to_numpy(pa.array([0, 1, 1]), Column("x", "scalar", "bool")).tolist() == [False, True, True]
    with pytest.raises(SchemaError, match="other than 0 and 1"):
        to_numpy(pa.array([0, 2]), Column("x", "scalar", "bool"))


def test_decimals_become_floats() -> None:
    values = pa.array([[Decimal("1.25"), Decimal("-3")]], pa.list_(pa.decimal128(10, 2)))
    found = to_numpy(values, Column("x", "array", "float32", 1))
    assert_same(found, np.array([[1.25, -3.0]], np.float32))
    assert from_numpy(np.array([1.25]), pa.decimal128(10, 2)).to_pylist() == [Decimal("1.25")]


def test_dictionaries_are_decoded_and_their_nulls_found() -> None:
    assert to_numpy(pa.array([7, 9, 7]).dictionary_encode(), Column("x", "scalar", "int64")).tolist() == [7, 9, 7]
    hidden = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), pa.array([7, None]))
    with pytest.raises(SchemaError, match="null"):
        to_numpy(hidden, Column("x", "scalar", "int64"))


# --- strings and bytes ------------------------------------------------------------------------------------------------


@given(st.lists(st.text(max_size=4), max_size=5))
def test_strings(texts: list[str]) -> None:
    array = np.array(texts, object)
    for kind in (pa.string(), pa.large_string()):
        assert to_numpy(from_numpy(array, kind), Column("x", "string", "object")).tolist() == texts


@given(st.lists(st.binary(max_size=4), max_size=5))
def test_bytes(texts: list[bytes]) -> None:
    array = np.array(texts, object)
    assert to_numpy(from_numpy(array, pa.binary()), Column("x", "bytes", "object")).tolist() == texts


def test_strings_of_other_forms() -> None:
    nested = from_numpy(np.array([["a", "bc"], ["", "é"]]), pa.list_(pa.string()))
    assert to_numpy(nested, Column("x", "array", "object", 1)).tolist() == [["a", "bc"], ["", "é"]]
    # TensorFlow's strings are bytes.
    assert from_numpy(np.array([b"ab", b"c"]), pa.string()).to_pylist() == ["ab", "c"]
    assert from_numpy(np.array([b"ab", b"c"], object), pa.string()).to_pylist() == ["ab", "c"]


# --- tensors ----------------------------------------------------------------------------------------------------------


def test_a_binary_value_of_another_size() -> None:
    values = pa.array([b"12345678", b"1234"])
    with pytest.raises(SchemaError, match=r"column 'x' has a value of 4 bytes, but .* takes 8 bytes"):
        to_numpy(values, Column("x", "tensor", "float32", shape=(2,)))


def test_tensors_that_start_at_an_odd_byte() -> None:
    values = pa.array([b"odd", np.array([1, 2], np.float32).tobytes()]).slice(1)
    assert_same(to_numpy(values, Column("x", "tensor", "float32", shape=(2,))), np.array([[1, 2]], np.float32))


def test_tensors_of_foreign_bools_and_byte_orders() -> None:
    assert to_numpy(pa.array([b"\x00\x07"]), Column("x", "tensor", "bool", shape=(2,))).tolist() == [[False, True]]
    found = to_numpy(pa.array([b"\x00\x01"]), Column("x", "tensor", ">i2", shape=()))
    assert found.tolist() == [1]


# --- vectors ----------------------------------------------------------------------------------------------------------


@st.composite
def vectors(draw: st.DrawFn) -> tuple[int, list[dict[str, Any]]]:
    size = draw(st.integers(0, 5))
    numbers = st.floats(width=32, allow_nan=False)
    dense = st.lists(numbers, min_size=size, max_size=size).map(
        lambda values: {"type": 1, "size": None, "indices": None, "values": values}
    )
    places = st.lists(st.integers(0, max(size - 1, 0)), unique=True, max_size=size).map(sorted)
    sparse = places.flatmap(
        lambda at: st.lists(numbers, min_size=len(at), max_size=len(at)).map(
            lambda values: {"type": 0, "size": size, "indices": at, "values": values}
        )
    )
    return size, draw(st.lists(dense | sparse, max_size=8))


def slow(rows: list[dict[str, Any]], size: int) -> Array:
    """One row after another, as ``DenseVector.toArray`` and ``SparseVector.toArray`` do."""
    result = np.zeros((len(rows), size), np.float32)
    for out, row in zip(result, rows, strict=True):
        for place, value in enumerate(row["values"]):
            out[place if row["type"] == 1 else row["indices"][place]] = value
    return result


@given(vectors(), st.integers(0, 8), st.booleans())
def test_vectors_dense_and_sparse(drawn: tuple[int, list[dict[str, Any]]], start: int, is_chunked: bool) -> None:
    size, rows = drawn
    values = pa.array(rows, vector_type()).slice(min(start, len(rows)))
    if is_chunked:
        values = pa.chunked_array([values.slice(0, 2), values.slice(2)])
    column = Column("v", "vector", "float32", shape=(size,))
    assert_same(to_numpy(values, column), slow(rows[start:], size))


@given(hnp.arrays(st.sampled_from(["float32", "float64"]), hnp.array_shapes(min_dims=2, max_dims=2, min_side=0)))
def test_vectors_there_and_back(array: Array) -> None:
    values = from_numpy(array, vector_type())
    values.validate(full=True)
    assert values.type == vector_type()
    assert_same(to_numpy(values, Column("v", "vector", array.dtype.name, shape=array.shape[1:])), array)
    if len(array):
        assert values[0].as_py() | {"values": 0} == {"type": 1, "size": None, "indices": None, "values": 0}


def vector(kind: int | None, size: int | None, at: list[Any] | None, values: list[Any] | None) -> dict[str, Any]:
    return {"type": kind, "size": size, "indices": at, "values": values}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([vector(1, None, None, [1.0, 2.0]), vector(1, None, None, [1.0])], "vectors of size 2 and 1"),
        ([vector(1, None, None, [1.0, 2.0]), vector(0, 3, [0], [1.0])], "vectors of size 2 and 3"),
        ([vector(0, 4, [0], [1.0]), vector(0, 3, [0], [1.0])], "vectors of size 4 and 3"),
        ([vector(0, 2, [2], [1.0])], "index outside its size of 2"),
        ([vector(0, 2, [-1], [1.0])], "index outside its size of 2"),
        ([vector(0, 2, [0, 1], [1.0])], "more values than indices, or fewer"),
        ([vector(0, None, [0], [1.0])], "null size"),
        ([vector(0, 2, None, [1.0])], "null inside a sparse vector"),
        ([vector(0, 2, [None], [1.0])], "null inside a sparse vector"),
        ([vector(1, None, None, None)], "null inside a vector"),
        ([vector(1, None, None, [None])], "null inside a vector"),
        ([vector(None, None, None, [1.0])], "null vector type"),
        ([vector(2, None, None, [1.0])], "neither dense nor sparse"),
        ([vector(1, None, None, [1.0]), None], "null value"),
    ],
)
def test_vectors_that_are_refused(rows: list[dict[str, Any] | None], message: str) -> None:
    loose = pa.struct(
        [
            ("type", pa.int8()),
            ("size", pa.int32()),
            ("indices", pa.list_(pa.int32())),
            ("values", pa.list_(pa.float64())),
        ]
    )
    with pytest.raises(SchemaError, match=f"column 'v' has .*{message}"):
        to_numpy(pa.array(rows, loose), Column("v", "vector", "float32"))


# --- maps -------------------------------------------------------------------------------------------------------------


def test_maps_give_one_array_for_each_key() -> None:
    kind = pa.map_(pa.string(), pa.list_(pa.float64()))
    rows = [[("z", [0.0, 0.0])], [("b", [1.0, 2.0]), ("a", [3.0])], [("a", [4.0]), ("b", [5.0, 6.0])]]
    column = Column("m", "map", "float32", 1)
    values = pa.array(rows, kind).slice(1)
    for form in (values, pa.chunked_array([values.slice(0, 1), values.slice(1)])):
        found = map_to_numpy(form, column)
        assert list(found) == ["a", "b"]
        assert_same(found["a"], np.array([[3], [4]], np.float32))
        assert_same(found["b"], np.array([[1, 2], [5, 6]], np.float32))
    assert map_to_numpy(values.slice(0, 0), column) == {}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[("a", 1)], [("b", 1)]], "different keys"),
        ([[("a", 1)], [("a", 1), ("b", 1)]], "maps of 1 and 2 keys"),
        ([[("a", 1), ("a", 2)]], "once each"),
        ([[("a", None)]], "null value"),
        ([None], "null value"),
    ],
)
def test_maps_that_are_refused(rows: list[Any], message: str) -> None:
    with pytest.raises(SchemaError, match=f"column 'm' has .*{message}"):
        map_to_numpy(pa.array(rows, pa.map_(pa.string(), pa.int64())), Column("m", "map", "int64"))


def test_chunks_of_maps_with_other_keys() -> None:
    kind = pa.map_(pa.string(), pa.int64())
    with pytest.raises(SchemaError, match="different keys"):
        map_to_numpy(pa.chunked_array([pa.array([[(key, 1)]], kind) for key in "ab"]), Column("m", "map", "int64"))


# --- to Arrow ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (np.float32(1), pa.float32()),
        (np.zeros((2, 3)), pa.float64()),
        (np.zeros(2), pa.list_(pa.float64())),
        (np.zeros((2, 3, 4)), vector_type()),
        (np.zeros((2, 3)), pa.list_(pa.float64(), 4)),
        (np.zeros(2), pa.binary(4)),
        (np.zeros(2), pa.string()),
        (np.array(["a"]), pa.float64()),
        (np.array([1.5]), pa.int64()),
        (np.zeros(2), pa.timestamp("us")),
        (np.zeros(2), pa.struct([("a", pa.int8())])),
        (np.broadcast_to(np.int8(0), (2**20, 2**11)), pa.binary()),  # offsets would not fit 32 bits
    ],
)
def test_arrays_that_do_not_fit_a_type(array: Array, kind: pa.DataType) -> None:
    with pytest.raises(PlanError):
        from_numpy(np.asarray(array), kind)


def test_field_names_and_nullability_are_kept() -> None:
    kind = pa.list_(pa.field("element", pa.list_(pa.field("element", pa.float32(), nullable=False))))
    assert from_numpy(np.zeros((2, 3, 1)), kind).type.equals(kind, check_metadata=True)
