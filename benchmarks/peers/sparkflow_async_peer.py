"""sparkflow itself, with its document's model, on a DataFrame of vectors.

Each weight that it sets adds nodes to the graph, so that it gets slower as it goes on: it is given few rows. Prints
one line of JSON: rows per second of a fit, less a fit of two batches, which is mostly the wait for its server.
"""

import argparse
import json
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import turn  # Spark's workers run this environment's Python  # noqa: F401
from pyspark.ml.functions import array_to_vector
from pyspark.sql import SparkSession
from pyspark.sql.functions import array, col, lit
from sparkflow.graph_utils import build_graph  # before tensorflow: see tf1_names
from sparkflow.tensorflow_async import SparkAsyncDL


def network():
    import tensorflow as tf

    x = tf.placeholder(tf.float32, shape=[None, 784], name="x")
    y = tf.placeholder(tf.float32, shape=[None, 10], name="y")
    hidden = tf.layers.dense(x, 256, activation=tf.nn.relu)
    hidden = tf.layers.dense(hidden, 256, activation=tf.nn.relu)
    out = tf.layers.dense(hidden, 10)
    tf.argmax(out, 1, name="out")
    return tf.losses.softmax_cross_entropy(y, out)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True, help="Parquet of features array<float> and label")
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--rows", type=int, required=True)
    options = parser.parse_args()
    spark = SparkSession.builder.master("local[2]").config("spark.driver.memory", "4g").getOrCreate()
    hot = array(*[(col("label") == lit(place)).cast("double") for place in range(10)])
    rows = spark.read.parquet(options.data).select(
        array_to_vector(col("features").cast("array<double>")).alias("features"), array_to_vector(hot).alias("labels")
    )
    graph = build_graph(network)

    def fit(count, epochs, port):
        given = rows.limit(count).repartition(2).cache()
        given.count()
        stage = SparkAsyncDL(
            inputCol="features",
            tensorflowGraph=graph,
            tfInput="x:0",
            tfLabel="y:0",
            tfOutput="out:0",
            tfOptimizer="adam",
            tfLearningRate=0.001,
            iters=epochs,
            miniBatchSize=options.batch,
            labelCol="labels",
            predictionCol="predicted",
            verbose=0,
            port=port,
        )
        begin = time.perf_counter()
        stage.fit(given)
        return time.perf_counter() - begin

    few = 2 * options.batch
    fit(few, 1, 5301)
    start, whole = fit(few, 1, 5302), fit(options.rows, options.epochs, 5303)
    counted = options.rows * options.epochs - few
    print(json.dumps({"rate": counted / (whole - start), "seconds": whole, "start": start}), flush=True)


if __name__ == "__main__":  # its server is a process that imports this file
    main()
