"""Gluon blocks, as a replica works with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mxnet as mx

from firesteel.core.errors import PlanError
from firesteel.frameworks.mxnet.program import MXNetContent, make_optimizer

__all__ = ["GluonStyle"]


class GluonStyle:
    """One of two styles; the other is ``module``. ``trained`` and ``others`` are lists of (name, value, gradient)."""

    def __init__(self, model: Any, content: MXNetContent, context: Any) -> None:
        self._model = model
        self._content = content
        self._context = context
        self._loss: Callable[..., Any] | None = None
        # By place in the model, not by MXNet's own names: those count all blocks that a process ever made.
        self._parameters = _once(model._collect_params_with_prefix())

    @property
    def is_ready(self) -> bool:
        """Whether all weights are there."""
        return all(parameter._data is not None for parameter in self._parameters.values())

    def prepare(self, inputs: Sequence[Any], labels: Sequence[Any]) -> None:
        """Initialize what the creator left, and find out shapes that only data can tell."""
        initializer = self._content.config.get("init") or mx.initializer.Uniform()
        for parameter in self._parameters.values():
            if parameter._data is None and not parameter._deferred_init:
                parameter.initialize(None, self._context, initializer)
        if not self.is_ready:
            self._model(*inputs)

    def infer(self, inputs: Sequence[Any], labels: Sequence[Any]) -> list[Any]:
        """Outputs in inference mode."""
        return _listed(self._model(*inputs))

    def losses(self, outputs: Sequence[Any], labels: Sequence[Any]) -> Any:
        """The loss of each row, or their mean; ``None`` without a loss."""
        loss = self.loss
        return None if loss is None else loss(*outputs, *labels)

    def learn(self, inputs: Sequence[Any], labels: Sequence[Any], share: float) -> tuple[list[Any], Any, float]:
        """Outputs, losses, and what is still to be multiplied with the gradients, to be the mean's times ``share``."""
        for _, _, gradient in self.trained:
            gradient[:] = 0  # one that this batch does not reach must not be the last one's
        with mx.autograd.record():
            outputs = _listed(self._model(*inputs))
            losses = self.losses(outputs, labels)
        if losses is None:
            raise PlanError("fit needs a loss for a Gluon model: pass loss_creator to from_mxnet")
        head = mx.np.full if isinstance(losses, mx.np.ndarray) else mx.nd.full
        losses.backward(head(losses.shape, share / losses.size, ctx=losses.context, dtype=losses.dtype))
        return outputs, losses, 1.0

    @property
    def loss(self) -> Callable[..., Any] | None:
        """What the loss creator made."""
        if self._loss is None and self._content.loss_creator is not None:
            self._loss = self._content.loss_creator(dict(self._content.config))
            if not callable(self._loss):
                raise PlanError(f"loss_creator returned {type(self._loss).__qualname__}, which cannot be called")
        return self._loss

    @property
    def trained(self) -> list[tuple[str, Any, Any]]:
        """What gradients change."""
        return [
            (name, parameter.data(), parameter.grad())
            for name, parameter in self._parameters.items()
            if parameter.grad_req != "null"
        ]

    @property
    def others(self) -> list[tuple[str, Any, Any]]:
        """Running means, and weights that are frozen."""
        return [
            (name, parameter.data(), None)
            for name, parameter in self._parameters.items()
            if parameter.grad_req == "null"
        ]

    def load(self, arrays: dict[str, Any]) -> None:
        """Take over values, by name. Shapes that were not known are so from then on."""
        for name, parameter in self._parameters.items():
            value = mx.nd.array(arrays[name], dtype=arrays[name].dtype)
            if parameter._data is None:
                parameter._load_init(value, self._context)
            else:
                parameter.set_data(value.as_np_ndarray() if mx.util.is_np_array() else value)

    def shapes(self) -> dict[str, tuple[int, ...] | None]:
        """Of all weights, by name; ``None`` where only data can tell."""
        known = {name: parameter.shape for name, parameter in self._parameters.items()}
        return {
            name: None if shape is None or 0 in shape or -1 in shape else tuple(shape) for name, shape in known.items()
        }

    def make_optimizer(self) -> Any:
        """It finds each weight's own multipliers of rate and decay."""
        trained = [parameter for parameter in self._parameters.values() if parameter.grad_req != "null"]
        return make_optimizer(self._content.config, param_dict=dict(enumerate(trained)))

    def save(self, prefix: str, epoch: int) -> None:
        """``prefix-000n.params``, and ``prefix-symbol.json`` of a block that was hybridized."""
        if getattr(self._model, "_cached_graph", None):
            self._model.export(prefix, epoch)
        else:
            self._model.save_parameters(f"{prefix}-{epoch:04d}.params")


def _once(parameters: dict[str, Any]) -> dict[str, Any]:
    """Those that are shared under one of their names."""
    seen: set[int] = set()
    found = {}
    for name, parameter in parameters.items():
        if id(parameter) not in seen:
            seen.add(id(parameter))
            found[name] = parameter
    return found


def _listed(output: Any) -> list[Any]:
    if isinstance(output, (list, tuple)):
        return [leaf for each in output for leaf in _listed(each)]
    return [output]
