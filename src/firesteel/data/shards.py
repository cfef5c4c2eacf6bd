"""XShards: a distributed list of Python objects, so that single-machine code runs on each of them where it lies.

An ``XShards`` wraps an RDD; each element is a *shard*: a pandas DataFrame, an ndarray, a dict or tuple of ndarrays,
a list, a number, anything. Below the class come, in this order, what tasks do with shards, with rows, and with
Arrow. All of these are importable functions, so that a closure carries its parameters and nothing else.

pyspark, pandas and pyarrow are imported where they are used: loading this module loads none of them.
"""

from __future__ import annotations

import copy
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any

import numpy as np

from firesteel.core.errors import PlanError, SchemaError, UnsupportedError
from firesteel.data import structure

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark import RDD, SparkContext, StorageLevel
    from pyspark.sql import DataFrame

__all__ = ["SharedValue", "SparkXShards", "XShards"]

_BATCH_ROWS = 10_000
"""Rows in one Arrow batch on its way to Spark: Spark's own default, and far from the 2 GB that a cell may hold."""


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
        _refuse_connect()
        from pyspark import RDD

        if not isinstance(rdd, RDD):
            raise PlanError(f"XShards needs an RDD whose elements are the shards, found {_type_name(rdd)}")
        self.rdd = rdd
        # Whether every use of the RDD makes shards that nobody else can see (see `_own_copies`).
        self._unshared = False
        # While a shard list that was not computed yet is alive, so are the caches that it will be computed from.
        self._sources: tuple[XShards, ...] = ()
        self._release: weakref.finalize[[RDD[Any]], XShards] | None = None
        self._kind_of_first: _Kind | None = None

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
        _refuse_connect()
        row_count = structure.rows(data)
        if row_count == 0:
            raise PlanError("there is nothing to partition: the data has no rows")
        if num_shards is not None:
            _check_positive("num_shards", num_shards)
            if num_shards > row_count:
                raise PlanError(f"the number of shards ({num_shards}) is larger than the number of rows ({row_count})")
        context = _spark_context()
        count = min(_task_slots(context), row_count) if num_shards is None else int(num_shards)
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
            raise _connect_error()
        _refuse_connect()
        from pyspark.sql import DataFrame

        if not isinstance(df, DataFrame):
            raise PlanError(f"from_spark_df needs a Spark DataFrame, found {_type_name(df)}")
        if shard_size is not None:
            _check_positive("shard_size", shard_size)
        if index_col is not None:
            _check_columns("from_spark_df", [index_col], df.columns)
        dress = partial(_dress, squeeze, index_col, _dtype_by_name(dtype, df.columns))
        zone = _session_zone(df.sparkSession)
        packed = _plain_columns(df).mapInArrow(_pack_batches, "batch binary").rdd
        unpack = partial(_unpack_frames, df.columns, zone, shard_size, dress)
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
        return self._map_partitions(partial(_transform, func, args, not self._unshared))

    def collect(self) -> list[Any]:
        """All shards, on the driver, in partition order."""
        return self.rdd.collect()

    def first(self) -> Any:
        """The first shard, on the driver."""
        found = self.rdd.take(1)
        if not found:
            raise PlanError("these XShards have no shards")
        return found[0]

    def take(self, n: int) -> list[Any]:
        """The first ``n`` shards, on the driver, in partition order."""
        return self.rdd.take(n)

    def head(self, n: int = 5) -> Any:
        """The first ``n`` rows of the first shard: pandas, arrays, lists."""
        found = self.rdd.map(partial(_head, n)).take(1)
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
        return int(self.rdd.map(_length).sum())

    def __getitem__(self, key: Any) -> XShards:
        return self._map_partitions(partial(_each, partial(_select_key, key)))

    def split(self) -> list[XShards]:
        """One XShards for each position, where shards are lists or tuples of one length above 1; else itself, alone.

        Raises:
            PlanError: the lengths differ.
        """
        lengths = set(self.rdd.map(_split_length).distinct().collect())
        if len(lengths) > 1:
            raise PlanError(f"cannot split: shards have a different split length: {sorted(lengths)}")
        if not lengths or max(lengths) < 2:
            return [self]
        return [self._map_partitions(partial(_each, partial(_item, position))) for position in range(max(lengths))]

    def zip(self, other: XShards) -> XShards:
        """Pairs of shards, partition by partition. Counts both sides when called, so that a mismatch shows here.

        Raises:
            PlanError: not an XShards, or other numbers of partitions or of shards in them.
        """
        if not isinstance(other, XShards):
            raise PlanError(f"other should be a SparkXShards, found {_type_name(other)}")
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
        _check_positive("num_partitions", num_partitions)
        measured: list[list[tuple[str, int]]] = self.rdd.mapPartitions(_measure).collect()
        kinds = {kind for shards in measured for kind, _ in shards}
        # Where kinds differ nothing can be joined, so shards stay what they are.
        cuts = len(kinds) == 1 and kinds != {_WHOLE}
        sizes = [sum(count if cuts else 1 for _, count in shards) for shards in measured]
        starts = [0, *accumulate(sizes)]
        boundaries = structure.even_boundaries(starts[-1], int(num_partitions))
        pieces = self.rdd.mapPartitionsWithIndex(partial(_scatter, starts, boundaries, cuts))
        gathered = pieces.partitionBy(int(num_partitions), int).mapPartitions(partial(_gather, cuts))
        return self._over(gathered, self)

    def stack_feature_labels(self) -> XShards:
        """The ``(feature, label)`` pairs of each partition as one ``{"x": …, "y": …}`` of float32 arrays.

        ``x`` is ``(pairs, *feature shape)``, ``y`` is ``(pairs, *label shape)``. An empty partition gives nothing.
        """
        kind = self._kind()
        if not kind.is_pair:
            raise PlanError(f"stack_feature_labels works on shards that are (feature, label) pairs, found {kind.name}")
        return self._map_partitions(_stack_pairs, unshared=True)

    # Shards of pandas

    def select(self, cols: str | list[str]) -> XShards:
        """Frames with these columns only; one name gives frames of one column, where ``shards[name]`` gives Series."""
        names = [cols] if isinstance(cols, str) else cols
        if not isinstance(names, list):
            raise PlanError(f"select needs a column name or a list of them, found {_type_name(cols)}")
        self._require_columns("select", names)
        return self._map_partitions(partial(_each, partial(_item, names)))

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
        return self._map_partitions(partial(_each, partial(_assemble, featureCols, labelCols)), unshared=True)

    def concat_to_pdf(self, axis: int | str = 0) -> pd.DataFrame:
        """All frames as one, on the driver. The shards' own indexes are kept."""
        self._require_frames("concat_to_pdf")
        return _concat(self.collect(), axis)

    def get_schema(self) -> dict[str, Any] | None:
        """``{"columns": list, "dtypes": Series}`` of the first shard; ``None`` where that is no DataFrame."""
        kind = self._kind()
        return None if kind.columns is None else {"columns": list(kind.columns), "dtypes": kind.dtypes}

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
        zone = _session_zone(session)
        schema = _one_schema(self.rdd.map(partial(_arrow_types, zone)).collect())
        try:
            spark_schema = from_arrow_schema(schema)
        except TypeError as error:  # pyspark's words name the type
            raise SchemaError(f"to_spark_df: Spark has no such type: {error}") from error
        packed = self._map_partitions(partial(_pack_frames, schema, zone)).rdd
        rows = session.createDataFrame(packed, "batch binary", verifySchema=False)
        return rows.mapInArrow(_unpack_batches, spark_schema)

    # For other rooms and for the operations above

    def _map_partitions(self, fn: Callable[[int, Iterator[Any]], Iterable[Any]], *, unshared: bool = False) -> XShards:
        """Lazily ``fn(partition, shards)`` for each partition, in tasks: an iterator of shards in and out.

        ``fn`` must not change a shard in place: unlike ``transform_shard`` this gives it no copy of its own.

        Args:
            fn: the function; importable, or with a small closure.
            unshared: whether everything that ``fn`` yields was made by it, and is kept nowhere else.
        """
        return self._over(self.rdd.mapPartitionsWithIndex(partial(_run_partition, fn)), self, unshared=unshared)

    @classmethod
    def _over(cls, rdd: RDD[Any], *sources: XShards, unshared: bool = False) -> XShards:
        made = cls(rdd)
        made._sources = sources
        made._unshared = unshared
        return made

    def _shards_per_partition(self) -> list[int]:
        return self.rdd.mapPartitions(_count).collect()

    def _kind(self) -> _Kind:
        """What the first shard is. Looked up once; the shard itself stays where it is."""
        if self._kind_of_first is None:
            found = self.rdd.map(_kind_of).take(1)
            if not found:
                raise PlanError("these XShards have no shards, so nothing says what type they are")
            self._kind_of_first = found[0]
        return self._kind_of_first

    def _require_frames(self, operation: str) -> list[Any]:
        """The first frame's columns; ``PlanError`` where the first shard is no DataFrame."""
        kind = self._kind()
        if kind.columns is None:
            raise PlanError(f"{operation} works on shards that are a Pandas DataFrame, found {kind.name}")
        return kind.columns

    def _require_columns(self, operation: str, names: Iterable[Any]) -> None:
        _check_columns(operation, names, self._require_frames(operation))

    def __repr__(self) -> str:
        return f"XShards({self.num_partitions()} partitions{', cached' if self.is_cached() else ''})"


