"""The Estimator behind a stage: told how many replicas there are, and given rows as the model wants them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from firesteel.cluster.preflight import nodes
from firesteel.data.arrow import Column
from firesteel.data.reading import Reading
from firesteel.data.sources import Columns, Frame, Source
from firesteel.frontends.training import TrainingEstimator

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["StageTraining", "as_real"]


class StageTraining(TrainingEstimator):
    """Comes before the framework's own Estimator among a class's bases."""

    asked_replicas = 0

    @abstractmethod
    def _adapted(self, reading: Reading) -> Reading:
        """How rows are brought into the model's shapes and types."""

    def _world(self, spark: SparkSession) -> int:
        return self.asked_replicas or nodes(spark)

    def _source(self, data: Any, columns: Columns, *, counts_inputs: bool) -> Source:
        source = super()._source(data, columns, counts_inputs=counts_inputs)
        return replace(source, reading=self._adapted(source.reading)) if isinstance(source, Frame) else source


def as_real(columns: Sequence[Column]) -> tuple[Column, ...]:
    """Whole numbers and booleans as real numbers; images stay what they are."""
    return tuple(
        replace(each, dtype="float32") if each.kind != "image" and each.dtype in ("int64", "bool") else each
        for each in columns
    )
