"""A LeNet written for TensorFlow 1: trained by TFOptimizer on two replicas, saved by a Saver, restored, and scored."""

import argparse
import gzip
import os
import tempfile

import numpy as np
from lenet import lenet
from sklearn.datasets import load_digits

from firesteel import init_context, stop_context
from firesteel import tf1 as tf
from firesteel.bigdl import Adam, MaxEpoch, TrainSummary
from firesteel.tfpark import TFDataset, TFOptimizer, TFPredictor

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--quick", action="store_true", help="a few hundred rows")
parser.add_argument("--data-dir", help="a folder with MNIST's four .gz files; default: scikit-learn's digits")
parser.add_argument("--epochs", type=int, default=2)
options = parser.parse_args()


def mnist(folder, name):
    """One of MNIST's files."""
    with gzip.open(os.path.join(folder, name)) as file:
        data = file.read()
    axes = data[3]  # after two zeros and a byte for the dtype
    shape = [int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(axes)]
    return np.frombuffer(data, np.uint8, offset=4 + 4 * axes).reshape(shape)


if options.data_dir:
    parts = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    train_x, train_y, test_x, test_y = (mnist(options.data_dir, f"{part}-ubyte.gz") for part in parts)
else:
    digits, answers = load_digits(return_X_y=True)
    pictures = np.pad(np.kron(digits.reshape(-1, 8, 8), np.ones((3, 3))) * 15, ((0, 0), (2, 2), (2, 2)))
    count = 300 if options.quick else 1500
    train_x, train_y, test_x, test_y = pictures[:count], answers[:count], pictures[-297:], answers[-297:]


def decode(image_label):
    """A row: one array for each name of the dataset. Runs in Spark's tasks."""
    image, label = image_label
    return [image[:, :, None].astype(np.float32) / 255, np.array([label])]


sc = init_context("local", cores=2)


def rows(images, labels):
    """Pictures travel as bytes, and become numbers where they are needed."""
    return sc.parallelize(list(zip(images.astype(np.uint8), labels, strict=True)), 2).map(decode)


folder = tempfile.mkdtemp()

# --- training ---
dataset = TFDataset.from_rdd(
    rows(train_x, train_y),
    names=["features", "labels"],
    shapes=[[28, 28, 1], [1]],
    types=[tf.float32, tf.int32],
    batch_size=256 if options.data_dir else 50,
)
images, labels = dataset.tensors
with tf.contrib.slim.arg_scope(lenet.lenet_arg_scope()):
    logits, _ = lenet.lenet(images, is_training=True)
loss = tf.reduce_mean(tf.losses.sparse_softmax_cross_entropy(logits=logits, labels=tf.squeeze(labels)))
optimizer = TFOptimizer(loss, Adam(1e-3), replicas=2)
optimizer.set_train_summary(TrainSummary(folder, "lenet"))
optimizer.optimize(end_trigger=MaxEpoch(options.epochs))
losses = TrainSummary(folder, "lenet").read_scalar("Loss")
print(f"{len(losses)} steps, the loss went from {losses[0][1]:.3f} to {losses[-1][1]:.3f}")
path = tf.train.Saver().save(optimizer.sess, os.path.join(folder, "model"))

# --- inference, in another graph ---
with tf.Graph().as_default():
    dataset = TFDataset.from_rdd(rows(test_x, test_y), names=["features"], shapes=[[28, 28, 1]], types=[tf.float32])
    (images,) = dataset.tensors
    with tf.contrib.slim.arg_scope(lenet.lenet_arg_scope()):
        logits, _ = lenet.lenet(images, is_training=False)
    with tf.Session() as session:
        tf.train.Saver().restore(session, path)
        predictor = TFPredictor(session, [logits])
predictions = np.stack(predictor.predict().collect())
print(f"accuracy on {len(test_y)} test images: {(predictions.argmax(1) == test_y).mean():.4f}")
stop_context()
