"""How weights begin: values that a bench fills arrays by. A fan is how many numbers go into, or out of, one unit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from firesteel.core.errors import PlanError
from firesteel.core.schedules import Flag, NonNegative, Number, Value

__all__ = [
    "BilinearFiller",
    "ConstInitMethod",
    "InitializationMethod",
    "MsraFiller",
    "Ones",
    "RandomNormal",
    "RandomUniform",
    "Xavier",
    "Zeros",
]


@dataclass(frozen=True)
class InitializationMethod(Value):
    """A way to begin."""

    _abstract: ClassVar[bool] = True


@dataclass(frozen=True)
class Zeros(InitializationMethod):
    """All 0."""


@dataclass(frozen=True)
class Ones(InitializationMethod):
    """All 1."""


@dataclass(frozen=True)
class ConstInitMethod(InitializationMethod):
    """All ``value``."""

    value: Number


@dataclass(frozen=True)
class RandomUniform(InitializationMethod):
    """Uniform between the two bounds, in whichever order they come; without them ±1/√fan_in."""

    upper: Number | None = None
    lower: Number | None = None

    def __post_init__(self, bigdl_type: str) -> None:
        super().__post_init__(bigdl_type)
        if (self.upper is None) != (self.lower is None):
            raise PlanError("RandomUniform takes both bounds or none.")


@dataclass(frozen=True)
class RandomNormal(InitializationMethod):
    """Normal with this mean and standard deviation."""

    mean: Number
    stdv: NonNegative


@dataclass(frozen=True)
class Xavier(InitializationMethod):
    """Uniform between ±√(6 / (fan_in + fan_out))."""


@dataclass(frozen=True)
class MsraFiller(InitializationMethod):
    """Normal with standard deviation √(2/n); n is the mean of the fans, else fan_out."""

    varianceNormAverage: Flag = True


@dataclass(frozen=True)
class BilinearFiller(InitializationMethod):
    """The kernel that interpolates between pixels, for a convolution that enlarges; it must be square."""
