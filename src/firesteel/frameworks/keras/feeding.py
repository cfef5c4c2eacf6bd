"""A batch as Keras takes it: inputs and labels as an array, a list or a dict; and a model built by their shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from firesteel.core.spec import Batch

__all__ = ["build", "build_metrics", "features", "labels", "shapes_of", "sized"]

Array = npt.NDArray[Any]


def features(model: Any, batch: Batch) -> Any:
    """The inputs: an array, a list of them, or a dict by name; flat rows in the shape that the model takes."""
    found = _structure(batch, "x")
    inputs = getattr(model, "inputs", None) or []
    if isinstance(found, dict):
        by_name = {tensor.name: tensor for tensor in inputs}
        return {name: _shaped(values, by_name.get(name)) for name, values in found.items()}
    if isinstance(found, list):
        tensors = inputs if len(inputs) == len(found) else [None] * len(found)
        return [_shaped(values, tensor) for values, tensor in zip(found, tensors, strict=True)]
    return _shaped(found, inputs[0] if len(inputs) == 1 else None)


def labels(model: Any, batch: Batch) -> Any:
    """The labels, in the structure of the model's outputs; ``None`` where there are none."""
    found = _structure(batch, "y")
    functional = getattr(model, "_functional", None) or model  # a Sequential has one inside
    outputs = getattr(functional, "_outputs_struct", None)
    if found is None or outputs is None:
        return found
    if isinstance(outputs, dict) and not isinstance(found, dict):
        listed = found if isinstance(found, list) else [found]
        found = dict(zip(outputs, listed, strict=True)) if len(listed) == len(outputs) else found
    if isinstance(found, dict) and isinstance(outputs, dict):
        return {name: _columned(values, outputs.get(name)) for name, values in found.items()}
    if isinstance(found, list) and isinstance(outputs, (list, tuple)) and len(found) == len(outputs):
        return [_columned(values, tensor) for values, tensor in zip(found, outputs, strict=True)]
    return found if isinstance(found, (list, dict)) else _columned(found, outputs)


def shapes_of(batch: Batch, letter: str | None = None) -> list[list[Any]]:
    """Names, dtypes and shapes of a batch's tensors (those whose names begin so), without rows."""
    return [[name, v.dtype.str, list(v.shape[1:])] for name, v in batch.items() if letter in (None, name[0])]


def sized(shapes: Sequence[Sequence[Any]], rows: int = 1) -> Batch:
    """A batch of zeros, or of empty strings, of these shapes."""
    empty = {name: b"" if np.dtype(dtype) == object else 0 for name, dtype, _ in shapes}
    return {name: np.full((rows, *shape), empty[name], dtype) for name, dtype, shape in shapes}


def build(model: Any, inputs: Sequence[Sequence[Any]]) -> None:
    """Build a model for inputs of these names, dtypes and shapes."""
    model(features(model, sized(inputs)))


def build_metrics(model: Any, about: Sequence[Sequence[Any]]) -> None:
    """Build a model's metrics as they are after rows of these names, dtypes and shapes."""
    batch = sized(about)
    x = features(model, batch)
    if not model.built:
        model(x)
    weights = np.ones(1, np.float32) if "w" in batch else None
    model._symbolic_build(data_batch=(x, labels(model, batch), weights))


def _structure(batch: Batch, letter: str) -> Any:
    named = {name[2:]: _float(value) for name, value in batch.items() if name.startswith(f"{letter}.")}
    if named:
        return named
    listed = [_float(batch[name]) for name in batch if name[0] == letter and name[1:].isdigit()]
    return None if not listed else listed[0] if len(listed) == 1 else listed


def _columned(values: Any, output: Any) -> Any:
    """Labels of one number a row as a column, where the output is one: some metrics insist."""
    shape = getattr(output, "shape", None)
    is_column = shape is not None and len(shape) == values.ndim + 1 and shape[-1] == 1
    return values[..., None] if is_column else values


def _shaped(values: Any, tensor: Any) -> Any:
    """Rows in the shape of the model's input, where they have as many numbers: flat images, numbers for a width of 1.

    Anything else stays for Keras to judge.
    """
    if values is not None and tensor is not None and None not in tensor.shape[1:]:
        shape = tuple(int(axis) for axis in tensor.shape[1:])
        is_flat = values.ndim <= 2 and values.ndim != len(shape) + 1
        if is_flat and int(np.prod(values.shape[1:])) == int(np.prod(shape)):
            values = values.reshape(len(values), *shape)
    # Keras knows strings as its backend's tensors alone.
    is_text = values is not None and values.dtype == object
    return keras.ops.convert_to_tensor(values, "string") if is_text else values


def _float(values: Array) -> Array:
    """Real numbers in Keras's own precision, as its data adapters have them."""
    return values.astype(keras.config.floatx(), copy=False) if values.dtype.kind == "f" else values
