"""Normalization and noise."""

from __future__ import annotations

from firesteel.core.errors import PlanError
from firesteel.frontends.bigdl.layer import Layer, Regularized
from firesteel.frontends.bigdl.settings import (
    Flag,
    Format,
    NonNegative,
    Number,
    Numbers,
    Positive,
    PositiveCount,
    Probability,
    Sizes,
)

__all__ = [
    "BatchNormalization",
    "Dropout",
    "GaussianDropout",
    "GaussianNoise",
    "LayerNormalization",
    "Normalize",
    "NormalizeScale",
    "SpatialBatchNormalization",
    "SpatialCrossMapLRN",
    "SpatialDropout1D",
    "SpatialDropout2D",
    "SpatialDropout3D",
    "SpatialWithinChannelLRN",
]


class BatchNormalization(Layer):
    """Batch normalization of (n, n_output); ``momentum`` is the new batch's part of the running means, as in torch."""

    n_output: PositiveCount
    eps: Positive = 1e-5
    momentum: Probability = 0.1
    affine: Flag = True
    init_weight: Numbers | None = None
    init_bias: Numbers | None = None
    init_grad_weight: Numbers | None = None
    init_grad_bias: Numbers | None = None


class SpatialBatchNormalization(Layer):
    """Batch normalization of images."""

    n_output: PositiveCount
    eps: Positive = 1e-5
    momentum: Probability = 0.1
    affine: Flag = True
    init_weight: Numbers | None = None
    init_bias: Numbers | None = None
    init_grad_weight: Numbers | None = None
    init_grad_bias: Numbers | None = None
    data_format: Format = "NCHW"


class LayerNormalization(Layer):
    """Normalization of the last axis, of ``hidden_size``."""

    hidden_size: PositiveCount


class SpatialCrossMapLRN(Layer):
    """Divides by ``(k + alpha/size · Σx²)^beta`` over ``size`` neighbouring planes; ``size`` is odd."""

    size: PositiveCount = 5
    alpha: Number = 1.0
    beta: Number = 0.75
    k: Number = 1.0
    data_format: Format = "NCHW"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_odd(self, self.size)


class SpatialWithinChannelLRN(Layer):
    """Divides by ``(1 + alpha · mean of x²)^beta`` over a window of ``size`` × ``size``; ``size`` is odd."""

    size: PositiveCount = 5
    alpha: Number = 1.0
    beta: Number = 0.75

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_odd(self, self.size)


class Normalize(Layer):
    """Divides by the p-norm along axis 2 of a batch."""

    p: Positive
    eps: Positive = 1e-10


class NormalizeScale(Layer):
    """`Normalize`, then a learnt factor of this size, from ``scale``."""

    p: Positive
    scale: Number
    size: Sizes
    w_regularizer: Regularized | None = None
    eps: Positive = 1e-10


class Dropout(Layer):
    """Zeros with probability ``init_p`` in training; what stays is scaled by 1/(1 - p).

    With ``scale=False`` it is not; instead all of it is scaled by 1 - p outside of training, as in BigDL.
    """

    init_p: Probability = 0.5
    inplace: Flag = False
    scale: Flag = True


class SpatialDropout1D(Layer):
    """`Dropout` of whole features of (batch, time, features)."""

    init_p: Probability = 0.5


class SpatialDropout2D(Layer):
    """`Dropout` of whole planes of images."""

    init_p: Probability = 0.5
    data_format: Format = "NCHW"


class SpatialDropout3D(Layer):
    """`Dropout` of whole planes of volumes."""

    init_p: Probability = 0.5
    data_format: Format = "NCHW"


class GaussianDropout(Layer):
    """A factor from N(1, √(rate/(1 - rate))) in training."""

    rate: Probability

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rate == 1:
            raise PlanError("GaussianDropout's rate must be below 1.")


class GaussianNoise(Layer):
    """Noise from N(0, stddev) added in training."""

    stddev: NonNegative


def _check_odd(layer: Layer, size: int) -> None:
    if size % 2 == 0:
        raise PlanError(f"{type(layer).__name__}'s size must be odd, not {size}.")
