"""TensorFlow as programs for TensorFlow 1 know it: ``from firesteel import tf1 as tf``.

Everything of ``tensorflow.compat.v1``, the same objects, and what that has lost beside Keras 3: ``layers`` with the old
signatures and names, and as much of ``contrib.slim`` as a LeNet needs.

Importing this turns eager execution off in this process, so that ``tf.placeholder`` works at top level. That is its
only effect beyond the module; who wants to keep eager execution writes ``with tf.Graph().as_default():`` around the
graph and takes ``tensorflow.compat.v1``. Replicas never inherit it: graphs travel as GraphDefs.
"""

from __future__ import annotations

import importlib
from typing import Any

from firesteel.core.errors import missing_extra

try:
    from tensorflow.compat import v1 as _v1
except ModuleNotFoundError as error:
    raise missing_extra("tensorflow", "tensorflow") from error

_v1.disable_eager_execution()

_OWN = ("contrib", "layers")


def __getattr__(name: str) -> Any:
    if name in _OWN:
        return importlib.import_module(f"firesteel.tf1.{name}")
    value = getattr(_v1, name)  # raises AttributeError as TensorFlow does
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(_v1), *_OWN})
