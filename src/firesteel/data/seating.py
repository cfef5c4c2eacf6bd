"""Rows to seats: a DataFrame with exactly one partition per rank, each row knowing the partition it came from.

A rank gets whole partitions of the user's DataFrame. In classic Spark there is no shuffle, and where there are fewer
partitions than ranks, several ranks read the same one and share its part of each step (``data.feed``). Under Spark
Connect the plan's own RDD cannot be reached, nor the number of its partitions: there a shuffle brings them to their
ranks, whole and in order, and rows for rank 0 to keep in the driver's place come along.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from firesteel.core.errors import UnsupportedError
from firesteel.core.spec import Batch
from firesteel.data.packed import unpack
from firesteel.data.reading import Reading

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Decoder", "Seated", "seat", "seat_by_shuffle", "split_guests"]

_PARTITION = "__partition"
_GUEST = "__guest"


@dataclass(frozen=True)
class Decoder:
    """A task's way from record batches to (partition, batch). ``reading`` is ``None`` for packed blocks."""

    reading: Reading | None

    def batches(self, rows: pa.RecordBatch) -> Iterator[tuple[int, Batch]]:
        """Runs of rows of one partition, in order."""
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
    from pyspark.sql import DataFrame, functions

    spark = df.sparkSession
    selected = df.select(functions.spark_partition_id().alias(_PARTITION), *expressions)
    # The executed plan's own RDD: adaptive planning has then decided how many partitions there are, and the stages
    # it ran for that are not run again. (A coalesce of the logical plan could end up with fewer tasks than ranks.)
    rows = selected._jdf.queryExecution().toRdd()
    partitions = int(rows.getNumPartitions())
    fixed = DataFrame(
        spark._jsparkSession.internalCreateDataFrame(rows, selected._jdf.schema(), False),
        spark,
    )
    if 0 < partitions < world:
        copies = -(-world // partitions)
        fixed = reduce(lambda left, right: left.union(right), [fixed] * copies)
        partitions_now = partitions * copies
    else:
        partitions_now = partitions
    if partitions_now > world:
        fixed = fixed.coalesce(world)
    return Seated(fixed, partitions, decoder)


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
