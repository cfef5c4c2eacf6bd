"""BigDL's optimizers in torch: an optimizer value becomes a ``torch.optim.Optimizer`` with BigDL's arithmetic.

Torch's own class serves wherever the arithmetic is the same. Where it is not, a class below has its own update, with
state that torch saves and loads as it does its own: tensors of the parameter's shape, and a step counter.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from firesteel.core import optimizers
from firesteel.core.errors import PlanError, UnsupportedError
from firesteel.core.optimizers import OptimMethod
from firesteel.core.schedules import Plateau

__all__ = [
    "BigDLAdam",
    "FactoredSGD",
    "Ftrl",
    "PlateauScheduler",
    "RateScheduler",
    "build",
    "build_scheduler",
    "is_elementwise",
]


class _OwnUpdate(torch.optim.Optimizer):
    """The walk over groups and parameters; a class below says what happens to one parameter."""

    @abstractmethod
    def _update(
        self, parameter: torch.Tensor, gradient: torch.Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> None: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, self.state[parameter], group)
        return loss


class BigDLAdam(_OwnUpdate):
    """Adam with epsilon added to the root of the second moment before that is corrected; torch adds it afterwards."""

    def __init__(
        self,
        params: Iterable[torch.Tensor],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

    def _update(
        self, parameter: torch.Tensor, gradient: torch.Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> None:
        if not state:
            # A tensor on the host, as torch's: it is saved with the others and read without waiting for a device.
            state["step"] = torch.tensor(0.0)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        step, (beta1, beta2) = state["step"].item(), group["betas"]
        state["exp_avg"].lerp_(gradient, 1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        divisor = state["exp_avg_sq"].sqrt().add_(group["eps"])
        rate = group["lr"] * math.sqrt(1 - beta2**step) / (1 - beta1**step)
        parameter.addcdiv_(state["exp_avg"], divisor, value=-rate)


class Ftrl(_OwnUpdate):
    """Follow the regularized leader; torch has none.

    With a power other than -0.5, which is a square root, a slice may differ from the whole in the last bit: torch's
    ``pow`` rounds the end of a tensor otherwise than its middle.
    """

    def __init__(
        self,
        params: Iterable[torch.Tensor],
        lr: float = 1e-3,
        power: float = -0.5,
        initial_accumulator: float = 0.1,
        l1: float = 0.0,
        l2: float = 0.0,
        shrinkage: float = 0.0,
    ) -> None:
        defaults = {"power": power, "initial_accumulator": initial_accumulator, "l1": l1, "l2": l2}
        super().__init__(params, {"lr": lr, "shrinkage": shrinkage, **defaults})

    def _update(
        self, parameter: torch.Tensor, gradient: torch.Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> None:
        if not state:
            state["accumulator"] = torch.full_like(parameter, group["initial_accumulator"])
            state["linear"] = torch.zeros_like(parameter)
        rate, power = group["lr"], -group["power"]
        if rate == 0:  # a schedule that has ended: nothing moves, where the formula divides by 0
            return
        if group["shrinkage"]:
            gradient = gradient.add(parameter, alpha=2 * group["shrinkage"])
        accumulator, linear = state["accumulator"], state["linear"]
        before = accumulator.pow(power)
        accumulator.addcmul_(gradient, gradient)
        after = accumulator.pow(power)
        linear.add_(gradient).addcmul_(before.sub_(after), parameter, value=1 / rate)
        moved = (linear.sign() * group["l1"] - linear).div_(after.div_(rate).add_(2 * group["l2"]))
        # Not moved * mask: where linear is 0 the divisor may be 0 too, and NaN times 0 is NaN.
        parameter.copy_(torch.where(linear.abs() <= group["l1"], 0.0, moved))


class FactoredSGD(_OwnUpdate):
    """SGD with a factor of the rate, a weight decay, or both, for every single element.

    The factors lie in each parameter's state, with its shape. So they are saved, loaded, moved to a device and sliced
    with the rest of the state; a parameter that came without them is a ``KeyError``, not an update with other numbers.
    """

    def __init__(
        self,
        params: Iterable[torch.Tensor],
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        rate_factors: Sequence[float] | None = None,
        weight_decays: Sequence[float] | None = None,
    ) -> None:
        given = {"rate_factor": rate_factors, "weight_decay": weight_decays}
        factors = {name: numbers for name, numbers in given.items() if numbers is not None}
        defaults = {"momentum": momentum, "dampening": dampening, "weight_decay": weight_decay, "nesterov": nesterov}
        super().__init__(params, {"lr": lr, "factors": list(factors), **defaults})
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        sizes = [parameter.numel() for parameter in parameters]
        for name, numbers in factors.items():
            if len(numbers) != sum(sizes):
                raise PlanError(
                    f"SGD has {len(numbers)} factors for {sum(sizes)} parameter elements: give one for each element."
                )
            shares = torch.tensor(numbers, dtype=torch.float64).split(sizes)
            for parameter, share in zip(parameters, shares, strict=True):
                self.state[parameter][name] = share.view(parameter.shape).to(parameter)

    def _update(
        self, parameter: torch.Tensor, gradient: torch.Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> None:
        if "weight_decay" in group["factors"]:
            gradient = gradient.addcmul(parameter, state["weight_decay"])
        elif group["weight_decay"]:
            gradient = gradient.add(parameter, alpha=group["weight_decay"])
        if group["momentum"]:
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = gradient.clone()
            else:
                state["momentum_buffer"].mul_(group["momentum"]).add_(gradient, alpha=1 - group["dampening"])
            buffer = state["momentum_buffer"]
            gradient = gradient.add(buffer, alpha=group["momentum"]) if group["nesterov"] else buffer
        if "rate_factor" in group["factors"]:
            gradient = gradient * state["rate_factor"]
        parameter.add_(gradient, alpha=-group["lr"])


def build(method: OptimMethod, params: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
    """The optimizer for ``params``, at the rate of update 0; `build_scheduler` moves the rate.

    Raises:
        PlanError: ``learningrates`` or ``weightdecays`` are not as many as ``params`` have elements. For one rank's
            slice of the parameters, give ``method.part(start, stop)``.
    """
    rate = method.rate(0)
    match method:
        case optimizers.SGD(learningrates=None, weightdecays=None):
            return torch.optim.SGD(params, rate, method.momentum, method.damping, method.weightdecay, method.nesterov)
        case optimizers.SGD():
            return FactoredSGD(
                params,
                rate,
                method.momentum,
                method.damping,
                method.weightdecay,
                method.nesterov,
                method.learningrates,
                method.weightdecays,
            )
        case optimizers.Adam():
            return BigDLAdam(params, rate, (method.beta1, method.beta2), method.epsilon)
        case optimizers.Adagrad():
            return torch.optim.Adagrad(params, rate, weight_decay=method.weightdecay, eps=1e-10)
        case optimizers.RMSprop():
            return torch.optim.RMSprop(params, rate, alpha=method.decayrate, eps=method.epsilon)
        case optimizers.Adadelta():
            return torch.optim.Adadelta(params, rate, rho=method.decayrate, eps=method.epsilon)
        case optimizers.Adamax():
            return torch.optim.Adamax(params, rate, (method.beta1, method.beta2), method.epsilon)
        case optimizers.Ftrl():
            return Ftrl(
                params,
                rate,
                method.learningrate_power,
                method.initial_accumulator_value,
                method.l1_regularization_strength,
                method.l2_regularization_strength,
                method.l2_shrinkage_regularization_strength,
            )
        case optimizers.LBFGS():
            return torch.optim.LBFGS(
                params,
                rate,
                method.max_iter,
                method.max_eval,
                tolerance_grad=method.tolfun,
                tolerance_change=method.tolx,
                history_size=method.ncorrection,
            )
    raise UnsupportedError(f"torch has no optimizer for {type(method).__name__}.")


class RateScheduler:
    """Sets the rate of the next update by its number. ``step()`` after every update; the number is all of its state."""

    needs_metric = False

    def __init__(self, method: OptimMethod, optimizer: torch.optim.Optimizer) -> None:
        self.method = method
        self.optimizer = optimizer
        self.load_state_dict({"updates": 0})

    def step(self) -> None:
        """An update was done: sets the rate of the next."""
        self.load_state_dict({"updates": self.updates + 1})

    def state_dict(self) -> dict[str, Any]:
        """How many updates were done."""
        return {"updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on after so many updates: the optimizer has the next one's rate at once."""
        self.updates = int(state["updates"])
        _set_rate(self.optimizer, self.method.rate(self.updates))