SparkXShards = XShards


class SharedValue:
    """A value for ``transform_shard`` that travels once to each executor. Made on the driver.

    Raises:
        UnsupportedError: under Spark Connect, which has no broadcasts.
    """

    def __init__(self, data: Any) -> None:
        self._broadcast = _spark_context().broadcast(data)

    @property
    def value(self) -> Any:
        """The value, on the driver and in tasks."""
        return self._broadcast.value

    def unpersist(self) -> None:
        """Free the executors' copies. A later use sends the value again."""
        self._broadcast.unpersist()


# The driver's side


def _connect_error() -> UnsupportedError:
    return UnsupportedError(
        "XShards needs RDDs, and Spark Connect has none. A Spark DataFrame works under Spark Connect: pass it "
        "where you would pass the XShards, with feature_cols and label_cols."
    )


def _refuse_connect() -> None:
    from pyspark.sql.utils import is_remote

    if is_remote():
        raise _connect_error()


def _spark_context() -> SparkContext:
    _refuse_connect()
    from pyspark import SparkContext

    return SparkContext.getOrCreate()


def _task_slots(context: SparkContext) -> int:
    """How many tasks can run at the same time now; what the configuration says while no executor is there yet."""
    # Not defaultParallelism alone: a user may have set that to any number, and it knows nothing of spark.task.cpus.
    spark = context._jsc.sc()
    slots = spark.maxNumConcurrentTasks(spark.resourceProfileManager().defaultResourceProfile())
    return int(slots) or context.defaultParallelism


