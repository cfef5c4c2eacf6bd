"""Models that were trained elsewhere, as ``DLModel``: one call for a file of any format."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from firesteel.core import registry
from firesteel.core.errors import PlanError, UnknownName
from firesteel.engine.files import exists, local_path, read_bytes
from firesteel.frontends.pipeline.dl import DLModel

__all__ = ["load_model"]


def load_model(path: str, *, shapes: Sequence[Sequence[int]] | None = None, **params: Any) -> DLModel:
    """A stage around the model in a file, wherever Spark reads from.

    Args:
        path: what it is goes by its ending.

            ====================  =============================================================
            ``.keras``            Keras 3
            ``.pt2``              a program of ``torch.export``, free in its first axis
            ``.pt``, ``.ts``      TorchScript that takes real numbers; needs ``firesteel[openvino]``
            ``.onnx``, ``.xml``   ONNX, or OpenVINO's IR; likewise
            ====================  =============================================================
        shapes: TorchScript only, which does not say it: the shape of a row of each input, ``[(3, 32, 32)]``.
        **params: the Params of ``DLModel``.

    TensorFlow's checkpoints, SavedModels and frozen graphs have tensors by name: see ``load_tensorflow_model``.
    """
    ending = os.path.splitext(path)[1].lower()
    if ending not in _OPENERS:
        raise UnknownName("ending of a model's file", ending or path, _OPENERS)
    if not exists(path):
        raise PlanError(f"there is no model at {path}")
    if ending in (".pt", ".ts"):
        if shapes is None:
            raise PlanError(f"TorchScript does not say what it takes: pass shapes=, a row's of each input of {path}")
    elif shapes is not None:
        raise PlanError("shapes= is for TorchScript: other models say what they take")
    here = local_path(path)
    if here is not None:
        return DLModel(_OPENERS[ending](here, shapes), **params)
    with tempfile.TemporaryDirectory(prefix="firesteel-") as folder:
        here = os.path.join(folder, f"model{ending}")
        files = {path: here}
        if ending == ".xml":
            files[f"{path[: -len(ending)]}.bin"] = f"{here[: -len(ending)]}.bin"
        for source, target in files.items():
            with open(target, "wb") as file:
                file.write(read_bytes(source))
        return DLModel(_OPENERS[ending](here, shapes), **params)


def _keras(path: str, shapes: Any) -> Any:
    import keras

    return keras.saving.load_model(path)


def _exported(path: str, shapes: Any) -> Any:
    bench: Any = registry.framework("torch")
    return bench.open_exported(path)


def _script(path: str, shapes: Any) -> Any:
    import torch

    bench: Any = registry.framework("openvino")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of TorchScript itself, which is what was asked for
            model = torch.jit.load(path, map_location="cpu").eval()
    except RuntimeError as error:
        raise PlanError(
            f"{path} is no TorchScript ({str(error).strip().splitlines()[0]}): a state_dict or a pickled module is not "
            f"opened; load it into its class, and pass that to DLModel"
        ) from error
    return bench.read(bench.convert(model, input_names=None, output_names=None, shapes=shapes), path)


def _graph(path: str, shapes: Any) -> Any:
    bench: Any = registry.framework("openvino")
    return bench.read(bench.from_path(path), path)


_OPENERS: dict[str, Callable[[str, Any], Any]] = {
    ".keras": _keras,
    ".onnx": _graph,
    ".pt": _script,
    ".pt2": _exported,
    ".ts": _script,
    ".xml": _graph,
}
