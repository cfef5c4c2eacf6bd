"""Linear maps, look-up tables, and learnt factors and biases."""

from __future__ import annotations

from firesteel.core.errors import PlanError
from firesteel.frontends.bigdl.layer import Activation, Layer, Regularized
from firesteel.frontends.bigdl.settings import Flag, Number, Numbers, Positive, PositiveCount, Sizes

__all__ = [
    "Add",
    "Bilinear",
    "CAdd",
    "CMul",
    "Cosine",
    "Euclidean",
    "Highway",
    "Linear",
    "LookupTable",
    "Maxout",
    "Mul",
    "Scale",
]


class Linear(Layer):
    """``W·x + b`` on (n, input_size) or (input_size); W has shape (output_size, input_size)."""

    input_size: PositiveCount
    output_size: PositiveCount
    with_bias: Flag = True
    wRegularizer: Regularized | None = None
    bRegularizer: Regularized | None = None
    init_weight: Numbers | None = None
    init_bias: Numbers | None = None
    init_grad_weight: Numbers | None = None
    init_grad_bias: Numbers | None = None

    def row_shape(self) -> tuple[int, ...] | None:
        """(input_size,)."""
        return (self.input_size,)


class Bilinear(Layer):
    """``x₁ᵀ·W·x₂ + b`` on a table of two; W has shape (output_size, input_size1, input_size2)."""

    _takes_table = True
    input_size1: PositiveCount
    input_size2: PositiveCount
    output_size: PositiveCount
    bias_res: Flag = True
    wRegularizer: Regularized | None = None
    bRegularizer: Regularized | None = None


class LookupTable(Layer):
    """Rows of a table by their numbers, **1 to n_index**; whole floats will do.

    ``padding_value`` p > 0: row p gets no gradient. ``max_norm``: rows are shortened to this norm when they are used.
    """

    n_index: PositiveCount
    n_output: PositiveCount
    padding_value: Number = 0.0
    max_norm: Positive | None = None
    norm_type: Positive = 2.0
    should_scale_grad_by_freq: Flag = False
    wRegularizer: Regularized | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        place = self.padding_value
        if place != int(place) or place > self.n_index:
            raise PlanError(
                f"LookupTable's padding_value is a row from 1 to {self.n_index}, or 0 for none, not {place:g}."
            )


class Add(Layer):
    """A learnt bias on the last axis."""

    input_size: PositiveCount

    def row_shape(self) -> tuple[int, ...] | None:
        """(input_size,)."""
        return (self.input_size,)


class CAdd(Layer):
    """A learnt bias of this size, which broadcasts; a batch axis is put in front."""

    size: Sizes
    bRegularizer: Regularized | None = None


class Mul(Layer):
    """One learnt factor."""


class CMul(Layer):
    """A learnt factor of this size, which broadcasts; a batch axis is put in front."""

    size: Sizes
    wRegularizer: Regularized | None = None


class Scale(Layer):
    """A learnt factor and a learnt bias of this size, which broadcast; a batch axis is put in front."""

    size: Sizes


class Cosine(Layer):
    """Cosine similarity to ``output_size`` learnt centres."""

    input_size: PositiveCount
    output_size: PositiveCount

    def row_shape(self) -> tuple[int, ...] | None:
        """(input_size,)."""
        return (self.input_size,)


class Euclidean(Layer):
    """Distance to ``output_size`` learnt centres; the weight has shape (input_size, output_size)."""

    input_size: PositiveCount
    output_size: PositiveCount
    fast_backward: Flag = True

    def row_shape(self) -> tuple[int, ...] | None:
        """(input_size,)."""
        return (self.input_size,)


class Maxout(Layer):
    """The largest of ``maxout_number`` linear maps."""

    input_size: PositiveCount
    output_size: PositiveCount
    maxout_number: PositiveCount
    with_bias: Flag = True
    w_regularizer: Regularized | None = None
    b_regularizer: Regularized | None = None
    init_weight: Numbers | None = None
    init_bias: Numbers | None = None

    def row_shape(self) -> tuple[int, ...] | None:
        """(input_size,)."""
        return (self.input_size,)


class Highway(Layer):
    """``t·a(W·x + b) + (1 - t)·x`` with ``t = sigmoid(W'·x + b')``. Its weights are W', b', W, b, as in BigDL."""

    size: PositiveCount
    with_bias: Flag = True
    activation: Activation | None = None
    wRegularizer: Regularized | None = None
    bRegularizer: Regularized | None = None

    def row_shape(self) -> tuple[int, ...] | None:
        """(size,)."""
        return (self.size,)
