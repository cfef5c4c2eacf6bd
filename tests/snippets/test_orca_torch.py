"""The Orca document's section 3, as it stands there; only imports and the data are ours."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from pyspark.sql import SparkSession
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from firesteel.data.shards import XShards
from firesteel.learn.pytorch import Estimator

IMAGES = np.random.default_rng(0).random((24, 1, 28, 28)).astype(np.float32)
DIGITS = np.arange(24) % 10
args = SimpleNamespace(lr=1e-2, epochs=1)


class LeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 5, stride=3)
        self.out = nn.Linear(4 * 8 * 8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(self.out(torch.relu(self.conv(x)).flatten(1)), dim=1)


def train_loader_func(config: dict[str, Any], batch_size: int) -> DataLoader:
    return DataLoader(TensorDataset(torch.from_numpy(IMAGES), torch.from_numpy(DIGITS)), batch_size=batch_size)


@pytest.mark.usefixtures("spark")
def test_bigdl_backend(spark: SparkSession) -> None:
    train_loader = train_loader_func({}, 8)
    xshards = XShards(spark.sparkContext.parallelize([{"x": IMAGES[:10]}, {"x": IMAGES[10:]}], 2))

    model = LeNet()  # a torch.nn.Module
    model.train()
    criterion = nn.NLLLoss()

    adam = torch.optim.Adam(model.parameters(), args.lr)
    est = Estimator.from_torch(model=model, optimizer=adam, loss=criterion)

    history = est.fit(data=train_loader, epochs=args.epochs)
    predictions = est.predict(xshards)

    assert [record["batch_count"] for record in history] == [3]
    found = np.concatenate([shard["prediction"] for shard in predictions.collect()])
    model.eval()
    with torch.no_grad():
        np.testing.assert_allclose(found, model(torch.from_numpy(IMAGES)), atol=1e-5)


@pytest.mark.parametrize("is_instance", [False, True])
def test_torch_distributed_backend(spark: SparkSession, is_instance: bool) -> None:
    rows = [(image.tolist(), int(digit)) for image, digit in zip(IMAGES, DIGITS, strict=True)]
    df = spark.createDataFrame(rows, "image array<array<array<float>>>, digit int").repartition(2)

    def model_creator(config: dict[str, Any]) -> nn.Module:
        model = LeNet()  # a torch.nn.Module
        model.train()
        return model

    def optimizer_creator(model: nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), config["lr"])

    model = LeNet() if is_instance else model_creator  # the document writes model=model
    est = Estimator.from_torch(
        model=model,
        optimizer=optimizer_creator,
        loss=nn.NLLLoss(),
        config={"lr": 1e-2},
        backend="torch_distributed",
        workers_per_node=2,
    )

    history = est.fit(data=train_loader_func, epochs=args.epochs)
    predictions = est.predict(data=df, feature_cols=["image"])

    assert [(record["batch_count"], record["num_samples"]) for record in history] == [(1, 24)]
    assert predictions.columns == ["image", "digit", "prediction"]
    assert {len(row.prediction) for row in predictions.collect()} == {10}
    assert (est.get_model() is model) == is_instance
