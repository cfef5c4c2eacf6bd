"""Strings to ids on Spark DataFrames. Needs no RDD, so it works under Spark Connect, too.

An id is a number from 1 on, so that 0 stays free for what is not known.
"""

from __future__ import annotations

import contextlib
import json
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from firesteel.core.errors import PlanError, SchemaError
from firesteel.data.quoting import quoted
from firesteel.data.shards.kinds import check_columns, check_positive, listed, type_name

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["StringIndex", "category_encode", "encode_string", "gen_string_idx"]

_ROW = "row of the frame"
_KEY = "string of the index"
_ID = "id of the string"
_PLACE = "place in the cell"


class StringIndex:
    """Which string has which id: a Spark DataFrame with the columns ``col_name`` and ``id``.

    Args:
        df: the DataFrame; must have both columns.
        col_name: the column of the strings.

    Raises:
        SchemaError: a column is missing.
    """

    def __init__(self, df: DataFrame, col_name: str) -> None:
        if not _is_frame(df):
            raise PlanError(f"StringIndex needs a Spark DataFrame, found {type_name(df)}")
        check_columns("StringIndex", ["id", col_name], df.columns)
        self.df = df
        self.col_name = col_name
        self._broadcast = False
        self._kept: _Kept | None = None

    @classmethod
    def from_dict(cls, indices: Mapping[str, int], col_name: str) -> StringIndex:
        """An index from a dict of string to id."""
        from pyspark.sql import SparkSession
        from pyspark.sql.types import LongType, StringType, StructField, StructType

        _check_ids(indices)
        _check_name(col_name)
        schema = StructType([StructField(col_name, StringType()), StructField("id", LongType())])
        session = SparkSession.builder.getOrCreate()
        return cls(session.createDataFrame(list(indices.items()), schema), col_name)

    def to_dict(self) -> dict[str, int]:
        """The index as a dict of string to id, in order of ids (driver)."""
        from pyspark.sql import functions as F  # noqa: N812

        table = self.df.select(F.col(quoted(self.col_name)).alias("key"), F.col("id").alias("id")).toArrow()
        pairs = zip(table.column("key").to_pylist(), table.column("id").to_pylist(), strict=True)
        return dict(sorted(pairs, key=lambda pair: pair[1]))

    def broadcast(self) -> StringIndex:
        """Send the index whole to each executor when it is joined, instead of sorting both sides. Returns itself."""
        self._broadcast = True
        return self

    def to_json(self) -> str:
        """The index as text; ``from_json`` reads it."""
        return json.dumps({"StringIndex": {"col_name": self.col_name, "indices": self.to_dict()}})

    @classmethod
    def from_json(cls, text: str) -> StringIndex:
        """What ``to_json`` wrote."""
        held = from_text(text, "StringIndex")
        return cls.from_dict(held["indices"], held["col_name"])

    def __repr__(self) -> str:
        return f"StringIndex({self.col_name!r})"


def gen_string_idx(
    df: DataFrame,
    columns: Any,
    freq_limit: int | Mapping[str, int] | None = None,
    order_by_freq: bool = False,
    do_split: bool = False,
    sep: str = ",",
) -> Any:
    """The index of one column, or a list of indexes. All are counted in one pass, the first time one is used.

    Args:
        df: a Spark DataFrame.
        columns: a column's name, a dict ``{"src_cols": [...], "col_name": …}`` for one index over several columns, or
            a list of these.
        freq_limit: strings that are rarer get no id; an int, or a dict by column.
        order_by_freq: whether the most frequent string has the id 1, ties by string; else ids ascend with strings.
        do_split: whether a cell holds several strings.
        sep: what is between them.

    Raises:
        SchemaError: a column that is not there, or that holds no strings.
    """
    from pyspark.sql import functions as F  # noqa: N812

    wanted = _targets(df, columns)
    kept = _Kept(_count(df, wanted, _limits(freq_limit, wanted), order_by_freq, sep if do_split else None))
    found = []
    for target in wanted:
        rows = kept.df.where(F.col("column") == target.name).select(F.col("value").alias(target.name), "id")
        index = StringIndex(rows, target.name)
        index._kept = kept
        found.append(index)
    return found if isinstance(columns, (list, tuple)) else found[0]


def encode_string(
    df: DataFrame,
    columns: Any,
    indices: Any,
    broadcast: bool = True,
    do_split: bool = False,
    sep: str = ",",
    sort_for_array: bool = False,
    keep_most_frequent: bool = False,
) -> DataFrame:
    """The DataFrame with ids where strings were; a string without id becomes null. Rows and columns keep their order.

    Args:
        df: a Spark DataFrame.
        columns: as for ``gen_string_idx``.
        indices: a ``StringIndex``, a dict of string to id, or a list of these, one for each of ``columns``.
        broadcast: whether indexes go whole to each executor; for those that are too large, both sides are sorted.
        do_split: whether a cell holds several strings; it becomes an array of ids.
        sep: what is between them.
        sort_for_array: whether these arrays are sorted.
        keep_most_frequent: whether only the least id of each array is kept, which is the most frequent string's where
            the index was made with ``order_by_freq=True``.
    """
    wanted = _targets(df, columns)
    given = list(indices) if isinstance(indices, (list, tuple)) else [indices]
    if len(given) != len(wanted):
        raise PlanError(f"encode_string needs an index for each of {len(wanted)} columns, found {len(given)}")
    named = df.columns
    for target, each in zip(wanted, given, strict=True):
        index = StringIndex.from_dict(each, target.name) if isinstance(each, Mapping) else each
        if not isinstance(index, StringIndex):
            raise PlanError(f"encode_string needs a StringIndex or a dict, found {type_name(each)}")
        whole = broadcast or index._broadcast
        for name in target.columns:
            if do_split:
                df = _encode_lists(df, name, index, whole, sep, sort_for_array, keep_most_frequent)
            else:
                df = _encode(df, name, index, whole)
    return df.select(*map(quoted, named))


