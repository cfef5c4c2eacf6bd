"""Batches from ``tf.data``, Keras's own datasets, and whatever a data creator returns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

import numpy as np

from firesteel.core.errors import UnsupportedError
from firesteel.core.spec import Batch, as_batch

__all__ = ["is_dataset", "stream", "travelling"]


def is_dataset(source: object) -> bool:
    """A ``tf.data.Dataset`` or a ``keras.utils.PyDataset``."""
    return _is_named(source, "tensorflow", "DatasetV2") or _is_named(source, "keras", "PyDataset") or _is_packed(source)


def stream(
    source: Any, batch_size: int | None, epoch: int, has_labels: bool = True, inputs: int = 1
) -> Iterator[Batch]:
    """Batches in the source's own order."""
    if _is_packed(source):
        source = source.unpack()
    if _is_named(source, "tensorflow", "DatasetV2"):
        from firesteel.frameworks.keras.dataset import iterate

        elements: Iterable[Any] = iterate(source, epoch)
    elif _is_named(source, "keras", "PyDataset"):
        elements = _pydataset(source)
    elif isinstance(source, tuple) and all(isinstance(part, (np.ndarray, list, dict)) for part in source):
        elements = _cut(source, batch_size or 32)
    elif isinstance(source, Iterable):
        elements = source
    else:
        raise UnsupportedError(
            f"a data creator must return a tf.data.Dataset, a keras.utils.PyDataset, a tuple of arrays or an iterable "
            f"of batches, not {type(source).__qualname__}"
        )
    for element in elements:
        yield as_batch(element, has_labels, inputs, convert=_array)


def travelling(data: Any, model: Any, seed: int) -> Any:
    """A ``tf.data.Dataset`` as its graph: of batches, or a creator of batches where its elements are rows."""
    if not _is_named(data, "tensorflow", "DatasetV2"):
        return data
    from firesteel.frameworks.keras.dataset import PackedDataset, RowsOf

    packed = PackedDataset(data, seed)
    return RowsOf(packed) if _has_rows(data.element_spec, model) else packed


def _has_rows(element: Any, model: Any) -> bool:
    """Whether an element is one row: it has one axis less than what the model takes."""
    inputs = getattr(model, "inputs", None)
    if not inputs:
        return False  # a model that has not been told is fed as Keras would feed it: by batches
    features = element[0] if isinstance(element, tuple) else element
    if isinstance(features, dict):
        by_name = {tensor.name: tensor for tensor in inputs}
        wanted, given = next(((by_name[n], s) for n, s in features.items() if n in by_name), (None, None))
    else:
        given = features[0] if isinstance(features, (tuple, list)) else features
        wanted = inputs[0]
    if wanted is None or given is None or given.shape.rank is None:
        return False
    return bool(given.shape.rank == len(wanted.shape) - 1)


def _pydataset(source: Any) -> Iterator[Any]:
    for place in count() if source.num_batches is None else range(source.num_batches):
        yield source[place]
    source.on_epoch_end()


def _array(value: Any) -> Any:
    return value.numpy() if hasattr(value, "numpy") else np.asarray(value)


def _is_packed(value: object) -> bool:
    return hasattr(value, "unpack") and type(value).__module__ == "firesteel.frameworks.keras.dataset"


def _is_named(value: object, package: str, name: str) -> bool:
    return any(c.__name__ == name and c.__module__.partition(".")[0] == package for c in type(value).__mro__)


def _cut(parts: tuple[Any, ...], size: int) -> Iterator[Any]:
    rows = len(_first(parts[0]))
    for begin in range(0, rows, size):
        yield tuple(_slice(part, begin, begin + size) for part in parts)


def _first(value: Any) -> Any:
    if isinstance(value, dict):
        return _first(next(iter(value.values())))
    return _first(value[0]) if isinstance(value, (list, tuple)) else value


def _slice(value: Any, begin: int, end: int) -> Any:
    if isinstance(value, dict):
        return {key: _slice(part, begin, end) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_slice(part, begin, end) for part in value]
    return value[begin:end]
