"""Outputs of a model as Spark ML's columns: numbers as doubles, rows as vectors, classes and probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from firesteel.core.errors import SchemaError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

__all__ = ["Finish", "check_new"]

Array = npt.NDArray[Any]
Outputs = dict[str, Any]


@dataclass(frozen=True)
class Finish:
    """What ``transform`` makes of outputs, called in tasks. ``columns`` are the names, in order.

    Attributes:
        columns: one for each output; with a task, the prediction's alone.
        task: ``raw``, ``binary`` or ``multiclass``.
        threshold: a probability from which on a row counts as positive.
        from_logits: whether the model ends before softmax or sigmoid.
        raw, probability: names of further columns, of vectors; empty for none.
        is_array: arrays of floats in the place of doubles and vectors.
    """

    columns: tuple[str, ...]
    task: str = "raw"
    threshold: float = 0.5
    from_logits: bool = False
    raw: str = ""
    probability: str = ""
    is_array: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """All columns that are added, in order."""
        return (*(name for name in (self.raw, self.probability) if name), *self.columns)

    def __call__(self, outputs: Outputs) -> Outputs:
        """Arrays by column: (rows,) of doubles, (rows, k) for vectors, or floats of any shape for arrays."""
        arrays = _leaves(outputs)
        if len(arrays) != len(self.columns):
            raise SchemaError(
                f"the model has {len(arrays)} outputs, but {len(self.columns)} columns are named for them: "
                f"{', '.join(self.columns)}"
            )
        if self.task == "raw":
            return {name: self._plain(array) for name, array in zip(self.columns, arrays, strict=True)}
        return self._judged(arrays[0])

    def known_schema(self) -> StructType | None:
        """The columns' types, where they do not depend on the model's outputs."""
        if self.task == "raw":
            return None
        from pyspark.ml.linalg import VectorUDT
        from pyspark.sql.types import DoubleType, StructField, StructType

        vectors = [StructField(name, VectorUDT()) for name in (self.raw, self.probability) if name]
        return StructType([*vectors, StructField(self.columns[0], DoubleType())])

    def schema(self, finished: Outputs) -> StructType:
        """The columns' types for outputs that were finished."""
        from pyspark.ml.linalg import VectorUDT
        from pyspark.sql.types import ArrayType, DataType, DoubleType, FloatType, StructField, StructType

        fields = []
        for name, array in finished.items():
            kind: DataType = DoubleType() if array.ndim == 1 else VectorUDT()
            if self.is_array and name in self.columns:
                kind = FloatType()
                for _ in range(array.ndim - 1):
                    kind = ArrayType(kind, False)
            fields.append(StructField(name, kind))
        return StructType(fields)

    def _plain(self, array: Array) -> Array:
        if self.is_array:
            return (array[:, None] if array.ndim == 1 else array).astype(np.float32)
        flat = _numbers(array).reshape(len(array), -1)
        return flat[:, 0] if flat.shape[1] == 1 else flat

    def _judged(self, array: Array) -> Outputs:
        scores = _numbers(array).reshape(len(array), -1)
        if self.task == "multiclass":
            raw, probability = scores, _softmax(scores) if self.from_logits else scores
            # Of the scores themselves: a softmax may round two of them to the same.
            prediction = scores.argmax(axis=1).astype(np.float64)
        else:
            raw, probability = self._two_sided(scores)
            prediction = (probability[:, 1] >= self.threshold).astype(np.float64)
        further = {self.raw: raw, self.probability: probability}
        return {**{name: value for name, value in further.items() if name}, self.columns[0]: prediction}

    def _two_sided(self, scores: Array) -> tuple[Array, Array]:
        """One number for each row, or two, as scores and probabilities of both classes."""
        if scores.shape[1] == 2:
            return scores, _softmax(scores) if self.from_logits else scores
        if scores.shape[1] != 1:
            raise SchemaError(
                f"task='binary' needs an output of one or two numbers for each row, not {scores.shape[1]}"
            )
        if self.from_logits:
            positive = 1.0 / (1.0 + np.exp(-np.clip(scores, -700, 700)))
            return np.hstack([-scores, scores]), np.hstack([1.0 - positive, positive])
        both = np.hstack([1.0 - scores, scores])
        return both, both


def check_new(df: DataFrame, added: Sequence[str]) -> None:
    """``SchemaError`` where a column that is to be added is there already, or twice among them."""
    is_exact = str(df.sparkSession.conf.get("spark.sql.caseSensitive", "false")) == "true"
    seen = {name if is_exact else name.lower() for name in df.columns}
    for name in added:
        key = name if is_exact else name.lower()
        if key in seen:
            raise SchemaError(
                f"the DataFrame has a column {name!r} already, or two outputs would have that name; "
                f"choose another one, or drop it",
                column=name,
            )
        seen.add(key)


def _numbers(array: Array) -> Array:
    if array.dtype.kind not in "biuf":
        raise SchemaError(f"an output of dtype {array.dtype} does not become a column of numbers")
    return array.astype(np.float64)


def _softmax(scores: Array) -> Array:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    found: Array = powers / powers.sum(axis=1, keepdims=True)
    return found


def _leaves(outputs: Any) -> list[Array]:
    """Outputs in order, also of nested ones."""
    if isinstance(outputs, dict):
        return [leaf for part in outputs.values() for leaf in _leaves(part)]
    return [np.asarray(outputs)]