def category_encode(
    df: DataFrame,
    columns: Any,
    freq_limit: int | Mapping[str, int] | None = None,
    order_by_freq: bool = False,
    do_split: bool = False,
    sep: str = ",",
    sort_for_array: bool = False,
    keep_most_frequent: bool = False,
    broadcast: bool = True,
) -> tuple[DataFrame, Any]:
    """``gen_string_idx`` and ``encode_string`` at once: the encoded DataFrame, and the index or the list of them."""
    indices = gen_string_idx(df, columns, freq_limit, order_by_freq, do_split, sep)
    encoded = encode_string(df, columns, indices, broadcast, do_split, sep, sort_for_array, keep_most_frequent)
    return encoded, indices


# Counting


def ids_of(df: DataFrame, names: Sequence[str]) -> list[dict[str, int]]:
    """The ids of each column's strings, found and fetched in one job (driver)."""
    # Targets are numbered, for a column may be called what its ids are.
    wanted = _targets(df, [{"src_cols": [name], "col_name": str(place)} for place, name in enumerate(names)])
    table = _count(df, wanted, {}, False, None).toArrow()
    found: list[dict[str, int]] = [{} for _ in names]
    for place, value, number in zip(*(column.to_pylist() for column in table.columns), strict=True):
        found[int(place)][value] = number
    return [dict(sorted(ids.items(), key=lambda item: item[1])) for ids in found]


