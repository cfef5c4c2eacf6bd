"""What a tensor looks like before there is one: name, dtype and per-row shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Batch", "Signature", "TensorSpec", "as_batch", "batch_of", "describe", "example_of", "rows_of"]

Batch = dict[str, npt.NDArray[Any]]
"""Named arrays with one leading length: the rows."""


@dataclass(frozen=True)
class TensorSpec:
    """One named tensor of a batch.

    ``shape`` is a row's shape, without the leading number of rows; ``None`` stands for a dimension
    that is not known before the data is seen.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...] = ()

    @property
    def is_known(self) -> bool:
        """Whether every dimension has a number."""
        return None not in self.shape

    @property
    def row_bytes(self) -> int:
        """Bytes that one row takes in a block. Needs ``is_known``."""
        size = np.dtype(self.dtype).itemsize
        for length in self.shape:
            assert length is not None, f"{self.name} has an unknown dimension"
            size *= length
        return size

    def with_shape(self, shape: tuple[int, ...]) -> TensorSpec:
        """The same tensor with the shape that the data turned out to have."""
        return TensorSpec(self.name, self.dtype, shape)

    def __str__(self) -> str:
        dims = ", ".join("?" if length is None else str(length) for length in self.shape)
        return f"{self.name}: {self.dtype}({dims})"


@dataclass(frozen=True)
class Signature:
    """The tensors of a batch, in order. Names are unique."""

    tensors: tuple[TensorSpec, ...]

    def __iter__(self) -> Iterator[TensorSpec]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors' names, in order."""
        return tuple(tensor.name for tensor in self.tensors)

    @property
    def row_bytes(self) -> int:
        """Bytes that one row takes over all tensors."""
        return sum(tensor.row_bytes for tensor in self.tensors)


def batch_of(x: Any, y: Any = None, w: Any = None, *, convert: Callable[[Any], npt.NDArray[Any]] = np.asarray) -> Batch:
    """Features, labels and row weights under the names that replicas know them by.

    A single array is ``x0``, a list or tuple ``x0, x1, …``, a dict ``x.key, …``; labels have ``y`` in place of ``x``;
    weights are ``w``.
    """
    batch = _named("x", x, convert)
    if y is not None:
        batch |= _named("y", y, convert)
    if w is not None:
        batch["w"] = convert(w)
    return batch


def as_batch(
    element: Any, has_labels: bool, inputs: int = 1, *, convert: Callable[[Any], npt.NDArray[Any]] = np.asarray
) -> Batch:
    """What a loader yields, ``(x, y[, w])``, ``{"x": …}`` or ``x`` alone, as a batch."""
    if isinstance(element, dict) and "x" in element and set(element) <= {"x", "y", "w"}:
        element = tuple(element[key] for key in ("x", "y", "w") if key in element)
    if isinstance(element, dict) or not isinstance(element, (tuple, list)):
        return batch_of(element, convert=convert)
    if not has_labels or len(element) == 1:
        is_whole = inputs <= 1 or isinstance(element[0], (dict, list, tuple))
        return batch_of(element[0] if is_whole else list(element[:inputs]), convert=convert)
    return batch_of(*element[:3], convert=convert)


def _named(letter: str, value: Any, convert: Callable[[Any], npt.NDArray[Any]]) -> Batch:
    if isinstance(value, dict):
        return {f"{letter}.{key}": convert(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return {f"{letter}{index}": convert(part) for index, part in enumerate(value)}
    return {f"{letter}0": convert(value)}


def rows_of(batch: Batch) -> int:
    """The one leading length of a batch."""
    return len(next(iter(batch.values())))


def describe(batch: Batch) -> list[list[Any]]:
    """Name, dtype and row shape of each of the batch's features, as plain values."""
    return [[name, values.dtype.str, list(values.shape[1:])] for name, values in batch.items() if name[0] == "x"]


def example_of(description: list[list[Any]], rows: int) -> Batch:
    """Features of zeros that look as ``describe`` said."""
    return {name: np.zeros((rows, *shape), dtype) for name, dtype, shape in description}
