"""XShards: a distributed list of Python objects, so that single-machine code runs on each of them where it lies.

An ``XShards`` wraps an RDD; each element is a *shard*: a pandas DataFrame, an ndarray, a dict or tuple of ndarrays,
a list, a number, anything. What tasks do with them is in the other files of this folder.

pyspark, pandas and pyarrow are imported where they are used: loading this module loads none of them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from firesteel.core.errors import PlanError, SchemaError, UnknownName
from firesteel.data import structure
from firesteel.data.shards import files, frames, rows, tables, work
from firesteel.data.shards.context import connect_error, refuse_connect, spark_context, task_slots
from firesteel.data.shards.kinds import Kind, check_columns, check_positive, kind_of, listed, type_name

if TYPE_CHECKING:
    import numpy.typing as npt
    import pandas as pd
    from pyspark import RDD, StorageLevel
    from pyspark.sql import DataFrame

__all__ = ["SharedValue", "SparkXShards", "XShards"]


_LEAST_BUCKETS = 1024


class XShards:
    """A distributed list of shards. Lazy as Spark is, and not cached unless asked.

    ``len``, ``first``, ``head``, ``zip``, ``split``, ``repartition``, ``to_spark_df`` and what works on pandas only
    have to look at shards, so they run a Spark job when called; ``cache()`` first what is expensive to make.

    Args:
        rdd: an RDD whose elements are the shards.

    Attributes:
        rdd: the same.

    Raises:
        UnsupportedError: under Spark Connect, which has no RDDs.
    """

    # `[]` selects inside shards; without this line Python would iterate by calling it with 0, 1, 2, … for ever.
    __iter__ = None

    def __init__(self, rdd: RDD[Any]) -> None:
        refuse_connect()
        from pyspark import RDD

        if not isinstance(rdd, RDD):
            raise PlanError(f"XShards needs an RDD whose elements are the shards, found {type_name(rdd)}")
        self.rdd = rdd
        # Whether every use of the RDD makes shards that nobody else can see (see `_own_copies`).
        self._unshared = False
        # While a shard list that was not computed yet is alive, so are the caches that it will be computed from.
        self._sources: tuple[XShards, ...] = ()
        self._release: weakref.finalize[[RDD[Any]], XShards] | None = None
        self._kind_of_first: Kind | None = None

    @classmethod
    def partition(cls, data: Any, num_shards: int | None = None) -> XShards:
        """Arrays of the driver, cut along the first axis as ``numpy.array_split`` does: one shard per partition.

        Args:
            data: an ndarray, or a tuple, list or dict, nested at will, whose leaves are ndarrays of equal first
                dimension. Each shard has the same structure.
            num_shards: default: as many as tasks can run at the same time, but never more than rows.

        Raises:
            PlanError: other types, first dimensions that differ, no rows, or more shards than rows.
        """
        refuse_connect()
        row_count = structure.rows(data)
        if row_count == 0:
            raise PlanError("there is nothing to partition: the data has no rows")
        if num_shards is not None:
            check_positive("num_shards", num_shards)
            if num_shards > row_count:
                raise PlanError(f"the number of shards ({num_shards}) is larger than the number of rows ({row_count})")
        context = spark_context()
        count = min(task_slots(context), row_count) if num_shards is None else int(num_shards)
        shards = structure.cut(data, structure.even_boundaries(row_count, count))
        return cls._over(context.parallelize(shards, count), unshared=True)

    @classmethod
    def from_spark_df(
        cls,
        df: DataFrame,
        squeeze: bool = False,
        index_col: str | None = None,
        dtype: Any = None,
        shard_size: int | None = None,
    ) -> XShards:
        """The rows of a Spark DataFrame as pandas shards, through Arrow.

        One shard per partition, none for an empty one. Vector columns become lists of floats, arrays become lists,
        timestamps the session's local time without a zone.

        Args:
            df: the DataFrame.
            squeeze: a DataFrame of one column gives shards that are Series.
            index_col: this column becomes the index.
            dtype: a type for all columns, or a dict from column name or position to type.
            shard_size: rows in a shard; the last one of a partition may have fewer.
        """
        # A Connect DataFrame can be met while this process's own mode is the classic one.
        if type(df).__module__.startswith("pyspark.sql.connect"):
            raise connect_error()
        refuse_connect()
        from pyspark.sql import DataFrame

        if not isinstance(df, DataFrame):
            raise PlanError(f"from_spark_df needs a Spark DataFrame, found {type_name(df)}")
        if shard_size is not None:
            check_positive("shard_size", shard_size)
        if index_col is not None:
            check_columns("from_spark_df", [index_col], df.columns)
        dress = partial(frames.dress, squeeze, index_col, frames.dtype_by_name(dtype, df.columns))
        zone = frames.session_zone(df.sparkSession)
        packed = frames.plain_columns(df).mapInArrow(frames.pack_batches, "batch binary").rdd
        unpack = partial(frames.unpack_frames, df.columns, zone, shard_size, dress)
        return cls._over(packed.mapPartitions(unpack), unshared=True)

    # Caching

    def cache(self) -> XShards:
        """Keep the shards once they are computed. Freed by ``uncache()``, or when the last reference goes."""
        return self.persist()

    def persist(self, storage_level: StorageLevel | None = None) -> XShards:
        """As ``cache()``, with a storage level; the default keeps in memory what fits and the rest on disk."""
        from pyspark import StorageLevel

        if self.rdd.is_cached:
            found = self.rdd.getStorageLevel()
            if storage_level is not None and storage_level != found:
                raise PlanError(f"these shards are persisted as {found} already; call uncache() first")
            return self
        self.rdd.persist(StorageLevel.MEMORY_AND_DISK if storage_level is None else storage_level)
        self._release = weakref.finalize(self, _unpersist, self.rdd)
        self._release.atexit = False  # Spark's own end frees everything
        return self

    def uncache(self) -> XShards:
        """Free the cache. The shards can still be used: they are computed again."""
        if self._release is not None:
            self._release.detach()
            self._release = None
        if self.rdd.is_cached:
            self.rdd.unpersist()
        return self

    def is_cached(self) -> bool:
        """Whether the shards are kept, or will be when they are computed."""
        return self.rdd.is_cached

    def compute(self) -> XShards:
        """Compute the shards now, and keep them cached."""
        self.persist()
        self.rdd.count()
        self._sources = ()  # their caches have served
        return self

    def to_lazy(self) -> XShards:
        """Itself: everything is lazy. For old calls."""
        return self

    # Any shards

    def transform_shard(self, func: Callable[..., Any], *args: Any) -> XShards:
        """``func(shard, *args)`` for each shard, in tasks. ``func`` gets its own copy: it may change it in place.

        An exception in ``func`` ends the job with its own traceback and the number of the partition.

        Args:
            func: the function.
            *args: more arguments; a ``SharedValue`` travels once to each executor instead of once to each task.
        """
        return self._map_partitions(partial(work.transform, func, args, not self._unshared))

    def collect(self) -> list[Any]:
        """All shards, on the driver, in partition order."""
        return self.rdd.collect()

    def first(self) -> Any:
        """The first shard, on the driver."""
        found = self._first_of(work.same)
        if not found:
            raise PlanError("these XShards have no shards")
        return found[0]

    def take(self, n: int) -> list[Any]:
        """The first ``n`` shards, on the driver, in partition order."""
        return self.rdd.take(n)

    def head(self, n: int = 5) -> Any:
        """The first ``n`` rows of the first shard: pandas, arrays, lists."""
        found = self._first_of(partial(work.head, n))
        if not found:
            raise PlanError("these XShards have no shards")
        type_name, rows = found[0]
        if rows is None:
            raise PlanError(f"head works on shards that are pandas, ndarrays or lists, found {type_name}")
        return rows

    def num_partitions(self) -> int:
        """The number of partitions."""
        return self.rdd.getNumPartitions()

    def __len__(self) -> int:
        return int(self.rdd.map(work.length).sum())

    def __getitem__(self, key: Any) -> XShards:
        return self._map_partitions(partial(work.each, partial(work.select_key, key)))

    def split(self) -> list[XShards]:
        """One XShards for each position, where shards are lists or tuples of one length above 1; else itself, alone.

        Raises:
            PlanError: the lengths differ.
        """
        lengths = set(self.rdd.map(work.split_length).distinct().collect())
        if len(lengths) > 1:
            raise PlanError(f"cannot split: shards have a different split length: {sorted(lengths)}")
        if not lengths or max(lengths) < 2:
            return [self]
        return [
            self._map_partitions(partial(work.each, partial(work.item, position))) for position in range(max(lengths))
        ]

    def zip(self, other: XShards) -> XShards:
        """Pairs of shards, partition by partition. Counts both sides when called, so that a mismatch shows here.

        Raises:
            PlanError: not an XShards, or other numbers of partitions or of shards in them.
        """
        if not isinstance(other, XShards):
            raise PlanError(f"other should be a SparkXShards, found {type_name(other)}")
        left, right = self.num_partitions(), other.num_partitions()
        if left != right:
            raise PlanError(f"both XShards should have the same number of partitions, found {left} and {right}")
        counts = list(zip(self._shards_per_partition(), other._shards_per_partition(), strict=True))
        for partition, (ours, theirs) in enumerate(counts):
            if ours != theirs:
                raise PlanError(
                    f"both XShards should have the same number of elements in each partition: "
                    f"partition {partition} has {ours} and {theirs}"
                )
        return self._over(_one_by_one(self.rdd).zip(_one_by_one(other.rdd)), self, other, unshared=True)

    def repartition(self, num_partitions: int) -> XShards:
        """The same rows in order over exactly that many partitions.

        Shards that are pandas, lists, arrays, or dicts or tuples of arrays are joined and cut anew, as evenly as
        possible, at most one shard to a partition. Others move whole, in order, as evenly as possible.
        """
        check_positive("num_partitions", num_partitions)
        measured: list[list[tuple[str, int]]] = self.rdd.mapPartitions(rows.measure).collect()
        kinds = {kind for shards in measured for kind, _ in shards}
        # Where kinds differ nothing can be joined, so shards stay what they are.
        cuts = len(kinds) == 1 and kinds != {rows.WHOLE}
        sizes = [sum(count if cuts else 1 for _, count in shards) for shards in measured]
        starts = [0, *accumulate(sizes)]
        boundaries = structure.even_boundaries(starts[-1], int(num_partitions))
        pieces = self.rdd.mapPartitionsWithIndex(partial(rows.scatter, starts, boundaries, cuts))
        gathered = pieces.partitionBy(int(num_partitions), int).mapPartitions(partial(rows.gather, cuts))
        return self._over(gathered, self)

    def stack_feature_labels(self) -> XShards:
        """The ``(feature, label)`` pairs of each partition as one ``{"x": …, "y": …}`` of float32 arrays.

        ``x`` is ``(pairs, *feature shape)``, ``y`` is ``(pairs, *label shape)``. An empty partition gives nothing.
        """
        kind = self._kind()
        if not kind.is_pair:
            raise PlanError(f"stack_feature_labels works on shards that are (feature, label) pairs, found {kind.name}")
        return self._map_partitions(work.stack_pairs, unshared=True)

    # Shards of pandas

    def select(self, cols: str | list[str]) -> XShards:
        """Frames with these columns only; one name gives frames of one column, where ``shards[name]`` gives Series."""
        names = [cols] if isinstance(cols, str) else cols
        if not isinstance(names, list):
            raise PlanError(f"select needs a column name or a list of them, found {type_name(cols)}")
        self._require_columns("select", names)
        return self._map_partitions(partial(work.each, partial(work.item, names)))

    def assembleFeatureLabelCols(  # noqa: N802 (the document's spelling)
        self,
        featureCols: list[str],  # noqa: N803
        labelCols: list[str],  # noqa: N803
    ) -> XShards:
        """Frames as ``{"x": (rows, features), "y": (rows, labels)}``."""
        given: dict[str, object] = {"featureCols": featureCols, "labelCols": labelCols}
        for name, columns in given.items():
            if not isinstance(columns, list) or not columns:
                raise PlanError(f"assembleFeatureLabelCols needs {name} as a list of column names, found {columns!r}")
        self._require_columns("assembleFeatureLabelCols", [*featureCols, *labelCols])
        return self._map_partitions(partial(work.each, partial(work.assemble, featureCols, labelCols)), unshared=True)

    def partition_by(self, cols: str | list[str], num_partitions: int | None = None) -> XShards:
        """Rows with equal keys in one partition, as one frame, each key's rows in their order.

        Looks at all keys when called, to spread them evenly.

        Args:
            cols: the column of the keys, or a list of them.
            num_partitions: default: as many as now.
        """
        given: object = cols
        if not isinstance(given, (str, list)) or not given:
            raise PlanError(f"partition_by needs a column name or a list of them, found {given!r}")
        if num_partitions is not None:
            check_positive("num_partitions", num_partitions)
        names = [cols] if isinstance(cols, str) else cols
        there = self._require_frames("partition_by")
        for name in names:
            if name not in there:
                raise SchemaError(
                    f"partition_by: the partition column is not in the frames: {name!r}; there are: {listed(there)}",
                    column=str(name),
                    expected=listed(there),
                )
        partitions = self.num_partitions() if num_partitions is None else int(num_partitions)
        buckets = max(_LEAST_BUCKETS, 16 * partitions)
        counts = np.sum(self.rdd.mapPartitions(partial(rows.count_buckets, names, buckets)).collect(), axis=0)
        if not counts.sum():
            return self.repartition(partitions)
        pieces = self.rdd.mapPartitionsWithIndex(partial(rows.scatter_buckets, names, rows.spread(counts, partitions)))
        return self._over(pieces.partitionBy(partitions, int).mapPartitions(partial(rows.gather, True)), self)

    def unique(self) -> npt.NDArray[Any]:
        """The distinct values of shards that are Series, in order of first appearance."""
        import pandas as pd

        kind = self._kind()
        if not kind.is_series:
            raise PlanError(f"unique works on shards that are a Pandas Series, found {kind.name}")
        found = self._map_partitions(partial(work.each, work.distinct)).collect()
        filled = [pd.Series(values) for values in found if len(values)] or [pd.Series(values) for values in found[:1]]
        return np.asarray(pd.unique(pd.concat(filled)))

    def deduplicates(self) -> XShards:
        """Frames without the rows that came before, in this shard or another."""
        self._require_frames("deduplicates")
        partitions = self.num_partitions()
        pieces = self.rdd.mapPartitionsWithIndex(partial(rows.scatter_to_compare, partitions))
        firsts = pieces.partitionBy(partitions, int).mapPartitions(rows.return_distinct)
        return self._over(firsts.partitionBy(partitions, int).mapPartitions(rows.gather_distinct), self, unshared=True)

    def sort_values(self, col_names: str | list[str] | None = None, ascending: bool | list[bool] = True) -> XShards:
        """Rows sorted over all shards; nulls come last, rows that are equal stay in their order.

        Args:
            col_names: a column or a list of them; default: all columns.
            ascending: for all of them, or one for each.
        """
        return tables.sort_values(self, col_names, ascending)

    def max_values(self, col_name: str) -> Any:
        """The largest value of a column, nulls aside; ``None`` if there is no other."""
        return self._extreme("max", col_name)

    def min_values(self, col_name: str) -> Any:
        """The smallest value of a column, nulls aside; ``None`` if there is no other."""
        return self._extreme("min", col_name)

    def get_null_sum(self) -> pd.DataFrame:
        """How many nulls each column has, over all shards: a frame with ``col`` and ``total``."""
        import pandas as pd

        columns = self._require_frames("get_null_sum")
        return pd.DataFrame({"col": columns, "total": self._null_counts(columns)})

    def drop_missing_value(self, axis: str = "columns") -> XShards:
        """Frames without the columns that have a null in any shard, or (``axis="rows"``) without the rows that do."""
        columns = self._require_frames("drop_missing_value")
        if axis in ("rows", "index", 0):
            return self._map_partitions(partial(work.each, work.without_nulls))
        if axis not in ("columns", 1):
            raise UnknownName("axis", axis, ("columns", "rows"))
        kept = [name for name, nulls in zip(columns, self._null_counts(columns), strict=True) if not nulls]
        return self._map_partitions(partial(work.each, partial(work.item, kept)))

    def sample(
        self, frac: float, replace: bool = False, weights: Any = None, random_state: int | None = None
    ) -> XShards:
        """Some rows of each shard, as ``pandas.DataFrame.sample`` draws them."""
        self._require_frames("sample")
        options = {"frac": frac, "replace": replace, "weights": weights, "random_state": random_state}
        return self._map_partitions(partial(work.each, partial(work.sample, options)))

    def sample_to_pdf(
        self,
        frac: float,
        replace: bool = False,
        weights: Any = None,
        random_state: int | None = None,
        axis: int | str = 0,
    ) -> pd.DataFrame:
        """The same rows as one frame, on the driver. The shards' own indexes are kept."""
        self._require_frames("sample_to_pdf")
        return self.sample(frac, replace, weights, random_state).concat_to_pdf(axis)

    def describe(self, cols: str | list[str] | None = None) -> pd.DataFrame:
        """Count, mean, standard deviation (the sample's), least and largest value of columns, over all shards.

        A frame with the column ``summary`` and one for each column asked for; default: all.
        """
        return tables.describe(self, cols)

    def group_by(self, columns: str | list[str] = [], agg: Any = "count", join: bool = False) -> XShards:  # noqa: B006
        """One row for each combination of keys: the keys, then the aggregates, named as Spark SQL names them.

        Groups come in no particular order.

        Args:
            columns: the keys; none: one row over all.
            agg: a function's name, a list of them (for every column that is no key), or a dict from column to name
                or list; ``{"*": "count"}`` counts rows. Names: ``firesteel.data.shards.tables.AGGREGATES``.
            join: put each group's results beside the original rows, in their order.
        """
        return tables.group_by(self, columns, agg, join)

    def merge(self, right: XShards, how: str = "inner", on: str | list[str] | None = None) -> XShards:
        """The rows of both joined on their keys, as pandas joins them. Joined and counted when called.

        Columns: the keys, the left's others, the right's; one that both have ends with ``_x`` and ``_y``. Rows come in
        the left's order (``how="right"``: the right's), those without a partner last.

        Args:
            right: the other XShards of pandas frames.
            how: ``inner``, ``left``, ``right``, ``outer``.
            on: the keys; default: the columns both have.
        """
        return tables.merge(self, right, how, on)

    def concat_to_pdf(self, axis: int | str = 0) -> pd.DataFrame:
        """All frames as one, on the driver. The shards' own indexes are kept."""
        self._require_frames("concat_to_pdf")
        return rows.concat(self.collect(), axis)

    def get_schema(self) -> dict[str, Any] | None:
        """``{"columns": list, "dtypes": Series}`` of the first shard; ``None`` where that is no DataFrame."""
        found = self._first_of(kind_of)
        kind = found[0] if found else None
        return None if kind is None or kind.columns is None else {"columns": kind.columns, "dtypes": kind.dtypes}

    def to_spark_df(self) -> DataFrame:
        """The rows of all frames as a Spark DataFrame, through Arrow, in order. The index is dropped.

        Looks at every shard's types when called, for Spark needs one schema; the rows follow when Spark asks. A
        column that is null in one shard has the type of the others; one of integers in some shards and of float64 in
        others, which is what pandas makes of integers with nulls, is a double. Timestamps without a zone are taken
        as the session's local time.

        Raises:
            SchemaError: shards with other columns or types, or a type that Spark does not have.
        """
        self._require_frames("to_spark_df")
        from pyspark.sql import SparkSession
        from pyspark.sql.pandas.types import from_arrow_schema

        session = SparkSession.builder.getOrCreate()
        zone = frames.session_zone(session)
        schema = frames.one_schema(self.rdd.map(partial(frames.arrow_types, zone)).collect())
        try:
            spark_schema = from_arrow_schema(schema)
        except TypeError as error:  # pyspark's words name the type
            raise SchemaError(f"to_spark_df: Spark has no such type: {error}") from error
        packed = self._map_partitions(partial(frames.pack_frames, schema, zone)).rdd
        rows = session.createDataFrame(packed, "batch binary", verifySchema=False)
        return rows.mapInArrow(frames.unpack_batches, spark_schema)

    # Files

    def save_pickle(self, path: str, batchSize: int = 10) -> XShards:  # noqa: N803 (the document's spelling)
        """Write a Spark pickle file. ``save_parquet`` is the safe one: reading a pickle runs what is in it."""
        files.save_pickle(self.rdd, path, batchSize)
        return self

    @classmethod
    def load_pickle(cls, path: str, minPartitions: int | None = None) -> XShards:  # noqa: N803
        """What ``save_pickle`` wrote. Reading pickles runs code from the file: open only what you wrote yourself."""
        return cls._over(files.load_pickle(spark_context(), path, minPartitions), unshared=True)

    def save_parquet(self, path: str, overwrite: bool = False) -> XShards:
        """Write the shards so that they come back exactly: types, dtypes, shapes, indexes, order, boundaries.

        Shards are made of pandas, ndarrays, numbers, strings, bytes and None, in tuples, lists and dicts with string
        keys. Nothing is pickled. What is at ``path`` stays until the new files are whole.

        Raises:
            SchemaError: a shard with something else in it.
            FileExistsError: there is something already, and ``overwrite`` is false.
        """
        files.save_parquet(self.rdd, path, overwrite)
        return self

    @classmethod
    def load_parquet(cls, path: str, minPartitions: int | None = None) -> XShards:  # noqa: N803
        """What ``save_parquet`` wrote, in as many partitions as it was, or in ``minPartitions`` if that is more."""
        return cls._over(files.load_parquet(spark_context(), path, minPartitions), unshared=True)

    # For other rooms and for the operations above

    def _map_partitions(self, fn: Callable[[int, Iterator[Any]], Iterable[Any]], *, unshared: bool = False) -> XShards:
        """Lazily ``fn(partition, shards)`` for each partition, in tasks: an iterator of shards in and out.

        ``fn`` must not change a shard in place: unlike ``transform_shard`` this gives it no copy of its own.

        Args:
            fn: the function; importable, or with a small closure.
            unshared: whether everything that ``fn`` yields was made by it, and is kept nowhere else.
        """
        return self._over(self.rdd.mapPartitionsWithIndex(partial(work.run_partition, fn)), self, unshared=unshared)

    @classmethod
    def _over(cls, rdd: RDD[Any], *sources: XShards, unshared: bool = False) -> XShards:
        made = cls(rdd)
        made._sources = sources
        made._unshared = unshared
        return made

    def _shards_per_partition(self) -> list[int]:
        return self.rdd.mapPartitions(work.count).collect()

    def _kind(self) -> Kind:
        """What the first shard is. Looked up once; the shard itself stays where it is."""
        if self._kind_of_first is None:
            found = self._first_of(kind_of)
            if not found:
                raise PlanError("these XShards have no shards, so nothing says what type they are")
            self._kind_of_first = found[0]
        return self._kind_of_first

    def _extreme(self, which: str, name: str) -> Any:
        self._require_columns(f"{which}_values", [name])
        found = self._map_partitions(partial(work.each, partial(work.extreme, which, name))).collect()
        values = [value for value in found if value is not None]
        return (max if which == "max" else min)(values) if values else None

    def _null_counts(self, columns: list[Any]) -> list[int]:
        found = self._map_partitions(partial(work.each, partial(work.null_counts, columns))).collect()
        return [int(total) for total in np.sum(found, axis=0)]

    def _first_of(self, fn: Callable[[Any], Any]) -> list[Any]:
        """``fn`` of the first shard, if there is one."""
        return self.rdd.mapPartitions(partial(work.first, fn)).take(1)

    def _require_frames(self, operation: str) -> list[Any]:
        """The first frame's columns; ``PlanError`` where the first shard is no DataFrame."""
        kind = self._kind()
        if kind.columns is None:
            raise PlanError(f"{operation} works on shards that are a Pandas DataFrame, found {kind.name}")
        return kind.columns

    def _require_columns(self, operation: str, names: Iterable[Any]) -> None:
        check_columns(operation, names, self._require_frames(operation))

    def __repr__(self) -> str:
        return f"XShards({self.num_partitions()} partitions{', cached' if self.is_cached() else ''})"


SparkXShards = XShards


class SharedValue:
    """A value for ``transform_shard`` that travels once to each executor. Made on the driver.

    Raises:
        UnsupportedError: under Spark Connect, which has no broadcasts.
    """

    def __init__(self, data: Any) -> None:
        self._broadcast = spark_context().broadcast(data)

    @property
    def value(self) -> Any:
        """The value, on the driver and in tasks."""
        return self._broadcast.value

    def unpersist(self) -> None:
        """Free the executors' copies. A later use sends the value again."""
        self._broadcast.unpersist()


def _unpersist(rdd: RDD[Any]) -> None:
    # The garbage collector calls this at any time, also after the context's end, when the cache is gone already.
    if rdd.ctx._jsc is not None and rdd.is_cached:
        rdd.unpersist()


def _one_by_one(rdd: RDD[Any]) -> RDD[Any]:
    """The RDD with one shard to a serialized batch.

    ``RDD.zip`` brings both sides to one batch size, 100 where none is known; a hundred shards may be gigabytes.
    """
    from pyspark.serializers import BatchedSerializer, CPickleSerializer

    return rdd._reserialize(BatchedSerializer(CPickleSerializer(), 1))
