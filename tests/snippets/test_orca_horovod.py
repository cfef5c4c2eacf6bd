"""The Orca document's section 3 with ``backend="horovod"``, as it stands there; only imports and the data are ours."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from pyspark.sql import SparkSession
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from needs import need_horovod

need_horovod()

from firesteel.learn.pytorch import Estimator  # noqa: E402

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


def test_horovod_backend(spark: SparkSession) -> None:
    rows = [(image.tolist(), int(digit)) for image, digit in zip(IMAGES, DIGITS, strict=True)]
    df = spark.createDataFrame(rows, "image array<array<array<float>>>, digit int").repartition(2)

    def model_creator(config: dict[str, Any]) -> nn.Module:
        model = LeNet()  # a torch.nn.Module
        model.train()
        return model

    def optimizer_creator(model: nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), config["lr"])

    est = Estimator.from_torch(
        model=model_creator,
        optimizer=optimizer_creator,
        loss=nn.NLLLoss(),
        config={"lr": 1e-2},
        backend="horovod",
        workers_per_node=2,
    )

    for data, columns in ((train_loader_func, {}), (df, {"feature_cols": ["image"], "label_cols": ["digit"]})):
        history = est.fit(data=data, epochs=args.epochs, **columns)
        assert [(record["batch_count"], record["num_samples"]) for record in history] == [(1, 24)]
    predictions = est.predict(data=df, feature_cols=["image"])
    assert {len(row.prediction) for row in predictions.collect()} == {10}
