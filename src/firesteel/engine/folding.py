"""Rows folded into one by a program, all of them or key by key: in blocks or in pairs, and what comes of those again.

A block may be cut anywhere, for the program is associative. Blocks have a power of two rows, so that a framework that
compiles for each shape does so a few times; blocks of one size, of many keys, go through the replica together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from firesteel.core.columns import ColumnReplica, shape_text
from firesteel.core.errors import SchemaError
from firesteel.core.plan import Reduce
from firesteel.core.spec import Batch, TensorSpec, rows_of
from firesteel.data.cells import Read, checked
from firesteel.data.columns import TensorColumn

__all__ = ["Folding", "codes_of", "folding_of", "joined", "most_rows", "result_read"]

Array = npt.NDArray[Any]

_BLOCK_BYTES = 1 << 23
_MOST_ROWS = 1 << 16


@dataclass(frozen=True)
class Folding:
    """How a program folds: a ``Reduce`` without its program. Batches are named after the columns."""

    outputs: tuple[TensorSpec, ...]
    each: str
    is_algebraic: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that are folded."""
        return tuple(spec.name for spec in self.outputs)

    def fold(self, replica: ColumnReplica, rows: Batch, *, is_raw: bool) -> Batch:
        """All rows, of which there is at least one, as one. Rows that are themselves results of folds are not raw.

        A raw row goes through a program for blocks even when it is alone; a result does not go through it again.
        """
        if self.each == "row":
            return self._in_pairs(replica, rows)
        while True:
            count = rows_of(rows)
            if count == 1 and not is_raw:
                return rows
            parts = []
            for begin, size in self._cuts(rows, count):
                block = {name: values[begin : begin + size] for name, values in rows.items()}
                parts.append(block if size == 1 and not is_raw else self._block(replica, block))
            rows, is_raw = joined(parts), False

    def _cell(self, values: Array, spec: TensorSpec, rows: int = 1) -> Array:
        """Results in the column's own dtype, also where a sum of its kind is wider."""
        return checked(values, spec, rows=rows, is_narrow=True)

    def _cuts(self, rows: Batch, count: int) -> Iterator[tuple[int, int]]:
        if not self.is_algebraic:
            yield 0, count
            return
        begin, most = 0, most_rows(rows)
        while begin < count:
            size = min(most, 1 << ((count - begin).bit_length() - 1))
            yield begin, size
            begin += size

    def _block(self, replica: ColumnReplica, block: Batch) -> Batch:
        found = replica.forward({f"{name}_input": values for name, values in block.items()})
        return {spec.name: self._cell(np.asarray(found[spec.name])[None], spec) for spec in self.outputs}

    def _in_pairs(self, replica: ColumnReplica, rows: Batch) -> Batch:
        """Neighbours into one, again and again; the order of the rows stays."""
        while (count := rows_of(rows)) > 1:
            end = count - count % 2
            pairs = {f"{name}_1": values[0:end:2] for name, values in rows.items()}
            pairs |= {f"{name}_2": values[1:end:2] for name, values in rows.items()}
            found = replica.rows(pairs)
            made = {spec.name: self._cell(_stacked(found[spec.name], spec), spec, end // 2) for spec in self.outputs}
            rest = [{name: values[end:] for name, values in rows.items()}] if end < count else []
            rows = joined([made, *rest])
        return rows

    def fold_keys(self, replica: ColumnReplica, rows: Batch, counts: Array, *, is_raw: bool) -> Batch:
        """One row for each key. The rows of a key follow each other; ``counts`` says how many each has."""
        while is_raw or (counts > 1).any():
            begins, sizes, parts = self._key_cuts(rows, counts)
            made: dict[str, Array] = {}
            for size in np.unique(sizes):
                which = np.flatnonzero(sizes == size)
                if size == 1 and not is_raw:
                    found = {name: values[begins[which]] for name, values in rows.items()}
                else:
                    places = begins[which][:, None] + np.arange(size)
                    found = self._blocks(replica, {name: values[places] for name, values in rows.items()})
                for name, values in found.items():
                    if name not in made:
                        made[name] = np.empty((len(begins), *values.shape[1:]), values.dtype)
                    _check_alike(name, made[name].shape[1:], values.shape[1:])
                    made[name][which] = values
            rows, counts, is_raw = made, parts, False
        return rows

    def _blocks(self, replica: ColumnReplica, blocks: Batch) -> Batch:
        """Blocks of one size, ``(blocks, size, *cell)``, as a row each."""
        count = rows_of(blocks)
        found = replica.rows({f"{name}_input": values for name, values in blocks.items()})
        return {spec.name: self._cell(_stacked(found[spec.name], spec), spec, count) for spec in self.outputs}

    def _key_cuts(self, rows: Batch, counts: Array) -> tuple[Array, Array, Array]:
        """Where blocks begin and how long they are, in the order of rows; and how many each key has."""
        firsts = np.cumsum(counts) - counts
        if not self.is_algebraic:
            return firsts, counts, np.ones_like(counts)
        bits = most_rows(rows).bit_length() - 1
        owners, begins, sizes = [], [], []
        whole = counts >> bits  # blocks of the largest size
        owner = np.repeat(np.arange(len(counts)), whole)
        number = np.arange(len(owner)) - np.repeat(np.cumsum(whole) - whole, whole)
        owners.append(owner)
        begins.append(firsts[owner] + (number << bits))
        sizes.append(np.full(len(owner), 1 << bits))
        for bit in range(bits - 1, -1, -1):
            owner = np.flatnonzero(counts >> bit & 1)
            owners.append(owner)
            begins.append(firsts[owner] + (counts[owner] >> (bit + 1) << (bit + 1)))
            sizes.append(np.full(len(owner), 1 << bit))
        every = np.concatenate(begins)
        order = np.argsort(every)
        parts = np.bincount(np.concatenate(owners), minlength=len(counts))
        return every[order], np.concatenate(sizes)[order], parts


def folding_of(plan: Reduce) -> Folding:
    """The folding of a plan."""
    return Folding(plan.outputs, plan.each, plan.is_algebraic)


def result_read(spec: TensorSpec) -> Read:
    """How a result of a fold is read: an array, also where the column holds vectors."""
    return Read(spec.name, TensorColumn(spec.name, spec.dtype, (None, *spec.shape)), spec.dtype)


def most_rows(rows: Batch) -> int:
    """How many rows a block has at most: a power of two."""
    row_bytes = sum(values.nbytes for values in rows.values()) // max(1, rows_of(rows))
    fitting = max(2, _BLOCK_BYTES // max(1, row_bytes))
    return min(_MOST_ROWS, 1 << (fitting.bit_length() - 1))


def joined(parts: Sequence[Batch]) -> Batch:
    """Batches one after the other; ``SchemaError`` where their cells differ in shape."""
    if len(parts) == 1:
        return parts[0]
    for part in parts[1:]:
        for name, values in part.items():
            _check_alike(name, parts[0][name].shape[1:], values.shape[1:])
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _check_alike(name: str, one: tuple[int, ...], other: tuple[int, ...]) -> None:
    if one != other:
        raise SchemaError(
            f"column {name!r} has cells of shape {shape_text(one)} and {shape_text(other)}; a fold needs one shape",
            column=name,
            expected=shape_text(one),
            found=shape_text(other),
        )


def _stacked(value: Any, spec: TensorSpec) -> Array:
    if isinstance(value, list):
        shapes = [np.shape(each) for each in value]
        _check_alike(spec.name, shapes[0], next((shape for shape in shapes if shape != shapes[0]), shapes[0]))
    return np.asarray(value)


# --- keys -------------------------------------------------------------------------------------------------------------


def codes_of(columns: Sequence[pa.Array]) -> Array:
    """A number for each row, from 0 in the order of their first rows: equal where all keys are. Nulls are equal."""
    codes: Array | None = None
    for column in columns:
        found = _codes(column)
        codes = found if codes is None else _renumbered(codes * (int(found.max(initial=0)) + 1) + found)
    assert codes is not None
    return codes


def _renumbered(codes: Array) -> Array:
    return np.asarray(pa.array(codes).dictionary_encode().indices.to_numpy()).astype(np.int64)


def _codes(column: pa.Array) -> Array:
    while isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_struct(column.type):
        valid = column.is_valid().to_numpy(zero_copy_only=False).astype(np.int64)
        return codes_of([pa.array(valid), *column.flatten()]) if len(column.type) else _renumbered(valid)
    try:
        encoded = column.dictionary_encode(null_encoding="encode")
    except pa.ArrowNotImplementedError:  # lists: a Python object for each row, as a rare key may have
        encoded = pa.array([repr(value) for value in column.to_pylist()]).dictionary_encode()
    return np.asarray(encoded.indices.to_numpy()).astype(np.int64)
