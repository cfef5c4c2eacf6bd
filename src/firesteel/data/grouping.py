"""What ``df.groupBy(…)`` groups by: Spark has no public way to ask."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from firesteel.core.errors import UnsupportedError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["keys_of"]


def keys_of(grouped: Any) -> tuple[DataFrame, list[Column]]:
    """The DataFrame that is grouped, and its keys as columns of it.

    Raises:
        TypeError: this is no grouped DataFrame.
        UnsupportedError: a rollup, a cube or a pivot.
    """
    df = getattr(grouped, "_df", None)
    if type(grouped).__name__ != "GroupedData" or df is None:
        raise TypeError(f"aggregate takes what df.groupBy(…) of a Spark DataFrame gives, not {type(grouped).__name__}")
    if type(grouped).__module__.startswith("pyspark.sql.connect"):
        kind, keys = grouped._group_type, list(grouped._grouping_cols)
    else:
        found = re.search(r"type: (\w+)\]?$", grouped._jgd.toString())
        kind, keys = (found[1] if found else "?"), _classic(df, grouped._jgd)
    if kind.lower() != "groupby":
        raise UnsupportedError(f"aggregate works on groupBy alone, and this is a {kind.lower()}")
    return df, keys


def _classic(df: Any, grouped: Any) -> list[Column]:
    from pyspark.sql.classic.column import Column

    utils = df.sparkSession.sparkContext._jvm.org.apache.spark.sql.classic.ExpressionUtils
    expressions = grouped.groupingExprs()
    return [Column(utils.column(expressions.apply(place))) for place in range(expressions.size())]