def _session_zone(session: Any) -> str:
    return str(session.conf.get("spark.sql.session.timeZone"))


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


def _plain_columns(df: DataFrame) -> DataFrame:
    """The columns under names that are their positions, vectors as arrays.

    ``mapInArrow`` looks its columns up by name, and fails for one with a dot in it or for two of one name.
    """
    from pyspark.ml.functions import vector_to_array
    from pyspark.ml.linalg import VectorUDT
    from pyspark.mllib.linalg import VectorUDT as OldVectorUDT
    from pyspark.sql import functions as F  # noqa: N812 (everybody's name for it)

    fields = df.schema.fields
    numbered = df.toDF(*(str(position) for position in range(len(fields))))
    lists = {}
    for position, field in enumerate(fields):
        if isinstance(field.dataType, (VectorUDT, OldVectorUDT)):
            column = F.col(str(position))
            lists[str(position)] = F.when(column.isNotNull(), vector_to_array(column))  # which refuses null
    return numbered.withColumns(lists)


def _dtype_by_name(dtype: Any, columns: Sequence[str]) -> Any:
    if not isinstance(dtype, dict):
        return dtype
    by_name = {}
    for key, kind in dtype.items():
        name = columns[key] if isinstance(key, int) and 0 <= key < len(columns) else key
        if name not in columns:
            raise PlanError(f"dtype: column {key!r} is not in current dataframe; there are: {_listed(columns)}")
        by_name[name] = kind
    return by_name


