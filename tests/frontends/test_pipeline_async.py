"""``SparkAsyncDL``: which rows make which push, that each counts once, and what comes of it."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from firesteel.pipeline import SparkAsyncDL, build_graph

tf: Any = __import__("tensorflow").compat.v1


def line() -> Any:
    """out = w·x and the loss is its mean: with x = 1 each push of gradient descent moves w by the rate."""
    x = tf.placeholder(tf.float32, [None, 1], name="x")
    w = tf.Variable(0.0, name="w")
    out = tf.multiply(x, w, name="out")
    return tf.reduce_mean(out)


@pytest.fixture(scope="module")
def graph() -> str:
    return build_graph(line)


def ones(spark: SparkSession, *counts: int) -> DataFrame:
    """Rows of 1.0 in partitions of these sizes."""
    rdd = spark.sparkContext.parallelize(range(len(counts)), len(counts))
    return spark.createDataFrame(rdd.flatMap(lambda place: [(1.0,)] * counts[place]), "x double")


def stage(graph: str, **params: Any) -> SparkAsyncDL:
    settings = {"inputCol": "x", "tfOutput": "out:0", "tfOptimizer": "gradient_descent", "tfLearningRate": 0.5}
    return SparkAsyncDL(tensorflowGraph=graph, **{**settings, **params})


def weight(model: Any) -> float:
    (found,) = model.getWeights()
    assert found.shape == ()
    return float(found)


def test_slices(spark: SparkSession, graph: str) -> None:
    for lock in (False, True):
        model = stage(graph, miniBatchSize=30, iters=3, acquireLock=lock).fit(ones(spark, 100))
        assert weight(model) == -6.0
        assert model.getInputCol() == "x"
        assert [row.predicted for row in model.transform(ones(spark, 2)).collect()] == [-6.0, -6.0]
