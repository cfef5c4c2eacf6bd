"""What a layer's or a criterion's settings may be: the limits that stand in their annotations."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from firesteel.core.schedules import (
    Count,
    Flag,
    Limit,
    NonNegative,
    Number,
    PositiveCount,
    Whole,
)

__all__ = [
    "Axis",
    "Choice",
    "Count",
    "Flag",
    "Format",
    "Format3D",
    "Infer",
    "NonNegative",
    "Number",
    "Numbers",
    "Pad",
    "Pair",
    "Positive",
    "PositiveCount",
    "Probability",
    "Sizes",
    "Triple",
    "TwoSizes",
    "Whole",
]


@dataclass(frozen=True)
class Choice(Limit):
    """One of some names; upper and lower case are the same."""

    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, *names: str) -> Choice:
        """A choice between these names."""
        return cls(" or ".join(f'"{name}"' for name in names), names=names)

    def plain(self, value: Any) -> Any:
        """The name as it is written here."""
        found = [name for name in self.names if isinstance(value, str) and name.lower() == value.lower()]
        if not found:
            raise ValueError
        return found[0]


@dataclass(frozen=True)
class _Array(Limit):
    def plain(self, value: Any) -> Any:
        """A float array, whatever holds the numbers."""
        array = np.asarray(value.to_ndarray() if hasattr(value, "to_ndarray") else value)
        if array.dtype.kind not in "biuf":
            raise ValueError
        return array.astype(np.float64)


@dataclass(frozen=True)
class _Lengths(Limit):
    exactly: int | None = None

    def plain(self, value: Any) -> Any:
        """A tuple of whole numbers; one alone is a tuple of one, where any length will do."""
        items = value.tolist() if hasattr(value, "tolist") else value
        if isinstance(items, numbers.Integral) and self.exactly is None:
            items = (items,)
        lengths = tuple(self._one(item) for item in items)
        if not lengths or self.exactly not in (None, len(lengths)):
            raise ValueError
        return lengths


def _whole(words: str, least: int) -> Limit:
    return Limit(words, lambda value: value >= least, numbers.Integral)


Axis = Annotated[int, Limit("an axis, from 1 or negative from the end", lambda value: value != 0, numbers.Integral)]
Pad = Annotated[int, _whole("a whole number >= 0, or -1 for the same size", -1)]
Positive = Annotated[float, Limit("a number > 0", lambda value: value > 0)]
Probability = Annotated[float, Limit("a number from 0 to 1", lambda value: 0 <= value <= 1)]
Numbers = Annotated[npt.NDArray[Any] | Sequence[Any], _Array("an array of numbers")]
Sizes = Annotated[
    int | Sequence[int], _Lengths("a size or a list of sizes >= 1", lambda value: value >= 1, numbers.Integral)
]
Infer = Annotated[
    int | Sequence[int],
    _Lengths("a list of sizes, where -1 is worked out", lambda value: value >= -1, numbers.Integral),
]
Pair = Annotated[
    Sequence[int], _Lengths("a pair of whole numbers >= 0", lambda value: value >= 0, numbers.Integral, exactly=2)
]
Triple = Annotated[
    Sequence[int], _Lengths("three whole numbers >= 1", lambda value: value >= 1, numbers.Integral, exactly=3)
]
TwoSizes = Annotated[
    Sequence[int], _Lengths("a pair of sizes >= 1", lambda value: value >= 1, numbers.Integral, exactly=2)
]
Format = Annotated[str, Choice.of("NCHW", "NHWC")]
Format3D = Annotated[str, Choice.of("channel_first", "channel_last")]
