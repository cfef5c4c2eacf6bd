"""Rows to seats: a DataFrame with exactly one partition per rank, each row knowing the partition it came from.

No shuffle. A rank gets whole partitions of the user's DataFrame; where there are fewer partitions than ranks,
several ranks read the same one and share its part of each step (``data.feed``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from firesteel.core.spec import Batch
from firesteel.data.packed import unpack
from firesteel.data.reading import Reading

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

__all__ = ["Decoder", "Seated", "seat"]

_PARTITION = "__partition"


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
        batch = self.reading.batch(rows, range(1, 1 + len(self.reading.columns)))
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
