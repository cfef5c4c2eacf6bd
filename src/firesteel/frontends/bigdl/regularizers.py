"""Regularizers: what is added to the gradient of a weight, once in every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from firesteel.core.schedules import NonNegative, Value

__all__ = ["L1L2Regularizer", "L1Regularizer", "L2Regularizer", "Regularizer"]


@dataclass(frozen=True)
class Regularizer(Value):
    """Adds ``l1·sign(w) + l2·w`` to a weight's gradient. The reported loss stays the criterion's."""

    _abstract: ClassVar[bool] = True

    @property
    def strengths(self) -> tuple[float, float]:
        """l1 and l2."""
        return float(getattr(self, "l1", 0.0)), float(getattr(self, "l2", 0.0))


@dataclass(frozen=True)
class L1Regularizer(Regularizer):
    """Adds ``l1·sign(w)``."""

    l1: NonNegative


@dataclass(frozen=True)
class L2Regularizer(Regularizer):
    """Adds ``l2·w``."""

    l2: NonNegative


@dataclass(frozen=True)
class L1L2Regularizer(Regularizer):
    """Adds ``l1·sign(w) + l2·w``."""

    l1: NonNegative
    l2: NonNegative
