"""Convolutions, with weights shared over the image and without. Width comes before height, as in BigDL."""

from __future__ import annotations

from firesteel.core.errors import PlanError
from firesteel.frontends.bigdl.layer import Layer, Regularized
from firesteel.frontends.bigdl.settings import Count, Flag, Format, Numbers, Pad, PositiveCount

__all__ = [
    "LocallyConnected1D",
    "LocallyConnected2D",
    "SpatialConvolution",
    "SpatialDilatedConvolution",
    "SpatialFullConvolution",
    "SpatialSeparableConvolution",
    "SpatialShareConvolution",
    "TemporalConvolution",
    "VolumetricConvolution",
    "VolumetricFullConvolution",
]


class _Grouped(Layer):
    def _check_groups(self, inputs: int, outputs: int, groups: int) -> None:
        if inputs % groups or outputs % groups:
            raise PlanError(
                f"{type(self).__name__}'s n_group must divide its input planes and its output planes: "
                f"{groups} does not divide {inputs} and {outputs}."
            )


class SpatialConvolution(_Grouped):
    """A convolution of images. Both pads -1: the output has size ``ceil(in / stride)``.

    The weight has shape (n_group, out/n_group, in/n_group, kernel_h, kernel_w), with NHWC (1, kernel_h, kernel_w, in,
    out); ``set_weights`` also takes (out, in/n_group, kernel_h, kernel_w).
    """

    n_input_plane: PositiveCount
    n_output_plane: PositiveCount
    kernel_w: PositiveCount
    kernel_h: PositiveCount
    stride_w: PositiveCount = 1
    stride_h: PositiveCount = 1
    pad_w: Pad = 0
    pad_h: Pad = 0
    n_group: PositiveCount = 1
    propagate_back: Flag = True
    wRegularizer: Regularized | None = None
    bRegularizer: Regularized | None = None
    init_weight: Numbers | None = None
    init_bias: Numbers | None = None
    init_grad_weight: Numbers | None = None
    init_grad_bias: Numbers | None = None
    with_bias: Flag = True
    data_format: Format = "NCHW"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_pads(pad_w=self.pad_w, pad_h=self.pad_h)
        self._check_groups(self.n_input_plane, self.n_output_plane, self.n_group)
        if self.data_format == "NHWC" and self.n_group > 1:
            raise PlanError("SpatialConvolution has no groups with NHWC.")


class SpatialShareConvolution(_Grouped):
    """`SpatialConvolution` with NCHW."""

    n_input_plane: PositiveCount
    n_output_plane: PositiveCount
    kernel_w: PositiveCount
    kernel_h: PositiveCount
    stride_w: PositiveCount = 1
    stride_h: PositiveCount = 1
    pad_w: Pad = 0
    pad_h: Pad = 0
    n_group: PositiveCount = 1
    propagate_back: Flag = True
    wRegularizer: Regularized | None = None
    bRegularizer: Regularized | None = None
    init_weight: Numbers | None = None
    init_bias: Numbers | None = None
    init_grad_weight: Numbers | None = None
    init_grad_bias: Numbers | None = None
    with_bias: Flag = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_pads(pad_w=self.pad_w, pad_h=self.pad_h)
        self._check_groups(self.n_input_plane, self.n_output_plane, self.n_group)


class SpatialDilatedConvolution(Layer):
    """A convolution whose kernel has gaps; its weight has shape (out, in, kh, kw)."""

    n_input_plane: PositiveCount
    n_output_plane: PositiveCount
    kw: PositiveCount
    kh: PositiveCount
    dw: PositiveCount = 1
    dh: PositiveCount = 1
    pad_w: Pad = 0
    pad_h: Pad = 0
    dilation_w: PositiveCount = 1
    dilation_h: PositiveCount = 1
    wRegularizer: Regularized | None = None
    bRegularizer: Regularized | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_pads(pad_w=self.pad_w, pad_h=self.pad_h)


class SpatialFullConvolution(_Grouped):
    """The convolution that enlarges: a transposed one. A table ``{x, like}`` gives an output of ``like``'s size.

    The weight has shape (n_group, in/n_group, out/n_group, kh, kw).
    """

    n_input_plane: PositiveCount
    n_output_plane: PositiveCount
    kw: PositiveCount
    kh: PositiveCount
    dw: PositiveCount = 1
    dh: PositiveCount = 1
    pad_w: Count = 0
    pad_h: Count = 0
    adj_w: Count = 0
    adj_h: Count = 0
    n_group: PositiveCount = 1
    no_bias: Flag = False
    wRegularizer: Regularized | None = None
    bRegularizer: Regularized | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_groups(self.n_input_plane, self.n_output_plane, self.n_group)

    def input_range(self) -> tuple[int, int | None]:
        """One, or one and another to be like."""
        return 1, 2


