"""What a graph measures of itself: tensors averaged over rows, as states that add up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from firesteel.core.metrics import Metric

__all__ = ["Measure", "TensorMean"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Measure:
    """How a figure is fed: with one tensor, whose mean it is, or with predictions and targets.

    ``shift`` is added to the targets, for metrics that count classes from 1.
    """

    name: str
    tensor: str
    target: str | None = None
    shift: int = 0

    @property
    def tensors(self) -> list[str]:
        """What is fetched for it."""
        return [self.tensor] if self.target is None else [self.tensor, self.target]


class TensorMean(Metric):
    """The mean of a tensor over all rows: of its values where it has one or more for each row.

    A scalar is taken as a mean over its batch, and weighted by rows.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        super().__init__(name=name)

    def add(self, values: Any, rows: int) -> None:
        """A batch's value of the tensor."""
        found = np.asarray(values)
        if found.dtype.kind == "V":
            found = found.astype(np.float32)
        if found.ndim and len(found) == rows:
            self._absorb({"total": np.asarray(found.sum(dtype=np.float64)), "count": np.asarray(float(found.size))})
        else:
            self._absorb({"total": np.asarray(found.mean(dtype=np.float64) * rows), "count": np.asarray(float(rows))})

    def compute(self) -> float:
        """The mean; nan without rows."""
        count = float(self._state["count"])
        return float(self._state["total"]) / count if count else float("nan")

    def get_name(self) -> str:
        """The name that the user gave."""
        return self._name

    def _empty(self) -> dict[str, Array]:
        return {"total": np.zeros(()), "count": np.zeros(())}

    def _measure(self, preds: Array, targets: Array) -> dict[str, Array]:
        raise AssertionError("a tensor's mean is fed by its graph")
