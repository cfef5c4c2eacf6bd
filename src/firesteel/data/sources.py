"""Anything that users train on or score, as one of four kinds. Adding a kind of input means adding it here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from firesteel.core.errors import PlanError, SchemaError, UnsupportedError
from firesteel.core.spec import Batch, batch_of, rows_of
from firesteel.data.frame import path_of
from firesteel.data.packed import PACKED_SCHEMA, pack, pack_error
from firesteel.data.reading import Reading, check_inputs, check_weights, make_reading, quoted
from firesteel.data.shards import XShards

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import DataFrame

__all__ = [
    "Columns",
    "Frame",
    "Local",
    "Packed",
    "Source",
    "Streamed",
    "as_dataset",
    "is_frame",
    "is_pandas",
    "pandas_reading",
    "read_pandas",
    "shard_batch",
]


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
    names = tuple(value) if isinstance(value, (list, tuple)) else (value,)
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
    counts_inputs: bool = True,
) -> Source:
    """``data`` as one of the four kinds. Runs no job, but for an XShards' first shard.

    Args:
        data: what the user gave.
        columns: what the user said about columns.
        inputs: how many inputs the model takes, at least and at most; asked only where it matters.
        is_loader: whether an object is the framework's own loader.
        kinds: what this door takes, for the message when ``data`` is none of it.
        counts_inputs: whether arrays must be as many as the inputs; not where the user's own code feeds the model.
    """
    if is_frame(data):
        features, labels = columns.require()
        keys = partial(_map_keys, data)
        return Frame(data, make_reading(data.schema, features, labels, columns.weight, inputs(), keys))
    if isinstance(data, XShards):
        return _from_shards(data, columns, inputs, counts_inputs)
    if is_pandas(data):
        return Local(read_pandas(data, pandas_reading(data, columns, inputs())))
    if is_loader(data):
        return Streamed(data, is_creator=False)
    if callable(data) and not isinstance(data, np.ndarray):
        return Streamed(data, is_creator=True)
    batch = _from_arrays(data, columns)
    if batch is None:
        raise UnsupportedError(
            f"data of type {type(data).__qualname__} cannot be used for {columns.verb}; this door takes {kinds}"
        )
    if counts_inputs:
        _check_arrays(batch, inputs())
    return Local(batch)


def _map_keys(df: DataFrame, name: str) -> list[str]:
    """The keys of a map column, as its first row has them."""
    from pyspark.sql.functions import map_keys

    first = df.select(map_keys(quoted(*path_of(df.schema, name)))).first()
    if first is None or not first[0]:
        raise SchemaError(f"column {name!r} is a map, and its first row has no keys to name the inputs by", column=name)
    return sorted(first[0])


def _from_arrays(data: Any, columns: Columns) -> Batch | None:
    """``(x, y)``, ``(x, y, w)``, ``{"x": …}``; for prediction ``x`` alone, a list for several inputs."""
    if columns.verb == "prediction":
        if isinstance(data, dict):
            data = data.get("x", data)
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


def _check_arrays(batch: Batch, inputs: tuple[int, int | None]) -> None:
    """Whether there are as many feature arrays as inputs; a dict of them may also be one input as it is."""
    features = [name for name in batch if name.startswith("x")]
    if "." in features[0] and inputs[0] <= 1:
        return
    check_inputs(len(features), inputs, "feature arrays")


def _check_batch(batch: Batch) -> None:
    lengths = {name: len(values) for name, values in batch.items()}
    if len(set(lengths.values())) > 1:
        raise PlanError(f"arrays must have the same size in first dimension: {lengths}")
    for name, values in batch.items():
        if values.dtype == object or values.dtype.kind in "USMm":
            raise SchemaError(f"array {name!r} has dtype {values.dtype}; numbers and booleans can be fed", column=name)
    if "w" in batch:
        check_weights(batch["w"], "w")


def pandas_reading(data: pd.DataFrame, columns: Columns, inputs: tuple[int, int | None]) -> Reading:
    """How frames like this one become batches, by the rules of Spark columns."""
    import pyarrow as pa
    from pyspark.errors import PySparkTypeError
    from pyspark.sql.pandas.types import from_arrow_schema

    features, labels = columns.require()
    wanted = dict.fromkeys([*features, *labels, *([columns.weight] if columns.weight else [])])
    missing = [name for name in wanted if name not in data.columns]
    if missing:
        known = ", ".join(map(str, data.columns))
        raise SchemaError(f"column {missing[0]!r} does not exist; there are: {known}", column=missing[0])
    arrays = {name: _arrow(data[name], name) for name in wanted}
    try:
        schema = from_arrow_schema(pa.schema([(name, array.type) for name, array in arrays.items()]))
    except PySparkTypeError as error:
        raise SchemaError(f"a column does not become a tensor: {error}") from error
    return make_reading(schema, features, labels, columns.weight, inputs)


def read_pandas(data: pd.DataFrame, reading: Reading) -> Batch:
    """A frame's columns as a batch. Runs in a task, and on the driver."""
    import pyarrow as pa

    missing = [column.name for column in reading.columns if column.name not in data.columns]
    if missing:
        raise SchemaError(f"shards differ: one has no column {missing[0]!r}", column=missing[0])
    arrays = [_arrow(data[column.name], column.name) for column in reading.columns]
    return reading.batch(pa.RecordBatch.from_arrays(arrays, [f"c{index}" for index in range(len(arrays))]))


