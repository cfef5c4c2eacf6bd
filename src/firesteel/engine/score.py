"""Map: each batch through a program, its outputs appended as columns. Lazy where Spark is.

Scoring runs in Spark's own Python workers, which keep a few replicas between tasks.
"""

from __future__ import annotations

import hashlib
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from firesteel.cluster.preflight import cores_per_task
from firesteel.cluster.travel import pack as pack_object
from firesteel.cluster.travel import unpack as unpack_object
from firesteel.core import registry
from firesteel.core.errors import PlanError, SchemaError
from firesteel.core.plan import Map
from firesteel.core.spec import Batch, rows_of
from firesteel.data.arrow import from_numpy, vector_type
from firesteel.data.frame import prediction_field
from firesteel.data.reading import Reading, expression
from firesteel.engine.callbacks import Callbacks, Runner

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField

__all__ = ["Scorer", "fields_of", "make_scorer", "output_fields", "probe", "score_frame"]

_REPLICAS_KEPT = 3
_replicas: OrderedDict[str, Any] = OrderedDict()


@dataclass(frozen=True)
class Scorer:
    """A program on its way to the workers: what a task needs in order to score."""

    payload: bytes
    key: str
    framework: str
    batch_size: int
    threads: int
    sys_path: tuple[str, ...]

    def open(self) -> Callable[[Batch], dict[str, Any]]:
        """The function that scores a batch; the replica behind it is kept in this process. Runs in a task."""
        replica = self.replica()
        return lambda batch: self._score(replica, batch)

    def replica(self) -> Any:
        """This process's replica of the program."""
        if self.key in _replicas:
            _replicas.move_to_end(self.key)
            return _replicas[self.key]
        plan, callbacks, config = self.unpack(self.payload)
        framework = registry.framework(plan.program.framework)
        replica: Any = framework.replica(plan.program, "cpu", self.threads)
        if callbacks:
            runner = Runner(rank=0, num_workers=1, config=config)
            listed = Callbacks(callbacks, runner)
            replica.main, replica.runner = listed.main, runner
            runner.model = replica.model
        _replicas[self.key] = replica
        while len(_replicas) > _REPLICAS_KEPT:
            _replicas.popitem(last=False)
        return replica

    def unpack(self, payload: bytes) -> Any:
        """Open what the driver packed, with the driver's modules within reach. Runs in a task."""
        sys.path.extend(path for path in self.sys_path if path not in sys.path)
        return unpack_object(payload)

    def _score(self, replica: Any, batch: Batch) -> dict[str, Any]:
        rows = rows_of(batch)
        if rows <= self.batch_size:
            return dict(replica.forward(batch))
        parts = [
            replica.forward({name: values[begin : begin + self.batch_size] for name, values in batch.items()})
            for begin in range(0, rows, self.batch_size)
        ]
        return _concatenate(parts)


def make_scorer(spark: SparkSession | None, plan: Map, callbacks: Sequence[Any] = (), config: Any = None) -> Scorer:
    """Pack a plan for the workers. Driver only."""
    payload = pack_object((plan, tuple(callbacks), dict(config or {})), "the program")
    threads = 1 if spark is None else cores_per_task(spark)
    key = hashlib.sha256(payload).hexdigest()
    return Scorer(payload, key, plan.program.framework, plan.batch_size, threads, tuple(path for path in sys.path if path))


def _concatenate(parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], dict):
        return {name: _concatenate([part[name] for part in parts]) for name in parts[0]}
    return np.concatenate(parts)


# --- DataFrames -------------------------------------------------------------------------------------------------------


def probe(df: DataFrame, reading: Reading, score: Callable[[Batch], dict[str, Any]]) -> dict[str, Any]:
    """The outputs for one row of the data, computed on the driver: what the schema is made of."""
    table = df.select(*reading.select(df)).limit(1).toArrow()
    if table.num_rows:
        return score(reading.batch(table.combine_chunks().to_batches()[0]))
    shapes = [column.shape if column.kind != "scalar" else () for column in reading.columns]
    if any(shape is None or None in shape for shape in shapes):
        raise PlanError("the DataFrame has no rows, so the output's shape is not known; pass output_schema")
    arrays = iter(np.zeros((1, *shape), c.dtype) for shape, c in zip(shapes, reading.columns, strict=True))  # type: ignore[arg-type]
    return score({tensor.name: tensor.join([next(arrays) for _ in tensor.columns]) for tensor in reading.tensors})


