"""Details of the estimator's specification that no other test is about: each as a user would meet it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pandas as pd
import pytest
import torch
from pyspark.sql import SparkSession
from torch import nn

from firesteel import Estimator
from firesteel.core.errors import PlanError, SchemaError
from firesteel.data import XShards
from firesteel.data.tf import Dataset
from firesteel.learn.pytorch.callbacks import EarlyStopping

X = np.arange(60, dtype=np.float32).reshape(20, 3) / 60
Y = X.sum(1, keepdims=True)


def compiled(*layers: Any) -> Any:
    keras.utils.set_random_seed(1)
    model = keras.Sequential(list(layers))
    model.compile("sgd", "mse", metrics=["accuracy"])
    return model


@pytest.fixture
def model() -> Any:
    return compiled(keras.Input((3,)), keras.layers.Dense(1))


def test_a_dataset_is_predicted_lazily(spark: SparkSession, model: Any) -> None:
    found = Estimator.from_keras(model).predict(Dataset.from_tensor_slices(XShards.partition({"x": X}, 3)))
    shards = found.collect()
    assert all(list(shard) == ["prediction"] for shard in shards)
    np.testing.assert_allclose(np.concatenate([s["prediction"] for s in shards]), model.predict(X, verbose=0), 1e-5)


def test_whole_numbers_of_a_row_are_a_vector(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(i, [i] * 5) for i in range(20)], ["id", "feature"]).repartition(3)
    scored = Estimator.from_torch(model=nn.Identity()).predict(frame, feature_cols="feature")
    assert [row.prediction.toArray().tolist() for row in scored.collect()] == [
        [float(v) for v in row.feature] for row in scored.collect()
    ]


def test_several_labels_of_one_output_are_joined(spark: SparkSession) -> None:
    rows = [(float(a), float(b), float(a + b), float(a - b)) for a, b in np.random.default_rng(1).random((16, 2))]
    frame = spark.createDataFrame(rows, ["a", "b", "sum", "difference"]).coalesce(1)
    model = compiled(keras.layers.Dense(2))  # knows neither its inputs nor its outputs yet
    history = Estimator.from_keras(model).fit(
        frame,
        epochs=1,
        batch_size=16,
        shuffle=False,
        feature_cols=["a", "b"],
        label_cols=["sum", "difference"],
        verbose=0,
    )
    assert model.input_shape[-1] == 2
    assert np.isfinite(history["loss"][0])


def test_labels_go_to_outputs_by_name(spark: SparkSession) -> None:
    inputs = keras.Input((1,), name="x")
    zero = {"kernel_initializer": "zeros"}
    two = keras.Model(inputs, [keras.layers.Dense(1, name=name, **zero)(inputs) for name in ("one", "other")])
    two.compile("sgd", {"one": "mse", "other": "mse"})
    frame = spark.createDataFrame([(1.0, 1.0, 3.0)] * 4, ["x", "one", "other"])
    found = Estimator.from_keras(two).evaluate(frame, feature_cols="x", label_cols=["other", "one"])
    assert found["one_loss"] == pytest.approx(1.0)
    assert found["other_loss"] == pytest.approx(9.0)


def test_keras_callbacks_see_evaluations_and_predictions(spark: SparkSession, model: Any, tmp_path: Path) -> None:
    class Note(keras.callbacks.Callback):
        def __init__(self, folder: str) -> None:
            super().__init__()
            self.folder = folder

        def on_test_begin(self, logs: Any = None) -> None:
            Path(self.folder, "test").touch()

        def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
            Path(self.folder, f"predict{batch}").touch()

    estimator = Estimator.from_keras(model)
    estimator.evaluate((X, Y), callbacks=[Note(str(tmp_path))])
    estimator.predict(X, callbacks=[Note(str(tmp_path))])
    assert {"test", "predict0"} <= {path.name for path in tmp_path.iterdir()}


def test_an_uncompiled_model_predicts(spark: SparkSession, model: Any, tmp_path: Path) -> None:
    Estimator.from_keras(model).save(str(tmp_path / "m.keras"))
    other = Estimator.from_keras()
    other.load(str(tmp_path / "m.keras"), compile=False)
    np.testing.assert_allclose(other.predict(X), model.predict(X, verbose=0), 1e-5)
    with pytest.raises(PlanError, match="compile"):
        other.fit((X, Y))


def test_a_generator_loses_no_batch(spark: SparkSession, model: Any) -> None:
    def creator(config: Any, batch_size: int) -> Any:
        for begin in range(0, 20, batch_size):
            yield X[begin : begin + batch_size], Y[begin : begin + batch_size]

    estimator = Estimator.from_keras(model)
    estimator.fit(creator, epochs=1, batch_size=4, verbose=0)
    assert len(estimator.get_train_summary("Loss")) == 5


def test_old_names_of_validation_figures(spark: SparkSession, model: Any) -> None:
    estimator = Estimator.from_keras(model)
    assert estimator.get_validation_summary("Top1Accuracy") is None
    stopping = EarlyStopping(monitor="val_accuracy")
    estimator.fit((X, Y), validation_data=(X, Y), epochs=1, verbose=0, early_stopping=stopping)
    assert len(estimator.get_validation_summary("Top1Accuracy")) == 1


def test_columns_of_shards_go_to_inputs_by_name(spark: SparkSession) -> None:
    a, b = keras.Input((1,), name="a"), keras.Input((1,), name="b")
    model = keras.Model([a, b], keras.layers.Subtract()([a, b]))
    model.compile("sgd", "mse")
    arrays = {"a": np.array([5.0, 7.0]), "b": np.array([1.0, 2.0])}
    frames = XShards.partition(arrays, 1).transform_shard(pd.DataFrame)
    (found,) = Estimator.from_keras(model).predict(frames, feature_cols=["b", "a"]).collect()
    assert [float(np.ravel(each)[0]) for each in found["prediction"]] == [4.0, 5.0]


def test_a_null_in_validation_data_names_its_column(spark: SparkSession, model: Any) -> None:
    good = spark.createDataFrame([([0.1, 0.2, 0.3], 1.0)] * 4, ["x", "y"])
    bad = spark.createDataFrame([([0.1, 0.2, 0.3], 1.0), (None, 1.0)], "x array<float>, y float")
    with pytest.raises(SchemaError, match="'x'"):
        Estimator.from_keras(model).fit(good, validation_data=bad, feature_cols="x", label_cols="y", verbose=0)


def test_rows_of_two_lengths_in_two_partitions_name_the_column(spark: SparkSession) -> None:
    parts = [[([1.0, 2.0], 0.0)] * 3, [([1.0, 2.0, 3.0], 0.0)] * 3]
    rows = spark.sparkContext.parallelize(range(2), 2).flatMap(lambda part: parts[part])
    frame = spark.createDataFrame(rows, "feat array<float>, y float")
    model = nn.Linear(2, 1)
    estimator = Estimator.from_torch(
        model=model, optimizer=torch.optim.SGD(model.parameters(), 0.1), loss=nn.MSELoss(), workers_per_node=2
    )
    with pytest.raises(SchemaError, match=r"'feat'.*2.*3|'feat'.*3.*2") as caught:
        estimator.fit(frame, feature_cols="feat", label_cols="y", verbose=0)
    assert caught.value.column == "feat"
