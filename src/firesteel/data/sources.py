"""Anything that users train on or score, as one of four kinds. Adding a kind of input means adding it here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from firesteel.core.errors import PlanError, SchemaError, UnsupportedError
from firesteel.core.spec import Batch, batch_of, rows_of
from firesteel.data.packed import PACKED_SCHEMA, pack
from firesteel.data.reading import Reading, check_weights, make_reading
from firesteel.data.shards import XShards

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

__all__ = ["Columns", "Frame", "Local", "Packed", "Source", "Streamed", "as_dataset", "batch_of_pandas", "is_frame", "is_pandas", "shard_batch"]


@dataclass(frozen=True)
class Frame:
    """Rows of a Spark DataFrame."""

    df: DataFrame
    reading: Reading


@dataclass(frozen=True)
class Packed:
    """Blocks of rows in a Spark DataFrame (``data.packed``)."""

    df: DataFrame
    names: tuple[str, ...]


@dataclass(frozen=True)
class Local:
    """Arrays on the driver."""

    batch: Batch


@dataclass(frozen=True)
class Streamed:
    """A loader, or a creator that makes one in each replica."""

    source: Any
    is_creator: bool


Source = Frame | Packed | Local | Streamed


@dataclass(frozen=True)
class Columns:
    """What the user said about columns. ``verb`` is "training" or "prediction", for messages."""

    features: tuple[str, ...] | None
    labels: tuple[str, ...] | None
    weight: str | None
    verb: str

    @classmethod
    def of(cls, features: Any, labels: Any, weight: str | None, verb: str) -> Columns:
        """Names alone or in lists."""
        return cls(_names(features, "feature_cols"), _names(labels, "label_cols"), weight, verb)

    def require(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Features and labels, where both are needed."""
        if self.features is None:
            raise SchemaError(f"feature columns is None in {self.verb}; pass feature_cols")
        if self.labels is None and self.verb != "prediction":
            raise SchemaError(f"label columns is None in {self.verb}; pass label_cols")
        return self.features, self.labels or ()


def _names(value: Any, what: str) -> tuple[str, ...] | None:
    if value is None:
        return None
    names = (value,) if isinstance(value, str) else tuple(value)
    if not names or not all(isinstance(name, str) for name in names):
        raise SchemaError(f"{what} must be a column's name or a list of names, not {value!r}")
    return names


def is_frame(data: object) -> bool:
    """A Spark DataFrame, classic or Connect."""
    return any(cls.__module__.startswith("pyspark.sql") and cls.__name__ == "DataFrame" for cls in type(data).__mro__)


def is_pandas(data: object) -> bool:
    """A pandas DataFrame."""
    return any(cls.__module__.startswith("pandas.") and cls.__name__ == "DataFrame" for cls in type(data).__mro__)


def as_dataset(
    data: Any,
    columns: Columns,
    *,
    inputs: Callable[[], tuple[int, int | None]],
    is_loader: Callable[[object], bool],
    kinds: str,
) -> Source:
    """``data`` as one of the four kinds. Runs no job, but for an XShards' first shard.

    Args:
        inputs: how many inputs the model takes, at least and at most; asked only where columns must be matched.
        is_loader: whether an object is the framework's own loader.
        kinds: what this door takes, for the message when ``data`` is none of it.
    """
    if is_frame(data):
        features, labels = columns.require()
        return Frame(data, make_reading(data.schema, features, labels, columns.weight, inputs()))
    if isinstance(data, XShards):
        return _from_shards(data, columns, inputs)
    if is_pandas(data):
        return Local(batch_of_pandas(data, columns, inputs()))
    if is_loader(data):
        return Streamed(data, is_creator=False)
    if callable(data) and not isinstance(data, np.ndarray):
        return Streamed(data, is_creator=True)
    batch = _from_arrays(data, columns)
    if batch is None:
        raise UnsupportedError(f"data of type {type(data).__qualname__} cannot be used for {columns.verb}; this door takes {kinds}")
    return Local(batch)




def _from_arrays(data: Any, columns: Columns) -> Batch | None:
    """``(x, y)``, ``(x, y, w)``, ``{"x": …}``; for prediction ``x`` alone, a list for several inputs."""
    if columns.verb == "prediction":
        if isinstance(data, dict):
            data = data["x"] if "x" in data else data
        elif isinstance(data, tuple) and data and isinstance(data[0], (list, dict)):
            data = data[0]
        batch = batch_of(data, convert=np.asarray) if _is_arrays(data) else None
    elif isinstance(data, dict) and "x" in data and "y" in data:
        batch = batch_of(data["x"], data["y"], data.get("w")) if _is_arrays([*data.values()]) else None
    elif isinstance(data, (tuple, list)) and len(data) in (2, 3) and _is_arrays(list(data)):
        batch = batch_of(*data)
    else:
        batch = None
    if batch is not None:
        _check_batch(batch)
    return batch


