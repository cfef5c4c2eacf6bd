"""``firesteel.tf1`` is the TensorFlow 1 that documents know. In processes of its own: it turns eager execution off."""

from __future__ import annotations

import os
import subprocess
import sys

LAYERS = """
import numpy as np
from firesteel import tf1 as tf
import tensorflow

assert not tensorflow.executing_eagerly()
assert tf.placeholder is tensorflow.compat.v1.placeholder
x = tf.placeholder(tf.float32, [None, 4], name="x")
first = tf.layers.dense(x, 3, activation=tf.nn.relu)
second = tf.layers.dense(first, 3)
outer = tf.layers.dense(second, 1, name="outer", activation=tf.nn.sigmoid)
assert (first.name, second.name, outer.name) == ("dense/Relu:0", "dense_1/BiasAdd:0", "outer/Sigmoid:0")
names = [variable.name for variable in tf.global_variables()]
assert names == [f"{layer}/{name}:0" for layer in ("dense", "dense_1", "outer") for name in ("kernel", "bias")]
with tf.variable_scope("m"):
    one = tf.layers.dense(x, 2)
with tf.variable_scope("m", reuse=True):
    other = tf.layers.dense(x, 2)
again = tf.layers.dense(second, 1, name="outer", reuse=True)
assert len(tf.global_variables()) == 8
try:
    tf.layers.dense(second, 1, name="outer")
    raise SystemExit("a second layer of that name was made")
except ValueError as error:
    assert "outer/kernel already exists" in str(error)
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    kernel, bias = session.run(tf.global_variables()[:2])
    limit = (6 / (4 + 3)) ** 0.5  # Glorot
    assert np.abs(kernel).max() <= limit and kernel.std() > 0.2 * limit and not bias.any()
    data = np.random.default_rng(0).random((5, 4))
    assert np.allclose(session.run(first, {x: data}), np.maximum(data @ kernel, 0), atol=1e-6)
    assert np.array_equal(*session.run([one, other], {x: data}))
"""

IMAGES = """
import numpy as np
from firesteel import tf1 as tf

images = tf.placeholder(tf.float32, [None, 8, 8, 3])
training = tf.placeholder(tf.bool, [])
net = tf.layers.conv2d(images, 5, 3, strides=(2, 2), padding="same", name="conv")
normal = tf.layers.batch_normalization(net, training=training, momentum=0.9)
pooled = [tf.layers.max_pooling2d(normal, 2, 2), tf.layers.average_pooling2d(normal, 2, 2)]
flat = tf.layers.flatten(pooled[0])
dropped = tf.layers.dropout(flat, 0.5, training=training)
line = tf.layers.conv1d(tf.reshape(images, [-1, 64, 3]), 4, 3, padding="causal", dilation_rate=2)
assert net.shape.as_list() == [None, 4, 4, 5] and flat.shape.as_list() == [None, 20]
assert line.shape.as_list() == [None, 64, 4]
updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
assert len(updates) == 2
names = {v.name for v in tf.global_variables() if "batch" in v.name}
assert names == {f"batch_normalization/{n}:0" for n in ("gamma", "beta", "moving_mean", "moving_variance")}
assert len(tf.trainable_variables()) == 6
mean, variance = [v for v in tf.global_variables() if "moving" in v.name]
data = np.random.default_rng(0).random((6, 8, 8, 3))
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    before, after = session.run([net, normal], {images: data, training: True})
    moments = before.mean((0, 1, 2)), before.var((0, 1, 2))
    assert np.allclose(after, (before - moments[0]) / np.sqrt(moments[1] + 1e-3), atol=1e-4)
    session.run(updates, {images: data, training: True})
    assert np.allclose(session.run(mean), 0.1 * moments[0], atol=1e-5)
    count = before[..., 0].size
    assert np.allclose(session.run(variance), 0.9 + 0.1 * moments[1] * count / (count - 1), atol=1e-5)
    kept = session.run([mean, variance])
    session.run(updates, {images: data, training: False})
    assert all(np.array_equal(*pair) for pair in zip(kept, session.run([mean, variance])))
    off, all_of_it = session.run([dropped, flat], {images: data, training: False})
    assert np.array_equal(off, all_of_it)
    on, all_of_it = session.run([dropped, flat], {images: data, training: True})
    assert 0.2 < (on == 0).mean() < 0.8 and np.allclose(on[on != 0], 2 * all_of_it[on != 0], atol=1e-5)
    largest, means = session.run(pooled, {images: data, training: False})
    assert (largest >= means).all()

slim = tf.contrib.slim

@slim.add_arg_scope
def scaled(value, factor=1.0):
    return value * factor

with slim.arg_scope([slim.conv2d, slim.fully_connected], weights_regularizer=slim.l2_regularizer(0.5)) as scope:
    with slim.arg_scope([scaled], factor=3.0):
        assert scaled(2.0) == 6.0 and scaled(2.0, factor=1.5) == 3.0
assert scaled(2.0) == 2.0
with slim.arg_scope(scope):
    net = slim.conv2d(images, 4, [3, 3], scope="conv1")
net = slim.max_pool2d(net, [2, 2], scope="pool1")
net = slim.fully_connected(slim.flatten(net), 3, activation_fn=None, scope="fc")
assert net.name == "fc/BiasAdd:0"
wanted = [f"{layer}/{name}:0" for layer in ("conv1", "fc") for name in ("weights", "biases")]
weights = [v for v in tf.trainable_variables() if v.name in wanted]
assert len(weights) == 4
assert len(tf.losses.get_regularization_losses()) == 1
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    penalty, values = session.run([tf.losses.get_regularization_loss(), weights[0]])
    assert np.allclose(penalty, 0.5 * (values ** 2).sum() / 2, rtol=1e-5)
    kept = session.run(slim.dropout(tf.ones([1000]), 0.8))
    assert 0.7 < (kept > 0).mean() < 0.9
"""


def run(script: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TF_CPP_MIN_LOG_LEVEL": "2"}
    command = [sys.executable, "-W", "error", "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-4000:]


def test_layers_have_their_old_names_and_values() -> None:
    run(LAYERS)


def test_images_batch_norm_and_slim() -> None:
    run(IMAGES)
