"""Keras models at TFPark's door: here and on Spark they say the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from pyspark import SparkContext

from firesteel import TFDataset, TFOptimizer, TFPredictor
from firesteel.bigdl import SGD, MaxEpoch, TrainSummary
from firesteel.core.errors import PlanError
from firesteel.tfpark import KerasModel

keras: Any = __import__("keras")

RNG = np.random.default_rng(2)
X = RNG.random((37, 4), dtype=np.float32)
Y = (X.sum(1) > 2).astype(np.int32)


def model(optimizer: Any = "sgd") -> Any:
    keras.utils.set_random_seed(1)
    made = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5, "tanh"), keras.layers.Dense(2, "softmax")])
    made.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return made


def two_ends() -> Any:
    keras.utils.set_random_seed(1)
    left, right = keras.Input((4,), name="left"), keras.Input((2,), name="right")
    both = keras.layers.Concatenate()([left, right])
    outputs = {
        "kind": keras.layers.Dense(2, "softmax", name="kind")(both),
        "size": keras.layers.Dense(1, name="size")(both),
    }
    made = keras.Model({"left": left, "right": right}, outputs)
    losses = {"kind": "sparse_categorical_crossentropy", "size": "mse"}
    made.compile("sgd", losses, metrics={"kind": ["accuracy"], "size": ["mae"]})
    return made


def uneven(sc: SparkContext, rows: list[Any]) -> Any:
    parts = [rows[:30], [], rows[30:31], rows[31:]]
    return sc.parallelize(range(4), 4).flatMap(lambda place: parts[place])


PAIR = {"features": (tf.float32, [4]), "labels": (tf.int32, [])}


def test_here_and_on_spark_alike(sc: SparkContext, tmp_path: Path) -> None:
    wrapped = KerasModel(model())
    rdd = uneven(sc, list(zip(X, Y, strict=True)))
    scoring = TFDataset.from_rdd(rdd, **PAIR, batch_per_thread=5)
    here = wrapped.evaluate(X, Y)
    assert wrapped.evaluate(scoring) == pytest.approx(here, abs=1e-6)
    assert wrapped.evaluate(X, Y, distributed=True) == pytest.approx(here, abs=1e-6)
    assert set(here) == {"loss", "accuracy"}
    outputs = wrapped.predict(X)
    assert np.allclose(np.stack(wrapped.predict(scoring).collect()), outputs, atol=1e-6)
    assert np.allclose(wrapped.predict(X, distributed=True), outputs, atol=1e-6)
    assert np.allclose(np.stack(TFPredictor.from_keras(wrapped.model, scoring).predict().collect()), outputs, atol=1e-6)
    summary = TrainSummary(str(tmp_path), "keras")
    wrapped.set_train_summary(summary)
    training = TFDataset.from_rdd(rdd, **PAIR, batch_size=10, val_rdd=rdd)
    history = wrapped.fit(training, epochs=3)
    assert isinstance(history, keras.callbacks.History)
    assert history.epoch == [0, 1, 2]
    assert set(history.history) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    assert history.history["loss"][2] < history.history["loss"][0]
    assert wrapped.evaluate(X, Y)["loss"] == pytest.approx(history.history["val_loss"][2], rel=1e-5)
    assert len(summary.read_scalar("Loss")) == 12
    local = wrapped.fit(X, Y, batch_size=10, epochs=1, verbose=0)
    assert len(local.history["loss"]) == 1
    wrapped.save_model(str(tmp_path / "whole"))
    again = KerasModel.load_model(str(tmp_path / "whole"))
    assert (tmp_path / "whole.keras").exists()
    assert np.array_equal(again.predict(X), wrapped.predict(X))
    wrapped.save_weights(str(tmp_path / "w.h5"))
    fresh = KerasModel(model())
    fresh.load_weights(str(tmp_path / "w.h5"))
    assert all(np.array_equal(a, b) for a, b in zip(fresh.get_weights(), wrapped.get_weights(), strict=True))
    with pytest.raises(FileExistsError):
        wrapped.save_model(str(tmp_path / "whole"), overwrite=False)


def test_two_inputs_and_two_outputs(sc: SparkContext) -> None:
    wrapped = KerasModel(two_ends())
    x = {"left": X, "right": X[:, :2]}
    y = {"kind": Y, "size": X[:, :1]}
    rows = [({"left": X[i], "right": X[i, :2]}, {"kind": Y[i], "size": X[i, :1]}) for i in range(len(X))]
    stated = {
        "features": {"left": (tf.float32, [4]), "right": (tf.float32, [2])},
        "labels": {"kind": (tf.int32, []), "size": (tf.float32, [1])},
    }
    rdd = uneven(sc, rows)
    here = wrapped.evaluate(
        x, y, batch_per_thread=len(X)
    )  # over several batches Keras's losses of outputs are not exact
    assert len(here) >= 4
    assert wrapped.evaluate(TFDataset.from_rdd(rdd, **stated, batch_per_thread=6)) == pytest.approx(here, abs=1e-5)
    history = wrapped.fit(TFDataset.from_rdd(rdd, **stated, batch_size=12), epochs=2)
    assert history.history["loss"][1] < history.history["loss"][0]
    lacking = {**stated, "labels": {"kind": (tf.int32, [])}}
    with pytest.raises(PlanError, match=r"lack 'size'.*outputs are kind .*, size"):
        wrapped.fit(TFDataset.from_rdd(rdd, **lacking, batch_size=12))


def test_a_method_of_ours_clips_as_the_compiled_optimizer(sc: SparkContext) -> None:
    x = np.array([[3.0, 4.0]] * 2, np.float32)
    net = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    net.compile(keras.optimizers.SGD(0.5, clipnorm=1.0), lambda target, output: output)
    dataset = TFDataset.from_ndarrays((x, np.zeros((2, 1), np.float32)), batch_size=2)
    optimizer = TFOptimizer.from_keras(net, dataset, optimizer=SGD(1.0), replicas=2)
    assert optimizer.sess is None
    optimizer.optimize(MaxEpoch(1))
    assert net.get_weights()[0].ravel() == pytest.approx([-0.6, -0.8])
    optimizer.optimize(MaxEpoch(1))
    assert net.get_weights()[0].ravel() == pytest.approx([-0.6, -0.8])


def test_what_is_wrong_is_said(sc: SparkContext) -> None:
    rdd = sc.parallelize(list(zip(X, Y, strict=True)), 2)
    bare = TFDataset.from_rdd(rdd, **PAIR)
    wrapped = KerasModel(model())
    for call, name in (
        (wrapped.fit, "batch_size"),
        (wrapped.evaluate, "batch_per_thread"),
        (wrapped.predict, "batch_per_thread"),
    ):
        with pytest.raises(PlanError, match=name):
            call(bare)
    training = TFDataset.from_rdd(rdd, **PAIR, batch_size=8)
    with pytest.raises(PlanError, match="validation_data"):
        wrapped.fit(training, validation_data=(X, Y))
    with pytest.raises(PlanError, match="batch_per_thread"):
        wrapped.predict(training)
    with pytest.raises(PlanError, match=r"\(4,\).*\(3,\)"):
        wrapped.fit(TFDataset.from_rdd(rdd, features=(tf.float32, [3]), labels=(tf.int32, []), batch_size=8))
    with pytest.raises(PlanError, match="numbers differ"):
        wrapped.fit(TFDataset.from_rdd(rdd, features=[(tf.float32, [4])] * 2, labels=(tf.int32, []), batch_size=8))
    with pytest.raises(PlanError, match="labels="):
        wrapped.fit(TFDataset.from_rdd(rdd, features=(tf.float32, [4]), batch_size=8))
    with pytest.raises(PlanError, match="Keras 3 model"):
        KerasModel(3)
    with pytest.raises(PlanError, match="optim_method"):
        TFOptimizer.from_keras(model(), training, optimizer="adam")