def _check_positive(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise PlanError(f"{name} must be a positive int, found {value!r}")


def _check_columns(operation: str, names: Iterable[Any], columns: Sequence[Any]) -> None:
    for name in names:
        if name not in columns:
            raise SchemaError(
                f"{operation}: column {name!r} does not exist; there are: {_listed(columns)}",
                column=str(name),
                expected=_listed(columns),
            )


def _listed(names: Iterable[Any]) -> str:
    return ", ".join(str(name) for name in names) or "none"


def _type_name(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


# A task's side: shards


@dataclass(frozen=True)
class _Kind:
    """What a shard is, without the shard. ``columns`` and ``dtypes`` are a DataFrame's."""

    name: str
    is_pair: bool = False
    columns: list[Any] | None = None
    dtypes: Any = None


def _kind_of(shard: Any) -> _Kind:
    if _is_frame(shard):
        return _Kind(_type_name(shard), columns=list(shard.columns), dtypes=shard.dtypes)
    return _Kind(_type_name(shard), is_pair=isinstance(shard, (tuple, list)) and len(shard) == 2)


def _is_frame(value: object) -> bool:
    # Whoever holds a DataFrame has loaded pandas; asking must not load it.
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, pandas.DataFrame)


def _is_series(value: object) -> bool:
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, pandas.Series)


def _run_partition(
    fn: Callable[[int, Iterator[Any]], Iterable[Any]], partition: int, shards: Iterator[Any]
) -> Iterator[Any]:
    try:
        yield from fn(partition, shards)
    except Exception as error:
        # A note keeps the function's own exception and traceback, and Spark prints it with them.
        note = f"This happened in partition {partition} of an XShards."
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
        raise


def _each(fn: Callable[[Any], Any], partition: int, shards: Iterator[Any]) -> Iterator[Any]:
    return map(fn, shards)


def _transform(
    func: Callable[..., Any], args: tuple[Any, ...], copies: bool, partition: int, shards: Iterator[Any]
) -> Iterator[Any]:
    for shard in _own_copies(shards) if copies else shards:
        yield func(shard, *args)


def _own_copies(shards: Iterator[Any]) -> Iterator[Any]:
    """Each shard as a copy that its next user may change.

    Spark unpickles a cached shard anew for each use, but shards can share memory all the same: one object that was
    parallelized twice comes out of one pickle as one object, and an earlier function may have returned something that
    stays in this Python process, such as a ``SharedValue``'s value, where later jobs would see the change.
    """
    for shard in shards:
        try:
            own = copy.deepcopy(shard)
        except Exception:  # noqa: BLE001 (any class may refuse in its own way)
            own = shard  # what cannot be copied cannot be cached either: it was made for this use
        yield own


def _head(n: int, shard: Any) -> tuple[str, Any]:
    """The type's name and the first rows, or ``None`` for a shard without rows."""
    if _is_frame(shard) or _is_series(shard):
        return _type_name(shard), shard.head(n)
    has_rows = isinstance(shard, list) or (isinstance(shard, np.ndarray) and shard.ndim > 0)
    return _type_name(shard), shard[:n] if has_rows else None


def _length(shard: Any) -> int:
    try:
        return len(shard)
    except TypeError:
        return 1


def _count(shards: Iterable[Any]) -> Iterator[int]:
    yield sum(1 for _ in shards)


def _item(key: Any, shard: Any) -> Any:
    return shard[key]


def _select_key(key: Any, shard: Any) -> Any:
    # NumPy's scalars have a __getitem__ that works for none of their users.
    if not hasattr(shard, "__getitem__") or (isinstance(shard, np.generic) and not isinstance(shard, np.void)):
        raise PlanError(f"No selection operation on shards of type {_type_name(shard)}; the key was {key!r}")
    try:
        return shard[key]
    except KeyError:
        keys = shard.columns if _is_frame(shard) else shard.keys() if hasattr(shard, "keys") else ()
        raise PlanError(f"Invalid key {key!r}; there are: {_listed(keys)}") from None


def _split_length(shard: Any) -> int:
    return len(shard) if isinstance(shard, (list, tuple)) else 1


