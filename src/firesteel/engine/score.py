"""Map over a DataFrame: each batch through a program, its outputs appended as columns. Lazy, and a stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from firesteel.core.errors import PlanError, SchemaError
from firesteel.core.spec import Batch
from firesteel.data.arrow import Column as TensorColumn
from firesteel.data.arrow import from_numpy, vector_type
from firesteel.data.frame import path_of, prediction_field
from firesteel.data.quoting import quoted
from firesteel.data.reading import Reading, entry
from firesteel.data.scan import Cells, Scan, scan_of
from firesteel.engine.scorer import Outputs, Scorer

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField

__all__ = ["check_count", "sample", "score_frame"]

_WIDE_BYTES = 1 << 10  # of a cell; narrower ones are no more than what says where they lie
_PIECE_BYTES = 2 << 20


def score_frame(
    df: DataFrame,
    reading: Reading,
    scorer: Scorer,
    columns: tuple[str, ...] | None,
    schema: Any = None,
    *,
    vectors: bool = True,
) -> DataFrame:
    """The input's columns, then the outputs; same rows, same order. Lazy, but for one row that tells the schema.

    Args:
        df: any names will do, also with dots or twice the same.
        reading: how ``df`` becomes batches.
        scorer: the program.
        columns: names for the outputs; ``None``: one column ``prediction``, a struct for several outputs.
        schema: the outputs' types, a DDL string or a ``StructType``; then not even one row is looked at.
        vectors: an output of one axis is an ML vector; else it is an array.
    """
    fields = None if schema is None else _given_fields(schema, columns)
    _check_free(df, [field.name for field in fields] if fields is not None else columns or ("prediction",))
    if fields is None:
        fields = _output_fields(_probe(df, reading, scorer), columns, vectors)
    return _scored(df, reading, scorer, fields)


def _check_free(df: DataFrame, names: Sequence[str]) -> None:
    """Output names must be new, as Spark compares names."""
    exact = str(df.sparkSession.conf.get("spark.sql.caseSensitive", "false")) == "true"
    seen = {name if exact else name.lower() for name in df.columns}
    inputs = set(seen)
    for name in names:
        key = name if exact else name.lower()
        if key in inputs:
            raise SchemaError(
                f"the DataFrame has a column {name!r} already; pass output_cols with another name, or drop it",
                column=name,
            )
        if key in seen:
            raise SchemaError(f"two outputs would both be called {name!r}: output_cols has it twice", column=name)
        seen.add(key)


# --- the schema -------------------------------------------------------------------------------------------------------


def _probe(df: DataFrame, reading: Reading, scorer: Scorer) -> Outputs:
    """The outputs for one row of the data, computed on the driver: what the schema is made of."""
    batch = sample(df, reading)
    if batch is not None:
        return scorer.try_out(batch)
    shapes = [() if column.kind == "scalar" else column.shape for column in reading.columns]
    if any(shape is None or None in shape for shape in shapes):
        raise PlanError("the DataFrame has no rows, so the output's shape is not known; pass output_schema")
    arrays = iter(np.zeros((0, *shape), c.dtype) for shape, c in zip(shapes, reading.columns, strict=True))  # type: ignore[misc]
    return scorer.try_out(
        {tensor.name: tensor.join([next(arrays) for _ in tensor.columns]) for tensor in reading.tensors}
    )


def sample(df: DataFrame, reading: Reading) -> Batch | None:
    """The first row of the data, as a batch; ``None`` where there is none."""
    selected = df.select(*reading.select(df))
    rows = selected.take(1)  # not toArrow, which starts a task for every partition
    return reading.batch(_record(rows[0], selected.schema.fields)) if rows else None


def _record(row: Sequence[Any], fields: Sequence[StructField]) -> pa.RecordBatch:
    """One collected row as the record batch that a task would have got."""
    import pyarrow as pa
    from pyspark.sql.types import UserDefinedType

    arrays = []
    for value, field in zip(row, fields, strict=True):
        if isinstance(field.dataType, UserDefinedType) and value is not None:
            value = dict(zip(vector_type().names, field.dataType.serialize(value), strict=True))
        arrays.append(pa.array([value], _arrow_type(field.dataType)))
    return pa.RecordBatch.from_arrays(arrays, [field.name for field in fields])


def _output_fields(outputs: Outputs, columns: tuple[str, ...] | None, vectors: bool) -> list[StructField]:
    """Spark fields for a model's outputs, as ``predict`` promises them."""
    from pyspark.sql.types import StructField, StructType

    if columns is None and list(outputs) != ["prediction"]:
        inner = [_field(name, value, vectors) for name, value in outputs.items()]
        return [StructField("prediction", StructType(inner))]
    columns = columns or ("prediction",)
    check_count(columns, len(outputs))
    return [_field(name, value, vectors) for name, value in zip(columns, outputs.values(), strict=True)]


