"""The user's loss, fed as it needs: targets shaped and typed for it, rows weighted, sums and means told apart."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from firesteel.core.errors import PlanError, SchemaError

__all__ = ["Criterion", "make_loss"]

_INDEX_LOSSES = (nn.CrossEntropyLoss, nn.NLLLoss, nn.MultiMarginLoss)
_INDEX_FUNCTIONS = (functional.cross_entropy, functional.nll_loss)
# Losses that compare output and target element by element: torch would broadcast other shapes, with a wrong result.
_PAIR_LOSSES = (
    nn.MSELoss,
    nn.L1Loss,
    nn.SmoothL1Loss,
    nn.HuberLoss,
    nn.BCELoss,
    nn.BCEWithLogitsLoss,
    nn.PoissonNLLLoss,
    nn.KLDivLoss,
    nn.SoftMarginLoss,
)
_PAIR_FUNCTIONS = (functional.mse_loss, functional.l1_loss, functional.binary_cross_entropy)


def make_loss(loss: object, config: dict[str, Any]) -> Callable[..., Any] | None:
    """A loss from what the user gave: a module, a class of one, a function of two, or a creator of one parameter."""
    if loss is None or isinstance(loss, nn.Module):
        return loss
    if isinstance(loss, type) and issubclass(loss, nn.Module):
        return loss()
    if not callable(loss):
        raise PlanError(f"loss must be a module, a loss class, a function (output, target) or a creator, not {loss!r}")
    if _required(loss) == 1:
        made = loss(config)
        if not callable(made):
            raise PlanError(f"the loss creator returned {type(made).__qualname__}, which cannot be called")
        return made
    return loss


def _required(function: Callable[..., Any]) -> int:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 2  # a builtin without a signature is a loss, not a creator
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional and p.default is inspect.Parameter.empty for p in parameters)


class Criterion:
    """A loss with targets made to fit it."""

    def __init__(self, loss: Callable[..., Any], class_weight: dict[int, float] | None = None) -> None:
        self.loss = loss
        self.class_weight = class_weight
        self.is_sum = getattr(loss, "reduction", "mean") == "sum"
        self._wants_index = isinstance(loss, _INDEX_LOSSES) or loss in _INDEX_FUNCTIONS
        self._wants_pair = isinstance(loss, _PAIR_LOSSES) or loss in _PAIR_FUNCTIONS
        self._by_row: Callable[..., Any] | None = None
        # torch divides by the sum of the classes' weights, not by rows, when there are such weights.
        weights, ignored = getattr(loss, "weight", None), getattr(loss, "ignore_index", -100)
        self.has_mass = (
            isinstance(loss, (nn.CrossEntropyLoss, nn.NLLLoss))
            and getattr(loss, "reduction", "mean") == "mean"
            and class_weight is None
            and (weights is not None or ignored != -100)
        )

    @cached_property
    def plain(self) -> Criterion:
        """The same loss without class weights."""
        return self if self.class_weight is None else Criterion(self.loss)

    def mass(self, target: torch.Tensor) -> float | None:
        """The sum of the weights of these labels; ``None`` for labels that are probabilities."""
        labels = target.reshape(-1)
        if target.is_floating_point() and not torch.equal(labels, labels.round()):
            return None
        labels = labels.long()
        labels = labels[labels != self.loss.ignore_index]
        weights = self.loss.weight
        return float(len(labels) if weights is None else weights[labels.to(weights.device)].sum())

    def __call__(self, output: Any, target: Any, weight: torch.Tensor | None = None) -> tuple[torch.Tensor, Any]:
        """The step's loss as a scalar (mean over these rows, or their sum for a summing loss), and the target used."""
        target = self.fit_target(output, target)
        if self.class_weight is not None:
            by_class = self._class_weights(target)
            weight = by_class if weight is None else weight * by_class
        try:
            if weight is None:
                value = self.loss(output, target)
                return (value.mean() if value.dim() else value), target
            rows = self._rows(output, target)
            total = (rows * weight.to(rows.dtype)).sum()
            return (total if self.is_sum else total / max(1, len(rows))), target
        except (RuntimeError, ValueError, IndexError) as error:
            if self._wants_index or self._wants_pair:
                raise self._misfit(output, target, str(error)) from error
            raise

    def fit_target(self, output: Any, target: Any) -> Any:
        """The target in the shape and dtype that the loss needs for this output."""
        if isinstance(target, (list, tuple)) and not isinstance(output, (list, tuple, dict)):
            columns = [part if part.dim() > 1 else part.unsqueeze(-1) for part in target]
            target = torch.cat([part.to(columns[0].dtype) for part in columns], dim=-1)
        if not isinstance(output, torch.Tensor) or not isinstance(target, torch.Tensor):
            return target
        if self._wants_index:
            return self._index_target(output, target)
        if (*target.shape, 1) == tuple(output.shape) or tuple(target.shape) == (*output.shape, 1):
            target = target.reshape(output.shape)
        if self._wants_pair:
            if target.shape != output.shape:
                raise self._misfit(output, target, "both must have the same shape")
            target = target.to(output.dtype)
        elif target.is_floating_point() and output.is_floating_point():
            target = target.to(output.dtype)
        return target

    def _index_target(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if target.is_floating_point() and target.shape == output.shape and isinstance(self.loss, nn.CrossEntropyLoss):
            return target  # a probability for each class
        if target.dim() == output.dim() and target.shape[-1] == 1:
            target = target.squeeze(-1)
        if target.is_floating_point():
            if not torch.equal(target, target.round()):
                raise self._misfit(output, target, "class labels must be whole numbers")
            target = target.long()
        return target.long()

    def _class_weights(self, target: Any) -> torch.Tensor:
        assert self.class_weight is not None
        labels = target.reshape(len(target), -1)
        labels = labels[:, 0] if labels.shape[1] == 1 else labels.argmax(dim=1)
        table = torch.ones(max(int(labels.max()) + 1 if len(labels) else 1, max(self.class_weight) + 1))
        for label, value in self.class_weight.items():
            table[label] = value
        return table.to(labels.device)[labels.long()]

    def _rows(self, output: Any, target: Any) -> torch.Tensor:
        """The loss of each row, other axes averaged."""
        if self._by_row is None:
            self._by_row = _unreduced(self.loss)
        values = self._by_row(output, target)
        return values.reshape(len(values), -1).mean(dim=1) if values.dim() > 1 else values

    def _misfit(self, output: torch.Tensor, target: torch.Tensor, why: str) -> SchemaError:
        name = getattr(self.loss, "__name__", type(self.loss).__qualname__)
        return SchemaError(
            f"labels of shape (rows, {', '.join(map(str, target.shape[1:]))}) and dtype {target.dtype} do not fit "
            f"{name} on outputs of shape (rows, {', '.join(map(str, output.shape[1:]))}): {why}",
            expected=str(tuple(output.shape[1:])),
            found=str(tuple(target.shape[1:])),
        )


def _unreduced(loss: Callable[..., Any]) -> Callable[..., Any]:
    if isinstance(loss, nn.Module) and hasattr(loss, "reduction"):
        by_row = copy.deepcopy(loss)
        by_row.reduction = "none"
        return by_row
    try:
        takes_reduction = "reduction" in inspect.signature(loss).parameters
    except (TypeError, ValueError):
        takes_reduction = False
    if takes_reduction:
        return lambda output, target: loss(output, target, reduction="none")
    raise PlanError(
        "row weights and class weights need the loss of each row: give a loss with a `reduction` setting "
        "(all of torch.nn's have one), or a function with a `reduction` parameter"
    )