def _stack_pairs(partition: int, shards: Iterator[Any]) -> Iterator[Any]:
    features, labels = [], []
    for shard in shards:
        if not isinstance(shard, (tuple, list)) or len(shard) != 2:
            raise PlanError(f"stack_feature_labels works on (feature, label) pairs, found {_type_name(shard)}")
        features.append(np.asarray(shard[0], dtype=np.float32))
        labels.append(np.asarray(shard[1], dtype=np.float32))
    if features:
        yield {"x": np.stack(features), "y": np.stack(labels)}


def _assemble(feature_columns: list[str], label_columns: list[str], frame: pd.DataFrame) -> dict[str, Any]:
    # Not frame[columns].to_numpy(): that makes objects of numbers beside booleans.
    x = np.stack([frame[name].to_numpy() for name in feature_columns], axis=1)  # (rows, features)
    y = np.stack([frame[name].to_numpy() for name in label_columns], axis=1)  # (rows, labels)
    return {"x": x, "y": y}


# A task's side: rows

_WHOLE = ""
"""The row kind of a shard that has no rows to cut."""


def _row_kind(shard: Any) -> str:
    """Shards of one kind can be joined."""
    if _is_frame(shard):
        return "frame"
    if _is_series(shard):
        return "series"
    if isinstance(shard, list):
        return "list"
    if isinstance(shard, np.ndarray):
        return "array" if shard.ndim > 0 else _WHOLE
    if isinstance(shard, (dict, tuple)) and structure.is_structure(shard):
        return "structure"
    return _WHOLE


def _row_count(shard: Any) -> int:
    return structure.rows(shard) if isinstance(shard, (dict, tuple)) else len(shard)


def _slice_rows(shard: Any, start: int, stop: int) -> Any:
    if _is_frame(shard) or _is_series(shard):
        return shard.iloc[start:stop]
    if isinstance(shard, (list, np.ndarray)):
        return shard[start:stop]
    return structure.cut(shard, [start, stop])[0]


def _join_rows(pieces: list[Any]) -> Any:
    first = pieces[0]
    if len(pieces) == 1:
        return first
    if _is_frame(first) or _is_series(first):
        return _concat(pieces)
    if isinstance(first, list):
        return list(chain.from_iterable(pieces))
    return structure.join(pieces)


def _measure(shards: Iterable[Any]) -> Iterator[list[tuple[str, int]]]:
    measured = []
    for shard in shards:
        kind = _row_kind(shard)
        measured.append((kind, 1 if kind == _WHOLE else _row_count(shard)))
    yield measured


def _scatter(
    starts: list[int], boundaries: list[int], cuts: bool, partition: int, shards: Iterator[Any]
) -> Iterator[tuple[int, tuple[int, Any]]]:
    """``(target partition, (position, piece))``: positions count rows over all partitions, or whole shards."""
    start = starts[partition]
    target = 0
    for shard in shards:
        begin, end = start, start + (_row_count(shard) if cuts else 1)
        if boundaries[-1] == 0:  # no rows anywhere: one empty shard still tells columns and dtypes
            yield 0, (partition, shard)
        while start < end:
            while boundaries[target + 1] <= start:
                target += 1
            stop = min(end, boundaries[target + 1])
            yield target, (start, _slice_rows(shard, start - begin, stop - begin) if cuts else shard)
            start = stop


def _gather(cuts: bool, pieces: Iterator[tuple[int, tuple[int, Any]]]) -> Iterator[Any]:
    ordered = [piece for _, piece in sorted((placed for _, placed in pieces), key=lambda placed: placed[0])]
    if not ordered or not cuts:
        yield from ordered
    else:
        yield _join_rows(ordered)


def _concat(pieces: list[Any], axis: int | str = 0) -> Any:
    """``pandas.concat`` that keeps categorical columns categorical, also where shards have other categories."""
    import pandas as pd

    if axis in (1, "columns"):
        return pd.concat(pieces, axis=axis)
    if _is_series(pieces[0]):
        return pd.concat(_with_one_category_dtype(pieces))
    names = [name for name, dtype in pieces[0].dtypes.items() if isinstance(dtype, pd.CategoricalDtype)]
    if names and all(piece.columns.is_unique and set(names) <= set(piece.columns) for piece in pieces):
        columns = {name: _with_one_category_dtype([piece[name] for piece in pieces]) for name in names}
        pieces = [
            piece.assign(**{name: columns[name][position] for name in names}) for position, piece in enumerate(pieces)
        ]
    return pd.concat(pieces)


