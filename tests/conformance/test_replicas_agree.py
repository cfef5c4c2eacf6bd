"""N replicas learn what one does: same data, seed and batch, whatever the partitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pyspark.sql import SparkSession
from torch import nn

from exchanges import SETTING, over_the_network
from firesteel import Estimator
from firesteel.core.errors import PlanError


def make_model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))


def make_optimizer(name: str, model: nn.Module) -> torch.optim.Optimizer:
    if name == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return torch.optim.Adam(model.parameters(), lr=0.01)


def rows(count: int) -> list[tuple[list[float], float]]:
    random = np.random.default_rng(0)
    x = random.random((count, 5))
    return [(row.tolist(), float(row[0] - 2 * row[1] + 0.5)) for row in x]


def partitioned(spark: SparkSession, sizes: list[int]):
    """A DataFrame with partitions of exactly these sizes."""
    data = rows(sum(sizes))
    parts, begin = [], 0
    for size in sizes:
        parts.append(data[begin : begin + size])
        begin += size
    rdd = spark.sparkContext.parallelize(range(len(parts)), len(parts)).flatMap(lambda index: parts[index])
    return spark.createDataFrame(rdd, "features array<double>, label double")


def train(df, replicas: int, backend: str, optimizer: str, **options) -> np.ndarray:
    model = make_model()
    est = Estimator.from_torch(
        model=model,
        optimizer=make_optimizer(optimizer, model),
        loss=nn.MSELoss(),
        backend=backend,
        workers_per_node=replicas,
        seed=11,
    )
    est.fit(df, epochs=2, batch_size=8, feature_cols="features", label_cols="label", verbose=0, **options)
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach().numpy()


LAYOUTS = {"uneven and empty": [13, 0, 1, 30, 0, 7], "one partition": [51], "two partitions": [20, 31]}


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_replicas_learn_what_one_does(spark: SparkSession, layout: str, optimizer: str) -> None:
    df = partitioned(spark, LAYOUTS[layout]).cache()
    alone = train(df, 1, "bigdl", optimizer)
    untrained = torch.nn.utils.parameters_to_vector(make_model().parameters()).detach().numpy()
    assert not np.allclose(alone, untrained, atol=1e-2)
    for replicas in (2, 3):
        for backend in ("bigdl", "torch_distributed"):
            np.testing.assert_allclose(train(df, replicas, backend, optimizer), alone, atol=1e-5)


@pytest.mark.parametrize("backend", ["bigdl", "torch_distributed"])
def test_so_they_do_over_the_network(spark: SparkSession, backend: str) -> None:
    df = partitioned(spark, LAYOUTS["uneven and empty"]).cache()
    with over_the_network(spark):
        found = train(df, 2, backend, "adam")
    np.testing.assert_allclose(found, train(df, 1, "bigdl", "adam"), atol=1e-5)


def test_a_setting_that_is_neither_on_nor_off(spark: SparkSession) -> None:
    spark.conf.set(SETTING, "maybe")
    try:
        with pytest.raises(PlanError, match=r"spark\.firesteel\.sharedMemory must be true or false, not 'maybe'"):
            train(partitioned(spark, [8]), 2, "bigdl", "sgd")
    finally:
        spark.conf.unset(SETTING)
