"""Stages that earlier versions wrote are read by this one (``fixtures/README.md``)."""

from __future__ import annotations

from pathlib import Path

from pyspark.ml import PipelineModel
from pyspark.sql import SparkSession
from safetensors.numpy import load_file
from torch import nn

from firesteel.pipeline import DLEstimator, SparkAsyncDL

FOLDER = Path(__file__).parent / "fixtures" / "pipeline_v1"


def test_version_1(spark: SparkSession) -> None:
    df = spark.createDataFrame([(1.0,), (-2.0,)], "x double").coalesce(1)
    rows = PipelineModel.load(str(FOLDER / "models")).transform(df).collect()
    assert [(row.torch, row.keras, row.graph) for row in rows] == [(2.5, 2.5, 3.0), (-3.5, -3.5, -6.0)]
    estimator = DLEstimator.load(str(FOLDER / "dl_estimator"))
    assert (estimator.getEpochs(), estimator._given.config) == (4, {"width": 3})
    assert isinstance(estimator._parts["loss"], nn.CrossEntropyLoss)
    assert SparkAsyncDL.load(str(FOLDER / "spark_async_dl")).getIters() == 7


def test_weights_open_without_spark() -> None:
    (place,) = (FOLDER / "models" / "stages").glob("2_*")
    assert load_file(place / "weights.safetensors")["w"] == 3.0
