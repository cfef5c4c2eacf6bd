"""What a Keras training promises: weights, clipping, seeds, checkpoints, losses of processes, our own optimizers."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession

from firesteel import Estimator
from firesteel.core.errors import PlanError
from firesteel.learn.optimizers import Adam
from firesteel.learn.optimizers.schedule import Step
from firesteel.learn.trigger import SeveralIteration
from firesteel.testing.faults import Fault, inject

keras: Any = __import__("keras")

ROWS = 40
X = np.random.default_rng(5).random((ROWS, 4), dtype=np.float32)
Y = (X[:, 0] > X[:, 1]).astype(np.int64)
COLUMNS = {"feature_cols": "x", "label_cols": "y", "verbose": 0}


def make(optimizer: Any = None, *layers: Any) -> Any:
    keras.utils.set_random_seed(1)
    layers = (keras.Input((4,)), keras.layers.Dense(6, "tanh"), *layers, keras.layers.Dense(2, "softmax"))
    model = keras.Sequential(list(layers))
    model.compile(optimizer or keras.optimizers.Adam(0.05), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def estimator(model: Any, workers: int = 2, **parts: Any) -> Any:
    return Estimator.from_keras(model, workers_per_node=workers, seed=7, **parts)


def weights(model: Any) -> np.ndarray:
    return np.concatenate([each.reshape(-1) for each in (*model.get_weights(), *_slots(model))])


def _slots(model: Any) -> list[np.ndarray]:
    return [np.asarray(variable.value, np.float32) for variable in model.optimizer.variables]


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> DataFrame:
    rows = [(x.tolist(), int(y)) for x, y in zip(X, Y, strict=True)]
    # Not cached: Spark groups cached partitions by where they lie, and what dropout draws depends on who holds a row.
    return spark.createDataFrame(spark.sparkContext.parallelize(rows, 3), "x array<float>, y long")


@pytest.fixture(scope="module")
def undisturbed(frame: DataFrame) -> tuple[np.ndarray, Any]:
    model = make(None, keras.layers.Dropout(0.3))
    history = estimator(model).fit(frame, epochs=3, batch_size=8, validation_data=(X, Y), **COLUMNS)
    return weights(model), history


def test_killed_and_recovered_equals_undisturbed(frame: DataFrame, undisturbed: tuple[np.ndarray, Any]) -> None:
    model = make(None, keras.layers.Dropout(0.3))
    with inject(Fault("kill child", rank=1, moment="step", step=8)):
        history = estimator(model).fit(frame, epochs=3, batch_size=8, validation_data=(X, Y), **COLUMNS)
    assert [loss["ranks"] for loss in history.recoveries] == [[1]]
    np.testing.assert_array_equal(weights(model), undisturbed[0])
    for name, values in undisturbed[1].items():
        assert history[name] == pytest.approx(values, rel=1e-5), name


def test_resumed_from_disk_equals_undisturbed(
    frame: DataFrame, undisturbed: tuple[np.ndarray, Any], tmp_path: Path
) -> None:
    first = estimator(make(None, keras.layers.Dropout(0.3)), model_dir=str(tmp_path))
    first.fit(frame, max_steps=7, batch_size=8, checkpoint_trigger=SeveralIteration(7), **COLUMNS)
    model = make(None, keras.layers.Dropout(0.3))
    second = estimator(model, model_dir=str(tmp_path))
    more = {"batch_size": 8, "resume": True, "checkpoint_trigger": SeveralIteration(15), **COLUMNS}
    history = second.fit(frame, epochs=3, **more)
    assert len(history["loss"]) == 2
    np.testing.assert_allclose(weights(model), undisturbed[0], atol=1e-6)
    assert second.fit(frame, epochs=2, **more).history == {}
    third = estimator(make(None, keras.layers.Dropout(0.3)))
    third.load_checkpoint(str(tmp_path), version=7)
    assert int(third.get_model().optimizer.iterations) == 7


def test_a_seed_decides(frame: DataFrame) -> None:
    def creator(config: dict[str, Any]) -> Any:
        layers = [keras.layers.Dense(5, "tanh"), keras.layers.Dropout(0.5), keras.layers.Dense(2, "softmax")]
        model = keras.Sequential(layers)
        model.compile("sgd", "sparse_categorical_crossentropy")
        return model

    found = []
    for seed in (7, 7, 8):
        est = Estimator.from_keras(model_creator=creator, workers_per_node=2, seed=seed)
        history = est.fit(frame, epochs=1, batch_size=10, **COLUMNS)
        found.append((history["loss"], weights(est.get_model())))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-6)
    np.testing.assert_allclose(found[0][1], found[1][1], atol=1e-6)
    assert not np.allclose(found[0][1], found[2][1])


def test_clipping_and_class_weights(spark: SparkSession) -> None:
    def net(rate: float, outputs: int, loss: Any) -> Any:
        dense = keras.layers.Dense(outputs, use_bias=False, kernel_initializer="zeros")
        model = keras.Sequential([keras.Input((2 if outputs == 1 else 1,)), dense])
        model.compile(keras.optimizers.SGD(rate), loss)
        return model

    def mean_output(truth: Any, output: Any) -> Any:
        return keras.ops.mean(output, axis=-1)

    data = (np.array([[3.0, 4.0]], np.float32), np.zeros((1, 1), np.float32))
    model = net(1.0, 1, mean_output)
    est = estimator(model, 1)
    moves = []
    for clip in (
        lambda: est.set_l2_norm_gradient_clipping(1.0),
        lambda: est.set_constant_gradient_clipping(-1e-8, 1e-8),
        lambda: est.clear_gradient_clipping(),
    ):
        before = model.get_weights()[0].copy()
        clip()
        est.fit(data, epochs=1, batch_size=1, verbose=0)
        moves.append((model.get_weights()[0] - before).reshape(-1))
    np.testing.assert_allclose(moves[0], [-0.6, -0.8], atol=1e-6)
    assert np.abs(moves[1]).max() < 1e-7
    np.testing.assert_allclose(moves[2], [-3, -4], atol=1e-5)
    model = net(1.0, 2, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    data = (np.ones((2, 1), np.float32), np.array([0, 1]))
    est = estimator(model)
    found = est.fit(data, epochs=1, batch_size=2, class_weight={0: 1, 1: 3}, validation_data=data, verbose=0)
    np.testing.assert_allclose(model.get_weights()[0].reshape(-1), [-0.5, 0.5], atol=1e-6)
    assert found.history["val_loss"] == [pytest.approx(est.evaluate(data)["loss"], rel=1e-6)]


def test_our_own_optimizers_and_other_metrics(frame: DataFrame, tmp_path: Path) -> None:
    found = []
    for workers in (1, 2):
        model = make()
        method = Adam(0.1, learningrate_schedule=Step(4, 0.5))
        est = estimator(model, workers, optimizer=method, metrics=[keras.metrics.SparseTopKCategoricalAccuracy(1)])
        history = est.fit(frame, epochs=2, batch_size=8, **COLUMNS)
        assert set(history) == {"loss", "sparse_top_k_categorical_accuracy"}
        found.append(weights(model))
    np.testing.assert_allclose(found[0], found[1], atol=1e-5)
    rates = [value for _, value, _ in est.get_train_summary("LearningRate")]
    assert rates == pytest.approx([0.1] * 4 + [0.05] * 4 + [0.025] * 2)
    est.save(str(tmp_path / "ours.keras"))
    again = keras.saving.load_model(tmp_path / "ours.keras")
    assert again.optimizer.get_config() == model.optimizer.get_config()
    with pytest.raises(PlanError, match="optimizer must be a Keras optimizer"):
        estimator(make(), optimizer=3)


def test_figures_of_an_evaluation_are_merged_not_averaged(spark: SparkSession) -> None:
    """Classes lie apart, so that a mean of the partitions' AUCs could not be right."""
    inputs = keras.Input((4,))
    model = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(inputs))
    metrics = [keras.metrics.AUC(name="auc"), keras.metrics.F1Score(name="f1", threshold=0.5, average="macro")]
    model.compile("sgd", "binary_crossentropy", metrics=metrics)
    order = np.argsort(Y, kind="stable")
    rows = [(X[i].tolist(), float(Y[i])) for i in order]
    df = spark.createDataFrame(spark.sparkContext.parallelize(rows, 4), "x array<float>, y float")
    est = estimator(model)
    expected = model.evaluate(X, Y[:, None].astype(np.float32), return_dict=True, verbose=0)
    assert est.evaluate(df, batch_size=7, **COLUMNS) == pytest.approx(expected, rel=1e-5)
    other = est.evaluate(df, validation_metrics=[keras.metrics.Precision(name="p")], **COLUMNS)
    model.compile("sgd", "binary_crossentropy", metrics=[keras.metrics.Precision(name="p")])
    assert other == pytest.approx(model.evaluate(X, Y[:, None], return_dict=True, verbose=0), rel=1e-5)


