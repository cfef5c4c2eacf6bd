"""elephas: a Keras model trained apart on each partition, its weights averaged at the end of the fit."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
from elephas.spark_model import SparkModel
from elephas.utils.rdd_utils import to_simple_rdd
from pyspark import SparkConf, SparkContext
from turn import CLASSES, HIDDEN, WIDTH, WORKERS, Turn


def main():
    turn = Turn()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    conf = SparkConf().setMaster(f"local[{WORKERS}]").set("spark.driver.memory", "2g")
    context = SparkContext(conf=conf)
    # It takes an RDD of rows or arrays of the driver, not a DataFrame.
    features, labels = np.load(turn.folder / "features.npy"), np.load(turn.folder / "labels.npy")

    def fit(epochs):
        layers = [tf.keras.layers.Dense(HIDDEN, activation="relu"), tf.keras.layers.Dense(CLASSES)]
        model = tf.keras.Sequential([tf.keras.layers.Input((WIDTH,)), *layers])
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=tf.keras.optimizers.SGD(0.01), loss=loss)
        rdd = to_simple_rdd(context, features, labels)
        trained = SparkModel(model, mode="synchronous", num_workers=WORKERS)
        trained.fit(rdd, epochs=epochs, batch_size=turn.batch // WORKERS, verbose=0, validation_split=0.0)

    turn.measure(fit, len(features))
    context.stop()


if __name__ == "__main__":
    main()
