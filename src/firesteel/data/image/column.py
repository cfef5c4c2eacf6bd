"""A column of encoded images as a tensor: decoded where the rows are, with named transforms.

``image_column`` marks a column of JPEG, PNG, … bytes, or of Spark's own image source; the mark travels with the column.
A fit keeps the bytes as they are and decodes batch by batch, ahead of the training; ``evaluate`` and ``predict`` decode
as the rows pass by. Random transforms are drawn from the seed, the epoch and the row alone, so that a row looks the
same whoever trains on it; outside of a fit nothing is random, and a random crop is the one in the middle.
"""

from __future__ import annotations

import io
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from firesteel.core.errors import PlanError, SchemaError, UnknownName, missing_extra
from firesteel.data.quoting import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "TRANSFORMS",
    "CenterCrop",
    "Images",
    "Normalize",
    "RandomCrop",
    "RandomFlip",
    "Resize",
    "Rows",
    "Transform",
    "image_column",
    "images_of",
]

Array = npt.NDArray[Any]

_IMAGE = "image"  # the key in a field's metadata
_RAW = b"firesteel raw image\0"
_DTYPES = ("uint8", "float32")
_LAYOUTS = ("CHW", "HWC")
_CHANNELS = {1: "L", 3: "RGB", 4: "RGBA"}


@dataclass(frozen=True)
class Rows:
    """Which rows a batch has, for what is drawn at random: the same numbers for a row on whichever replica it is."""

    seed: int
    epoch: int
    partitions: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.int64]

    def uniform(self, place: int) -> npt.NDArray[np.float64]:
        """One number in [0, 1) for each row; ``place`` tells several of one row apart."""
        mixed = np.full(len(self.numbers), self.seed & (2**64 - 1), dtype=np.uint64)
        for part in (self.epoch, self.partitions, self.numbers, place):
            mixed = _mix(mixed ^ np.asarray(part).astype(np.uint64))
        return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Every bit of the result depends on every bit given (the finalizer of SplitMix64)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


# --- transforms -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Transform(ABC):
    """One step from a decoded batch ``(rows, height, width, channels)`` to what the model gets."""

    name: ClassVar[str]

    def check(self, height: int, width: int) -> None:  # noqa: B027 - most take any size
        """Raise ``SchemaError`` where images of this size will not do."""

    @abstractmethod
    def apply(self, images: Array, rows: Rows | None, place: int) -> Array:
        """The images, changed; ``rows`` is ``None`` where nothing is to be random."""


@dataclass(frozen=True)
class Resize(Transform):
    """Every image to this height and width (bilinear). The first transform, where images differ in size."""

    height: int
    width: int
    name: ClassVar[str] = "resize"

    def apply(self, images: Array, rows: Rows | None, place: int) -> Array:
        """See ``Transform``. Images are resized one by one, as they are decoded, if this comes first."""
        if images.shape[1:3] == (self.height, self.width):
            return images
        return np.stack([_resized(image, self.height, self.width) for image in images])


@dataclass(frozen=True)
class CenterCrop(Transform):
    """The middle of every image."""

    height: int
    width: int
    name: ClassVar[str] = "center_crop"

    def check(self, height: int, width: int) -> None:
        """See ``Transform``."""
        _check_crop(self, height, width)

    def apply(self, images: Array, rows: Rows | None, place: int) -> Array:
        """See ``Transform``."""
        top, left = (images.shape[1] - self.height) // 2, (images.shape[2] - self.width) // 2
        return images[:, top : top + self.height, left : left + self.width]


@dataclass(frozen=True)
class RandomCrop(Transform):
    """A part of every image, after ``padding`` black pixels were put around it; outside of a fit the middle."""

    height: int
    width: int
    padding: int = 0
    name: ClassVar[str] = "random_crop"

    def check(self, height: int, width: int) -> None:
        """See ``Transform``."""
        _check_crop(self, height + 2 * self.padding, width + 2 * self.padding)

    def apply(self, images: Array, rows: Rows | None, place: int) -> Array:
        """See ``Transform``."""
        pad = (self.padding, self.padding)
        images = np.pad(images, ((0, 0), pad, pad, (0, 0)))
        if rows is None:
            return CenterCrop(self.height, self.width).apply(images, rows, place)
        free = images.shape[1] - self.height + 1, images.shape[2] - self.width + 1
        tops, lefts = ((rows.uniform(2 * place + i) * free[i]).astype(np.int64) for i in (0, 1))
        windows = np.lib.stride_tricks.sliding_window_view(images, (self.height, self.width), axis=(1, 2))
        cut = windows[np.arange(len(images)), tops, lefts]  # (rows, channels, height, width)
        return np.ascontiguousarray(cut.transpose(0, 2, 3, 1))


