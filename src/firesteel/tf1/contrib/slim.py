"""As much of ``tf.contrib.slim`` as a LeNet needs: layers with ``weights`` and ``biases``, and scopes of arguments."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tensorflow.compat import v1 as tf

from firesteel.tf1.scopes import chosen, pair, variable

__all__ = [
    "add_arg_scope",
    "arg_scope",
    "avg_pool2d",
    "conv2d",
    "dropout",
    "flatten",
    "fully_connected",
    "l2_regularizer",
    "max_pool2d",
    "softmax",
]

Scope = dict[str, dict[str, Any]]

_stack: list[Scope] = [{}]
_ZEROS = tf.zeros_initializer()


@contextlib.contextmanager
def arg_scope(list_ops_or_scope: Any, **kwargs: Any) -> Iterator[Scope]:
    """Arguments that these functions get for the time of the ``with``, where a call has none of its own.

    Instead of functions it takes what another ``with`` gave: the same arguments again.
    """
    if isinstance(list_ops_or_scope, Mapping):
        if kwargs:
            raise ValueError("When an arg_scope is entered again, it takes no arguments.")
        scope: Scope = {key: dict(values) for key, values in list_ops_or_scope.items()}
    else:
        functions = list_ops_or_scope if isinstance(list_ops_or_scope, (list, tuple)) else [list_ops_or_scope]
        scope = {key: dict(values) for key, values in _stack[-1].items()}
        for function in functions:
            key = getattr(function, "_key_op", None)
            if key is None:
                raise ValueError(f"{function!r} is not decorated with add_arg_scope.")
            scope[key] = {**scope.get(key, {}), **kwargs}
    _stack.append(scope)
    try:
        yield scope
    finally:
        _stack.pop()


def add_arg_scope(function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes ``arg_scope`` know a function."""

    @functools.wraps(function)
    def scoped(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **{**_stack[-1].get(key, {}), **kwargs})

    key = f"{function.__module__}.{function.__qualname__}"
    scoped._key_op = key  # type: ignore[attr-defined]
    return scoped


def l2_regularizer(scale: float, scope: str | None = None) -> Callable[[Any], Any]:
    """Half the sum of squares, times ``scale``."""
    if scale < 0:
        raise ValueError(f"The scale of a regularizer cannot be {scale!r}.")
    if scale == 0:
        return lambda _: None

    def penalty(weights: Any) -> Any:
        with tf.name_scope(scope, "l2_regularizer", [weights]) as name:
            return tf.multiply(tf.constant(scale, weights.dtype.base_dtype), tf.nn.l2_loss(weights), name=name)

    return penalty


@add_arg_scope
def conv2d(
    inputs: Any,
    num_outputs: int,
    kernel_size: Any,
    stride: Any = 1,
    padding: str = "SAME",
    data_format: str | None = None,
    rate: Any = 1,
    activation_fn: Any = tf.nn.relu,
    normalizer_fn: Any = None,
    normalizer_params: Mapping[str, Any] | None = None,
    weights_initializer: Any = None,
    weights_regularizer: Any = None,
    biases_initializer: Any = _ZEROS,
    biases_regularizer: Any = None,
    reuse: bool | None = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    scope: str | None = None,
) -> Any:
    """A convolution over two axes, normalized if asked, and activated."""
    inputs = tf.convert_to_tensor(inputs)
    order = data_format or "NHWC"
    with tf.variable_scope(scope, "Conv", [inputs], reuse=reuse):
        shape = [*pair(kernel_size), int(inputs.shape[order.index("C")]), num_outputs]
        weights = variable(
            "weights",
            shape,
            inputs,
            initializer=weights_initializer,
            regularizer=weights_regularizer,
            trainable=trainable,
            collections=_collections(variables_collections),
        )
        outputs = tf.nn.conv2d(
            inputs,
            weights,
            strides=_spread(stride, order),
            padding=padding.upper(),
            data_format=order,
            dilations=_spread(rate, order),
        )
        biases = (biases_initializer, biases_regularizer, variables_collections, trainable)
        outputs = _finished(outputs, num_outputs, order, normalizer_fn, normalizer_params, biases, activation_fn)
        return _collected(outputs, outputs_collections)