def check_count(names: Sequence[str], outputs: int) -> None:
    """As many names as outputs, else ``SchemaError``."""
    if len(names) != outputs:
        raise SchemaError(
            f"output_cols has {len(names)} names ({', '.join(names)}), but the model has {outputs} outputs"
        )


def _field(name: str, value: Any, vectors: bool) -> StructField:
    from pyspark.sql.types import StructField, StructType

    if isinstance(value, dict):
        return StructField(name, StructType([_field(key, part, vectors) for key, part in value.items()]))
    return prediction_field(name, value.shape[1:], value.dtype.name, vectors=vectors)


def _given_fields(schema: Any, columns: tuple[str, ...] | None) -> list[StructField]:
    """Fields of an ``output_schema``; a single type is that of one ``prediction``. ``output_cols`` rename them."""
    from pyspark.errors import ParseException
    from pyspark.sql.types import DataType, StructField, StructType, _parse_datatype_string

    try:
        parsed = _parse_datatype_string(schema) if isinstance(schema, str) else schema
    except ParseException as error:
        raise SchemaError(f"output_schema {schema!r} is not a DDL string: {error}") from error
    if not isinstance(parsed, DataType):
        raise SchemaError(f"output_schema must be a DDL string or a StructType, not {schema!r}")
    fields = list(parsed.fields) if isinstance(parsed, StructType) else [StructField("prediction", parsed)]
    if columns is None:
        return fields
    check_count(columns, len(fields))
    return [StructField(name, field.dataType) for name, field in zip(columns, fields, strict=True)]


