"""LeNet as it was written with slim, for TensorFlow 1: two convolutions, two dense layers."""

from firesteel import tf1 as tf

slim = tf.contrib.slim


def lenet(images, num_classes=10, is_training=False, keep_prob=0.5, scope="LeNet"):
    """Logits for images of 28 × 28, and the tensors on the way there."""
    end_points = {}
    with tf.variable_scope(scope, "LeNet", [images]):
        net = end_points["conv1"] = slim.conv2d(images, 32, [5, 5], scope="conv1")
        net = end_points["pool1"] = slim.max_pool2d(net, [2, 2], 2, scope="pool1")
        net = end_points["conv2"] = slim.conv2d(net, 64, [5, 5], scope="conv2")
        net = end_points["pool2"] = slim.max_pool2d(net, [2, 2], 2, scope="pool2")
        net = end_points["flat"] = slim.flatten(net)
        net = end_points["fc3"] = slim.fully_connected(net, 256, scope="fc3")
        net = slim.dropout(net, keep_prob, is_training=is_training, scope="dropout3")
        logits = end_points["logits"] = slim.fully_connected(net, num_classes, activation_fn=None, scope="fc4")
    end_points["predictions"] = slim.softmax(logits, scope="predictions")
    return logits, end_points


def lenet_arg_scope(weight_decay=0.0):
    """What its layers share."""
    with slim.arg_scope(
        [slim.conv2d, slim.fully_connected],
        weights_regularizer=slim.l2_regularizer(weight_decay),
        weights_initializer=tf.truncated_normal_initializer(stddev=0.1),
        activation_fn=tf.nn.relu,
    ) as scope:
        return scope
