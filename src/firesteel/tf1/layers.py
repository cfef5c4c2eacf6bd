"""``tf.layers`` as it was: functions with the old signatures, defaults and variable names.

Unnamed layers are ``dense``, ``dense_1``, …; a layer's variables are ``dense/kernel`` and ``dense/bias``, its ops are
in its scope, and ``reuse`` and ``variable_scope`` mean what they meant.
"""

from __future__ import annotations

from typing import Any

from tensorflow.compat import v1 as tf

from firesteel.tf1.scopes import activated, chosen, pair, phase, static, variable

__all__ = [
    "average_pooling2d",
    "batch_normalization",
    "conv1d",
    "conv2d",
    "dense",
    "dropout",
    "flatten",
    "max_pooling2d",
]

_ZEROS = tf.zeros_initializer()
_ONES = tf.ones_initializer()
_FORMATS = {"channels_last": "NHWC", "channels_first": "NCHW"}


def dense(
    inputs: Any,
    units: int,
    activation: Any = None,
    use_bias: bool = True,
    kernel_initializer: Any = None,
    bias_initializer: Any = _ZEROS,
    kernel_regularizer: Any = None,
    bias_regularizer: Any = None,
    activity_regularizer: Any = None,
    kernel_constraint: Any = None,
    bias_constraint: Any = None,
    trainable: bool = True,
    name: str | None = None,
    reuse: bool | None = None,
) -> Any:
    """A fully connected layer along the last axis."""
    inputs = tf.convert_to_tensor(inputs)
    with tf.variable_scope(name, default_name="dense", values=[inputs], reuse=reuse):
        width = _known(inputs, -1, "dense")
        kernel = variable(
            "kernel",
            [width, units],
            inputs,
            initializer=kernel_initializer,
            regularizer=kernel_regularizer,
            constraint=kernel_constraint,
            trainable=trainable,
        )
        bias = _bias(units, inputs, use_bias, bias_initializer, bias_regularizer, bias_constraint, trainable)
        if inputs.shape.rank == 2:
            outputs = tf.matmul(inputs, kernel)
        else:
            outputs = tf.tensordot(inputs, kernel, [[inputs.shape.rank - 1], [0]])
        if bias is not None:
            outputs = tf.nn.bias_add(outputs, bias)
        return _watched(activated(outputs, activation), activity_regularizer)


def conv2d(
    inputs: Any,
    filters: int,
    kernel_size: Any,
    strides: Any = (1, 1),
    padding: str = "valid",
    data_format: str = "channels_last",
    dilation_rate: Any = (1, 1),
    activation: Any = None,
    use_bias: bool = True,
    kernel_initializer: Any = None,
    bias_initializer: Any = _ZEROS,
    kernel_regularizer: Any = None,
    bias_regularizer: Any = None,
    activity_regularizer: Any = None,
    kernel_constraint: Any = None,
    bias_constraint: Any = None,
    trainable: bool = True,
    name: str | None = None,
    reuse: bool | None = None,
) -> Any:
    """A convolution over two axes."""
    inputs = tf.convert_to_tensor(inputs)
    with tf.variable_scope(name, default_name="conv2d", values=[inputs], reuse=reuse):
        order = _FORMATS[data_format]
        channels = _known(inputs, order.index("C"), "conv2d")
        kernel = variable(
            "kernel",
            [*pair(kernel_size), channels, filters],
            inputs,
            initializer=kernel_initializer,
            regularizer=kernel_regularizer,
            constraint=kernel_constraint,
            trainable=trainable,
        )
        bias = _bias(filters, inputs, use_bias, bias_initializer, bias_regularizer, bias_constraint, trainable)
        outputs = tf.nn.conv2d(
            inputs,
            kernel,
            strides=_spread(strides, order),
            padding=padding.upper(),
            data_format=order,
            dilations=_spread(dilation_rate, order),
        )
        if bias is not None:
            outputs = tf.nn.bias_add(outputs, bias, data_format=order)
        return _watched(activated(outputs, activation), activity_regularizer)