@add_arg_scope
def fully_connected(
    inputs: Any,
    num_outputs: int,
    activation_fn: Any = tf.nn.relu,
    normalizer_fn: Any = None,
    normalizer_params: Mapping[str, Any] | None = None,
    weights_initializer: Any = None,
    weights_regularizer: Any = None,
    biases_initializer: Any = _ZEROS,
    biases_regularizer: Any = None,
    reuse: bool | None = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    scope: str | None = None,
) -> Any:
    """A fully connected layer along the last axis, normalized if asked, and activated."""
    inputs = tf.convert_to_tensor(inputs)
    with tf.variable_scope(scope, "fully_connected", [inputs], reuse=reuse):
        weights = variable(
            "weights",
            [int(inputs.shape[-1]), num_outputs],
            inputs,
            initializer=weights_initializer,
            regularizer=weights_regularizer,
            trainable=trainable,
            collections=_collections(variables_collections),
        )
        if inputs.shape.rank == 2:
            outputs = tf.matmul(inputs, weights)
        else:
            outputs = tf.tensordot(inputs, weights, [[inputs.shape.rank - 1], [0]])
        biases = (biases_initializer, biases_regularizer, variables_collections, trainable)
        outputs = _finished(outputs, num_outputs, "NHWC", normalizer_fn, normalizer_params, biases, activation_fn)
        return _collected(outputs, outputs_collections)


@add_arg_scope
def max_pool2d(
    inputs: Any,
    kernel_size: Any,
    stride: Any = 2,
    padding: str = "VALID",
    data_format: str = "NHWC",
    outputs_collections: Any = None,
    scope: str | None = None,
) -> Any:
    """The largest of each window."""
    return _pooled(
        tf.nn.max_pool2d, "MaxPool2D", inputs, kernel_size, stride, padding, data_format, outputs_collections, scope
    )


@add_arg_scope
def avg_pool2d(
    inputs: Any,
    kernel_size: Any,
    stride: Any = 2,
    padding: str = "VALID",
    data_format: str = "NHWC",
    outputs_collections: Any = None,
    scope: str | None = None,
) -> Any:
    """The mean of each window."""
    return _pooled(
        tf.nn.avg_pool2d, "AvgPool2D", inputs, kernel_size, stride, padding, data_format, outputs_collections, scope
    )


@add_arg_scope
def flatten(inputs: Any, outputs_collections: Any = None, scope: str | None = None) -> Any:
    """All axes but the first as one."""
    from firesteel.tf1 import layers

    with tf.name_scope(scope, "Flatten", [inputs]):
        return _collected(layers.flatten(inputs, name="flatten"), outputs_collections)


@add_arg_scope
def dropout(
    inputs: Any,
    keep_prob: Any = 0.5,
    noise_shape: Any = None,
    is_training: Any = True,
    outputs_collections: Any = None,
    scope: str | None = None,
    seed: int | None = None,
) -> Any:
    """Keeps each input with probability ``keep_prob`` while training."""
    inputs = tf.convert_to_tensor(inputs)
    with tf.name_scope(scope, "Dropout", [inputs]):
        outputs = chosen(
            is_training,
            lambda: tf.nn.dropout(inputs, rate=1 - keep_prob, noise_shape=noise_shape, seed=seed),
            lambda: tf.identity(inputs),
        )
        return _collected(outputs, outputs_collections)


@add_arg_scope
def softmax(logits: Any, scope: str | None = None) -> Any:
    """Softmax along the last axis."""
    with tf.name_scope(scope, "softmax", [logits]):
        return tf.nn.softmax(logits)


def _finished(
    outputs: Any, units: int, order: str, normalizer: Any, params: Any, biases: Sequence[Any], activation: Any
) -> Any:
    if normalizer is not None:
        outputs = normalizer(outputs, **dict(params or {}))
    elif biases[0] is not None:
        bias = variable(
            "biases",
            [units],
            outputs,
            initializer=biases[0],
            regularizer=biases[1],
            collections=_collections(biases[2]),
            trainable=biases[3],
        )
        outputs = tf.nn.bias_add(outputs, bias, data_format=order)
    return outputs if activation is None else activation(outputs)


def _pooled(
    pool: Any, kind: str, inputs: Any, size: Any, stride: Any, padding: str, order: str, collections: Any, scope: Any
) -> Any:
    with tf.name_scope(scope, kind, [inputs]):
        outputs = pool(inputs, _spread(size, order), _spread(stride, order), padding.upper(), data_format=order)
        return _collected(outputs, collections)


def _spread(sizes: Any, order: str) -> list[int]:
    inner = pair(sizes)
    return [1, *inner, 1] if order == "NHWC" else [1, 1, *inner]


def _collections(given: Any) -> list[str] | None:
    if given is None or isinstance(given, Mapping):
        return None
    return [tf.GraphKeys.GLOBAL_VARIABLES, *([given] if isinstance(given, str) else given)]


def _collected(outputs: Any, collections: Any) -> Any:
    for name in [collections] if isinstance(collections, str) else collections or ():
        tf.add_to_collection(name, outputs)
    return outputs
