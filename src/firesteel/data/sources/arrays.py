"""ndarrays on the driver: ``(x, y)``, ``(x, y, w)``, ``{"x": …, "y": …}``; for prediction ``x`` alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from firesteel.core.errors import PlanError, SchemaError
from firesteel.core.spec import Batch, batch_of
from firesteel.data.reading import check_inputs, check_weights
from firesteel.data.sources.kinds import Asked, Columns, Local

__all__ = ["batch_from", "check_arrays", "is_arrays", "take"]


def take(data: Any, asked: Asked) -> Local | None:
    """Arrays, checked."""
    batch = batch_from(data, asked.columns, takes_strings=asked.takes_strings)
    if batch is None:
        return None
    if asked.counts_inputs:
        check_arrays(batch, asked.inputs())
    return Local(batch)


def batch_from(data: Any, columns: Columns, *, takes_strings: bool = False) -> Batch | None:
    """``(x, y)``, ``(x, y, w)``, ``{"x": …}``; for prediction ``x`` alone, a list for several inputs."""
    if columns.verb == "prediction":
        if isinstance(data, dict):
            data = data.get("x", data)
        elif isinstance(data, tuple) and data and isinstance(data[0], (list, dict)):
            data = data[0]
        batch = batch_of(data, convert=np.asarray) if is_arrays(data) else None
    elif isinstance(data, dict) and "x" in data and "y" in data:
        parts = [data[key] for key in ("x", "y", "w") if key in data]
        batch = batch_of(*parts) if is_arrays(parts) else None
    elif isinstance(data, (tuple, list)) and len(data) in (2, 3) and is_arrays(list(data)):
        batch = batch_of(*data)
    else:
        batch = None
    if batch is not None:
        _check_batch(batch, takes_strings)
    return batch


def is_arrays(value: Any) -> bool:
    """Whether this is an ndarray with rows, or lists, tuples and dicts of such."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return bool(value) and all(is_arrays(part) for part in value)
    return isinstance(value, np.ndarray) and value.ndim > 0


def check_arrays(batch: Batch, inputs: tuple[int, int | None]) -> None:
    """Whether there are as many feature arrays as inputs; a dict of them may also be one input as it is."""
    features = [name for name in batch if name.startswith("x")]
    if "." in features[0] and inputs[0] <= 1:
        return
    check_inputs(len(features), inputs, "feature arrays")


def _check_batch(batch: Batch, takes_strings: bool) -> None:
    lengths = {name: len(values) for name, values in batch.items()}
    if len(set(lengths.values())) > 1:
        raise PlanError(f"arrays must have the same size in first dimension: {lengths}")
    for name, values in batch.items():
        if takes_strings and values.dtype.kind in "OUS":
            batch[name] = values.astype(object)
        elif values.dtype == object or values.dtype.kind in "USMm":
            raise SchemaError(f"array {name!r} has dtype {values.dtype}; numbers and booleans can be fed", column=name)
    if "w" in batch:
        check_weights(batch["w"], "w")
