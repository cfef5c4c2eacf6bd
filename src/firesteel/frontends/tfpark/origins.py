"""Where a dataset's rows are, and the source that the engine takes them as."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from firesteel.core.errors import PlanError, SchemaError, UnsupportedError
from firesteel.core.spec import Batch, rows_of
from firesteel.data.frame import columns_of
from firesteel.data.image import image_column
from firesteel.data.packed import pack, pack_error
from firesteel.data.reading import Reading, Tensor
from firesteel.data.shards import XShards
from firesteel.data.sources import Frame, Local, Packed, Source, Streamed, shard_batch
from firesteel.frontends.tfpark.layout import Field, Layout, leaves, packed_rows, typed_rows
from firesteel.frontends.training import session_of

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

__all__ = ["Arrays", "Columns", "Elements", "Origin", "Shards", "Streams", "column_fields", "stated_columns"]

_BLOCK_ROWS = 1024


class Origin(ABC):
    """Rows of a layout, somewhere."""

    @abstractmethod
    def source(self, rows: int | None = None) -> Source:
        """What the engine takes: to be trained on, or in calls of so many ``rows`` to be scored."""

    @abstractmethod
    def split(self, fraction: float, seed: int) -> tuple[Origin, Origin]:
        """The rows to train on, and a part of about this size that is held out."""

    @abstractmethod
    def even(self, ranks: int, batch_size: int) -> Origin:
        """The same rows in exactly equal parts; ``PlanError`` where they are no multiple of the batch size."""

    @abstractmethod
    def partitions(self) -> int:
        """How many there are."""

    @abstractmethod
    def plain(self) -> tuple[Any, dict[str, Any]]:
        """Data and column arguments as an estimator takes them."""

    def session(self) -> SparkSession:
        """The Spark session that the rows are in."""
        return session_of(None)


@dataclass(frozen=True)
class Elements(Origin):
    """An RDD with one element to a row."""

    rdd: RDD[Any]
    layout: Layout

    def source(self, rows: int | None = None) -> Source:
        """Stacked in the tasks, block by block."""
        return _packed(self.rdd.mapPartitions(partial(packed_rows, self.layout, rows or _BLOCK_ROWS)), self.layout)

    def split(self, fraction: float, seed: int) -> tuple[Origin, Origin]:
        """By Spark's own sampling, which is a function of the seed."""
        kept, held = self.rdd.randomSplit([1 - fraction, fraction], seed)
        return replace(self, rdd=kept), replace(self, rdd=held)

    def even(self, ranks: int, batch_size: int) -> Origin:
        """Dealt out one by one."""
        count = self.rdd.count()
        check_multiple(count, batch_size)
        return replace(self, rdd=_dealt(self.rdd, ranks))

    def partitions(self) -> int:
        """The RDD's."""
        return int(self.rdd.getNumPartitions())

    def plain(self) -> tuple[Any, dict[str, Any]]:
        """Rows ``(x, y)``, checked."""
        return self.rdd.mapPartitions(partial(typed_rows, self.layout)), {}


@dataclass(frozen=True)
class Shards(Origin):
    """An XShards of dicts or tuples of arrays."""

    shards: XShards
    layout: Layout

    def source(self, rows: int | None = None) -> Source:
        """Shards as they are, with the declared dtypes."""
        return _packed(self.shards.rdd.mapPartitions(partial(_packed_shards, self.layout)), self.layout)

    def split(self, fraction: float, seed: int) -> tuple[Origin, Origin]:
        """Row by row."""
        return self._elements().split(fraction, seed)

    def even(self, ranks: int, batch_size: int) -> Origin:
        """Row by row."""
        return self._elements().even(ranks, batch_size)

    def partitions(self) -> int:
        """The XShards'."""
        return int(self.shards.num_partitions())

    def plain(self) -> tuple[Any, dict[str, Any]]:
        """The XShards itself."""
        return self.shards, {}

    def _elements(self) -> Elements:
        return Elements(self.shards.rdd.flatMap(partial(_shard_elements, self.layout)), self.layout)


