"""The Keras snippets of the Orca document, as written but for imports and the source of the data."""

from __future__ import annotations

from typing import Any

import numpy as np
from pyspark.sql import SparkSession
from sklearn.datasets import load_digits

from firesteel.learn.tf2 import Estimator

keras: Any = __import__("keras")
tf: Any = __import__("tensorflow")

IMAGES, LABELS = load_digits(return_X_y=True)
IMAGES = (IMAGES[:400] / 16).reshape(-1, 8, 8, 1).astype(np.float32)
LABELS = LABELS[:400].astype(np.int64)
max_epoch, batch_size, total_size = 1, 100, 400


def create_keras_lenet_model() -> Any:
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(8, 3, activation="tanh"),
            keras.layers.MaxPooling2D(2),
            keras.layers.Flatten(),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )


def test_a_compiled_model(spark: SparkSession) -> None:
    df = spark.createDataFrame([(image.reshape(-1).tolist(),) for image in IMAGES[:30]], "image array<float>")
    model = create_keras_lenet_model()
    model.compile(optimizer=keras.optimizers.RMSprop(), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    est = Estimator.from_keras(keras_model=model)
    dataset = tf.data.Dataset.from_tensor_slices({"image": IMAGES, "label": LABELS})
    dataset = dataset.map(lambda row: (row["image"], row["label"]))
    est.fit(data=dataset, batch_size=320, epochs=max_epoch)
    predictions = est.predict(data=df, feature_cols=["image"])
    rows = predictions.collect()
    assert len(rows) == 30
    assert np.allclose(rows[3]["prediction"].toArray(), model.predict(IMAGES[3:4], verbose=0)[0], atol=1e-5)


def test_a_creator(spark: SparkSession) -> None:
    df = spark.createDataFrame([(image.reshape(-1).tolist(),) for image in IMAGES[:30]], "image array<float>")

    def model_creator(config: dict[str, Any]) -> Any:
        model = create_keras_lenet_model()
        model.compile(
            optimizer=keras.optimizers.RMSprop(), loss="sparse_categorical_crossentropy", metrics=["accuracy"]
        )
        return model

    est = Estimator.from_keras(model_creator=model_creator)

    def train_data_creator(config: dict[str, Any], batch_size: int) -> Any:
        dataset = tf.data.Dataset.from_tensor_slices({"image": IMAGES, "label": LABELS})
        dataset = dataset.map(lambda row: (row["image"], row["label"]))
        return dataset.batch(batch_size)

    stats = est.fit(data=train_data_creator, epochs=max_epoch, steps_per_epoch=total_size // batch_size)
    assert len(stats["loss"]) == len(stats["accuracy"]) == max_epoch
    again = est.fit(data=train_data_creator, epochs=max_epoch)
    assert again["loss"][0] < stats["loss"][0]
    predictions = est.predict(data=df, feature_cols=["image"])
    assert predictions.count() == 30
