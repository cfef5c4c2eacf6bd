"""Functions of one number, and softmax."""

from __future__ import annotations

from collections.abc import Callable

from firesteel.core.errors import PlanError
from firesteel.frontends.bigdl.layer import Layer
from firesteel.frontends.bigdl.settings import Count, Flag, NonNegative, Number, Positive, Sizes

__all__ = [
    "ELU",
    "BinaryThreshold",
    "HardShrink",
    "HardSigmoid",
    "HardTanh",
    "LeakyReLU",
    "LogSigmoid",
    "LogSoftMax",
    "PReLU",
    "RReLU",
    "ReLU",
    "ReLU6",
    "SReLU",
    "Sigmoid",
    "SoftMax",
    "SoftMin",
    "SoftPlus",
    "SoftShrink",
    "SoftSign",
    "Tanh",
    "TanhShrink",
    "Threshold",
]


class ReLU(Layer):
    """``max(x, 0)``."""

    ip: Flag = False


class ReLU6(Layer):
    """``min(max(x, 0), 6)``."""

    inplace: Flag = False


class LeakyReLU(Layer):
    """x, or ``negval·x`` below 0."""

    negval: Number = 0.01
    inplace: Flag = False


class ELU(Layer):
    """x, or ``alpha·(eˣ - 1)`` below 0."""

    alpha: Number = 1.0
    inplace: Flag = False


class RReLU(Layer):
    """x, or below 0 a factor times x: random between the bounds in training, their mean otherwise."""

    lower: Number = 1.0 / 8
    upper: Number = 1.0 / 3
    inplace: Flag = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lower > self.upper:
            raise PlanError(f"RReLU's lower bound {self.lower} is above its upper bound {self.upper}.")


class Tanh(Layer):
    """Hyperbolic tangent."""


class TanhShrink(Layer):
    """``x - tanh(x)``."""


class Sigmoid(Layer):
    """``1 / (1 + e⁻ˣ)``."""


class LogSigmoid(Layer):
    """``log(sigmoid(x))``."""


class SoftPlus(Layer):
    """``log(1 + e^(beta·x)) / beta``."""

    beta: Positive = 1.0


class SoftSign(Layer):
    """``x / (1 + |x|)``."""


class SoftShrink(Layer):
    """x drawn towards 0 by ``the_lambda``, and 0 within it."""

    the_lambda: NonNegative = 0.5


class HardShrink(Layer):
    """x, but 0 within ±``the_lambda``."""

    the_lambda: NonNegative = 0.5


class HardTanh(Layer):
    """x between the two values."""

    min_value: Number = -1.0
    max_value: Number = 1.0
    inplace: Flag = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_value >= self.max_value:
            raise PlanError(f"HardTanh needs min_value < max_value, not {self.min_value} and {self.max_value}.")


class Threshold(Layer):
    """x above ``th``, else ``v``."""

    th: Number = 1e-6
    v: Number = 0.0
    ip: Flag = False


class BinaryThreshold(Layer):
    """1 above ``th``, else 0. The gradient passes where the output is 1, as in BigDL."""

    th: Number = 1e-6
    ip: Flag = False


class HardSigmoid(Layer):
    """``0.2·x + 0.5`` between 0 and 1."""


class PReLU(Layer):
    """x, or below 0 a learnt factor times x: one factor, or ``n_output_plane`` along axis 2 of a batch. From 0.25."""

    n_output_plane: Count = 0


class SReLU(Layer):
    """Three pieces of a line with four learnt arrays per unit: left threshold and slope, right threshold and slope.

    ``input_shape`` is a row's; along ``share_axes`` (axes of a row) the arrays have length 1.
    """

    input_shape: Sizes
    share_axes: Sizes | None = None


class SoftMax(Layer):
    """Softmax over the **last** axis."""


class SoftMin(Layer):
    """Softmax of ``-x`` over the last axis."""


class LogSoftMax(Layer):
    """The logarithm of softmax over the last axis."""


BY_NAME: dict[str, Callable[[], Layer]] = {
    "elu": ELU,
    "hard_sigmoid": HardSigmoid,
    "hardsigmoid": HardSigmoid,
    "log_softmax": LogSoftMax,
    "relu": ReLU,
    "relu6": ReLU6,
    "sigmoid": Sigmoid,
    "softmax": SoftMax,
    "softplus": SoftPlus,
    "softsign": SoftSign,
    "tanh": Tanh,
}
"""Activations that a setting may name."""
