"""How a DataFrame's columns become a model's inputs: shapes that a row is given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from firesteel.core.errors import PlanError

__all__ = [
    "ArrayToTensor",
    "ChainedPreprocessing",
    "MLlibVectorToTensor",
    "Preprocessing",
    "ScalarToTensor",
    "SeqToMultipleTensors",
    "SeqToTensor",
    "shapes_of",
]

Shapes = tuple[tuple[int, ...] | None, ...]


class Preprocessing:
    """Says what shapes a row's columns, joined, are given: one for each input."""

    shapes: Shapes

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(str, self.shapes))})"


class SeqToTensor(Preprocessing):
    """One input of this size; without a size, as long as the columns are."""

    def __init__(self, size: Sequence[int] = (), bigdl_type: str = "float") -> None:
        self.shapes = (_size(type(self).__name__, size),)


class ArrayToTensor(SeqToTensor):
    """An array column as one input of this size."""

    def __init__(self, size: Sequence[int], bigdl_type: str = "float") -> None:
        super().__init__(size, bigdl_type)


class MLlibVectorToTensor(SeqToTensor):
    """A vector column as one input of this size."""

    def __init__(self, size: Sequence[int], bigdl_type: str = "float") -> None:
        super().__init__(size, bigdl_type)


class ScalarToTensor(Preprocessing):
    """A number as a vector of one."""

    def __init__(self, bigdl_type: str = "float") -> None:
        self.shapes = ((1,),)


class SeqToMultipleTensors(Preprocessing):
    """Several inputs: the columns are joined and dealt out to these sizes."""

    def __init__(self, size: Sequence[Sequence[int]] = (), bigdl_type: str = "float") -> None:
        self.shapes = tuple(_size(type(self).__name__, each) for each in size)
        if not self.shapes or None in self.shapes:
            raise PlanError(f"SeqToMultipleTensors takes a list of sizes such as [[1], [2, 2]], not {size!r}")


class ChainedPreprocessing(Preprocessing):
    """One after another. Each gives the numbers another shape, so it is the last that counts."""

    def __init__(self, transformers: Sequence[Preprocessing], bigdl_type: str = "float") -> None:
        listed = list(transformers)
        if not listed or not all(isinstance(each, Preprocessing) for each in listed):
            raise PlanError(f"ChainedPreprocessing takes a list of preprocessings, not {transformers!r}")
        sized = [each.shapes for each in listed if each.shapes != (None,)]
        self.shapes = sized[-1] if sized else (None,)


def shapes_of(given: Any, what: str) -> Shapes | None:
    """The shapes that the user asked for: a preprocessing, a size, a list of sizes, or ``None``."""
    if given is None or isinstance(given, Preprocessing):
        return None if given is None else given.shapes
    if isinstance(given, tuple) and all(each is None for each in given):
        return given  # as this function gave it
    if isinstance(given, (list, tuple)) and given:
        is_many = all(isinstance(each, (list, tuple)) for each in given)
        return (SeqToMultipleTensors(given) if is_many else SeqToTensor(given)).shapes
    raise PlanError(
        f"{what} is a preprocessing of firesteel.bigdl.feature.common or a list of sizes, one per input, not {given!r}"
    )


def _size(name: str, size: Any) -> tuple[int, ...] | None:
    lengths = (size,) if isinstance(size, int) else tuple(size)
    if not all(isinstance(length, int) and not isinstance(length, bool) and length > 0 for length in lengths):
        raise PlanError(f"{name} takes a size of whole numbers above 0, not {size!r}")
    return lengths or None
