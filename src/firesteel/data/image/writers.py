"""Well-known collections of images, written as a ``ParquetDataset``: MNIST, folders by class, Pascal VOC."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from firesteel.core.errors import PlanError, UnknownName
from firesteel.data.file import Path, files_of, open_image
from firesteel.data.image import voc
from firesteel.data.image.layout import DatasetMissing
from firesteel.data.image.parquet_dataset import ParquetDataset
from firesteel.data.image.schema import DType, FeatureType, SchemaField

__all__ = ["check_arguments", "write_from_directory", "write_mnist", "write_parquet", "write_voc"]

_IMAGES_MAGIC, _LABELS_MAGIC = 2051, 2049

_IMAGE = SchemaField(FeatureType.IMAGE, DType.BYTES, ())
_STRING = SchemaField(FeatureType.SCALAR, DType.STRING, ())


def write_parquet(format: str, output_path: Path, **kwargs: Any) -> None:
    """Write one of the known collections.

    Args:
        format: ``"mnist"`` (needs ``image_file``, ``label_file``), ``"image_folder"`` (``directory``, ``label_map``)
            or ``"voc"`` (``voc_root_path``, ``splits_names``).
        output_path: the dataset's folder.
        **kwargs: the arguments of ``write_mnist``, ``write_from_directory`` or ``write_voc``.
    """
    writers: dict[str, tuple[Callable[..., None], tuple[str, ...]]] = {
        "image_folder": (write_from_directory, ("directory", "label_map")),
        "mnist": (write_mnist, ("image_file", "label_file")),
        "voc": (write_voc, ("voc_root_path", "splits_names")),
    }
    if format not in writers:
        raise UnknownName("format", format, writers)
    writer, needed = writers[format]
    check_arguments(format, needed, kwargs)
    writer(output_path=output_path, **kwargs)


def check_arguments(format: str, needed: Sequence[str], given: Mapping[str, Any]) -> None:
    """Refuse a call that lacks an argument."""
    missing = [name for name in needed if name not in given]
    if missing:
        raise PlanError(f"format {format!r} needs {', '.join(needed)}; missing: {', '.join(missing)}")


def write_mnist(image_file: Path, label_file: Path, output_path: Path, **kwargs: Any) -> None:
    """MNIST's idx files (also gzipped) as ``image``, (28, 28, 1) uint8, and ``label``, uint8.

    Args:
        image_file: ``…-images-idx3-ubyte`` or the same with ``.gz``. Images of another size do as well.
        label_file: ``…-labels-idx1-ubyte``.
        output_path: the dataset's folder.
        **kwargs: for ``ParquetDataset.write``.

    Raises:
        PlanError: a wrong magic number, numbers of images and labels that differ, or a file that ends too early.
    """
    with _idx(image_file, _IMAGES_MAGIC, 3) as (images, sizes), _idx(label_file, _LABELS_MAGIC, 1) as (labels, counts):
        if sizes[0] != counts[0]:
            raise PlanError(f"{image_file} has {sizes[0]} images, but {label_file} has {counts[0]} labels")
        shape = (*sizes[1:], 1)
        schema = {
            "image": SchemaField(FeatureType.NDARRAY, DType.UINT8, shape),
            "label": SchemaField(FeatureType.SCALAR, DType.UINT8, ()),
        }
        rows = (
            {"image": _bytes(images, shape, image_file), "label": _bytes(labels, (), label_file)}
            for _ in range(sizes[0])
        )
        ParquetDataset.write(output_path, rows, schema, **kwargs)


def write_from_directory(
    directory: Path, label_map: Mapping[str, int], output_path: Path, shuffle: bool = True, **kwargs: Any
) -> None:
    """A folder with a folder of images for each class, as ``image``, ``label``, ``image_id`` and ``label_str``.

    Args:
        directory: the folder. Folders in it that ``label_map`` does not have are passed over, as are hidden files.
        label_map: from a folder's name to its label.
        output_path: the dataset's folder.
        shuffle: whether the images are mixed, always in the same way; otherwise they are sorted by path.
        **kwargs: for ``ParquetDataset.write``.
    """
    if not (label_map and hasattr(label_map, "items")):
        raise PlanError(f"label_map must be a dict from folder names to labels, found {label_map!r}")
    files, place = files_of(directory)
    place = place.rstrip("/")
    if not files.exists(place):
        raise DatasetMissing(f"No such file or directory: {os.fspath(directory)}")
    folders = files.names(place)
    found = []
    for name in folders:
        if name in label_map and not files.is_file(f"{place}/{name}"):
            paths = [f"{place}/{name}/{image}" for image in files.names(f"{place}/{name}") if image[0] != "."]
            found += [(files.url(path), name) for path in paths if files.is_file(path)]
    if not found:
        raise PlanError(
            f"no image was found in {os.fspath(directory)}: label_map names {', '.join(map(str, label_map))}, "
            f"and there are: {', '.join(folders) or 'no folders'}"
        )
    order = np.random.default_rng(0).permutation(len(found)) if shuffle else range(len(found))
    schema = {
        "image": _IMAGE,
        "label": SchemaField(FeatureType.SCALAR, DType.INT32, ()),
        "image_id": _STRING,
        "label_str": _STRING,
    }
    rows = (
        {"image": path, "label": label_map[name], "image_id": path, "label_str": name}
        for path, name in (found[place] for place in order)
    )
    ParquetDataset.write(output_path, rows, schema, **kwargs)


def write_voc(
    voc_root_path: Path,
    splits_names: Sequence[tuple[int, str]],
    output_path: Path,
    classes: Sequence[str] | None = None,
    **kwargs: Any,
) -> None:
    """Pascal VOC as ``image``, ``label`` (boxes × 5 float32) and ``image_id``.

    A label's rows are x1, y1, x2, y2 as fractions of the image, and the class's index.

    Args:
        voc_root_path: the folder with ``VOC2007`` and so on.
        splits_names: pairs such as ``(2007, "trainval")``.
        output_path: the dataset's folder.
        classes: their names in the order of their indices; default: VOC's twenty. Others are left out with a warning.
        **kwargs: for ``ParquetDataset.write``.
    """
    found = voc.annotated_images(voc_root_path, splits_names, classes)
    schema = {"image": _IMAGE, "label": SchemaField(FeatureType.NDARRAY, DType.FLOAT32, (-1, 5)), "image_id": _STRING}
    rows = ({"image": each.image, "label": _voc_label(each), "image_id": each.image} for each in found)
    ParquetDataset.write(output_path, rows, schema, **kwargs)


def _voc_label(annotated: voc.Annotated) -> npt.NDArray[np.float32]:
    size = annotated.size or open_image(annotated.image).size
    return annotated.label(size, difficult=False)


@contextmanager
def _idx(path: Path, magic: int, dimensions: int) -> Iterator[tuple[IO[bytes], list[int]]]:
    """An idx file's stream after its header, and the sizes that the header tells."""
    files, place = files_of(path)
    if not files.is_file(place):
        raise DatasetMissing(f"No such file or directory: {os.fspath(path)}")
    with files.open(place, "rb") as raw, ExitStack() as stack:
        is_zipped = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        stream: Any = stack.enter_context(gzip.GzipFile(fileobj=raw)) if is_zipped else raw
        found = int.from_bytes(_exactly(stream, 4, path), "big")
        if found != magic:
            raise PlanError(f"{os.fspath(path)} has the magic number {found}, where {magic} was expected")
        yield stream, np.frombuffer(_exactly(stream, 4 * dimensions, path), ">u4").tolist()


def _exactly(stream: IO[bytes], count: int, path: Path) -> bytes:
    data = stream.read(count)
    if len(data) < count:
        raise PlanError(f"{os.fspath(path)} ends too early: it is damaged, or no idx file")
    return data


def _bytes(stream: IO[bytes], shape: tuple[int, ...], path: Path) -> npt.NDArray[np.uint8]:
    return np.frombuffer(_exactly(stream, int(np.prod(shape)), path), np.uint8).reshape(shape)
