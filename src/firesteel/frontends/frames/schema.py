"""What is known of columns as tensors: measured, declared, and printed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from firesteel.core.columns import Shape, shape_text
from firesteel.core.errors import PlanError
from firesteel.data.columns import TensorColumn, metadata_of, of_schema, shape_of, spark_name
from firesteel.engine.described import described
from firesteel.engine.shapes import shapes_of_frame
from firesteel.frontends.frames.tables import PandasTable, table_of, usable

__all__ = ["analyze", "append_shape", "explain", "print_schema"]


def analyze(dframe: Any) -> Any:
    """The same DataFrame with each column's shape in its metadata, found by reading all rows once. Runs a job.

    The rows' dimension is known where all partitions that have rows have equally many, another where all cells agree.
    Columns that it describes are not nullable afterwards. A pandas frame is given back.

    Raises:
        SchemaError: a null in such a column.
    """
    table = table_of(dframe)
    if isinstance(table, PandasTable):
        return dframe
    table.refuse_stream("analyze")
    found = of_schema(table.df.schema)
    columns = [column for column in found.values() if isinstance(column, TensorColumn)]
    if not columns:
        return dframe
    shapes = shapes_of_frame(table.df, columns)
    metadata = {c.name: metadata_of(c.dtype, shape) for c, shape in zip(columns, shapes, strict=True)}
    return described(table.df, metadata, not_null=list(metadata))


def append_shape(dframe: Any, col: Any, shape: Sequence[int | None]) -> Any:
    """The same DataFrame with a column's shape declared in its metadata. No job; a pandas frame is given back.

    Args:
        dframe: a Spark DataFrame.
        col: the column, or its name.
        shape: rows first; ``None`` or -1 for what is not known. Data of another shape fails when it is read.
    """
    table = table_of(dframe)
    if isinstance(table, PandasTable):
        return dframe
    name = col if isinstance(col, str) else table.df.select(col).columns[0]
    column = usable(table, name)
    said: Shape = shape_of(shape, name)
    if len(said) != len(column.shape):
        raise PlanError(
            f"column {name!r} has {len(column.shape)} dimensions, the rows included, but the shape {shape_text(said)} "
            f"has {len(said)}"
        )
    return described(table.df, {name: metadata_of(column.dtype, said)})


def explain(dframe: Any) -> str:
    """The schema with what is known of each column as a tensor."""
    table = table_of(dframe)
    lines = ["root"]
    if isinstance(table, PandasTable):
        for name in table.names:
            found = table.find(name)
            kind = "array" if isinstance(found, TensorColumn) and found.cell else None
            text = kind or (spark_name(found.dtype) if isinstance(found, TensorColumn) else found)
            lines.append(_line(name, str(text), False, found))
        return "\n".join(lines)
    columns = of_schema(table.df.schema)
    for field in table.df.schema.fields:
        kind = field.dataType.typeName()
        if kind.endswith("udt"):  # a vector's own name is in its simple one
            kind = field.dataType.simpleString()
        lines.append(_line(field.name, kind, field.nullable, columns[field.name]))
    return "\n".join(lines)


def _line(name: str, kind: str, is_nullable: bool, found: TensorColumn | str | None) -> str:
    tensor = "<no tensor info>"
    if isinstance(found, TensorColumn):
        tensor = f"{spark_name(found.dtype)}{shape_text(found.shape)}"
    return f" |-- {name}: {kind} (nullable = {str(is_nullable).lower()}) {tensor}"


def print_schema(dframe: Any) -> None:
    """Print what ``explain`` returns."""
    sys.stdout.write(explain(dframe) + "\n")
