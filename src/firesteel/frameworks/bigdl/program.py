"""A BigDL program: torch's, with methods for parts of a model and with columns dealt out to its inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from firesteel.core.errors import PlanError
from firesteel.core.optimizers import OptimMethod
from firesteel.core.program import Program
from firesteel.frameworks.bigdl.parted import build_parted, check_parts
from firesteel.frameworks.torch.losses import make_loss
from firesteel.frameworks.torch.program import Parts, TorchContent, capture, make

__all__ = ["BigDLContent", "capture_model", "make_parts"]

Shapes = tuple[tuple[int, ...] | None, ...]


@dataclass(frozen=True)
class BigDLContent(TorchContent):
    """What travels; ``features`` and ``labels``: shapes of a row's inputs and targets that a batch is dealt out to.

    Without ``features``, the one input is given the shape ``row_shape`` wherever it has as many numbers.
    """

    features: Shapes | None = field(default=None, kw_only=True)
    labels: Shapes | None = field(default=None, kw_only=True)
    row_shape: tuple[int, ...] | None = field(default=None, kw_only=True)


def capture_model(model: object, **parts: Any) -> Program:
    """Check that model and parts fit together; ``PlanError`` where they do not. Driver only."""
    if not isinstance(model, nn.Module):
        raise PlanError(
            f"model must be a layer of firesteel.bigdl.nn.layer or a torch module, not {type(model).__qualname__}"
        )
    optimizer = parts.get("optimizer")
    if isinstance(optimizer, Mapping):
        check_parts(model, optimizer)
    plain = {key: value for key, value in parts.items() if key not in ("features", "labels", "row_shape")}
    capture(model, **{**plain, "optimizer": None if isinstance(optimizer, Mapping) else optimizer})
    return Program("bigdl", BigDLContent(model, **parts))


def make_parts(content: BigDLContent, model: nn.Module) -> Parts:
    """Optimizer, schedule and loss around a model."""
    if isinstance(content.optimizer, Mapping):
        methods: Mapping[str, OptimMethod] = content.optimizer
        return Parts(model, *build_parted(model, methods), make_loss(content.loss, dict(content.config)))
    return make(content, model)
