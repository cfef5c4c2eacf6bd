"""A BigDL program living in a process: a torch replica that speaks in tables and adds regularizers to the gradient."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from firesteel.core.errors import SchemaError
from firesteel.core.metrics import Metric
from firesteel.core.program import Program
from firesteel.core.spec import Batch, rows_of
from firesteel.frameworks.bigdl import hands
from firesteel.frameworks.bigdl.criterions import Criterion
from firesteel.frameworks.bigdl.losses import CriterionLoss
from firesteel.frameworks.bigdl.module import Layer
from firesteel.frameworks.bigdl.program import BigDLContent, Shapes, make_parts
from firesteel.frameworks.bigdl.shapes import Penalty
from firesteel.frameworks.torch.losses import make_loss
from firesteel.frameworks.torch.program import Parts
from firesteel.frameworks.torch.replica import TorchReplica, _detached

__all__ = ["BigDLReplica"]


class BigDLReplica(TorchReplica):
    """See ``TorchReplica``."""

    _content: BigDLContent

    def __init__(self, program: Program, device: str = "cpu", threads: int = 1) -> None:
        super().__init__(program, device, threads)
        self._is_layer = isinstance(self.model, Layer)
        if self._is_layer:
            self._float = self.model.number

    # --- learning ---

    def _make(self) -> Parts:
        return make_parts(self._content, self.model)

    def start(self, state: dict[str, bytes] | None) -> None:
        """See ``Trainable``."""
        super().start(state)
        self._regularized = {id(parameter): strengths for parameter, strengths in hands.regularized(self.model)}
        self._penalties = [each for each in self.model.modules() if isinstance(each, Penalty)]

    def _adjust(self) -> None:
        """Regularizers, on the sum over all replicas: once, whatever their number."""
        if not self._regularized:
            return
        for flat in self._flats:
            for parameter, gradient in flat.regions():
                strengths = self._regularized.get(id(parameter))
                if strengths is not None:
                    hands.regularize(parameter.detach().to(gradient.device, gradient.dtype), gradient, strengths)

    def backward(self, batch: Batch, share: Any) -> float | None:
        """See ``Trainable``; ``share`` is an array where the loss's parts divide by several things."""
        for penalty in self._penalties:
            penalty.share = float(np.asarray(share).flat[-1])
        if not isinstance(share, np.ndarray):
            return super().backward(batch, share)
        self._last = (batch, share)
        for parameter in self.model.parameters():
            parameter.grad = None
        rows, *_, whole = rows_of(batch), *share
        if rows == 0 or not share.any():
            self._collect(0.0)
            return None
        self.model.train()
        output, target = self._call(self.model, batch), self._target(batch)
        criterion = self._loss()
        assert isinstance(criterion, CriterionLoss)
        parts = criterion.loss.parts(output, target)
        # A sum adds up over replicas as it is; a mean counts by its part of what the whole step divides by.
        scaled = [
            part.value * (1.0 if part.kind == "sum" else own) for part, own in zip(parts, share[:-1], strict=True)
        ]
        sum(scaled[1:], start=scaled[0]).backward()
        costs = [float(part.value.detach()) / (rows if part.kind == "sum" else 1) for part in parts]
        total = sum(cost * own for cost, own in zip(costs, share[:-1], strict=True))
        self._collect(total)
        if self.runner is not None:
            self.runner.batch = (*self._features_tuple(batch), target)
            self.runner.output, self.runner.target, self.runner.loss = output, target, total / whole
        return total / whole

    def mass(self, batch: Batch) -> Any:
        """See ``Trainable``; several numbers, the rows at last, where the loss's parts divide by several things."""
        criterion = self._loss()
        if isinstance(criterion, CriterionLoss) and criterion.is_mixed and self.main is None and "w" not in batch:
            return criterion.masses(self._target(batch), rows_of(batch))
        return super().mass(batch)

    def _measure(self, batch: Batch, metrics: Mapping[str, Metric]) -> Any:
        """Sums and divisors are arrays where the loss's parts divide by several things."""
        criterion = self._loss()
        if not (isinstance(criterion, CriterionLoss) and criterion.is_mixed) or self.main is not None or "w" in batch:
            return super()._measure(batch, metrics)
        self.model.eval()
        with torch.no_grad():
            output, target = self._call(self.model, batch), self._target(batch)
            parts = criterion.loss.parts(output, target)
        for metric in metrics.values():
            metric(_detached(output), _detached(target))
        masses = np.array([part.mass for part in parts])
        sums = [float(part.value) * (1.0 if part.kind == "sum" else part.mass) for part in parts]
        return np.array(sums), masses

    # --- feeding ---

    def _loss(self) -> Any:
        if self._criterion is None:
            given = self._content.loss if self._parts is None else self._parts.loss
            loss = make_loss(given, dict(self._content.config)) if given is not None else None
            if not isinstance(loss, Criterion):
                return super()._loss()
            if self._device.type != "cpu":
                loss = loss.to(self._device)
            self._criterion = CriterionLoss(loss, self._content.class_weight)
        return self._criterion

    def _call(self, model: Any, batch: Batch) -> Any:
        if not self._is_layer:
            return super()._call(model, batch)
        features = self._features(batch)
        return model(features[0] if len(features) == 1 else features)

    def _features(self, batch: Batch) -> Any:
        features = super()._features(batch)
        if not self._is_layer:
            return features
        listed = list(features.values()) if isinstance(features, dict) else features
        dealt = _dealt(listed, self._content.features, "feature")
        shape = self._content.row_shape
        if shape is not None and self._content.features is None and len(dealt) == 1:
            (values,) = dealt
            if len(values) and values.numel() == len(values) * math.prod(shape):
                return [values.reshape(len(values), *shape)]
        return dealt

    def _target(self, batch: Batch) -> Any:
        target = super()._target(batch)
        if target is None or not isinstance(self._content.loss, Criterion):
            return target
        listed = list(target.values()) if isinstance(target, dict) else target if isinstance(target, list) else [target]
        if self._content.labels is not None:
            listed = _dealt(listed, self._content.labels, "label")
        elif len(listed) > 1 and not self._takes_table():
            listed = [_joined(listed)]
        return listed[0] if len(listed) == 1 else listed

    def _takes_table(self) -> bool:
        """Whether the criterion's target is a table, so that label columns stay apart."""
        return bool(getattr(self._content.loss, "takes_table", False))