@dataclass(frozen=True)
class Arrays(Origin):
    """Arrays on the driver."""

    batch: Batch
    layout: Layout
    given: Any
    """As the user structured them."""

    def source(self, rows: int | None = None) -> Source:
        """As they are."""
        return Local(dict(self.batch))

    def split(self, fraction: float, seed: int) -> tuple[Origin, Origin]:
        """Rows drawn by the seed, each part in its old order."""
        count = rows_of(self.batch)
        held = np.zeros(count, bool)
        held[np.random.default_rng(seed).permutation(count)[: round(count * fraction)]] = True
        parts = [{name: values[which] for name, values in self.batch.items()} for which in (~held, held)]
        return replace(self, batch=parts[0]), replace(self, batch=parts[1])

    def even(self, ranks: int, batch_size: int) -> Origin:
        """They are shared evenly already."""
        check_multiple(rows_of(self.batch), batch_size)
        return self

    def partitions(self) -> int:
        """As many as tasks run at once."""
        return int(session_of(None).sparkContext.defaultParallelism)

    def plain(self) -> tuple[Any, dict[str, Any]]:
        """As the user structured them."""
        is_alone = isinstance(self.given, tuple) and len(self.given) == 1
        return (self.given[0] if is_alone else self.given), {}


@dataclass(frozen=True)
class Columns(Origin):
    """Columns of a DataFrame, classic or Connect."""

    df: DataFrame
    reading: Reading
    names: tuple[tuple[str, ...], tuple[str, ...]]
    """Of the feature columns and of the label columns."""

    def source(self, rows: int | None = None) -> Source:
        """By Arrow."""
        return Frame(self.df, self.reading)

    def split(self, fraction: float, seed: int) -> tuple[Origin, Origin]:
        """By Spark's own sampling, which is a function of the seed."""
        kept, held = self.df.randomSplit([1 - fraction, fraction], seed)
        return replace(self, df=kept), replace(self, df=held)

    def even(self, ranks: int, batch_size: int) -> Origin:
        """Dealt out one by one."""
        check_multiple(self.df.count(), batch_size)
        rows = _dealt(self.df.rdd, ranks)
        return replace(self, df=self.df.sparkSession.createDataFrame(rows, self.df.schema, verifySchema=False))

    def partitions(self) -> int:
        """The DataFrame's, as Spark plans it."""
        return int(self.df.rdd.getNumPartitions())

    def plain(self) -> tuple[Any, dict[str, Any]]:
        """The DataFrame and the names of its columns."""
        features, labels = self.names
        return self.df, {"feature_cols": list(features), **({"label_cols": list(labels)} if labels else {})}

    def session(self) -> SparkSession:
        """The DataFrame's own, which may be a Connect session."""
        return session_of(self.df)


@dataclass(frozen=True)
class Streams(Origin):
    """A ``tf.data.Dataset``, or a function that makes one, run by each replica."""

    packed: Any
    given: Any

    def source(self, rows: int | None = None) -> Source:
        """A stream that every replica makes for itself."""
        return Streamed(self.packed, is_creator=not self.packed.form.is_batched)

    def split(self, fraction: float, seed: int) -> tuple[Origin, Origin]:
        """Only the dataset knows its rows."""
        raise UnsupportedError("val_split is not for a tf.data.Dataset: pass validation_dataset=")

    def even(self, ranks: int, batch_size: int) -> Origin:
        """Only the dataset knows its rows."""
        raise UnsupportedError("hard_code_batch_size is not for training on a tf.data.Dataset")

    def partitions(self) -> int:
        """Its rows come in one."""
        return 1

    def plain(self) -> tuple[Any, dict[str, Any]]:
        """The dataset itself."""
        return self.given, {}


def check_multiple(rows: int, batch_size: int) -> None:
    """Whether rows make whole batches."""
    if rows % batch_size:
        raise PlanError(
            f"with hard_code_batch_size every batch has batch_size rows: {rows} rows are no multiple of {batch_size}"
        )


def _packed(blocks: RDD[tuple[str, bytes]], layout: Layout) -> Packed:
    from pyspark.sql import SparkSession

    from firesteel.data.packed import PACKED_SCHEMA

    fields = layout.fields
    cells = tuple(name for name, field in fields.items() if field.dtype == "string")
    df = SparkSession.builder.getOrCreate().createDataFrame(blocks, PACKED_SCHEMA, verifySchema=False)
    return Packed(df, tuple(fields), cells)


def _dealt(rdd: RDD[Any], ranks: int) -> RDD[Any]:
    numbered = rdd.zipWithIndex().map(lambda pair: (pair[1], pair[0]))
    return numbered.partitionBy(ranks, lambda number: number % ranks).map(lambda pair: pair[1])


def _packed_shards(layout: Layout, shards: Iterable[Any]) -> Iterator[tuple[str, bytes]]:
    verb = "prediction" if layout.labels is None else "training"
    try:
        for shard in shards:
            batch = shard_batch(shard, verb)
            if rows_of(batch):
                yield pack(_cast(layout, list(batch.values())))
    except PlanError as error:
        yield pack_error(error)
    except ValueError as error:
        yield pack_error(ValueError(str(error)))


