"""The frames and TFPark doors through Spark Connect, run by ``test_frames``: prints what it saw as a line of JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from pyspark.sql import functions as F

import firesteel.frames as tfs
from firesteel import TFDataset, TFOptimizer, TFPredictor, init_context, stop_context
from firesteel.bigdl import SGD, MaxEpoch

seen: dict[str, Any] = {}


def rows(df: Any) -> list[Any]:
    return [list(row) for row in df.collect()]


def z(x: Any) -> Any:
    return x + 3


def main() -> None:
    spark = init_context("connect", remote="local[2]")
    ten = spark.range(0, 10, 1, 3).select(F.col("id").cast("double").alias("x"))

    # The document's example, with tensors of a graph.
    numbers = spark.createDataFrame([(3, 4), (1, 2)], "x bigint, y bigint").coalesce(1)
    with tf.Graph().as_default():
        x, y = tf.placeholder(tf.int32, name="x"), tf.placeholder(tf.int32, name="y")
        made = tfs.map_rows(tf.add(x, y * 3, name="z"), numbers)
    seen["document"] = [made.columns, rows(made)]
    with tf.Graph().as_default():
        seen["graph"] = rows(tfs.map_blocks(tf.add(tfs.block(ten, "x"), 3, name="z"), ten.coalesce(1)))

    # Functions on blocks and rows; nothing else about the frame matters.
    seen["blocks"] = rows(tfs.map_blocks(z, ten))
    seen["rows"] = rows(tfs.map_rows(z, ten))
    made = tfs.map_blocks(z, ten)
    seen["schema"] = [made.schema["z"].nullable, made.schema["z"].metadata["firesteel.shape"]]
    three = spark.range(0, 3, 1, 1)
    constant = tfs.program(lambda: np.array([2]), outputs=["z"])
    seen["trim"] = rows(tfs.map_blocks(constant, three, trim=True))

    # Reductions and keys.
    pairs = spark.createDataFrame([([float(k), -float(k)],) for k in range(10)], "y array<double>").coalesce(1)
    known = tfs.analyze(pairs.withColumn("z", F.col("y")))
    seen["explain"] = tfs.explain(known).splitlines()
    fold = tfs.program(lambda y_input, z_input: {"y": y_input.sum(0), "z": z_input.min(0)})
    seen["reduce"] = [each.tolist() for each in tfs.reduce_blocks(fold, known)]
    seen["pairs"] = tfs.reduce_rows(tfs.program(lambda x_1, x_2: {"x": x_1 + x_2}), ten)
    keyed = ten.filter("x < 4").withColumn("key", (F.col("x") % 2).cast("int").cast("string"))
    total = tfs.program(lambda x_input: {"x": x_input.sum()})
    made = tfs.aggregate(total, keyed.groupBy("key"))
    seen["aggregate"] = [made.columns, sorted(rows(made))]
    seen["expression"] = sorted(rows(tfs.aggregate(total, keyed.groupBy((F.col("x") > 2).alias("big"), "key"))))
    try:
        tfs.aggregate(total, keyed.rollup("key"))
    except ValueError as error:
        seen["rollup"] = str(error)

    # A program too large for a query plan goes as a file.
    table = np.zeros(1 << 18) + 2.0
    seen["large"] = rows(
        tfs.map_blocks(tfs.program(lambda x: {"t": x * table[x.astype(int)]}), three.selectExpr("double(id) x"))
    )

    # TFPark on columns: trained by two replicas, scored into a column.
    frame = spark.createDataFrame([(k, float(k % 3), 2.0 * (k % 3)) for k in range(12)], "id int, x float, y float")
    with tf.Graph().as_default():
        dataset = TFDataset.from_dataframe(frame, ["x"], ["y"], batch_size=6)
        given, target = dataset.tensors
        w = tf.get_variable("w", [], initializer=tf.zeros_initializer())
        optimizer = TFOptimizer(tf.reduce_mean(tf.square(w * given - target)), SGD(0.2), replicas=2)
        optimizer.optimize(MaxEpoch(10))
        trained = TFDataset.from_dataframe(frame.coalesce(1), ["x"], batch_per_thread=5)
        made = TFPredictor(optimizer.sess, [tf.multiply(trained.tensors[0], w, name="out")]).predict_dataframe()
        seen["trained"] = [float(optimizer.sess.run(w)), made.columns, [row["out"] for row in made.collect()]]
    stop_context()


if __name__ == "__main__":
    main()
    sys.stdout.write("SEEN " + json.dumps(seen) + "\n")