def _dealt(given: list[torch.Tensor], shapes: Shapes | None, what: str) -> list[torch.Tensor]:
    """The columns joined and dealt out to these shapes; without shapes, numbers become vectors of one."""
    if shapes is None:
        return [each.unsqueeze(-1) if each.dim() == 1 else each for each in given]
    pairs = list(zip(given, shapes, strict=False))
    if len(shapes) == len(given) and (len(shapes) == 1 or all(_fits(each, shape) for each, shape in pairs)):
        return [_shaped(each, shape, what) for each, shape in pairs]
    whole = _joined([each.reshape(len(each), -1) for each in given])
    sizes = [-1 if shape is None else math.prod(shape) for shape in shapes]
    if -1 in sizes or sum(sizes) != whole.shape[1]:
        raise SchemaError(
            f"a row's {what}s have {whole.shape[1]} numbers, but {' + '.join(map(str, shapes))} take "
            f"{sum(size for size in sizes if size > 0)}",
            expected=str(shapes),
            found=str(whole.shape[1]),
        )
    return [_shaped(part, shape, what) for part, shape in zip(whole.split(sizes, 1), shapes, strict=True)]


def _fits(values: torch.Tensor, shape: tuple[int, ...] | None) -> bool:
    return shape is None or values.numel() == math.prod(shape) * len(values)


def _shaped(values: torch.Tensor, shape: tuple[int, ...] | None, what: str) -> torch.Tensor:
    if shape is None:
        return values.unsqueeze(-1) if values.dim() == 1 else values
    if not _fits(values, shape):
        raise SchemaError(
            f"a row's {what} has shape {tuple(values.shape[1:])}, which cannot be given the shape {shape}",
            expected=str(shape),
            found=str(tuple(values.shape[1:])),
        )
    return values.reshape(len(values), *shape)


def _joined(given: list[torch.Tensor]) -> torch.Tensor:
    columns = [each.unsqueeze(-1) if each.dim() == 1 else each for each in given]
    kind = torch.promote_types(columns[0].dtype, columns[-1].dtype)
    for each in columns:
        kind = torch.promote_types(kind, each.dtype)
    return torch.cat([each.to(kind) for each in columns], -1)