class PlateauScheduler:
    """Sets the rate from a value seen once per epoch: ``step(value)``, where ``monitor`` says which value."""

    needs_metric = True

    def __init__(self, plateau: Plateau, base: float, optimizer: torch.optim.Optimizer) -> None:
        self.monitor = plateau.monitor
        self.optimizer = optimizer
        self.state = plateau.start(base)

    def step(self, value: float) -> None:
        """An epoch was done, and this is its value."""
        _set_rate(self.optimizer, self.state.observe(float(value)))

    def state_dict(self) -> dict[str, Any]:
        """What was seen, and the rate."""
        return self.state.settings()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from there: the optimizer has that rate at once."""
        self.state = type(self.state)(plateau=self.state.plateau, **state)
        _set_rate(self.optimizer, self.state.rate)


def _set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def build_scheduler(method: OptimMethod, optimizer: torch.optim.Optimizer) -> RateScheduler | PlateauScheduler | None:
    """What moves the rate of ``build(method, ...)``, or ``None`` where the rate is constant."""
    if isinstance(method.schedule, Plateau):
        return PlateauScheduler(method.schedule, method.base_rate, optimizer)
    return None if method.is_constant else RateScheduler(method, optimizer)


_ELEMENTWISE = frozenset(
    {
        torch.optim.ASGD,
        torch.optim.Adadelta,
        torch.optim.Adagrad,
        torch.optim.Adam,
        torch.optim.AdamW,
        torch.optim.Adamax,
        torch.optim.NAdam,
        torch.optim.RAdam,
        torch.optim.RMSprop,
        torch.optim.Rprop,
        torch.optim.SGD,
        BigDLAdam,
        FactoredSGD,
        Ftrl,
    }
)


def is_elementwise(optimizer: torch.optim.Optimizer) -> bool:
    """Whether updating slices of a flattened parameter one by one gives the numbers of updating it whole.

    Only classes that are known to be so, or say so of themselves: a subclass of one may do anything, and so is not.
    """
    return type(optimizer) in _ELEMENTWISE or vars(type(optimizer)).get("is_elementwise") is True
