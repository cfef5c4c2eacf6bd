"""Symbolic modules, as a replica works with them: the loss is in the symbol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mxnet as mx

from firesteel.frameworks.mxnet.program import MXNetContent, make_optimizer

__all__ = ["ModuleStyle"]


class ModuleStyle:
    """One of two styles; the other is ``gluon``, which says what each method is for."""

    loss = None

    def __init__(self, model: Any, content: MXNetContent, context: Any) -> None:
        self._model = model
        self._content = content
        self._loaded: dict[str, Any] | None = None

    @property
    def is_ready(self) -> bool:
        """Whether it is bound, and has weights."""
        return bool(self._model.binded and self._model.params_initialized)

    def prepare(self, inputs: Sequence[Any], labels: Sequence[Any]) -> None:
        """Bind it to data of these shapes, and give it weights."""
        model = self._model
        if not model.binded:
            data = [mx.io.DataDesc(name, v.shape, v.dtype) for name, v in zip(model.data_names, inputs, strict=True)]
            names = model.label_names if labels else []
            target = [mx.io.DataDesc(name, v.shape, v.dtype) for name, v in zip(names, labels, strict=True)]
            model.bind(data, target or None, for_training=bool(target) or not model.label_names)
        if not model.params_initialized:
            model.init_params(self._content.config.get("init") or mx.initializer.Uniform(0.01))
        if self._loaded is not None:
            self.load(self._loaded)

    def infer(self, inputs: Sequence[Any], labels: Sequence[Any]) -> list[Any]:
        """Outputs in inference mode."""
        return self._forward(inputs, labels, is_train=False)

    def losses(self, outputs: Sequence[Any], labels: Sequence[Any]) -> None:
        """A symbol's loss has no value: only gradients come out of it."""

    def learn(self, inputs: Sequence[Any], labels: Sequence[Any], share: float) -> tuple[list[Any], None, float]:
        """See there. What comes out of a symbol's loss is the sum over rows."""
        outputs = self._forward(inputs, labels, is_train=True)
        self._model.backward()
        return outputs, None, share / len(inputs[0])

    def _forward(self, inputs: Sequence[Any], labels: Sequence[Any], *, is_train: bool) -> list[Any]:
        wanted = self._model._label_shapes
        if wanted and not labels:  # bound with labels, it is bound anew without them, and then cannot train
            labels = [mx.nd.zeros((len(inputs[0]), *each.shape[1:]), dtype=each.dtype) for each in wanted]
        self._model.forward(mx.io.DataBatch(list(inputs), list(labels) if wanted else None), is_train=is_train)
        return list(self._model.get_outputs())

    @property
    def trained(self) -> list[tuple[str, Any, Any]]:
        """See there."""
        return [(name, value, gradient) for name, value, gradient in self._arrays() if gradient is not None]

    @property
    def others(self) -> list[tuple[str, Any, Any]]:
        """See there."""
        group = self._model._exec_group
        auxiliary = [(name, values[0], None) for name, values in zip(group.aux_names, group.aux_arrays, strict=True)]
        return [each for each in self._arrays() if each[2] is None] + auxiliary

    def _arrays(self) -> list[tuple[str, Any, Any]]:
        group = self._model._exec_group
        gradients = group.grad_arrays or [[None]] * len(group.param_names)
        return [
            (name, values[0], gradient[0] if gradient else None)
            for name, values, gradient in zip(group.param_names, group.param_arrays, gradients, strict=True)
        ]

    def load(self, arrays: dict[str, Any]) -> None:
        """Take over values, by name; once there are any to be replaced."""
        if not self.is_ready:
            self._loaded = arrays
            return
        self._loaded = None
        for name, value, _ in [*self._arrays(), *self.others]:
            value[:] = mx.nd.array(arrays[name], dtype=arrays[name].dtype)
        self._model._params_dirty = True  # its own copies are older

    def shapes(self) -> dict[str, tuple[int, ...] | None]:
        """See there."""
        if not self.is_ready:
            return dict.fromkeys([*self._model._param_names, *self._model._aux_names])
        return {name: tuple(value.shape) for name, value, _ in [*self._arrays(), *self.others]}

    def make_optimizer(self) -> Any:
        """As ``Module.init_optimizer`` would: biases are not decayed, and the symbol's multipliers count."""
        names = {place: name for place, (name, _, _) in enumerate(self.trained)}
        return make_optimizer(self._content.config, sym=self._model.symbol, param_idx2name=names)

    def save(self, prefix: str, epoch: int) -> None:
        """``prefix-symbol.json`` and ``prefix-000n.params``."""
        self._model._params_dirty = True
        self._model.save_checkpoint(prefix, epoch)
