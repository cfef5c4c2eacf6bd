"""Normalization and noise."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from firesteel.frameworks.bigdl.activations import Plain
from firesteel.frameworks.bigdl.convolution import channels_first, channels_last
from firesteel.frameworks.bigdl.linear import CMul
from firesteel.frameworks.bigdl.module import Layer, Settings, kind

__all__ = ["BatchNormalization", "SpatialBatchNormalization"]


class _BatchNorm(Layer):
    def begin(self, name: str, parameter: torch.Tensor) -> None:
        parameter.fill_(1 if name == "weight" else 0)

    def expects(self) -> str:
        return f"(rows, {self.num_features}, …)"


@kind()
class BatchNormalization(_BatchNorm, nn.BatchNorm1d):
    def __init__(self, s: Settings) -> None:
        super().__init__(s.n_output, s.eps, s.momentum, s.affine, dtype=s.dtype)


@kind()
class SpatialBatchNormalization(_BatchNorm, nn.BatchNorm2d):
    def __init__(self, s: Settings) -> None:
        super().__init__(s.n_output, s.eps, s.momentum, s.affine, dtype=s.dtype)
        self.is_last = s.data_format == "NHWC"

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if not self.is_last:
            return super().forward(values)
        return channels_last(super().forward(channels_first(values)))


@kind()
class LayerNormalization(Layer, nn.LayerNorm):
    def __init__(self, s: Settings) -> None:
        super().__init__(s.hidden_size, eps=1e-6, dtype=s.dtype)

    def begin(self, name: str, parameter: torch.Tensor) -> None:
        parameter.fill_(1 if name == "weight" else 0)

    def expects(self) -> str:
        return f"(…, {self.normalized_shape[0]})"


@kind()
class SpatialCrossMapLRN(Plain, nn.LocalResponseNorm):
    def __init__(self, s: Settings) -> None:
        super().__init__(s.size, s.alpha, s.beta, s.k)
        self.is_last = s.data_format == "NHWC"

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if self.is_last:
            values = channels_first(values)
        is_batch = values.dim() == 4
        made = super().forward(values if is_batch else values.unsqueeze(0))
        made = made if is_batch else made.squeeze(0)
        return channels_last(made) if self.is_last else made


@kind()
class SpatialWithinChannelLRN(Plain):
    def __init__(self, s: Settings) -> None:
        super().__init__()
        self.size, self.alpha, self.beta = s.size, s.alpha, s.beta

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        mean = functional.avg_pool2d(values * values, self.size, 1, (self.size - 1) // 2)
        return values * (1 + self.alpha * mean) ** -self.beta


@kind()
class Normalize(Plain):
    def __init__(self, s: Settings) -> None:
        super().__init__()
        self.p, self.eps = s.p, s.eps

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return functional.normalize(values, self.p, dim=min(1, values.dim() - 1), eps=self.eps)


@kind()
class NormalizeScale(CMul):
    def __init__(self, s: Settings) -> None:
        super().__init__(s)
        self.p, self.eps, self.scale = s.p, s.eps, s.scale

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return super().forward(functional.normalize(values, self.p, dim=min(1, values.dim() - 1), eps=self.eps))

    def begin(self, name: str, parameter: torch.Tensor) -> None:
        parameter.fill_(self.scale)


@kind()
class Dropout(Plain):
    def __init__(self, s: Settings) -> None:
        super().__init__()
        self.p, self.scales = s.init_p, s.scale

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if self.scales:
            return functional.dropout(values, self.p, self.training)
        return values * torch.bernoulli(torch.full_like(values, 1 - self.p)) if self.training else values * (1 - self.p)

    def extra_repr(self) -> str:
        return f"p={self.p}"


class _SpatialDropout(Plain):
    """One number for all places of a plane: axes that are not dropped by themselves have length 1 in the mask."""

    def __init__(self, p: float, axes: tuple[int, ...]) -> None:
        super().__init__()
        self.p, self.axes = p, axes

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if not self.training or self.p == 0:
            return values
        if self.p == 1:
            return values * 0
        shape = list(values.shape)
        for axis in self.axes:
            shape[axis] = 1
        return values * torch.bernoulli(values.new_full(shape, 1 - self.p)) / (1 - self.p)


@kind()
class SpatialDropout1D(_SpatialDropout):
    def __init__(self, s: Settings) -> None:
        super().__init__(s.init_p, (-2,))


@kind()
class SpatialDropout2D(_SpatialDropout):
    def __init__(self, s: Settings) -> None:
        super().__init__(s.init_p, (-2, -1) if s.data_format == "NCHW" else (-3, -2))


@kind()
class SpatialDropout3D(_SpatialDropout):
    def __init__(self, s: Settings) -> None:
        super().__init__(s.init_p, (-3, -2, -1) if s.data_format == "NCHW" else (-4, -3, -2))


@kind()
class GaussianDropout(Plain):
    def __init__(self, s: Settings) -> None:
        super().__init__()
        self.deviation = math.sqrt(s.rate / (1 - s.rate))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values * (1 + torch.randn_like(values) * self.deviation) if self.training else values


@kind()
class GaussianNoise(Plain):
    def __init__(self, s: Settings) -> None:
        super().__init__()
        self.deviation = s.stddev

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values + torch.randn_like(values) * self.deviation if self.training else values
