"""Rows to seats: a DataFrame with exactly one partition per rank, each row knowing the partition it came from.

A rank gets whole partitions of the user's DataFrame. In classic Spark there is no shuffle, and where there are fewer
partitions than ranks, several ranks read the same one and share its part of each step (``data.feed``). Where partitions
are pieces of Parquet files, ranks are told which, and read them (``data.parquet``). Under Spark Connect the plan's own
RDD cannot be reached, nor the number of its partitions: there a shuffle brings them to their ranks, whole and in order,
and rows for rank 0 to keep in the driver's place come along.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from itertools import cycle, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from firesteel.core.errors import UnsupportedError
from firesteel.core.spec import Batch
from firesteel.core.switches import switch
from firesteel.data.packed import unpack
from firesteel.data.parquet import FileRows, files_of
from firesteel.data.raw import SETTING, RawRows, form_of
from firesteel.data.reading import Reading
from firesteel.data.scan import is_wanted

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Decoder", "Seated", "deal", "gather", "seat", "seat_by_shuffle", "split_guests"]

_PARTITION = "__partition"
_ROW = "__row"
_GUEST = "__guest"


@dataclass(frozen=True)
class Decoder:
    """A task's way from record batches to (partition, batch). ``reading`` is ``None`` for packed blocks."""

    reading: Reading | None
    raw: RawRows | None = None
    """Where rows come as they lie in Spark's memory."""
    files: FileRows | None = None
    """Where tasks read files themselves; what comes are numbers of hands."""
    hands: tuple[tuple[int, ...], ...] = ()
    """The partitions of each."""

    def batches(self, rows: pa.RecordBatch) -> Iterator[tuple[int, Batch]]:
        """Runs of rows of one partition, in order."""
        if self.files is not None:
            assert self.reading is not None
            for hand in rows.column(0).to_pylist():
                for partition in self.hands[hand]:
                    for found in self.files.read(partition):
                        yield partition, self.reading.batch(found, is_encoded=True)
            return
        if self.raw is not None:
            rows = self.raw.read(rows)
        partitions = rows.column(0).to_numpy(zero_copy_only=False)
        if self.reading is None:
            for place, partition in enumerate(partitions):
                yield int(partition), unpack(rows.column(1)[place].as_py(), rows.column(2)[place].as_buffer())
            return
        batch = self.reading.batch(rows, range(1, 1 + len(self.reading.columns)), is_encoded=True)
        edges = [0, *(np.flatnonzero(np.diff(partitions)) + 1).tolist(), len(partitions)]
        for begin, end in pairwise(edges):
            if begin < end:
                yield int(partitions[begin]), {name: values[begin:end] for name, values in batch.items()}


@dataclass(frozen=True)
class Seated:
    """A frame with one partition per rank, and how many partitions its source has."""

    frame: DataFrame
    partitions: int
    decoder: Decoder


