"""fit, as its user sees it: what is learnt, counted and recorded, whatever the replicas and the kind of data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pyspark.sql import SparkSession
from torch import nn

from firesteel import Estimator
from firesteel.core.errors import ClusterError, PlanError, ReplicaFailed, SchemaError, UnknownName
from firesteel.data.parquet import FileRows
from firesteel.data.shards import XShards
from firesteel.learn.metrics import MAE
from firesteel.learn.optimizers import SGD, Adam
from firesteel.learn.optimizers.schedule import Plateau, Poly
from firesteel.learn.pytorch.callbacks import EarlyStopping

pytestmark = pytest.mark.usefixtures("spark")


def net(weights: list[list[float]]) -> nn.Linear:
    """A linear layer ``w·x`` without bias."""
    model = nn.Linear(len(weights[0]), len(weights), bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor(weights))
    return model


def estimator(model: Any = None, *, replicas: int = 2, rate: float = 0.1, **options: Any) -> Any:
    if model is None:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1))
    options = {"optimizer": SGD(rate), "loss": nn.MSELoss(), "seed": 11, "workers_per_node": replicas, **options}
    return Estimator.from_torch(model=model, **options)


def arrays(rows: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).standard_normal((rows, 3)).astype(np.float32)
    return x, (x @ [1.0, -2.0, 0.5]).astype(np.float32)


def weights(est: Any) -> np.ndarray:
    return nn.utils.parameters_to_vector(est.get_model().parameters()).detach().numpy()


def by_hand(rows: int, batch_size: int, epochs: int) -> np.ndarray:
    """What torch alone learns from the rows in their order."""
    x, y = map(torch.from_numpy, arrays(rows))
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(epochs):
        for begin in range(0, rows, batch_size):
            optimizer.zero_grad()
            part = slice(begin, begin + batch_size)
            nn.functional.mse_loss(model(x[part])[:, 0], y[part]).backward()
            optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach().numpy()


@pytest.mark.parametrize("batch_size", [7, 1, 50])  # no multiple of 2 nor of 20, smaller than N, larger than the data
def test_steps_are_the_rows_in_their_order(batch_size: int) -> None:
    est = estimator(backend="torch_distributed" if batch_size == 7 else "bigdl")
    history = est.fit(arrays(20), epochs=2, batch_size=batch_size, shuffle=False, verbose=0)
    np.testing.assert_allclose(weights(est), by_hand(20, batch_size, 2), atol=1e-5)
    steps = -(-20 // batch_size)
    assert [record["batch_count"] for record in history] == [steps, steps]


def test_rows_of_files_teach_the_same_whoever_reads_them(spark: SparkSession, tmp_path: Path) -> None:
    x, y = arrays(300)
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "y": y})
    frame.to_parquet(tmp_path / "f.parquet", row_group_size=70)
    df = spark.read.parquet(str(tmp_path))
    learnt = []
    for reads_files in ("true", "false"):
        spark.conf.set("spark.firesteel.readFiles", reads_files)
        try:
            est = estimator()
            history = est.fit(df, 2, 32, feature_cols=["a", "b", "c"], label_cols="y", verbose=0)
        finally:
            spark.conf.unset("spark.firesteel.readFiles")
        assert [record["num_samples"] for record in history] == [300, 300]
        learnt.append(weights(est))
    np.testing.assert_array_equal(*learnt)


def test_a_null_in_a_file_is_one_sentence(spark: SparkSession, tmp_path: Path) -> None:
    pd.DataFrame({"a": [1.0, None, 3.0], "y": [1.0, 2.0, 3.0]}).to_parquet(tmp_path / "f.parquet")
    df = spark.read.parquet(str(tmp_path))
    with pytest.raises(SchemaError, match=r"'a'.*null"):
        estimator(net([[1.0]])).fit(df, feature_cols="a", label_cols="y", verbose=0)


def test_a_record_counts_and_a_second_fit_goes_on(spark: SparkSession) -> None:
    est = estimator(scheduler_creator=lambda opt, config: torch.optim.lr_scheduler.ExponentialLR(opt, 0.9))
    assert est.get_train_summary("Loss") is None
    first = est.fit(arrays(50), batch_size=10, max_steps=7, verbose=0)
    assert [(r["epoch"], r["batch_count"], r["num_samples"]) for r in first] == [(1, 5, 50), (2, 2, 20)]
    second = est.fit(arrays(50), epochs=2, batch_size=10, steps_per_epoch=3, initial_epoch=7, verbose=0)
    assert [(r["epoch"], r["batch_count"], r["num_samples"]) for r in second] == [(8, 3, 30), (9, 2, 20)]
    third = est.fit(arrays(50), batch_size=25, verbose=0)
    assert [(r["epoch"], r["batch_count"]) for r in third] == [(10, 2)]
    # One schedule through all of it, one step at a time, whatever the number of replicas.
    summary = est.get_train_summary("LearningRate")
    assert [step for step, _, _ in summary] == list(range(1, 15))
    np.testing.assert_allclose([rate for _, rate, _ in summary], 0.1 * 0.9 ** np.arange(14), rtol=1e-5)
    assert first.history["num_samples"] == [50, 20]
    assert first.to_pandas()["batch_count"].tolist() == [5, 2]
    assert set(first.seconds) == {"data", "compute", "agree", "commit"}
    assert min(first.seconds["compute"], first.seconds["agree"]) > 0


def test_row_weights(spark: SparkSession) -> None:
    df = spark.createDataFrame([([1.0], 0.0, 1.0), ([1.0], 0.0, 3.0)], "x array<double>, y double, w double").coalesce(
        1
    )
    model = net([[1.0]])
    options = {"feature_cols": "x", "label_cols": "y", "sample_weight_col": "w"}
    history = estimator(model).fit(df, batch_size=2, verbose=0, **options)
    assert model.weight.item() == pytest.approx(0.6)
    assert history[0]["train_loss"] == pytest.approx(2.0)  # (1·1 + 3·1) / 2 rows
    shards = XShards(
        spark.sparkContext.parallelize([{"x": np.ones((2, 1)), "y": np.zeros(2), "w": np.array([1.0, 3.0])}], 1)
    )
    model = net([[1.0]])
    estimator(model).fit(shards, batch_size=2, verbose=0)
    assert model.weight.item() == pytest.approx(0.6)


def test_class_weights_multiply_with_row_weights() -> None:
    x, y = np.ones((2, 1), np.float32), np.array([0, 1])
    model = net([[0.0], [0.0]])
    est = estimator(model, rate=1.0, loss=nn.CrossEntropyLoss())
    est.fit((x, y), batch_size=2, class_weight={0: 1, 1: 3}, verbose=0)
    np.testing.assert_allclose(model.weight.detach().numpy(), [[-0.5], [0.5]], atol=1e-6)
    model = net([[0.0], [0.0]])
    est = estimator(model, rate=1.0, loss=nn.CrossEntropyLoss())
    est.fit((x, y, np.array([3.0, 1.0])), batch_size=2, class_weight={1: 3}, verbose=0)
    np.testing.assert_allclose(model.weight.detach().numpy(), [[0.0], [0.0]], atol=1e-6)


def test_class_weights_are_for_learning_alone() -> None:
    x, y = np.ones((4, 1), np.float32), np.array([0, 1, 1, 1])
    est = estimator(net([[0.0], [0.0]]), loss=nn.CrossEntropyLoss())
    options = {"batch_size": 4, "class_weight": {0: 1, 1: 3}, "validation_data": (x, y), "verbose": 0}
    found = est.fit((x, y), **options)[-1]["val_loss"]
    assert found == pytest.approx(est.evaluate((x, y))["val_loss"], rel=1e-6)


def test_clipping() -> None:
    data = np.array([[3.0, 4.0]] * 2, np.float32), np.zeros(2, np.float32)
    model = net([[0.0, 0.0]])
    est = estimator(model, rate=1.0, loss=lambda output, target: output.mean())
    moves, before = [], np.zeros(2)
    est.set_constant_gradient_clipping(-5, 5)
    est.set_l2_norm_gradient_clipping(1.0)  # replaces the other kind
    for change in (lambda: None, lambda: est.set_constant_gradient_clipping(-1e-8, 1e-8), est.clear_gradient_clipping):
        change()
        est.fit(data, batch_size=2, verbose=0)
        now = model.weight.detach().numpy()[0].copy()
        moves.append(now - before)
        before = now
    np.testing.assert_allclose(moves[0], [-0.6, -0.8], atol=1e-6)
    assert np.abs(moves[1]).max() < 1e-7
    np.testing.assert_allclose(moves[2], [-3, -4], atol=1e-5)
    with pytest.raises(PlanError, match="min < max"):
        est.set_constant_gradient_clipping(1, 1)


def test_validation_data_of_another_kind(spark: SparkSession) -> None:
    x, y = arrays(23)
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "y": y})
    columns = {"feature_cols": ["a", "b", "c"], "label_cols": "y"}
    shards = XShards(spark.sparkContext.parallelize([{"x": x[:20], "y": y[:20]}, {"x": x[20:], "y": y[20:]}], 2))
    kinds = {
        "frame": spark.createDataFrame(frame).repartition(5),
        "pandas": frame,
        "shards": shards,
        "arrays": (x, y),
        "creator": lambda config, batch_size: (x, y),
    }
    train = spark.createDataFrame(frame).coalesce(1)
    seen = {}
    for name, validation in kinds.items():
        est = estimator(metrics=[MAE(), top], rate=0.0)
        (record,) = est.fit(
            train, batch_size=8, validation_data=validation, validation_batch_size=5, verbose=0, **columns
        )
        seen[name] = record
        assert record["val_num_samples"] == 23
    with torch.no_grad():
        output = est.get_model()(torch.from_numpy(x))[:, 0].numpy()
    for name, record in seen.items():
        assert record["val_loss"] == pytest.approx(np.square(output - y).mean(), rel=1e-5), name
        assert record["val_MAE"] == pytest.approx(np.abs(output - y).mean(), rel=1e-5), name
        assert record["val_loss"] == pytest.approx(record["train_loss"], rel=1e-5), name


def top(predictions: Any, targets: Any) -> Any:
    return predictions.max()


def test_early_stopping() -> None:
    data = arrays(8)
    est = estimator(rate=0.0)
    stopping = EarlyStopping(patience=2)
    assert len(est.fit(data, epochs=10, validation_data=data, early_stopping=stopping, verbose=0)) == 3
    assert len(est.fit(data, epochs=10, validation_data=data, callbacks=[EarlyStopping()], verbose=0)) == 2
    with pytest.raises(PlanError, match="needs validation_data"):
        est.fit(data, early_stopping=stopping)
    with pytest.raises(UnknownName, match="'val_los'"):
        est.fit(data, early_stopping=EarlyStopping("val_los"), validation_data=data)


def test_seeds(spark: SparkSession) -> None:
    def run(seed: int) -> tuple[list[Any], np.ndarray]:
        class Net(nn.Sequential):
            def __init__(self) -> None:
                super().__init__(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1))

        est = estimator(Net, seed=seed)
        return list(est.fit(arrays(20), batch_size=4, epochs=2, verbose=0)), weights(est)

    (history, first), (again, second), (other, third) = run(7), run(7), run(8)
    assert [pytest.approx(record) for record in again] == history
    np.testing.assert_allclose(second, first, atol=1e-6)
    assert history != other
    assert not np.allclose(third, first, atol=1e-3)


def test_schedules_that_look_at_a_value() -> None:
    data = arrays(8)

    def plateau(optimizer: Any, config: dict[str, Any]) -> Any:
        return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=config["factor"], patience=0)

    est = estimator(rate=0.0, scheduler_creator=plateau, scheduler_step_freq="epoch", config={"factor": 0.1})
    est.fit(data, epochs=2, batch_size=8, validation_data=data, verbose=0)
    assert [rate for _, rate, _ in est.get_train_summary("LearningRate")] == [0.0, 0.0]
    with pytest.raises(PlanError, match="ReduceLROnPlateau"):
        estimator(scheduler_creator=plateau, config={"factor": 0.1}).fit(data, verbose=0)
    with pytest.raises(PlanError, match="scheduler_step_freq"):
        estimator(scheduler_creator=plateau, scheduler_step_freq=None)
    own = SGD(1e-6, learningrate_schedule=Plateau("score", factor=0.5, patience=0))
    est = estimator(optimizer=own)
    est.fit(data, epochs=4, batch_size=8, validation_data=data, verbose=0)
    np.testing.assert_allclose(
        [rate for _, rate, _ in est.get_train_summary("LearningRate")], [1e-6, 1e-6, 0.5e-6, 0.25e-6], rtol=1e-5
    )


def test_our_optimizers_and_their_schedules_learn_on_two_replicas_what_they_learn_on_one() -> None:
    found = []
    for replicas in (1, 2):
        est = estimator(replicas=replicas, optimizer=Adam(0.05, learningrate_schedule=Poly(0.5, 12)))
        est.fit(arrays(20), epochs=3, batch_size=5, verbose=0)
        rates = [rate for _, rate, _ in est.get_train_summary("LearningRate")]
        found.append((weights(est), rates))
    np.testing.assert_allclose(found[1][0], found[0][0], atol=1e-5)
    np.testing.assert_allclose(found[0][1], 0.05 * (1 - np.arange(12) / 12) ** 0.5, rtol=1e-5)
    assert found[0][1] == found[1][1]


def test_two_inputs_half_precision_and_averaging(spark: SparkSession) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(2, 4), nn.Linear(1, 4)
            self.norm, self.out = nn.BatchNorm1d(4), nn.Linear(4, 1)

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return self.out(torch.relu(self.norm(self.left(a) + self.right(b[:, None]))))

    x, y = arrays(64)
    rows = [(row[:2].tolist(), float(row[2]), float(target)) for row, target in zip(x, y, strict=True)]
    df = spark.createDataFrame(rows, "a array<double>, b double, y double").repartition(2)
    columns = {"feature_cols": ["a", "b"], "label_cols": "y", "verbose": 0}
    for options in ({"precision": "bf16"}, {"sync": "averaging"}, {"sync_batchnorm": True}):
        est = estimator(Two(), optimizer=Adam(0.02), **options)
        history = est.fit(df, epochs=25, batch_size=8, **columns)
        assert history[-1]["train_loss"] < 0.4 * history[0]["train_loss"], options
        mean = est.get_model().norm.running_mean
        assert mean.abs().max() > 1e-3
        assert all(p.dtype == torch.float32 for p in est.get_model().parameters())


def test_an_error_in_forward_says_where() -> None:
    class Boom(nn.Linear):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            if self.calls == 3 and torch.distributed.get_rank() == 1:
                raise RuntimeError("boom")
            return super().forward(x)

    model = Boom(3, 1)
    est = estimator(model)
    with pytest.raises(ReplicaFailed, match=r"replica 1 on \S+ failed at step 3: RuntimeError: boom") as caught:
        est.fit(arrays(40), batch_size=4, verbose=0)
    assert isinstance(caught.value.__cause__, RuntimeError)
    Boom.forward = nn.Linear.forward
    assert len(est.fit(arrays(40), batch_size=4, verbose=0)) == 1


def test_a_file_that_goes_while_a_fit_begins_is_one_sentence(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver still saw it."""
    for name in ("a", "b"):
        pq.write_table(pa.table({"x": np.ones(8), "y": np.ones(8)}), tmp_path / f"{name}.parquet")
    df = spark.read.parquet(str(tmp_path))
    monkeypatch.setattr(FileRows, "is_readable", lambda files: not (tmp_path / "a.parquet").unlink())
    with pytest.raises(ClusterError, match=r"^\S+a\.parquet could not be read: .*readFiles.*$") as caught:
        estimator(nn.Linear(1, 1)).fit(df, feature_cols=["x"], label_cols=["y"], verbose=0)
    assert type(caught.value) is ClusterError


