"""Functions of one number, and softmax: torch's own wherever they are the same."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from firesteel.core.errors import PlanError
from firesteel.frameworks.bigdl.module import Layer, Settings, kind

__all__ = ["Plain"]


class Plain(Layer):
    """Without weights."""

    order = ()


def _like(name: str, base: type[nn.Module], *settings: str) -> None:
    """A class of this name: torch's own, made of the settings in its order."""

    def start(self: Any, given: Settings) -> None:
        base.__init__(self, *(getattr(given, setting) for setting in settings))

    made = type(name, (Plain, base), {"__init__": start, "__module__": __name__, "__qualname__": name})
    globals()[name] = kind()(made)  # in this module, where pickle finds it


_like("ReLU", nn.ReLU)
_like("ReLU6", nn.ReLU6)
_like("LeakyReLU", nn.LeakyReLU, "negval")
_like("ELU", nn.ELU, "alpha")
_like("RReLU", nn.RReLU, "lower", "upper")
_like("Tanh", nn.Tanh)
_like("TanhShrink", nn.Tanhshrink)
_like("Sigmoid", nn.Sigmoid)
_like("LogSigmoid", nn.LogSigmoid)
_like("SoftPlus", nn.Softplus, "beta")
_like("SoftSign", nn.Softsign)
_like("SoftShrink", nn.Softshrink, "the_lambda")
_like("HardShrink", nn.Hardshrink, "the_lambda")
_like("HardTanh", nn.Hardtanh, "min_value", "max_value")
_like("Threshold", nn.Threshold, "th", "v")


class _Step(torch.autograd.Function):
    """1 above a threshold; the gradient passes there."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, threshold: float) -> torch.Tensor:
        above = (values > threshold).to(values.dtype)
        ctx.save_for_backward(above)
        return above

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (above,) = ctx.saved_tensors
        return gradient * above, None


@kind()
class BinaryThreshold(Plain):
    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.threshold = settings.th

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return _Step.apply(values, self.threshold)


@kind()
class HardSigmoid(Plain):
    def __init__(self, settings: Settings) -> None:
        super().__init__()

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return (values * 0.2 + 0.5).clamp(0, 1)


@kind()
class SoftMax(Plain):
    def __init__(self, settings: Settings) -> None:
        super().__init__()

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return functional.softmax(values, dim=-1)


@kind()
class SoftMin(Plain):
    def __init__(self, settings: Settings) -> None:
        super().__init__()

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return functional.softmin(values, dim=-1)


@kind()
class LogSoftMax(Plain):
    def __init__(self, settings: Settings) -> None:
        super().__init__()

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return functional.log_softmax(values, dim=-1)


@kind()
class PReLU(Layer, nn.PReLU):
    def __init__(self, settings: Settings) -> None:
        super().__init__(max(1, settings.n_output_plane), dtype=settings.dtype)

    def begin(self, name: str, parameter: torch.Tensor) -> None:
        parameter.fill_(0.25)

    def expects(self) -> str:
        return f"(rows, {self.num_parameters}, …)" if self.num_parameters > 1 else "any array"


@kind()
class SReLU(Layer):
    order = ("tLeft", "aLeft", "tRight", "aRight")

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        shape = list(settings.input_shape)
        for axis in settings.share_axes or ():
            if axis > len(shape):
                raise PlanError(f"SReLU shares axis {axis}, but a row has {len(shape)} axes")
            shape[axis - 1] = 1
        for name in self.order:
            setattr(self, name, nn.Parameter(torch.empty(shape, dtype=settings.dtype)))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        left, right = self.tLeft, self.tLeft + self.tRight.abs()
        below = left + self.aLeft * (values - left)
        above = right + self.aRight * (values - right)
        return torch.where(values >= right, above, torch.where(values <= left, below, values))

    def begin(self, name: str, parameter: torch.Tensor) -> None:
        if name in ("tLeft", "aRight"):
            parameter.fill_(0 if name == "tLeft" else 1)
        else:
            sizes = parameter.shape[0], max(1, parameter.numel() // parameter.shape[0])
            bound = (6 / sum(sizes)) ** 0.5
            parameter.uniform_(-bound, bound)

    def expects(self) -> str:
        return f"rows that broadcast with {tuple(self.tLeft.shape)}"