def _is_arrays(value: Any) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return bool(value) and all(_is_arrays(part) for part in value)
    return isinstance(value, np.ndarray) and value.ndim > 0


def _check_batch(batch: Batch) -> None:
    lengths = {name: len(values) for name, values in batch.items()}
    if len(set(lengths.values())) > 1:
        raise PlanError(f"arrays must have the same size in first dimension: {lengths}")
    for name, values in batch.items():
        if values.dtype == object or values.dtype.kind in "USMm":
            raise SchemaError(f"array {name!r} has dtype {values.dtype}; numbers and booleans can be fed", column=name)
    if "w" in batch:
        check_weights(batch["w"], "w")


def batch_of_pandas(data: pd.DataFrame, columns: Columns, inputs: tuple[int, int | None]) -> Batch:
    """A pandas frame's columns as a batch, by the rules of Spark columns."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import from_arrow_schema

    features, labels = columns.require()
    wanted = list(dict.fromkeys([*features, *labels, *([columns.weight] if columns.weight else [])]))
    missing = [name for name in wanted if name not in data.columns]
    if missing:
        known = ", ".join(map(str, data.columns))
        raise SchemaError(f"column {missing[0]!r} does not exist; there are: {known}", column=missing[0])
    arrays = {}
    for name in wanted:
        try:
            arrays[name] = pa.array(_plain(data[name]), from_pandas=True)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise SchemaError(f"column {name!r} does not become a tensor: {error}", column=name) from error
    table = pa.table(arrays)
    reading = make_reading(from_arrow_schema(table.schema), features, labels, columns.weight, inputs)
    rows = pa.RecordBatch.from_arrays(
        [table.column(column.name).combine_chunks() for column in reading.columns],
        [f"c{index}" for index in range(len(reading.columns))],
    )
    return reading.batch(rows)


def _plain(series: pd.Series[Any]) -> Any:
    """Cells that are arrays, as lists where Arrow would refuse them (more than one axis)."""
    if series.dtype == object and len(series) and isinstance(series.iloc[0], np.ndarray) and series.iloc[0].ndim > 1:
        return [cell.tolist() for cell in series]
    return series


# --- XShards ----------------------------------------------------------------------------------------------------------


def _from_shards(shards: XShards, columns: Columns, inputs: Callable[[], tuple[int, int | None]]) -> Source:
    try:
        first = shards.first()
    except ValueError as error:
        raise PlanError(f"the XShards has no shard, so there are no rows for {columns.verb}") from error
    if is_pandas(first):
        return as_dataset(shards.to_spark_df(), columns, inputs=inputs, is_loader=lambda data: False, kinds="")
    names = tuple(shard_batch(first, columns.verb))
    rows = shards.rdd.mapPartitions(partial(_packed_rows, columns.verb, names))
    return Packed(_session().createDataFrame(rows, PACKED_SCHEMA, verifySchema=False), names)


def _session() -> Any:
    from pyspark.sql import SparkSession

    return SparkSession.builder.getOrCreate()


def _packed_rows(verb: str, names: tuple[str, ...], shards: Iterable[Any]) -> Iterator[tuple[str, bytes]]:
    for shard in shards:
        batch = shard_batch(shard, verb)
        if tuple(batch) != names:
            raise SchemaError(f"shards differ: the first has {', '.join(names)}, another has {', '.join(batch)}")
        if rows_of(batch):
            yield pack(batch)


def shard_batch(shard: Any, verb: str) -> Batch:
    """A shard's rows: a dict with ``x`` (``y``, ``w``), or a tuple of them. Runs in a task, and on the first shard on the driver."""
    columns = Columns(None, None, None, verb)
    if isinstance(shard, tuple) and len(shard) == 2 and not _is_arrays(list(shard)) and verb != "prediction":
        raise UnsupportedError(
            "each shard is one (feature, label) pair; call stack_feature_labels() first, which makes arrays of them"
        )
    if verb == "prediction" and isinstance(shard, tuple):
        shard = shard[0]
    if verb == "prediction" and isinstance(shard, dict) and "x" not in shard:
        raise SchemaError(f"shards must have the key 'x'; there are: {', '.join(map(str, shard))}", column="x")
    batch = _from_arrays(shard, columns)
    if batch is None:
        wanted = "{'x': …}" if verb == "prediction" else "{'x': …, 'y': …} or (x, y)"
        raise UnsupportedError(f"shards of {type(shard).__qualname__} cannot be used for {verb}; they must be {wanted} of ndarrays")
    return batch
