"""Image files as XShards: listed and sorted on the driver, decoded in tasks, one image to a shard."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np

from firesteel.core.errors import PlanError, UnknownName, missing_extra
from firesteel.data.file import Path, files_of, open_image, read_bytes
from firesteel.data.image import voc
from firesteel.data.image.layout import DatasetMissing
from firesteel.data.image.spread import partitions_for, spread
from firesteel.data.shards import XShards
from firesteel.data.shards.kinds import check_positive
from firesteel.data.structure import even_boundaries

if TYPE_CHECKING:
    from PIL.Image import Image
    from pyspark import RDD, Broadcast

__all__ = ["read_coco", "read_images", "read_voc"]

_BACKENDS = ("pillow", "spark")
_COCO_PARTS = ("bbox", "category_id", "area", "iscrowd", "segmentation")

_Named = tuple[str, str | None]
"""An image's path, and its mask's."""


def read_images(
    file_path: Path | Sequence[Path],
    label_func: Callable[[str], Any] | None = None,
    target_path: Path | Sequence[Path] | None = None,
    image_type: str = ".jpg",
    target_type: str = ".png",
    backend: str = "pillow",
) -> XShards:
    """Images as Pillow images in RGB, sorted by path, one to a shard.

    Args:
        file_path: a folder (without the folders in it), a file, a glob such as ``images/*/*.jpg``, or a list of them.
        label_func: a function of an image's path; shards are then ``(image, label)``.
        target_path: where masks lie, as many as images; shards are then ``(image, mask)``, matched in the order of
            their sorted names. Masks keep their mode: the numbers in a palette image are its classes.
        image_type: how image files end. Case does not matter.
        target_type: how mask files end.
        backend: ``"pillow"``, or ``"spark"`` for images through Spark's own image source.

    Raises:
        PlanError: ``label_func`` and ``target_path`` together, other numbers of images and masks, nothing found.
    """
    if str(backend).lower() not in _BACKENDS:
        raise UnknownName("backend", backend, _BACKENDS)
    if label_func is not None and target_path is not None:
        raise PlanError("label_func and target_path cannot both be given: a shard is an image with one or the other")
    if label_func is not None and not callable(label_func):
        raise PlanError(f"label_func must be a function of an image's path, found {type(label_func).__qualname__}")
    _require_pillow()
    images = _listed(file_path, image_type, "image")
    masks: list[Any] = [None] * len(images) if target_path is None else _listed(target_path, target_type, "mask")
    if len(masks) != len(images):
        raise PlanError(f"there must be as many masks as images, found {len(images)} images and {len(masks)} masks")
    files = list(zip(images, masks, strict=True))
    decoded = _spark_images(files) if backend.lower() == "spark" else spread(files).map(_pillow_image)
    # A label may be anything, also an object that stays in the task's process.
    return XShards._over(decoded.map(partial(_shard, label_func)), unshared=label_func is None)


def read_voc(
    file_path: Path = "VOCdevkit",
    split_names: Sequence[tuple[int, str]] | None = None,
    classes: Sequence[str] | None = None,
    diff: bool = False,
    max_samples: int | None = None,
) -> XShards:
    """Pascal VOC as ``(image, label)``: a Pillow image in RGB, and ``(boxes, 5)`` float32.

    A label's rows are x1, y1, x2, y2 as fractions of the image, the class's index, and with ``diff`` the difficult
    flag as a sixth number.

    Args:
        file_path: the folder with ``VOC2009`` and so on.
        split_names: pairs of year and split; default ``[(2009, "trainval")]``.
        classes: their names in the order of their indices; default: VOC's twenty. Others are left out with a warning.
        diff: whether the difficult flag is wanted.
        max_samples: no more images than that, the first ones.
    """
    if max_samples is not None:
        check_positive("max_samples", max_samples)
    _require_pillow()
    found = voc.annotated_images(
        file_path, [(2009, "trainval")] if split_names is None else split_names, classes, max_samples
    )
    return XShards._over(spread(found).map(partial(_voc_pair, diff)), unshared=True)


def read_coco(file_path: Path, split: str = "train") -> XShards:
    """COCO 2017 as ``(image, target)``: a Pillow image in RGB, and a dict of lists with an entry for each object.

    The lists are ``bbox`` (x, y, width, height in pixels), ``category_id``, ``area``, ``iscrowd`` and ``segmentation``;
    they are empty for an image without objects. Sorted by path.

    Args:
        file_path: the folder with ``annotations/instances_<split>2017.json`` and the images' ``<split>2017/``.
        split: ``"train"`` or ``"val"``.
    """
    _require_pillow()
    files, place = files_of(file_path)
    place = place.rstrip("/")
    source, folder = f"{place}/annotations/instances_{split}2017.json", f"{place}/{split}2017"
    for needed in (source, folder):
        if not files.exists(needed):
            raise DatasetMissing(f"there is no split {split!r}: No such file or directory: {needed}")
    try:
        content = json.loads(read_bytes(files.url(source)))
        annotations = content["annotations"]
    except (ValueError, KeyError, TypeError) as error:
        raise PlanError(f"{source} is no COCO annotation file: it must be JSON with a list 'annotations'") from error
    names = [name for name in files.names(folder) if name.lower().endswith(".jpg")]
    ids = {entry["file_name"]: entry["id"] for entry in content.get("images", ())} or {
        name: int(name.partition(".")[0]) for name in names
    }
    missing = sorted(set(ids) - set(names))
    if missing:
        raise DatasetMissing(f"{len(missing)} images of {source} are not there: No such file: {folder}/{missing[0]}")
    targets: dict[Any, dict[str, list[Any]]] = {image: {part: [] for part in _COCO_PARTS} for image in ids.values()}
    for annotation in annotations:
        target = targets.get(annotation["image_id"])
        if target is not None:
            for part in _COCO_PARTS:
                target[part].append(annotation.get(part))
    pairs = [(files.url(f"{folder}/{name}"), targets[ids[name]]) for name in sorted(ids)]
    if not pairs:
        raise PlanError(f"{source} lists no images")
    return XShards._over(spread(pairs).map(_coco_pair), unshared=True)


# The driver's side


def _require_pillow() -> None:
    try:
        import PIL  # noqa: F401
    except ImportError:
        raise missing_extra("pillow", "images") from None


def _listed(paths: Path | Sequence[Path], ending: str, what: str) -> list[str]:
    """The files, sorted by path."""
    found: set[str] = set()
    for path in [paths] if isinstance(paths, (str, os.PathLike)) else paths:
        files, place = files_of(path)
        if files.is_file(place):
            candidates = [place]
        elif files.exists(place):
            candidates = [f"{place.rstrip('/')}/{name}" for name in files.names(place)]
        else:
            candidates = files.glob(place) if any(mark in place for mark in "*?[") else []
        if not candidates and not files.exists(place):
            raise DatasetMissing(f"Path does not exist: {os.fspath(path)}")
        for candidate in candidates:
            name = candidate.rpartition("/")[2]
            if name.lower().endswith(ending.lower()) and not name.startswith(".") and files.is_file(candidate):
                found.add(files.url(candidate))
    if not found:
        raise PlanError(f"no {what} was found: nothing ends with {ending!r} in {paths}")
    return sorted(found)


def _spark_images(files: list[_Named]) -> RDD[tuple[_Named, Image]]:
    """Images through Spark's image source, in our order: Spark reads files in an order of its own."""
    from pyspark.sql import SparkSession

    boundaries = even_boundaries(len(files), partitions_for(len(files)))
    session = SparkSession.builder.getOrCreate()
    places = session.sparkContext.broadcast(
        {_place(path): (index, path, mask) for index, (path, mask) in enumerate(files)}
    )
    frame = session.read.format("image").load([_escaped(path) for path, _ in files])
    numbered = frame.select("image.*").rdd.map(partial(_from_spark, places))
    ordered = numbered.partitionBy(len(boundaries) - 1, partial(_owner, boundaries))
    return ordered.mapPartitions(_sorted)


def _place(path: str) -> str:
    """A path without what file systems write before it in one way or another: ``file:/a``, ``file:///a``, ``/a``."""
    return re.sub(r"^[A-Za-z][A-Za-z0-9+.-]*:(//[^/]*)?(?=/)", "", path)


def _escaped(path: str) -> str:
    r"""A path as Spark takes it: ``*``, ``?``, ``[`` and so on make a pattern of it, and none is local by default."""
    escaped = "".join(f"\\{letter}" if letter in "*?[]{}\\" else letter for letter in path)
    return f"file://{escaped}" if path.startswith("/") else escaped


def _owner(boundaries: list[int], index: int) -> int:
    return int(np.searchsorted(boundaries, index, side="right")) - 1


def _sorted(numbered: Iterable[tuple[int, tuple[_Named, Image]]]) -> Iterator[tuple[_Named, Image]]:
    return (pair for _, pair in sorted(numbered, key=lambda found: found[0]))


# A task's side


def _pillow_image(named: _Named) -> tuple[_Named, Image]:
    return named, _rgb(named[0])


def _shard(label_func: Callable[[str], Any] | None, found: tuple[_Named, Image]) -> Any:
    (path, mask), image = found
    if label_func is not None:
        return image, label_func(path)
    if mask is not None:
        return image, open_image(mask).copy()  # a copy is a plain image, without the file that it came from
    return image


def _rgb(path: str) -> Image:
    return open_image(path).convert("RGB")


def _from_spark(places: Broadcast[dict[str, Any]], row: Any) -> tuple[int, tuple[_Named, Image]]:
    from PIL import Image

    if row.height < 0:
        raise PlanError(f"{row.origin} is no image that Spark can read")
    pixels = np.frombuffer(row.data, np.uint8).reshape(row.height, row.width, row.nChannels)
    if row.nChannels == 1:
        pixels = np.repeat(pixels, 3, axis=2)
    # Spark has blue, green, red and perhaps alpha.
    image = Image.fromarray(np.ascontiguousarray(pixels[:, :, 2::-1]))
    origin = _place(row.origin)
    index, path, mask = places.value.get(origin) or places.value[unquote(origin)]
    return index, ((path, mask), image)


def _voc_pair(difficult: bool, annotated: voc.Annotated) -> tuple[Image, Any]:
    image = _rgb(annotated.image)
    return image, annotated.label(image.size, difficult)


def _coco_pair(pair: tuple[str, dict[str, list[Any]]]) -> tuple[Image, dict[str, list[Any]]]:
    path, target = pair
    return _rgb(path), target
