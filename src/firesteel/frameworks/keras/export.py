"""A Keras model in forms that other runtimes read: ONNX, and what OpenVINO's converter takes."""

from __future__ import annotations

import os
import tempfile
import warnings
from typing import Any

import keras
import numpy as np

from firesteel.core.errors import PlanError, UnsupportedError
from firesteel.core.spec import Batch
from firesteel.frameworks.keras.program import input_names

__all__ = ["portable", "to_onnx"]


def to_onnx(model: Any, batch: Batch | None) -> bytes:
    """An ONNX file of the model in inference mode, for any number of rows. Driver only."""
    with tempfile.TemporaryDirectory(prefix="firesteel-") as folder:
        path = os.path.join(folder, "model.onnx")
        _export(model, path, "onnx", batch)
        with open(path, "rb") as file:
            return file.read()


def portable(model: Any, batch: Batch | None, folder: str) -> dict[str, Any]:
    """The model in ``folder``, and the names of inputs and outputs, as OpenVINO's bench converts it. Driver only."""
    if keras.backend.backend() != "tensorflow":
        raise UnsupportedError("a Keras model goes to OpenVINO by way of TensorFlow; it was made with another backend")
    path = os.path.join(folder, "model")
    _export(model, path, "tf_saved_model", batch)
    names = input_names(model) or [f"input_{place}" for place in range(len(batch or {}))] or ["input"]
    output = getattr(model, "output", None)
    if isinstance(output, dict):
        outputs = list(output)
    else:
        outputs = [f"output_{n}" for n in range(len(output))] if isinstance(output, (list, tuple)) else ["output"]
    return {"model": path, "input_names": names, "output_names": outputs}


def _export(model: Any, path: str, kind: str, batch: Batch | None) -> None:
    options: dict[str, Any] = {}
    if input_names(model) is None and batch is not None:  # of a class of its own: only a call has told its inputs
        options["input_signature"] = [
            keras.InputSpec(np.dtype(values.dtype).name, shape=(None, *values.shape[1:])) for values in batch.values()
        ]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.export(path, format=kind, verbose=False, **options)
    except ImportError as error:
        raise PlanError("ONNX from Keras needs tf2onnx: pip install 'firesteel[openvino]'") from error
    except Exception as error:
        text = str(error).strip().partition("\n")[0]
        raise UnsupportedError(f"Keras cannot export this model: {text}") from error
