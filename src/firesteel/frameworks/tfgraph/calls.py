"""A session's run for fixed feeds and fetches, prepared once: what is left of a call is TensorFlow's own work.

``Session.make_callable`` looks all names up again in every call that has feeds, which takes longer than the step of a
small model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf.config_pb2 import CallableOptions, RunOptions

__all__ = ["make_call"]

_SESSIONS_POOL, _THIS_THREAD = 0, -1  # see RunOptions.inter_op_thread_pool


def make_call(session: Any, fetches: Any, feeds: Sequence[Any] = (), *, is_here: bool = False) -> Callable[..., Any]:
    """A function of the feeds' values that gives what ``session.run`` gives.

    Args:
        session: a TensorFlow 1 session.
        fetches: a tensor, an op, or a list of them; an op gives ``None``.
        feeds: tensors, in the order of the values.
        is_here: whether ops run in the thread that calls. Where there is one thread for them anyway, handing over to it
            and back only waits for the scheduler, twice, and longer the busier the cores are.
    """
    by_name: Callable[..., Any] = session.make_callable(fetches, list(feeds))
    listed = fetches if isinstance(fetches, list) else [fetches]
    fed = {feed.name for feed in feeds}
    is_plain = bool(listed) and all(
        isinstance(each, tf.Operation) or (isinstance(each, tf.Tensor) and each.name not in fed) for each in listed
    )
    # What is fed and fetched both, is no plain tensor, or is nothing at all is left to the longer way.
    return _Call(session, fetches, feeds, by_name, is_here=is_here) if is_plain else by_name


class _Call:
    def __init__(
        self, session: Any, fetches: Any, feeds: Sequence[Any], by_name: Callable[..., Any], *, is_here: bool
    ) -> None:
        listed = fetches if isinstance(fetches, list) else [fetches]
        self._is_list = isinstance(fetches, list)
        self._places = [place for place, each in enumerate(listed) if isinstance(each, tf.Tensor)]
        self._count = len(listed)
        self._feeds = [(feed.dtype.as_numpy_dtype, feed.shape, set[Any]()) for feed in feeds]
        self._by_name = by_name
        self._run = session._make_callable_from_options(
            CallableOptions(
                feed=[feed.name for feed in feeds],
                fetch=[each.name for each in listed if isinstance(each, tf.Tensor)],
                target=[each.name for each in listed if isinstance(each, tf.Operation)],
                run_options=RunOptions(inter_op_thread_pool=_THIS_THREAD if is_here else _SESSIONS_POOL),
            )
        )

    def __call__(self, *values: Any) -> Any:
        arrays = []
        for value, (dtype, shape, fitting) in zip(values, self._feeds, strict=True):
            array = np.asarray(value, dtype)
            if array.shape not in fitting:  # TensorFlow takes a while to compare two shapes
                if not shape.is_compatible_with(array.shape):
                    return self._by_name(*values)  # which says what does not fit
                fitting.add(array.shape)
            arrays.append(array)
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
