"""Firesteel: deep learning where the data already is, on Apache Spark.

The public names, loaded on first touch: importing this loads no framework and no pyspark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from firesteel.cluster.context import (
        init_context,
        init_nncontext,
        init_orca_context,
        stop_context,
        stop_orca_context,
    )
    from firesteel.core.errors import (
        CheckpointError,
        ClusterError,
        EnvironmentMismatch,
        FiresteelError,
        NotEnoughSlots,
        PlanError,
        ReplicaFailed,
        SchemaError,
        SyncError,
        UnknownName,
        UnsupportedError,
    )
    from firesteel.data.shards import XShards
    from firesteel.frontends.bigdl.tfnet import TFNet
    from firesteel.frontends.estimator import Estimator
    from firesteel.frontends.pipeline.asynchronous import SparkAsyncDL, SparkAsyncDLModel
    from firesteel.frontends.pipeline.graphs import build_graph
    from firesteel.frontends.tfcluster.cluster import TFCluster
    from firesteel.frontends.tfpark.dataset import TFDataset
    from firesteel.frontends.tfpark.optimizer import TFOptimizer
    from firesteel.frontends.tfpark.predictor import TFPredictor

__version__ = "0.1.0"

__all__ = [
    "CheckpointError",
    "ClusterError",
    "EnvironmentMismatch",
    "Estimator",
    "FiresteelError",
    "NotEnoughSlots",
    "PlanError",
    "ReplicaFailed",
    "SchemaError",
    "SparkAsyncDL",
    "SparkAsyncDLModel",
    "SyncError",
    "TFCluster",
    "TFDataset",
    "TFNet",
    "TFOptimizer",
    "TFPredictor",
    "UnknownName",
    "UnsupportedError",
    "XShards",
    "build_graph",
    "init_context",
    "init_nncontext",
    "init_orca_context",
    "stop_context",
    "stop_orca_context",
]

_HOMES = {
    "Estimator": "firesteel.frontends.estimator",
    "SparkAsyncDL": "firesteel.frontends.pipeline.asynchronous",
    "SparkAsyncDLModel": "firesteel.frontends.pipeline.asynchronous",
    "TFCluster": "firesteel.frontends.tfcluster.cluster",
    "TFDataset": "firesteel.frontends.tfpark.dataset",
    "TFNet": "firesteel.frontends.bigdl.tfnet",
    "TFOptimizer": "firesteel.frontends.tfpark.optimizer",
    "TFPredictor": "firesteel.frontends.tfpark.predictor",
    "XShards": "firesteel.data.shards",
    "build_graph": "firesteel.frontends.pipeline.graphs",
    "init_context": "firesteel.cluster.context",
    "init_nncontext": "firesteel.cluster.context",
    "init_orca_context": "firesteel.cluster.context",
    "stop_context": "firesteel.cluster.context",
    "stop_orca_context": "firesteel.cluster.context",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'firesteel' has no attribute {name!r}; there are: {', '.join(__all__)}")
    value = getattr(importlib.import_module(_HOMES.get(name, "firesteel.core.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
