"""A Keras model's steps on torch: gradients, update, test, prediction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import torch

from firesteel.core.plan import Clipping

__all__ = ["TorchSteps"]


class TorchSteps:
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

    def backward(self, x: Any, y: Any, w: Any, share: float, flats: Sequence[Any]) -> float:
        """See ``TensorFlowSteps``."""
        model = self._model
        x, y, w = _tensors((x, y, w))
        model.zero_grad()
        output = self._call(x, True)
        loss = self._loss(x, y, output, w, True)
        layers = torch.stack([each.reshape(()) for each in model.losses]).sum() if model.losses else loss.new_zeros(())
        model.optimizer.scale_loss(self._weigh(loss, layers, share)).backward()
        with torch.no_grad():
            model.compute_metrics(x, y, output, sample_weight=w)
            found = [_flat(variable.value) for variable in self._variables]
            for flat, group in zip(flats, self._groups, strict=True):
                torch.cat([found[place].cpu() for place in group], out=torch.from_numpy(flat))
        return float(loss)

    def update(self, flats: Sequence[Any]) -> None:
        """See ``TensorFlowSteps``."""
        gradients: list[Any] = [None] * len(self._variables)
        for flat, group in zip(flats, self._groups, strict=True):
            values = [self._variables[place].value for place in group]
            whole = torch.from_numpy(flat).to(values[0].device)
            if self._clipping is not None and self._clipping.norm is None:
                whole = whole.clamp(self._clipping.low, self._clipping.high)
            parts = whole.split([value.numel() for value in values])
            for place, value, part in zip(group, values, parts, strict=True):
                gradients[place] = part.view(value.shape)
        if self._clipping is not None and self._clipping.norm is not None:
            norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(each) for each in gradients]))
            gradients = [each * min(1.0, self._clipping.norm / max(float(norm), 1e-12)) for each in gradients]
        with torch.no_grad():
            self._model.optimizer.apply(gradients, self._variables)

    def test(self, x: Any, y: Any, w: Any) -> None:
        """See ``TensorFlowSteps``."""
        with torch.no_grad():
            x, y, w = _tensors((x, y, w))
            output = self._call(x, False)
            self._loss(x, y, output, w, False)
            self._model.compute_metrics(x, y, output, sample_weight=w)

    def forward(self, x: Any) -> Any:
        """See ``TensorFlowSteps``."""
        with torch.no_grad():
            return keras.tree.map_structure(keras.ops.convert_to_numpy, self._call(_tensors(x), False))

    def _call(self, x: Any, training: bool) -> Any:
        return self._model(x, training=training) if self._model._call_has_training_arg else self._model(x)

    def _loss(self, x: Any, y: Any, output: Any, w: Any, training: bool) -> Any:
        loss = self._model._compute_loss(x=x, y=y, y_pred=output, sample_weight=w, training=training)
        self._model._loss_tracker.update_state(loss.detach(), sample_weight=len(keras.tree.flatten(x)[0]))
        return loss


def _flat(value: Any) -> Any:
    return (torch.zeros_like(value) if value.grad is None else value.grad).detach().reshape(-1)


def _tensors(tree: Any) -> Any:
    return keras.tree.map_structure(lambda leaf: None if leaf is None else keras.ops.convert_to_tensor(leaf), tree)