def _with_one_category_dtype(columns: list[Any]) -> list[Any]:
    import pandas as pd

    dtypes = [column.dtype for column in columns]
    unordered = all(isinstance(dtype, pd.CategoricalDtype) and not dtype.ordered for dtype in dtypes)
    if not unordered or all(dtype == dtypes[0] for dtype in dtypes):
        return columns  # orders that differ have no common one: pandas falls back to objects
    categories = pd.api.types.union_categoricals(columns).categories
    return [column.cat.set_categories(categories) for column in columns]


# A task's side: Arrow. Batches travel inside binary cells, one cell a batch, so no Python object is made for a row.


def _pack_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for batch in batches:
        if batch.num_rows:
            yield pa.RecordBatch.from_arrays([pa.array([_to_bytes(batch)], pa.binary())], names=["batch"])


def _unpack_batches(cells: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for batch in cells:
        for cell in batch.column(0):
            yield from pa.ipc.open_stream(cell.as_buffer())


def _to_bytes(batch: pa.RecordBatch) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return, unused-ignore]


def _unpack_frames(
    names: list[str], zone: str, shard_size: int | None, dress: Callable[[pd.DataFrame], Any], cells: Iterator[Any]
) -> Iterator[Any]:
    import pyarrow as pa

    waiting: list[pa.RecordBatch] = []
    waiting_rows = 0
    for cell in cells:
        for batch in pa.ipc.open_stream(pa.py_buffer(cell[0])):
            waiting.append(batch)
            waiting_rows += batch.num_rows
        while shard_size is not None and waiting_rows >= shard_size:
            table = pa.Table.from_batches(waiting)
            yield dress(_to_frame(table.slice(0, shard_size), names, zone))
            waiting = table.slice(shard_size).to_batches()
            waiting_rows -= shard_size
    if waiting_rows:
        yield dress(_to_frame(pa.Table.from_batches(waiting), names, zone))


def _dress(squeeze: bool, index_col: str | None, dtype: Any, frame: pd.DataFrame) -> Any:
    if dtype is not None:
        frame = frame.astype(dtype)
    if index_col is not None:
        frame = frame.set_index(index_col)
    return frame.iloc[:, 0] if squeeze and frame.shape[1] == 1 else frame


def _to_frame(table: pa.Table, names: list[str], zone: str) -> pd.DataFrame:
    """A frame that owns its memory, with pandas' usual dtypes."""
    import pandas as pd
    import pyarrow as pa

    series = []
    for name, column in zip(names, table.columns, strict=True):
        if pa.types.is_nested(column.type):
            cells = [_plain(cell, column.type) for cell in column.to_pylist()]
            values = pd.Series(cells, dtype=object)
        else:
            values = column.to_pandas(coerce_temporal_nanoseconds=True)
        if isinstance(values.dtype, pd.DatetimeTZDtype):
            values = values.dt.tz_convert(zone).dt.tz_localize(None)
        series.append(values.rename(name))
    # Joining columns copies them: Arrow's own buffers are read-only, and shards may be changed in place.
    return pd.concat(series, axis=1, copy=True)


def _plain(cell: Any, kind: pa.DataType) -> Any:
    """Arrow's Python value with dicts for maps, where it has lists of pairs."""
    import pyarrow as pa

    if cell is None or not pa.types.is_nested(kind):
        return cell
    if pa.types.is_map(kind):
        return {key: _plain(value, kind.item_type) for key, value in cell}
    if pa.types.is_struct(kind):
        return {field.name: _plain(cell[field.name], field.type) for field in kind}
    return [_plain(value, kind.value_type) for value in cell] if pa.types.is_nested(kind.value_type) else cell


def _pack_frames(
    schema: pa.Schema, zone: str, partition: int, frames: Iterator[pd.DataFrame]
) -> Iterator[tuple[bytes]]:
    import pyarrow as pa

    for frame in frames:
        arrays = [_to_arrow(_column(frame, field.name), zone, field.type) for field in schema]
        for batch in pa.Table.from_arrays(arrays, schema=schema).to_batches(max_chunksize=_BATCH_ROWS):
            yield (_to_bytes(batch),)


