"""TensorFlow's own optimizers by the short names that SparkFlow gave them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from firesteel.core.errors import PlanError, UnknownName

__all__ = ["make_optimizer"]

_train = tf.compat.v1.train


class _AdagradDA(_train.AdagradDAOptimizer):
    """TensorFlow's, with a count of updates of its own: a user's graph need not have a global step."""

    def __init__(self, learning_rate: Any, **options: Any) -> None:
        super().__init__(learning_rate, None, **options)

    def _create_slots(self, var_list: Any) -> None:
        super()._create_slots(var_list)
        first = min(var_list, key=lambda variable: variable.name)
        self._create_non_slot_variable(tf.constant(0, tf.int64), "updates", first)

    def _prepare(self) -> None:
        self._global_step = self._updates()
        super()._prepare()

    def _finish(self, update_ops: Any, name_scope: Any) -> Any:
        with tf.control_dependencies(update_ops):
            counted = self._updates().assign_add(1).op
        return tf.group(*update_ops, counted, name=name_scope)

    def _updates(self) -> Any:
        return self._get_non_slot_variable("updates", graph=tf.compat.v1.get_default_graph())


_CLASSES = {
    "adam": _train.AdamOptimizer,
    "rmsprop": _train.RMSPropOptimizer,
    "momentum": _train.MomentumOptimizer,
    "adadelta": _train.AdadeltaOptimizer,
    "adagrad": _train.AdagradOptimizer,
    "gradient_descent": _train.GradientDescentOptimizer,
    "adagrad_da": _AdagradDA,
    "ftrl": _train.FtrlOptimizer,
    "proximal_adagrad": _train.ProximalAdagradOptimizer,
    "proximal_gradient_descent": _train.ProximalGradientDescentOptimizer,
}
# Other spellings of an argument than TensorFlow's.
_ALIASES = {"initial_accumulator": "initial_accumulator_value"}


def make_optimizer(name: str, options: Mapping[str, Any]) -> Any:
    """The optimizer of this name with these keyword arguments.

    Raises:
        UnknownName: no such optimizer.
        PlanError: an argument that it does not know; a value that it does not take.
    """
    if name not in _CLASSES:
        raise UnknownName("optimizer", name, _CLASSES)
    kind = _CLASSES[name]
    known = _options_of(kind)
    given = {
        _ALIASES.get(key, key) if _ALIASES.get(key, key) in known else key: value for key, value in options.items()
    }
    for key in given:
        if key not in known:
            raise PlanError(f"the optimizer {name!r} has no option {key!r}; it has: {', '.join(known)}")
    if name == "momentum":
        given = {"momentum": 0.9, **given}
    try:
        return kind(**given)
    except (TypeError, ValueError) as error:
        raise PlanError(f"the optimizer {name!r} does not take these options: {error}") from error


def _options_of(kind: type) -> list[str]:
    own = _train.AdagradDAOptimizer if kind is _AdagradDA else kind
    return [each for each in inspect.signature(own.__init__).parameters if each not in ("self", "name", "global_step")]