def _arrow(series: pd.Series[Any], name: str) -> pa.Array:
    import pyarrow as pa

    try:
        array = pa.array(_plain(series), from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise SchemaError(f"column {name!r} does not become a tensor: {error}", column=name) from error
    array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    if pa.types.is_unsigned_integer(array.type):  # types that Spark has not
        return array.cast(pa.int64())
    return array.cast(pa.float32()) if pa.types.is_float16(array.type) else array


def _plain(series: pd.Series[Any]) -> Any:
    """Cells that are arrays, as lists where Arrow would refuse them (more than one axis)."""
    if series.dtype == object and len(series) and isinstance(series.iloc[0], np.ndarray) and series.iloc[0].ndim > 1:
        return [cell.tolist() for cell in series]
    return series


# --- XShards ----------------------------------------------------------------------------------------------------------


def _from_shards(
    shards: XShards, columns: Columns, inputs: Callable[[], tuple[int, int | None]], counts_inputs: bool
) -> Source:
    try:
        first = shards.first()
    except ValueError as error:
        raise PlanError(f"the XShards has no shard, so there are no rows for {columns.verb}") from error
    if is_pandas(first):
        pandas_reading(first, columns, inputs())  # says what does not fit before all shards are looked at
        return as_dataset(shards.to_spark_df(), columns, inputs=inputs, is_loader=lambda data: False, kinds="")
    names = tuple(shard_batch(first, columns.verb, inputs() if counts_inputs else None))
    rows = shards.rdd.mapPartitions(partial(_packed_rows, columns.verb, names))
    return Packed(_session().createDataFrame(rows, PACKED_SCHEMA, verifySchema=False), names)


def _session() -> Any:
    from pyspark.sql import SparkSession

    return SparkSession.builder.getOrCreate()


def _packed_rows(verb: str, names: tuple[str, ...], shards: Iterable[Any]) -> Iterator[tuple[str, bytes]]:
    try:
        for shard in shards:
            batch = shard_batch(shard, verb)
            if tuple(batch) != names:
                raise SchemaError(f"shards differ: the first has {', '.join(names)}, another has {', '.join(batch)}")
            if rows_of(batch):
                yield pack(batch)
    except PlanError as error:
        yield pack_error(error)


def shard_batch(shard: Any, verb: str, inputs: tuple[int, int | None] | None = None) -> Batch:
    """A shard's rows: a dict with ``x`` (``y``, ``w``), or a tuple of them. Runs in tasks, and first on the driver.

    ``inputs`` is how many the model takes, to be checked.
    """
    columns = Columns(None, None, None, verb)
    if isinstance(shard, tuple) and len(shard) == 2 and not _is_arrays(list(shard)) and verb != "prediction":
        raise UnsupportedError(
            "each shard is one (feature, label) pair; call stack_feature_labels() first, which makes arrays of them"
        )
    if verb == "prediction" and isinstance(shard, tuple):
        shard = shard[0]
    if isinstance(shard, dict):
        for key in ("x",) if verb == "prediction" else ("x", "y"):
            if key not in shard:
                there = ", ".join(map(str, shard))
                raise SchemaError(f"shards for {verb} must have the key {key!r}; there are: {there}", column=key)
    batch = _from_arrays(shard, columns)
    if batch is None:
        wanted = "{'x': …}" if verb == "prediction" else "{'x': …, 'y': …} or (x, y)"
        kind = type(shard).__qualname__
        raise UnsupportedError(f"shards of {kind} cannot be used for {verb}; they must be {wanted} of ndarrays")
    if inputs is not None:
        _check_arrays(batch, inputs)
    return batch
