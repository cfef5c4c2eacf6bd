"""Pascal VOC's folders: ``VOC<year>/ImageSets/Main/<split>.txt``, ``Annotations/*.xml``, ``JPEGImages/*.jpg``."""

from __future__ import annotations

import os
import warnings
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from firesteel.core.errors import PlanError
from firesteel.data.file import Path, files_of, read_bytes
from firesteel.data.image.layout import DatasetMissing

__all__ = ["CLASSES", "Annotated", "annotated_images"]

CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)

_THREADS = 8


@dataclass(frozen=True)
class Annotated:
    """An image, and the boxes in it.

    Attributes:
        image: the image's path, as a task can open it.
        boxes: ``(boxes, 6)``: x1, y1, x2, y2 in pixels, the class's index, whether it is difficult.
        size: the image's ``(width, height)``, where the annotation has it.
        unknown: names that are not among the classes, and how often each occurs.
    """

    image: str
    boxes: npt.NDArray[np.float64]
    size: tuple[float, float] | None
    unknown: Counter[str] = field(default_factory=Counter)

    def label(self, size: tuple[float, float], difficult: bool) -> npt.NDArray[np.float32]:
        """``(boxes, 5)``, or 6 with the difficult flag: corners as fractions of an image of this size."""
        width, height = self.size or size
        scaled = self.boxes / np.array([width, height, width, height, 1, 1])
        label: npt.NDArray[np.float32] = scaled[:, : 6 if difficult else 5].astype(np.float32)
        return label


def annotated_images(
    root: Path, splits: Sequence[tuple[int, str]], classes: Sequence[str] | None, most: int | None = None
) -> list[Annotated]:
    """All images of the splits, in their order (driver). Warns of classes that are left out.

    Args:
        root: the folder with ``VOC<year>``.
        splits: pairs such as ``(2009, "trainval")``.
        classes: their names, in the order of their indices; default: VOC's twenty. Case does not matter.
        most: no more than that many images.

    Raises:
        DatasetMissing: a split's file or an annotation is not there (a ``FileNotFoundError``, too).
    """
    index = _class_index(CLASSES if classes is None else classes)
    names = [pair for split in splits for pair in _names(root, split)][:most]
    if not names:
        raise PlanError(f"no image is listed in the splits {list(splits)} of {os.fspath(root)}")
    with ThreadPoolExecutor(_THREADS) as threads:
        found = list(threads.map(partial(_annotated, index), names))
    unknown: Counter[str] = sum((annotated.unknown for annotated in found), Counter())
    if unknown:
        listed = ", ".join(f"{name!r} ({count} boxes)" for name, count in sorted(unknown.items()))
        warnings.warn(f"classes that are not in {', '.join(index)} were left out: {listed}", stacklevel=3)
    return found


def _class_index(classes: Sequence[str]) -> dict[str, int]:
    if isinstance(classes, str) or not classes or not all(isinstance(name, str) for name in classes):
        raise PlanError(f"classes must be a list of names, found {classes!r}")
    return {name.strip().lower(): index for index, name in enumerate(classes)}


def _names(root: Path, split: Any) -> list[tuple[str, str]]:
    """``(year's folder, image's name)`` of each image in a split."""
    if isinstance(split, str) or len(split) != 2:
        raise PlanError(f"a split must be a pair such as (2009, 'trainval'), found {split!r}")
    year, name = split
    files, place = files_of(root)
    folder = f"{place.rstrip('/')}/VOC{year}"
    listing = f"{folder}/ImageSets/Main/{name}.txt"
    if not files.is_file(listing):
        raise DatasetMissing(f"there is no split {name!r} of {year}: No such file: {listing}")
    with files.open(listing, "rb") as stream:
        lines = stream.read().decode("utf-8").splitlines()
    # The splits of a single class have a second word: whether it is in the image.
    return [(files.url(folder), line.split()[0]) for line in lines if line.strip()]


def _annotated(index: dict[str, int], named: tuple[str, str]) -> Annotated:
    folder, name = named
    source = f"{folder}/Annotations/{name}.xml"
    try:
        root = ET.fromstring(read_bytes(source))
    except FileNotFoundError as error:
        raise DatasetMissing(f"image {name!r} has no annotation: No such file: {source}") from error
    except ET.ParseError as error:
        raise PlanError(f"{source} is no annotation: {error}") from error
    boxes: list[list[float]] = []
    unknown: Counter[str] = Counter()
    for thing in root.iter("object"):
        kind = (thing.findtext("name") or "").strip()
        if kind.lower() not in index:
            unknown[kind] += 1
            continue
        corners = [_number(thing, f"bndbox/{corner}", source) for corner in ("xmin", "ymin", "xmax", "ymax")]
        difficult = (thing.findtext("difficult") or "").strip() == "1"
        boxes.append([*corners, index[kind.lower()], difficult])
    size = None
    if root.find("size") is not None:
        size = _number(root, "size/width", source), _number(root, "size/height", source)
    size = size if size is not None and min(size) > 0 else None
    return Annotated(f"{folder}/JPEGImages/{name}.jpg", np.array(boxes).reshape(-1, 6), size, unknown)


def _number(element: ET.Element, path: str, source: str) -> float:
    text = element.findtext(path)
    try:
        return float(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise PlanError(f"{source}: {path} of <{element.tag}> must be a number, found {text!r}") from None
