"""A process's own Keras: the backend that a program was made with, on as many threads as its task has."""

from __future__ import annotations

import os
import sys

from firesteel.core.errors import PlanError, missing_extra
from firesteel.core.imports import importing

__all__ = ["on_tensorflow", "on_torch", "wake"]

# For a converter of TensorFlow's and for Keras's wrappers in sklearn's ways: a fifth of the time, and no replica has a
# use for them.
_UNUSED = ("jax", "sklearn")


def wake(backend: str, threads: int) -> None:
    """Import Keras on this backend. ``threads`` = 0 leaves the process as it is: the driver's belongs to the user."""
    if "keras" not in sys.modules:
        os.environ["KERAS_BACKEND"] = backend
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        import keras
    except ModuleNotFoundError as error:
        raise missing_extra(error.name or "keras", "tensorflow") from error
    found = keras.backend.backend()
    if found != backend:
        raise PlanError(f"the model was made with Keras on {backend}, and this process has loaded it on {found}")
    if threads:
        _limit(backend, threads)


def on_tensorflow() -> None:
    """Import Keras on TensorFlow, for replicas to come."""
    with importing(without=_UNUSED):
        wake("tensorflow", 0)


def on_torch() -> None:
    """Import Keras on torch, for replicas to come."""
    with importing(without=_UNUSED):
        wake("torch", 0)


def _limit(backend: str, threads: int) -> None:
    if backend == "tensorflow":
        import tensorflow as tf

        try:
            tf.config.threading.set_intra_op_parallelism_threads(threads)
            tf.config.threading.set_inter_op_parallelism_threads(1)
        except RuntimeError:  # TensorFlow runs already: a worker that scores keeps what it began with
            pass
    elif backend == "torch":
        import torch

        torch.set_num_threads(threads)
