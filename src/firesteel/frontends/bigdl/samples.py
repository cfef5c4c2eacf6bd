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
    """An array under BigDL's name. NumPy reads it as an array."""

    def __init__(self, storage: Any, shape: Any, bigdl_type: str = "float", indices: Any = None) -> None:
        if indices is not None:
            raise UnsupportedError(_NO_SPARSE)
        self._array = _numbers(storage, bigdl_type).reshape(tuple(np.atleast_1d(np.asarray(shape, int)).tolist()))
        self.bigdl_type = bigdl_type

    @classmethod
    def from_ndarray(cls, a_ndarray: Any, bigdl_type: str = "float") -> JTensor | None:
        """From an array; ``None`` gives ``None``. Whole numbers stay whole."""
        if a_ndarray is None:
            return None
        array = np.asarray(a_ndarray)
        return cls(array, array.shape, bigdl_type)

    @classmethod
    def sparse(cls, *args: Any, **kwargs: Any) -> JTensor:
        """Not offered."""
        raise UnsupportedError(_NO_SPARSE)

    @property
    def storage(self) -> Array:
        """The numbers in a row."""
        return self._array.reshape(-1)

    @property
    def shape(self) -> Array:
        """The shape."""
        return np.array(self._array.shape, np.int32)

    def to_ndarray(self) -> Array:
        """The array."""
        return self._array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self._array, dtype=dtype, copy=copy or None)

    def __repr__(self) -> str:
        return f"JTensor(shape={self._array.shape}, {self._array.dtype})"


_NO_SPARSE = "sparse tensors are not offered; give a dense array"


def _numbers(value: Any, bigdl_type: str) -> Array:
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise PlanError(f"arrays of numbers are needed, not {type(value).__qualname__}")
    if array.dtype.kind == "f":
        return array.astype(np.float64 if bigdl_type == "double" else np.float32)
    return array


class Sample:
    """One row: features and labels, each one array or several.

    Attributes:
        features, labels: lists of `JTensor`.
    """

    def __init__(self, features: Any, labels: Any, bigdl_type: str = "float") -> None:
        self.features: list[JTensor] = [_tensor(each, bigdl_type) for each in _listed(features)]
        self.labels: list[JTensor] = [_tensor(each, bigdl_type) for each in _listed(labels)]
        if not self.features:
            raise PlanError("a Sample needs features")
        self.bigdl_type = bigdl_type

    @classmethod
    def from_ndarray(cls, features: Any, labels: Any, bigdl_type: str = "float") -> Sample:
        """From arrays, or lists of arrays; a label may be a number.

        Raises:
            PlanError: something else than arrays of numbers.
        """
        return cls(features, labels, bigdl_type)

    @classmethod
    def from_jtensor(cls, features: Any, labels: Any, bigdl_type: str = "float") -> Sample:
        """From `JTensor`, or lists of them."""
        return cls(features, labels, bigdl_type)

    @property
    def feature(self) -> JTensor:
        """The first of the features."""
        return self.features[0]

    @property
    def label(self) -> JTensor:
        """The first of the labels."""
        return self.labels[0]

    def __repr__(self) -> str:
        return f"Sample(features={self.features}, labels={self.labels})"


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    is_many = isinstance(value, (list, tuple)) and any(isinstance(each, (np.ndarray, JTensor)) for each in value)
    return list(value) if is_many else [value]


def _tensor(value: Any, bigdl_type: str) -> JTensor:
    if isinstance(value, JTensor):
        return value
    array = np.asarray(value)
    return JTensor(array, array.shape, bigdl_type)


def sample_row(sample: Any) -> dict[str, Any]:
    """A sample as the data room takes a row: ``{"x": …, "y": …}``. Runs in tasks."""
    if not isinstance(sample, Sample):
        raise PlanError(f"an RDD of Sample is needed, not of {type(sample).__qualname__}; see Sample.from_ndarray")
    row = {"x": _row_part(sample.features)}
    return {**row, "y": _row_part(sample.labels)} if sample.labels else row


def _row_part(tensors: list[JTensor]) -> Any:
    arrays = [tensor.to_ndarray() for tensor in tensors]
    return arrays if len(arrays) > 1 else arrays[0]


@dataclass(frozen=True)
class EvaluatedResult:
    """A validation method's value over so many rows."""

    result: float
    total_num: int
    method: str