@dataclass(frozen=True)
class RandomFlip(Transform):
    """Left and right exchanged in some images; in none outside of a fit."""

    probability: float = 0.5
    name: ClassVar[str] = "random_flip"

    def apply(self, images: Array, rows: Rows | None, place: int) -> Array:
        """See ``Transform``."""
        if rows is None:
            return images
        flipped = rows.uniform(2 * place) < self.probability
        images = images.copy()
        images[flipped] = images[flipped, :, ::-1]
        return images


@dataclass(frozen=True)
class Normalize(Transform):
    """``(value / 255 - mean) / std`` for each channel, as float32."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    name: ClassVar[str] = "normalize"

    def apply(self, images: Array, rows: Rows | None, place: int) -> Array:
        """See ``Transform``."""
        scale = 1 / (255 * np.asarray(self.std, dtype=np.float32))
        shift = np.asarray(self.mean, dtype=np.float32) / np.asarray(self.std, dtype=np.float32)
        return images.astype(np.float32) * scale - shift


TRANSFORMS: dict[str, type[Transform]] = {
    kind.name: kind for kind in (Resize, CenterCrop, RandomCrop, RandomFlip, Normalize)
}
"""Transforms by name."""


def _check_crop(crop: Any, height: int, width: int) -> None:
    if crop.height > height or crop.width > width:
        raise SchemaError(
            f"{crop.name} to {crop.height} × {crop.width} needs larger images than {height} × {width}; put a Resize "
            f"before it"
        )


def _resized(image: Array, height: int, width: int) -> Array:
    pillow = _pillow()
    squeezed = image[..., 0] if image.shape[-1] == 1 else image
    found = np.asarray(pillow.fromarray(squeezed).resize((width, height), pillow.Resampling.BILINEAR))
    return found[..., None] if found.ndim == 2 else found


# --- a column ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Images:
    """How cells of a column become a tensor."""

    transforms: tuple[Transform, ...] = ()
    dtype: str = "uint8"
    channels: int = 3
    layout: str = "CHW"

    def __post_init__(self) -> None:
        if self.dtype not in _DTYPES:
            raise UnknownName("image dtype", self.dtype, _DTYPES)
        if self.layout not in _LAYOUTS:
            raise UnknownName("image layout", self.layout, _LAYOUTS)
        if self.channels not in _CHANNELS:
            raise PlanError(f"images have 1 (grey), 3 (RGB) or 4 (RGBA) channels, not {self.channels!r}")
        for place, transform in enumerate(self.transforms):
            if isinstance(transform, Normalize):
                if place + 1 < len(self.transforms):
                    raise PlanError("normalize must be the last transform: the others work on whole numbers")
                if {len(transform.mean), len(transform.std)} != {self.channels}:
                    raise PlanError(f"normalize needs {self.channels} means and standard deviations, one for a channel")

    def to_json(self) -> str:
        """For a column's metadata."""
        transforms = [[transform.name, asdict(transform)] for transform in self.transforms]
        return json.dumps({**{f.name: getattr(self, f.name) for f in fields(self)}, "transforms": transforms})

    @classmethod
    def from_json(cls, text: str) -> Images:
        """The reverse."""
        found = json.loads(text)
        return cls(**{**found, "transforms": as_transforms(found["transforms"])})

    def decode(self, cells: Sequence[Any], rows: Rows | None = None, pool: Executor | None = None) -> Array:
        """A batch of cells (bytes-like), as the model gets it; at random where ``rows`` are told."""
        first = self.transforms[0] if self.transforms else None
        size = (first.height, first.width) if isinstance(first, Resize) else None
        each: Callable[[Any], Array] = lambda cell: _decode(cell, self.channels, size)  # noqa: E731
        found: Iterable[Array] = map(each, cells) if pool is None else pool.map(each, cells)
        images = _stacked(list(found), self.channels, size)
        for place, transform in enumerate(self.transforms):
            if not len(images):  # nothing to learn a size from, or to change
                sides = [int(getattr(transform, side, 0)) for side in ("height", "width")]
                images = images if 0 in sides else np.empty([0, *sides, self.channels], images.dtype)
                continue
            transform.check(*images.shape[1:3])
            images = transform.apply(images, rows, place)
        if self.dtype == "float32" and images.dtype != np.float32:
            images = images.astype(np.float32) / np.float32(255)
        return np.ascontiguousarray(images.transpose(0, 3, 1, 2) if self.layout == "CHW" else images)


