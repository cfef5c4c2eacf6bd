"""Pooling, padding, cropping and resizing."""

from __future__ import annotations

from firesteel.core.errors import PlanError
from firesteel.frontends.bigdl.layer import Layer
from firesteel.frontends.bigdl.settings import (
    Count,
    Flag,
    Format,
    Format3D,
    Pad,
    Pair,
    PositiveCount,
    Triple,
    TwoSizes,
    Whole,
)

__all__ = [
    "Cropping2D",
    "Cropping3D",
    "ResizeBilinear",
    "SpatialAveragePooling",
    "SpatialMaxPooling",
    "SpatialZeroPadding",
    "TemporalMaxPooling",
    "UpSampling1D",
    "UpSampling2D",
    "UpSampling3D",
    "VolumetricAveragePooling",
    "VolumetricMaxPooling",
]


class SpatialMaxPooling(Layer):
    """The largest of each window. Both pads -1: the output has size ``ceil(in / stride)``."""

    kw: PositiveCount
    kh: PositiveCount
    dw: PositiveCount
    dh: PositiveCount
    pad_w: Pad = 0
    pad_h: Pad = 0
    to_ceil: Flag = False
    format: Format = "NCHW"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_pads(pad_w=self.pad_w, pad_h=self.pad_h)


class SpatialAveragePooling(Layer):
    """The mean of each window, or with ``divide=False`` its sum; ``global_pooling``: of the whole image."""

    kw: PositiveCount
    kh: PositiveCount
    dw: PositiveCount = 1
    dh: PositiveCount = 1
    pad_w: Pad = 0
    pad_h: Pad = 0
    global_pooling: Flag = False
    ceil_mode: Flag = False
    count_include_pad: Flag = True
    divide: Flag = True
    format: Format = "NCHW"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_pads(pad_w=self.pad_w, pad_h=self.pad_h)


class TemporalMaxPooling(Layer):
    """The largest of each window of time, of (batch, time, features); ``d_w`` -1: ``k_w``."""

    k_w: PositiveCount
    d_w: Whole = -1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.d_w < 1 and self.d_w != -1:
            raise PlanError(f"TemporalMaxPooling's d_w must be at least 1, or -1 for k_w, not {self.d_w}.")


class VolumetricMaxPooling(Layer):
    """The largest of each window of (batch, planes, time, height, width)."""

    k_t: PositiveCount
    k_w: PositiveCount
    k_h: PositiveCount
    d_t: PositiveCount
    d_w: PositiveCount
    d_h: PositiveCount
    pad_t: Count = 0
    pad_w: Count = 0
    pad_h: Count = 0


class VolumetricAveragePooling(Layer):
    """The mean of each window of (batch, planes, time, height, width)."""

    k_t: PositiveCount
    k_w: PositiveCount
    k_h: PositiveCount
    d_t: PositiveCount
    d_w: PositiveCount
    d_h: PositiveCount
    pad_t: Count = 0
    pad_w: Count = 0
    pad_h: Count = 0
    count_include_pad: Flag = True
    ceil_mode: Flag = False


class SpatialZeroPadding(Layer):
    """Zeros around the last two axes; negative numbers crop."""

    pad_left: Whole
    pad_right: Whole
    pad_top: Whole
    pad_bottom: Whole


class Cropping2D(Layer):
    """An image without its borders: pairs (begin, end) of height and width."""

    heightCrop: Pair
    widthCrop: Pair
    data_format: Format = "NCHW"


class Cropping3D(Layer):
    """A volume without its borders: pairs (begin, end) of its three axes."""

    dim1Crop: Pair
    dim2Crop: Pair
    dim3Crop: Pair
    data_format: Format3D = "channel_first"


class UpSampling1D(Layer):
    """Each step of (batch, time, features) ``length`` times."""

    length: PositiveCount


class UpSampling2D(Layer):
    """Each pixel repeated: ``size`` is (height, width)."""

    size: TwoSizes
    data_format: Format = "NCHW"


class UpSampling3D(Layer):
    """Each voxel of (batch, planes, …) repeated: ``size`` has three numbers."""

    size: Triple


class ResizeBilinear(Layer):
    """An image of another size, by torch's bilinear interpolation."""

    output_height: PositiveCount
    output_width: PositiveCount
    align_corner: Flag = False
    data_format: Format = "NCHW"
