"""One optimizer for several: parts of a model, each with its own method and its own schedule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from firesteel.core.errors import PlanError, UnknownName, UnsupportedError
from firesteel.core.optimizers import LBFGS, OptimMethod
from firesteel.core.schedules import Plateau
from firesteel.frameworks.bigdl.module import Layer
from firesteel.frameworks.torch import optimizers

__all__ = ["PartedOptimizer", "PartedScheduler", "build_parted", "check_parts"]

_KINDS: dict[str, type[torch.optim.Optimizer]] = {
    kind.__name__: kind
    for kind in (
        torch.optim.SGD,
        torch.optim.Adagrad,
        torch.optim.RMSprop,
        torch.optim.Adadelta,
        torch.optim.Adamax,
        optimizers.BigDLAdam,
        optimizers.FactoredSGD,
        optimizers.Ftrl,
    )
}


def check_parts(model: nn.Module, methods: Mapping[str, OptimMethod]) -> dict[str, list[nn.Parameter]]:
    """The trainable parameters of each named layer; ``PlanError`` where a parameter belongs to none or to two."""
    if not methods:
        raise PlanError("a dict of optim methods needs at least one: {layer name: method}")
    labelled = {each.label: each for each in model.modules() if isinstance(each, Layer)}
    owners: dict[int, str] = {}
    found: dict[str, list[nn.Parameter]] = {}
    for name, method in methods.items():
        if not isinstance(method, OptimMethod):
            raise PlanError(
                f"the method of layer {name!r} is an optim method such as SGD(), not {type(method).__qualname__}"
            )
        if isinstance(method, LBFGS):
            raise UnsupportedError("LBFGS optimizes a whole model; it cannot be the method of one layer")
        if name not in labelled:
            raise UnknownName("layer", name, labelled)
        found[name] = [each for each in labelled[name].parameters() if each.requires_grad]
        for parameter in found[name]:
            if id(parameter) in owners:
                raise PlanError(
                    f"a weight of layer {name!r} is optimized by the method of {owners[id(parameter)]!r} too"
                )
            owners[id(parameter)] = name
    for each in model.modules():
        left = [parameter for parameter in each.parameters(recurse=False) if parameter.requires_grad]
        if any(id(parameter) not in owners for parameter in left):
            label = each.label if isinstance(each, Layer) else type(each).__name__
            raise PlanError(f"no optim method is given for layer {label!r}; those given are for: {', '.join(methods)}")
    return found


class PartedOptimizer(torch.optim.Optimizer):
    """Groups that say by what class they are updated (``kind``). Each class works on the state that all share."""

    is_elementwise = True

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"kind": "SGD", "name": ""})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Let each group's class update its parameters."""
        for group in self.param_groups:
            worker = _KINDS[group["kind"]](group["params"])
            worker.param_groups, worker.state = [group], self.state
            worker.step()


class PartedScheduler:
    """The rate of each group by its own method."""

    needs_metric = False

    def __init__(self, methods: Mapping[str, OptimMethod], optimizer: PartedOptimizer) -> None:
        self.methods, self.optimizer = dict(methods), optimizer
        self.load_state_dict({"updates": 0})

    def step(self) -> None:
        """An update was done: sets the rates of the next."""
        self.load_state_dict({"updates": self.updates + 1})

    def state_dict(self) -> dict[str, Any]:
        """How many updates were done."""
        return {"updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on after so many updates."""
        self.updates = int(state["updates"])
        for group in self.optimizer.param_groups:
            group["lr"] = self.methods[group["name"]].rate(self.updates)


def build_parted(model: nn.Module, methods: Mapping[str, OptimMethod]) -> tuple[PartedOptimizer, PartedScheduler]:
    """The optimizer of all parts, and what moves their rates."""
    groups, states = [], {}
    for name, parameters in check_parts(model, methods).items():
        if isinstance(methods[name].schedule, Plateau):
            raise UnsupportedError(
                "a Plateau watches the whole training; it cannot be the schedule of one layer's method"
            )
        if not parameters:
            continue
        made = optimizers.build(methods[name], parameters)
        (group,) = made.param_groups
        groups.append({**group, "kind": type(made).__name__, "name": name})
        states |= made.state
    optimizer = PartedOptimizer(groups)
    optimizer.state.update(states)
    return optimizer, PartedScheduler(methods, optimizer)
