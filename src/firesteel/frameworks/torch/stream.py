"""Batches from torch's own loaders and datasets, and from whatever a data creator returns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from firesteel.core.errors import UnsupportedError
from firesteel.core.spec import Batch, as_batch

__all__ = ["is_sharded", "stream", "take_shard"]


def stream(
    source: object, batch_size: int | None, seed: int, epoch: int, has_labels: bool = True, inputs: int = 1
) -> Iterator[Batch]:
    """Batches in the source's own order. Random samplers become a function of (seed, epoch), the same on every rank.

    Without labels, the first ``inputs`` members of a tuple are the features.
    """
    if isinstance(source, Dataset) and not isinstance(source, DataLoader):
        source = DataLoader(source, batch_size=batch_size or 32)
    if isinstance(source, tuple) and all(hasattr(part, "__len__") for part in source) and _is_arrays(source):
        source = _cut(source, batch_size or 32)
    if not isinstance(source, Iterable):
        raise UnsupportedError(
            f"a data creator must return a DataLoader, a torch Dataset, a tuple of arrays or an iterable of batches, "
            f"not {type(source).__qualname__}"
        )
    if isinstance(source, DataLoader) and isinstance(source.sampler, DistributedSampler):
        source.sampler.set_epoch(epoch)
    # Random numbers of its own, for samplers draw theirs when the first batch is asked for, and transforms at every
    # row: in between the model draws too, differently on every rank.
    # The look at the first batch before all passes, number -1, is at that of the first.
    number = int(np.random.SeedSequence([abs(seed), max(epoch, 0)]).generate_state(1)[0])
    generator = torch.Generator().manual_seed(number)
    state = generator.get_state()
    iterator: Iterator[Any] | None = None
    while True:
        outside = torch.random.get_rng_state()
        torch.random.set_rng_state(state)
        try:
            if iterator is None:  # not "or": an endless loader's iterator has no length to be asked for
                iterator = iter(source)
            element = next(iterator)
        except StopIteration:
            return
        finally:
            state = torch.random.get_rng_state()
            torch.random.set_rng_state(outside)
        yield as_batch(element, has_labels, inputs, convert=_array)


def is_sharded(source: object) -> bool:
    """Whether the source gives each rank rows of its own."""
    return isinstance(source, DataLoader) and isinstance(source.sampler, DistributedSampler)


def take_shard(source: object, rank: int, size: int) -> bool:
    """Make a sharded source this rank's (a loader that was made on the driver cannot know it); whether it is one."""
    if not isinstance(source, DataLoader) or not isinstance(source.sampler, DistributedSampler):
        return False
    sampler = source.sampler
    again = DistributedSampler(
        sampler.dataset, size, rank, shuffle=sampler.shuffle, seed=sampler.seed, drop_last=sampler.drop_last
    )
    vars(sampler).update(vars(again))
    return True


def _array(value: Any) -> Any:
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)


def _is_arrays(parts: tuple[Any, ...]) -> bool:
    return all(isinstance(leaf, (np.ndarray, torch.Tensor)) for part in parts for leaf in _leaves(part))


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from _leaves(part)
    else:
        yield value


def _cut(parts: tuple[Any, ...], batch_size: int) -> Iterator[Any]:
    rows = len(next(_leaves(parts[0])))
    for begin in range(0, rows, batch_size):
        yield tuple(_slice(part, begin, begin + batch_size) for part in parts)


def _slice(value: Any, begin: int, end: int) -> Any:
    if isinstance(value, dict):
        return {key: _slice(part, begin, end) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_slice(part, begin, end) for part in value]
    return value[begin:end]
