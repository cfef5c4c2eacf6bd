"""Convolutions. Settings have width before height, torch the other way round."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from firesteel.core.errors import PlanError
from firesteel.frameworks.bigdl.module import Layer, Settings, kind

__all__ = ["channels_first", "channels_last", "same_pads"]


def same_pads(sizes: Sequence[int], kernel: Sequence[int], stride: Sequence[int]) -> list[tuple[int, int]]:
    """(before, after) of each axis, so that the output has size ``ceil(in / stride)``; the odd one comes after."""
    found = []
    for size, length, step in zip(sizes, kernel, stride, strict=True):
        total = max((math.ceil(size / step) - 1) * step + length - size, 0)
        found.append((total // 2, total - total // 2))
    return found


def channels_first(values: torch.Tensor) -> torch.Tensor:
    """(…, planes) as (planes, …) behind a batch axis, if there is one."""
    return values.movedim(-1, -3)


def channels_last(values: torch.Tensor) -> torch.Tensor:
    """The reverse."""
    return values.movedim(-3, -1)


def _padded(values: torch.Tensor, pads: Sequence[int], kernel: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    """Zeros around the last axes; where all of ``pads`` are -1, so many that the size stays."""
    if all(pad == 0 for pad in pads):
        return values
    sizes = values.shape[-len(pads) :]
    both = same_pads(sizes, kernel, stride) if all(pad == -1 for pad in pads) else [(max(pad, 0),) * 2 for pad in pads]
    return functional.pad(values, [pad for pair in reversed(both) for pad in pair])


class _Convolution(Layer):
    """A torch convolution whose padding is ours, for SAME has no fixed one, and whose bias may be absent."""

    takes_axes = ("planes", "height", "width")

    def plan(self, kernel: Sequence[int], stride: Sequence[int], pads: Sequence[int], is_last: bool = False) -> None:
        self.window, self.steps, self.pads, self.is_last = tuple(kernel), tuple(stride), tuple(pads), is_last
        self.is_stopped = False

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if self.is_stopped:
            values = values.detach()
        if self.is_last:
            values = channels_first(values)
        reach = [(length - 1) * step + 1 for length, step in zip(self.window, self.dilation, strict=True)]
        made = super().forward(_padded(values, self.pads, reach, self.steps))
        return channels_last(made) if self.is_last else made

    def fans(self, name: str) -> tuple[int, int]:
        if name != "weight":
            return super().fans(name)
        reach = math.prod(self.window)
        return self.in_channels * reach, self.out_channels * reach

    def expects(self) -> str:
        if self.is_last:
            return f"(rows, height, width, {self.in_channels})"
        return f"(rows, {self.in_channels}, {', '.join(self.takes_axes[1:])})"


@kind("SpatialConvolution", "SpatialShareConvolution")
class SpatialConvolution(_Convolution, nn.Conv2d):
    def __init__(self, s: Settings) -> None:
        kernel, stride = (s.kernel_h, s.kernel_w), (s.stride_h, s.stride_w)
        super().__init__(
            s.n_input_plane, s.n_output_plane, kernel, stride, groups=s.n_group, bias=s.with_bias, dtype=s.dtype
        )
        self.plan(kernel, stride, (s.pad_h, s.pad_w), getattr(s, "data_format", "NCHW") == "NHWC")
        self.is_stopped = not s.propagate_back

    def show(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        if name == "bias":
            return tensor
        if self.is_last:
            return tensor.permute(2, 3, 1, 0).unsqueeze(0)
        return tensor.unflatten(0, (self.groups, -1))

    def unshow(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        if name == "bias":
            return tensor
        return tensor.squeeze(0).permute(3, 2, 0, 1) if self.is_last else tensor.flatten(0, 1)

    def take(self, name: str, array: Any) -> torch.Tensor:
        # Also without the axis of groups, as torch and many scripts have it.
        shape = tuple(array.shape)
        if name == "weight" and len(shape) == 4:
            plain = tuple(self.weight.shape) if not self.is_last else tuple(self.show(name, self.weight).shape)[1:]
            if shape == plain:
                array = array.reshape(tuple(self.show(name, self.weight).shape))
        return super().take(name, array)


@kind()
class SpatialDilatedConvolution(_Convolution, nn.Conv2d):
    def __init__(self, s: Settings) -> None:
        kernel, stride = (s.kh, s.kw), (s.dh, s.dw)
        gaps = (s.dilation_h, s.dilation_w)
        super().__init__(s.n_input_plane, s.n_output_plane, kernel, stride, dilation=gaps, dtype=s.dtype)
        self.plan(kernel, stride, (s.pad_h, s.pad_w))


@kind()
class VolumetricConvolution(_Convolution, nn.Conv3d):
    takes_axes = ("planes", "time", "height", "width")

    def __init__(self, s: Settings) -> None:
        kernel, stride = (s.k_t, s.k_h, s.k_w), (s.d_t, s.d_h, s.d_w)
        super().__init__(s.n_input_plane, s.n_output_plane, kernel, stride, bias=s.with_bias, dtype=s.dtype)
        self.plan(kernel, stride, (s.pad_t, s.pad_h, s.pad_w))


class _Full(Layer):
    """A transposed convolution; BigDL's weight has an axis of groups."""

    takes_axes = ("planes", "height", "width")

    def show(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if name == "bias" else tensor.unflatten(0, (self.groups, -1))

    def unshow(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if name == "bias" else tensor.flatten(0, 1)

    def fans(self, name: str) -> tuple[int, int]:
        if name != "weight":
            return super().fans(name)
        reach = math.prod(self.kernel_size)
        return self.in_channels * reach, self.out_channels * reach

    def expects(self) -> str:
        return f"(rows, {self.in_channels}, {', '.join(self.takes_axes[1:])})"


@kind()
class SpatialFullConvolution(_Full, nn.ConvTranspose2d):
    def __init__(self, s: Settings) -> None:
        super().__init__(
            s.n_input_plane,
            s.n_output_plane,
            (s.kh, s.kw),
            (s.dh, s.dw),
            (s.pad_h, s.pad_w),
            (s.adj_h, s.adj_w),
            s.n_group,
            not s.no_bias,
            dtype=s.dtype,
        )

    def forward(self, values: Any) -> torch.Tensor:
        if isinstance(values, (list, tuple)):
            values, like = values
            return super().forward(values, output_size=list(like.shape[-2:]))
        return super().forward(values)


@kind()
class VolumetricFullConvolution(_Full, nn.ConvTranspose3d):
    takes_axes = ("planes", "time", "height", "width")

    def __init__(self, s: Settings) -> None:
        super().__init__(
            s.n_input_plane,
            s.n_output_plane,
            (s.kt, s.kh, s.kw),
            (s.dt, s.dh, s.dw),
            (s.pad_t, s.pad_h, s.pad_w),
            (s.adj_t, s.adj_h, s.adj_w),
            s.n_group,
            not s.no_bias,
            dtype=s.dtype,
        )


@kind()
class SpatialSeparableConvolution(Layer):
    order = ("weight", "point", "bias")

    def __init__(self, s: Settings) -> None:
        super().__init__()
        self.inputs, self.times, self.is_last = s.n_input_channel, s.depth_multiplier, s.data_format == "NHWC"
        self.window, self.steps, self.pads = (s.kernel_h, s.kernel_w), (s.stride_h, s.stride_w), (s.pad_h, s.pad_w)
        deep, out = s.n_input_channel * s.depth_multiplier, s.n_output_channel
        self.weight = nn.Parameter(torch.empty((deep, 1, *self.window), dtype=s.dtype))
        self.point = nn.Parameter(torch.empty((out, deep, 1, 1), dtype=s.dtype))
        self.register_parameter("bias", nn.Parameter(torch.empty(out, dtype=s.dtype)) if s.with_bias else None)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if self.is_last:
            values = channels_first(values)
        values = _padded(values, self.pads, self.window, self.steps)
        deep = functional.conv2d(values, self.weight, None, self.steps, groups=self.inputs)
        made = functional.conv2d(deep, self.point, self.bias)
        return channels_last(made) if self.is_last else made

    def show(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        if name == "weight":  # (in·multiplier, 1, h, w), planes of one input side by side
            tensor = tensor.view(self.inputs, self.times, *self.window).transpose(0, 1)
        if name == "bias" or not self.is_last:
            return tensor
        return tensor.permute(2, 3, 1, 0)

    def unshow(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        if self.is_last and name != "bias":
            tensor = tensor.permute(3, 2, 0, 1)
        return tensor.transpose(0, 1).reshape(self.weight.shape) if name == "weight" else tensor

    def begin(self, name: str, parameter: torch.Tensor) -> None:
        self.spread(parameter, self.fans("weight" if name == "weight" else "point")[0])

    def fans(self, name: str) -> tuple[int, int]:
        if name == "weight":
            reach = math.prod(self.window)
            return self.inputs * reach, self.times * reach
        return (self.point.shape[1], self.point.shape[0]) if name == "point" else super().fans(name)

    def expects(self) -> str:
        return f"(rows, height, width, {self.inputs})" if self.is_last else f"(rows, {self.inputs}, height, width)"


@kind()
class TemporalConvolution(Layer):
    def __init__(self, s: Settings) -> None:
        super().__init__()
        self.features, self.length, self.step = s.input_frame_size, s.kernel_w, s.stride_w
        self.is_stopped = not s.propagate_back
        shape = (s.output_frame_size, s.kernel_w * s.input_frame_size)
        self.weight = nn.Parameter(torch.empty(shape, dtype=s.dtype))
        self.bias = nn.Parameter(torch.empty(s.output_frame_size, dtype=s.dtype))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if self.is_stopped:
            values = values.detach()
        kernel = self.weight.unflatten(1, (self.length, self.features)).transpose(1, 2)  # (out, in, kernel)
        return functional.conv1d(values.transpose(-1, -2), kernel, self.bias, self.step).transpose(-1, -2)

    def expects(self) -> str:
        return f"(rows, at least {self.length} steps, {self.features})"


@kind()
class LocallyConnected1D(Layer):
    def __init__(self, s: Settings) -> None:
        super().__init__()
        self.frames, self.features, self.length, self.step = s.n_input_frame, s.input_frame_size, s.kernel_w, s.stride_w
        self.is_stopped = not s.propagate_back
        places = (s.n_input_frame - s.kernel_w) // s.stride_w + 1
        shape = (places, s.output_frame_size, s.kernel_w * s.input_frame_size)
        self.weight = nn.Parameter(torch.empty(shape, dtype=s.dtype))
        self.bias = nn.Parameter(torch.empty(shape[:2], dtype=s.dtype))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if tuple(values.shape[-2:]) != (self.frames, self.features):
            raise PlanError(f"{self.title} takes {self.expects()}, not {tuple(values.shape)}")
        if self.is_stopped:
            values = values.detach()
        windows = values.unfold(-2, self.length, self.step).transpose(-1, -2).flatten(-2)  # (…, places, kernel·in)
        return torch.einsum("...pk,pok->...po", windows, self.weight) + self.bias

    def fans(self, name: str) -> tuple[int, int]:
        return (self.weight.shape[2], self.weight.shape[1]) if name == "weight" else super().fans(name)

    def expects(self) -> str:
        return f"(rows, {self.frames}, {self.features})"


@kind()
class LocallyConnected2D(Layer):
    def __init__(self, s: Settings) -> None:
        super().__init__()
        self.shape = (s.n_input_plane, s.input_height, s.input_width)
        self.window, self.steps, self.pads = (s.kernel_h, s.kernel_w), (s.stride_h, s.stride_w), (s.pad_h, s.pad_w)
        self.is_last, self.is_stopped = s.data_format == "NHWC", not s.propagate_back
        sizes = self.shape[1:]
        if self.pads == (-1, -1):
            pads = same_pads(sizes, self.window, self.steps)
        else:
            pads = [(max(0, pad),) * 2 for pad in self.pads]
        self.places = tuple(
            (size + sum(pad) - length) // step + 1
            for size, pad, length, step in zip(sizes, pads, self.window, self.steps, strict=True)
        )
        if min(self.places) < 1:
            raise PlanError(f"LocallyConnected2D's kernel {self.window} is larger than its padded input {sizes}")
        shape = (math.prod(self.places), s.n_output_plane, s.n_input_plane * math.prod(self.window))
        self.weight = nn.Parameter(torch.empty(shape, dtype=s.dtype))
        self.register_parameter("bias", nn.Parameter(torch.empty(shape[:2], dtype=s.dtype)) if s.with_bias else None)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if self.is_last:
            values = channels_first(values)
        if tuple(values.shape[-3:]) != self.shape:
            raise PlanError(f"{self.title} takes {self.expects()}, not {tuple(values.shape)}")
        if self.is_stopped:
            values = values.detach()
        is_batch = values.dim() == 4
        values = _padded(values if is_batch else values.unsqueeze(0), self.pads, self.window, self.steps)
        windows = functional.unfold(values, self.window, stride=self.steps)  # (rows, in·kernel, places)
        made = torch.einsum("nkp,pok->nop", windows, self.weight)
        if self.bias is not None:
            made = made + self.bias.T
        made = made.unflatten(-1, self.places)
        made = channels_last(made) if self.is_last else made
        return made if is_batch else made.squeeze(0)

    def fans(self, name: str) -> tuple[int, int]:
        return (self.weight.shape[2], self.weight.shape[1]) if name == "weight" else super().fans(name)

    def expects(self) -> str:
        planes, height, width = self.shape
        return f"(rows, {height}, {width}, {planes})" if self.is_last else f"(rows, {planes}, {height}, {width})"