def test_what_makes_no_sense_is_refused_at_the_call(spark: SparkSession) -> None:
    data = arrays(8)
    for wrong in ({"epochs": 0}, {"batch_size": -1}, {"max_steps": 0}, {"steps_per_epoch": 1.5}, {"initial_epoch": -1}):
        with pytest.raises(PlanError, match=next(iter(wrong))):
            estimator().fit(data, **wrong)
    with pytest.raises(PlanError, match="needs an optimizer"):
        estimator(optimizer=None).fit(data)
    with pytest.raises(PlanError, match="needs a loss"):
        estimator(loss=None).fit(data)
    with pytest.raises(PlanError, match="model_dir"):
        estimator().fit(data, checkpoint_trigger="everyepoch")
    with pytest.raises(PlanError, match="instance"):
        Estimator.from_torch(
            model=lambda config: nn.Linear(1, 1), optimizer=torch.optim.SGD(nn.Linear(1, 1).parameters(), 0.1)
        )
    df = spark.createDataFrame([(1.0, 2.0)], "x double, y double")
    with pytest.raises(SchemaError, match="label columns is None in training"):
        estimator().fit(df, feature_cols="x")
    with pytest.raises(PlanError, match="same size"):
        estimator().fit((data[0], data[1][:5]))


def test_a_loss_that_is_no_number_warns_once() -> None:
    x, y = arrays(8)
    est = estimator(net([[1.0, 1.0, 1.0]]))
    with pytest.warns(RuntimeWarning, match="the loss is nan at step 1 on replica") as caught:
        history = est.fit((x * np.nan, y), epochs=2, batch_size=4, verbose=0)
    assert len([w for w in caught if w.category is RuntimeWarning]) == 1
    assert len(history) == 2