def output_fields(outputs: dict[str, Any], columns: tuple[str, ...] | None, vectors: bool = True) -> list[StructField]:
    """Spark fields for a model's outputs (one row of each), as ``predict`` promises them."""
    from pyspark.sql.types import StructField, StructType

    if list(outputs) == ["prediction"]:
        names = columns or ("prediction",)
        _check_count(names, 1)
        return [_field(names[0], outputs["prediction"], vectors)]
    if columns is None:
        return [StructField("prediction", StructType([_field(name, value, vectors) for name, value in outputs.items()]))]
    _check_count(columns, len(outputs))
    return [_field(name, value, vectors) for name, value in zip(columns, outputs.values(), strict=True)]


def _check_count(names: tuple[str, ...], outputs: int) -> None:
    if len(names) != outputs:
        raise SchemaError(f"output_cols has {len(names)} names ({', '.join(names)}), but the model has {outputs} outputs")


def _field(name: str, value: Any, vectors: bool) -> StructField:
    from pyspark.sql.types import StructField, StructType

    if isinstance(value, dict):
        return StructField(name, StructType([_field(key, part, vectors) for key, part in value.items()]))
    return prediction_field(name, value.shape[1:], value.dtype.name, vectors=vectors)


def fields_of(schema: Any) -> list[StructField]:
    """Fields of an ``output_schema``: a DDL string, a ``StructType``, or a single type for one ``prediction``."""
    from pyspark.sql.types import DataType, StructField, StructType, _parse_datatype_string

    parsed = _parse_datatype_string(schema) if isinstance(schema, str) else schema
    if isinstance(parsed, StructType):
        return list(parsed.fields)
    if isinstance(parsed, DataType):
        return [StructField("prediction", parsed)]
    raise SchemaError(f"output_schema must be a DDL string or a StructType, not {schema!r}")


def score_frame(df: DataFrame, reading: Reading, scorer: Scorer, fields: list[StructField]) -> DataFrame:
    """The input's columns, then the outputs; lazy. Column names may repeat or have dots: they are put back at the end."""
    from pyspark.sql.types import StructField, StructType

    taken = [field.name for field in fields if field.name in df.columns]
    if taken:
        raise SchemaError(
            f"the DataFrame has a column {taken[0]!r} already; pass output_cols with another name, or drop it",
            column=taken[0],
        )
    kept = df.schema.fields
    names = df.columns
    places, extra = [], []
    for column in reading.columns:
        if column.name in names:
            places.append(names.index(column.name))
        else:
            places.append(len(kept) + len(extra))
            extra.append(expression(df, column.name).alias(f"f{len(extra)}"))
    plain = df.toDF(*(f"p{index}" for index in range(len(kept))))
    if extra:
        plain = df.select(
            *(expression(df, name).alias(f"p{index}") for index, name in enumerate(names)), *extra
        )
    schema = StructType(
        [StructField(f"p{index}", field.dataType, field.nullable) for index, field in enumerate(kept)]
        + [StructField(f"o{index}", field.dataType) for index, field in enumerate(fields)]
    )
    body = partial(_score_batches, scorer, reading, tuple(places), len(kept), _arrow_types(fields))
    scored = plain.mapInArrow(body, schema).toDF(*names, *(field.name for field in fields))
    for field in kept:
        if field.metadata:
            scored = scored.withMetadata(field.name, field.metadata)
    return scored


def _arrow_types(fields: Sequence[StructField]) -> pa.Schema:
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import StructType

    def arrow(kind: Any) -> pa.DataType:
        if kind.typeName() in ("udt", "vector"):
            return vector_type()
        if isinstance(kind, StructType):
            return pa.struct([pa.field(field.name, arrow(field.dataType)) for field in kind.fields])
        return to_arrow_type(kind)

    return pa.schema([pa.field(f"o{index}", arrow(field.dataType)) for index, field in enumerate(fields)])


def _score_batches(
    scorer: Scorer,
    reading: Reading,
    places: tuple[int, ...],
    kept: int,
    outputs: pa.Schema,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """The body of each task."""
    import pyarrow as pa

    score = None
    for rows in batches:
        if rows.num_rows == 0:
            continue
        score = score or scorer.open()
        found = score(reading.batch(rows, places))
        if len(outputs) == 1 and list(found) != ["prediction"]:
            found = {"prediction": found}
        arrays = [_to_arrow(value, field.type) for value, field in zip(found.values(), outputs, strict=True)]
        yield pa.RecordBatch.from_arrays(
            [*rows.columns[:kept], *arrays], [*(f"p{index}" for index in range(kept)), *outputs.names]
        )


def _to_arrow(value: Any, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    if isinstance(value, dict):
        children = [_to_arrow(part, kind.field(index).type) for index, part in enumerate(value.values())]
        return pa.StructArray.from_arrays(children, fields=list(kind))
    return from_numpy(value, kind)

