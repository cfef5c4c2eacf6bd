"""BigDL's criterions as torch modules of (output, target).

A criterion says what each row, or each element of it, costs (``terms``) and what their sum is divided by. So one class
serves the loss, its share of a step over several replicas, and weights of rows.

========== =================================================================================
``kind``   what the sum of the terms is divided by
========== =================================================================================
``rows``   a number that grows with the rows: their number, or that of their elements
``sum``    nothing, or a number that does not depend on the rows
``mass``   what the targets say: weights of labels, positions that count
========== =================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from firesteel.core.errors import PlanError

__all__ = ["CRITERIONS", "Criterion", "Part"]

Settings = SimpleNamespace
CRITERIONS: dict[str, Callable[[Settings], nn.Module]] = {}
_SMALL = 1e-7


def _entered(maker: Any) -> Any:
    CRITERIONS[maker.__name__] = maker
    return maker


class Part(NamedTuple):
    """A loss that divides by one thing."""

    value: torch.Tensor
    kind: str
    mass: float
    """What it was divided by, of kind ``mass``; else the rows."""


class Criterion(nn.Module):
    """A loss of outputs and targets."""

    is_average = True
    has_mass = False
    takes_table = False
    """Whether its target is a table."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        self.is_average = bool(getattr(settings, "size_average", True))

    # --- what a class says ---

    def terms(self, output: Any, target: Any) -> torch.Tensor:
        """What each row costs: (rows,), or (rows, …) element by element."""
        raise NotImplementedError

    def divisor(self, terms: torch.Tensor, target: Any) -> float:
        """What an average divides the sum of the terms by."""
        return terms.numel()

    def mass(self, target: Any) -> float:
        """The divisor, from targets alone; of criterions that have a mass."""
        raise NotImplementedError

    # --- what is made of it ---

    @property
    def kinds(self) -> list[str]:
        """Of each part."""
        return ["mass" if self.has_mass else "rows" if self.is_average else "sum"]

    @property
    def kind(self) -> str | None:
        """What the whole divides by; ``None`` where its parts divide by several things."""
        return self.kinds[0]

    def forward(self, output: Any, target: Any) -> torch.Tensor:
        """The loss."""
        return sum((part.value for part in self.parts(output, target)), start=torch.zeros(()))

    def parts(self, output: Any, target: Any) -> list[Part]:
        """The losses that make this one up, each with what it divides by."""
        terms = self.terms(output, target)
        rows = float(_rows(output))
        if not self.is_average:
            return [Part(terms.sum(), "sum", rows)]
        divisor = self.divisor(terms, target)
        value = terms.sum() / divisor if divisor else terms.sum() * 0.0
        return [Part(value, self.kinds[0], divisor if self.has_mass else rows)]

    def masses(self, target: Any, rows: int) -> list[float]:
        """What each part divides by: for targets of a batch that may have no rows."""
        return [self.mass(target) if kind == "mass" else float(rows) for kind in self.kinds]

    def rows(self, output: Any, target: Any) -> torch.Tensor:
        """The loss of each row, for weights of rows: elements averaged, or summed where the criterion sums."""
        terms = self.terms(output, target)
        if terms.dim() == 0:
            terms = terms.reshape(1)
        if terms.dim() == 1:
            return terms
        return terms.flatten(1).mean(1) if self.is_average else terms.flatten(1).sum(1)

    @property
    def title(self) -> str:
        """For messages."""
        return type(self).__name__


def _rows(output: Any) -> int:
    if isinstance(output, (list, tuple)):
        return _rows(output[0])
    return output.shape[0] if output.dim() else 1


def _floats(target: Any, like: torch.Tensor) -> torch.Tensor:
    return target.to(like.dtype)


def _fitted(criterion: Criterion, output: torch.Tensor, target: Any) -> torch.Tensor:
    """The target with the output's shape and dtype; torch would broadcast another one, with a wrong result."""
    target = _single(criterion, target)
    if target.shape != output.shape:
        if target.numel() != output.numel() or (output.dim() and target.dim() and target.shape[0] != output.shape[0]):
            raise PlanError(
                f"{criterion.title} needs targets of the outputs' shape {tuple(output.shape)}, "
                f"not {tuple(target.shape)}"
            )
        target = target.reshape(output.shape)
    return _floats(target, output)


