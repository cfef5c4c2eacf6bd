"""Criterions: descriptions of losses, with BigDL's names and labels that count from 1."""

from __future__ import annotations

import numbers
from typing import Annotated, Any, Self

from firesteel.core.errors import PlanError
from firesteel.core.schedules import Limit
from firesteel.frontends.bigdl.described import Described, bench
from firesteel.frontends.bigdl.layer import Layer, Part
from firesteel.frontends.bigdl.settings import (
    Choice,
    Count,
    Flag,
    Number,
    Numbers,
    Positive,
    PositiveCount,
    Whole,
)

__all__ = [
    "AbsCriterion",
    "BCECriterion",
    "CategoricalCrossEntropy",
    "ClassNLLCriterion",
    "ClassSimplexCriterion",
    "CosineDistanceCriterion",
    "CosineEmbeddingCriterion",
    "CosineProximityCriterion",
    "Criterion",
    "CrossEntropyCriterion",
    "DiceCoefficientCriterion",
    "DistKLDivCriterion",
    "DotProductCriterion",
    "GaussianCriterion",
    "HingeEmbeddingCriterion",
    "KLDCriterion",
    "KullbackLeiblerDivergenceCriterion",
    "L1Cost",
    "L1HingeEmbeddingCriterion",
    "MSECriterion",
    "MarginCriterion",
    "MarginRankingCriterion",
    "MeanAbsolutePercentageCriterion",
    "MeanSquaredLogarithmicCriterion",
    "MultiCriterion",
    "MultiLabelMarginCriterion",
    "MultiLabelSoftMarginCriterion",
    "MultiMarginCriterion",
    "PGCriterion",
    "ParallelCriterion",
    "PoissonCriterion",
    "SmoothL1Criterion",
    "SmoothL1CriterionWithWeights",
    "SoftMarginCriterion",
    "SoftmaxWithCriterion",
    "TimeDistributedCriterion",
    "TimeDistributedMaskCriterion",
    "TransformerCriterion",
]


class Criterion(Described):
    """A loss. Over replicas, what it divides by is that of the whole step."""

    def forward(self, input: Any, target: Any) -> float:
        """The loss of these outputs: arrays, or lists of arrays."""
        return float(bench().loss_forward(self.to_torch(), input, target, self.dtype))

    def backward(self, input: Any, target: Any) -> Any:
        """The gradient with respect to ``input``."""
        return bench().loss_backward(self.to_torch(), input, target, self.dtype)

    def to_torch(self) -> Any:
        """The ``torch.nn.Module`` underneath, a function of (output, target)."""
        return bench().build_criterion(type(self).__name__, self._parts(), dtype=self.dtype)

    def _parts(self) -> dict[str, Any]:
        return {name: _for_bench(value) for name, value in self.settings().items()}


def _for_bench(value: Any) -> Any:
    return value.to_torch() if isinstance(value, (Criterion, Layer)) else value


class ClassNLLCriterion(Criterion):
    """``-log p[label]`` of log-probabilities, labels **1 to C**; -1 is skipped.

    The mean is over the weights of the labels used. ``logProbAsInput=False``: the input is probabilities.
    """

    weights: Numbers | None = None
    size_average: Flag = True
    logProbAsInput: Flag = True


class CrossEntropyCriterion(Criterion):
    """`ClassNLLCriterion` of the log-softmax: the input is logits."""

    weights: Numbers | None = None
    size_average: Flag = True


class CategoricalCrossEntropy(Criterion):
    """Cross entropy of probabilities, clipped at 1e-7, with one-hot targets; the mean over rows."""


class SoftmaxWithCriterion(Criterion):
    """Cross entropy with classes on axis 2, labels from 1.

    ``normalize_mode`` divides by the positions that count (``"VALID"``), all positions (``"FULL"``), the rows
    (``"BATCH_SIZE"``) or 1 (``"NONE"``).
    """

    ignore_label: Whole | None = None
    normalize_mode: Annotated[str, Choice.of("VALID", "FULL", "BATCH_SIZE", "NONE")] = "VALID"


class MSECriterion(Criterion):
    """The mean squared difference over all elements."""


class AbsCriterion(Criterion):
    """The mean absolute difference over all elements."""

    size_average: Flag = True


class SmoothL1Criterion(Criterion):
    """Half the square of a difference below 1, else the difference less a half; the mean over all elements."""

    size_average: Flag = True


class SmoothL1CriterionWithWeights(Criterion):
    """Smooth L1 with weights inside and outside: the target is a table ``{y, w_in, w_out}``.

    The sum is divided by ``num`` where that is positive; the bend is at ``1 / sigma²``.
    """

    sigma: Positive
    num: Count = 0


class BCECriterion(Criterion):
    """Binary cross entropy of probabilities; the mean over all elements. ``weights`` are of the last axis."""

    weights: Numbers | None = None
    size_average: Flag = True


class MultiLabelSoftMarginCriterion(Criterion):
    """Binary cross entropy of logits with targets 0 and 1, the mean over classes, then over rows."""

    weights: Numbers | None = None
    size_average: Flag = True


class SoftMarginCriterion(Criterion):
    """``log(1 + exp(-y·x))`` with targets ±1; the mean over all elements."""

    size_average: Flag = True


class MultiMarginCriterion(Criterion):
    """The margin between the right class and each other, labels from 1; the mean over rows."""

    p: Annotated[int, Limit("1 or 2", lambda value: value in (1, 2), numbers.Integral)] = 1
    weights: Numbers | None = None
    margin: Number = 1.0
    size_average: Flag = True