def as_transforms(given: Iterable[Any]) -> tuple[Transform, ...]:
    """Transforms, or names, or pairs of a name and its parameters."""
    made = []
    for each in given:
        if isinstance(each, Transform):
            made.append(each)
            continue
        name, options = (each, {}) if isinstance(each, str) else each
        if name not in TRANSFORMS:
            raise UnknownName("image transform", name, TRANSFORMS)
        values = {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
        try:
            made.append(TRANSFORMS[name](**values))
        except TypeError as error:
            raise PlanError(f"image transform {name!r}: {error}") from error
    return tuple(made)


def image_column(
    df: DataFrame,
    column: str,
    transforms: Iterable[Any] = (),
    *,
    dtype: str | None = None,
    channels: int = 3,
    layout: str = "CHW",
) -> DataFrame:
    """The same DataFrame (driver, no job) with a column of images marked, so that models can be fed with it.

    ``Estimator.fit``, ``evaluate`` and ``predict`` then take it as a feature column, a tensor of shape
    ``(channels, height, width)``.

    >>> df = image_column(df, "image", [Resize(32, 32), RandomFlip(), Normalize((0.5,) * 3, (0.2,) * 3)])

    Args:
        df: a DataFrame.
        column: encoded images as ``binary``, or the struct that ``spark.read.format("image")`` gives.
        transforms: objects of this module, names, or pairs ``("resize", {"height": 32, "width": 32})``, in order.
        dtype: ``"uint8"``, or ``"float32"`` in [0, 1] (default where nothing normalizes: uint8).
        channels: 3 (RGB), 1 (grey), 4 (RGBA); images are converted.
        layout: ``"CHW"`` as torch wants it, or ``"HWC"``.
    """
    from pyspark.sql import functions

    chosen = as_transforms(transforms)
    normalizes = any(isinstance(transform, Normalize) for transform in chosen)
    images = Images(chosen, dtype or ("float32" if normalizes else "uint8"), channels, layout)
    if normalizes and images.dtype != "float32":
        raise PlanError("normalize gives float32; leave dtype out")
    there = {field.name: field for field in df.schema.fields}
    if column not in there:
        raise SchemaError(f"there is no column {column!r}; the DataFrame has: {', '.join(there)}", column=column)
    found = there[column].dataType.simpleString()
    name = quoted(column)
    if found.startswith("struct<") and all(part in found for part in ("height:", "width:", "nChannels:", "data:")):
        sizes = [functions.col(f"{name}.{part}") for part in ("height", "width", "nChannels")]
        numbers = [functions.unhex(functions.lpad(functions.hex(size), 8, "0")) for size in sizes]
        raw = functions.concat(functions.lit(bytearray(_RAW)), *numbers, functions.col(f"{name}.data"))
        df = df.withColumn(column, raw)
    elif found != "binary":
        raise SchemaError(
            f"column {column!r} is of type {found}; images are binary, or what spark.read.format('image') gives",
            column=column,
            expected="binary",
            found=found,
        )
    return df.withMetadata(column, {**(there[column].metadata or {}), _IMAGE: images.to_json()})


def images_of(metadata: Mapping[str, Any] | None) -> Images | None:
    """What a column's metadata says about images, if anything."""
    marked = (metadata or {}).get(_IMAGE)
    return Images.from_json(marked) if isinstance(marked, str) else None


# --- cells ------------------------------------------------------------------------------------------------------------


def _decode(cell: Any, channels: int, size: tuple[int, int] | None) -> Array:
    pillow = _pillow()
    view = memoryview(cell)
    if bytes(view[: len(_RAW)]) == _RAW:
        image = pillow.fromarray(_raw(view[len(_RAW) :]))
    else:
        try:
            image = pillow.open(io.BytesIO(view))
            image.load()
        except (OSError, ValueError, SyntaxError) as error:
            begin = bytes(view[:8])
            raise SchemaError(
                f"a cell of an image column is no image that Pillow reads: {begin!r}… ({error})"
            ) from error
    mode = _CHANNELS[channels]
    image = image if image.mode == mode else image.convert(mode)
    if size is not None and (image.height, image.width) != size:
        image = image.resize((size[1], size[0]), pillow.Resampling.BILINEAR)
    found = np.asarray(image)
    return found[..., None] if found.ndim == 2 else found


def _raw(view: memoryview) -> Array:
    """Spark's own form: rows of blue, green, red (and alpha)."""
    height, width, channels = (int(number) for number in np.frombuffer(view[:12], ">i4"))
    pixels = np.frombuffer(view[12:], np.uint8).reshape(height, width, channels)
    if channels == 1:
        return pixels[..., 0]
    order = [2, 1, 0, 3][:channels]
    return np.ascontiguousarray(pixels[..., order])


def _stacked(images: list[Array], channels: int, size: tuple[int, int] | None) -> Array:
    if not images:
        return np.empty((0, *(size or (0, 0)), channels), np.uint8)
    shapes = {image.shape for image in images}
    if len(shapes) > 1:
        sizes = ", ".join(f"{h} × {w}" for h, w, _ in sorted(shapes)[:3])
        raise SchemaError(f"images of one column have other sizes ({sizes}, …); put Resize(height, width) first")
    return np.stack(images)


def _pillow() -> Any:
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise missing_extra("Pillow", "images") from error
    return Image
