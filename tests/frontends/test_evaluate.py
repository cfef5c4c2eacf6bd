"""``evaluate``: every figure is the one that a single process computes over all rows."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from firesteel import Estimator, XShards
from firesteel.core.errors import PlanError, ReplicaFailed, SchemaError
from firesteel.learn.metrics import AUC, MSE, Accuracy, F1Score
from firesteel.learn.pytorch.callbacks import Callback, MainCallback
from frontends.modules import Apply, Pair, linear

COUNT = 53
random = np.random.default_rng(8)
# Sorted by class: partitions that follow this order are as uneven in their classes as can be.
Y = np.sort((random.random(COUNT) < 0.3).astype(np.float32))
X = (random.random((COUNT, 3)) + 0.4 * Y[:, None]).astype(np.float32)
W = random.random(COUNT).astype(np.float32)


def scorer() -> nn.Module:
    return nn.Sequential(linear(3, 1), nn.Sigmoid())


def distance(preds: Any, targets: Any) -> float:
    """A user's own metric, a mean over rows."""
    return float(np.abs(np.asarray(preds).reshape(-1) - np.asarray(targets).reshape(-1)).mean())


def figures(metric: Any, x: np.ndarray = X, y: np.ndarray = Y) -> float:
    with torch.no_grad():
        metric(scorer()(torch.from_numpy(x)), torch.from_numpy(y))
    return float(metric.compute())


def local_loss(x: np.ndarray = X, y: np.ndarray = Y, w: np.ndarray | None = None) -> float:
    with torch.no_grad():
        rows = nn.BCELoss(reduction="none")(scorer()(torch.from_numpy(x))[:, 0], torch.from_numpy(y)).numpy()
    return float((rows if w is None else rows * w).mean())


def estimator(**parts: Any) -> Any:
    return Estimator.from_torch(**{"model": scorer(), "loss": nn.BCELoss(), "metrics": [Accuracy()], **parts})


def blocks(rows: list[Any], sizes: list[int]) -> list[list[Any]]:
    edges = np.cumsum([0, *sizes]).tolist()
    assert edges[-1] == len(rows)
    return [rows[begin:end] for begin, end in pairwise(edges)]


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> DataFrame:
    rows = [(x.tolist(), float(y), float(w)) for x, y, w in zip(X, Y, W, strict=True)]
    parts = blocks(rows, [0, 1, 30, 0, 20, 2])
    rdd = spark.sparkContext.parallelize(range(len(parts)), len(parts)).flatMap(lambda index: parts[index])
    return spark.createDataFrame(rdd, "x array<double>, y double, w double").cache()


def test_equals_a_single_process(frame: DataFrame) -> None:
    metrics = {"accuracy": Accuracy(), "auc": AUC(), "f1": F1Score(), "distance": distance}
    for replicas, size in ((1, 1000), (2, 4)):
        est = estimator(metrics=metrics, workers_per_node=replicas)
        found = est.evaluate(frame, batch_size=size, feature_cols="x", label_cols="y")
        assert list(found) == ["num_samples", "val_loss", "accuracy", "auc", "f1", "distance"]
        assert found["num_samples"] == COUNT
        assert found["val_loss"] == pytest.approx(local_loss(), abs=1e-6)
        assert found["accuracy"] == pytest.approx(figures(Accuracy()), abs=1e-6)
        assert found["auc"] == pytest.approx(figures(AUC()), abs=1e-6)
        assert found["f1"] == pytest.approx(figures(F1Score()), abs=1e-6)
        with torch.no_grad():
            wanted = distance(scorer()(torch.from_numpy(X)), Y)
        assert found["distance"] == pytest.approx(wanted, abs=1e-6)
        assert all(type(value) in (int, float) for value in found.values())


