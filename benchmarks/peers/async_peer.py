"""SparkAsyncDL: the SparkFlow document's model on a DataFrame of vectors, hogwild, in a process of its own.

Prints one line of JSON: rows per second of the second fit.
"""

import argparse
import json
import time

from pyspark.ml.functions import array_to_vector
from pyspark.sql import SparkSession
from pyspark.sql.functions import array, col, lit

from firesteel import init_context, stop_context, tf1
from firesteel.pipeline import SparkAsyncDL, build_graph


def network():
    x = tf1.placeholder(tf1.float32, shape=[None, 784], name="x")
    y = tf1.placeholder(tf1.float32, shape=[None, 10], name="y")
    hidden = tf1.layers.dense(x, 256, activation=tf1.nn.relu)
    hidden = tf1.layers.dense(hidden, 256, activation=tf1.nn.relu)
    out = tf1.layers.dense(hidden, 10)
    tf1.argmax(out, 1, name="out")
    return tf1.losses.softmax_cross_entropy(y, out)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True, help="Parquet of features array<float> and label")
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    options = parser.parse_args()
    init_context("local", cores=2, memory="4g")
    spark = SparkSession.builder.getOrCreate()
    hot = array(*[(col("label") == lit(place)).cast("double") for place in range(10)])
    rows = spark.read.parquet(options.data).select(
        array_to_vector(col("features").cast("array<double>")).alias("features"), array_to_vector(hot).alias("labels")
    )
    rows = rows.repartition(2).cache()
    count = rows.count()
    stage = SparkAsyncDL(
        inputCol="features",
        tensorflowGraph=build_graph(network),
        tfInput="x:0",
        tfLabel="y:0",
        tfOutput="out:0",
        tfOptimizer="adam",
        tfLearningRate=0.001,
        iters=options.epochs,
        miniBatchSize=options.batch,
        labelCol="labels",
        predictionCol="predicted",
        verbose=0,
    )
    seconds = 0.0
    for _ in range(2):
        begin = time.perf_counter()
        stage.fit(rows)
        seconds = time.perf_counter() - begin
    print(json.dumps({"rate": count * options.epochs / seconds, "seconds": seconds}), flush=True)
    stop_context()


if __name__ == "__main__":
    main()
