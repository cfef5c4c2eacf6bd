"""ImageNet's folders as TFRecord files, and those as a TensorFlow dataset."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import Any

import numpy as np

from firesteel.core.errors import PlanError, UnknownName, missing_extra
from firesteel.data.file import Files, Path, decode_image, files_of, read_bytes
from firesteel.data.image.layout import DatasetMissing
from firesteel.data.image.writers import check_arguments
from firesteel.data.shards.kinds import check_positive
from firesteel.data.structure import even_boundaries
from firesteel.data.tfrecord.example import make_example
from firesteel.data.tfrecord.framing import write_records

__all__ = ["read_tfrecord", "write_tfrecord"]

_FORMATS = ("imagenet",)
_THREADS = 4


def write_tfrecord(format: str, output_path: Path, **kwargs: Any) -> None:
    """Write a known collection of images as TFRecord files.

    Args:
        format: ``"imagenet"``.
        output_path: the folder of the new files, ``train-00000-of-01024`` and so on.
        **kwargs: ``imagenet_path``, a folder with ``train/<synset>/*.JPEG``, ``validation/*.JPEG`` and
            ``synset_labels.txt`` (a line for each validation image, in the order of their names). ``training_shards``
            (default 1024) and ``validation_shards`` (default 128): the numbers of files.

    Raises:
        PlanError: an unknown format, a missing argument, images without labels.
    """
    if format not in _FORMATS:
        raise UnknownName("format", format, _FORMATS)
    check_arguments(format, ("imagenet_path",), kwargs)
    _write_imagenet(output_path, **kwargs)


def read_tfrecord(format: str, path: Path, **kwargs: Any) -> Any:
    """The records of such files, as a ``tf.data.Dataset`` of strings: each a ``tf.train.Example``, not yet parsed.

    Files are read several at a time, their records mixed. However many files there are, all are read.

    Args:
        format: ``"imagenet"``.
        path: the folder with the files, or the one above it, with ``train`` and ``validation``.
        **kwargs: ``is_training``: whether training files are read, or those for validation.
    """
    if format not in _FORMATS:
        raise UnknownName("format", format, _FORMATS)
    check_arguments(format, ("is_training",), kwargs)
    return _read_imagenet(path, **kwargs)


def _read_imagenet(path: Path, is_training: bool) -> Any:
    split = "train" if is_training else "validation"
    files, place = files_of(path)
    found: list[str] = []
    for folder in (place.rstrip("/"), f"{place.rstrip('/')}/{split}"):
        if not found and files.exists(folder):
            pattern = re.compile(rf"{split}-\d{{5,}}-of-\d{{5,}}")
            found = [files.url(f"{folder}/{name}") for name in files.names(folder) if pattern.fullmatch(name)]
    if not found:
        raise DatasetMissing(f"No such file: there is no {split}-00000-of-… in {os.fspath(path)}")
    try:
        import tensorflow as tf
    except ImportError:
        raise missing_extra("tensorflow", "tensorflow") from None
    names = tf.data.Dataset.from_tensor_slices(found)
    return names.interleave(tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE)


def _write_imagenet(
    output_path: Path, imagenet_path: Path, training_shards: int = 1024, validation_shards: int = 128
) -> None:
    check_positive("training_shards", training_shards)
    check_positive("validation_shards", validation_shards)
    if not imagenet_path:
        raise PlanError("imagenet_path is empty: it must be the folder with train, validation and synset_labels.txt")
    files, root = files_of(imagenet_path)
    root = root.rstrip("/")
    training = _training_images(files, root)
    validation = _validation_images(files, root)
    # Classes count from 1: by convention 0 is for what is none of them.
    labels = {name: index for index, name in enumerate(sorted({name for _, name in training + validation}), start=1)}
    # Always the same order, and classes mixed: each file has some of all.
    mixed = [training[place] for place in np.random.default_rng(0).permutation(len(training))]
    targets, output = files_of(output_path)
    targets.make_folder(output)
    folder = targets.url(output)
    for split, images, count in (("train", mixed, training_shards), ("validation", validation, validation_shards)):
        boundaries = even_boundaries(len(images), int(count))
        for shard in range(int(count)):
            name = f"{folder}/{split}-{shard:05d}-of-{count:05d}"
            write_records(name, _records(images[boundaries[shard] : boundaries[shard + 1]], labels), compression="none")


def _training_images(files: Files, root: str) -> list[tuple[str, str]]:
    """``(path, synset)`` of each training image, sorted by path."""
    folder = f"{root}/train"
    _require(files, folder)
    found = []
    for synset in files.names(folder):
        if not files.is_file(f"{folder}/{synset}"):
            found += [(path, synset) for path in _images(files, f"{folder}/{synset}")]
    if not found:
        raise PlanError(f"no image was found: nothing ends with .JPEG in {folder}/<synset>")
    return found


def _validation_images(files: Files, root: str) -> list[tuple[str, str]]:
    """``(path, synset)`` of each validation image, sorted by path; the file of labels has the same order."""
    folder, source = f"{root}/validation", f"{root}/synset_labels.txt"
    _require(files, folder)
    _require(files, source)
    images = _images(files, folder)
    synsets = read_bytes(files.url(source)).decode("utf-8").split()
    if len(images) != len(synsets):
        raise PlanError(f"{folder} has {len(images)} images, but {source} has {len(synsets)} labels")
    return list(zip(images, synsets, strict=True))


def _images(files: Files, folder: str) -> list[str]:
    names = [name for name in files.names(folder) if name.lower().endswith((".jpeg", ".jpg")) and name[0] != "."]
    return [files.url(f"{folder}/{name}") for name in names]


def _require(files: Files, path: str) -> None:
    if not files.exists(path):
        raise DatasetMissing(f"No such file or directory: {path}")


def _records(images: Sequence[tuple[str, str]], labels: dict[str, int]) -> Iterator[bytes]:
    make: Callable[[tuple[str, str]], bytes] = lambda image: _example(*image, labels[image[1]])  # noqa: E731
    # Reading files is mostly waiting. A few at a time, so that memory holds a few images.
    with ThreadPoolExecutor(_THREADS) as threads:
        for start in range(0, len(images), 4 * _THREADS):
            yield from threads.map(make, images[start : start + 4 * _THREADS])


def _example(path: str, synset: str, label: int) -> bytes:
    encoded, width, height = _rgb_jpeg(path)
    return make_example(
        {
            "image/height": height,
            "image/width": width,
            "image/channels": 3,
            "image/colorspace": b"RGB",
            "image/format": b"JPEG",
            "image/filename": path.rpartition("/")[2].encode("utf-8"),
            "image/encoded": encoded,
            "image/class/label": label,
            "image/class/synset": synset.encode("utf-8"),
        }
    )


def _rgb_jpeg(path: str) -> tuple[bytes, int, int]:
    """The file, its width and height. Some of ImageNet's .JPEG files are PNG, or CMYK: those are encoded anew."""
    data = read_bytes(path)
    image = decode_image(data, path)
    if image.format == "JPEG" and image.mode in ("RGB", "L"):
        return data, image.width, image.height
    stream = BytesIO()
    image.convert("RGB").save(stream, "JPEG", quality=100)
    return stream.getvalue(), image.width, image.height