def _cast(layout: Layout, arrays: Sequence[Any]) -> Batch:
    fields = layout.fields
    if len(arrays) < len(fields):
        raise ValueError(f"a shard has {len(arrays)} arrays where {len(fields)} are declared")
    return {
        name: _checked(field, values)
        for (name, field), values in zip(fields.items(), arrays[: len(fields)], strict=True)
    }


def _checked(field: Field, values: Any) -> Any:
    if field.dtype != "string" and len(values):
        field.row(values[0])  # all rows of an array have one shape
        return values.astype(field.dtype)
    return values


def _shard_elements(layout: Layout, shard: Any) -> Iterator[Any]:
    arrays = list(shard_batch(shard, "prediction" if layout.labels is None else "training").values())
    count = len(list(leaves(layout.features)))
    for row in range(len(arrays[0])):
        values = iter([array[row] for array in arrays])
        features = [next(values) for _ in range(count)]
        x = features[0] if isinstance(layout.features, Field) else features
        yield x if layout.labels is None else (x, next(values))


# --- columns ----------------------------------------------------------------------------------------------------------


def column_fields(df: DataFrame, features: Sequence[str], labels: Sequence[str]) -> tuple[Reading, list[Field]]:
    """How columns become tensors, and which: dtypes follow the columns' types. ``SchemaError`` where one has none."""
    tensors, fields = [], []
    for letter, names, role in (("x", features, "feature"), ("y", labels, "label")):
        columns = columns_of(df.schema, names, role=role, allow_strings=True)
        for place, (column, name) in enumerate(zip(columns, names, strict=True)):
            kind = df.select(column.name if "." in column.name else f"`{column.name}`").schema.fields[0].dataType
            if column.kind == "tensor" or column.images is not None:
                shape, dtype = column.shape or (None, None, None), column.dtype
            else:
                dtype, depth = _tensor_type(kind, name)
                shape = (None,) * depth
            if dtype != "string":
                column = replace(column, dtype=dtype)
            tensors.append(Tensor(f"{letter}{place}", (column,)))
            fields.append(Field(dtype, tuple(shape), name))
    return Reading(tuple(tensors)), fields


def _tensor_type(kind: DataType, name: str) -> tuple[str, int]:
    """Dtype and number of axes of a column's tensor, by the table of the TFPark door."""
    scalars = {"boolean": "bool", "tinyint": "int32", "smallint": "int32", "int": "int32", "bigint": "int64"}
    scalars |= {"float": "float32", "double": "float64", "string": "string", "binary": "string"}
    text = kind.simpleString()
    if text in scalars:
        return scalars[text], 0
    if text.startswith("vector") or type(kind).__name__ == "VectorUDT":
        return "float32", 1
    depth, inner = 0, text
    while inner.startswith("array<") and depth < 2:
        inner, depth = inner[6:-1], depth + 1
    if depth and inner in scalars and scalars[inner] != "string":
        return "float32" if inner == "double" else scalars[inner], depth
    raise SchemaError(
        f"column {name!r} is of type {text}, which does not become a tensor; there are: booleans, integers, floats, "
        f"strings, binary, arrays of numbers up to two deep, and vectors",
        column=name,
        found=text,
    )


def stated_columns(df: DataFrame, layout: Layout, names: Mapping[str, str]) -> Columns:
    """Columns for a layout that is stated; ``names`` gives each tensor's column. Images are decoded."""
    tensors = []
    for batch_name, field in layout.fields.items():
        column_name = names[batch_name]
        if column_name not in df.columns:
            there = ", ".join(df.columns)
            raise SchemaError(f"there is no column {column_name!r}; the DataFrame has: {there}", column=column_name)
        kind = df.schema[column_name].dataType.simpleString()
        is_image = kind.startswith("struct<") or (
            kind == "binary" and field.dtype != "string" and len(field.shape) == 3
        )
        if is_image and "image" not in (df.schema[column_name].metadata or {}):
            channels = field.shape[-1] or 3
            df = image_column(df, column_name, channels=channels, layout="HWC", dtype="uint8")
        (column,) = columns_of(df.schema, [column_name], role="image or label", allow_strings=True)
        if column.images is None and field.dtype != "string" and column.kind != "tensor":
            column = replace(column, dtype=field.dtype)
        tensors.append(Tensor(batch_name, (column,)))
    features = tuple(names[name] for name in layout.fields if name.startswith("x"))
    labels = tuple(names[name] for name in layout.fields if name.startswith("y"))
    return Columns(df, Reading(tuple(tensors)), (features, labels))
