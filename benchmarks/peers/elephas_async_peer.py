"""elephas with its parameter server: workers exchange with it after every batch, without a lock.

Prints one line of JSON: rows per second of the second fit.
"""

import argparse
import json
import os
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
import turn  # Spark's workers run this environment's Python  # noqa: F401
from elephas.spark_model import SparkModel
from elephas.utils.rdd_utils import to_simple_rdd
from pyspark import SparkConf, SparkContext


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True, help="folder with features.npy and labels.npy")
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--server", choices=("http", "socket"), default="http", help="which of its two; its default")
    options = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    conf = SparkConf().setMaster("local[2]").set("spark.driver.memory", "4g")
    context = SparkContext(conf=conf)
    features, labels = np.load(options.data / "features.npy"), np.load(options.data / "labels.npy")
    seconds = 0.0
    for _ in range(2):
        dense = tf.keras.layers.Dense
        layers = [dense(256, activation="relu"), dense(256, activation="relu"), dense(10)]
        model = tf.keras.Sequential([tf.keras.layers.Input((784,)), *layers])
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=tf.keras.optimizers.Adam(0.001), loss=loss)
        rdd = to_simple_rdd(context, features, labels)
        about = {"frequency": "batch", "num_workers": 2, "parameter_server_mode": options.server}
        trained = SparkModel(model, mode="hogwild", **about)
        begin = time.perf_counter()
        trained.fit(rdd, epochs=options.epochs, batch_size=options.batch, verbose=0, validation_split=0.0)
        seconds = time.perf_counter() - begin
    print(json.dumps({"rate": len(features) * options.epochs / seconds, "seconds": seconds}), flush=True)
    context.stop()


if __name__ == "__main__":
    main()
