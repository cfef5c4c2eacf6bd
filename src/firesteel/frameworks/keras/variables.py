"""Keras variables as NumPy, whichever backend holds them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["numpy_of"]


def numpy_of(variable: Any) -> npt.NDArray[Any]:
    """A copy of a variable's values."""
    # Not ops.convert_to_numpy: it asks TensorFlow's variables in a way that NumPy 2 warns of.
    value = getattr(variable, "value", variable)
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    found = value.numpy() if hasattr(value, "numpy") else np.asarray(value)
    return np.array(found)
