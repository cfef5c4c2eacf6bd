"""What a program is put to: a Spark DataFrame or a pandas frame, as columns with tensors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from firesteel.core.columns import Shape
from firesteel.core.errors import SchemaError, UnsupportedError
from firesteel.core.plan import Map, Reduce
from firesteel.core.spec import Batch
from firesteel.data.cells import Read
from firesteel.data.columns import TensorColumn, of_arrow, of_schema
from firesteel.data.pandas_columns import arrow_of
from firesteel.engine.local_map import map_columns, output_frame
from firesteel.engine.mapped import map_frame
from firesteel.engine.reduce import reduce_columns, reduce_frame
from firesteel.engine.shapes import cell_shape

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

__all__ = ["PandasTable", "SparkTable", "Table", "table_of", "usable"]

_ADVICE = {
    "decimal": "cast it to double",
    "date": "cast it to a number of days with unix_date",
    "timestamp": "cast it to double, the seconds since 1970",
    "struct": "select the fields that are needed as columns of their own",
    "map": "select the entries that are needed as columns of their own",
}


class SparkTable:
    """A Spark DataFrame, classic or Connect."""

    def __init__(self, df: DataFrame) -> None:
        self.df = df
        self.names = df.columns
        self._found = of_schema(df.schema)

    @cached_property
    def is_exact(self) -> bool:
        """Whether names differ that differ in case alone."""
        return str(self.df.sparkSession.conf.get("spark.sql.caseSensitive", "false")) == "true"

    def find(self, name: str) -> TensorColumn | str | None:
        """A column's tensor, its type's name where it has none, or ``None`` where there is no such column."""
        return self._found.get(name)

    def map(self, plan: Map, reads: Sequence[Read]) -> DataFrame:
        """The frame with the plan's outputs. Lazy."""
        return map_frame(self.df, plan, reads)

    def reduce(self, plan: Reduce, reads: Sequence[Read]) -> Batch:
        """The one row that is left. Runs a job."""
        return reduce_frame(self.df, plan, reads)

    def refuse_stream(self, verb: str) -> None:
        """A stream never ends, so there is nothing to say of all its rows."""
        if self.df.isStreaming:
            raise UnsupportedError(
                f"{verb} needs all rows, and a streaming DataFrame has no last one; call it on each batch, in "
                f"writeStream.foreachBatch"
            )


class PandasTable:
    """A pandas frame; a column is looked at when somebody asks for it."""

    is_exact = True

    def __init__(self, frame: pd.DataFrame) -> None:
        self.frame = frame
        self.names = [str(name) for name in frame.columns]
        self._arrays: dict[str, pa.Array] = {}

    def find(self, name: str) -> TensorColumn | str | None:
        """As a Spark table's; the shape is that of the data."""
        if name not in self.names:
            return None
        if self.names.count(name) > 1:
            return "one of several columns of that name"
        column = of_arrow(name, self._values(name), (len(self.frame),))
        if isinstance(column, str):
            return column
        cell: Shape = cell_shape(self._values(name), column)
        return TensorColumn(name, column.dtype, (len(self.frame), *cell))

    def map(self, plan: Map, reads: Sequence[Read]) -> pd.DataFrame:
        """The frame with the plan's outputs, at once."""
        columns = [self._values(read.column.name) for read in reads]
        return output_frame(self.frame, plan, map_columns(plan, reads, columns, len(self.frame)))

    def reduce(self, plan: Reduce, reads: Sequence[Read]) -> Batch:
        """The one row that is left."""
        return reduce_columns(plan, reads, [self._values(read.column.name) for read in reads])

    def refuse_stream(self, verb: str) -> None:
        """It is none."""

    def _values(self, name: str) -> pa.Array:
        if name not in self._arrays:
            self._arrays[name] = arrow_of(self.frame.iloc[:, self.names.index(name)], name)
        return self._arrays[name]


Table = SparkTable | PandasTable
"""Columns by name, and what is done with them."""


def table_of(dframe: Any) -> Table:
    """The table that this is; ``TypeError`` for anything else."""
    names = {f"{cls.__module__}.{cls.__qualname__}" for cls in type(dframe).__mro__}
    if "pandas.core.frame.DataFrame" in names:
        return PandasTable(dframe)
    if any(name.startswith("pyspark.sql.") and name.endswith("dataframe.DataFrame") for name in names):
        return SparkTable(dframe)
    raise TypeError(f"dframe must be a Spark or a pandas DataFrame, not {type(dframe).__name__}")


def usable(table: Table, name: str) -> TensorColumn:
    """A column that there is, and that has a tensor; else ``SchemaError``."""
    found = table.find(name)
    if isinstance(found, TensorColumn):
        return found
    if found is None:
        raise SchemaError(
            f"there is no column {name!r}; the DataFrame has: {', '.join(table.names) or 'none'}",
            column=name,
            found=", ".join(table.names),
        )
    advice = next((text for kind, text in _ADVICE.items() if found.startswith(kind)), "cast it to a number")
    raise SchemaError(
        f"column {name!r} is {found}, which no tensor holds; {advice}", column=name, found=found, expected="numbers"
    )
