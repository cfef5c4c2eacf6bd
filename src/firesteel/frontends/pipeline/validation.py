"""Rows held out of a training: those that a column marks, or so many of them by a seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from firesteel.core.errors import PlanError, SchemaError
from firesteel.data.quoting import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["hold_out"]

_PLACE = "__firesteel_place"


def hold_out(df: DataFrame, column: str, fraction: float, seed: int) -> tuple[DataFrame, DataFrame | None]:
    """The rows to train on and those to validate on; a job counts them where a fraction is asked for."""
    if column:
        return _by_column(df, column)
    if not fraction:
        return df, None
    return _by_fraction(df, fraction, seed)


def _by_column(df: DataFrame, column: str) -> tuple[DataFrame, DataFrame]:
    from pyspark.sql.functions import col
    from pyspark.sql.types import BooleanType

    if column not in df.columns:
        raise SchemaError(
            f"there is no validationIndicatorCol {column!r}; the DataFrame has: {', '.join(df.columns)}", column=column
        )
    if not isinstance(df.schema[column].dataType, BooleanType):
        found = df.schema[column].dataType.simpleString()
        raise SchemaError(f"validationIndicatorCol {column!r} must be boolean, not {found}", column=column, found=found)
    mark = col(quoted(column))
    # A row whose mark is null is a row to train on: none is left out.
    return df.filter(~mark | mark.isNull()), df.filter(mark)


def _by_fraction(df: DataFrame, fraction: float, seed: int) -> tuple[DataFrame, DataFrame | None]:
    """Exactly round(fraction × rows) of them, the same ones for the same rows and seed."""
    from pyspark.sql.functions import col, lit, monotonically_increasing_id, xxhash64

    # Each row has a number, and its hash is another for every row: so the k smallest are k rows.
    placed = df.withColumn(_PLACE, xxhash64(monotonically_increasing_id(), lit(seed)))
    count = df.count()
    wanted = round(fraction * count)
    if wanted == 0:
        return df, None
    if wanted == count:
        raise PlanError(f"validationFraction={fraction} of {count} rows leaves none to train on")
    edge = placed.select(_PLACE).orderBy(_PLACE).limit(wanted).agg({_PLACE: "max"}).first()
    assert edge is not None
    is_held = col(_PLACE) <= lit(edge[0])
    return placed.filter(~is_held).drop(_PLACE), placed.filter(is_held).drop(_PLACE)
