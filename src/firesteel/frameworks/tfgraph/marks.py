"""Gradients that say whose they are: by these marks a training op of the user's own can be fed agreed ones."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from firesteel.core.errors import PlanError

__all__ = ["ZooOptimizer", "marks_of"]

_MARK = "_firesteel_gradient_of"


class ZooOptimizer(tf.compat.v1.train.Optimizer):
    """An optimizer of TensorFlow's whose gradients replicas can agree on: ``TFOptimizer.from_train_op`` needs it.

    Args:
        optimizer: any ``tf.compat.v1.train`` optimizer; its slots stay its own.
        name: prefix of the ops.
    """

    def __init__(self, optimizer: Any, name: str | None = None) -> None:
        if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
            raise PlanError(f"ZooOptimizer wraps a tf.train optimizer, not {type(optimizer).__qualname__}")
        super().__init__(optimizer._use_locking, name or f"Zoo{type(optimizer).__name__}")
        self._optimizer = optimizer

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped optimizer's gradients, dense and marked."""
        from firesteel.frameworks.tfgraph.training import dense

        marked = []
        for gradient, variable in self._optimizer.compute_gradients(*args, **kwargs):
            if gradient is not None:
                gradient = tf.identity(dense(gradient, variable), name=f"{self.get_name()}/gradient")
                gradient.set_shape(variable.shape)
                gradient.op._set_attr(_MARK, tf.compat.v1.AttrValue(s=variable.op.name.encode()))
            marked.append((gradient, variable))
        return marked

    def apply_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped optimizer's update."""
        return self._optimizer.apply_gradients(*args, **kwargs)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped optimizer's."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped optimizer's."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self) -> Any:
        """The wrapped optimizer's."""
        return self._optimizer.variables()


def marks_of(train_op: Any) -> dict[str, Any]:
    """The marked gradients that an op applies, as ops, by their variables' names; ``PlanError`` without any."""
    found: dict[str, Any] = {}
    seen: set[str] = set()
    waiting = [train_op if isinstance(train_op, tf.Operation) else train_op.op]
    while waiting:
        op = waiting.pop()
        if op.name in seen:
            continue
        seen.add(op.name)
        variable = _variable_of(op)
        if variable is not None:
            found.setdefault(variable, op)
            continue  # what is before it computes the gradient
        waiting += [tensor.op for tensor in op.inputs] + list(op.control_inputs)
    if not found:
        raise PlanError(
            f"the op {train_op.name!r} applies no marked gradient; make it with "
            f"ZooOptimizer(your_optimizer).minimize(loss), from firesteel.tfpark"
        )
    order = [op.name for op in train_op.graph.get_operations()]
    return dict(sorted(found.items(), key=lambda item: order.index(item[1].name)))


def _variable_of(op: Any) -> str | None:
    try:
        return op.get_attr(_MARK).decode() if op.type == "Identity" else None
    except ValueError:
        return None
