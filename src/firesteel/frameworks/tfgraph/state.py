"""Values of variables as safetensors, under the variables' names. No pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from firesteel.core.errors import CheckpointError, PlanError

__all__ = ["header_of", "pack", "unpack"]

Array = npt.NDArray[Any]


def pack(values: Mapping[str, Array], **facts: Any) -> bytes:
    """Arrays by name as one safetensors file; ``facts`` (JSON values) go into its header."""
    arrays, narrow = {}, []
    for name, value in values.items():
        array = np.asarray(value)
        if array.dtype.kind not in "biufV":
            raise PlanError(f"variable {name!r} holds {array.dtype}; only numbers and booleans can be kept")
        if array.dtype.name == "bfloat16":
            narrow.append(name)
            array = array.view(np.uint16)
        # Not ascontiguousarray, which makes a scalar a vector.
        arrays[name] = np.asarray(array, order="C")
    return bytes(save(arrays, {"firesteel": json.dumps({**facts, "bfloat16": narrow})}))


def unpack(data: bytes) -> dict[str, Array]:
    """The reverse."""
    try:
        found = dict(load(data))
    except SafetensorError as error:
        raise CheckpointError(f"not a whole safetensors file: {error}") from error
    for name in header_of(data).get("bfloat16", ()):
        import ml_dtypes  # TensorFlow brings it

        found[name] = found[name].view(ml_dtypes.bfloat16)
    return found


def header_of(data: bytes) -> dict[str, Any]:
    """What ``pack`` was told beside the values."""
    size = int.from_bytes(data[:8], "little")
    text = json.loads(data[8 : 8 + size]).get("__metadata__", {}).get("firesteel", "{}")
    found: dict[str, Any] = json.loads(text)
    return found
