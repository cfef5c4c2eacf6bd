"""The validation method that needs a criterion: ``Loss``. The others are in ``core.validation``."""

from __future__ import annotations

from typing import Any

import numpy as np

from firesteel.core.errors import PlanError
from firesteel.core.metrics import Metric
from firesteel.frontends.bigdl.criterions import ClassNLLCriterion, Criterion
from firesteel.frontends.bigdl.described import bench

__all__ = ["Loss"]


class Loss(Metric):
    """A criterion's value over all rows, by default of `ClassNLLCriterion`."""

    def __init__(self, cri: Criterion | None = None, *, bigdl_type: str = "float") -> None:
        if cri is not None and not isinstance(cri, Criterion):
            raise PlanError(f"Loss takes a criterion of firesteel.bigdl.nn.criterion, not {type(cri).__qualname__}")
        self._criterion = cri or ClassNLLCriterion()
        super().__init__(cri=cri)

    def _empty(self) -> dict[str, Any]:
        return {"sums": np.zeros(0), "masses": np.zeros(0)}

    def __call__(self, preds: Any, targets: Any) -> None:
        """Adds one batch."""
        sums, masses = bench().loss_parts(self._criterion.to_torch(), preds, targets, self._criterion.dtype)
        self._absorb({"sums": np.array(sums), "masses": np.array(masses)})

    def _absorb(self, state: dict[str, Any]) -> None:
        for name, values in state.items():
            self._state[name] = values.copy() if not len(self._state[name]) else self._state[name] + values

    def _measure(self, preds: Any, targets: Any) -> dict[str, Any]:
        raise AssertionError("Loss reads tensors itself")

    def merge(self, other: Metric) -> None:
        """Adds the rows that ``other`` has seen."""
        if len(other._state["sums"]):
            super().merge(other)

    def compute(self) -> float:
        """The loss; nan without rows."""
        sums, masses = self._state["sums"], self._state["masses"]
        if not np.any(masses):
            return float("nan")
        return float(np.divide(sums, masses, out=np.zeros(len(sums)), where=masses != 0).sum())

    def _identity(self) -> tuple[Any, ...]:
        # By its settings: a criterion that was shipped to two tasks comes back as two.
        return type(self), repr(self._criterion)
