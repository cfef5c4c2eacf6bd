"""What the layers of both namings share: a scope with its variables, and choosing by a flag."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorflow.compat import v1 as tf

__all__ = ["activated", "chosen", "pair", "phase", "static", "variable"]


def variable(
    name: str,
    shape: Any,
    like: Any,
    *,
    initializer: Any = None,
    regularizer: Any = None,
    constraint: Any = None,
    trainable: bool = True,
    collections: Any = None,
) -> Any:
    """A variable of the scope that is open. Without an initializer the scope's, which is Glorot-uniform by default."""
    return tf.get_variable(
        name,
        shape,
        like.dtype.base_dtype,
        initializer=initializer,
        regularizer=regularizer,
        constraint=constraint,
        trainable=trainable,
        collections=collections,
    )


def activated(outputs: Any, activation: Any) -> Any:
    """The activation as an op inside the layer's scope; a name is one of ``tf.nn``."""
    if activation is None:
        return outputs
    return (getattr(tf.nn, activation) if isinstance(activation, str) else activation)(outputs)


def static(flag: Any) -> bool | None:
    """What a flag is, where that is known without a run."""
    if isinstance(flag, (bool, int)):
        return bool(flag)
    found = tf.get_static_value(flag)
    return None if found is None else bool(found)


def phase(flag: Any) -> Any:
    """``training=True`` in a graph that is trained and scored with (``build_graph``'s): a placeholder of that default.

    Scoring feeds it ``False``. Elsewhere, and for every other flag, what was given.
    """
    if flag is True and getattr(tf.get_default_graph(), "_firesteel_has_phases", False):
        return tf.placeholder_with_default(True, [], name="training")
    return flag


def chosen(flag: Any, if_true: Callable[[], Any], if_false: Callable[[], Any]) -> Any:
    """One of two, at once where the flag is known, else by ``tf.cond``."""
    known = static(flag)
    if known is not None:
        return if_true() if known else if_false()
    return tf.cond(tf.cast(flag, tf.bool), if_true, if_false)


def pair(value: Any, count: int = 2) -> list[int]:
    """A size for each of ``count`` axes."""
    return [int(value)] * count if isinstance(value, int) else [int(each) for each in value]