def conv1d(
    inputs: Any,
    filters: int,
    kernel_size: Any,
    strides: Any = 1,
    padding: str = "valid",
    data_format: str = "channels_last",
    dilation_rate: Any = 1,
    activation: Any = None,
    use_bias: bool = True,
    kernel_initializer: Any = None,
    bias_initializer: Any = _ZEROS,
    kernel_regularizer: Any = None,
    bias_regularizer: Any = None,
    activity_regularizer: Any = None,
    kernel_constraint: Any = None,
    bias_constraint: Any = None,
    trainable: bool = True,
    name: str | None = None,
    reuse: bool | None = None,
) -> Any:
    """A convolution over one axis; ``padding`` may also be ``"causal"``."""
    inputs = tf.convert_to_tensor(inputs)
    with tf.variable_scope(name, default_name="conv1d", values=[inputs], reuse=reuse):
        order = {"channels_last": "NWC", "channels_first": "NCW"}[data_format]
        (width,), (rate,) = pair(kernel_size, 1), pair(dilation_rate, 1)
        kernel = variable(
            "kernel",
            [width, _known(inputs, order.index("C"), "conv1d"), filters],
            inputs,
            initializer=kernel_initializer,
            regularizer=kernel_regularizer,
            constraint=kernel_constraint,
            trainable=trainable,
        )
        bias = _bias(filters, inputs, use_bias, bias_initializer, bias_regularizer, bias_constraint, trainable)
        if padding.lower() == "causal":
            before = [[0, 0], [rate * (width - 1), 0], [0, 0]]
            inputs = tf.pad(inputs, before if order == "NWC" else [before[0], before[2], before[1]])
            padding = "valid"
        outputs = tf.nn.conv1d(
            inputs, kernel, pair(strides, 1)[0], padding.upper(), data_format=order, dilations=pair(dilation_rate, 1)
        )
        if bias is not None:
            outputs = tf.nn.bias_add(outputs, bias, data_format="NHWC" if order == "NWC" else "NCHW")
        return _watched(activated(outputs, activation), activity_regularizer)


def max_pooling2d(
    inputs: Any,
    pool_size: Any,
    strides: Any,
    padding: str = "valid",
    data_format: str = "channels_last",
    name: str | None = None,
) -> Any:
    """The largest of each window."""
    return _pooled(tf.nn.max_pool2d, "max_pooling2d", inputs, pool_size, strides, padding, data_format, name)


def average_pooling2d(
    inputs: Any,
    pool_size: Any,
    strides: Any,
    padding: str = "valid",
    data_format: str = "channels_last",
    name: str | None = None,
) -> Any:
    """The mean of each window."""
    return _pooled(tf.nn.avg_pool2d, "average_pooling2d", inputs, pool_size, strides, padding, data_format, name)


def flatten(inputs: Any, name: str | None = None, data_format: str = "channels_last") -> Any:
    """All axes but the first as one."""
    inputs = tf.convert_to_tensor(inputs)
    with tf.name_scope(name, "flatten", [inputs]):
        if data_format == "channels_first" and inputs.shape.rank is not None and inputs.shape.rank > 2:
            inputs = tf.transpose(inputs, [0, *range(2, inputs.shape.rank), 1])
        rest = inputs.shape[1:]
        size = rest.num_elements() if rest.rank is not None else None
        rows = inputs.shape[0] if inputs.shape.rank else None
        if size is not None:
            return tf.reshape(inputs, [-1 if rows is None else rows, size])
        return tf.reshape(inputs, [tf.shape(inputs)[0], -1])


def dropout(
    inputs: Any,
    rate: Any = 0.5,
    noise_shape: Any = None,
    seed: int | None = None,
    training: Any = False,
    name: str | None = None,
) -> Any:
    """Sets a part of the inputs to 0, and the others up by as much, while ``training``."""
    inputs = tf.convert_to_tensor(inputs)
    with tf.name_scope(name, "dropout", [inputs]):
        return chosen(
            phase(training),
            lambda: tf.nn.dropout(inputs, rate=rate, noise_shape=noise_shape, seed=seed),
            lambda: tf.identity(inputs),
        )