def _single(criterion: Criterion, target: Any) -> torch.Tensor:
    if isinstance(target, (list, tuple)) and len(target) == 1:
        (target,) = target
    if not isinstance(target, torch.Tensor):
        raise PlanError(f"{criterion.title} takes one target, not a table of {len(target)}")
    return target


def _two(criterion: Criterion, output: Any, what: str = "outputs") -> Any:
    if not isinstance(output, (list, tuple)) or len(output) != 2:
        raise PlanError(f"{criterion.title} takes a table of two {what}")
    return output


def _batched(output: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """With a batch axis: an output of one axis is one row."""
    return (output.unsqueeze(0), target.unsqueeze(0)) if output.dim() == 1 else (output, target)


# --- classes ----------------------------------------------------------------------------------------------------------


class _Labelled(Criterion):
    """Labels from 1; weights of classes."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        weights = getattr(settings, "weights", None)
        self.register_buffer(
            "weights", None if weights is None else torch.as_tensor(weights).to(settings.dtype).reshape(-1)
        )

    def places(self, output: torch.Tensor, target: Any, skipped: int | None = None) -> torch.Tensor:
        """Labels as places from 0, with the output's shape but its classes (axis 1); skipped ones stay negative."""
        target = _single(self, target)
        shape = (output.shape[0], *output.shape[2:])
        if target.numel() != math.prod(shape):
            raise PlanError(f"{self.title} needs labels of shape {shape}, not {tuple(target.shape)}")
        labels, classes = target.reshape(shape), output.shape[1]
        if self.weights is not None and len(self.weights) != classes:
            raise PlanError(f"{self.title} has {len(self.weights)} weights for {classes} classes")
        places = labels.long()
        wrong = (places < 1) | (places > classes) | (places != labels)
        if skipped is not None:
            wrong &= labels != skipped
        if wrong.any():
            found = labels[wrong].flatten()[0].item()
            but = "" if skipped is None else f" (or {skipped}, to skip a row)"
            raise PlanError(f"{self.title} needs whole labels from 1 to {classes}{but}, not {found:g}")
        return torch.where(labels == skipped, -100, places - 1) if skipped is not None else places - 1


@_entered
class ClassNLLCriterion(_Labelled):
    skipped = -1

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.has_mass = self.is_average

    def logs(self, output: torch.Tensor) -> torch.Tensor:
        return output if self.settings.logProbAsInput else output.clamp(1e-8, 1 - 1e-8).log()

    def terms(self, output: torch.Tensor, target: Any) -> torch.Tensor:
        output, target = _batched(output, _single(self, target))
        places = self.places(output, target, self.skipped)
        logs = self.logs(output)
        return functional.nll_loss(logs, places, self.weights, ignore_index=-100, reduction="none")

    def divisor(self, terms: torch.Tensor, target: Any) -> float:
        return self.mass(target)

    def mass(self, target: Any) -> float:
        labels = _single(self, target).reshape(-1)
        labels = labels[labels != self.skipped].long()
        if self.weights is None:
            return float(len(labels))
        inside = (labels >= 1) & (labels <= len(self.weights))  # others are told of by ``places``
        return float(self.weights[labels[inside] - 1].sum())


@_entered
class CrossEntropyCriterion(ClassNLLCriterion):
    def logs(self, output: torch.Tensor) -> torch.Tensor:
        return functional.log_softmax(output, 1)


@_entered
class SoftmaxWithCriterion(_Labelled):
    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.mode = settings.normalize_mode
        self.is_average = self.mode != "NONE"
        self.has_mass = self.mode == "VALID" and settings.ignore_label is not None

    def terms(self, output: torch.Tensor, target: Any) -> torch.Tensor:
        output, target = _batched(output, _single(self, target))
        places = self.places(output, target, self.settings.ignore_label)
        return functional.cross_entropy(output, places, ignore_index=-100, reduction="none")

    def divisor(self, terms: torch.Tensor, target: Any) -> float:
        if self.mode == "BATCH_SIZE":
            return terms.shape[0]
        return self.mass(target) if self.has_mass else terms.numel()

    def mass(self, target: Any) -> float:
        return float((_single(self, target) != self.settings.ignore_label).sum())


@_entered
class MultiMarginCriterion(_Labelled):
    def terms(self, output: torch.Tensor, target: Any) -> torch.Tensor:
        output, target = _batched(output, _single(self, target))
        places = self.places(output, target)
        return functional.multi_margin_loss(
            output, places, self.settings.p, self.settings.margin, self.weights, reduction="none"
        )


@_entered
class MultiLabelMarginCriterion(Criterion):
    def terms(self, output: torch.Tensor, target: Any) -> torch.Tensor:
        output, target = _batched(output, _single(self, target))
        if target.shape != output.shape:
            raise PlanError(f"{self.title} needs targets of shape {tuple(output.shape)}, not {tuple(target.shape)}")
        labels = target.long()
        wrong = (labels < 0) | (labels > output.shape[1]) | (labels != target)
        if wrong.any():
            found = target[wrong].flatten()[0].item()
            raise PlanError(f"{self.title} needs labels from 1 to {output.shape[1]}, ended by 0, not {found:g}")
        return functional.multilabel_margin_loss(output, labels - 1, reduction="none")


@_entered
class ClassSimplexCriterion(_Labelled):
    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.register_buffer("corners", _simplex(settings.n_classes).to(settings.dtype))

    def terms(self, output: torch.Tensor, target: Any) -> torch.Tensor:
        output, target = _batched(output, _single(self, target))
        if output.shape[1] != len(self.corners):
            raise PlanError(f"{self.title} of {len(self.corners)} classes takes as many outputs, not {output.shape[1]}")
        return (output - self.corners[self.places(output, target)]) ** 2


def _simplex(classes: int) -> torch.Tensor:
    """Corners of a regular simplex: as many unit vectors, equally far from each other, in one dimension less."""
    dims = classes - 1
    corners = torch.zeros(classes, classes, dtype=torch.float64)
    for place in range(dims):
        corners[place, place] = (1 - corners[place, :place].square().sum()).sqrt()
        rest = (corners[place, place] ** 2 - 1 - 1 / dims) / corners[place, place]
        corners[place + 1 :, place] = rest
    return corners


# --- element by element -----------------------------------------------------------------------------------------------


class _Elements(Criterion):
    """Compares outputs with targets of the same shape."""

    def terms(self, output: torch.Tensor, target: Any) -> torch.Tensor:
        return self.compare(output, _fitted(self, output, target))

    def compare(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


@_entered
class MSECriterion(_Elements):
    def compare(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(output, target, reduction="none")


@_entered
class AbsCriterion(_Elements):
    def compare(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.l1_loss(output, target, reduction="none")


@_entered
class SmoothL1Criterion(_Elements):
    def compare(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.smooth_l1_loss(output, target, reduction="none")


@_entered
class SmoothL1CriterionWithWeights(Criterion):
    takes_table = True

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.is_average = False

    def terms(self, output: torch.Tensor, target: Any) -> torch.Tensor:
        inside: Any = 1.0
        outside: Any = 1.0
        if isinstance(target, (list, tuple)) and len(target) == 3:
            target, inside, outside = (_fitted(self, output, each) for each in target)
        else:
            target = _fitted(self, output, target)
        square = self.settings.sigma**2
        difference = (inside * (output - target)).abs()
        small = 0.5 * square * difference**2
        costs = outside * torch.where(difference < 1 / square, small, difference - 0.5 / square)
        return costs / self.settings.num if self.settings.num > 0 else costs


class _Weighted(_Elements):
    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        weights = settings.weights
        self.register_buffer("weights", None if weights is None else torch.as_tensor(weights).to(settings.dtype))


@_entered
class BCECriterion(_Weighted):
    def compare(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.binary_cross_entropy(output, target, self.weights, reduction="none")


@_entered
class MultiLabelSoftMarginCriterion(_Weighted):
    def compare(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        costs = functional.binary_cross_entropy_with_logits(output, target, reduction="none")
        costs = costs if self.weights is None else costs * self.weights
        return costs.mean(-1)


@_entered
class SoftMarginCriterion(_Elements):
    def compare(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.soft_margin_loss(output, target, reduction="none")


@_entered
class MarginCriterion(_Elements):
    def compare(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        costs = (self.settings.margin - output * target).clamp(min=0)
        return costs * costs if self.settings.squared else costs


@_entered
class HingeEmbeddingCriterion(_Elements):
    def compare(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.hinge_embedding_loss(output, target, self.settings.margin, reduction="none")


@_entered
class DistKLDivCriterion(_Elements):
    def compare(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.kl_div(output, target, reduction="none")


@_entered
class PoissonCriterion(_Elements):
    def compare(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return output - target * (output + _SMALL).log()


@_entered
class MeanAbsolutePercentageCriterion(_Elements):
    def compare(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return 100 * ((target - output) / target.abs().clamp(min=_SMALL)).abs()


@_entered
class MeanSquaredLogarithmicCriterion(_Elements):
    def compare(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (output.clamp(min=_SMALL).log1p() - target.clamp(min=_SMALL).log1p()) ** 2


@_entered
class CosineProximityCriterion(_Elements):
    def compare(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return -functional.normalize(output, dim=-1) * functional.normalize(target, dim=-1)


# --- row by row -------------------------------------------------------------------------------------------------------


class _ByRow(_Elements):
    """A number for each row; outputs of one axis are one row."""

    def terms(self, output: torch.Tensor, target: Any) -> torch.Tensor:
        target = _fitted(self, output, target)
        if output.dim() < 2:
            output, target = output.reshape(1, -1), target.reshape(1, -1)
        return self.compare(output.flatten(1), target.flatten(1))


@_entered
class CosineDistanceCriterion(_ByRow):
    def compare(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return 1 - functional.cosine_similarity(output, target, dim=-1, eps=1e-12)


@_entered
class CategoricalCrossEntropy(_ByRow):
    def compare(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return -(target * output.clamp(_SMALL, 1).log()).sum(-1)


@_entered
class KullbackLeiblerDivergenceCriterion(_ByRow):
    def compare(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        output, target = output.clamp(_SMALL, 1), target.clamp(_SMALL, 1)
        return (target * (target / output).log()).sum(-1)


@_entered
class DiceCoefficientCriterion(_ByRow):
    def compare(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        small = self.settings.epsilon
        both = (output * target).sum(-1)
        return 1 - (2 * both + small) / (output.sum(-1) + target.sum(-1) + small)


@_entered
class DotProductCriterion(_ByRow):
    def compare(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (output * target).sum(-1)


@_entered
class PGCriterion(_ByRow):
    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.is_average = settings.sizeAverage

    def compare(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return -(target * output.log()).sum(-1)


@_entered
class L1Cost(Criterion):
    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.is_average = False

    def terms(self, output: torch.Tensor, target: Any) -> torch.Tensor:
        return output.abs()


class _OfTwo(Criterion):
    """Two outputs, and a target of ±1 for each pair."""

    def terms(self, output: Any, target: Any) -> torch.Tensor:
        first, second = _two(self, output)
        return self.compare(first, second, _floats(_single(self, target), first))

    def compare(self, first: torch.Tensor, second: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


@_entered
class MarginRankingCriterion(_OfTwo):
    def compare(self, first: torch.Tensor, second: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if target.numel() == first.numel():
            target = target.reshape(first.shape)
        elif target.numel() != 1:
            target = target.reshape(-1, *[1] * (first.dim() - 1))
        return (self.settings.margin - target * (first - second)).clamp(min=0)


def _pairs(first: torch.Tensor, second: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, ...]:
    if first.dim() < 2:
        first, second = first.reshape(1, -1), second.reshape(1, -1)
    return first, second, target.reshape(-1)


@_entered
class L1HingeEmbeddingCriterion(_OfTwo):
    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.is_average = False

    def compare(self, first: torch.Tensor, second: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        first, second, target = _pairs(first, second, target)
        distance = (first - second).abs().sum(-1)
        return torch.where(target == 1, distance, (self.settings.margin - distance).clamp(min=0))


@_entered
class CosineEmbeddingCriterion(_OfTwo):
    def compare(self, first: torch.Tensor, second: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        first, second, target = _pairs(first, second, target)
        return functional.cosine_embedding_loss(first, second, target, self.settings.margin, reduction="none")


class _OfNormal(Criterion):
    def parts_of(self, output: Any) -> tuple[torch.Tensor, torch.Tensor]:
        mean, variance = _two(self, output, "outputs, mean and log variance")
        return (
            (mean.reshape(1, -1), variance.reshape(1, -1)) if mean.dim() < 2 else (mean.flatten(1), variance.flatten(1))
        )


@_entered
class KLDCriterion(_OfNormal):
    def terms(self, output: Any, target: Any) -> torch.Tensor:
        mean, variance = self.parts_of(output)
        return 0.5 * (mean**2 + variance.exp() - 1 - variance).sum(-1)


@_entered
class GaussianCriterion(_OfNormal):
    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.is_average = False

    def terms(self, output: Any, target: Any) -> torch.Tensor:
        mean, variance = self.parts_of(output)
        target = _fitted(self, _two(self, output)[0], target).reshape(mean.shape)
        return 0.5 * (math.log(2 * math.pi) + variance + (target - mean) ** 2 / variance.exp()).sum(-1)


# --- criterions of criterions -----------------------------------------------------------------------------------------


class _Several(Criterion):
    """A weighted sum."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(SimpleNamespace())
        self.criterions = nn.ModuleList(settings.criterions)
        self.weights = [float(weight) for weight in settings.weights]
        self.takes_table = any(criterion.takes_table for criterion in self.criterions)

    def split(self, output: Any, target: Any) -> list[tuple[Any, Any]]:
        """What each is given."""
        return [(output, target)] * len(self.criterions)

    @property
    def kinds(self) -> list[str]:
        return [kind for criterion in self.criterions for kind in criterion.kinds]

    @property
    def kind(self) -> str | None:
        return _common(self.kinds)

    def parts(self, output: Any, target: Any) -> list[Part]:
        found = []
        for criterion, weight, pair in zip(self.criterions, self.weights, self.split(output, target), strict=True):
            found += [part._replace(value=part.value * weight) for part in criterion.parts(*pair)]
        return found

    def masses(self, target: Any, rows: int) -> list[float]:
        pairs = self.split(None, target)
        return [
            mass
            for criterion, (_, own) in zip(self.criterions, pairs, strict=True)
            for mass in criterion.masses(own, rows)
        ]

    def rows(self, output: Any, target: Any) -> torch.Tensor:
        pairs = self.split(output, target)
        return sum(
            criterion.rows(*pair) * weight
            for criterion, weight, pair in zip(self.criterions, self.weights, pairs, strict=True)
        )


@_entered
class MultiCriterion(_Several):
    """On the same pair."""


@_entered
class ParallelCriterion(_Several):
    """On the i-th output and target."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.is_repeated = settings.repeat_target
        self.takes_table = self.takes_table or not self.is_repeated

    def split(self, output: Any, target: Any) -> list[tuple[Any, Any]]:
        count = len(self.criterions)
        outputs = [None] * count if output is None else output
        targets = [target] * count if self.is_repeated else target
        for what, found in (("outputs", outputs), ("targets", targets)):
            if not isinstance(found, (list, tuple)) or len(found) != count:
                raise PlanError(f"{self.title} has {count} criterions, and takes a table of as many {what}")
        return list(zip(outputs, targets, strict=True))


@_entered
class TimeDistributedCriterion(Criterion):
    """Step by step; steps are parts of their own, for each may have its own mass."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(SimpleNamespace(size_average=settings.size_average))
        self.criterion, self.axis = settings.criterion, settings.dimension - 1
        self.takes_table = self.criterion.takes_table

    @property
    def kinds(self) -> list[str]:
        return self.criterion.kinds

    @property
    def kind(self) -> str | None:
        return _common(self.kinds)

    def steps(self, values: Any) -> Sequence[Any]:
        if isinstance(values, (list, tuple)):
            return list(zip(*map(self.steps, values), strict=True))
        if values.dim() <= self.axis:
            raise PlanError(
                f"{self.title} needs an axis {self.axis + 1} of steps in outputs and targets, not {tuple(values.shape)}"
            )
        return values.unbind(self.axis)

    def pairs(self, output: Any, target: Any) -> list[tuple[Any, Any]]:
        outputs, targets = self.steps(output), self.steps(target)
        if len(outputs) != len(targets):
            raise PlanError(f"{self.title} has {len(outputs)} steps of outputs and {len(targets)} of targets")
        return list(zip(outputs, targets, strict=True))

    def parts(self, output: Any, target: Any) -> list[Part]:
        pairs = self.pairs(output, target)
        scale = 1 / len(pairs) if self.is_average else 1.0
        found = [part for pair in pairs for part in self.criterion.parts(*pair)]
        if "mass" not in self.criterion.kinds:
            width = len(self.criterion.kinds)
            found = [_added(found[place::width]) for place in range(width)]
        return [part._replace(value=part.value * scale) for part in found]

    def masses(self, target: Any, rows: int) -> list[float]:
        if "mass" not in self.criterion.kinds:
            return self.criterion.masses(target, rows)
        return [mass for step in self.steps(target) for mass in self.criterion.masses(step, rows)]

    def rows(self, output: Any, target: Any) -> torch.Tensor:
        pairs = self.pairs(output, target)
        return sum(self.criterion.rows(*pair) for pair in pairs) / (len(pairs) if self.is_average else 1)


def _common(kinds: Sequence[str]) -> str | None:
    return kinds[0] if len(set(kinds)) == 1 and kinds[0] != "mass" else None


def _added(parts: Sequence[Part]) -> Part:
    return parts[0]._replace(value=sum(part.value for part in parts))


@_entered
class TimeDistributedMaskCriterion(Criterion):
    """All positions as rows of one batch, without the padding."""

    has_mass = True

    def __init__(self, settings: Settings) -> None:
        super().__init__(SimpleNamespace())
        self.criterion, self.padding = settings.criterion, settings.padding_value
        self.has_mass = self.criterion.kinds != ["sum"]
        self.is_average = self.has_mass

    def counted(self, output: torch.Tensor, target: Any) -> tuple[torch.Tensor, torch.Tensor]:
        target = _single(self, target)
        positions = output.shape[:2]
        if target.numel() != positions.numel():
            raise PlanError(
                f"{self.title} needs one target for each of the positions {tuple(positions)}, not {tuple(target.shape)}"
            )
        flat = target.reshape(-1)
        kept = flat != self.padding
        return output.flatten(0, 1)[kept], flat[kept]

    def parts(self, output: Any, target: Any) -> list[Part]:
        outputs, targets = self.counted(output, target)
        if not len(targets):
            return [Part(output.sum() * 0.0, self.kinds[0], 0.0)]
        (part,) = self.criterion.parts(outputs, targets)
        return [part._replace(kind=self.kinds[0])]

    def mass(self, target: Any) -> float:
        flat = _single(self, target).reshape(-1)
        flat = flat[flat != self.padding]
        return self.criterion.masses(flat, len(flat))[0]

    def rows(self, output: Any, target: Any) -> torch.Tensor:
        kept = (_single(self, target).reshape(output.shape[:2]) != self.padding).to(output.dtype)
        outputs, targets = self.counted(output, target)
        costs = torch.zeros_like(kept).masked_scatter(kept.bool(), self.criterion.rows(outputs, targets))
        return costs.sum(1) / kept.sum(1).clamp(min=1)


@_entered
class TransformerCriterion(Criterion):
    """After two layers; the one on the target gets no gradient."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(SimpleNamespace())
        self.criterion = settings.criterion
        self.on_output, self.on_target = settings.input_transformer, settings.target_transformer
        self.takes_table = self.criterion.takes_table or self.on_target is not None

    @property
    def kinds(self) -> list[str]:
        return self.criterion.kinds

    @property
    def kind(self) -> str | None:
        return self.criterion.kind

    def changed(self, output: Any, target: Any) -> tuple[Any, Any]:
        if self.on_target is not None:
            with torch.no_grad():
                target = self.on_target(target)
        return output if self.on_output is None or output is None else self.on_output(output), target

    def parts(self, output: Any, target: Any) -> list[Part]:
        return self.criterion.parts(*self.changed(output, target))

    def masses(self, target: Any, rows: int) -> list[float]:
        return self.criterion.masses(self.changed(None, target)[1] if rows else target, rows)

    def rows(self, output: Any, target: Any) -> torch.Tensor:
        return self.criterion.rows(*self.changed(output, target))
