"""Map by names over a DataFrame: outputs before the columns they were made of. Lazy, with its schema known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from firesteel.core.plan import Map
from firesteel.core.spec import TensorSpec
from firesteel.data.cells import Read, to_arrow
from firesteel.data.columns import arrow_type, field_of
from firesteel.engine.blocks import Values, Work, partition_of_task, results, trimmed, work_of
from firesteel.engine.scorer import Scorer, make_scorer

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["map_frame"]

_TRIMMED_ROWS = 1 << 14  # of a record batch; offsets inside one have 32 bits


def map_frame(df: DataFrame, plan: Map, reads: Sequence[Read]) -> DataFrame:
    """The outputs, then (unless trimmed) the input's columns; same rows, same partitions.

    Args:
        df: any names will do, also with dots or twice the same.
        plan: with ``each`` "row" or "block", and its outputs.
        reads: how the program's inputs are read.
    """
    scorer, work = make_scorer(df.sparkSession, plan), work_of(plan, reads)
    if plan.is_trimmed:
        return _trimmed(df, work, scorer)
    from pyspark.sql import functions

    # An Arrow UDF sends only what is read, and all else stays in the JVM; but it knows nothing of vectors.
    is_plain = hasattr(functions, "arrow_udf") and not any(read.column.is_vector for read in reads)
    return (_by_column if is_plain else _by_row)(df, work, scorer)


def _places(df: DataFrame) -> DataFrame:
    """The columns called by their places, for names may repeat."""
    return df.toDF(*(f"p{place}" for place in range(len(df.columns))))


def _read_columns(df: DataFrame, work: Work) -> list[Column]:
    """What is read, of ``_places(df)``. Where nothing is, a constant: rows have to be counted."""
    from pyspark.sql.functions import col, lit

    names = df.columns
    return [col(f"p{names.index(read.column.name)}") for read in work.reads] or [lit(True)]


def _by_column(df: DataFrame, work: Work, scorer: Scorer) -> DataFrame:
    """Only what the program reads goes to Python, and only its outputs come back."""
    from pyspark.sql import functions
    from pyspark.sql.functions import coalesce, col
    from pyspark.sql.types import StructField, StructType

    kept, names = df.schema.fields, df.columns
    plain, used = _places(df), _read_columns(df, work)
    fields = [field_of(spec) for spec in work.outputs]
    # One output is a column by itself: a struct around it costs the JVM a fifth of the time.
    is_one = len(fields) == 1
    kind: Any = fields[0].dataType
    if not is_one:
        kind = StructType([StructField(f"o{place}", field.dataType, False) for place, field in enumerate(fields)])

    def body(batches: Any) -> Any:
        return _map_arrays(scorer, work, batches)

    # From these PySpark knows what kind of function it is.
    inputs = pa.Array if len(used) == 1 else tuple[pa.Array, ...]
    body.__annotations__ = {"batches": Iterator[inputs], "return": Iterator[pa.Array]}  # type: ignore[valid-type]
    api: Any = functions  # PySpark's own types leave it out
    # As a function that may differ from call to call it is called once for each row, whatever is done with its
    # outputs, and no filter is moved before it: a block would lose rows.
    called = api.arrow_udf(body, kind).asNondeterministic()
    whole = plain.withColumn("o", called(*used))
    if work.each == "block":
        whole = whole.where(col("o").isNotNull())  # always so; a limit is not moved before it
    # A Python function's result is nullable to Spark, whatever it says. The second choice is never taken.
    made = [
        coalesce(col("o") if is_one else col("o")[f"o{place}"], _anything(spec)).alias(
            field.name, metadata=field.metadata
        )
        for place, (spec, field) in enumerate(zip(work.outputs, fields, strict=True))
    ]
    old = [col(f"p{place}").alias(names[place], metadata=field.metadata) for place, field in enumerate(kept)]
    return whole.select(*made, *old)


def _anything(spec: TensorSpec) -> Column:
    """A value of the output's type."""
    from pyspark.sql.functions import array, lit

    zeros = {"string": "", "binary": bytearray(), "bool": False}
    kind = field_of(TensorSpec("", spec.dtype)).dataType
    value = lit(zeros.get(spec.dtype, 0)).cast(kind)
    for _ in spec.shape:
        value = array(value)
    return value


