"""k-means on a DataFrame, with a TensorFlow graph for each half of a step: assign points, add them up by cluster.

Placeholders are named after columns; ``tfs.block`` makes them with the column's dtype and shape.
"""

import numpy as np
import tensorflow.compat.v1 as tf
from pyspark.sql import SparkSession

import firesteel.frames as tfs
from firesteel import init_context, stop_context

init_context("local", cores=2)
spark = SparkSession.builder.getOrCreate()

rng = np.random.default_rng(1)
truth = np.array([[0.0, 0.0], [5.0, 5.0], [0.0, 6.0]])
points = np.concatenate([centre + rng.normal(0, 0.4, (200, 2)) for centre in truth])
frame = spark.createDataFrame([(point.tolist(),) for point in points], "point array<double>").repartition(4)
frame = tfs.append_shape(frame, "point", [None, 2]).cache()


def step(centres):
    """New centres: the mean of the points that are nearest to each."""
    with tf.Graph().as_default():
        point = tfs.block(frame, "point")
        distances = tf.reduce_sum(tf.square(point[:, None, :] - tf.constant(centres)), axis=2)
        nearest = tf.argmin(distances, axis=1, name="nearest")
        one = tf.ones_like(nearest, name="one")
        assigned = tfs.map_blocks([nearest, one], frame)
    with tf.Graph().as_default():
        total = tf.reduce_sum(tf.placeholder(tf.float64, [None, 2], name="point_input"), 0, name="point")
        count = tf.reduce_sum(tf.placeholder(tf.int64, [None], name="one_input"), 0, name="one")
        sums = tfs.aggregate([total, count], assigned.groupBy("nearest"))
    found = {row["nearest"]: np.array(row["point"]) / row["one"] for row in sums.collect()}
    return np.array([found.get(k, centre) for k, centre in enumerate(centres)])


centres = points[[0, 200, 400]]
own = ((points[:, None] - centres) ** 2).sum(-1).argmin(1)
expected = np.array([points[own == k].mean(0) for k in range(3)])
moved = step(centres)
assert np.abs(moved - expected).max() < 1e-9
for _ in range(3):
    moved = step(moved)
print(moved.round(2))
assert np.abs(moved - truth).max() < 0.15

stop_context()
