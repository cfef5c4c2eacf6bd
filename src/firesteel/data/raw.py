"""Rows as Spark holds them in memory: a row is one run of bytes, taken over whole and read where it lies.

On the way to Python, Spark writes rows into Arrow value by value, which costs more than everything else on that way. A
struct within a row of Spark's (``UnsafeRow``) is one run of bytes, though, and a column that is called binary moves as
such. What is made of the bytes here are the Arrow arrays that Spark would have written.

The layout, in words of 8 bytes and the machine's own byte order. A struct: a bit for each field that is null, in whole
words; then a word for each field. An array: how many elements; a bit for each that is null, in whole words; then the
elements, in whole words. What has no fixed size has a word instead, which says where it lies: how far from where the
struct or array begins, times 2^32, plus how many bytes it takes. So it is in all releases from 2.0 to 4.x.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from firesteel.core.errors import ClusterError
from firesteel.data.arrow import vector_type

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

__all__ = ["SETTING", "Form", "RawRows", "form_of"]

SETTING = "spark.firesteel.rawRows"
"""Whether rows are taken over as bytes."""

_Array = npt.NDArray[Any]

_WORD, _BITS = 8, 64
_NUMBERS = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
}


@dataclass(frozen=True)
class Form:
    """What a field is: numbers, lists ``depth`` deep of them, or Spark ML vectors."""

    number: str
    depth: int = 0
    is_vector: bool = False

    @property
    def arrow_type(self) -> pa.DataType:
        """What Spark would have written: not of a vector."""
        kind = _NUMBERS[self.number]
        for _ in range(self.depth):
            kind = pa.list_(kind)
        return kind


def form_of(kind: DataType) -> Form | None:
    """Of a Spark type; ``None`` where values had better come as Spark writes them: strings and bytes are copied whole.

    >>> from pyspark.sql.types import ArrayType, FloatType, StringType
    >>> form_of(ArrayType(FloatType()))
    Form(number='float', depth=1, is_vector=False)
    >>> form_of(StringType()) is None
    True
    """
    from pyspark.ml.linalg import VectorUDT
    from pyspark.sql.types import ArrayType

    if isinstance(kind, VectorUDT):
        return Form("double", 1, is_vector=True)
    depth = 0
    while isinstance(kind, ArrayType):
        kind, depth = kind.elementType, depth + 1
    number = kind.simpleString()
    return Form(number, depth) if number in _NUMBERS else None


@dataclass(frozen=True)
class RawRows:
    """Columns by place: those with a form lie in the bytes of the first column, the others follow it in order."""

    forms: tuple[Form | None, ...]

    def read(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The columns as Spark would have sent them. Runs in a task."""
        try:
            fields = iter(_fields(_Runs.of(rows.column(0)), [form for form in self.forms if form is not None]))
        except (IndexError, ValueError, TypeError) as error:
            raise ClusterError(
                f"rows of Spark's do not lie in memory as they are known to ({error}); "
                f'spark.conf.set("{SETTING}", "false") has them written out',
                is_lasting=True,
            ) from error
        others = iter(rows.columns[1:])
        columns = [next(others if form is None else fields) for form in self.forms]
        return pa.RecordBatch.from_arrays(columns, [str(place) for place in range(len(columns))])


