"""Batches from ``tf.data`` and from whatever a data creator returns, under the names that a graph is fed by."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from firesteel.core.errors import PlanError, UnsupportedError
from firesteel.core.spec import Batch, batch_of
from firesteel.frameworks.tfgraph.dataset import (
    DatasetMaker,
    GraphDataset,
    components,
    is_dataset,
    pack_dataset,
)

__all__ = ["stream", "travelling"]

_running: dict[int, tuple[Any, Any]] = {}


def stream(source: Any, batch_size: int | None, seed: int, epoch: int, inputs: int | None = None) -> Iterator[Batch]:
    """Batches in the source's own order; the features alone where ``inputs`` says how many there are."""
    if isinstance(source, (GraphDataset, DatasetMaker)):
        # One session for all passes: kept with its source, so that the key cannot be another's.
        kept = _running.get(id(source))
        if kept is None or kept[0] is not source:
            kept = _running[id(source)] = (source, source.open())
        yield from kept[1].batches(seed, epoch)
        return
    if is_dataset(source):
        elements: Iterable[Any] = (_arrays(element) for element in source)
    elif isinstance(source, tuple) and all(isinstance(part, (np.ndarray, list, dict)) for part in source):
        elements = _cut(source, batch_size or 32)
    elif isinstance(source, Iterable):
        elements = source
    else:
        raise UnsupportedError(
            f"a data creator must return a tf.data.Dataset, a tuple of arrays or an iterable of batches, not "
            f"{type(source).__qualname__}"
        )
    for element in elements:
        if isinstance(element, (tuple, list)) and inputs is None:
            yield batch_of(*element[:3], convert=np.asarray)
        elif isinstance(element, (tuple, list)):
            yield batch_of(element[0] if inputs == 1 else list(element[:inputs]), convert=np.asarray)
        else:
            yield batch_of(element, convert=np.asarray)


def travelling(dataset: Any, inputs: Any, labels: Any, ranks: dict[str, int | None], *, verb: str) -> tuple[Any, bool]:
    """A dataset for these feeds as what travels, and whether its elements are rows, to be batched.

    ``inputs`` and ``labels`` are names in a batch, ``ranks`` the feeds' numbers of axes. Elements are
    ``(x, y)``, each part a tensor or a structure of them, or for a prediction ``x``.
    """
    import tensorflow as tf

    spec = dataset.element_spec
    parts = spec if isinstance(spec, tuple) else (spec,)
    if verb == "prediction":
        whole = len(tf.nest.flatten(spec)) == len(inputs)
        counts = [len(tf.nest.flatten(spec))] if whole else [len(tf.nest.flatten(part)) for part in parts]
        wanted = [list(inputs)] + [[None] * count for count in counts[1:]]
    else:
        counts = [len(tf.nest.flatten(part)) for part in parts]
        wanted = [list(inputs), list(labels)] + [[None] * count for count in counts[2:]]
    if len(counts) < (1 if verb == "prediction" else 2) or [len(each) for each in wanted] != counts[: len(wanted)]:
        shape = "x" if verb == "prediction" else "(x, y)"
        raise PlanError(
            f"elements of the dataset must be {shape} with {len(inputs)} inputs and {len(labels)} labels; here: {spec}"
        )
    names = [name for part in wanted for name in part]
    flat = components(dataset)
    first = next(place for place, name in enumerate(names) if name is not None)
    rank, found = ranks[names[first]], flat[first].shape.rank
    has_rows = rank is not None and found is not None and found == rank - 1
    return pack_dataset(dataset, names, is_batched=not has_rows), has_rows


def _arrays(element: Any) -> Any:
    import tensorflow as tf

    return tf.nest.map_structure(lambda value: value.numpy(), element)


def _cut(parts: tuple[Any, ...], size: int) -> Iterator[Any]:
    import tensorflow as tf

    rows = len(tf.nest.flatten(parts)[0])
    for begin in range(0, rows, size):
        yield tf.nest.map_structure(lambda values, low=begin: values[low : low + size], parts)
