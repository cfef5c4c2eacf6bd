"""Python values on their way to another process: columns of numbers and bytes, never a pickle.

A run of items is written column by column: all floats of a field in one buffer, all strings in one with their lengths
beside it, lists as their elements and how many each has. A description in JSON says how the buffers lie, so that the
other end gives back what was given: the same types, in the same nesting. Rows of an Arrow batch make the same columns
without becoming Python values first.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["TAKEN", "Column", "Described", "Records", "decode", "encode", "mixed", "nest", "raw", "sequences"]

Array = npt.NDArray[Any]
Buffer = bytes | bytearray | memoryview

_INT64 = np.iinfo(np.int64)
_PLAIN_DTYPES = "biufcSUMm"
TAKEN = (
    "a feed takes numbers, strings, bytes, booleans, None, NumPy arrays and scalars, lists, tuples, dicts with text "
    "keys, Rows and Spark's vectors"
)
"""What can be fed, for messages."""


@dataclass(frozen=True)
class Described:
    """A column, written: how it lies, as JSON, and its buffers."""

    what: dict[str, Any]
    buffers: list[Any]

    @property
    def nbytes(self) -> int:
        """Of all buffers together."""
        return sum(memoryview(buffer).nbytes for buffer in self.buffers)


class Column(Protocol):
    """A column, read: any part of it can be had as Python values."""

    def take(self, begin: int, end: int) -> list[Any]:
        """The values from ``begin`` to ``end``."""


# --- writing ----------------------------------------------------------------------------------------------------------


def encode(values: Sequence[Any]) -> Described:
    """These values as a column. Raises ``TypeError`` naming the type of one that cannot be fed."""
    types = set(map(type, values))
    if len(types) == 1:
        return _encoder(types.pop())(values)
    if not types:
        return Described({"kind": "none"}, [])
    return _encode_mixed(values, types)


def _encoder(kind: type) -> Callable[[Sequence[Any]], Described]:
    found = _ENCODERS.get(kind)
    if found is not None:
        return found
    for base, encoder in _FAMILIES:
        if issubclass(kind, base):
            return encoder
    if kind.__module__ in ("pyspark.ml.linalg", "pyspark.mllib.linalg"):
        vectors = {"DenseVector": _encode_dense, "SparseVector": _encode_sparse}
        if kind.__name__ in vectors:
            return vectors[kind.__name__]
    raise _refusal(_article(_type_name(kind)))


def _refusal(what: str) -> TypeError:
    return TypeError(f"{what} cannot be fed: {TAKEN}")


def _type_name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _article(name: str) -> str:
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def _encode_mixed(values: Sequence[Any], types: set[type]) -> Described:
    """Values of several types: which type each has, and a column for each type."""
    order = sorted(types, key=_type_name)
    codes = {kind: code for code, kind in enumerate(order)}
    which = [codes[type(value)] for value in values]
    parts = [
        encode([value for value, each in zip(values, which, strict=True) if each == code]) for code in codes.values()
    ]
    return mixed(np.array(which, np.uint32), parts)


def mixed(codes: Array, parts: Sequence[Described]) -> Described:
    """Values of several kinds: for each value the number of its kind, and for each kind a column."""
    small = codes.astype(np.min_scalar_type(len(parts)))
    return nest({"kind": "mixed", "codes": small.dtype.str}, [raw(small)], parts)


def raw(numbers: Array) -> Array:
    """The bytes of an array, as they lie."""
    return np.ascontiguousarray(numbers).reshape(-1).view(np.uint8)


def nest(what: dict[str, Any], buffers: list[Any], parts: Iterable[Described]) -> Described:
    """A column around others. Each has the number of its buffers, which follow in order."""
    inner = []
    for part in parts:
        inner.append({**part.what, "buffers": len(part.buffers)})
        buffers.extend(part.buffers)
    return Described({**what, "of": inner}, buffers)


def _encode_none(values: Sequence[Any]) -> Described:
    return Described({"kind": "none"}, [])


def _encode_bool(values: Sequence[Any]) -> Described:
    return _numbers("bool", np.array(values, np.bool_))


def _encode_int(values: Sequence[Any]) -> Described:
    try:
        return _numbers("int", np.fromiter(values, np.int64, len(values)))
    except OverflowError:  # Python's are as long as they like
        return nest({"kind": "long"}, [], [_encode_str([str(value) for value in values])])


def _encode_float(values: Sequence[Any]) -> Described:
    return _numbers("float", np.fromiter(values, np.float64, len(values)))


def _encode_complex(values: Sequence[Any]) -> Described:
    return _numbers("complex", np.fromiter(values, np.complex128, len(values)))


def _numbers(kind: str, numbers: Array) -> Described:
    return Described({"kind": kind, "dtype": numbers.dtype.str}, [raw(numbers)])


def _encode_str(values: Sequence[Any]) -> Described:
    return _strings("str", [value.encode("utf-8", "surrogatepass") for value in values])


def _encode_bytes(values: Sequence[Any]) -> Described:
    return _strings("bytes", values)


def _encode_bytearray(values: Sequence[Any]) -> Described:
    return _strings("bytearray", [bytes(value) for value in values])


def _strings(kind: str, values: Sequence[bytes]) -> Described:
    return Described({"kind": kind}, [_offsets(values), b"".join(values)])


def _offsets(values: Sequence[Any]) -> Array:
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, values), np.int64, len(values)), out=offsets[1:])
    return raw(offsets)


def _encode_list(values: Sequence[Any]) -> Described:
    return sequences("list", values)


def _encode_tuple(values: Sequence[Any]) -> Described:
    lengths = set(map(len, values))
    if len(lengths) > 1:
        return sequences("tuple", values)
    # One column for each place: the usual case, and what rows of a table are.
    columns = [encode(column) for column in zip(*values, strict=True)]
    return nest({"kind": "record", "count": len(values)}, [], columns)


def sequences(kind: str, values: Sequence[Any]) -> Described:
    """Lists or tuples of any length."""
    inner = encode(list(itertools.chain.from_iterable(values)))
    return nest({"kind": kind}, [_offsets(values)], [inner])


def _encode_dict(values: Sequence[Any]) -> Described:
    keys = list(values[0])
    if any(list(value) != keys for value in values):
        # Keys that differ from one to the next: then they are values, too.
        names = [list(value) for value in values]
        _check_keys(itertools.chain.from_iterable(names))
        parts = [sequences("list", names), sequences("list", [list(value.values()) for value in values])]
        return nest({"kind": "pairs"}, [], parts)
    _check_keys(keys)
    columns = [encode([value[key] for value in values]) for key in keys]
    return nest({"kind": "dict", "keys": keys, "count": len(values)}, [], columns)


def _check_keys(keys: Iterable[Any]) -> None:
    for key in keys:
        if type(key) is not str:
            raise _refusal(f"a dict with a key of type {_type_name(type(key))}")


def _encode_scalars(values: Sequence[Any]) -> Described:
    numbers = np.array(values)
    if numbers.dtype.kind not in _PLAIN_DTYPES or numbers.ndim != 1:
        raise _refusal(_article(_type_name(type(values[0]))))
    return _numbers("scalar", numbers)


def _encode_arrays(values: Sequence[Any]) -> Described:
    shapes, dtypes = {value.shape for value in values}, {value.dtype for value in values}
    for dtype in dtypes:
        if dtype.kind not in _PLAIN_DTYPES:
            raise _refusal(f"a NumPy array of dtype {dtype}")
    if len(dtypes) > 1:
        order = sorted(dtypes, key=str)
        parts = [_encode_arrays([value for value in values if value.dtype == dtype]) for dtype in order]
        return mixed(np.array([order.index(value.dtype) for value in values], np.uint32), parts)
    dtype = dtypes.pop()
    what: dict[str, Any] = {"kind": "array", "dtype": dtype.str, "count": len(values)}
    if len(shapes) == 1:
        what["shape"] = shapes.pop()
        return Described(what, [raw(np.stack(values) if len(values) > 1 else values[0])])
    what["shapes"] = [value.shape for value in values]
    return Described(what, [raw(np.concatenate([value.reshape(-1) for value in values]))])


def _encode_dense(values: Sequence[Any]) -> Described:
    inner = _encode_arrays([np.asarray(value.toArray(), np.float64) for value in values])
    return nest({"kind": "dense", "module": type(values[0]).__module__}, [], [inner])


def _encode_sparse(values: Sequence[Any]) -> Described:
    parts = [
        _encode_int([int(value.size) for value in values]),
        _encode_arrays([np.asarray(value.indices, np.int32) for value in values]),
        _encode_arrays([np.asarray(value.values, np.float64) for value in values]),
    ]
    return nest({"kind": "sparse", "module": type(values[0]).__module__}, [], parts)


_ENCODERS: dict[type, Callable[[Sequence[Any]], Described]] = {
    type(None): _encode_none,
    bool: _encode_bool,
    int: _encode_int,
    float: _encode_float,
    complex: _encode_complex,
    str: _encode_str,
    bytes: _encode_bytes,
    bytearray: _encode_bytearray,
    list: _encode_list,
    tuple: _encode_tuple,
    dict: _encode_dict,
    np.ndarray: _encode_arrays,
}
# What is a kind of one of these comes as that one: Spark's Row, and named tuples, as tuples.
_FAMILIES: tuple[tuple[type, Callable[[Sequence[Any]], Described]], ...] = (
    (np.generic, _encode_scalars),
    (tuple, _encode_tuple),
    (list, _encode_list),
    (dict, _encode_dict),
)


# --- reading ----------------------------------------------------------------------------------------------------------


def decode(what: dict[str, Any], buffers: Sequence[Buffer]) -> Column:
    """The column that was written. Nothing is made of the values before they are taken."""
    return _DECODERS[what["kind"]](what, buffers)


def _inner(what: dict[str, Any], buffers: Sequence[Buffer], own: int = 0) -> list[Column]:
    found = []
    begin = own
    for part in what["of"]:
        end = begin + part["buffers"]
        found.append(decode(part, buffers[begin:end]))
        begin = end
    return found


def _view(buffer: Buffer, dtype: str) -> Array:
    kind: np.dtype[Any] = np.dtype(dtype)
    return np.frombuffer(buffer, kind) if len(buffer) else np.empty(0, kind)


class _Nothing:
    def __init__(self, what: dict[str, Any], buffers: Sequence[Buffer]) -> None:
        pass

    def take(self, begin: int, end: int) -> list[Any]:
        return [None] * (end - begin)


class _Numbers:
    def __init__(self, what: dict[str, Any], buffers: Sequence[Buffer]) -> None:
        self._numbers: Array = _view(buffers[0], what["dtype"])

    def take(self, begin: int, end: int) -> list[Any]:
        return list(self._numbers[begin:end].tolist())


class _Scalars(_Numbers):
    def take(self, begin: int, end: int) -> list[Any]:
        return list(self._numbers[begin:end])


class _Strings:
    def __init__(self, what: dict[str, Any], buffers: Sequence[Buffer]) -> None:
        self._offsets: Array = _view(buffers[0], what.get("offsets", "<i8"))
        self._data = memoryview(buffers[1])
        makers: dict[str, Callable[[memoryview], Any]] = {"str": _text, "bytes": bytes, "bytearray": bytearray}
        self._make = makers[what["kind"]]

    def take(self, begin: int, end: int) -> list[Any]:
        make, data = self._make, self._data
        edges = self._offsets[begin : end + 1].tolist()
        return [make(data[first:last]) for first, last in itertools.pairwise(edges)]


def _text(view: memoryview) -> str:
    return str(view, "utf-8", "surrogatepass")


class _Longs:
    def __init__(self, what: dict[str, Any], buffers: Sequence[Buffer]) -> None:
        (self._texts,) = _inner(what, buffers)

    def take(self, begin: int, end: int) -> list[Any]:
        return [int(text) for text in self._texts.take(begin, end)]


class _Nested:
    def __init__(self, what: dict[str, Any], buffers: Sequence[Buffer]) -> None:
        self._offsets: Array = _view(buffers[0], what.get("offsets", "<i8"))
        (self._elements,) = _inner(what, buffers, 1)
        self._is_tuple = what["kind"] == "tuple"

    def take(self, begin: int, end: int) -> list[Any]:
        edges = self._offsets[begin : end + 1]
        first = int(edges[0])
        flat = self._elements.take(first, int(edges[-1]))
        found: list[Any] = [flat[low:high] for low, high in itertools.pairwise((edges - first).tolist())]
        return [tuple(each) for each in found] if self._is_tuple else found


class Records:
    """Tuples of one length: a column for each place."""

    def __init__(self, what: dict[str, Any], buffers: Sequence[Buffer]) -> None:
        self.columns = _inner(what, buffers)

    def take(self, begin: int, end: int) -> list[Any]:
        """The tuples from ``begin`` to ``end``."""
        if not self.columns:
            return [()] * (end - begin)
        return list(zip(*(column.take(begin, end) for column in self.columns), strict=True))


class _Dicts(Records):
    def __init__(self, what: dict[str, Any], buffers: Sequence[Buffer]) -> None:
        super().__init__(what, buffers)
        self._keys = what["keys"]

    def take(self, begin: int, end: int) -> list[Any]:
        return [dict(zip(self._keys, row, strict=True)) for row in super().take(begin, end)]


class _Pairs:
    def __init__(self, what: dict[str, Any], buffers: Sequence[Buffer]) -> None:
        self._keys, self._values = _inner(what, buffers)

    def take(self, begin: int, end: int) -> list[Any]:
        rows = zip(self._keys.take(begin, end), self._values.take(begin, end), strict=True)
        return [dict(zip(keys, values, strict=True)) for keys, values in rows]


class _Arrays:
    def __init__(self, what: dict[str, Any], buffers: Sequence[Buffer]) -> None:
        numbers: Array = _view(buffers[0], what["dtype"])
        self._rows: Any
        if "shape" in what:
            self._rows = numbers.reshape(what["count"], *what["shape"])
        else:
            sizes = [int(np.prod(shape, dtype=np.int64)) for shape in what["shapes"]]
            parts = np.split(numbers, np.cumsum(sizes)[:-1])
            self._rows = [part.reshape(shape) for part, shape in zip(parts, what["shapes"], strict=True)]

    def take(self, begin: int, end: int) -> list[Any]:
        # An array's row that has no dimension would come as a scalar.
        return [np.asarray(row) for row in self._rows[begin:end]]


class _Dense:
    def __init__(self, what: dict[str, Any], buffers: Sequence[Buffer]) -> None:
        (self._values,) = _inner(what, buffers)
        self._module = what["module"]

    def take(self, begin: int, end: int) -> list[Any]:
        vector = _linalg(self._module).DenseVector
        return [vector(values) for values in self._values.take(begin, end)]


class _Sparse:
    def __init__(self, what: dict[str, Any], buffers: Sequence[Buffer]) -> None:
        self._sizes, self._indices, self._values = _inner(what, buffers)
        self._module = what["module"]

    def take(self, begin: int, end: int) -> list[Any]:
        vector = _linalg(self._module).SparseVector
        parts = (column.take(begin, end) for column in (self._sizes, self._indices, self._values))
        return [vector(*each) for each in zip(*parts, strict=True)]


def _linalg(module: str) -> Any:
    if module == "pyspark.mllib.linalg":
        from pyspark.mllib import linalg as older

        return older
    from pyspark.ml import linalg

    return linalg


class _Mixed:
    def __init__(self, what: dict[str, Any], buffers: Sequence[Buffer]) -> None:
        self._codes: Array = _view(buffers[0], what["codes"])
        self._parts = _inner(what, buffers, 1)
        # How many of each kind come before every value: where in its column it is.
        self._before = [np.concatenate([[0], np.cumsum(self._codes == code)]) for code in range(len(self._parts))]

    def take(self, begin: int, end: int) -> list[Any]:
        codes = self._codes[begin:end].tolist()
        parts = [
            iter(part.take(int(before[begin]), int(before[end])))
            for part, before in zip(self._parts, self._before, strict=True)
        ]
        return [next(parts[code]) for code in codes]


_DECODERS: dict[str, Callable[[dict[str, Any], Sequence[Buffer]], Column]] = {
    "none": _Nothing,
    "bool": _Numbers,
    "int": _Numbers,
    "float": _Numbers,
    "complex": _Numbers,
    "scalar": _Scalars,
    "str": _Strings,
    "bytes": _Strings,
    "bytearray": _Strings,
    "long": _Longs,
    "list": _Nested,
    "tuple": _Nested,
    "record": Records,
    "dict": _Dicts,
    "pairs": _Pairs,
    "array": _Arrays,
    "dense": _Dense,
    "sparse": _Sparse,
    "mixed": _Mixed,
}
