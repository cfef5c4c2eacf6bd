"""Distributed rows with the words of ``tf.data``: what Keras and graph estimators take. Needs no TensorFlow itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from firesteel.core.errors import PlanError
from firesteel.data.shards import XShards
from firesteel.data.shards.kinds import type_name

__all__ = ["Dataset"]


class Dataset:
    """Rows of an XShards, with functions to put each through. Lazy: nothing runs until the rows are used.

    Made by ``Dataset.from_tensor_slices`` or ``ParquetDataset.read_as_tf``.
    """

    def __init__(self, shards: XShards, functions: tuple[Callable[..., Any], ...] = ()) -> None:
        self._shards = shards
        self._functions = functions

    @staticmethod
    def from_tensor_slices(xshards: XShards) -> Dataset:
        """The rows of shards that are arrays, or tuples or dicts of arrays, nested at will.

        As for ``tf.data``, a list is data: each of its items belongs to one row (``ParquetDataset`` has images so).
        """
        if not isinstance(xshards, XShards):
            raise PlanError(f"from_tensor_slices needs an XShards, found {type_name(xshards)}")
        return Dataset(xshards)

    def map(self, map_func: Callable[..., Any]) -> Dataset:
        """``map_func`` on each row, in tasks.

        It gets ndarrays and scalars (a tuple's parts as arguments of their own, as in ``tf.data``), may use TensorFlow,
        and returns arrays, numbers or tensors, alone or in tuples and dicts; a list becomes one array.
        """
        if not callable(map_func):
            raise PlanError(f"map needs a function of a row, found {type_name(map_func)}")
        return Dataset(self._shards, (*self._functions, map_func))

    @property
    def xshards(self) -> XShards:
        """The rows after all functions: shards that are arrays, or tuples or dicts of arrays.

        A shard without rows is left out where there are functions: nothing says what its rows would have become.
        """
        if not self._functions:
            return self._shards
        return self._shards._map_partitions(partial(_map_shards, self._functions), unshared=True)


def _map_shards(functions: tuple[Callable[..., Any], ...], partition: int, shards: Iterator[Any]) -> Iterator[Any]:
    for shard in shards:
        count = _rows(shard)
        if not count:
            continue
        stack = _Stack(_mapped(functions, _row(shard, 0)), count)
        for index in range(1, count):
            stack.put(index, _mapped(functions, _row(shard, index)))
        yield stack.whole()


def _mapped(functions: tuple[Callable[..., Any], ...], row: Any) -> Any:
    for function in functions:
        row = function(*row) if isinstance(row, tuple) else function(row)
    return row


# A shard's rows


def _rows(shard: Any) -> int:
    counts = {len(leaf) for leaf in _leaves(shard)}
    if len(counts) != 1:
        found = ", ".join(map(str, sorted(counts))) or "none"
        raise PlanError(f"all arrays of a shard must have the same size in first dimension, found {found}")
    return counts.pop()


def _leaves(shard: Any) -> Iterator[Any]:
    if isinstance(shard, (dict, tuple)):
        for part in shard.values() if isinstance(shard, dict) else shard:
            yield from _leaves(part)
    elif isinstance(shard, list) or (isinstance(shard, np.ndarray) and shard.ndim):
        yield shard
    else:
        raise PlanError(f"shards must be arrays, or tuples or dicts of arrays, found {type_name(shard)}")


def _row(shard: Any, index: int) -> Any:
    """A row in memory of its own: a function that changes it changes no shard."""
    if isinstance(shard, dict):
        return {key: _row(part, index) for key, part in shard.items()}
    if isinstance(shard, tuple):
        return tuple(_row(part, index) for part in shard)
    cell = shard[index]
    return cell.copy() if isinstance(cell, np.ndarray) else cell


# Rows stacked again


class _Stack:
    """The rows of a shard as they come: one array for each leaf, made when the first row shows what it is."""

    def __init__(self, first: Any, count: int) -> None:
        self._first = first
        self._arrays = [_room(leaf, count) for leaf in _leaves_like(first, first)]
        self.put(0, first)

    def put(self, index: int, row: Any) -> None:
        for place, leaf in enumerate(_leaves_like(self._first, row)):
            array = self._arrays[place]
            is_array = isinstance(leaf, np.ndarray)
            shape, dtype = (leaf.shape, leaf.dtype) if is_array else ((), np.dtype(object))
            if shape != array.shape[1:]:
                raise PlanError(f"map must give each row the same shape, found {array.shape[1:]} and {shape}")
            if dtype != array.dtype:  # an int here, a float there: what both fit
                array = self._arrays[place] = array.astype(np.result_type(array.dtype, dtype))
            array[index] = leaf

    def whole(self) -> Any:
        return _rebuilt(self._first, iter(self._arrays))


def _leaves_like(first: Any, row: Any) -> Iterator[Any]:
    """A row's leaves in the order that the first row has them."""
    if isinstance(first, dict) and isinstance(row, dict) and first.keys() == row.keys():
        for key, part in first.items():
            yield from _leaves_like(part, row[key])
    elif isinstance(first, tuple) and isinstance(row, tuple) and len(first) == len(row):
        for part, other in zip(first, row, strict=True):
            yield from _leaves_like(part, other)
    elif isinstance(first, (dict, tuple)) or isinstance(row, (dict, tuple)):
        raise PlanError(f"map gave rows of several structures: {_outline(first)} and {_outline(row)}")
    else:
        yield _leaf(row)


def _leaf(value: Any) -> Any:
    """An array; strings and bytes as they are, for NumPy's own types cut off zeros at their ends."""
    if isinstance(value, (str, bytes)):
        return value
    array = np.asarray(value)
    if array.dtype.kind in "SUO" and array.ndim == 0:
        return array.item()
    return array.astype(object) if array.dtype.kind in "SU" else array


def _room(leaf: Any, count: int) -> Any:
    if isinstance(leaf, np.ndarray):
        return np.empty((count, *leaf.shape), leaf.dtype)
    return np.empty(count, object)


def _rebuilt(first: Any, arrays: Iterator[Any]) -> Any:
    if isinstance(first, dict):
        return {key: _rebuilt(part, arrays) for key, part in first.items()}
    if isinstance(first, tuple):
        return tuple(_rebuilt(part, arrays) for part in first)
    return next(arrays)


def _outline(row: Any) -> str:
    if isinstance(row, dict):
        return "{" + ", ".join(f"{key!r}: {_outline(part)}" for key, part in row.items()) + "}"
    if isinstance(row, tuple):
        return "(" + ", ".join(map(_outline, row)) + ")"
    return type_name(row)