class MultiLabelMarginCriterion(Criterion):
    """The margins between right classes and others; a row's target lists its labels from 1, ended by 0."""

    size_average: Flag = True


class MarginCriterion(Criterion):
    """``max(0, margin - x·y)``, squared if asked, with targets ±1; the mean over all elements."""

    margin: Number = 1.0
    size_average: Flag = True
    squared: Flag = False


class MarginRankingCriterion(Criterion):
    """``max(0, margin - y·(x₁ - x₂))`` of a table of two, with targets ±1."""

    margin: Number = 1.0
    size_average: Flag = True


class HingeEmbeddingCriterion(Criterion):
    """A distance where the target is 1, ``max(0, margin - x)`` where it is -1; the mean over all elements."""

    margin: Number = 1.0
    size_average: Flag = True


class L1HingeEmbeddingCriterion(Criterion):
    """The L1 distance of a table of two where the target is 1, ``max(0, margin - distance)`` where it is -1; summed."""

    margin: Number = 1.0


class CosineEmbeddingCriterion(Criterion):
    """``1 - cos`` of a table of two where the target is 1, ``max(0, cos - margin)`` where it is -1; mean over rows."""

    margin: Number = 0.0
    size_average: Flag = True


class CosineDistanceCriterion(Criterion):
    """``1 - cos`` of input and target; the mean over rows."""

    size_average: Flag = True


class CosineProximityCriterion(Criterion):
    """The product of the unit vectors of input and target, negative; the mean over all elements."""


class DistKLDivCriterion(Criterion):
    """Kullback-Leibler divergence of log-probabilities from probabilities; the mean over all elements."""

    size_average: Flag = True


class KullbackLeiblerDivergenceCriterion(Criterion):
    """Kullback-Leibler divergence of probabilities, clipped at 1e-7; summed in a row, the mean over rows."""


class KLDCriterion(Criterion):
    """The divergence of the normal distribution ``{mean, log variance}`` from N(0, 1); the mean over rows."""

    size_average: Flag = True


class GaussianCriterion(Criterion):
    """The negative log-likelihood of the target under ``{mean, log variance}``, summed."""


class PoissonCriterion(Criterion):
    """``x - y·log(x)``; the mean over all elements."""


class MeanAbsolutePercentageCriterion(Criterion):
    """The mean absolute difference in per cent of the target."""


class MeanSquaredLogarithmicCriterion(Criterion):
    """The mean squared difference of ``log(1 + x)`` and ``log(1 + y)``."""


class L1Cost(Criterion):
    """The sum of ``|x|``; the target does not matter."""


class DiceCoefficientCriterion(Criterion):
    """``1 - (2Σxy + ε) / (Σx + Σy + ε)`` of each row; the mean over rows."""

    size_average: Flag = True
    epsilon: Number = 1.0


class DotProductCriterion(Criterion):
    """``Σxy``; the mean over rows if ``size_average``."""

    size_average: Flag = False


class PGCriterion(Criterion):
    """``-Σ R·log P``: policy gradient with rewards as targets."""

    sizeAverage: Flag = False


class ClassSimplexCriterion(Criterion):
    """The mean squared difference to the class's corner of a simplex, labels from 1."""

    n_classes: PositiveCount

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_classes < 2:
            raise PlanError("ClassSimplexCriterion needs at least 2 classes.")


class _Several(Criterion):
    def __post_init__(self) -> None:
        super().__post_init__()
        self._added: list[tuple[Any, float]] = []

    def add(self, criterion: Any, weight: float = 1.0) -> Self:
        """One more, with its weight; returns this criterion."""
        self._added.append((as_criterion(criterion), float(weight)))
        return self

    def _parts(self) -> dict[str, Any]:
        if not self._added:
            raise PlanError(f"{type(self).__name__} has no criterion yet: call add(criterion, weight)")
        pairs = [(_for_bench(each), weight) for each, weight in self._added]
        return {
            **super()._parts(),
            "criterions": [each for each, _ in pairs],
            "weights": [weight for _, weight in pairs],
        }


class MultiCriterion(_Several):
    """The weighted sum of criterions on the same input and target."""


class ParallelCriterion(_Several):
    """The weighted sum of criterions, each on its own input and target of two tables.

    ``repeat_target``: all have the same target.
    """

    repeat_target: Flag = False


class TimeDistributedCriterion(Criterion):
    """A criterion at each step along the axis ``dimension``, summed up; their mean if ``size_average``."""

    criterion: Any
    size_average: Flag = False
    dimension: PositiveCount = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        self.criterion = as_criterion(self.criterion)


class TimeDistributedMaskCriterion(Criterion):
    """A criterion over all positions of (batch, time, …) whose target is not ``padding_value``."""

    criterion: Any
    padding_value: Whole = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.criterion = as_criterion(self.criterion)


class TransformerCriterion(Criterion):
    """A criterion after one layer on the input and another on the target."""

    criterion: Any
    input_transformer: Part | None = None
    target_transformer: Part | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.criterion = as_criterion(self.criterion)


def as_criterion(value: Any) -> Any:
    """A criterion of ours as it is; anything else is a ``PlanError``."""
    if not isinstance(value, Criterion):
        kind = value.__name__ if isinstance(value, type) else type(value).__qualname__
        raise PlanError(f"a criterion of firesteel.bigdl.nn.criterion is needed, not {kind}")
    return value
