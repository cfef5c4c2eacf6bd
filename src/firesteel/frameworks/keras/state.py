"""A Keras model's state as safetensors: weights under their paths, the optimizer's variables, what inputs look like."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from firesteel.core.errors import CheckpointError, PlanError
from firesteel.frameworks.keras.assets import refresh
from firesteel.frameworks.keras.feeding import build
from firesteel.frameworks.keras.variables import numpy_of

__all__ = ["load_state", "pack_state"]


def pack_state(model: Any, inputs: Any = None, *, with_optimizer: bool = True) -> dict[str, bytes]:
    """A model's weights, with ``inputs``, by which one that is not built yet can be; the optimizer's variables."""
    found = {"model": _pack(model.weights, {"inputs": inputs})}
    optimizer = getattr(model, "optimizer", None)  # which a model that is not compiled has not
    if with_optimizer and optimizer is not None and optimizer.built:
        found["optimizer"] = _pack(model.optimizer.variables, {"class": type(model.optimizer).__name__})
    return found


def load_state(model: Any, state: dict[str, bytes]) -> None:
    """Put a packed state into a model and its optimizer; one that it does not fit stays as it was."""
    if not model.built:
        inputs = _header(state["model"]).get("inputs")
        if inputs is None:
            raise PlanError("the model is not built, and its saved state does not say what its inputs look like")
        build(model, inputs)
    weights = _fitting(model.weights, state["model"], "these weights are of another model")
    slots: list[tuple[Any, Any]] = []
    if "optimizer" in state and getattr(model, "optimizer", None) is not None:
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        what = "the optimizer's state is that of another optimizer"
        slots = _fitting(model.optimizer.variables, state["optimizer"], what)
    for variable, array in (*weights, *slots):
        variable.assign(array)
    refresh(model)


def _header(data: bytes) -> dict[str, Any]:
    size = int.from_bytes(data[:8], "little")
    text = json.loads(data[8 : 8 + size]).get("__metadata__", {}).get("firesteel", "{}")
    found: dict[str, Any] = json.loads(text)
    return found


def _pack(variables: Sequence[Any], note: dict[str, Any]) -> bytes:
    arrays = {f"{place:05d}/{v.path}": np.asarray(_numpy(v), order="C") for place, v in enumerate(variables)}
    return save(arrays, {"firesteel": json.dumps(note)})


def _fitting(variables: Sequence[Any], data: bytes, what: str) -> list[tuple[Any, Any]]:
    try:
        found = load(data)
    except SafetensorError as error:
        raise CheckpointError(f"the state cannot be read: {error}") from error
    arrays = [found[name] for name in sorted(found)]
    shapes, own = [array.shape for array in arrays], [tuple(variable.shape) for variable in variables]
    if shapes != own:
        raise CheckpointError(f"{what}: {len(arrays)} variables {shapes[:4]}… where there are {len(own)} {own[:4]}…")
    return list(zip(variables, arrays, strict=True))


def _numpy(variable: Any) -> Any:
    value = numpy_of(variable)
    return value.astype(np.float32) if str(value.dtype) == "bfloat16" else value
