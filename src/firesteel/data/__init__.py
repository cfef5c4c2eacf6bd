"""The loading dock: Spark outside, ndarrays inside. Public names are loaded on first touch."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["SharedValue", "SparkXShards", "XShards"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module("firesteel.data.shards"), name)
    raise AttributeError(f"module 'firesteel.data' has no attribute {name!r}")
