"""Small programs on the columns of a DataFrame: add to vectors, fold them, mean and harmonic mean for each key.

A function's parameters are the columns that it reads, what it returns are columns that it makes. Nothing runs before
the rows are asked for.
"""

import numpy as np
from pyspark.sql import SparkSession

import firesteel.frames as tfs
from firesteel import init_context, stop_context

init_context("local", cores=2)
spark = SparkSession.builder.getOrCreate()


# Vectors: a block of rows is one array, with the rows first.
def z(y):
    return y + 3


def y(y_input):
    return y_input.sum(axis=0)


rows = [([float(k), -float(k)],) for k in range(10)]
vectors = tfs.analyze(spark.createDataFrame(rows, "y array<double>"))  # reads all once, and notes the shapes
added = tfs.map_blocks(z, vectors)
tfs.print_schema(added)
assert added.columns == ["z", "y"]
assert added.first()["z"] == [3.0, 3.0]
assert tfs.reduce_blocks(y, vectors).tolist() == [45.0, -45.0]

# The mean of each key: sums and counts, folded where the rows lie before they are brought together.
scores = spark.createDataFrame([("a", 1.0), ("b", 3.0), ("a", 4.0), ("b", 6.0), ("a", 4.0)], "key string, x double")
counted = tfs.map_blocks(tfs.program(lambda x: {"count": np.ones_like(x)}), scores)
sums = tfs.program(lambda x_input, count_input: {"x": x_input.sum(), "count": count_input.sum()})
totals = tfs.aggregate(sums, counted.groupBy("key"))
means = tfs.map_rows(tfs.program(lambda x, count: {"mean": x / count}), totals)
found = {row["key"]: row["mean"] for row in means.collect()}
print("means", found)
assert found == {"a": 3.0, "b": 4.5}

# The harmonic mean: the same on one over x.
inverted = tfs.map_blocks(tfs.program(lambda x: {"inverse": 1 / x, "count": np.ones_like(x)}), scores)
sums = tfs.program(lambda inverse_input, count_input: {"inverse": inverse_input.sum(), "count": count_input.sum()})
totals = tfs.aggregate(sums, inverted.groupBy("key"))
harmonic = tfs.map_rows(tfs.program(lambda inverse, count: {"mean": count / inverse}), totals)
found = {row["key"]: row["mean"] for row in harmonic.collect()}
print("harmonic means", found)
assert np.allclose([found["a"], found["b"]], [2.0, 4.0])

stop_context()