def _arrow_types(zone: str, frame: Any) -> dict[str, pa.DataType] | SchemaError:
    """Each column's type as Spark will have it. An error is returned, not raised, so that the driver can raise it."""
    import pyarrow as pa

    if not _is_frame(frame):
        return SchemaError(f"to_spark_df: found a shard of type {_type_name(frame)} among Pandas DataFrames")
    names = [str(name) for name in frame.columns]
    if len(set(names)) < len(names):
        return SchemaError(f"to_spark_df: a shard has two columns of one name; its columns: {_listed(names)}")
    types = {}
    for name in names:
        column = _column(frame, name)
        try:
            types[name] = _to_arrow(column, zone).type
        except (pa.ArrowException, TypeError, ValueError) as error:
            return SchemaError(
                f"to_spark_df: column {name!r} of dtype {column.dtype} has no single Arrow type: {error}",
                column=name,
                found=str(column.dtype),
            )
    return types


def _column(frame: pd.DataFrame, name: str) -> pd.Series:
    """The column whose name reads so: Spark's names are strings, pandas' need not be."""
    position = [str(other) for other in frame.columns].index(name)
    return frame.iloc[:, position]


def _to_arrow(column: pd.Series, zone: str, kind: pa.DataType | None = None) -> pa.Array:
    """The column as Spark takes it; NaN, NaT and None are null. Without ``kind`` its type is found from the values."""
    import pyarrow as pa

    if column.dtype == object:  # Arrow takes cells that are arrays of one dimension, and lists of any depth
        column = column.map(lambda cell: cell.tolist() if isinstance(cell, np.ndarray) and cell.ndim != 1 else cell)
    array = pa.array(column, from_pandas=True)
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_timestamp(array.type) and array.type.tz is None:
        # An hour that the clock shows twice, or never, has no right answer; these are Spark's own and the next one.
        local = array.to_pandas().dt.tz_localize(zone, ambiguous=False, nonexistent="shift_forward")
        array = pa.array(local, from_pandas=True)
    kind = _spark_type(array.type) if kind is None else kind
    # Not safe for times only: Spark has microseconds, pandas nanoseconds.
    return array.cast(kind, safe=not pa.types.is_temporal(kind))


def _spark_type(kind: pa.DataType) -> pa.DataType:
    """The Arrow type that Spark has for this one: same values, sometimes wider."""
    import pyarrow as pa

    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC")
    if pa.types.is_duration(kind):
        return pa.duration("us")
    if pa.types.is_list(kind):
        return pa.list_(_spark_type(kind.value_type))
    wider = {
        pa.uint8(): pa.int16(),
        pa.uint16(): pa.int32(),
        pa.uint32(): pa.int64(),
        pa.float16(): pa.float32(),
        pa.date64(): pa.date32(),
    }
    return wider.get(kind, kind)


def _one_schema(found: list[dict[str, pa.DataType] | SchemaError]) -> pa.Schema:
    """The schema that all shards have (driver)."""
    import pyarrow as pa

    merged: dict[str, pa.DataType] = {}
    for types in found:
        if isinstance(types, SchemaError):
            raise types
        if not merged:
            merged = dict(types)
        if types.keys() != merged.keys():
            raise SchemaError(
                f"to_spark_df: shards have other columns: {_listed(merged)} and {_listed(types)}",
                expected=_listed(merged),
                found=_listed(types),
            )
        for name, kind in types.items():
            one = _one_type(merged[name], kind)
            if one is None:
                raise SchemaError(
                    f"to_spark_df: column {name!r} has other types: {merged[name]} and {kind}",
                    column=name,
                    expected=str(merged[name]),
                    found=str(kind),
                )
            merged[name] = one
    return pa.schema(list(merged.items()))


def _one_type(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    import pyarrow as pa

    if left == right or pa.types.is_null(right):
        return left
    if pa.types.is_null(left):
        return right
    if pa.types.is_list(left) and pa.types.is_list(right):
        inner = _one_type(left.value_type, right.value_type)
        return None if inner is None else pa.list_(inner)
    if {pa.types.is_integer(left), pa.types.is_integer(right)} == {True, False} and pa.float64() in (left, right):
        return pa.float64()
    return None
