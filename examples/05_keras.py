"""A compiled Keras model on a DataFrame: LeNet, two replicas, Keras's own callbacks, a plain Keras file at the end.

The data are the digits that come with scikit-learn or, with --data-dir, the four MNIST idx.gz files of a folder.
"""

import argparse
import tempfile
from pathlib import Path

import keras
import numpy as np
from demo import frame, load
from pyspark.sql import SparkSession

from firesteel import Estimator, init_context, stop_context

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data-dir", type=Path)
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--quick", action="store_true")
options = parser.parse_args()

train_images, test_images, train_labels, test_labels = load(options.data_dir)
if options.quick:
    train_images, train_labels, options.epochs = train_images[:600], train_labels[:600], 1
side = int(np.sqrt(train_images.shape[1]))

model = keras.Sequential(
    [
        keras.Input((side, side, 1)),  # a column of flat rows is given this shape
        keras.layers.Conv2D(20, 5, padding="same", activation="relu"),
        keras.layers.MaxPooling2D(2),
        keras.layers.Conv2D(50, 5, padding="same", activation="relu"),
        keras.layers.MaxPooling2D(2),
        keras.layers.Flatten(),
        keras.layers.Dense(128, activation="relu"),
        keras.layers.Dropout(0.3),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
model.compile(keras.optimizers.Adam(1e-3), "sparse_categorical_crossentropy", metrics=["accuracy"])

init_context("local", cores=2)
spark = SparkSession.builder.getOrCreate()
with tempfile.TemporaryDirectory() as work:
    train = frame(spark, Path(work, "train"), train_images, train_labels)
    test = frame(spark, Path(work, "test"), test_images, test_labels)
    columns = {"feature_cols": "pixels", "label_cols": "label"}

    estimator = Estimator.from_keras(model, workers_per_node=2, seed=1)
    history = estimator.fit(
        train,
        epochs=options.epochs,
        batch_size=64,
        validation_data=test,
        callbacks=[
            keras.callbacks.ReduceLROnPlateau(patience=1, factor=0.3),
            keras.callbacks.ModelCheckpoint(f"{work}/best.keras", monitor="val_accuracy", save_best_only=True),
        ],
        **columns,
    )
    print("validation accuracy by epoch:", [round(value, 4) for value in history["val_accuracy"]])
    print(estimator.evaluate(test, **columns))

    best = keras.saving.load_model(f"{work}/best.keras")  # a plain Keras model: it needs neither Spark nor us
    print(f"the best epoch's model, read back: {best.count_params():,} weights")
    estimator.predict(test, feature_cols="pixels").select("label", "prediction").show(3)
stop_context()
