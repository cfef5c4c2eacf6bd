"""The loading dock: Spark outside, ndarrays inside. Public names are loaded on first touch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from firesteel.data.image import ParquetDataset, image_column
    from firesteel.data.shards import SharedValue, SparkXShards, XShards, spark_df_to_pd_sparkxshards
    from firesteel.data.tables import read_csv, read_json, read_parquet
    from firesteel.data.tfrecord import read_tfrecords, write_tfrecords

__all__ = [
    "ParquetDataset",
    "SharedValue",
    "SparkXShards",
    "XShards",
    "image_column",
    "read_csv",
    "read_json",
    "read_parquet",
    "read_tfrecords",
    "spark_df_to_pd_sparkxshards",
    "write_tfrecords",
]

_PLACES = {
    "image": ["ParquetDataset", "image_column"],
    "shards": ["SharedValue", "SparkXShards", "XShards", "spark_df_to_pd_sparkxshards"],
    "tables": ["read_csv", "read_json", "read_parquet"],
    "tfrecord": ["read_tfrecords", "write_tfrecords"],
}
_MODULES = {name: module for module, names in _PLACES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(f"firesteel.data.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'firesteel.data' has no attribute {name!r}")