def test_every_kind_of_data(spark: SparkSession, sc: SparkContext, frame: DataFrame) -> None:
    table = pd.DataFrame({"x": list(X), "y": Y})
    cuts = [slice(0, 1), slice(1, 40), slice(40, 40), slice(40, COUNT)]
    tensors = torch.from_numpy(X), torch.from_numpy(Y)

    def own_rows(config: dict[str, Any], batch_size: int) -> DataLoader:
        assert (config["num_shards"], batch_size) == (2, 5 if config["rank"] == 0 else 4)
        mine = slice(config["rank"], None, config["num_shards"])
        return DataLoader(TensorDataset(tensors[0][mine], tensors[1][mine]), batch_size=batch_size)

    def all_rows(config: dict[str, Any], batch_size: int) -> DataLoader:
        assert config == {"a": 1, "b": 2}
        assert batch_size == 9
        return DataLoader(TensorDataset(*tensors), batch_size=batch_size)

    columns = {"feature_cols": "x", "label_cols": "y"}
    kinds: dict[str, tuple[Any, dict[str, Any]]] = {
        "arrays": ((X, Y), {"batch_size": 9}),
        "arrays of another shape": ((X, Y[:, None]), {}),
        "dict of arrays": ({"x": X, "y": Y}, {}),
        "pandas": (table, columns),
        "dict shards": (XShards(sc.parallelize([{"x": X[c], "y": Y[c]} for c in cuts], 3)), {"batch_size": 9}),
        "tuple shards": (XShards(sc.parallelize([(X[c], Y[c]) for c in cuts], 3)), {}),
        "pandas shards": (XShards(sc.parallelize([table[:20], table[20:]], 2)), columns),
        "loader": (DataLoader(TensorDataset(*tensors), batch_size=9), {}),
        "creator": (all_rows, {"batch_size": 9, "data_config": {"b": 2}}),
        "creator of its own rows": (own_rows, {"batch_size": 9, "auto_shard": False}),
        "creator of arrays": (lambda config, batch_size: (X, Y), {}),
        "creator of a dataset": (lambda config, batch_size: TensorDataset(*tensors), {}),
        "creator of batches": (lambda config, batch_size: [tensors], {}),
        "pairs, stacked": (XShards(sc.parallelize(list(zip(X, Y, strict=True)), 3)).stack_feature_labels(), {}),
    }
    est = estimator(workers_per_node=2, config={"a": 1})
    accuracy = figures(Accuracy())
    for kind, (data, options) in kinds.items():
        found = est.evaluate(data, **options)
        assert found["num_samples"] == COUNT, kind
        assert found["val_loss"] == pytest.approx(local_loss(), abs=1e-6), kind
        assert found["Accuracy"] == pytest.approx(accuracy, abs=1e-6), kind


def test_row_weights(frame: DataFrame, sc: SparkContext) -> None:
    est, wanted = estimator(), pytest.approx(local_loss(w=W), abs=1e-6)
    found = est.evaluate(frame, feature_cols="x", label_cols="y", sample_weight_col="w", batch_size=7)
    assert found["val_loss"] == wanted
    assert est.evaluate((X, Y, W))["val_loss"] == wanted
    assert est.evaluate({"x": X, "y": Y, "w": W})["val_loss"] == wanted
    assert est.evaluate(XShards(sc.parallelize([{"x": X, "y": Y, "w": W}], 1)))["val_loss"] == wanted
    bad = frame.withColumn("w", -frame["w"])
    with pytest.raises(SchemaError, match=r"'w'.*negative"):
        est.evaluate(bad, feature_cols="x", label_cols="y", sample_weight_col="w")
    with pytest.raises(SchemaError, match="negative"):
        est.evaluate((X, Y, -W))


def test_num_steps_cuts(frame: DataFrame, sc: SparkContext) -> None:
    est = estimator(workers_per_node=2)
    for size, steps, wanted in ((10, 2, 20), (10, 100, COUNT), (None, 1, 32)):
        found = est.evaluate((X, Y), batch_size=size, num_steps=steps)
        assert found["num_samples"] == wanted
        assert found["val_loss"] == pytest.approx(local_loss(X[:wanted], Y[:wanted]), abs=1e-6)
        columns = {"feature_cols": "x", "label_cols": "y"}
        assert est.evaluate(frame, batch_size=size, num_steps=steps, **columns)["num_samples"] == wanted
    shards = XShards(sc.parallelize([(X[:15], Y[:15]), (X[15:], Y[15:])], 2))
    assert est.evaluate(shards, batch_size=10, num_steps=2)["num_samples"] == 20
    loader = DataLoader(TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)), batch_size=10)
    found = est.evaluate(loader, num_steps=3)
    assert found["num_samples"] == 30
    assert found["val_loss"] == pytest.approx(local_loss(X[:30], Y[:30]), abs=1e-6)


def test_metrics_for_this_call(spark: SparkSession) -> None:
    est = estimator()
    found = est.evaluate((X, Y), validation_metrics={"square": MSE()})
    assert list(found) == ["num_samples", "val_loss", "square"]
    assert found["square"] == pytest.approx(figures(MSE()), abs=1e-6)
    assert list(est.evaluate((X, Y))) == ["num_samples", "val_loss", "Accuracy"]  # only for that call
    assert est.evaluate((X, Y)) == est.evaluate((X, Y))  # nothing is left over from a call before


def test_without_a_loss(spark: SparkSession, jobs: Callable[[], int]) -> None:
    assert list(estimator(loss=None).evaluate((X, Y))) == ["num_samples", "Accuracy"]
    before = jobs()
    with pytest.raises(PlanError, match="loss or metrics"):
        estimator(loss=None, metrics=None).evaluate((X, Y))
    assert jobs() == before


def test_a_summing_loss_is_told_by_the_row(spark: SparkSession) -> None:
    found = estimator(loss=nn.BCELoss(reduction="sum")).evaluate((X, Y), batch_size=10)
    assert found["val_loss"] == pytest.approx(local_loss(), abs=1e-6)


