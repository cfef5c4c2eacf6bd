"""TensorFlow graphs that tests of the pipeline door train, built of plain variables."""

from __future__ import annotations

from typing import Any

tf: Any = __import__("tensorflow").compat.v1


def dense(x: Any, units: int, name: str, activation: Any = None) -> Any:
    with tf.variable_scope(name):
        kernel = tf.get_variable("kernel", [x.shape[1], units], tf.float32, tf.glorot_uniform_initializer(seed=1))
        bias = tf.get_variable("bias", [units], tf.float32, tf.zeros_initializer())
        out = tf.add(tf.matmul(x, kernel), bias)
        return out if activation is None else activation(out, name=activation.__name__.capitalize())


def line() -> Any:
    """out = w·x and the loss is its mean: with x = 1 each push of gradient descent moves w by the rate."""
    x = tf.placeholder(tf.float32, [None, 1], name="x")
    w = tf.Variable(0.0, name="w")
    return tf.reduce_mean(tf.multiply(x, w, name="out"))


def remainder() -> Any:
    """What is left of whole numbers by a thousand."""
    ids = tf.placeholder(tf.int32, [None, 1], name="ids")
    tf.identity(ids % 1000, name="rest")
    return tf.constant(0.0)


def classifier() -> Any:
    """10-12-7-1 with a sigmoid at the end; its tensor is ``outer/Sigmoid:0``."""
    x = tf.placeholder(tf.float32, [None, 10], name="x")
    y = tf.placeholder(tf.float32, [None, 1], name="y")
    hidden = dense(dense(x, 12, "first", tf.nn.relu), 7, "second", tf.nn.relu)
    out = dense(hidden, 1, "outer", tf.nn.sigmoid)
    tf.identity(tf.cast(tf.greater_equal(out, 0.5), tf.int64)[:, 0], name="class")
    return tf.losses.log_loss(y, out)


def autoencoder() -> Any:
    x = tf.placeholder(tf.float32, [None, 6], name="x")
    out = dense(dense(x, 2, "bottleneck", tf.nn.tanh), 6, "wide")
    tf.losses.mean_squared_error(x, out)


def regular(*, keeps: bool) -> Any:
    """Batch norm by hand, and dropout by a placeholder that means what is kept, or what is dropped."""
    x = tf.placeholder(tf.float32, [None, 3], name="x")
    y = tf.placeholder(tf.float32, [None, 1], name="y")
    rate = tf.placeholder_with_default(0.6 if keeps else 0.4, [], name="rate")
    training = tf.placeholder_with_default(True, [], name="training")
    mean = tf.get_variable("mean", [3], initializer=tf.zeros_initializer(), trainable=False)
    batch_mean = tf.reduce_mean(x, 0)
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, tf.assign(mean, 0.5 * mean + 0.5 * batch_mean))
    centred = x - mean
    kept = rate if keeps else 1.0 - rate
    noise = tf.floor(kept + tf.random_uniform(tf.shape(centred)))
    hidden = tf.div(centred, kept) * noise
    del training
    out = tf.identity(dense(hidden, 1, "last"), name="out")
    return tf.losses.mean_squared_error(y, out)


def ends() -> Any:
    """Outputs of many kinds."""
    x = tf.placeholder(tf.float32, [None, 4], name="x")
    w = tf.get_variable("w", [4, 10], initializer=tf.glorot_uniform_initializer(seed=2))
    logits = tf.matmul(x, w, name="logits")
    tf.argmax(logits, 1, name="class")
    tf.sigmoid(logits[:, :1], name="one")
    tf.reshape(logits, [-1, 5, 2], name="square")
    tf.greater(logits[:, 0], 0.0, name="flag")
    tf.reshape(logits, tf.stack([tf.shape(x)[0], -1]), name="unknown")
    tf.as_string(logits[:, 0], name="words")
    return tf.reduce_mean(logits)