def _count(
    df: DataFrame, wanted: Sequence[_Target], limits: Mapping[str, int], order_by_freq: bool, sep: str | None
) -> DataFrame:
    """The strings of all targets with their ids: ``column``, ``value``, ``id``."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    values = [
        _values(F.col(quoted(name)).cast("string"), sep, target.name) for target in wanted for name in target.columns
    ]
    # One row for each cell of each column, so that all columns are counted in one go.
    cells = df.select(F.explode(F.concat(*values)).alias("cell")).select("cell.*").where("value is not null")
    counts = cells.groupBy("column", "value").count()
    if limits:
        rare = [(F.col("column") == name) & (F.col("count") < limit) for name, limit in limits.items()]
        counts = counts.where(~reduce(lambda left, right: left | right, rare))
    # As many partitions as columns: each column's ids are given in one anyway, and a cache keeps empty ones, too.
    counts = counts.repartition(len(wanted), "column")
    order = [F.col("count").desc()] if order_by_freq else []
    ids = F.row_number().over(Window.partitionBy("column").orderBy(*order, F.col("value"))).cast("long")
    return counts.select("column", "value", ids.alias("id"))


@dataclass(frozen=True)
class _Target:
    """An index to make: its name, and the columns whose strings it has."""

    name: str
    columns: tuple[str, ...]


class _Kept:
    """A DataFrame that is computed once: kept while an index of it is alive."""

    def __init__(self, df: DataFrame) -> None:
        self.df = df.cache()
        self._release = weakref.finalize(self, _unpersist, self.df)
        self._release.atexit = False  # Spark's own end frees everything


def _unpersist(df: DataFrame) -> None:
    # The garbage collector calls this at any time, also after the session's end, when the cache is gone already.
    context = getattr(df.sparkSession, "_sc", None)
    if context is None or context._jsc is not None:
        from pyspark.errors import PySparkException

        with contextlib.suppress(PySparkException):
            df.unpersist()


def _targets(df: DataFrame, columns: Any) -> list[_Target]:
    from pyspark.sql.types import NullType, StringType

    if not _is_frame(df):
        raise PlanError(f"strings are indexed in a Spark DataFrame, found {type_name(df)}")
    given = list(columns) if isinstance(columns, (list, tuple)) else [columns]
    wanted = [_target(each) for each in given]
    names = [target.name for target in wanted]
    if not wanted or len(set(names)) < len(names):
        raise PlanError(f"columns must be column names, each once, found {columns!r}")
    for target in wanted:
        check_columns("columns", target.columns, df.columns)
        for name in target.columns:
            kind = df.schema[name].dataType
            if not isinstance(kind, (NullType, StringType)):
                raise SchemaError(
                    f"column {name!r} holds {kind.simpleString()}, not strings; cast it to string first",
                    column=name,
                    expected="string",
                    found=kind.simpleString(),
                )
    return wanted


def _target(each: Any) -> _Target:
    if isinstance(each, str):
        _check_name(each)
        return _Target(each, (each,))
    if isinstance(each, Mapping) and set(each) <= {"src_cols", "col_name"} and each.get("src_cols"):
        sources = each["src_cols"]
        names = (sources,) if isinstance(sources, str) else tuple(sources)
        name = each.get("col_name") or "_".join(names)
        _check_name(name)
        return _Target(name, names)
    raise PlanError(f'columns must be names or {{"src_cols": [...], "col_name": …}}, found {each!r}')


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name or name == "id":
        raise PlanError(
            f'an index needs the name of its strings, other than "id", found {name!r}; '
            f'{{"src_cols": ["id"], "col_name": …}} gives it one'
        )


def _check_ids(indices: object) -> None:
    fits = isinstance(indices, Mapping) and all(isinstance(key, str) for key in indices)
    if not fits or not all(isinstance(value, int) for value in indices.values()):  # type: ignore[attr-defined]
        raise PlanError(f"an index is made of a dict of string to id, found {indices!r}")


def _limits(freq_limit: Any, wanted: Sequence[_Target]) -> dict[str, int]:
    names = [target.name for target in wanted]
    if freq_limit is None:
        return {}
    limits = dict(freq_limit) if isinstance(freq_limit, Mapping) else dict.fromkeys(names, freq_limit)
    unknown = [name for name in limits if name not in names]
    if unknown:
        raise PlanError(f"freq_limit: {unknown[0]!r} is not among the columns: {listed(names)}")
    for limit in limits.values():
        check_positive("freq_limit", limit)
    return limits


def _values(column: Column, sep: str | None, name: str) -> Column:
    """A cell as an array of ``{column, value}``."""
    from pyspark.sql import functions as F  # noqa: N812

    one = F.array(column)
    cells = one if sep is None else F.coalesce(_split(column, sep), F.array().cast("array<string>"))
    return F.transform(cells, lambda cell: F.struct(F.lit(name).alias("column"), cell.alias("value")))


def _split(column: Column, sep: str) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    given: object = sep
    if not isinstance(given, str) or not given:
        raise PlanError(f"sep must be a string that is not empty, found {given!r}")
    return F.split(column, "\\Q" + sep.replace("\\E", "\\E\\\\E\\Q") + "\\E", -1)


# Encoding


def _encode(df: DataFrame, name: str, index: StringIndex, broadcast: bool) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    left = df if broadcast else df.withColumn(_ROW, F.monotonically_increasing_id())
    joined = _join(left, F.col(quoted(name)), index, broadcast).withColumn(name, F.col(_ID)).drop(_ID, _KEY)
    # A broadcast join leaves rows where they are; the other one does not.
    return joined if broadcast else joined.orderBy(_ROW).drop(_ROW)


def _encode_lists(
    df: DataFrame, name: str, index: StringIndex, broadcast: bool, sep: str, sort: bool, least: bool
) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    column = F.col(quoted(name))
    others = [other for other in df.columns if other != name]
    numbered = df.withColumn(_ROW, F.monotonically_increasing_id())
    cells = numbered.select("*", F.posexplode_outer(_split(column, sep)).alias(_PLACE, "value of the cell"))
    joined = _join(cells, F.col("value of the cell"), index, broadcast)
    pairs = F.when(F.col(_PLACE).isNotNull(), F.struct(_PLACE, _ID))
    firsts = [F.first(quoted(other)).alias(other) for other in others]
    rows = joined.groupBy(_ROW).agg(
        F.array_sort(F.collect_list(pairs)).alias(_ID), F.max(_PLACE).alias(_PLACE), *firsts
    )
    ids = F.transform(F.col(_ID), lambda pair: pair[_ID])
    ids = F.array_min(ids) if least else F.array_sort(ids) if sort else ids
    encoded = rows.withColumn(name, F.when(F.col(_PLACE).isNotNull(), ids))  # a null cell stays null
    return encoded.orderBy(_ROW).drop(_ROW, _ID, _PLACE)


def _join(df: DataFrame, key: Column, index: StringIndex, broadcast: bool) -> DataFrame:
    """The rows with their string's id beside them."""
    from pyspark.sql import functions as F  # noqa: N812

    right = index.df.select(F.col(quoted(index.col_name)).alias(_KEY), F.col("id").alias(_ID))
    right = F.broadcast(right) if broadcast else right
    return df.join(right, key == F.col(quoted(_KEY)), "left")


def _is_frame(df: object) -> bool:
    # Also Spark Connect's, whose class may not be importable here.
    return type(df).__name__ == "DataFrame" and type(df).__module__.startswith("pyspark.sql")


def from_text(text: str, kind: str) -> dict[str, Any]:
    """What ``to_json`` of this class wrote."""
    try:
        held = json.loads(text)
    except ValueError as error:
        raise PlanError(f"{kind}.from_json needs JSON: {error}") from error
    if not isinstance(held, dict) or not isinstance(held.get(kind), dict):
        raise PlanError(f"{kind}.from_json needs what {kind}.to_json wrote")
    return dict(held[kind])