def test_class_labels_from_columns_of_doubles(spark: SparkSession) -> None:
    data = spark.createDataFrame([([1.0, 0.0, 0.0], 2.0), ([0.0, 1.0, 0.0], 0.0)], "x array<double>, y double")
    est = Estimator.from_torch(model=Apply(), loss=nn.CrossEntropyLoss(), metrics=Accuracy())
    found = est.evaluate(data, feature_cols="x", label_cols="y")
    wanted = nn.CrossEntropyLoss()(torch.eye(3)[:2], torch.tensor([2, 0])).item()
    assert found["val_loss"] == pytest.approx(wanted, abs=1e-6)
    assert found["Accuracy"] == 0.0


def test_two_inputs(spark: SparkSession) -> None:
    data = pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0], "y": [31.0, 43.0]})
    est = Estimator.from_torch(model=Pair(), loss=nn.MSELoss())
    for each in (data, spark.createDataFrame(data)):
        assert est.evaluate(each, feature_cols=["a", "b"], label_cols="y")["val_loss"] == pytest.approx(0.5)
    x = [data["a"].to_numpy(), data["b"].to_numpy()]
    assert est.evaluate((x, data["y"].to_numpy()))["val_loss"] == pytest.approx(0.5)
    assert est.evaluate(({"right": x[1], "left": x[0]}, data["y"].to_numpy()))["val_loss"] == pytest.approx(0.5)


def test_no_rows(spark: SparkSession, sc: SparkContext, frame: DataFrame) -> None:
    est = estimator()
    empty: dict[str, tuple[Any, dict[str, Any]]] = {
        "frame": (frame.where("y > 5"), {"feature_cols": "x", "label_cols": "y"}),
        "arrays": ((X[:0], Y[:0]), {}),
        "pandas": (pd.DataFrame({"x": X[:0, 0], "y": Y[:0]}), {"feature_cols": "x", "label_cols": "y"}),
        "shards": (XShards(sc.parallelize([(X[:0], Y[:0])], 1)), {}),
        "no shards": (XShards(sc.parallelize([], 1)), {}),
        "creator": (lambda config, batch_size: iter(()), {}),
    }
    for data, options in empty.values():
        with pytest.raises(PlanError, match="no rows"):
            est.evaluate(data, **options)


class Explode(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if (x > 1.3).any():
            raise RuntimeError("boom in forward")
        return x[:, :1].clamp(0, 1)


def test_the_users_exceptions(spark: SparkSession, frame: DataFrame) -> None:
    est = estimator(model=Explode())
    for data, options in (((X, Y), {}), (frame, {"feature_cols": "x", "label_cols": "y"})):
        with pytest.raises(ReplicaFailed, match="boom in forward") as caught:
            est.evaluate(data, batch_size=5, **options)
        assert "in forward" in caught.value.traceback
        assert isinstance(caught.value.__cause__, RuntimeError)
        assert caught.value.host

    def creator(config: dict[str, Any], batch_size: int) -> Any:
        raise KeyError("no such file")

    with pytest.raises(ReplicaFailed, match="no such file"):
        est.evaluate(creator)

    def strict(preds: Any, targets: Any) -> float:
        raise ArithmeticError("bad metric")

    with pytest.raises(ReplicaFailed, match="bad metric"):
        estimator(metrics=strict).evaluate((X, Y))
    assert spark.range(10).count() == 10
    assert est.evaluate((X * 0, Y))["num_samples"] == COUNT  # and the estimator can be used again


def test_data_that_turns_out_wrong(spark: SparkSession) -> None:
    est = estimator()
    ragged = spark.createDataFrame([([1.0, 2.0, 3.0], 1.0), ([1.0], 0.0)], "x array<double>, y double").coalesce(1)
    with pytest.raises(SchemaError, match=r"'x'.*3.*1"):
        est.evaluate(ragged, feature_cols="x", label_cols="y")
    null = spark.createDataFrame([([1.0, 2.0, 3.0], None)], "x array<double>, y double")
    with pytest.raises(SchemaError, match=r"'y'.*null"):
        est.evaluate(null, feature_cols="x", label_cols="y")


class Halved(MainCallback):
    def on_val_forward(self, runner: Any) -> None:
        x, y = runner.batch
        runner.output, runner.target = runner.model(x), y
        runner.loss = runner.criterion(runner.output[:, 0], y) / 2


class Noting(Callback):
    """Writes which hooks were called, one letter each."""

    def __init__(self, path: str) -> None:
        self.path = path

    def note(self, letter: str) -> None:
        with open(self.path, "a") as file:
            file.write(letter)

    def before_val_epoch(self, runner: Any) -> None:
        self.note("(")

    def after_val_epoch(self, runner: Any) -> None:
        self.note(")")

    def before_val_iter(self, runner: Any) -> None:
        self.note("<")

    def after_val_iter(self, runner: Any) -> None:
        assert runner.output is not None
        self.note(">")


def test_callbacks(spark: SparkSession, tmp_path: Any) -> None:
    found = estimator().evaluate((X, Y), batch_size=10, callbacks=[Halved()])
    assert found["val_loss"] == pytest.approx(local_loss() / 2, abs=1e-6)
    path = tmp_path / "notes"
    estimator().evaluate((X, Y), batch_size=20, callbacks=[Noting(str(path))])
    assert path.read_text() == "(<><><>)"
