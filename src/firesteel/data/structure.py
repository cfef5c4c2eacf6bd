"""Nested structures of arrays: tuples, lists and dicts, nested at will, whose leaves are ndarrays with one row count.

``{"x": (a, b), "y": c}`` is such a structure; so is a bare ndarray. Everything here keeps the structure and
works on the leaves, in order: a dict's leaves come in its own order of keys. NumPy only; no Spark.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from firesteel.core.errors import PlanError

__all__ = [
    "Array",
    "Structure",
    "cut",
    "even_boundaries",
    "is_structure",
    "join",
    "leaves",
    "map_leaves",
    "rows",
    "type_name",
]

Array = npt.NDArray[Any]

Structure = Any
"""An ndarray, or a tuple, list or dict of structures. (``Any``: what a user hands in is checked when it is used.)"""


def map_leaves(function: Callable[[Array], Any], structure: Structure) -> Any:
    """The same containers with ``function(leaf)`` in the place of each leaf.

    A named tuple stays one; a dict of a subclass becomes a plain dict.

    Raises:
        PlanError: a leaf or container of another type.
    """
    if isinstance(structure, np.ndarray):
        return function(structure)
    if isinstance(structure, dict):
        return {key: map_leaves(function, value) for key, value in structure.items()}
    if isinstance(structure, (tuple, list)):
        return _sequence_like(structure, [map_leaves(function, value) for value in structure])
    raise _unsupported(structure)


def leaves(structure: Structure) -> list[Array]:
    """The ndarrays of a structure, in order. Raises ``PlanError`` for a leaf or container of another type."""
    found: list[Array] = []
    map_leaves(found.append, structure)
    return found


def rows(structure: Structure) -> int:
    """The leaves' common first dimension.

    Raises:
        PlanError: no leaf at all, a leaf without dimensions, or first dimensions that differ.
    """
    arrays = leaves(structure)
    if not arrays:
        raise PlanError(f"found an empty {type_name(structure)}: it has no ndarray, so no rows")
    for array in arrays:
        if array.ndim == 0:
            raise PlanError("found an ndarray without dimensions, where each one needs rows as its first dimension")
    first = len(arrays[0])
    for array in arrays:
        if len(array) != first:
            raise PlanError(f"all arrays must have the same size in first dimension, found {first} and {len(array)}")
    return first


def is_structure(value: object) -> bool:
    """Whether ``rows`` and ``cut`` work on this value."""
    try:
        rows(value)
    except PlanError:
        return False
    return True


def even_boundaries(row_count: int, pieces: int) -> list[int]:
    """Where to ``cut`` so that pieces differ by one row at most, the longer ones first, as ``numpy.array_split`` does.

    >>> even_boundaries(10, 3)
    [0, 4, 7, 10]
    """
    size, longer = divmod(row_count, pieces)
    return [piece * size + min(piece, longer) for piece in range(pieces + 1)]


def cut(structure: Structure, boundaries: Sequence[int]) -> list[Any]:
    """The structure in pieces: piece ``i`` has the rows from ``boundaries[i]`` to ``boundaries[i + 1]``.

    The pieces are views: they share memory with ``structure``.

    Raises:
        PlanError: not a structure of ndarrays with one row count, or boundaries that do not ascend within its rows.
    """
    row_count = rows(structure)
    limits = [0, *boundaries, row_count]
    if any(start > stop for start, stop in itertools.pairwise(limits)):
        raise PlanError(f"boundaries must ascend from 0 to {row_count}, the rows there are; found {list(boundaries)}")
    spans = [slice(start, stop) for start, stop in itertools.pairwise(boundaries)]
    return [map_leaves(lambda leaf, span=span: leaf[span], structure) for span in spans]  # type: ignore[misc]


def join(structures: Sequence[Structure]) -> Any:
    """One structure with the rows of all, in order: ``cut``'s inverse.

    Raises:
        PlanError: nothing to join, or structures that differ in their containers, keys or row shapes.
    """
    if not structures:
        raise PlanError("there is nothing to join: no structure was given")
    first = structures[0]
    for other in structures[1:]:
        if not _fits(first, other):
            raise PlanError(f"structures to join differ: {_outline(first)} and {_outline(other)}")
    if isinstance(first, np.ndarray):
        return _concatenate(structures)
    if isinstance(first, dict):  # by key: two dicts may have the same keys in another order
        return {key: join([structure[key] for structure in structures]) for key in first}
    if isinstance(first, (tuple, list)):
        return _sequence_like(first, [join(values) for values in zip(*structures, strict=True)])
    raise _unsupported(first)


def _fits(first: Structure, other: Structure) -> bool:
    if isinstance(first, np.ndarray):
        return isinstance(other, np.ndarray)
    if isinstance(first, dict):
        return isinstance(other, dict) and first.keys() == other.keys()
    # Anything that is no container is told to the user by `join` itself.
    return type(first) is type(other) and (not isinstance(first, (tuple, list)) or len(first) == len(other))


def _concatenate(arrays: Sequence[Array]) -> Array:
    if len(arrays) == 1:
        return arrays[0]
    # NumPy would turn a big-endian dtype into the machine's own, though all arrays agree; naming it keeps it.
    dtypes = {array.dtype for array in arrays}
    try:
        if len(dtypes) == 1:
            return np.concatenate(arrays, dtype=dtypes.pop())
        return np.concatenate(arrays)
    except (TypeError, ValueError) as error:
        found = ", ".join(sorted({f"{array.dtype}{array.shape[1:]}" for array in arrays}))
        raise PlanError(f"arrays to join differ in their row shape or dtype: {found}") from error


def _unsupported(value: object) -> PlanError:
    return PlanError(
        f"found {type_name(value)} where only ndarray, tuple, list and dict are supported, nested at will with "
        f"ndarrays as leaves. Convert it with numpy.asarray first."
    )


def _outline(structure: Structure) -> str:
    """The containers and keys as text, with a dot for each leaf."""
    if isinstance(structure, dict):
        return "{" + ", ".join(f"{key!r}: {_outline(value)}" for key, value in structure.items()) + "}"
    if isinstance(structure, tuple):
        return "(" + "".join(f"{_outline(value)}, " for value in structure) + ")"
    if isinstance(structure, list):
        return "[" + ", ".join(_outline(value) for value in structure) + "]"
    return "." if isinstance(structure, np.ndarray) else type_name(structure)


def _sequence_like(original: tuple[Any, ...] | list[Any], items: list[Any]) -> Any:
    if isinstance(original, list):
        return items
    if hasattr(original, "_fields"):  # a named tuple takes its items one by one
        return type(original)(*items)
    return tuple(items)


def type_name(value: object) -> str:
    """A value's type, for a message."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