def test_running_means_are_averaged_by_rows(frame: DataFrame) -> None:
    """What a replica's batch-norm saw counts by its rows; two replicas end with the same."""
    layer = keras.layers.BatchNormalization(momentum=0.5)
    model = keras.Sequential([keras.Input((4,)), layer, keras.layers.Dense(2, "softmax")])
    model.compile(keras.optimizers.SGD(0.0), "sparse_categorical_crossentropy")
    estimator(model).fit(frame, epochs=1, batch_size=ROWS, **COLUMNS)
    np.testing.assert_allclose(layer.moving_mean.value, X.mean(axis=0) * 0.5, atol=1e-5)


def test_an_average_of_weights_takes_their_place_at_the_end(frame: DataFrame) -> None:
    model = make(keras.optimizers.SGD(0.5, use_ema=True, ema_momentum=0.5))
    plain = make(keras.optimizers.SGD(0.5, use_ema=True, ema_momentum=0.5))
    estimator(model).fit(frame, epochs=1, batch_size=ROWS, **COLUMNS)
    plain.fit(X, Y, batch_size=ROWS, verbose=0)
    for mine, theirs in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)


def test_a_history_is_one_of_keras(undisturbed: tuple[np.ndarray, Any]) -> None:
    history = undisturbed[1]
    assert set(history) == {"accuracy", "loss", "val_accuracy", "val_loss"}
    assert all(isinstance(value, float) for values in history.values() for value in values)
    assert history.epoch == [0, 1, 2]
    assert history.seconds["compute"] > 0


