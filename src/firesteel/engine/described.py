"""A DataFrame with more said of its columns: metadata, and that they have no nulls. Lazy, without a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

__all__ = ["described"]


def described(df: DataFrame, metadata: Mapping[str, Mapping[str, Any]], not_null: Sequence[str] = ()) -> DataFrame:
    """The same columns, some with this metadata besides their own, some not nullable: a null is then an error."""
    from pyspark.sql.functions import col
    from pyspark.sql.types import UserDefinedType

    plain = df.toDF(*(f"p{place}" for place in range(len(df.columns))))
    chosen = []
    for place, field in enumerate(df.schema.fields):
        column = col(f"p{place}")
        if field.name in not_null and field.nullable:
            if isinstance(field.dataType, UserDefinedType):
                plain, column = _without_nulls(plain, f"p{place}"), col(f"p{place}")
            else:
                column = _never_null(column, field.name, field.dataType)
        chosen.append(column.alias(field.name, metadata={**field.metadata, **metadata.get(field.name, {})}))
    return plain.select(*chosen)


def _never_null(column: Column, name: str, kind: DataType) -> Column:
    """Spark takes a choice for not nullable when its last part is; the part before it never lets that be reached."""
    from pyspark.sql.functions import array, coalesce, lit, raise_error
    from pyspark.sql.types import ArrayType, BinaryType, BooleanType, StringType

    depth = 0
    leaf = kind
    while isinstance(leaf, ArrayType):
        leaf, depth = leaf.elementType, depth + 1
    zero: Any = 0
    if isinstance(leaf, StringType):
        zero = ""
    elif isinstance(leaf, BinaryType):
        zero = bytearray()
    elif isinstance(leaf, BooleanType):
        zero = False
    last = lit(zero).cast(leaf)
    for _ in range(depth):
        last = array(last)
    return coalesce(column, raise_error(lit(f"column {name!r} has a null value")).cast(kind), last.cast(kind))


def _without_nulls(df: DataFrame, name: str) -> DataFrame:
    """The same for a type that has no literals: an array without nulls, of one element, taken apart again."""
    from pyspark.sql.functions import array, array_compact, col, explode

    return df.withColumn(name, explode(array_compact(array(col(name)))))
