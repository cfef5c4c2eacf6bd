"""A TensorFlow graph trained asynchronously, as SparkFlow's document has it: partitions push, nobody waits."""

import sys
import tempfile

from pyspark.ml.feature import OneHotEncoder, VectorAssembler
from pyspark.ml.pipeline import Pipeline, PipelineModel
from pyspark.sql import SparkSession
from sklearn.datasets import load_digits

from firesteel import SparkAsyncDL, build_graph, init_context, stop_context
from firesteel import tf1 as tf


def small_model():
    x = tf.placeholder(tf.float32, shape=[None, 64], name="x")
    y = tf.placeholder(tf.float32, shape=[None, 10], name="y")
    layer1 = tf.layers.dense(x, 64, activation=tf.nn.relu)
    out = tf.layers.dense(layer1, 10)
    tf.argmax(out, 1, name="out")
    return tf.losses.softmax_cross_entropy(y, out)


init_context("local", cores=2)
spark = SparkSession.builder.getOrCreate()
pixels, labels = load_digits(return_X_y=True)
names = [f"p{place}" for place in range(64)]
rows = [(float(label), *map(float, image / 16)) for image, label in zip(pixels, labels, strict=True)]
df = spark.createDataFrame(rows, ["label", *names]).repartition(2)

spark_model = SparkAsyncDL(
    inputCol="features",
    labelCol="labels",
    tensorflowGraph=build_graph(small_model),
    tfInput="x:0",
    tfLabel="y:0",
    tfOutput="out:0",
    tfOptimizer="adam",
    tfLearningRate=0.002,
    iters=3 if "--quick" in sys.argv else 30,
    miniBatchSize=64,  # in each partition
    acquireLock=False,  # Hogwild: pulls and updates may meet
    verbose=1,
)
stages = [
    VectorAssembler(inputCols=names, outputCol="features"),
    OneHotEncoder(inputCol="label", outputCol="labels", dropLast=False),
    spark_model,
]
fitted = Pipeline(stages=stages).fit(df)

with tempfile.TemporaryDirectory() as folder:
    fitted.write().overwrite().save(folder)
    scored = PipelineModel.load(folder).transform(df)
    print("accuracy:", scored.filter("label = predicted").count() / scored.count())
stop_context()