def batch_normalization(
    inputs: Any,
    axis: int = -1,
    momentum: float = 0.99,
    epsilon: float = 1e-3,
    center: bool = True,
    scale: bool = True,
    beta_initializer: Any = _ZEROS,
    gamma_initializer: Any = _ONES,
    moving_mean_initializer: Any = _ZEROS,
    moving_variance_initializer: Any = _ONES,
    beta_regularizer: Any = None,
    gamma_regularizer: Any = None,
    beta_constraint: Any = None,
    gamma_constraint: Any = None,
    training: Any = False,
    trainable: bool = True,
    name: str | None = None,
    reuse: bool | None = None,
    renorm: bool = False,
    renorm_clipping: Any = None,
    renorm_momentum: float = 0.99,
    fused: bool | None = None,
    virtual_batch_size: int | None = None,
    adjustment: Any = None,
) -> Any:
    """Normalizes by the batch while ``training``, else by moving averages.

    Their updates are in ``tf.GraphKeys.UPDATE_OPS``, to be run with each step.
    """
    if renorm or virtual_batch_size is not None or adjustment is not None:
        raise ValueError("batch_normalization here has no renorm, virtual_batch_size or adjustment")
    inputs = tf.convert_to_tensor(inputs)
    axis = axis % inputs.shape.rank
    with tf.variable_scope(name, default_name="batch_normalization", values=[inputs], reuse=reuse):
        training = phase(training)
        shape = [_known(inputs, axis, "batch_normalization")]
        gamma = beta = None
        if scale:
            gamma = variable(
                "gamma",
                shape,
                inputs,
                initializer=gamma_initializer,
                regularizer=gamma_regularizer,
                constraint=gamma_constraint,
                trainable=trainable,
            )
        if center:
            beta = variable(
                "beta",
                shape,
                inputs,
                initializer=beta_initializer,
                regularizer=beta_regularizer,
                constraint=beta_constraint,
                trainable=trainable,
            )
        moving = [
            variable("moving_mean", shape, inputs, initializer=moving_mean_initializer, trainable=False),
            variable("moving_variance", shape, inputs, initializer=moving_variance_initializer, trainable=False),
        ]
        axes = [each for each in range(inputs.shape.rank) if each != axis]
        mean, variance = chosen(
            training,
            lambda: tuple(tf.nn.moments(inputs, axes)),
            lambda: (tf.identity(moving[0]), tf.identity(moving[1])),
        )
        if static(training) is not False:
            # Of a batch that is no training nothing is kept.
            kept = chosen(training, lambda: tf.constant(momentum, inputs.dtype), lambda: tf.constant(1.0, inputs.dtype))
            for average, value in zip(moving, _unbiased(inputs, axes, mean, variance, training), strict=True):
                update = tf.assign_sub(average, (average - value) * (1 - kept), name="AssignMovingAvg")
                tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, update.op)
        wide = [1] * inputs.shape.rank
        wide[axis] = shape[0]
        parts = [None if each is None else tf.reshape(each, wide) for each in (mean, variance, beta, gamma)]
        return tf.nn.batch_normalization(inputs, *parts, epsilon, name="batchnorm")


def _unbiased(inputs: Any, axes: list[int], mean: Any, variance: Any, training: Any) -> tuple[Any, Any]:
    """What moving averages are made of: over images the variance is that of a sample, as the fused kernels have it."""
    if inputs.shape.rank != 4:
        return mean, variance
    count = tf.cast(tf.reduce_prod(tf.gather(tf.shape(inputs), axes)), inputs.dtype)
    factor = count / tf.maximum(count - 1, 1)
    return mean, chosen(training, lambda: variance * factor, lambda: variance)


def _bias(
    units: int, inputs: Any, use_bias: bool, initializer: Any, regularizer: Any, constraint: Any, trainable: bool
) -> Any:
    if not use_bias:
        return None
    return variable(
        "bias",
        [units],
        inputs,
        initializer=initializer,
        regularizer=regularizer,
        constraint=constraint,
        trainable=trainable,
    )


def _pooled(pool: Any, kind: str, inputs: Any, size: Any, strides: Any, padding: str, order: str, name: Any) -> Any:
    inputs = tf.convert_to_tensor(inputs)
    with tf.name_scope(name, kind, [inputs]):
        letters = _FORMATS[order]
        return pool(inputs, _spread(size, letters), _spread(strides, letters), padding.upper(), data_format=letters)


def _spread(sizes: Any, order: str) -> list[int]:
    inner = pair(sizes)
    return [1, *inner, 1] if order == "NHWC" else [1, 1, *inner]


def _known(inputs: Any, axis: int, layer: str) -> int:
    size = inputs.shape[axis]
    if size is None:
        raise ValueError(f"The axis {axis} of the inputs to {layer} must be known, and their shape is {inputs.shape}.")
    return int(size)


def _watched(outputs: Any, regularizer: Any) -> Any:
    if regularizer is not None:
        tf.add_to_collection(tf.GraphKeys.REGULARIZATION_LOSSES, regularizer(outputs))
    return outputs
