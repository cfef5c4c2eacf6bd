"""A Keras model's state as safetensors: weights under their paths, the optimizer's variables, what inputs look like."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from firesteel.core.errors import CheckpointError

__all__ = ["header_of", "load_model", "load_optimizer", "pack_model", "pack_optimizer"]


def pack_model(model: Any, inputs: Any = None) -> bytes:
    """All weights of a model, and ``inputs``, by which one that is not built yet can be."""
    return _pack(model.weights, {"inputs": inputs})


def pack_optimizer(optimizer: Any) -> bytes:
    """All variables of an optimizer: moments, iterations, the learning rate."""
    return _pack(optimizer.variables, {"class": type(optimizer).__name__})


def header_of(data: bytes) -> dict[str, Any]:
    """What ``pack_model`` was told beside the weights."""
    size = int.from_bytes(data[:8], "little")
    text = json.loads(data[8 : 8 + size]).get("__metadata__", {}).get("firesteel", "{}")
    found: dict[str, Any] = json.loads(text)
    return found


def load_model(model: Any, data: bytes) -> None:
    """Put packed weights into a model that is built; one that they do not fit stays as it was."""
    _load(model.weights, data, "these weights are of another model")


def load_optimizer(optimizer: Any, data: bytes) -> None:
    """Put a packed state into an optimizer that is built."""
    _load(optimizer.variables, data, "the optimizer's state is that of another optimizer")


def _pack(variables: Sequence[Any], note: dict[str, Any]) -> bytes:
    arrays = {f"{place:05d}/{v.path}": np.asarray(_numpy(v), order="C") for place, v in enumerate(variables)}
    return save(arrays, {"firesteel": json.dumps(note)})


def _load(variables: Sequence[Any], data: bytes, what: str) -> None:
    try:
        found = load(data)
    except SafetensorError as error:
        raise CheckpointError(f"the state cannot be read: {error}") from error
    arrays = [found[name] for name in sorted(found)]
    shapes, own = [array.shape for array in arrays], [tuple(variable.shape) for variable in variables]
    if shapes != own:
        raise CheckpointError(f"{what}: {len(arrays)} variables {shapes[:4]}… where there are {len(own)} {own[:4]}…")
    for variable, array in zip(variables, arrays, strict=True):
        variable.assign(array)


def _numpy(variable: Any) -> Any:
    value = variable.numpy() if hasattr(variable, "numpy") else np.asarray(variable)
    return value.astype(np.float32) if str(value.dtype) == "bfloat16" else value
