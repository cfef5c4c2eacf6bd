"""A program on a cluster, under either library: how long an empty one takes, and how fast Spark feeds one.

The same lines for both, but for the import: that is what the door promises.
"""

import argparse
import json
import os
import sys
import time

import pyspark

os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ.setdefault("SPARK_HOME", os.path.dirname(pyspark.__file__))
_NODES = 2


def idle(args, ctx):
    """A program that has nothing to do."""


def count(args, ctx):
    """Takes rows, batch by batch, and drops them."""
    feed = ctx.get_data_feed()
    while not feed.should_stop():
        feed.next_batch(args["batch"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", choices=("firesteel", "tensorflowonspark"), required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--rows", type=int, required=True)
    options = parser.parse_args()
    if options.library == "firesteel":
        from firesteel.tfcluster import TFCluster
    else:
        from tensorflowonspark import TFCluster

    spark = (
        pyspark.sql.SparkSession.builder.master(f"local-cluster[{_NODES},1,2048]")
        .config("spark.ui.enabled", "false")
        .config("spark.executorEnv.TF_CPP_MIN_LOG_LEVEL", "2")
        .getOrCreate()
    )
    frame = spark.read.parquet(options.data)
    # Its users feed RDDs; a DataFrame is what ours feed.
    rows = frame if options.library == "firesteel" else frame.rdd.map(tuple)
    frame.rdd.count()  # executors and their Python are up, for both

    begin = time.perf_counter()
    cluster = TFCluster.run(spark.sparkContext, idle, {}, _NODES, 0, input_mode=TFCluster.InputMode.TENSORFLOW)
    cluster.shutdown()
    empty = time.perf_counter() - begin

    cluster = TFCluster.run(spark.sparkContext, count, {"batch": 512}, _NODES, 0, input_mode=TFCluster.InputMode.SPARK)
    begin = time.perf_counter()
    cluster.train(rows, 1)
    rate = options.rows / (time.perf_counter() - begin)
    cluster.shutdown()
    spark.stop()
    print(json.dumps({"empty": empty, "rate": rate}), flush=True)


if __name__ == "__main__":
    main()
