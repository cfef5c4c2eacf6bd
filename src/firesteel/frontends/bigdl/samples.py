"""Rows as BigDL's users hold them: ``Sample``, ``JTensor``, and what an evaluation gives back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from firesteel.core.errors import PlanError, UnsupportedError

__all__ = ["EvaluatedResult", "JTensor", "Sample", "sample_row"]

Array = npt.NDArray[Any]


class JTensor:
    """An array under BigDL's name."""

    def __init__(self, storage: Any, shape: Any, bigdl_type: str = "float", indices: Any = None) -> None:
        if indices is not None:
            raise UnsupportedError("sparse tensors are not offered; give a dense array")
        dtype = np.float64 if bigdl_type == "double" else np.float32
        self.storage: Array = np.asarray(storage, dtype).reshape(-1)
        self.shape: Array = np.asarray(shape, np.int32).reshape(-1)
        self.bigdl_type = bigdl_type

    @classmethod
    def from_ndarray(cls, a_ndarray: Any, bigdl_type: str = "float") -> JTensor | None:
        """From an array; ``None`` gives ``None``."""
        if a_ndarray is None:
            return None
        array = np.asarray(a_ndarray)
        return cls(array, array.shape, bigdl_type)

    @classmethod
    def sparse(cls, *args: Any, **kwargs: Any) -> JTensor:
        """Not offered."""
        raise UnsupportedError("sparse tensors are not offered; give a dense array")

    def to_ndarray(self) -> Array:
        """The array."""
        return self.storage.reshape(tuple(self.shape))

    def __repr__(self) -> str:
        return f"JTensor(shape={tuple(self.shape.tolist())})"


class Sample:
    """One row: features and labels, each an array or several."""

    def __init__(self, features: Any, labels: Any, bigdl_type: str = "float") -> None:
        self.features: list[Array] = [_array(each) for each in _listed(features)]
        self.labels: list[Array] = [_array(each) for each in _listed(labels)]
        self.bigdl_type = bigdl_type

    @classmethod
    def from_ndarray(cls, features: Any, labels: Any, bigdl_type: str = "float") -> Sample:
        """From arrays, or lists of arrays; a label may be a number.

        Raises:
            PlanError: something else than arrays of numbers.
        """
        return cls(features, labels, bigdl_type)

    @property
    def feature(self) -> Array:
        """The first of the features."""
        return self.features[0]

    @property
    def label(self) -> Array:
        """The first of the labels."""
        return self.labels[0]

    def __repr__(self) -> str:
        shapes = [tuple(each.shape) for each in self.features], [tuple(each.shape) for each in self.labels]
        return f"Sample(features={shapes[0]}, labels={shapes[1]})"


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    is_many = isinstance(value, (list, tuple)) and any(isinstance(each, (np.ndarray, JTensor)) for each in value)
    return list(value) if is_many else [value]


def _array(value: Any) -> Array:
    array = np.asarray(value.to_ndarray() if isinstance(value, JTensor) else value)
    if array.dtype.kind not in "biuf":
        raise PlanError(f"a Sample holds arrays of numbers, not {type(value).__qualname__}")
    return array.astype(np.float32) if array.dtype == np.float64 else array


def sample_row(sample: Any) -> dict[str, Any]:
    """A sample as the data room takes a row: ``{"x": …, "y": …}``. Runs in tasks."""
    if not isinstance(sample, Sample):
        raise PlanError(f"an RDD of Sample is needed, not of {type(sample).__qualname__}; see Sample.from_ndarray")
    row: dict[str, Any] = {"x": sample.features if len(sample.features) > 1 else sample.feature}
    if sample.labels:
        row["y"] = sample.labels if len(sample.labels) > 1 else sample.label
    return row


@dataclass(frozen=True)
class EvaluatedResult:
    """A validation method's value over so many rows."""

    result: float
    total_num: int
    method: str
