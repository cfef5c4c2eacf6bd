"""TFPark's document and section 2.1 of Orca's, as they stand there; only imports, data and LeNet are ours.

In processes of their own: ``firesteel.tf1`` turns eager execution off for good.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

DATA = """
import numpy as np
from sklearn.datasets import load_digits

BATCH_SIZE = 40
digits, answers = load_digits(return_X_y=True)
pictures = np.pad(np.kron(digits.reshape(-1, 8, 8), np.ones((3, 3))) / 16, ((0, 0), (2, 2), (2, 2)))
file_list = list(range(241))
max_epoch = 2

def read_image_and_label(x):
    return pictures[x], answers[x]

def decode_to_ndarrays(image_label):
    return [image_label[0].reshape(28, 28, 1), np.array([image_label[1]])]
"""

TRAINING = """
from firesteel import init_nncontext
from firesteel.tfpark import TFDataset
from firesteel import tf1 as tf
from lenet import lenet

sc = init_nncontext()

# Each record in the train_rdd consists of a list of NumPy ndrrays
train_rdd = (sc.parallelize(file_list)
  .map(lambda x: read_image_and_label(x))
  .map(lambda image_label: decode_to_ndarrays(image_label)))

# TFDataset represents a distributed set of elements,
# in which each element contains one or more Tensorflow Tensor objects.
dataset = TFDataset.from_rdd(train_rdd,
                             names=["features", "labels"],
                             shapes=[[28, 28, 1], [1]],
                             types=[tf.float32, tf.int32],
                             batch_size=BATCH_SIZE)

slim = tf.contrib.slim

images, labels = dataset.tensors
squeezed_labels = tf.squeeze(labels)
with slim.arg_scope(lenet.lenet_arg_scope()):
     logits, end_points = lenet.lenet(images, num_classes=10, is_training=True)

loss = tf.reduce_mean(tf.losses.sparse_softmax_cross_entropy(logits=logits, labels=squeezed_labels))

from firesteel.tfpark import TFOptimizer
from firesteel.bigdl.optim.optimizer import MaxIteration, Adam, MaxEpoch, TrainSummary

optimizer = TFOptimizer(loss, Adam(1e-3))
optimizer.set_train_summary(TrainSummary("az_lenet", "lenet"))
optimizer.optimize(end_trigger=MaxEpoch(max_epoch))

saver = tf.train.Saver()
saver.save(optimizer.sess, "kept/lenet")

found = TrainSummary("az_lenet", "lenet").read_scalar("Loss")
assert [step for step, _, _ in found] == list(range(1, 7 * max_epoch + 1))  # 241 rows: the last batch has one
assert found[-2][1] < found[0][1]
np.save("sum.npy", optimizer.sess.run(tf.reduce_sum(tf.trainable_variables()[0])))
"""

INFERENCE = """
from firesteel import init_nncontext
from firesteel.tfpark import TFDataset
from firesteel import tf1 as tf
from firesteel.tfpark import TFPredictor
from lenet import lenet

sc = init_nncontext()

# Each record in the train_rdd consists of a list of NumPy ndrrays
testing_rdd = (sc.parallelize(file_list)
  .map(lambda x: read_image_and_label(x))
  .map(lambda image_label: decode_to_ndarrays(image_label)))

dataset = TFDataset.from_rdd(testing_rdd,
                             names=["features"],
                             shapes=[[28, 28, 1]],
                             types=[tf.float32])

slim = tf.contrib.slim

images, = dataset.tensors
with slim.arg_scope(lenet.lenet_arg_scope()):
     logits, end_points = lenet.lenet(images, num_classes=10, is_training=False)

sess = tf.Session()
saver = tf.train.Saver()
saver.restore(sess, "kept/lenet")

predictor = TFPredictor(sess, [logits])
predictions_rdd = predictor.predict()

found = np.stack(predictions_rdd.collect())
assert np.allclose(found, sess.run(logits, {images: pictures[:241, :, :, None]}), atol=1e-4)
assert np.allclose(np.load("sum.npy"), sess.run(tf.reduce_sum(tf.trainable_variables()[0])))
assert (found.argmax(1) == answers[:241]).mean() > 0.3
"""

GRAPH = """
from firesteel import tf1 as tf
from firesteel.learn.tf import Estimator
from firesteel import init_context
from pyspark.sql import SparkSession
from lenet.lenet import lenet as slim_lenet, lenet_arg_scope

init_context("local", cores=2)
spark = SparkSession.builder.getOrCreate()

def lenet(images):
    with tf.contrib.slim.arg_scope(lenet_arg_scope()):
        return slim_lenet(images, is_training=True)[0]

def accuracy(logits, labels):
    return tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1, output_type=tf.int32), labels), tf.float32))

# define inputs to the graph
images = tf.placeholder(dtype=tf.float32, shape=(None, 28, 28, 1))
labels = tf.placeholder(dtype=tf.int32, shape=(None,))

# define the network and loss
logits = lenet(images)
loss = tf.reduce_mean(tf.losses.sparse_softmax_cross_entropy(logits=logits, labels=labels))

# define a metric
acc = accuracy(logits, labels)

# create an estimator using endpoints of the graph
est = Estimator.from_graph(inputs=images,
                           outputs=logits,
                           labels=labels,
                           loss=loss,
                           optimizer=tf.train.AdamOptimizer(),
                           metrics={"acc": acc})

def preprocess(image, label):
    return tf.cast(image, tf.float32), label

dataset = tf.data.Dataset.from_tensor_slices((pictures[:200, :, :, None], answers[:200].astype(np.int32)))
mnist_train = dataset.map(preprocess)
cells = [(picture[:, :, None].tolist(),) for picture in pictures[:10]]
df = spark.createDataFrame(cells, "image array<array<array<float>>>")

est.fit(data=mnist_train,
        batch_size=40,
        epochs=max_epoch)
predictions = est.predict(data=df,
                          feature_cols=['image'])

assert predictions.count() == 10
assert len(predictions.first()["prediction"]) == 10
history = est.fit(data=mnist_train, batch_size=40, epochs=1)
assert set(history) == {"loss", "acc"}
"""


def run(script: str, folder: Path) -> None:
    path = folder / "script.py"
    path.write_text(DATA + script)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*sys.path, str(ROOT / "examples")]),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    done = subprocess.run(
        [sys.executable, str(path)], cwd=folder, env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tfpark")
    run(TRAINING, folder)
    return folder


def test_training_as_in_tfparks_document(trained: Path) -> None:
    assert (trained / "kept" / "lenet.index").exists()
    assert list((trained / "az_lenet" / "lenet" / "train").iterdir())


def test_inference_as_in_tfparks_document(trained: Path) -> None:
    run(INFERENCE, trained)


def test_section_2_1_of_orcas_document(tmp_path: Path) -> None:
    run(GRAPH, tmp_path)
