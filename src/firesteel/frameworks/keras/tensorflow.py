"""A Keras model's steps on TensorFlow, each compiled once: gradients, update, test, prediction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from firesteel.core.plan import Clipping

__all__ = ["TensorFlowSteps"]


class TensorFlowSteps:
    """What a replica asks of its backend.

    Args:
        model: a compiled model, built.
        clipping: of the summed gradient, before the optimizer's own.
    """

    def __init__(self, model: Any, clipping: Clipping | None = None) -> None:
        self._model = model
        self._clipping = clipping
        self._variables = list(model.trainable_variables)
        self._backward = self._compiled(self._run_backward)
        self._update = self._compiled(self._run_update)
        self._test = self._compiled(self._run_test)
        self._forward = self._compiled(self._run_forward)

    def backward(self, x: Any, y: Any, w: Any, share: float) -> tuple[float, list[Any]]:
        """The mean loss of these rows, and the gradients of ``share`` times it, one for each trainable variable."""
        loss, gradients = self._backward(*_tensors((x, y, w)), tf.constant(share, tf.float32))
        return float(loss), [gradient.numpy() for gradient in gradients]

    def update(self, gradients: Sequence[Any]) -> None:
        """One update by the model's own optimizer."""
        self._update([tf.constant(gradient) for gradient in gradients])

    def test(self, x: Any, y: Any, w: Any) -> None:
        """Loss and metrics of these rows, added to the model's own states."""
        self._test(*_tensors((x, y, w)))

    def forward(self, x: Any) -> Any:
        """Outputs in inference mode."""
        return tf.nest.map_structure(lambda output: output.numpy(), self._forward(_tensors(x)))

    def _compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if self._model.run_eagerly:
            return function
        made: Callable[..., Any] = tf.function(
            function, reduce_retracing=True, jit_compile=bool(self._model.jit_compile) or None
        )
        return made

    def _call(self, x: Any, training: bool) -> Any:
        return self._model(x, training=training) if self._model._call_has_training_arg else self._model(x)

    def _loss(self, x: Any, y: Any, output: Any, w: Any, training: bool) -> Any:
        model = self._model
        loss = model._compute_loss(x=x, y=y, y_pred=output, sample_weight=w, training=training)
        rows = tf.shape(tf.nest.flatten(x)[0])[0]
        model._loss_tracker.update_state(loss, sample_weight=rows)
        return loss

    def _run_backward(self, x: Any, y: Any, w: Any, share: Any) -> Any:
        model = self._model
        with tf.GradientTape() as tape:
            output = self._call(x, True)
            loss = self._loss(x, y, output, w, True)
            scaled = model.optimizer.scale_loss(loss * tf.cast(share, loss.dtype))
        gradients = tape.gradient(scaled, [variable.value for variable in self._variables])
        model.compute_metrics(x, y, output, sample_weight=w)
        return loss, [_dense(each, variable) for each, variable in zip(gradients, self._variables, strict=True)]

    def _run_update(self, gradients: Sequence[Any]) -> None:
        shaped = [tf.reshape(g, v.shape) for g, v in zip(gradients, self._variables, strict=True)]
        if self._clipping is not None and self._clipping.norm is not None:
            shaped, _ = tf.clip_by_global_norm(shaped, self._clipping.norm)
        elif self._clipping is not None:
            shaped = [tf.clip_by_value(g, self._clipping.low, self._clipping.high) for g in shaped]
        self._model.optimizer.apply_gradients(zip(shaped, self._variables, strict=True))

    def _run_test(self, x: Any, y: Any, w: Any) -> None:
        output = self._call(x, False)
        self._loss(x, y, output, w, False)
        self._model.compute_metrics(x, y, output, sample_weight=w)

    def _run_forward(self, x: Any) -> Any:
        return self._call(x, False)


def _dense(gradient: Any, variable: Any) -> Any:
    if gradient is None:
        return tf.zeros([int(np.prod(variable.shape))], variable.dtype)
    return tf.reshape(tf.cast(tf.convert_to_tensor(gradient), variable.dtype), [-1])


def _tensors(tree: Any) -> Any:
    return tf.nest.map_structure(lambda leaf: None if leaf is None else tf.constant(leaf), tree)