def seat(df: DataFrame, expressions: list[Any], decoder: Decoder, world: int) -> Seated:
    """Select ``expressions`` of ``df`` for ``world`` ranks. Driver only; no job, unless adaptive planning needs one.

    ``Seated.partitions`` is 0 when Spark knows already that there are no rows.
    """
    from pyspark.sql import functions

    # Looked at whether or not these rows depend on them: a value that is neither true nor false is told at once.
    is_wanted(df.sparkSession)
    _is_raw(df.sparkSession)
    files = None if decoder.reading is None else files_of(df.select(*expressions))
    if files is not None:
        return _from_files(df.sparkSession, files, decoder, world)
    selected = df.select(functions.spark_partition_id().alias(_PARTITION), *expressions)
    frame, partitions, decoder = gather(selected, decoder, world)
    if 0 < partitions < world:
        copies = -(-world // partitions)
        frame = reduce(lambda left, right: left.union(right), [frame] * copies)
        if partitions * copies > world:
            frame = frame.coalesce(world)
    return Seated(frame, partitions, decoder)


def _from_files(spark: SparkSession, files: FileRows, decoder: Decoder, world: int) -> Seated:
    """Each rank gets the number of its hand, and nothing else."""
    partitions = len(files.partitions)
    hands = deal(partitions, world) if partitions >= world else _shared(partitions, world)
    decoder = replace(decoder, files=files, hands=tuple(map(tuple, hands)))
    return Seated(spark.range(0, world, 1, world), partitions, decoder)


def _shared(partitions: int, world: int) -> list[list[int]]:
    """Fewer partitions than ranks, as often as it takes, in the hands that a coalesce makes of them."""
    total = partitions * -(-world // partitions) if partitions else 0
    edges = [rank * total // world for rank in range(world + 1)]
    return [[place % partitions for place in range(begin, end)] for begin, end in pairwise(edges)]


def gather(selected: DataFrame, decoder: Decoder, most: int) -> tuple[DataFrame, int, Decoder]:
    """The rows in ``most`` partitions, unless there are fewer; how many there are; and how a task reads them.

    Driver only; no job, unless adaptive planning needs one.
    """
    from pyspark.sql import DataFrame

    spark = selected.sparkSession
    raw = None
    if decoder.reading is not None and _is_raw(spark):
        raw = RawRows(tuple(form_of(each.dataType) for each in selected.schema))
        selected = _in_one(selected, raw)
    # The executed plan's own RDD: adaptive planning has then decided how many partitions there are, and the stages
    # it ran for that are not run again. (A coalesce of the logical plan could end up with fewer tasks than ranks.)
    rows = selected._jdf.queryExecution().toRdd()
    partitions = int(rows.getNumPartitions())
    if partitions > most:
        rows = _dealt(spark, rows, deal(partitions, most))
    made = spark._jsparkSession.internalCreateDataFrame(rows, _schema(selected, raw), False)
    frame = DataFrame(made, spark)
    return frame.coalesce(most) if partitions > most else frame, partitions, replace(decoder, raw=raw)


def _is_raw(spark: SparkSession) -> bool:
    return switch(lambda name: spark.conf.get(name, None), SETTING, True)


def _in_one(selected: DataFrame, raw: RawRows) -> DataFrame:
    """The columns that have a form as one, and the others behind it."""
    from pyspark.sql import functions

    names = dict(zip(selected.columns, raw.forms, strict=True))
    row = functions.struct(*(name for name, form in names.items() if form is not None))
    return selected.select(row.alias(_ROW), *(name for name, form in names.items() if form is None))


def _schema(selected: DataFrame, raw: RawRows | None) -> Any:
    """What Spark is to take the rows for: the column that holds most of them is called binary, and moves as it lies."""
    from pyspark.sql.types import BinaryType, StructField, StructType

    if raw is None:
        return selected._jdf.schema()
    others = selected.schema.fields[1:]
    fields = StructType([StructField(_ROW, BinaryType(), False), *others])
    return selected.sparkSession._jsparkSession.parseDataType(fields.json())


def deal(partitions: int, world: int) -> list[list[int]]:
    """The partitions of each rank: dealt to and fro, as many to each as a coalesce to ``world`` takes in a row.

    Spark sorts the pieces of files by size, and of a large row group only one piece has rows: neighbours are alike.
    """
    edges = [rank * partitions // world for rank in range(world + 1)]
    room = [after - before for before, after in pairwise(edges)]
    hands: list[list[int]] = [[] for _ in room]
    there, back = range(world), range(world - 1, -1, -1)
    ranks = (rank for way in cycle((there, back)) for rank in way if len(hands[rank]) < room[rank])
    for partition in range(partitions):
        hands[next(ranks)].append(partition)
    return hands


def _dealt(spark: SparkSession, rows: Any, hands: list[list[int]]) -> Any:
    """The same RDD with its partitions in another order: hand after hand."""
    context = spark.sparkContext
    gateway: Any = context._gateway
    jvm = gateway.jvm
    pruned = gateway.new_array(jvm.org.apache.spark.api.java.JavaRDD, len(hands))
    for rank, hand in enumerate(hands):
        # A set of Scala's is also the function that says what is in it.
        chosen = jvm.scala.jdk.javaapi.CollectionConverters.asScala(jvm.java.util.HashSet(hand))
        pruned[rank] = jvm.org.apache.spark.rdd.PartitionPruningRDD.create(rows, chosen).toJavaRDD()
    return context._jsc.union(pruned).rdd()


def seat_by_shuffle(
    spark: SparkSession, rows: tuple[DataFrame, list[Any]] | None, guests: Mapping[str, DataFrame], world: int
) -> DataFrame:
    """Select the expressions of a DataFrame for ``world`` ranks, with public means alone. Client; no job.

    Partition p goes to rank p modulo ``world``, so that which rows make a step is the same as in classic Spark. Without
    ``rows`` each rank gets one row to be awake for.

    Args:
        spark: a session.
        rows: a DataFrame and expressions over it.
        guests: DataFrames of packed blocks, by name, which all go to rank 0 (``split_guests``).
        world: how many ranks there are.
    """
    from pyspark.sql import functions as f

    if rows is None:
        frame = spark.range(0, world, 1, world).select(f.col("id").cast("int").alias(_PARTITION))
        if not guests:
            return frame  # each row is in its place already
    else:
        df, expressions = rows
        frame = df.select(f.spark_partition_id().alias(_PARTITION), *expressions)
    rank = f.pmod(f.col(_PARTITION), f.lit(world))
    if guests:
        rank = f.when(f.col(_GUEST).isNull(), rank).otherwise(f.lit(0))
    for name, blocks in guests.items():
        packed = blocks.select(f.spark_partition_id().alias(_PARTITION), f.lit(name).alias(_GUEST), "header", "data")
        frame = frame.unionByName(packed, allowMissingColumns=True)
    if not hasattr(frame, "repartitionById"):
        raise UnsupportedError("training on a DataFrame through Spark Connect needs Spark 4.1 or newer")
    return frame.repartitionById(world, rank)


def split_guests(rows: pa.RecordBatch) -> tuple[pa.RecordBatch, Iterator[tuple[str, int, Batch]]]:
    """The rank's own rows, and the guests' blocks with their names and partitions. Runs in a task."""
    import pyarrow.compute as pc

    if _GUEST not in rows.schema.names or rows.column(_GUEST).null_count == rows.num_rows:
        return rows, iter(())
    is_guest = pc.is_valid(rows.column(_GUEST))
    return rows.filter(pc.invert(is_guest)), _blocks(rows.filter(is_guest))


def _blocks(rows: pa.RecordBatch) -> Iterator[tuple[str, int, Batch]]:
    names, partitions = rows.column(_GUEST).to_pylist(), rows.column(_PARTITION).to_pylist()
    for name, partition, header, data in zip(
        names, partitions, rows.column("header"), rows.column("data"), strict=True
    ):
        yield name, partition, unpack(header.as_py(), data.as_buffer())
