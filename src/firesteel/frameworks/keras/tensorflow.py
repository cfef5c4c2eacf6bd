"""A Keras model's steps on TensorFlow, each compiled once: gradients, update, test, prediction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from firesteel.core.plan import Clipping

__all__ = ["TensorFlowSteps"]

Array = npt.NDArray[Any]

_TRACES = 16  # batches of more sizes than these find theirs the longer way


class TensorFlowSteps:
    """What a replica asks of its backend.

    Args:
        model: a compiled model, built.
        groups: places of the trainable variables in each flat buffer.
        weigh: ``(loss of the rows, losses of the layers, share) -> what is differentiated``.
        clipping: of the summed gradient, before the optimizer's own.
    """

    rate: float | None = None
    """The next update's, after ``backward``. The compiled step reads it on the way: asking for it from outside costs
    a twentieth of a small model's step."""

    def __init__(
        self,
        model: Any,
        groups: Sequence[Sequence[int]],
        weigh: Callable[[Any, Any, Any], Any],
        clipping: Clipping | None = None,
    ) -> None:
        self._model = model
        self._groups = groups
        self._weigh = weigh
        self._clipping = clipping
        self._variables = list(model.trainable_variables)
        # Where outputs have losses of their own, Keras weighs their figures by rows that it must see in the shapes.
        is_relaxed = not getattr(getattr(model, "_compile_loss", None), "metrics", None)
        self._backward = self._compiled(self._run_backward, is_relaxed)
        self._update = self._compiled(self._run_update)
        self._test = self._compiled(self._run_test, is_relaxed)
        self._forward = self._compiled(self._run_forward)

    def backward(self, x: Any, y: Any, w: Any, share: float, flats: Sequence[Array]) -> float:
        """The mean loss of these rows; the gradients of ``share`` times it go to ``flats``, one for each group."""
        loss, rate, found = self._backward(*_tensors((x, y, w)), tf.constant(share, tf.float32))
        for flat, gradient in zip(flats, found, strict=True):
            np.copyto(flat, np.frombuffer(gradient, flat.dtype))
        self.rate = float(rate)
        return float(loss)

    def update(self, flats: Sequence[Array]) -> None:
        """One update by the model's own optimizer."""
        self.rate = None
        # A copy: a variable that takes a gradient over as it is would keep the buffer.
        self._update([tf.constant(flat) for flat in flats])

    def test(self, x: Any, y: Any, w: Any) -> None:
        """Loss and metrics of these rows, added to the model's own states."""
        self._test(*_tensors((x, y, w)))

    def forward(self, x: Any) -> Any:
        """Outputs in inference mode."""
        return tf.nest.map_structure(lambda output: output.numpy(), self._forward(_tensors(x)))

    def _compiled(self, function: Callable[..., Any], is_relaxed: bool = True) -> Callable[..., Any]:
        if self._model.run_eagerly:
            return function
        # Python's own "if" and "for" stay so, as they do in Keras's own steps. AutoGraph would write what it makes of
        # our functions to files, and a process that is killed leaves them behind.
        settings = {"autograph": False, "jit_compile": bool(self._model.jit_compile) or None}
        return _Compiled(tf.function(function, reduce_retracing=is_relaxed, **settings))

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
            layers = tf.add_n(model.losses) if model.losses else tf.zeros([], loss.dtype)
            weighed = self._weigh(loss, tf.cast(layers, loss.dtype), tf.cast(share, loss.dtype))
            scaled = model.optimizer.scale_loss(weighed)
        gradients = tape.gradient(scaled, [variable.value for variable in self._variables])
        model.compute_metrics(x, y, output, sample_weight=w)
        flat = [_flat(each, variable) for each, variable in zip(gradients, self._variables, strict=True)]
        flats = [tf.concat([flat[place] for place in group], axis=0) for group in self._groups]
        return loss, tf.cast(model.optimizer.learning_rate, tf.float32), flats

    def _run_update(self, flats: Sequence[Any]) -> None:
        gradients: list[Any] = [None] * len(self._variables)
        for flat, group in zip(flats, self._groups, strict=True):
            sizes = [self._variables[place].shape.num_elements() for place in group]
            for place, part in zip(group, tf.split(flat, sizes), strict=True):
                gradients[place] = tf.reshape(part, self._variables[place].shape)
        if self._clipping is not None and self._clipping.norm is not None:
            gradients, _ = tf.clip_by_global_norm(gradients, self._clipping.norm)
        elif self._clipping is not None:
            gradients = [tf.clip_by_value(g, self._clipping.low, self._clipping.high) for g in gradients]
        self._model.optimizer.apply_gradients(zip(gradients, self._variables, strict=True))

    def _run_test(self, x: Any, y: Any, w: Any) -> None:
        output = self._call(x, False)
        self._loss(x, y, output, w, False)
        self._model.compute_metrics(x, y, output, sample_weight=w)

    def _run_forward(self, x: Any) -> Any:
        return self._call(x, False)


class _Compiled:
    """A ``tf.function`` that finds its trace by the shapes alone.

    What ``tf.function`` itself does in Python to find it takes a tenth of a small model's step.
    """

    def __init__(self, function: Any) -> None:
        self._function = function
        self._traces: dict[Any, Any] = {}

    def __call__(self, *args: Any) -> Any:
        tensors = [leaf for leaf in tf.nest.flatten(args) if leaf is not None]
        key = tuple((tensor.dtype, tuple(tensor.shape)) for tensor in tensors)
        trace = self._traces.get(key)
        if trace is None and len(self._traces) < _TRACES:
            # Not by a call: TensorFlow sees those alone that trace, and would warn that all do.
            trace = self._traces[key] = self._function.get_concrete_function(*args)
        if trace is None:
            return self._function(*args)
        return trace._call_flat(tensors, trace.captured_inputs)


def _flat(gradient: Any, variable: Any) -> Any:
    if gradient is None:
        return tf.zeros([variable.shape.num_elements()], variable.dtype)
    return tf.reshape(tf.cast(tf.convert_to_tensor(gradient), variable.dtype), [-1])


def _tensors(tree: Any) -> Any:
    return tf.nest.map_structure(lambda leaf: None if leaf is None else tf.constant(leaf), tree)
