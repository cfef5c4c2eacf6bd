"""Arrow columns to ndarrays and back, through buffers: no Python object per row.

A column that arrives from Spark (or from a Parquet file) is a tree of buffers. A rectangular one is already the
tensor: its innermost buffer, reshaped. So ``to_numpy`` checks nulls and offsets, then hands out a view where the dtype
matches, and makes one pass over the values where it does not. Strings and bytes are the exception: NumPy has no other
form for them than objects, which Arrow makes in C.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from firesteel.core.errors import PlanError, SchemaError, UnknownName

if TYPE_CHECKING:
    from firesteel.data.image.column import Images

__all__ = ["KINDS", "Column", "from_numpy", "map_to_numpy", "to_numpy", "vector_type"]

KINDS = ("scalar", "array", "vector", "tensor", "bytes", "string", "map", "image")
"""What a column can be; ``Column`` says what each means."""

Array = npt.NDArray[Any]

_INT32_MAX = np.iinfo(np.int32).max
_SPARSE, _DENSE = 0, 1  # VectorUDT's "type" field


@dataclass(frozen=True)
class Column:
    """One Spark column, and the tensor that it becomes.

    Attributes:
        name: the Spark column; ``"a.b"`` is the field ``b`` of the struct column ``a``.
        kind: ``"scalar"``; ``"array"``, nested ``depth`` times; ``"vector"`` (Spark ML's, dense and sparse may be
            mixed); ``"tensor"``, a binary column whose values are the bytes of one array each, in C order;
            ``"bytes"``; ``"string"``; ``"map"``, whose ``dtype`` and ``depth`` are those of its values; ``"image"``,
            encoded images, which ``images`` says how to decode.
        dtype: NumPy's name for the tensor's dtype; ``"object"`` for strings and bytes.
        depth: how many list levels an array (or a map's value) has; 0 otherwise.
        shape: a row's shape. Needed for a tensor. Elsewhere ``None``, or ``None`` for a dimension, means unknown until
            seen; numbers are checked against the data, and say what shape zero rows have.
        key: the entry of a map column that is meant; the other attributes are then that entry's.
    """

    name: str
    kind: str
    dtype: str
    depth: int = 0
    shape: tuple[int | None, ...] | None = None
    key: str | None = None
    images: Images | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UnknownName("column kind", self.kind, KINDS)


def to_numpy(values: pa.Array | pa.ChunkedArray, column: Column) -> Array:
    """The column as one C-contiguous array of shape ``(rows, *row shape)`` and dtype ``column.dtype``.

    The result is a read-only view of Arrow's memory where dtypes agree and there is one chunk; copy it before
    writing. With zero rows, or below a list of length zero, there is nothing to learn a length from: a dimension
    that neither ``column.shape`` nor a fixed-size list tells is then 0.

    Raises:
        SchemaError: a null at any level; rows of different lengths; a vector or binary value of another size than the
            rest or than declared; values that ``column.dtype`` cannot hold (a fraction or an overflow);
            an Arrow type that is not what ``column`` says. Also for a map, which is many tensors: see ``map_to_numpy``.
    """
    if column.kind == "map":
        raise SchemaError(f"column {column.name!r} is a map: it gives one tensor for each key", column=column.name)
    parts = [_convert(chunk, column) for chunk in _chunks(values)]
    for part in parts[1:]:
        _check_same_shape(parts[0].shape[1:], part.shape[1:], column)
    result = parts[0] if len(parts) == 1 else np.concatenate(parts)
    # Bytes may start anywhere in a buffer, and frameworks want aligned memory; a no-op for nearly every column.
    return np.require(result, requirements=["C", "A"])


def map_to_numpy(values: pa.Array | pa.ChunkedArray, column: Column) -> dict[str, Array]:
    """A map column as one array for each key, sorted by key; ``{}`` for zero rows.

    Every row must have the same keys (in any order), once each, else ``SchemaError``; values as in ``to_numpy``.
    """
    parts = [_convert_map(chunk, column) for chunk in _chunks(values) if len(chunk)]
    if not parts:
        return {}
    for part in parts[1:]:
        if list(part) != list(parts[0]):
            _raise_keys(column, list(parts[0]), list(part))
        for key in part:
            _check_same_shape(parts[0][key].shape[1:], part[key].shape[1:], column)
    if len(parts) == 1:
        return parts[0]
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


def from_numpy(array: Array, arrow_type: pa.DataType) -> pa.Array:
    """One Arrow value for each row of ``array``, whose first dimension is the rows.

    Args:
        array: ``(rows,)`` for a scalar or string type; ``(rows, k, ...)`` with as many further axes as ``arrow_type``
            has list levels; ``(rows, k)`` for ``vector_type()``. For a binary type any numbers (a row's bytes, in C
            order), or an object array of bytes.
        arrow_type: a Spark column's type. Where it equals the array's dtype, the memory is shared, not copied.

    Raises:
        PlanError: shape and type do not fit, the type cannot hold a value, or the array has too many values for the
            32-bit offsets that Spark insists on (fewer rows at a time do).
    """
    if array.ndim == 0:
        raise PlanError("an array without a dimension for rows cannot become a column")
    if _is_vector(arrow_type):
        return _to_vectors(array, arrow_type)
    if _is_list(arrow_type):
        return _to_lists(array, arrow_type)
    if _is_binary(arrow_type) and array.dtype.kind not in "OSUT":
        return _to_row_bytes(array, arrow_type)
    if array.ndim != 1:
        raise PlanError(f"an array of shape {array.shape} cannot become a column of {arrow_type}")
    return _to_flat(array, arrow_type)


def vector_type() -> pa.StructType:
    """Arrow's type of a Spark ML ``VectorUDT`` column, as it arrives in ``mapInArrow`` and as Spark takes it back.

    Spark reads the fields by position and by exact integer width (another order, or an ``int32`` type field, fails in
    the JVM), and knows neither large nor fixed-size lists. Names and nullability are not checked on the way back.
    """
    return pa.struct(
        [
            pa.field("type", pa.int8(), nullable=False),
            pa.field("size", pa.int32()),
            pa.field("indices", pa.list_(pa.field("element", pa.int32(), nullable=False))),
            pa.field("values", pa.list_(pa.field("element", pa.float64(), nullable=False))),
        ]
    )


# --- Arrow to NumPy ---------------------------------------------------------------------------------------------------


def _chunks(values: pa.Array | pa.ChunkedArray) -> list[pa.Array]:
    """The chunks that have rows; one empty array if none has."""
    if not isinstance(values, pa.ChunkedArray):
        return [values]
    # Not combine_chunks: it copies into one array with 32-bit offsets, which overflow at 2^31 values.
    return [chunk for chunk in values.chunks if len(chunk)] or [pa.nulls(0, values.type)]


def _convert(values: pa.Array, column: Column) -> Array:
    """One chunk, by kind: (rows, *row shape), perhaps unaligned."""
    values = _plain(values)
    _refuse_nulls(values, column, "value")
    if column.kind == "vector":
        return _from_vectors(values, column)
    if column.kind == "tensor":
        return _from_row_bytes(values, column)
    return _from_lists(values, column)


def _plain(values: pa.Array) -> pa.Array:
    """The same values without dictionary encoding or an extension type around them."""
    while isinstance(values, pa.ExtensionArray):
        values = values.storage
    return values.dictionary_decode() if isinstance(values, pa.DictionaryArray) else values


def _from_lists(values: pa.Array, column: Column) -> Array:
    """Lists nested ``column.depth`` times (0 for scalars and strings): (rows, *lengths)."""
    dims = [len(values)]
    for level in range(column.depth):
        if not _is_list(values.type):
            _raise_type(column, values.type, f"lists nested {column.depth} deep")
        dims.append(_list_length(values, level, column))
        # Without nulls, flatten is a slice of the child that honours this array's own offset: nothing is copied.
        values = _plain(values.flatten())
        _refuse_nulls(values, column, "inside an array")
    return _from_leaf(values, column).reshape(dims)


def _list_length(values: pa.Array, level: int, column: Column) -> int:
    """The one length that all lists of this level have, checked against the declared one."""
    found: int | None = None
    if pa.types.is_fixed_size_list(values.type):
        found = values.type.list_size
    elif len(values):  # an empty array need not even have an offsets buffer
        lengths = np.diff(values.offsets.to_numpy())
        found = int(lengths[0])
        if (other := _first_other(lengths, found)) is not None:
            _raise_ragged(column, level, found, other)
    return _settle(found, level, column)


def _settle(found: int | None, level: int, column: Column) -> int:
    """A dimension from what the data shows and what the column declares; 0 if neither says."""
    declared = column.shape[level] if column.shape is not None and level < len(column.shape) else None
    if found is None:
        return declared or 0
    if declared is not None and declared != found:
        raise SchemaError(
            f"column {column.name!r} has rows of length {found}, but length {declared} was expected"
            + (f" (dimension {level + 1} of a row)" if level else ""),
            column=column.name,
            expected=f"length {declared}",
            found=f"length {found}",
        )
    return found


def _from_leaf(leaf: pa.Array, column: Column) -> Array:
    """The innermost values, without nulls: (values,) in the column's dtype."""
    kind, found = column.kind, leaf.type
    if pa.types.is_null(found):  # an empty list literal: no values, no type
        return np.empty(0, column.dtype)
    if column.dtype == "object":
        is_fine = _is_binary(found) if kind == "bytes" else _is_string(found)
        if not is_fine:
            _raise_type(column, found, "bytes" if kind == "bytes" else "strings")
        return _as_array(leaf.to_numpy(zero_copy_only=False))
    if pa.types.is_boolean(found):  # bits: Arrow unpacks them in C
        flat = _as_array(leaf.to_numpy(zero_copy_only=False))
    elif pa.types.is_decimal(found):
        flat = _as_array(leaf.cast(pa.float64()).to_numpy())
    elif pa.types.is_integer(found) or pa.types.is_floating(found):
        flat = _as_array(leaf.to_numpy(zero_copy_only=True))
    else:
        _raise_type(column, found, "numbers" if column.depth == 0 else f"numbers in lists nested {column.depth} deep")
    return _cast(flat, np.dtype(column.dtype), f"column {column.name!r}", column.name)


def _from_row_bytes(values: pa.Array, column: Column) -> Array:
    """A binary column, each value the bytes of one row's tensor: (rows, *column.shape)."""
    dtype, shape = np.dtype(column.dtype), column.shape
    if shape is None or None in shape:
        raise SchemaError(f"column {column.name!r} is a tensor without a declared shape", column=column.name)
    if not _is_binary(values.type):
        _raise_type(column, values.type, "binary")
    row_shape = tuple(length for length in shape if length is not None)
    row_bytes = dtype.itemsize * int(np.prod(row_shape, dtype=np.int64))
    rows = len(values)
    if rows == 0:
        return np.empty((0, *row_shape), dtype)
    if pa.types.is_fixed_size_binary(values.type):
        first, found = values.offset * values.type.byte_width, values.type.byte_width
        other = found if found != row_bytes else None
    else:
        wide = pa.types.is_large_binary(values.type)
        item = np.dtype(np.int64 if wide else np.int32)
        offsets = np.frombuffer(values.buffers()[1], item, rows + 1, offset=values.offset * item.itemsize)
        first = int(offsets[0])
        other = _first_other(np.diff(offsets), row_bytes)
    if other is not None:
        raise SchemaError(
            f"column {column.name!r} has a value of {other} bytes, but {column.dtype}{list(row_shape)} "
            f"takes {row_bytes} bytes",
            column=column.name,
            expected=f"{row_bytes} bytes",
            found=f"{other} bytes",
        )
    if row_bytes == 0:  # no data buffer need exist
        return np.empty((rows, *row_shape), dtype)
    raw = np.frombuffer(values.buffers()[-1], np.uint8, rows * row_bytes, offset=first)
    # NumPy's bool is undefined for bytes other than 0 and 1, and nobody has checked these.
    typed = raw != 0 if dtype.kind == "b" else raw.view(dtype)
    return typed.reshape(rows, *row_shape)


def _from_vectors(values: pa.Array, column: Column) -> Array:
    """Spark ML vectors, dense and sparse mixed: (rows, size)."""
    if not _is_vector(values.type):
        _raise_type(column, values.type, "a Spark ML vector (a struct of type, size, indices, values)")
    rows = len(values)
    if rows == 0:
        return np.empty((0, _settle(None, 0, column)), column.dtype)
    # Unlike flatten, field() leaves out the struct's own validity, which has been checked; it honours the offset.
    kinds, sizes, indices, numbers = (values.field(i) for i in range(4))
    _refuse_nulls(kinds, column, "vector type")
    _refuse_nulls(numbers, column, "inside a vector")
    is_dense = kinds.to_numpy() == _DENSE  # (rows,)
    counts = np.diff(numbers.offsets.to_numpy())  # (rows,) stored values
    flat = numbers.flatten()
    _refuse_nulls(flat, column, "inside a vector")
    stored = _from_leaf(flat, column)  # (values,)

    if is_dense.all():
        return stored.reshape(rows, _vector_size(counts, column))

    is_sparse = kinds.to_numpy() == _SPARSE
    if not (is_dense | is_sparse).all():
        raise SchemaError(f"column {column.name!r} has a vector that is neither dense nor sparse", column=column.name)
    _refuse_nulls(sizes.filter(pa.array(is_sparse)), column, "size of a sparse vector")
    size = _vector_size(np.where(is_dense, counts, sizes.fill_null(0).to_numpy()), column)

    result = np.zeros((rows, size), column.dtype)
    of_dense = np.repeat(is_dense, counts)  # (values,) whether a stored value belongs to a dense row
    result[is_dense] = stored[of_dense].reshape(np.count_nonzero(is_dense), size)
    at = _sparse_positions(indices, counts, is_sparse, size, column)  # (sparse values,)
    row = np.repeat(np.flatnonzero(is_sparse), counts[is_sparse])  # (sparse values,)
    result[row, at] = stored[~of_dense]
    return result


def _vector_size(sizes: Array, column: Column) -> int:
    found = int(sizes[0])
    if (other := _first_other(sizes, found)) is not None:
        raise SchemaError(
            f"column {column.name!r} has vectors of size {found} and {other}",
            column=column.name,
            expected=f"size {found}",
            found=f"size {other}",
        )
    return _settle(found, 0, column)


def _sparse_positions(indices: pa.Array, counts: Array, is_sparse: Array, size: int, column: Column) -> Array:
    """Where in its row each stored value of a sparse vector goes: (sparse values,)."""
    # Dense rows have a null here, as a rule; those that do not are cut out before anything is read.
    of_sparse = indices.filter(pa.array(is_sparse))
    _refuse_nulls(of_sparse, column, "inside a sparse vector")
    flat = of_sparse.flatten()
    _refuse_nulls(flat, column, "inside a sparse vector")
    at = _as_array(flat.to_numpy())
    problem = ""
    if not np.array_equal(np.diff(of_sparse.offsets.to_numpy()), counts[is_sparse]):
        problem = "more values than indices, or fewer"
    elif at.size and (at.min() < 0 or at.max() >= size):
        problem = f"an index outside its size of {size}"
    if problem:
        raise SchemaError(f"column {column.name!r} has a sparse vector with {problem}", column=column.name)
    return at


def _convert_map(values: pa.Array, column: Column) -> dict[str, Array]:
    """One chunk with at least one row: a (rows, *row shape) array for each key."""
    if not pa.types.is_map(values.type):
        _raise_type(column, values.type, "a map")
    _refuse_nulls(values, column, "value")
    offsets = values.offsets.to_numpy()
    rows, counts = len(values), np.diff(offsets)
    width = int(counts[0])
    if (other := _first_other(counts, width)) is not None:
        raise SchemaError(
            f"column {column.name!r} has maps of {width} and {other} keys; every row needs the same keys",
            column=column.name,
            expected=f"{width} keys",
            found=f"{other} keys",
        )
    first, entries = int(offsets[0]), rows * width  # keys and items ignore the map's own offset
    encoded = _plain(
        values.keys.slice(first, entries)
    ).dictionary_encode()  # the keys become Python strings once, not once a row
    names: list[str] = encoded.dictionary.to_pylist()
    codes = encoded.indices.to_numpy().reshape(rows, width)
    order = np.argsort(codes, axis=1, kind="stable")  # (rows, width)
    # With exactly the codes 0..width-1 in each row, every row has every key once.
    if len(names) != width or (np.take_along_axis(codes, order, axis=1) != np.arange(width)).any():
        _raise_keys(column, sorted(names[code] for code in codes[0]), sorted(names))
    order += np.arange(rows)[:, None] * width  # positions among the entries
    items = values.items.slice(first, entries)
    inner = replace(column, kind="array" if column.depth else "scalar")
    parts = {name: _convert(items.take(pa.array(order[:, code])), inner) for code, name in enumerate(names)}
    return dict(sorted(parts.items()))


# --- checks -----------------------------------------------------------------------------------------------------------


def _refuse_nulls(values: pa.Array, column: Column, what: str) -> None:
    if values.null_count:
        raise SchemaError(
            f"column {column.name!r} has a null {what}; drop or fill such rows",
            column=column.name,
            expected="no nulls",
            found=f"a null {what}",
        )


def _first_other(numbers: Array, expected: int) -> int | None:
    """The first number that is not the expected one."""
    differs = numbers != expected
    return int(numbers[differs.argmax()]) if differs.any() else None


def _check_same_shape(first: tuple[int, ...], other: tuple[int, ...], column: Column) -> None:
    """Two chunks' row shapes must agree; each chunk's own rows already do."""
    for level, (one, two) in enumerate(zip(first, other, strict=True)):
        if one != two:
            _raise_ragged(column, level, one, two)


def _raise_ragged(column: Column, level: int, found: int, other: int) -> NoReturn:
    what = "rows" if level == 0 else f"arrays at depth {level + 1}"
    raise SchemaError(
        f"column {column.name!r} has {what} of length {found} and {other}; pad or cut them to one length",
        column=column.name,
        expected=f"length {found}",
        found=f"length {other}",
    )


def _raise_type(column: Column, found: pa.DataType, expected: str) -> NoReturn:
    raise SchemaError(
        f"column {column.name!r} holds {found}, but {expected} was expected",
        column=column.name,
        expected=expected,
        found=str(found),
    )


def _raise_keys(column: Column, expected: Sequence[str], found: Sequence[str]) -> NoReturn:
    raise SchemaError(
        f"column {column.name!r} has maps with different keys ({', '.join(expected)} and {', '.join(found)}); "
        "every row needs the same keys, once each",
        column=column.name,
        expected=", ".join(expected),
        found=", ".join(found),
    )


def _cast(flat: Array, dtype: np.dtype[Any], what: str, name: str | None) -> Array:
    """The numbers in another dtype; refuses what would change a value by more than float rounding."""
    if flat.dtype == dtype:
        return flat

    def refuse(problem: str) -> SchemaError:
        return SchemaError(f"{what} has {problem}", column=name, expected=str(dtype), found=str(flat.dtype))

    if dtype.kind not in "biuf":
        # bfloat16 and its like (kind V) are numbers to their own package, which knows how to cast.
        if dtype.kind != "V":
            raise refuse(f"{flat.dtype} values, which do not become {dtype}")
        return flat.astype(dtype)
    if dtype.kind == "f":
        try:
            # The hardware's overflow flag: the check costs no second pass over the values.
            with np.errstate(over="raise"):
                return flat.astype(dtype)
        except FloatingPointError:
            raise refuse(f"a value too large for {dtype}") from None
    if flat.size == 0 or (flat.dtype.kind == "b" and dtype.kind != "b"):
        return flat.astype(dtype)
    if flat.dtype.kind not in "iu":
        low, high = float(flat.min()), float(flat.max())  # NaN fails every comparison below
    else:
        low, high = int(flat.min()), int(flat.max())
    if dtype.kind == "b":
        if not ((flat == 0) | (flat == 1)).all():
            raise refuse("a value other than 0 and 1, which does not become a boolean")
        return flat.astype(dtype)
    info = np.iinfo(dtype)
    # max + 1 is a power of two, so exact as a float where max itself is not.
    if not (low >= info.min and high < info.max + 1):
        raise refuse(f"a value that {dtype} cannot hold, between {low} and {high}")
    whole = flat.astype(dtype)
    if flat.dtype.kind not in "iu" and (whole != flat).any():
        raise refuse(f"a value with a fraction, which does not become {dtype}")
    return whole


# --- NumPy to Arrow ---------------------------------------------------------------------------------------------------


def _to_vectors(array: Array, arrow_type: pa.StructType) -> pa.StructArray:
    """(rows, k) to dense vectors."""
    if array.ndim != 2:
        raise PlanError(f"an array of shape {array.shape} cannot become a column of vectors: a row needs one axis")
    rows = len(array)
    kind, size, indices, numbers = (arrow_type.field(i) for i in range(4))
    parts = [
        pa.array(np.full(rows, _DENSE, np.int8), kind.type),
        pa.nulls(rows, size.type),
        pa.nulls(rows, indices.type),
        _to_lists(array, numbers.type),
    ]
    return pa.StructArray.from_arrays(parts, fields=[kind, size, indices, numbers])


def _to_lists(array: Array, arrow_type: pa.DataType) -> pa.Array:
    """(rows, k, ...) to lists, from the inside out: each axis but the first becomes one level of offsets."""
    levels: list[pa.DataType] = []
    leaf = arrow_type
    while _is_list(leaf):
        levels.append(leaf)
        leaf = leaf.value_type
    if array.ndim != len(levels) + 1:
        raise PlanError(f"an array of shape {array.shape} cannot become a column of {arrow_type}")
    result = _to_flat(array.reshape(-1), leaf)  # (values,)
    for axis in range(len(levels), 0, -1):
        lists, length = int(np.prod(array.shape[:axis], dtype=np.int64)), array.shape[axis]
        result = _to_level(result, lists, length, levels[axis - 1])
    return result


def _to_level(child: pa.Array, lists: int, length: int, arrow_type: pa.DataType) -> pa.Array:
    if pa.types.is_fixed_size_list(arrow_type):
        if arrow_type.list_size != length:
            raise PlanError(f"an axis of length {length} cannot become {arrow_type}")
        # from_arrays would divide by the length to find the number of lists, and the length may be 0.
        return pa.Array.from_buffers(arrow_type, lists, [None], children=[child])
    wide = pa.types.is_large_list(arrow_type)
    offsets = pa.array(_offsets(lists, length, wide))
    return (pa.LargeListArray if wide else pa.ListArray).from_arrays(offsets, child, type=arrow_type)


def _to_row_bytes(array: Array, arrow_type: pa.DataType) -> pa.Array:
    """(rows, ...) of numbers to binary: each row's bytes, in C order."""
    rows = len(array)
    row_bytes = array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))
    if pa.types.is_fixed_size_binary(arrow_type):
        if arrow_type.byte_width != row_bytes:
            raise PlanError(f"rows of {row_bytes} bytes cannot become {arrow_type}")
        buffers = [None]
    else:  # before the values, which may be copied: too many are refused first
        buffers = [None, pa.py_buffer(_offsets(rows, row_bytes, pa.types.is_large_binary(arrow_type)))]
    data = pa.py_buffer(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    return pa.Array.from_buffers(arrow_type, rows, [*buffers, data])


def _offsets(lists: int, length: int, wide: bool) -> Array:
    """(lists + 1,) offsets of lists that all have one length."""
    if not wide and lists * length > _INT32_MAX:
        raise PlanError(
            f"{lists} rows of {length} need {lists * length} places, and one Arrow column of Spark's has "
            f"{_INT32_MAX}; use a smaller batch_size"
        )
    # Not arange with a step: a step of 0 (rows of length 0) would give no offsets at all.
    dtype = np.int64 if wide else np.int32
    return np.multiply(np.arange(lists + 1, dtype=dtype), length, dtype=dtype)


def _to_flat(flat: Array, arrow_type: pa.DataType) -> pa.Array:
    """(values,) to an array of a type without children."""
    if _is_string(arrow_type) or _is_binary(arrow_type):
        if flat.dtype.kind not in "OSUT":
            raise PlanError(f"{flat.dtype} values cannot become a column of {arrow_type}")
        # Arrow reads objects and fixed-width strings in C; NumPy's StringDType (kind T) it does not know everywhere.
        return pa.array(flat.astype(object) if flat.dtype.kind in "ST" else flat, arrow_type)
    if flat.dtype.kind in "OSUT":
        raise PlanError(f"{flat.dtype} values cannot become a column of {arrow_type}")
    if pa.types.is_decimal(arrow_type):
        return pa.array(_cast(flat, np.dtype(np.float64), "the array", None)).cast(arrow_type)
    if not (pa.types.is_integer(arrow_type) or pa.types.is_floating(arrow_type) or pa.types.is_boolean(arrow_type)):
        raise PlanError(f"{flat.dtype} values cannot become a column of {arrow_type}")
    wanted = np.dtype(arrow_type.to_pandas_dtype())
    return pa.array(np.ascontiguousarray(_cast(flat, wanted, "the array", None)), arrow_type)


# --- what an Arrow type is --------------------------------------------------------------------------------------------


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_binary(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind))


def _is_string(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_vector(kind: pa.DataType) -> bool:
    return bool(pa.types.is_struct(kind)) and [field.name for field in kind] == ["type", "size", "indices", "values"]


def _as_array(values: object) -> Array:
    """What pyarrow, which has no type annotations, hands out as an array."""
    assert isinstance(values, np.ndarray)
    return values
