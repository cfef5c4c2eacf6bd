"""Frames as one table: grouped, merged, sorted, described by Spark SQL.

Rows go to Spark as Arrow and come back so. Spark knows fewer types than pandas: what it widened or did not have
(categories, unsigned and nullable integers) is put back afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from firesteel.core.errors import PlanError, SchemaError, UnknownName
from firesteel.data.quoting import quoted
from firesteel.data.shards.kinds import check_columns, listed

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import Column, DataFrame

    from firesteel.data.shards.xshards import XShards

__all__ = ["AGGREGATES", "JOINS", "describe", "group_by", "merge", "sort_values"]

# Spark's function for each name; the column that results is called what Spark SQL calls it.
AGGREGATES = {
    "max": "max",
    "min": "min",
    "count": "count",
    "sum": "sum",
    "avg": "avg",
    "mean": "avg",
    "sumDistinct": "sum_distinct",
    "stddev": "stddev",
    "stddev_pop": "stddev_pop",
    "variance": "variance",
    "var_pop": "var_pop",
    "skewness": "skewness",
    "kurtosis": "kurtosis",
    "collect_list": "collect_list",
    "collect_set": "collect_set",
    "approx_count_distinct": "approx_count_distinct",
    "first": "first",
    "last": "last",
}
JOINS = ("inner", "left", "right", "outer")

_PLACE = "__firesteel_place__"
_OTHER_PLACE = "__firesteel_other_place__"
_SUMMARY = ("count", "mean", "stddev", "min", "max")


def group_by(shards: XShards, columns: str | list[str], agg: Any, join: bool) -> XShards:
    """See ``XShards.group_by``."""
    there = [str(name) for name in shards._require_frames("group_by")]
    keys = [columns] if isinstance(columns, str) else list(columns)
    check_columns("group_by", keys, there)
    if join and not keys:
        raise PlanError("group_by(join=True) joins on the keys, and columns names none")
    wanted = _aggregates(agg, keys, there)
    # Only what is asked about goes to Spark, unless all rows come back.
    used = dict.fromkeys([*keys, *(name for _, name in wanted if name != "*")])
    df = (shards if join else _only(shards, used or there[:1])).to_spark_df()
    results = [_aggregate(function, name) for function, name in wanted]
    grouped = df.groupBy(*map(_col, keys)).agg(*results)
    if not join:
        return type(shards).from_spark_df(grouped)
    placed = _with_place(df, _PLACE)
    found = _join(placed, grouped, keys, "left", drop_right_keys=True)
    ordered = _in_order(found, shards.num_partitions(), [_col(_PLACE).asc()]).drop(_PLACE)
    return _with_types(type(shards).from_spark_df(ordered), _types(shards, df))


def merge(left: XShards, right: Any, how: str, on: str | list[str] | None) -> XShards:
    """See ``XShards.merge``."""
    if not isinstance(right, type(left)):
        raise PlanError(f"merge needs another XShards of Pandas DataFrames, found {type(right).__qualname__}")
    if how not in JOINS:
        raise UnknownName("how", how, JOINS)
    lefts = [str(name) for name in left._require_frames("merge")]
    rights = [str(name) for name in right._require_frames("merge")]
    keys = [name for name in lefts if name in rights] if on is None else [on] if isinstance(on, str) else list(on)
    if not keys:
        raise PlanError(f"merge: no common column; the left has {listed(lefts)}, the right has {listed(rights)}")
    for side in (lefts, rights):
        check_columns("merge", keys, side)
    left_df, right_df = left.to_spark_df(), right.to_spark_df()
    _check_keys(left_df, right_df, keys)
    # Columns beside the keys that both have get pandas' endings.
    both = set(lefts) & set(rights) - set(keys)
    left_df = _with_place(_renamed(left_df, both, "_x"), _PLACE)
    right_df = _with_place(_renamed(right_df, both, "_y"), _OTHER_PLACE)
    joined = _join(left_df, right_df, keys, how)
    places = [_PLACE, _OTHER_PLACE] if how != "right" else [_OTHER_PLACE, _PLACE]
    partitions = max(left.num_partitions(), right.num_partitions())
    ordered = _in_order(joined, partitions, [_col(place).asc_nulls_last() for place in places])
    types = {**_types(right, right_df, both, "_y"), **_types(left, left_df, both, "_x")}
    # Not cached: what Spark shuffled for the count is still there for the rows.
    merged = _with_types(type(left).from_spark_df(ordered.drop(*places)), types)
    rows = len(merged)
    return merged.repartition(min(partitions, rows)) if rows else merged


def sort_values(shards: XShards, names: str | list[str] | None, ascending: bool | list[bool]) -> XShards:
    """See ``XShards.sort_values``."""
    there = [str(name) for name in shards._require_frames("sort_values")]
    chosen = there if names is None else [names] if isinstance(names, str) else list(names)
    check_columns("sort_values", chosen, there)
    directions = [ascending] * len(chosen) if isinstance(ascending, bool) else list(ascending)
    if len(directions) != len(chosen):
        raise PlanError(f"sort_values: {len(directions)} directions in ascending for {len(chosen)} columns")
    df = shards.to_spark_df()
    orders = [
        _col(name).asc_nulls_last() if up else _col(name).desc_nulls_last()
        for name, up in zip(chosen, directions, strict=True)
    ]
    ordered = _in_order(_with_place(df, _PLACE), shards.num_partitions(), [*orders, _col(_PLACE).asc()])
    return _with_types(type(shards).from_spark_df(ordered.drop(_PLACE)), _types(shards, df))


def describe(shards: XShards, names: str | list[str] | None) -> pd.DataFrame:
    """See ``XShards.describe``."""
    import pandas as pd
    from pyspark.sql import functions
    from pyspark.sql.types import NumericType

    there = [str(name) for name in shards._require_frames("describe")]
    chosen = there if names is None else [names] if isinstance(names, str) else list(names)
    check_columns("describe", chosen, there)
    df = _only(shards, chosen).to_spark_df()
    numeric = {field.name for field in df.schema.fields if isinstance(field.dataType, NumericType)}
    asked = []
    for name in chosen:
        for word in _SUMMARY:
            is_there = name in numeric or word not in ("mean", "stddev")
            asked.append(getattr(functions, word)(_col(name)) if is_there else functions.lit(None))
    values = iter(df.agg(*(each.alias(str(place)) for place, each in enumerate(asked))).collect()[0])
    found: dict[str, Any] = {"summary": list(_SUMMARY)}
    for name in chosen:
        column = [next(values) for _ in _SUMMARY]
        if name in numeric:
            found[name] = [None if value is None else float(value) for value in column]
        else:
            found[name] = pd.Series([float(column[0]), *column[1:]], dtype=object)
    return pd.DataFrame(found)


def _only(shards: XShards, names: Iterable[str]) -> XShards:
    """Frames with these columns; by their names as strings, for that is how Spark will have them."""
    wanted = set(names)
    own = [name for name in shards._require_frames("select") if str(name) in wanted]
    return shards.select(own)


def _aggregates(agg: Any, keys: list[str], there: list[str]) -> list[tuple[str, str]]:
    """``(function, column)`` in the order in which results are wanted."""
    if isinstance(agg, dict):
        asked = [(name, functions) for name, functions in agg.items()]
        check_columns("group_by", [name for name, _ in asked if name != "*"], there)
    else:
        asked = [(name, agg) for name in there if name not in keys]
    wanted = []
    for name, functions in asked:
        for function in [functions] if isinstance(functions, str) else functions:
            if function not in AGGREGATES:
                raise UnknownName("aggregate", function, list(AGGREGATES))
            if name == "*" and function != "count":
                raise PlanError(f"group_by: '*' can be counted only, not {function!r}")
            wanted.append((function, name))
    if not wanted:
        raise PlanError("group_by: there is nothing to aggregate: every column is a key, and agg names none")
    return wanted


def _aggregate(function: str, name: str) -> Column:
    from pyspark.sql import functions

    if name == "*":
        return functions.count(functions.lit(1)).alias("count(1)")
    called = {"sumDistinct": f"sum(DISTINCT {name})"}.get(function, f"{AGGREGATES[function]}({name})")
    made: Column = getattr(functions, AGGREGATES[function])(_col(name))
    return made.alias(called)


def _col(name: str) -> Column:
    """The column of exactly this name, also with a dot or a backtick in it."""
    from pyspark.sql import functions

    return functions.col(quoted(name))


def _with_place(df: DataFrame, name: str) -> DataFrame:
    from pyspark.sql import functions

    return df.withColumn(name, functions.monotonically_increasing_id())


def _in_order(df: DataFrame, partitions: int, orders: Sequence[Column]) -> DataFrame:
    """Sorted over all partitions. Not ``orderBy``: the number of partitions would be a setting of the session."""
    return df.repartitionByRange(partitions, *orders).sortWithinPartitions(*orders)


def _renamed(df: DataFrame, names: Iterable[str], ending: str) -> DataFrame:
    return df.withColumnsRenamed({name: name + ending for name in names})


def _join(left: DataFrame, right: DataFrame, keys: list[str], how: str, drop_right_keys: bool = False) -> DataFrame:
    """Keys, the left's other columns, the right's. Null keys are equal, as they are in pandas."""
    from functools import reduce

    from pyspark.sql import functions

    theirs = {name: f"__firesteel_key_{place}__" for place, name in enumerate(keys)}
    right = right.withColumnsRenamed(theirs)
    equal = reduce(lambda a, b: a & b, (_col(name).eqNullSafe(_col(other)) for name, other in theirs.items()))
    joined = left.join(right, equal, "full" if how == "outer" else how)
    if drop_right_keys:
        return joined.drop(*theirs.values())
    found = [functions.coalesce(_col(name), _col(other)).alias(name) for name, other in theirs.items()]
    others = [name for name in (*left.columns, *right.columns) if name not in keys and name not in theirs.values()]
    return joined.select(*found, *map(_col, others))


def _check_keys(left: DataFrame, right: DataFrame, keys: list[str]) -> None:
    """Numbers can be compared with numbers; Spark would compare anything, as text."""
    from pyspark.sql.types import NumericType

    for name in keys:
        ours, theirs = left.schema[name].dataType, right.schema[name].dataType
        if ours != theirs and not (isinstance(ours, NumericType) and isinstance(theirs, NumericType)):
            raise SchemaError(
                f"merge: the key {name!r} is {ours.simpleString()} on the left and {theirs.simpleString()} on the "
                f"right; convert one of them",
                column=name,
                expected=ours.simpleString(),
                found=theirs.simpleString(),
            )


def _types(shards: XShards, df: DataFrame, renamed: Iterable[str] = (), ending: str = "") -> dict[str, Any]:
    """By column, the dtype to put back: those that Spark does not have, or has wider."""
    import pandas as pd
    from pyspark.sql.types import IntegralType

    found: dict[str, Any] = {}
    dtypes = shards._kind().dtypes
    for name, dtype in zip(map(str, dtypes.index), dtypes, strict=True):
        called = name + ending if name in renamed else name
        is_integral = isinstance(df.schema[called].dataType, IntegralType)
        if isinstance(dtype, pd.CategoricalDtype):
            found[called] = "category"  # each shard with its own categories; joined, they are all there
        elif not isinstance(dtype, np.dtype) or dtype.kind == "f" or (dtype.kind in "iu" and is_integral):
            found[called] = dtype
    return found


def _with_types(shards: XShards, types: dict[str, Any]) -> XShards:
    return shards._map_partitions(partial(_each_restored, types), unshared=True) if types else shards


def _each_restored(types: dict[str, Any], partition: int, frames: Iterable[pd.DataFrame]) -> Iterable[pd.DataFrame]:
    return map(partial(_restored, types), frames)


def _restored(types: dict[str, Any], frame: pd.DataFrame) -> pd.DataFrame:
    changed: dict[str, Any] = {}
    for name, dtype in types.items():
        column = frame[name]
        # Integers beside which a join put nulls are floats, in this shard as pandas has them.
        if not (isinstance(dtype, np.dtype) and dtype.kind in "iu" and column.dtype.kind == "f"):
            changed[name] = dtype
    return frame.astype(changed)
