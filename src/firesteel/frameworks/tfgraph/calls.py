"""A session's run for fixed feeds and fetches, prepared once: what is left of a call is TensorFlow's own work.

``Session.make_callable`` looks all names up again in every call that has feeds, which takes longer than the step of a
small model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf.config_pb2 import CallableOptions

__all__ = ["make_call"]


def make_call(session: Any, fetches: Any, feeds: Sequence[Any] = ()) -> Callable[..., Any]:
    """A function of the feeds' values that gives what ``session.run`` gives.

    Args:
        session: a TensorFlow 1 session.
        fetches: a tensor, an op, or a list of them; an op gives ``None``.
        feeds: tensors, in the order of the values.
    """
    by_name: Callable[..., Any] = session.make_callable(fetches, list(feeds))
    listed = fetches if isinstance(fetches, list) else [fetches]
    fed = {feed.name for feed in feeds}
    is_plain = bool(listed) and all(
        isinstance(each, tf.Operation) or (isinstance(each, tf.Tensor) and each.name not in fed) for each in listed
    )
    # What is fed and fetched both, is no plain tensor, or is nothing at all is left to the longer way.
    return _Call(session, fetches, feeds, by_name) if is_plain else by_name


class _Call:
    def __init__(self, session: Any, fetches: Any, feeds: Sequence[Any], by_name: Callable[..., Any]) -> None:
        listed = fetches if isinstance(fetches, list) else [fetches]
        self._is_list = isinstance(fetches, list)
        self._places = [place for place, each in enumerate(listed) if isinstance(each, tf.Tensor)]
        self._count = len(listed)
        self._feeds = [(feed.dtype.as_numpy_dtype, feed.shape) for feed in feeds]
        self._by_name = by_name
        self._run = session._make_callable_from_options(
            CallableOptions(
                feed=[feed.name for feed in feeds],
                fetch=[each.name for each in listed if isinstance(each, tf.Tensor)],
                target=[each.name for each in listed if isinstance(each, tf.Operation)],
            )
        )

    def __call__(self, *values: Any) -> Any:
        arrays = [np.asarray(value, dtype) for value, (dtype, _) in zip(values, self._feeds, strict=True)]
        if not all(shape.is_compatible_with(a.shape) for a, (_, shape) in zip(arrays, self._feeds, strict=True)):
            return self._by_name(*values)  # which says what does not fit
        try:
            found = self._run(*arrays)
        except tf.errors.OpError:
            # Once more the longer way: its error also says where in the user's program the op was made.
            return self._by_name(*values)
        if len(found) < self._count:
            whole: list[Any] = [None] * self._count
            for place, value in zip(self._places, found, strict=True):
                whole[place] = value
            found = whole
        return found if self._is_list else found[0]
