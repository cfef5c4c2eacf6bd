"""Spark DataFrames, classic and Connect."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from firesteel.core.errors import SchemaError
from firesteel.data.frame import path_of
from firesteel.data.quoting import quoted
from firesteel.data.reading import make_reading
from firesteel.data.sources.kinds import Asked, Frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["is_frame", "take"]


def take(data: Any, asked: Asked) -> Frame | None:
    """Rows of a DataFrame, read by columns."""
    if not is_frame(data):
        return None
    columns = asked.columns
    features, labels = columns.require()
    keys = partial(_map_keys, data)
    reading = make_reading(
        data.schema,
        features,
        labels,
        columns.weight,
        asked.inputs(),
        keys,
        asked.takes_strings,
        asked.dtypes,
        asked.outputs,
    )
    return Frame(data, reading)


def is_frame(data: object) -> bool:
    """A Spark DataFrame, classic or Connect."""
    return any(cls.__module__.startswith("pyspark.sql") and cls.__name__ == "DataFrame" for cls in type(data).__mro__)


def _map_keys(df: DataFrame, name: str) -> list[str]:
    """The keys of a map column, as its first row has them."""
    from pyspark.sql.functions import map_keys

    first = df.select(map_keys(quoted(*path_of(df.schema, name)))).first()
    if first is None or not first[0]:
        raise SchemaError(f"column {name!r} is a map, and its first row has no keys to name the inputs by", column=name)
    return sorted(first[0])
