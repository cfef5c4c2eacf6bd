"""Callbacks for torch estimators."""

from firesteel.core.plan import EarlyStopping
from firesteel.engine.callbacks import (
    Callback,
    MainCallback,
    MaxstepsCallback,
    ModelCheckpoint,
    Runner,
    TensorBoardCallback,
    TqdmCallback,
)

__all__ = [
    "Callback",
    "EarlyStopping",
    "MainCallback",
    "MaxstepsCallback",
    "ModelCheckpoint",
    "Runner",
    "TensorBoardCallback",
    "TqdmCallback",
]