def _by_row(df: DataFrame, work: Work, scorer: Scorer) -> DataFrame:
    """Whole rows go to Python and back: what is read, then all columns."""
    from pyspark.sql.functions import col
    from pyspark.sql.types import StructField, StructType

    plain, used = _places(df), _read_columns(df, work)
    beside = plain.select(*(column.alias(f"r{place}") for place, column in enumerate(used)), *plain.columns)
    fields = [field_of(spec) for spec in work.outputs]
    made = [StructField(f"o{place}", field.dataType, False) for place, field in enumerate(fields)]
    schema = StructType([*made, *plain.schema.fields])
    mapped = beside.mapInArrow(partial(_map_rows, scorer, work, len(used)), schema)
    names = [*(field.name for field in fields), *df.columns]
    all_fields = [*fields, *df.schema.fields]
    return mapped.select(
        *(
            col(was).alias(name, metadata=field.metadata)
            for was, name, field in zip(schema.names, names, all_fields, strict=True)
        )
    )


def _trimmed(df: DataFrame, work: Work, scorer: Scorer) -> DataFrame:
    from pyspark.sql.types import StructType

    used = [column.alias(f"r{place}") for place, column in enumerate(_read_columns(df, work))]
    schema = StructType([field_of(spec) for spec in work.outputs])
    return _places(df).select(*used).mapInArrow(partial(_map_trimmed, scorer, work), schema)


# --- in the tasks -----------------------------------------------------------------------------------------------------


def _map_arrays(scorer: Scorer, work: Work, batches: Iterator[Any]) -> Iterator[pa.Array]:
    """The body of an Arrow UDF: the columns that are read in, the outputs of the same rows out."""
    fields = [pa.field(f"o{place}", arrow_type(spec)) for place, spec in enumerate(work.outputs)]
    for _, arrays in _joined(_outputs(scorer, work, (_as_rows(arrays) for arrays in batches))):
        yield arrays[0] if len(arrays) == 1 else pa.StructArray.from_arrays(arrays, fields=fields)


def _as_rows(arrays: Any) -> pa.RecordBatch:
    columns = list(arrays) if isinstance(arrays, tuple) else [arrays]
    return pa.RecordBatch.from_arrays(columns, [f"r{place}" for place in range(len(columns))])


def _map_rows(scorer: Scorer, work: Work, read: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The body of ``mapInArrow``: what is read and all columns in, the outputs and all columns out."""
    for pieces, arrays in _joined(_outputs(scorer, work, batches)):
        old = pa.Table.from_batches(pieces).combine_chunks().to_batches()[0] if len(pieces) > 1 else pieces[0]
        names = [*(f"o{place}" for place in range(len(arrays))), *old.schema.names[read:]]
        yield pa.RecordBatch.from_arrays([*arrays, *old.columns[read:]], names)


def _map_trimmed(scorer: Scorer, work: Work, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    names = [spec.name for spec in work.outputs]
    first = next(batches, None)
    if first is None:
        return  # an empty partition need not wake anybody
    for values in trimmed(scorer.wake().replica, work, _again(first, batches), partition_of_task()):
        for begin in range(0, len(values[0]), _TRIMMED_ROWS):
            parts = [value[begin : begin + _TRIMMED_ROWS] for value in values]
            yield pa.RecordBatch.from_arrays(_columns(parts, work), names)


def _outputs(
    scorer: Scorer, work: Work, batches: Iterator[pa.RecordBatch]
) -> Iterator[tuple[pa.RecordBatch, list[pa.Array]]]:
    first = next(batches, None)
    if first is None:
        return
    for rows, values in results(scorer.wake().replica, work, _again(first, batches), partition_of_task()):
        yield rows, _columns(values, work)


def _columns(values: Values, work: Work) -> list[pa.Array]:
    return [to_arrow(value, spec) for value, spec in zip(values, work.outputs, strict=True)]


def _again(first: pa.RecordBatch, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from batches


def _joined(
    parts: Iterator[tuple[pa.RecordBatch, list[pa.Array]]], rows: int = 4096
) -> Iterator[tuple[list[pa.RecordBatch], list[pa.Array]]]:
    """Small blocks together: a record batch costs the JVM as much as hundreds of rows."""
    pieces: list[pa.RecordBatch] = []
    columns: list[list[pa.Array]] = []
    count = 0
    for piece, arrays in parts:
        pieces.append(piece)
        columns.append(arrays)
        count += piece.num_rows
        if count >= rows:
            yield pieces, _concatenated(columns)
            pieces, columns, count = [], [], 0
    if pieces:
        yield pieces, _concatenated(columns)


def _concatenated(columns: list[list[pa.Array]]) -> list[pa.Array]:
    if len(columns) == 1:
        return columns[0]
    return [pa.concat_arrays(list(parts)) for parts in zip(*columns, strict=True)]