class Counter(keras.callbacks.Callback):  # type: ignore[misc]
    """Counts, and slows the learning down by what it has counted."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self.losses: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps += 1
        self.losses.append(float(logs["loss"]))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["steps"] = float(self.steps)
        self.model.optimizer.learning_rate = 0.05 / len(self.losses)


@pytest.mark.parametrize("step", [9, 13])
def test_callbacks_go_on_where_the_training_does(frame: DataFrame, tmp_path: Path, step: int) -> None:
    """Once they began anew with the attributes that they had on the driver, and a CSV file lost its first lines."""
    found = []
    for faults in ((), (Fault("kill child", rank=0, moment="step", step=step),)):
        folder = tmp_path / str(len(found))
        callbacks = [
            Counter(),
            keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=10.0),
            keras.callbacks.EarlyStopping("loss", patience=3, min_delta=10.0, restore_best_weights=True),
            keras.callbacks.CSVLogger(folder / "log.csv", append=True),
        ]
        folder.mkdir()
        (folder / "log.csv").write_text("epoch\nbefore\n")
        model = make()
        with inject(*faults):
            history = estimator(model).fit(frame, epochs=9, batch_size=8, callbacks=callbacks, **COLUMNS)
        assert len(history.recoveries) == len(faults)
        found.append((weights(model), history["steps"], history["loss"], (folder / "log.csv").read_text()))
    whole, disturbed = found
    assert whole[1] == disturbed[1] == [5.0, 10.0, 15.0, 20.0]
    np.testing.assert_allclose(disturbed[0], whole[0], atol=1e-6)
    assert disturbed[2] == pytest.approx(whole[2], rel=1e-5)
    assert len(disturbed[3].splitlines()) == len(whole[3].splitlines()) == 6
    assert disturbed[3].startswith("epoch\nbefore\n0,")


class Places(keras.callbacks.Callback):  # type: ignore[misc]
    """Writes down where its process keeps its temporary files."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = str(path)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        place = tempfile.gettempdir()
        with open(self.path, "a") as file:
            file.write("".join(f"{place}/{name}\n" for name in os.listdir(place)))


def test_files_of_callbacks_go_with_a_process_that_is_killed(frame: DataFrame, tmp_path: Path) -> None:
    callbacks = [Places(tmp_path / "places"), keras.callbacks.CSVLogger(tmp_path / "log.csv")]
    with inject(Fault("kill child", rank=0, moment="step", step=13)):
        estimator(make()).fit(frame, epochs=4, batch_size=8, callbacks=callbacks, **COLUMNS)
    places = set((tmp_path / "places").read_text().splitlines())
    assert len({place for place in places if "/firesteel-keras-" in place}) == 2  # one before, one after
    assert [place for place in places if os.path.exists(place)] == []
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 5


class Notes(keras.callbacks.Callback):  # type: ignore[misc]
    """Writes down what it is told, batch by batch."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = str(path)

    def _note(self, name: str, batch: int, logs: Any) -> None:
        with open(self.path, "a") as file:
            file.write(json.dumps([name, batch, {key: float(value) for key, value in logs.items()}]) + "\n")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._note("train", batch, logs)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self._note("test", batch, logs)

    def read(self) -> list[Any]:
        return [json.loads(line) for line in Path(self.path).read_text().splitlines()]


def test_batch_by_batch_a_callback_sees_the_figures_of_all_replicas(spark: SparkSession, tmp_path: Path) -> None:
    ours, theirs = Notes(tmp_path / "ours"), Notes(tmp_path / "theirs")
    options = {"epochs": 2, "batch_size": 15, "validation_data": (X, Y), "verbose": 0, "shuffle": False}
    estimator(make()).fit((X, Y), callbacks=[ours], **options)
    make().fit(X, Y, callbacks=[theirs], **options)
    trained = [[note for note in notes.read() if note[0] == "train"] for notes in (ours, theirs)]
    assert [note[1] for note in trained[0]] == [0, 1, 2, 0, 1, 2]
    for mine, its in zip(*trained, strict=True):
        assert mine[2] == pytest.approx(its[2], rel=1e-5)
    assert all(set(note[2]) == {"loss", "accuracy"} for note in ours.read())
    assert {note[0] for note in ours.read()} == {"train", "test"}
