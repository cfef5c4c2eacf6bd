"""TFPark's door: datasets, an optimizer for a loss, a predictor for outputs, Keras models. Loaded on first touch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from firesteel.frontends.bigdl.tfnet import TFNet, export_tf
    from firesteel.frontends.tfpark.dataset import TFDataset
    from firesteel.frontends.tfpark.keras_model import KerasModel
    from firesteel.frontends.tfpark.optimizer import TFOptimizer
    from firesteel.frontends.tfpark.predictor import TFPredictor

    ZooOptimizer: Any

_HOMES = {
    "KerasModel": "firesteel.frontends.tfpark.keras_model",
    "TFDataset": "firesteel.frontends.tfpark.dataset",
    "TFNet": "firesteel.frontends.bigdl.tfnet",
    "TFOptimizer": "firesteel.frontends.tfpark.optimizer",
    "TFPredictor": "firesteel.frontends.tfpark.predictor",
    "export_tf": "firesteel.frontends.bigdl.tfnet",
}

__all__ = ["KerasModel", "TFDataset", "TFNet", "TFOptimizer", "TFPredictor", "ZooOptimizer", "export_tf"]


def __getattr__(name: str) -> Any:
    if name == "ZooOptimizer":
        from firesteel.core import registry

        bench: Any = registry.framework("tfgraph")
        return bench.zoo_optimizer
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'firesteel.tfpark' has no attribute {name!r}; there are: {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
