"""The TensorFlow graph that all subjects train, and the same arithmetic for a loop written by hand."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

__all__ = ["RATE", "SIZES", "initial", "loss_of", "mlp"]

SIZES = (784, 256, 128, 10)
RATE = 0.01


def initial() -> list[Any]:
    """Weights and biases to begin with; always the same ones."""
    import numpy as np

    random = np.random.default_rng(1)
    found = []
    for inputs, outputs in pairwise(SIZES):
        found.append((random.standard_normal((inputs, outputs)) / np.sqrt(inputs)).astype(np.float32))
        found.append(np.zeros(outputs, np.float32))
    return found


def loss_of(features: Any, labels: Any, weights: list[Any]) -> Any:
    """Mean cross-entropy of 784 → 256 → 128 → 10."""
    import tensorflow as tf

    hidden = features
    for place in range(0, len(weights), 2):
        hidden = hidden @ weights[place] + weights[place + 1]
        if place + 2 < len(weights):
            hidden = tf.nn.relu(hidden)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=hidden))


def mlp() -> tuple[Any, Any, Any]:
    """Placeholders and loss, in a graph of their own."""
    import tensorflow as tf

    tf1 = tf.compat.v1
    with tf.Graph().as_default():
        features = tf1.placeholder(tf.float32, [None, SIZES[0]], "features")
        labels = tf1.placeholder(tf.int64, [None], "labels")
        weights = [tf1.get_variable(f"v{place}", initializer=value) for place, value in enumerate(initial())]
        return features, labels, loss_of(features, labels, weights)
