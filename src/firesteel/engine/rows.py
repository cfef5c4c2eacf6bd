"""Predictions as an RDD with one element to a row, lazily, in the order and the partitions of the rows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from firesteel.cluster.preflight import is_remote
from firesteel.core import registry
from firesteel.core.errors import UnsupportedError
from firesteel.core.spec import rows_of
from firesteel.data.packed import PACKED_SCHEMA, pack, unpack
from firesteel.data.reading import Reading
from firesteel.data.sources import Frame, Local, Source, Streamed
from firesteel.engine.answers import Read, local_frame, read_packed
from firesteel.engine.gather import packed_batch
from firesteel.engine.job import Stream
from firesteel.engine.scorer import Scorer

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import RDD
    from pyspark.sql import SparkSession

__all__ = ["score_each"]


def score_each(spark: SparkSession, scorer: Scorer, source: Source, stream: Stream | None = None) -> RDD[Any]:
    """One prediction for each row: an array, or a list of them where the program has several outputs.

    ``stream`` stands for a streamed ``source``, whose rows come in one partition.
    """
    if is_remote(spark):
        raise UnsupportedError("predictions as an RDD need RDDs, and Spark Connect has none; take the DataFrame form")
    if isinstance(source, Streamed):
        assert stream is not None
        return spark.sparkContext.parallelize([0], 1).mapPartitions(partial(_score_stream, scorer, stream))
    read: Read
    if isinstance(source, Frame):
        df, read = source.df.select(*source.reading.select(source.df)), partial(_read_columns, source.reading)
    elif isinstance(source, Local):
        df, read = local_frame(spark, source.batch, spark.sparkContext.defaultParallelism)
    else:
        df, read = source.df, read_packed
    blocks = df.mapInArrow(partial(_score_blocks, scorer, read), PACKED_SCHEMA)
    return blocks.rdd.flatMap(_each)


def _read_columns(reading: Reading, batches: Iterator[pa.RecordBatch]) -> Iterator[Any]:
    return (reading.batch(rows) for rows in batches if rows.num_rows)


def _score_blocks(scorer: Scorer, read: Read, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    blocks = read(batches)
    first = next(blocks, None)
    if first is None:
        return  # an empty partition need not wake anybody
    with scorer.open() as score:
        block: Any = first
        while block is not None:
            yield packed_batch([score(block)])
            block = next(blocks, None)


def _each(block: Any) -> Iterator[Any]:
    return _rows(unpack(block["header"], bytes(block["data"])))


def _rows(outputs: Any) -> Iterator[Any]:
    columns = list(outputs.values())
    for row in range(rows_of(outputs)):
        # Copies, for a row must not keep its whole block in memory.
        found = [column[row] if column.dtype == object else np.array(column[row]) for column in columns]
        yield found[0] if len(found) == 1 else found


def _score_stream(scorer: Scorer, stream: Stream, _: Iterator[int]) -> Iterator[Any]:
    framework: Any = registry.framework(scorer.framework)
    with scorer.open() as score:
        source = stream.source(stream.config, stream.batch_size) if stream.is_creator else stream.source
        for batch in framework.stream(source, stream.batch_size, 0, 0):
            yield from _rows(unpack(*pack(score(batch))))
