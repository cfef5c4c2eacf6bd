"""The cluster door: existing programs as nodes on Spark. The names of TensorFlowOnSpark's documents, on first touch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from firesteel.frontends.tfcluster.cluster import InputMode, TFCluster
    from firesteel.frontends.tfcluster.distribute import distribute
    from firesteel.frontends.tfcluster.params import (
        HasBatchSize,
        HasClusterSize,
        HasEpochs,
        HasExportDir,
        HasGraceSecs,
        HasInputMapping,
        HasInputMode,
        HasMasterNode,
        HasModelDir,
        HasNumPS,
        HasOutputMapping,
        HasProtocol,
        HasReaders,
        HasSignatureDefKey,
        HasSteps,
        HasTagSet,
        HasTensorboard,
        HasTFRecordDir,
        HasTimeouts,
        Namespace,
        TFParams,
    )
    from firesteel.frontends.tfcluster.stages import TFEstimator, TFModel
    from firesteel.tfcluster import TFNode, TFParallel, compat, dfutil, gpu_info, pipeline

__all__ = [
    "HasBatchSize",
    "HasClusterSize",
    "HasEpochs",
    "HasExportDir",
    "HasGraceSecs",
    "HasInputMapping",
    "HasInputMode",
    "HasMasterNode",
    "HasModelDir",
    "HasNumPS",
    "HasOutputMapping",
    "HasProtocol",
    "HasReaders",
    "HasSignatureDefKey",
    "HasSteps",
    "HasTFRecordDir",
    "HasTagSet",
    "HasTensorboard",
    "HasTimeouts",
    "InputMode",
    "Namespace",
    "TFCluster",
    "TFEstimator",
    "TFModel",
    "TFNode",
    "TFParallel",
    "TFParams",
    "compat",
    "dfutil",
    "distribute",
    "gpu_info",
    "pipeline",
]

_DOOR = "firesteel.frontends.tfcluster"
_HOMES = {
    "InputMode": f"{_DOOR}.cluster",
    "TFCluster": f"{_DOOR}.cluster",
    "TFEstimator": f"{_DOOR}.stages",
    "TFModel": f"{_DOOR}.stages",
    "distribute": f"{_DOOR}.distribute",
}
_MODULES = ("TFNode", "TFParallel", "compat", "dfutil", "gpu_info", "pipeline")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'firesteel.tfcluster' has no attribute {name!r}; there are: {', '.join(__all__)}")
    if name in _MODULES:
        return importlib.import_module(f"firesteel.tfcluster.{name}")
    value = getattr(importlib.import_module(_HOMES.get(name, f"{_DOOR}.params")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
