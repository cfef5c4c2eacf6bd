"""A BigDL criterion as the torch replica wants a loss: its share of a step, its mass, weights of rows."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch

from firesteel.core.errors import PlanError
from firesteel.frameworks.bigdl.criterions import Criterion

__all__ = ["CriterionLoss"]


class CriterionLoss:
    """The face of ``frameworks.torch.losses.Criterion`` on a criterion of ours."""

    def __init__(self, loss: Criterion, class_weight: dict[int, float] | None = None) -> None:
        self.loss = loss
        self.class_weight = class_weight
        self.is_sum = loss.kind == "sum"
        self.has_mass = loss.kind == "mass" and class_weight is None
        self.is_mixed = loss.kind is None and class_weight is None
        """Whether its parts divide by several things, each by its own over the whole step."""

    @cached_property
    def plain(self) -> CriterionLoss:
        """The same loss without class weights."""
        return self if self.class_weight is None else CriterionLoss(self.loss)

    def mass(self, target: Any) -> float:
        """What the mean over these targets divides by."""
        (found,) = self.loss.masses(target, _length(target))
        return found

    def masses(self, target: Any, rows: int) -> Any:
        """What each part divides by, and the rows."""
        return np.array([*self.loss.masses(target, rows), rows], dtype=np.float64)

    def __call__(self, output: Any, target: Any, weight: torch.Tensor | None = None) -> tuple[torch.Tensor, Any]:
        """The loss of these rows, and the target used."""
        if self.class_weight is not None:
            by_class = self._class_weights(target)
            weight = by_class if weight is None else weight * by_class
        if weight is None:
            return self.loss(output, target), target
        rows = self.loss.rows(output, target)
        if len(rows) != len(weight):
            raise PlanError(f"{self.loss.title} has no loss for each row, which row weights and class weights need")
        total = (rows * weight.to(rows.dtype)).sum()
        return (total if self.is_sum else total / max(1, len(rows))), target

    def _class_weights(self, target: Any) -> torch.Tensor:
        assert self.class_weight is not None
        labels = target.reshape(len(target), -1)
        if labels.shape[1] != 1:
            raise PlanError("class_weight needs one label for each row")
        table = dict(self.class_weight)
        weights = torch.ones(len(labels))
        for label, value in table.items():
            weights[labels[:, 0] == label] = value
        return weights


def _length(target: Any) -> int:
    return len(target) if isinstance(target, torch.Tensor) else _length(target[0])
