"""The cluster door: existing programs as nodes on Spark. The names of TensorFlowOnSpark's documents, on first touch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from firesteel.frontends.tfcluster.cluster import InputMode, TFCluster
    from firesteel.frontends.tfcluster.distribute import distribute

_HOMES = {
    "InputMode": "firesteel.frontends.tfcluster.cluster",
    "TFCluster": "firesteel.frontends.tfcluster.cluster",
    "distribute": "firesteel.frontends.tfcluster.distribute",
}
_MODULES = ("TFNode", "TFParallel")

__all__ = ["InputMode", "TFCluster", "TFNode", "TFParallel", "distribute"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"firesteel.tfcluster.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'firesteel.tfcluster' has no attribute {name!r}; there are: {', '.join(__all__)}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
