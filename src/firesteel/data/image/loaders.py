"""A written dataset as TensorFlow's or torch's own kind of dataset, for creator functions and for single machines."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from firesteel.core.errors import PlanError, UnknownName, missing_extra
from firesteel.data.file import Path
from firesteel.data.image.rows import ShardRows
from firesteel.data.shards.kinds import check_positive

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

__all__ = ["read_parquet"]

_FORMATS = ("dataloader", "tf_dataset")


def read_parquet(
    format: str,
    path: Path,
    transforms: Callable[[dict[str, Any]], Any] | None = None,
    config: dict[str, Any] | None = None,
    batch_size: int = 1,
    **kwargs: Any,
) -> Any:
    """The rows of a dataset, or of one shard of it, as a dataset of a framework.

    Args:
        format: ``"tf_dataset"`` gives a ``tf.data.Dataset`` of rows: one by one as TensorFlow's users batch them,
            or in batches where ``batch_size`` is above 1. ``"dataloader"`` gives a ``torch.utils.data.DataLoader``.
        path: the dataset's folder.
        transforms: a function of a row's dict, before the framework sees it.
        config: ``num_shards`` and ``rank`` say which shard of the rows; ``num_workers`` (``"dataloader"``), how many
            processes read. Other keys are the user's own.
        batch_size: rows of a batch.
        **kwargs: ``shuffle`` and ``seed`` as for ``ParquetDataset.read_as_torch``. ``"tf_dataset"`` needs
            ``output_types`` and takes ``output_shapes``; ``"dataloader"`` takes the loader's own options.

    Raises:
        PlanError: an unknown format, a missing argument, or shard numbers that make no sense.
    """
    if format not in _FORMATS:
        raise UnknownName("format", format, _FORMATS)
    if config is not None and not isinstance(config, dict):
        raise PlanError(f"config must be a dict, found {type(config).__qualname__}")
    check_positive("batch_size", batch_size)
    read = _tf_dataset if format == "tf_dataset" else _dataloader
    return read(path, transforms, config or {}, int(batch_size), **kwargs)


def _dataloader(
    path: Path,
    transforms: Any,
    config: dict[str, Any],
    batch_size: int,
    shuffle: bool = False,
    seed: int | None = None,
    **options: Any,
) -> DataLoader[Any]:
    from firesteel.data.image.torch_dataset import ParquetIterableDataset

    from torch.utils.data import DataLoader  # isort: skip (after ours, which says how to install it)

    shard = config.get("num_shards"), config.get("rank")
    dataset = ParquetIterableDataset(path, *shard, transforms, shuffle, seed)
    options = {"num_workers": config.get("num_workers", 0)} | options
    try:
        return DataLoader(dataset, batch_size=batch_size, **options)
    except TypeError as error:
        raise PlanError(f"an option is not one of DataLoader's: {error}") from error


def _tf_dataset(
    path: Path,
    transforms: Any,
    config: dict[str, Any],
    batch_size: int,
    output_types: Any = None,
    output_shapes: Any = None,
    shuffle: bool = False,
    seed: int | None = None,
    **options: Any,
) -> Any:
    if output_types is None:
        raise PlanError("output_types is needed for format 'tf_dataset': the types of what a row has, after transforms")
    if options:
        known = "output_types, output_shapes, shuffle, seed"
        raise PlanError(f"format 'tf_dataset' does not know {', '.join(options)}; there are: {known}")
    try:
        import tensorflow as tf
    except ImportError:
        raise missing_extra("tensorflow", "tensorflow") from None

    shard = ShardRows(path, config.get("num_shards"), config.get("rank"), transforms, shuffle)
    rows = _Epochs(shard, secrets.randbits(31) if seed is None else seed)
    dataset = tf.data.Dataset.from_generator(rows, output_types=output_types, output_shapes=output_shapes)
    return dataset if batch_size == 1 else dataset.batch(batch_size)


class _Epochs:
    """Each call is an iterator over the next epoch."""

    def __init__(self, rows: ShardRows, seed: int) -> None:
        self._rows = rows
        self._seed = seed
        self._epochs = itertools.count()

    def __call__(self) -> Iterator[Any]:
        return self._rows.rows(next(self._epochs), self._seed)