class _Runs:
    """Runs of bytes, one for each row, by where they begin."""

    def __init__(self, memory: _Array, starts: _Array, missing: _Array | None = None) -> None:
        self.memory = memory
        self.starts = starts
        self.missing = missing
        """Which of them are null; nothing may be read of those."""
        steps = np.diff(starts)
        is_even = missing is None and len(steps) > 0 and (steps == steps[0]).all()
        self.stride = int(steps[0]) if is_even else 0
        """How far they are apart, where all are alike: they mostly are, and no index is needed then."""

    @classmethod
    def of(cls, cells: pa.Array) -> _Runs:
        """Of a binary column without nulls."""
        _, edges, data = cells.buffers()
        if not len(cells):
            return cls(np.empty(0, np.uint8), np.empty(0, np.int64))
        item = np.dtype(np.int64 if pa.types.is_large_binary(cells.type) else np.int32)
        offsets = np.frombuffer(edges, item, len(cells) + 1, cells.offset * item.itemsize).astype(np.int64)
        if cells.null_count or (offsets % _WORD).any():
            raise ValueError("not in whole words")
        return cls(np.frombuffer(data, np.uint8, int(offsets[-1])), offsets[:-1])

    def at(self, place: int, dtype: npt.DTypeLike) -> _Array:
        """The value at this byte of each; 0 where there is none."""
        kind = np.dtype(dtype)
        if self.stride > 0:
            begin = int(self.starts[0]) + place
            found = np.ndarray((len(self.starts),), kind, self.memory.data, begin, (self.stride,))
            return np.ascontiguousarray(found)
        found = np.zeros(len(self.starts), kind)
        is_there = slice(None) if self.missing is None else ~self.missing
        found[is_there] = self.memory.view(kind)[(self.starts[is_there] + place) // kind.itemsize]
        return found

    def elements(self, counts: _Array, kind: np.dtype[Any]) -> tuple[_Array, _Array | None]:
        """The fixed parts of all elements of arrays of these lengths, one after the other; and which are null."""
        count = int(counts[0]) if len(counts) else 0
        if self.stride > 0 and (counts == count).all():
            header = _header(count)
            shape = (len(counts), header + count * kind.itemsize)
            runs = np.ndarray(shape, np.uint8, self.memory.data, int(self.starts[0]), (self.stride, 1))
            if not runs[:, _WORD:header].any():
                return np.ascontiguousarray(runs[:, header:]).reshape(-1).view(kind), None
        before = np.cumsum(counts) - counts
        within = np.arange(counts.sum()) - np.repeat(before, counts)
        bits = np.repeat(self.starts + _WORD, counts) + (within >> 3)
        is_null = (self.memory[bits] >> (within & 7).astype(np.uint8) & 1).astype(bool)
        first = np.repeat((self.starts + _header(counts)) // kind.itemsize, counts)
        return self.memory.view(kind)[first + within], is_null if is_null.any() else None


def _header(count: Any) -> Any:
    """Bytes of an array ahead of its elements."""
    return _WORD * (1 + (count + _BITS - 1) // _BITS)


def _fields(runs: _Runs, forms: list[Form]) -> list[pa.Array]:
    """The fields of structs."""
    words = [runs.at(_WORD * word, np.int64) for word in range((len(forms) + _BITS - 1) // _BITS)]
    nulls = [word if word.any() else None for word in words]  # mostly there are none, and no bit need be looked at
    head = _WORD * len(words)
    return [_field(runs, form, place, head, nulls[place // _BITS]) for place, form in enumerate(forms)]


def _field(runs: _Runs, form: Form, place: int, head: int, nulls: _Array | None) -> pa.Array:
    missing = runs.missing
    if nulls is not None:
        bits = (nulls >> (place % _BITS) & 1).astype(bool)
        missing = bits if missing is None else missing | bits
    gone = missing if missing is not None and missing.any() else None
    if not form.depth:
        kind = _NUMBERS[form.number]
        return pa.array(runs.at(head + _WORD * place, kind.to_pandas_dtype()), kind, mask=gone)
    where = runs.at(head + _WORD * place, np.int64) >> 32
    inner = _Runs(runs.memory, runs.starts + where, gone)
    return _vectors(inner) if form.is_vector else _lists(inner, form)


def _lists(runs: _Runs, form: Form) -> pa.Array:
    counts = runs.at(0, np.int64)
    kind = np.dtype(np.int64 if form.depth > 1 else _NUMBERS[form.number].to_pandas_dtype())
    values, gone = runs.elements(counts, kind)
    if form.depth > 1:
        starts = np.repeat(runs.starts, counts) + (values >> 32)
        inner = _lists(_Runs(runs.memory, starts, gone), Form(form.number, form.depth - 1))
    else:
        inner = pa.array(values, _NUMBERS[form.number], mask=gone)
    edges = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(edges), inner, mask=_mask(runs.missing))


def _vectors(runs: _Runs) -> pa.Array:
    forms = [Form("tinyint"), Form("int"), Form("int", 1), Form("double", 1)]
    names = [field.name for field in vector_type()]
    return pa.StructArray.from_arrays(_fields(runs, forms), names, mask=_mask(runs.missing))


def _mask(missing: _Array | None) -> pa.Array | None:
    return None if missing is None else pa.array(missing)
