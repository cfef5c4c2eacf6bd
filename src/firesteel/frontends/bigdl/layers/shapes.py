"""Shapes, axes and arithmetic without weights. Axes count from 1, negative ones from the end.

Where a layer takes the number of a row's axes (``n_input_dims``), an input with one axis more is a batch, and the
layer's axis is one of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from firesteel.core.errors import PlanError
from firesteel.frontends.bigdl.layer import Layer
from firesteel.frontends.bigdl.settings import (
    Axis,
    Flag,
    Infer,
    NonNegative,
    Number,
    PositiveCount,
    Sizes,
    Whole,
)

__all__ = [
    "Abs",
    "ActivityRegularization",
    "AddConstant",
    "Clamp",
    "Contiguous",
    "Echo",
    "Exp",
    "ExpandSize",
    "GradientReversal",
    "Identity",
    "Index",
    "InferReshape",
    "L1Penalty",
    "Log",
    "MaskedSelect",
    "Masking",
    "Max",
    "Mean",
    "Min",
    "MulConstant",
    "Narrow",
    "Negative",
    "NegativeEntropyPenalty",
    "Padding",
    "Power",
    "Replicate",
    "Reshape",
    "Reverse",
    "Select",
    "Sqrt",
    "Square",
    "Squeeze",
    "Sum",
    "Tile",
    "Transpose",
    "Unsqueeze",
    "View",
]


class Reshape(Layer):
    """The elements, row-wise, in this shape.

    ``batch_mode`` True: the first axis is the batch and stays. False: there is no batch. None: there is none if the
    input has exactly as many elements as ``size`` and its first axis is not 1.
    """

    size: Sizes
    batch_mode: Flag | None = None


class InferReshape(Layer):
    """Another shape, where 0 keeps an axis and one -1 is worked out; with ``batch_mode`` the first axis stays."""

    size: Infer
    batch_mode: Flag = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_one_inferred(self, self.size)


class View(Layer):
    """As `Reshape`; with a -1, or when the elements are a multiple of ``sizes``, a batch axis comes first.

    ``num_input_dims`` is the number of a row's axes, where the input has more it is a batch.
    """

    sizes: Infer
    num_input_dims: Whole = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_one_inferred(self, self.sizes)


class Squeeze(Layer):
    """Without an axis of length 1, or with None without all of them."""

    dim: Axis | None
    num_input_dims: Whole | None = None


class Unsqueeze(Layer):
    """With a new axis of length 1 at this place."""

    pos: Axis
    num_input_dims: Whole | None = None


class Transpose(Layer):
    """Pairs of axes swapped, one after another: ``Transpose([(1, 2), (2, 3)])``."""

    permutations: Sequence[Any]

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            self.permutations = tuple((int(one), int(other)) for one, other in self.permutations)
        except (TypeError, ValueError):
            raise PlanError(f"Transpose takes a list of pairs of axes, not {self.permutations!r}.") from None


class Select(Layer):
    """One slice of an axis; ``index`` from 1, or negative from the end."""

    dim: Axis
    index: Axis


class Narrow(Layer):
    """``length`` slices of an axis from ``offset`` on; -1: up to the last, -2: up to the last but one, and so on."""

    dimension: Axis
    offset: Axis
    length: Axis = 1


class Index(Layer):
    """Slices of an axis by their numbers from 1: the input is a table ``{x, numbers}``."""

    _takes_table = True
    dimension: Axis


class MaskedSelect(Layer):
    """The elements where the mask is not 0, in one row: the input is a table ``{x, mask}``."""

    _takes_table = True


class Replicate(Layer):
    """``n_features`` times the same, along a new axis at ``dim``; ``n_dim`` is the number of a row's axes."""

    n_features: PositiveCount
    dim: PositiveCount = 1
    n_dim: PositiveCount | None = None


class Tile(Layer):
    """Repeated along an axis."""

    dim: Axis = 1
    copies: PositiveCount = 2


class ExpandSize(Layer):
    """Axes of length 1 stretched to these sizes; -1 keeps one."""

    sizes: Infer


class Reverse(Layer):
    """Back to front along an axis."""

    dimension: Axis = 1
    is_inplace: Flag = False


class Padding(Layer):
    """``|pad|`` entries of ``value`` more along an axis: at the end, with a negative ``pad`` in front.

    ``n_input_dim`` is the number of a row's axes. ``n_index`` moves the place inwards: 1 is the very end.
    """

    dim: Axis
    pad: Whole
    n_input_dim: PositiveCount
    value: Number = 0.0
    n_index: PositiveCount = 1


class Max(Layer):
    """The largest along an axis."""

    dim: Axis
    num_input_dims: Whole | None = None


class Min(Layer):
    """The smallest along an axis."""

    dim: Axis = 1
    num_input_dims: Whole | None = None


class Mean(Layer):
    """The mean along an axis, which goes unless ``squeeze=False``."""

    dimension: Axis = 1
    n_input_dims: Whole = -1
    squeeze: Flag = True


class Sum(Layer):
    """The sum along an axis, which goes unless ``squeeze=False``; ``size_average`` divides by its length."""

    dimension: Axis = 1
    n_input_dims: Whole = -1
    size_average: Flag = False
    squeeze: Flag = True


class Abs(Layer):
    """``|x|``."""


class Exp(Layer):
    """``eˣ``."""


class Log(Layer):
    """The natural logarithm."""


class Sqrt(Layer):
    """The square root."""


class Square(Layer):
    """``x²``."""


class Negative(Layer):
    """``-x``."""

    inplace: Flag = False


class Power(Layer):
    """``(shift + scale·x)^power``."""

    power: Number
    scale: Number = 1.0
    shift: Number = 0.0


class Clamp(Layer):
    """x between two numbers."""

    min: Number
    max: Number

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min > self.max:
            raise PlanError(f"Clamp needs min <= max, not {self.min} and {self.max}.")


class AddConstant(Layer):
    """A number added."""

    constant_scalar: Number
    inplace: Flag = False


class MulConstant(Layer):
    """Times a number."""

    scalar: Number
    inplace: Flag = False


class Identity(Layer):
    """What it gets."""

    def input_range(self) -> tuple[int, int | None]:
        """Anything."""
        return 1, None


class Contiguous(Layer):
    """What it gets; here for old models."""


class Echo(Layer):
    """What it gets, with its shape in the log."""


class GradientReversal(Layer):
    """What it gets; the gradient is multiplied by ``-the_lambda``."""

    the_lambda: Number = 1.0


class Masking(Layer):
    """Zeros where a whole time step of (batch, time, …) equals ``mask_value``."""

    mask_value: Number


class L1Penalty(Layer):
    """What it gets; adds ``l1weight·sign(x)`` to the gradient, divided by the elements with ``size_average``.

    With ``provide_output=False`` that is all of the gradient.
    """

    l1weight: Number
    size_average: Flag = False
    provide_output: Flag = True


class ActivityRegularization(Layer):
    """What it gets; adds the gradient of ``l1·|x| + l2·x²``."""

    l1: NonNegative = 0.0
    l2: NonNegative = 0.0


class NegativeEntropyPenalty(Layer):
    """What it gets, probabilities; adds the gradient of ``beta·x·log(x)``."""

    beta: Number = 0.01


def _check_one_inferred(layer: Layer, sizes: Any) -> None:
    if sum(size == -1 for size in sizes) > 1:
        raise PlanError(f"{type(layer).__name__} can work out one size, not those of {list(sizes)}.")
