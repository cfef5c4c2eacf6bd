"""SparkFlow's document as it stands there; imports and the csv are ours. In its own process: tf1 ends eager mode."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

SNIPPET = """
from firesteel.pipeline import build_graph
from firesteel.pipeline import SparkAsyncDL
from firesteel import tf1 as tf
from pyspark.ml.feature import VectorAssembler, OneHotEncoder
from pyspark.ml.pipeline import Pipeline

#simple tensorflow network
def small_model():
    x = tf.placeholder(tf.float32, shape=[None, 784], name='x')
    y = tf.placeholder(tf.float32, shape=[None, 10], name='y')
    layer1 = tf.layers.dense(x, 256, activation=tf.nn.relu)
    layer2 = tf.layers.dense(layer1, 256, activation=tf.nn.relu)
    out = tf.layers.dense(layer2, 10)
    z = tf.argmax(out, 1, name='out')
    loss = tf.losses.softmax_cross_entropy(y, out)
    return loss

df = spark.read.option("inferSchema", "true").csv('mnist_train.csv')
mg = build_graph(small_model)
#Assemble and one hot encode
va = VectorAssembler(inputCols=df.columns[1:785], outputCol='features')
encoded = OneHotEncoder(inputCol='_c0', outputCol='labels', dropLast=False)

spark_model = SparkAsyncDL(
    inputCol='features',
    tensorflowGraph=mg,
    tfInput='x:0',
    tfLabel='y:0',
    tfOutput='out:0',
    tfLearningRate=.001,
    iters=20,
    predictionCol='predicted',
    labelCol='labels',
    verbose=1
)

p = Pipeline(stages=[va, encoded, spark_model]).fit(df)
p.write().overwrite().save("location")
"""

BEFORE = """
from pyspark.sql import SparkSession
from firesteel import init_context, stop_context
init_context("local", cores=1)
spark = SparkSession.builder.getOrCreate()
"""

# One slot for two partitions: they train in turn. And both ways to load give what was there before saving.
AFTER = """
from firesteel.pipeline import PysparkPipelineWrapper
from pyspark.ml.pipeline import PipelineModel

before = [row.predicted for row in p.transform(df).collect()]
p = PysparkPipelineWrapper.unwrap(PipelineModel.load('location'))
predictions = p.transform(df)
assert [row.predicted for row in predictions.collect()] == before
assert [row.predicted for row in PipelineModel.load('location').transform(df).collect()] == before
right = predictions.filter("_c0 = predicted").count() / predictions.count()
assert right > 0.95, right

import tensorflow as tensorflow
assert mg == build_graph(small_model)
ones = spark.createDataFrame([(1.0,)] * 100, "x double").repartition(2)

def line():
    x = tf.placeholder(tf.float32, [None, 1], name="x")
    w = tf.Variable(0.0)
    return tf.reduce_mean(tf.multiply(x, w, name="out"))

learner = SparkAsyncDL(inputCol="x", tensorflowGraph=build_graph(line), tfOutput="out:0", iters=3, miniBatchSize=30,
                       tfOptimizer="gradient_descent", tfLearningRate=0.5, acquireLock=True)
(weight,) = learner.fit(ones).getWeights()
assert weight == -6.0, weight

# Averages of a batch norm that was built to be trained: a row alone gets what it gets among all others.
def normal():
    x = tf.placeholder(tf.float32, [None, 1], name="x")
    y = tf.layers.batch_normalization(x, momentum=0.5, training=True)
    return tf.losses.mean_squared_error(x, tf.layers.dense(tf.layers.dropout(y, training=True), 1, name="out"))

rows = spark.createDataFrame([(float(i),) for i in range(8)], "x double").coalesce(1)
model = SparkAsyncDL(inputCol="x", tensorflowGraph=build_graph(normal), tfOutput="out/BiasAdd:0", iters=12).fit(rows)
together, alone = model.transform(rows).first().predicted, model.transform(rows.limit(1)).first().predicted
assert together == alone, (together, alone)
averages = {name.split("/")[-1]: float(value[0]) for name, value in model._values.items() if "moving" in name}
assert abs(averages["moving_mean"] - 3.5) < 0.1 and abs(averages["moving_variance"] - 5.25) < 0.1, averages

# What the rows' own computation raises is a worker's failure.
from firesteel import ReplicaFailed
from pyspark.sql.functions import udf
try:
    learner.fit(ones.select(udf(lambda x: 1 / 0, "double")("x").alias("x")))
except ReplicaFailed as error:
    assert "ZeroDivisionError" in error.traceback and error.rank in (0, 1) and error.host, error
else:
    raise AssertionError("nothing was raised")
stop_context()
"""


def digits(path: Path, rows: int) -> None:
    """Real digits, as large as MNIST's: 8 × 8 pixels become 24 × 24 in the middle of 28 × 28."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    wide = np.zeros((rows, 28, 28))
    wide[:, 2:26, 2:26] = np.kron(images[:rows].reshape(-1, 8, 8), np.ones((3, 3))) / 16
    table = np.column_stack([labels[:rows], wide.reshape(rows, 784)])
    np.savetxt(path, table, delimiter=",", fmt=["%d"] + ["%.4f"] * 784)


def test_the_documents_pipeline(tmp_path: Path) -> None:
    digits(tmp_path / "mnist_train.csv", 700)
    (tmp_path / "script.py").write_text(BEFORE + SNIPPET + AFTER)
    environment = {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "iteration 19: loss" in done.stdout
