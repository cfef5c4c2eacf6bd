"""An MXNet program: the functions that make model, loss and metrics, and the optimizer's name."""

from __future__ import annotations

import contextlib
import inspect
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import mxnet as mx
import numpy as np

from firesteel.core.errors import PlanError, UnknownName
from firesteel.core.program import Program

__all__ = [
    "MXNetContent",
    "capture",
    "input_range",
    "is_model",
    "is_module",
    "make_model",
    "make_optimizer",
    "own_numbers",
    "sow",
]


@dataclass(frozen=True)
class MXNetContent:
    """What travels."""

    model_creator: Callable[..., Any]
    loss_creator: Callable[..., Any] | None = None
    eval_metrics_creator: Callable[..., Any] | None = None
    config: dict[str, Any] = field(default_factory=dict)
    seed: int = 0


def capture(model: object, **parts: Any) -> Program:
    """Check that the parts fit together; ``PlanError`` where they do not. Driver only."""
    content = MXNetContent(model, **parts)  # type: ignore[arg-type]
    if not callable(model):
        raise PlanError(f"model_creator must be a function (config), not {type(model).__qualname__}")
    if content.loss_creator is not None and not callable(content.loss_creator):
        raise PlanError(f"loss_creator must be a function (config), not {type(content.loss_creator).__qualname__}")
    make_optimizer(content.config)
    return Program("mxnet", content)


def is_model(model: object) -> bool:
    """A Gluon block, or a symbolic module."""
    return isinstance(model, mx.gluon.Block) or is_module(model)


def is_module(model: object) -> bool:
    """A symbolic module, with the loss in its symbol."""
    return isinstance(model, mx.mod.Module)


def sow(seed: int) -> None:
    """Make whatever draws numbers from here on a function of this seed."""
    mx.random.seed(seed % 2**31)
    np.random.seed(seed % 2**32)
    random.seed(seed)


@contextlib.contextmanager
def own_numbers(is_wanted: bool) -> Iterator[None]:
    """Leave NumPy's and Python's random numbers as they were, where that is wanted."""
    before = (np.random.get_state(), random.getstate())
    yield
    if is_wanted:
        np.random.set_state(before[0])
        random.setstate(before[1])


def make_model(content: MXNetContent) -> Any:
    """What the creator makes, with its seed."""
    sow(content.seed)
    made = content.model_creator(dict(content.config))
    if not is_model(made):
        raise PlanError(
            f"model_creator returned {type(made).__qualname__}; it must return a gluon.Block, or an mx.mod.Module "
            f"whose symbol has the loss in it"
        )
    return made


def make_optimizer(config: dict[str, Any], **parts: Any) -> Any:
    """The optimizer that the configuration names. Gradients come to it as a step's mean: it need not scale them."""
    given, settings = config["optimizer"], dict(config.get("optimizer_params") or {})
    if isinstance(given, mx.optimizer.Optimizer):
        if settings:
            raise PlanError("optimizer is an object, which has its parameters already: leave optimizer_params out")
        given.rescale_grad = 1.0
        given.param_dict = parts.get("param_dict", {})
        given.idx2name = dict(parts.get("param_idx2name", {}))
        return given
    known = mx.optimizer.Optimizer.opt_registry
    if not isinstance(given, str) or given.lower() not in known:
        raise UnknownName("optimizer of MXNet", given, known)
    try:
        return mx.optimizer.create(given, **{**settings, "rescale_grad": 1.0}, **parts)
    except (TypeError, ValueError) as error:
        raise PlanError(f"optimizer_params do not fit the optimizer {given!r}: {error}") from error


def input_range(model: Any) -> tuple[int, int | None]:
    """How many inputs a model takes, at least and at most."""
    if is_module(model):
        return len(model.data_names), len(model.data_names)
    if isinstance(model, (mx.gluon.nn.Sequential, mx.gluon.nn.HybridSequential)):
        return 1, 1
    if isinstance(model, mx.gluon.SymbolBlock):
        return (count := len(model._input_names) if hasattr(model, "_input_names") else 1), count
    own = type(model).forward is not mx.gluon.HybridBlock.forward
    function = model.forward if own else model.hybrid_forward
    parameters = list(inspect.signature(function).parameters.values())
    if not own:
        parameters = [each for each in parameters[1:] if each.name not in model._reg_params]  # without F and weights
    plain = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    least = max(1, sum(each.default is each.empty for each in plain))
    return least, None if any(each.kind is each.VAR_POSITIONAL for each in parameters) else len(plain)
