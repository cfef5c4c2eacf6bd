"""A Keras model's steps on JAX, each compiled once: gradients, update, test, prediction.

JAX's functions change nothing: a model's variables go in, and what became of them comes out and is put back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from firesteel.core.plan import Clipping

__all__ = ["JaxSteps"]


class JaxSteps:
    """See ``tensorflow.TensorFlowSteps``."""

    rate: float | None = None
    """Not read on the way: see ``TensorFlowSteps``."""

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
        self._shapes = [tuple(variable.shape) for variable in self._variables]
        compiled: Callable[..., Any] = (lambda function: function) if model.run_eagerly else jax.jit
        self._backward = compiled(self._run_backward)
        self._update = compiled(self._run_update)
        self._test = compiled(self._run_test)
        self._forward = compiled(self._run_forward)

    def backward(self, x: Any, y: Any, w: Any, share: float, flats: Sequence[Any]) -> float:
        """See ``TensorFlowSteps``."""
        loss, found, rest, metrics = self._backward(*self._state(), self._optimizer_state(), x, y, w, share)
        self._take(self._model.non_trainable_variables, rest)
        self._take(self._model.metrics_variables, metrics)
        for flat, gradient in zip(flats, found, strict=True):
            np.copyto(flat, gradient)
        return float(loss)

    def update(self, flats: Sequence[Any]) -> None:
        """See ``TensorFlowSteps``."""
        weights, slots = self._update(
            [variable.value for variable in self._variables], self._optimizer_state(), list(flats)
        )
        self._take(self._variables, weights)
        self._take(self._model.optimizer.variables, slots)

    def test(self, x: Any, y: Any, w: Any) -> None:
        """See ``TensorFlowSteps``."""
        self._take(self._model.metrics_variables, self._test(*self._state(), x, y, w))

    def forward(self, x: Any) -> Any:
        """See ``TensorFlowSteps``."""
        weights, rest, _ = self._state()
        return keras.tree.map_structure(np.asarray, self._forward(weights, rest, x))

    def _state(self) -> tuple[list[Any], list[Any], list[Any]]:
        model = self._model
        parts = (self._variables, model.non_trainable_variables, model.metrics_variables)
        return tuple([variable.value for variable in part] for part in parts)  # type: ignore[return-value]

    def _optimizer_state(self) -> list[Any]:
        return [variable.value for variable in self._model.optimizer.variables]

    def _take(self, variables: Sequence[Any], values: Sequence[Any]) -> None:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)

    def _run_backward(
        self, weights: Any, rest: Any, metrics: Any, slots: Any, x: Any, y: Any, w: Any, share: Any
    ) -> Any:
        def weighed(weights: Any) -> Any:
            loss, layers, output, after = self._loss(weights, rest, metrics, x, y, w, True)
            scope = keras.StatelessScope(state_mapping=list(zip(self._model.optimizer.variables, slots, strict=True)))
            with scope:
                scaled = self._model.optimizer.scale_loss(self._weigh(loss, layers, share))
            return scaled, (loss, output, after)

        (_, (loss, output, after)), gradients = jax.value_and_grad(weighed, has_aux=True)(weights)
        flat = [gradient.reshape(-1) for gradient in gradients]
        flats = [jnp.concatenate([flat[place] for place in group]) for group in self._groups]
        return loss, flats, after, self._counted(weights, after, metrics, loss, output, x, y, w)

    def _run_update(self, weights: Any, slots: Any, flats: Any) -> Any:
        gradients: list[Any] = [None] * len(self._shapes)
        for flat, group in zip(flats, self._groups, strict=True):
            sizes = [int(np.prod(self._shapes[place])) for place in group]
            for place, part in zip(group, jnp.split(flat, np.cumsum(sizes)[:-1]), strict=True):
                gradients[place] = part.reshape(self._shapes[place])
        if self._clipping is not None and self._clipping.norm is not None:
            norm = jnp.sqrt(sum(jnp.vdot(each, each) for each in gradients))
            factor = jnp.minimum(1.0, self._clipping.norm / jnp.maximum(norm, 1e-12))
            gradients = [each * factor for each in gradients]
        elif self._clipping is not None:
            gradients = [jnp.clip(each, self._clipping.low, self._clipping.high) for each in gradients]
        return self._model.optimizer.stateless_apply(slots, gradients, weights)

    def _run_test(self, weights: Any, rest: Any, metrics: Any, x: Any, y: Any, w: Any) -> Any:
        loss, _, output, after = self._loss(weights, rest, metrics, x, y, w, False)
        return self._counted(weights, after, metrics, loss, output, x, y, w)

    def _run_forward(self, weights: Any, rest: Any, x: Any) -> Any:
        output, _ = self._model.stateless_call(weights, rest, x, **self._mode(False))
        return output

    def _mode(self, training: bool) -> dict[str, bool]:
        return {"training": training} if self._model._call_has_training_arg else {}

    def _loss(self, weights: Any, rest: Any, metrics: Any, x: Any, y: Any, w: Any, training: bool) -> Any:
        model = self._model
        output, after, extra = model.stateless_call(weights, rest, x, return_losses=True, **self._mode(training))
        loss, found = model.stateless_compute_loss(
            weights, after, metrics, x=x, y=y, y_pred=output, sample_weight=w, training=training
        )
        layers = sum((jnp.sum(each) for each in extra), jnp.zeros((), loss.dtype))
        return loss + layers, layers, output, found[1]

    def _counted(
        self, weights: Any, rest: Any, metrics: Any, loss: Any, output: Any, x: Any, y: Any, w: Any
    ) -> list[Any]:
        model = self._model
        mapping = zip(
            (*self._variables, *model.non_trainable_variables, *model.metrics_variables),
            (*weights, *rest, *metrics),
            strict=True,
        )
        with keras.StatelessScope(state_mapping=list(mapping)):
            model._loss_tracker.update_state(loss, sample_weight=keras.tree.flatten(x)[0].shape[0])
            model.compute_metrics(x, y, output, sample_weight=w)
            return [keras.ops.convert_to_tensor(variable) for variable in model.metrics_variables]