class SpatialSeparableConvolution(Layer):
    """A convolution of each plane by itself, then a 1×1 convolution of all.

    Its weights: (depth_multiplier, in, kernel_h, kernel_w), with NHWC (kernel_h, kernel_w, in, depth_multiplier); then
    (out, in·depth_multiplier, 1, 1), with NHWC (1, 1, in·depth_multiplier, out); then the bias.
    """

    n_input_channel: PositiveCount
    n_output_channel: PositiveCount
    depth_multiplier: PositiveCount
    kernel_w: PositiveCount
    kernel_h: PositiveCount
    stride_w: PositiveCount = 1
    stride_h: PositiveCount = 1
    pad_w: Pad = 0
    pad_h: Pad = 0
    with_bias: Flag = True
    data_format: Format = "NCHW"
    w_regularizer: Regularized | None = None
    b_regularizer: Regularized | None = None
    p_regularizer: Regularized | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_pads(pad_w=self.pad_w, pad_h=self.pad_h)


class TemporalConvolution(Layer):
    """A convolution over time of (batch, **time, features**); its weight is (out, kernel_w · in), frames first."""

    input_frame_size: PositiveCount
    output_frame_size: PositiveCount
    kernel_w: PositiveCount
    stride_w: PositiveCount = 1
    propagate_back: Flag = True
    weight_regularizer: Regularized | None = None
    bias_regularizer: Regularized | None = None
    init_weight: Numbers | None = None
    init_bias: Numbers | None = None
    init_grad_weight: Numbers | None = None
    init_grad_bias: Numbers | None = None


class LocallyConnected1D(Layer):
    """`TemporalConvolution` with weights of its own for each output frame: (frames, out, kernel_w · in)."""

    n_input_frame: PositiveCount
    input_frame_size: PositiveCount
    output_frame_size: PositiveCount
    kernel_w: PositiveCount
    stride_w: PositiveCount = 1
    propagate_back: Flag = True
    weight_regularizer: Regularized | None = None
    bias_regularizer: Regularized | None = None
    init_weight: Numbers | None = None
    init_bias: Numbers | None = None
    init_grad_weight: Numbers | None = None
    init_grad_bias: Numbers | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kernel_w > self.n_input_frame:
            raise PlanError(
                f"LocallyConnected1D's kernel of {self.kernel_w} is longer than its {self.n_input_frame} input frames."
            )

    def row_shape(self) -> tuple[int, ...] | None:
        """(n_input_frame, input_frame_size)."""
        return self.n_input_frame, self.input_frame_size


class LocallyConnected2D(Layer):
    """`SpatialConvolution` with weights of its own for each output pixel: (pixels, out, in · kernel_h · kernel_w)."""

    n_input_plane: PositiveCount
    input_width: PositiveCount
    input_height: PositiveCount
    n_output_plane: PositiveCount
    kernel_w: PositiveCount
    kernel_h: PositiveCount
    stride_w: PositiveCount = 1
    stride_h: PositiveCount = 1
    pad_w: Pad = 0
    pad_h: Pad = 0
    propagate_back: Flag = True
    wRegularizer: Regularized | None = None
    bRegularizer: Regularized | None = None
    init_weight: Numbers | None = None
    init_bias: Numbers | None = None
    init_grad_weight: Numbers | None = None
    init_grad_bias: Numbers | None = None
    with_bias: Flag = True
    data_format: Format = "NCHW"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_pads(pad_w=self.pad_w, pad_h=self.pad_h)

    def row_shape(self) -> tuple[int, ...] | None:
        """(planes, height, width), or planes last with NHWC."""
        image = (self.input_height, self.input_width)
        return (self.n_input_plane, *image) if self.data_format == "NCHW" else (*image, self.n_input_plane)


class VolumetricConvolution(Layer):
    """A convolution of (batch, planes, time, height, width); its weight has shape (out, in, k_t, k_h, k_w)."""

    n_input_plane: PositiveCount
    n_output_plane: PositiveCount
    k_t: PositiveCount
    k_w: PositiveCount
    k_h: PositiveCount
    d_t: PositiveCount = 1
    d_w: PositiveCount = 1
    d_h: PositiveCount = 1
    pad_t: Pad = 0
    pad_w: Pad = 0
    pad_h: Pad = 0
    with_bias: Flag = True
    wRegularizer: Regularized | None = None
    bRegularizer: Regularized | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_pads(pad_t=self.pad_t, pad_w=self.pad_w, pad_h=self.pad_h)


class VolumetricFullConvolution(_Grouped):
    """The transposed `VolumetricConvolution`; its weight has shape (n_group, in/n_group, out/n_group, kt, kh, kw)."""

    n_input_plane: PositiveCount
    n_output_plane: PositiveCount
    kt: PositiveCount
    kw: PositiveCount
    kh: PositiveCount
    dt: PositiveCount = 1
    dw: PositiveCount = 1
    dh: PositiveCount = 1
    pad_t: Count = 0
    pad_w: Count = 0
    pad_h: Count = 0
    adj_t: Count = 0
    adj_w: Count = 0
    adj_h: Count = 0
    n_group: PositiveCount = 1
    no_bias: Flag = False
    wRegularizer: Regularized | None = None
    bRegularizer: Regularized | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_groups(self.n_input_plane, self.n_output_plane, self.n_group)
