"""Batches from MXNet's own iterators and loaders, and from whatever a data creator returns."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import mxnet as mx
import numpy as np

from firesteel.core.errors import UnsupportedError
from firesteel.core.spec import Batch, batch_of, rows_of

__all__ = ["Made", "Store", "create", "stream", "take_shard"]


class Store:
    """What a data creator is given as ``kv``: who this worker is. It remembers whether it was asked."""

    def __init__(self, rank: int, num_workers: int, kind: str) -> None:
        self._rank, self._num_workers, self._kind = rank, num_workers, kind
        self.is_asked = False

    @property
    def rank(self) -> int:
        """This worker's number."""
        self.is_asked = True
        return self._rank

    @property
    def num_workers(self) -> int:
        """How many workers there are."""
        self.is_asked = True
        return self._num_workers

    @property
    def type(self) -> str:
        """The store's kind, such as ``dist_sync``."""
        return self._kind


@dataclass
class Made:
    """What a creator returned, and whether these are its worker's own rows."""

    source: Any
    is_own: bool
    start: Any = None
    """An ``NDArrayIter``'s rows in their first order: shuffling moves them."""


def create(stream: Any, rank: int, size: int) -> Made:
    """Call a data creator ``(config, kv)``; its ``config["batch_size"]`` is this worker's share of the batch."""
    rows = stream.batch_size or 32
    share = max(1, rows // size + (rank < rows % size))
    store = Store(rank, size, stream.config.get("kvstore", "dist_sync"))
    source = stream.source({**stream.config, "batch_size": share}, store)
    made = Made(source, store.is_asked if stream.auto_shard is None else not stream.auto_shard)
    if isinstance(source, Iterator) and not isinstance(source, mx.io.DataIter):
        made.source = list(source)  # it can be read once, and every epoch reads it
    if isinstance(source, mx.io.NDArrayIter):
        made.start = (source.data, source.label)
    return made


def take_shard(source: object) -> bool:
    """Whether these are the worker's own rows."""
    return isinstance(source, Made) and source.is_own


def stream(source: Any, batch_size: int | None, seed: int, epoch: int, has_labels: bool = True) -> Iterator[Batch]:
    """Batches in the source's order, a function of (seed, epoch).

    Rows of the worker's own come as the source cuts them; of what all workers see alike, a batch is a global batch.
    """
    made = source if isinstance(source, Made) else Made(source, is_own=True)
    batches = _seeded(made, seed, epoch, has_labels)
    return batches if made.is_own or batch_size is None else _regrouped(batches, batch_size)


def _seeded(made: Made, seed: int, epoch: int, has_labels: bool) -> Iterator[Batch]:
    """With random numbers of its own: in between the training draws too, differently on every worker."""
    # The look at the first batch before all passes, number -1, is at that of the first.
    number = int(np.random.SeedSequence([abs(seed), max(epoch, 0)]).generate_state(1)[0])
    inner: Any = (np.random.RandomState(number).get_state(), random.Random(number).getstate())
    elements: Iterator[Any] | None = None
    while True:
        outer = (np.random.get_state(), random.getstate())
        np.random.set_state(inner[0])
        random.setstate(inner[1])
        try:
            if elements is None:
                elements = _elements(made)
            element = next(elements, None)
        finally:
            inner = (np.random.get_state(), random.getstate())
            np.random.set_state(outer[0])
            random.setstate(outer[1])
        if element is None:
            return
        batch = as_batch(element, has_labels)
        if rows_of(batch):
            yield batch


def _elements(made: Made) -> Iterator[Any]:
    source = made.source
    if isinstance(source, mx.io.DataIter):
        if made.start is not None:
            source.data, source.label = made.start
            source.idx = np.arange(source.num_data)
        source.reset()
    if not isinstance(source, Iterable):
        raise UnsupportedError(
            f"a data creator must return an mx.io.DataIter, a gluon DataLoader or an iterable of (data, label) "
            f"batches, not {type(source).__qualname__}"
        )
    return iter(source)


def as_batch(element: Any, has_labels: bool) -> Batch:
    """A ``DataBatch`` without the rows that only fill it up, ``(data, label)``, or data alone."""
    if isinstance(element, mx.io.DataBatch):
        labels = list(element.label or []) if has_labels else []
        batch = batch_of(_alone(list(element.data)), _alone(labels) if labels else None, convert=_array)
        pad = int(element.pad or 0)
        return {name: values[: len(values) - pad] for name, values in batch.items()} if pad else batch
    if isinstance(element, (tuple, list)) and len(element) > 1:
        return batch_of(element[0], element[1] if has_labels else None, convert=_array)
    return batch_of(element[0] if isinstance(element, (tuple, list)) else element, convert=_array)


def _alone(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else parts


def _array(value: Any) -> Any:
    return value.asnumpy() if isinstance(value, mx.nd.NDArray) else np.asarray(value)


def _regrouped(batches: Iterator[Batch], size: int) -> Iterator[Batch]:
    """The same rows, ``size`` at a time."""
    held: list[Batch] = []
    count = 0
    for batch in batches:
        held.append(batch)
        count += rows_of(batch)
        while count >= size:
            whole = _joined(held)
            yield {name: values[:size] for name, values in whole.items()}
            rest = {name: values[size:] for name, values in whole.items()}
            count -= size
            held = [rest] if count else []
    if count:
        yield _joined(held)


def _joined(batches: list[Batch]) -> Batch:
    if len(batches) == 1:
        return batches[0]
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