def _arrow_type(kind: Any) -> pa.DataType:
    """Arrow's type of a Spark type, vectors included, as tasks see it."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import StructType, UserDefinedType

    if isinstance(kind, UserDefinedType):
        return vector_type()
    if isinstance(kind, StructType):
        return pa.struct([pa.field(field.name, _arrow_type(field.dataType)) for field in kind.fields])
    return to_arrow_type(kind)


# --- the rows ---------------------------------------------------------------------------------------------------------


def _scored(df: DataFrame, reading: Reading, scorer: Scorer, fields: Sequence[StructField]) -> DataFrame:
    from pyspark.sql import functions
    from pyspark.sql.functions import col

    kept, names = df.schema.fields, df.columns
    # Columns go by place through the tasks: names may repeat or have dots. They are put back at the end.
    plain = df.toDF(*(f"p{place}" for place in range(len(kept))))
    used: list[Column] = []
    places: list[int | None] = []  # of whole columns; not of a struct's field or a map's entry
    for column in reading.columns:
        head, *inner = path_of(df.schema, column.name)
        place = names.index(head)
        used.append(entry(quoted(f"p{place}", *inner), column.key))
        places.append(None if inner or column.key is not None else place)
    if hasattr(functions, "arrow_udf") and _is_plain(reading, df, fields):
        scored = _by_column(plain, used, _scans(df, reading, places), reading, scorer, fields)
    else:
        scored = _by_row(plain, used, places, reading, scorer, fields)
    was = [f"p{place}" for place in range(len(kept))] + [f"o{place}" for place in range(len(fields))]
    return scored.select(
        *(col(name).alias(now.name, metadata=now.metadata) for name, now in zip(was, [*kept, *fields], strict=True))
    )


def _is_plain(reading: Reading, df: DataFrame, fields: Sequence[StructField]) -> bool:
    """Whether no input is a vector, and no output has one inside: Arrow UDFs know nothing of them."""
    from pyspark.sql.types import StructType, UserDefinedType

    inputs = df.select(*reading.select(df)).schema.fields
    inner = [part for field in fields if isinstance(field.dataType, StructType) for part in field.dataType.fields]
    return not any(isinstance(field.dataType, (UserDefinedType, StructType)) for field in [*inputs, *inner])


def _scans(df: DataFrame, reading: Reading, places: Sequence[int | None]) -> dict[int, Scan]:
    """The columns whose cells tasks had better read from files themselves, by their place among those that are read."""
    found = {}
    for number, (column, place) in enumerate(zip(reading.columns, places, strict=True)):
        if place is not None and column.kind == "tensor" and _cell_bytes(column) >= _WIDE_BYTES:
            scan = scan_of(df, place)
            if scan is not None:
                found[number] = scan
    return found


def _cell_bytes(column: TensorColumn) -> int:
    return int(np.prod(column.shape)) * np.dtype(column.dtype).itemsize  # type: ignore[arg-type]  # a tensor has one


def _by_column(
    plain: DataFrame,
    used: Sequence[Column],
    scans: dict[int, Scan],
    reading: Reading,
    scorer: Scorer,
    fields: Sequence[StructField],
) -> DataFrame:
    """Only what the program reads goes to Python, and only its outputs come back."""
    import pyarrow as pa
    from pyspark.sql import functions
    from pyspark.sql.types import ArrayType, DoubleType, StructField, StructType, UserDefinedType

    is_vector = [isinstance(field.dataType, UserDefinedType) for field in fields]
    kind = StructType(
        [
            StructField(f"o{place}", ArrayType(DoubleType(), False) if is_vector[place] else field.dataType)
            for place, field in enumerate(fields)
        ]
    )
    outputs = _arrow_schema(kind.fields)

    def body(batches: Any) -> Any:
        return _score_arrays(scorer, reading, scans, outputs, batches)

    if scans:  # where the rows lie, and what is not read from there
        where = next(iter(scans.values())).where()
        used = [*where, *(column for place, column in enumerate(used) if place not in scans)]
    # From these PySpark knows what kind of function it is.
    inputs = pa.Array if len(used) == 1 else tuple[pa.Array, ...]
    body.__annotations__ = {"batches": Iterator[inputs], "return": Iterator[pa.Array]}  # type: ignore[valid-type]
    api: Any = functions  # PySpark's own types leave it out
    score = api.arrow_udf(body, kind)
    # As a function that may differ from call to call, it is called once for each row, whatever is done with its
    # outputs: a filter on a prediction would else be worked out by scoring again.
    whole = plain.withColumn("o", score.asNondeterministic()(*used))
    columns = [functions.col("o")[field.name] for field in kind.fields]
    if any(is_vector):
        from pyspark.ml.functions import array_to_vector

        columns = [array_to_vector(c) if is_one else c for c, is_one in zip(columns, is_vector, strict=True)]
    return whole.select(*plain.columns, *(c.alias(field.name) for c, field in zip(columns, kind.fields, strict=True)))


def _arrow_schema(fields: Sequence[StructField]) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([pa.field(f"o{place}", _arrow_type(field.dataType)) for place, field in enumerate(fields)])


def _by_row(
    plain: DataFrame,
    used: Sequence[Column],
    places: Sequence[int | None],
    reading: Reading,
    scorer: Scorer,
    fields: Sequence[StructField],
) -> DataFrame:
    """Whole rows go to Python and back."""
    from pyspark.sql.types import StructField, StructType

    kept = plain.schema.fields
    outputs = _arrow_schema(fields)
    schema = StructType([*kept, *(StructField(n, f.dataType) for n, f in zip(outputs.names, fields, strict=True))])
    extra = [column for column, place in zip(used, places, strict=True) if place is None]
    beyond = iter(range(len(kept), len(kept) + len(extra)))
    found = tuple(next(beyond) if place is None else place for place in places)
    beside = plain.select("*", *(column.alias(f"f{place}") for place, column in enumerate(extra)))
    return beside.mapInArrow(partial(_score_batches, scorer, reading, found, len(kept), outputs), schema)


def _score_arrays(
    scorer: Scorer, reading: Reading, scans: dict[int, Scan], outputs: pa.Schema, batches: Iterator[Any]
) -> Iterator[pa.Array]:
    """The body of an Arrow UDF: the columns that are read in, the outputs of the same rows out."""
    import pyarrow as pa

    first = next(batches, None)
    if first is None:
        return  # an empty partition need not wake anybody
    columns = reading.columns
    rows = {place: _rows_at_once(columns[place], scorer.batch_size) for place in scans}
    cells = {place: Cells(scan, rows[place]) for place, scan in scans.items()}
    with scorer.open() as score:
        for given in chain((first,), batches):
            arrays = iter(given if isinstance(given, tuple) else (given,))
            where = (next(arrays), next(arrays)) if scans else ()
            parts = [
                cells[place].read(*where) if place in cells else iter((next(arrays),)) for place in range(len(columns))
            ]
            scored = []
            for piece in _side_by_side(parts):
                found = pa.RecordBatch.from_arrays(piece, [f"f{place}" for place in range(len(piece))])
                made = _to_columns(score(reading.batch(found)), outputs)
                scored.append(pa.StructArray.from_arrays(made, fields=list(outputs)))
            yield scored[0] if len(scored) == 1 else pa.concat_arrays(scored)


def _rows_at_once(column: TensorColumn, batch_size: int) -> int:
    """Of cells from files: whole batches, of a size that a processor's caches hold."""
    return batch_size * max(1, _PIECE_BYTES // (batch_size * _cell_bytes(column)))


def _side_by_side(parts: Sequence[Iterator[pa.Array]]) -> Iterator[list[pa.Array]]:
    """Columns that come in pieces of their own, cut where any of them ends. One piece at least."""
    held = [next(part) for part in parts]
    while True:
        rows = min(len(each) for each in held)
        yield [each.slice(0, rows) for each in held]
        left = [each.slice(rows) for each in held]
        following = [each if len(each) else next(part, None) for each, part in zip(left, parts, strict=True)]
        if any(each is None for each in following):
            return
        held = following


def _score_batches(
    scorer: Scorer,
    reading: Reading,
    places: tuple[int, ...],
    kept: int,
    outputs: pa.Schema,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """The body of each task: one record batch in, one out."""
    import pyarrow as pa

    batches = (rows for rows in batches if rows.num_rows)
    first = next(batches, None)
    if first is None:
        return  # an empty partition need not wake anybody
    with scorer.open() as score:
        for rows in chain((first,), batches):
            arrays = _to_columns(score(reading.batch(rows, places)), outputs)
            yield pa.RecordBatch.from_arrays(
                [*rows.columns[:kept], *arrays], [*rows.schema.names[:kept], *outputs.names]
            )


def _to_columns(outputs: Outputs, schema: pa.Schema) -> list[pa.Array]:
    """Outputs as the columns of this schema: one each, or all of them as the fields of one struct."""
    import pyarrow as pa

    values: list[Any] = list(outputs.values())
    if len(schema) == 1 and list(outputs) != ["prediction"]:
        kind = schema.field(0).type
        is_struct = pa.types.is_struct(kind) and kind != vector_type()
        if is_struct and (len(outputs) > 1 or [field.name for field in kind] == list(outputs)):
            values = [outputs]
    if len(values) != len(schema):
        raise SchemaError(f"output_schema has {len(schema)} columns, but the model has {len(values)} outputs")
    return [_to_column(value, field.type) for value, field in zip(values, schema, strict=True)]


def _to_column(value: Any, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    if not isinstance(value, dict):
        return from_numpy(value, kind)
    if not pa.types.is_struct(kind) or kind.num_fields != len(value):
        raise SchemaError(f"the outputs {', '.join(value)} do not become a column of {kind}")
    children = [_to_column(part, kind.field(place).type) for place, part in enumerate(value.values())]
    return pa.StructArray.from_arrays(children, fields=list(kind))
