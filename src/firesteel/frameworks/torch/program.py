"""A torch program: the user's model, optimizer, loss and schedule, as instances or as the functions that make them."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from firesteel.core import optimizers as methods
from firesteel.core.errors import PlanError, UnknownName
from firesteel.core.plan import Clipping
from firesteel.core.program import Program
from firesteel.frameworks.torch import optimizers
from firesteel.frameworks.torch.losses import make_loss

__all__ = ["Parts", "TorchContent", "capture", "input_range", "make", "make_model"]

PRECISIONS = ("bf16",)


@dataclass(frozen=True)
class TorchContent:
    """What travels: instances keep their identity to each other (an optimizer holds its model's parameters)."""

    model: Any
    optimizer: Any = None
    loss: Any = None
    scheduler_creator: Callable[..., Any] | None = None
    scheduler_step_freq: str | None = "batch"
    config: dict[str, Any] = field(default_factory=dict)
    clipping: Clipping | None = None
    class_weight: dict[int, float] | None = None
    sync_batchnorm: bool = False
    precision: str | None = None
    train_metrics: dict[str, Any] | None = None
    """Figures of the rows trained on, over each epoch."""
    seed: int = 0


@dataclass
class Parts:
    """What a content makes in one process."""

    model: nn.Module
    optimizer: torch.optim.Optimizer | None
    scheduler: Any
    loss: Callable[..., Any] | None


def capture(model: object, **parts: Any) -> Program:
    """Check that model and parts fit together; ``PlanError`` where they do not. Driver only."""
    content = TorchContent(model, **parts)
    if not (isinstance(model, nn.Module) or callable(model)):
        raise PlanError(f"model must be a torch.nn.Module, a class of one, or model_creator(config), not {model!r}")
    optimizer = content.optimizer
    if isinstance(optimizer, torch.optim.Optimizer):
        _check_plain(optimizer)
        _check_belongs(model, optimizer)
    elif optimizer is not None and not callable(optimizer) and not isinstance(optimizer, methods.OptimMethod):
        raise PlanError(
            f"optimizer must be a torch optimizer, optimizer_creator(model, config), "
            f"or one of firesteel.learn.optimizers, not {optimizer!r}"
        )
    if content.loss is not None and not callable(content.loss):
        raise PlanError(f"loss must be a module, a loss class, a function or a creator, not {content.loss!r}")
    if content.scheduler_creator is not None and content.scheduler_step_freq not in ("batch", "epoch"):
        raise PlanError(
            f'scheduler_creator needs scheduler_step_freq "batch" or "epoch", not {content.scheduler_step_freq!r}'
        )
    if content.precision is not None and content.precision not in PRECISIONS:
        raise UnknownName("precision", content.precision, PRECISIONS)
    return Program("torch", content)


def _check_plain(optimizer: torch.optim.Optimizer) -> None:
    # Horovod makes a class of the wrapped one's name; by this method it is known.
    if hasattr(optimizer, "set_backward_passes_per_step"):
        raise PlanError(
            "the optimizer is a hvd.DistributedOptimizer, which averages gradients that have been summed over replicas "
            "already: return the plain torch optimizer"
        )


def _check_belongs(model: object, optimizer: torch.optim.Optimizer) -> None:
    if not isinstance(model, nn.Module):
        raise PlanError(
            "an optimizer instance needs the model instance whose parameters it was made on: "
            "pass both as instances, or optimizer_creator(model, config)"
        )
    mine = {id(parameter) for parameter in model.parameters()}
    strangers = sum(id(p) not in mine for group in optimizer.param_groups for p in group["params"])
    if strangers:
        raise PlanError(
            f"the optimizer holds {strangers} parameters that are not this model's: "
            f"make it on model.parameters() of the very model that is passed"
        )


_MAKING = threading.RLock()


def _called(creator: Callable[..., Any], config: dict[str, Any]) -> Any:
    """What a creator makes. One that is written for Horovod may ask it who it is, where no ranks have met as well."""
    try:
        return creator(config)
    except ValueError as error:
        horovod: Any = sys.modules.get("horovod.torch")
        if horovod is None or horovod.is_initialized() or "Horovod has not been initialized" not in str(error):
            raise
    horovod.init()  # it is alone here: on the driver, which looks at the model, or where rows are scored
    return creator(config)


def make_model(content: TorchContent) -> nn.Module:
    """The model of this content, made with its seed where it has to be made."""
    model = content.model
    if isinstance(model, nn.Module):
        return model
    # One at a time: random numbers are the whole process's, and two threads of the driver may each make a model.
    with _MAKING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(content.seed)
        made = model() if isinstance(model, type) else _called(model, dict(content.config))
    if not isinstance(made, nn.Module):
        raise PlanError(f"model_creator returned {type(made).__qualname__}, not a torch.nn.Module")
    return made


def make(content: TorchContent, model: nn.Module) -> Parts:
    """Optimizer, schedule and loss around a model that was made of the same content."""
    optimizer = content.optimizer
    scheduler = None
    if isinstance(optimizer, methods.OptimMethod):
        method = optimizer
        optimizer = optimizers.build(method, model.parameters())
        scheduler = optimizers.build_scheduler(method, optimizer)
    elif optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        optimizer = optimizer(model, dict(content.config))
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise PlanError(f"optimizer_creator returned {type(optimizer).__qualname__}, not a torch optimizer")
        _check_plain(optimizer)
    if content.scheduler_creator is not None and optimizer is not None:
        scheduler = content.scheduler_creator(optimizer, dict(content.config))
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
        if isinstance(scheduler, plateau) and content.scheduler_step_freq != "epoch":
            raise PlanError('ReduceLROnPlateau needs scheduler_step_freq="epoch"')
    return Parts(model, optimizer, scheduler, make_loss(content.loss, dict(content.config)))


def input_range(model: object) -> tuple[int, int | None]:
    """How many positional inputs ``forward`` takes: at least, and at most (``None`` = any number)."""
    forward = model.forward if isinstance(model, (nn.Module, type)) else model
    try:
        parameters = list(inspect.signature(forward).parameters.values())  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return 1, None
    if isinstance(model, type):
        parameters = parameters[1:]  # self
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    least = sum(p.default is p.empty for p in positional)
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return max(1, least), None
    return least, len(positional)
