"""A layer used as a model: predict and evaluate, on arrays in this process and on RDDs of ``Sample``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from firesteel.core.errors import PlanError
from firesteel.core.metrics import as_metrics
from firesteel.core.plan import positive
from firesteel.core.spec import Batch, batch_of
from firesteel.data.sources import is_rdd
from firesteel.engine.alone import fold_batch, score_batch
from firesteel.engine.outputs import contained
from firesteel.frontends.bigdl.described import bench
from firesteel.frontends.bigdl.layer import Layer
from firesteel.frontends.bigdl.samples import EvaluatedResult, sample_row

__all__ = ["classes", "evaluate", "evaluate_data", "predict", "predict_distributed", "predict_local", "predict_rows"]

_ROWS = 256


def predict(model: Layer, features: Any, batch_size: int) -> Any:
    """Arrays in this process, RDDs where they are."""
    return (predict_distributed if is_rdd(features) else predict_local)(model, features, batch_size)


def predict_local(model: Layer, features: Any, batch_size: int) -> Any:
    """Outputs for arrays, in inference mode; the model's own mode stays as it is."""
    batch = _batch(features)
    module = model.to_torch()
    was_training = module.training
    try:
        replica = bench().replica(bench().capture(module), "cpu", 0)
        return contained(score_batch(replica, batch, _size(batch_size)))
    finally:
        module.train(was_training)


def predict_distributed(model: Layer, rdd: Any, batch_size: int) -> Any:
    """Outputs for an RDD of ``Sample``, as an RDD, lazily and in order."""
    if not is_rdd(rdd):
        raise PlanError(f"predict_distributed takes an RDD of Sample, not {type(rdd).__qualname__}")
    estimator = _estimator(model)
    return estimator.predict(rdd.map(sample_row), batch_size=_size(batch_size))


def predict_rows(model: Layer, data: Any, batch_size: int, is_batches: bool = False) -> Any:
    """Outputs for the rows of an array, an RDD of arrays or a DataFrame, as an RDD, lazily and in order."""
    estimator = _estimator(model)
    size = _size(batch_size)
    if is_rdd(data):
        rows = data.flatMap(_rows_of) if is_batches else data
        return estimator.predict(rows.map(_as_row), batch_size=size)
    from pyspark.sql import SparkSession

    if not hasattr(data, "columns"):
        listed = list(data) if isinstance(data, (list, tuple)) else [data]
        context = SparkSession.builder.getOrCreate().sparkContext
        rows = context.parallelize(list(zip(*listed, strict=True)))
        return estimator.predict(rows.map(_as_row), batch_size=size)
    scored = estimator.predict(data, batch_size=size)
    return scored.select("prediction").rdd.map(_only)


def _as_row(element: Any) -> dict[str, Any]:
    parts = [np.asarray(part) for part in element] if isinstance(element, (list, tuple)) else [np.asarray(element)]
    return {"x": parts if len(parts) > 1 else parts[0]}


def _rows_of(element: Any) -> Any:
    parts = element if isinstance(element, (list, tuple)) else [element]
    return zip(*parts, strict=True)


def _only(row: Any) -> Any:
    return np.asarray(row[0])


def classes(outputs: Any) -> Any:
    """The place of the largest output of each row, from 1; of an RDD, an RDD."""
    if is_rdd(outputs):
        return outputs.map(_class_of)
    return _class_of(outputs)


def _class_of(outputs: Any) -> Any:
    if not isinstance(outputs, np.ndarray):
        raise PlanError("predict_class is for models with one output")
    return outputs.argmax(axis=-1) + 1


def evaluate(model: Layer, dataset: Any, batch_size: Any, val_methods: Any) -> list[EvaluatedResult]:
    """Each validation method's value over all rows."""
    size = positive(batch_size, "batch_size") or _ROWS
    metrics = as_metrics(val_methods)
    if not metrics:
        raise PlanError("evaluate needs validation methods, such as [Top1Accuracy()]")
    if is_rdd(dataset):
        fold = _estimator(model).fold(dataset.map(sample_row), size, metrics)
    elif isinstance(dataset, (tuple, list)) and len(dataset) == 2:
        module = model.to_torch()
        was_training = module.training
        try:
            fold = fold_batch(bench().replica(bench().capture(module), "cpu", 0), _batch(*dataset), size, metrics)
        finally:
            module.train(was_training)
    else:
        raise PlanError(f"evaluate takes an RDD of Sample or (X, Y), not {type(dataset).__qualname__}")
    return [EvaluatedResult(float(value), fold.rows, name) for name, value in fold.figures().items()]


def evaluate_data(
    model: Layer, data: Any, batch_size: Any, val_methods: Any, columns: Mapping[str, Any]
) -> list[EvaluatedResult]:
    """The same for rows of any kind that an estimator takes, with the names of their columns."""
    size = positive(batch_size, "batch_size") or _ROWS
    fold = _estimator(model).fold(data, size, as_metrics(val_methods), **columns)
    return [EvaluatedResult(float(value), fold.rows, name) for name, value in fold.figures().items()]


def _estimator(model: Layer) -> Any:
    from firesteel.frontends.bigdl_estimator import BigDLEstimator

    return BigDLEstimator(model=model)


def _batch(features: Any, labels: Any = None) -> Batch:
    def convert(value: Any) -> Any:
        array = np.asarray(value.to_ndarray() if hasattr(value, "to_ndarray") else value)
        if array.ndim == 0 or array.dtype.kind not in "biuf":
            raise PlanError(f"arrays of rows are needed, not {type(value).__qualname__}")
        return array

    batch = batch_of(features, labels, convert=convert)
    lengths = {name: len(values) for name, values in batch.items()}
    if len(set(lengths.values())) > 1:
        raise PlanError(f"arrays must have the same size in first dimension: {lengths}")
    return batch


def _size(batch_size: Any) -> int:
    return _ROWS if batch_size in (None, -1) else positive(batch_size, "batch_size") or _ROWS
