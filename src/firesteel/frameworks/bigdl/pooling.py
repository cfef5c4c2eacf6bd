"""Pooling, padding, cropping and resizing."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional

from firesteel.frameworks.bigdl.activations import Plain
from firesteel.frameworks.bigdl.convolution import channels_first, channels_last, same_pads
from firesteel.frameworks.bigdl.module import Settings, kind

__all__ = ["SpatialAveragePooling", "SpatialMaxPooling"]


class _Images(Plain):
    """Works on (…, planes, height, width); images with their planes last are turned."""

    is_last = False

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if not self.is_last:
            return self.change(values)
        return channels_last(self.change(channels_first(values)))

    def change(self, values: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def expects(self) -> str:
        return "(rows, height, width, planes)" if self.is_last else "(rows, planes, height, width)"


@kind()
class SpatialMaxPooling(_Images):
    def __init__(self, s: Settings) -> None:
        super().__init__()
        self.window, self.steps, self.pads = (s.kh, s.kw), (s.dh, s.dw), (s.pad_h, s.pad_w)
        self.is_ceil, self.is_last = s.to_ceil, s.format == "NHWC"

    def change(self, values: torch.Tensor) -> torch.Tensor:
        if self.pads == (-1, -1):
            both = same_pads(values.shape[-2:], self.window, self.steps)
            values = functional.pad(values, [pad for pair in reversed(both) for pad in pair], value=-math.inf)
            return functional.max_pool2d(values, self.window, self.steps)
        return functional.max_pool2d(values, self.window, self.steps, self.pads, ceil_mode=self.is_ceil)


@kind()
class SpatialAveragePooling(_Images):
    def __init__(self, s: Settings) -> None:
        super().__init__()
        self.window, self.steps, self.pads = (s.kh, s.kw), (s.dh, s.dw), (s.pad_h, s.pad_w)
        self.is_whole, self.is_ceil, self.is_last = s.global_pooling, s.ceil_mode, s.format == "NHWC"
        self.counts_pads, self.divides = s.count_include_pad, s.divide

    def change(self, values: torch.Tensor) -> torch.Tensor:
        if self.is_whole:
            total = values.sum((-2, -1), keepdim=True)
            return total / (values.shape[-1] * values.shape[-2]) if self.divides else total
        pads: Any = self.pads
        if pads == (-1, -1):
            both = same_pads(values.shape[-2:], self.window, self.steps)
            around = [pad for pair in reversed(both) for pad in pair]
            total = self._sum(functional.pad(values, around), (0, 0))
            count = self._sum(functional.pad(torch.ones_like(values), around, value=float(self.counts_pads)), (0, 0))
            return total / count if self.divides else total
        if not self.divides:
            return self._sum(values, pads)
        return functional.avg_pool2d(values, self.window, self.steps, pads, self.is_ceil, self.counts_pads)

    def _sum(self, values: torch.Tensor, pads: Any) -> torch.Tensor:
        return functional.avg_pool2d(values, self.window, self.steps, pads, self.is_ceil, divisor_override=1)


@kind()
class TemporalMaxPooling(Plain):
    def __init__(self, s: Settings) -> None:
        super().__init__()
        self.length, self.step = s.k_w, s.k_w if s.d_w == -1 else s.d_w

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return functional.max_pool1d(values.transpose(-1, -2), self.length, self.step).transpose(-1, -2)

    def expects(self) -> str:
        return f"(rows, at least {self.length} steps, features)"


@kind()
class VolumetricMaxPooling(Plain):
    def __init__(self, s: Settings) -> None:
        super().__init__()
        self.window, self.steps, self.pads = (s.k_t, s.k_h, s.k_w), (s.d_t, s.d_h, s.d_w), (s.pad_t, s.pad_h, s.pad_w)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return functional.max_pool3d(values, self.window, self.steps, self.pads)

    def expects(self) -> str:
        return "(rows, planes, time, height, width)"


@kind()
class VolumetricAveragePooling(VolumetricMaxPooling):
    def __init__(self, s: Settings) -> None:
        super().__init__(s)
        self.is_ceil, self.counts_pads = s.ceil_mode, s.count_include_pad

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return functional.avg_pool3d(values, self.window, self.steps, self.pads, self.is_ceil, self.counts_pads)


@kind()
class SpatialZeroPadding(Plain):
    def __init__(self, s: Settings) -> None:
        super().__init__()
        self.pads = (s.pad_left, s.pad_right, s.pad_top, s.pad_bottom)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return functional.pad(values, self.pads)

    def expects(self) -> str:
        return "(rows, planes, height, width)"


class _Cropping(Plain):
    """Slices of neighbouring axes, the last ones unless the planes are last."""

    def __init__(self, crops: tuple[tuple[int, int], ...], is_last: bool) -> None:
        super().__init__()
        self.crops, self.is_last = crops, is_last

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        for place, (begin, end) in enumerate(self.crops):
            axis = values.dim() - len(self.crops) + place - self.is_last
            values = values.narrow(axis, begin, values.shape[axis] - begin - end)
        return values

    def expects(self) -> str:
        return f"an image larger than what is cropped: {', '.join(map(str, self.crops))}"


@kind("Cropping2D")
def _cropping_2d(s: Settings) -> _Cropping:
    return Cropping2D((s.heightCrop, s.widthCrop), s.data_format == "NHWC")


@kind("Cropping3D")
def _cropping_3d(s: Settings) -> _Cropping:
    return Cropping3D((s.dim1Crop, s.dim2Crop, s.dim3Crop), s.data_format == "channel_last")


class Cropping2D(_Cropping):
    """Of images."""


class Cropping3D(_Cropping):
    """Of volumes."""


@kind()
class UpSampling1D(Plain):
    def __init__(self, s: Settings) -> None:
        super().__init__()
        self.times = s.length

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values.repeat_interleave(self.times, -2)


@kind()
class UpSampling2D(_Images):
    def __init__(self, s: Settings) -> None:
        super().__init__()
        self.times, self.is_last = s.size, s.data_format == "NHWC"

    def change(self, values: torch.Tensor) -> torch.Tensor:
        return values.repeat_interleave(self.times[0], -2).repeat_interleave(self.times[1], -1)


@kind()
class UpSampling3D(Plain):
    def __init__(self, s: Settings) -> None:
        super().__init__()
        self.times = s.size

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        for axis, times in zip((-3, -2, -1), self.times, strict=True):
            values = values.repeat_interleave(times, axis)
        return values


@kind()
class ResizeBilinear(_Images):
    def __init__(self, s: Settings) -> None:
        super().__init__()
        self.size, self.is_aligned, self.is_last = (
            (s.output_height, s.output_width),
            s.align_corner,
            s.data_format == "NHWC",
        )

    def change(self, values: torch.Tensor) -> torch.Tensor:
        is_batch = values.dim() == 4
        values = values if is_batch else values.unsqueeze(0)
        made = functional.interpolate(values, self.size, mode="bilinear", align_corners=self.is_aligned)
        return made if is_batch else made.squeeze(0)
