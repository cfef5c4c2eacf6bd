"""Keras models through the Estimator: what replicas learn, what callbacks do, what Keras itself would have said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession

from firesteel import Estimator, XShards
from firesteel.core.errors import PlanError, SchemaError

keras: Any = __import__("keras")

ROWS = 50
RNG = np.random.default_rng(4)
X = RNG.random((ROWS, 4), dtype=np.float32)
Y = (X.sum(axis=1) > 2).astype(np.int64)
COLUMNS = {"feature_cols": "x", "label_cols": "y"}


def make(optimizer: Any = "sgd", **options: Any) -> Any:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, "tanh"), keras.layers.Dense(2, "softmax")])
    model.compile(
        optimizer=optimizer, **{"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"], **options}
    )
    return model


def estimator(model: Any = None, workers: int = 2, **parts: Any) -> Any:
    return Estimator.from_keras(make() if model is None else model, workers_per_node=workers, seed=7, **parts)


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> DataFrame:
    rows = [(i, [float(v) for v in x], int(y)) for i, (x, y) in enumerate(zip(X, Y, strict=True))]
    df = spark.createDataFrame(rows, "id long, x array<float>, y long")
    # Uneven, one of them empty.
    return df.repartitionByRange(4, (df.id > 3).cast("int") + (df.id > 20).cast("int")).cache()


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam"])
def test_two_replicas_learn_what_one_does(frame: DataFrame, name: str) -> None:
    makers = {
        "sgd": lambda: keras.optimizers.SGD(0.1),
        "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
        "adam": lambda: keras.optimizers.Adam(0.01),
    }
    found = []
    for workers in (1, 2):
        est = estimator(make(makers[name]()), workers)
        history = est.fit(frame, epochs=2, batch_size=12, verbose=0, **COLUMNS)
        found.append((est.get_model().get_weights(), history))
    for one, two in zip(found[0][0], found[1][0], strict=True):
        assert np.allclose(one, two, atol=1e-5)
    assert found[0][1]["loss"] == pytest.approx(found[1][1]["loss"], rel=1e-4)
    assert set(found[1][1]) == {"accuracy", "loss"}
    assert int(est.get_model().optimizer.iterations) == 10


def test_one_step_on_all_rows_is_that_of_keras(frame: DataFrame) -> None:
    model, mine = make(keras.optimizers.SGD(0.5)), make(keras.optimizers.SGD(0.5))
    expected = model.train_on_batch(X, Y, return_dict=True)
    est = estimator(mine)
    history = est.fit(frame, epochs=1, batch_size=ROWS, verbose=0, **COLUMNS)
    assert est.get_model() is mine
    assert history["loss"] == pytest.approx([float(expected["loss"])], rel=1e-5)
    for got, wanted in zip(mine.get_weights(), model.get_weights(), strict=True):
        assert np.allclose(got, wanted, atol=1e-6)


def test_evaluate_and_predict_are_keras_own(frame: DataFrame) -> None:
    model = make(metrics=["accuracy", keras.metrics.SparseCategoricalCrossentropy(name="ce")])
    expected = model.evaluate(X, Y, return_dict=True, verbose=0)
    est = estimator(model)
    assert est.evaluate(frame, batch_size=7, verbose=0, **COLUMNS) == pytest.approx(expected, rel=1e-5)
    assert est.evaluate((X, Y), verbose=0) == pytest.approx(expected, rel=1e-5)
    outputs = model.predict(X, verbose=0)
    scored = est.predict(frame, feature_cols="x").collect()
    assert np.allclose(
        [row["prediction"].toArray() for row in scored], outputs[[row["id"] for row in scored]], atol=1e-6
    )
    assert np.allclose(est.predict(X), outputs, atol=1e-6)
    shards = XShards.partition({"x": X, "y": Y}, 3)
    assert np.allclose(np.concatenate([s["prediction"] for s in est.predict(shards).collect()]), outputs, atol=1e-6)


def test_callbacks_act_as_in_keras_and_their_files_are_here(frame: DataFrame, tmp_path: Path) -> None:
    est = estimator(make(keras.optimizers.SGD(0.0)))
    callbacks = [
        keras.callbacks.EarlyStopping(monitor="val_loss", patience=2),
        keras.callbacks.ModelCheckpoint(str(tmp_path / "best-{epoch}.keras"), save_best_only=True),
        keras.callbacks.CSVLogger(str(tmp_path / "log.csv")),
        keras.callbacks.TensorBoard(str(tmp_path / "board")),
    ]
    history = est.fit(
        frame, epochs=10, batch_size=25, validation_data=(X, Y), callbacks=callbacks, verbose=0, **COLUMNS
    )
    assert len(history["val_loss"]) == 3
    assert history.epoch == [0, 1, 2]
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 4
    loaded = keras.saving.load_model(tmp_path / "best-1.keras")
    assert np.allclose(loaded.predict(X, verbose=0), est.predict(X), atol=1e-6)
    assert list((tmp_path / "board").rglob("*tfevents*"))


def test_a_rate_and_weights_that_callbacks_set_reach_all(frame: DataFrame) -> None:
    est = estimator(make(keras.optimizers.SGD(0.1)))
    rates = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.0 if epoch else rate)
    reset = keras.callbacks.LambdaCallback(on_train_end=lambda logs: None)
    history = est.fit(frame, epochs=3, batch_size=10, callbacks=[rates, reset], verbose=0, **COLUMNS)
    assert history["loss"][1] == pytest.approx(history["loss"][2])
    assert history["loss"][0] != pytest.approx(history["loss"][1])
    assert history["learning_rate"] == pytest.approx([0.1, 0.0, 0.0])


def test_creators_of_models_and_data(spark: SparkSession) -> None:
    import tensorflow as tf

    def model_creator(config: dict[str, Any]) -> Any:
        model = keras.Sequential([keras.layers.Dense(2, "softmax")])
        model.compile(keras.optimizers.SGD(config["rate"]), "sparse_categorical_crossentropy", metrics=["accuracy"])
        return model

    def data_creator(config: dict[str, Any], batch_size: int) -> Any:
        return tf.data.Dataset.from_tensor_slices((X, Y)).batch(batch_size)

    found = []
    for workers in (1, 2):
        est = Estimator.from_keras(model_creator=model_creator, config={"rate": 0.2}, workers_per_node=workers, seed=3)
        history = est.fit(data_creator, epochs=2, batch_size=16, verbose=0)
        assert len(history["loss"]) == 2
        found.append(est.get_model().get_weights())
    for one, two in zip(*found, strict=True):
        assert np.allclose(one, two, atol=1e-5)
    cut = est.fit(data_creator, epochs=1, batch_size=16, steps_per_epoch=2, verbose=0)
    assert len(cut["loss"]) == 1


def test_weights_of_rows_and_classes(spark: SparkSession) -> None:
    net = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
    net.compile(keras.optimizers.SGD(0.1), "mse")
    df = spark.createDataFrame([(1.0, 0.0, 1.0), (1.0, 0.0, 3.0)], "x float, y float, w float")
    est = estimator(net)
    est.fit(df, epochs=1, batch_size=2, sample_weight_col="w", verbose=0, **COLUMNS)
    assert float(net.get_weights()[0][0, 0]) == pytest.approx(0.6)


def test_saving_and_going_on(frame: DataFrame, tmp_path: Path) -> None:
    est = estimator(make("adam"))
    est.fit(frame, epochs=1, batch_size=20, verbose=0, **COLUMNS)
    path = str(tmp_path / "model.keras")
    est.save(path)
    other = Estimator.load_keras_model(path)
    assert np.array_equal(other.predict(X), est.predict(X))
    with pytest.raises(FileExistsError):
        est.save(path, overwrite=False)
    for name in ("w", "w.h5", "w.weights.h5"):
        est.save_weights(str(tmp_path / name))
        assert (tmp_path / name).is_file()
        fresh = estimator(make())
        fresh.load_weights(str(tmp_path / name))
        assert np.array_equal(fresh.get_model().get_weights()[0], est.get_model().get_weights()[0])
    for name in ("old.h5", "folder"):
        est.save(str(tmp_path / name))
        again = Estimator.from_keras()
        again.load(str(tmp_path / name))
        assert np.array_equal(again.get_model().predict(X, verbose=0), est.get_model().predict(X, verbose=0))
        assert int(again.get_model().optimizer.iterations) == int(est.get_model().optimizer.iterations)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        Estimator.load_keras_model(str(tmp_path / "nowhere.keras"))


def test_what_is_wrong_is_said(frame: DataFrame) -> None:
    with pytest.raises(PlanError, match="not both"):
        Estimator.from_keras(make(), model_creator=make)
    with pytest.raises(PlanError, match="no model yet"):
        Estimator.from_keras().fit((X, Y), epochs=1)
    with pytest.raises(PlanError, match="not compiled"):
        Estimator.from_keras(keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]))
    with pytest.raises(PlanError, match=r"'horovod'.*bigdl"):
        estimator(backend="horovod")
    with pytest.raises(SchemaError, match="'no'"):
        estimator().fit(frame, feature_cols="no", label_cols="y")
    with pytest.raises(PlanError, match="Callback"):
        estimator().fit(frame, callbacks=[3], **COLUMNS)
    with pytest.raises(PlanError, match=r"labels \(float32 \[7\] a row\) do not fit the loss 'mse'.*\[2\]"):
        estimator(make(loss="mse")).fit((X, np.zeros((ROWS, 7))), epochs=1, batch_size=10, verbose=0)
