"""Images: columns of them, datasets in Parquet, well-known collections, image files. Loaded on first touch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from firesteel.data.image.column import CenterCrop, Normalize, RandomCrop, RandomFlip, Resize, image_column
    from firesteel.data.image.imagenet import read_tfrecord, write_tfrecord
    from firesteel.data.image.loaders import read_parquet
    from firesteel.data.image.parquet_dataset import ParquetDataset
    from firesteel.data.image.readers import read_coco, read_images, read_voc
    from firesteel.data.image.schema import DType, FeatureType, SchemaField
    from firesteel.data.image.writers import write_from_directory, write_mnist, write_parquet, write_voc

__all__ = [
    "CenterCrop",
    "DType",
    "FeatureType",
    "Normalize",
    "ParquetDataset",
    "RandomCrop",
    "RandomFlip",
    "Resize",
    "SchemaField",
    "image_column",
    "read_coco",
    "read_images",
    "read_parquet",
    "read_tfrecord",
    "read_voc",
    "write_from_directory",
    "write_mnist",
    "write_parquet",
    "write_tfrecord",
    "write_voc",
]

_HOMES = {
    "CenterCrop": "column",
    "DType": "schema",
    "FeatureType": "schema",
    "Normalize": "column",
    "ParquetDataset": "parquet_dataset",
    "RandomCrop": "column",
    "RandomFlip": "column",
    "Resize": "column",
    "SchemaField": "schema",
    "image_column": "column",
    "read_coco": "readers",
    "read_images": "readers",
    "read_parquet": "loaders",
    "read_tfrecord": "imagenet",
    "read_voc": "readers",
    "write_from_directory": "writers",
    "write_mnist": "writers",
    "write_parquet": "writers",
    "write_tfrecord": "imagenet",
    "write_voc": "writers",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(
            f"module 'firesteel.data.image' has no attribute {name!r}; there are: {', '.join(__all__)}"
        )
    value = getattr(importlib.import_module(f"firesteel.data.image.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
