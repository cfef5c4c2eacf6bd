"""Files in the order of their names, cut where Spark cuts them, each piece in its place.

Spark packs files into partitions by size, the largest first, so rows come in no order that a user could name. Every
row knows its file and block, though. One cheap query says which pieces there are; where Spark's partitions happen to
be these pieces in order (one file, always) they are taken as they are; otherwise the packed batches move, once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np

from firesteel.core.errors import PlanError
from firesteel.data.shards import frames

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import RDD
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["Piece", "Plan", "as_path", "in_order", "list_files", "measure", "one_file", "plan", "said", "spark_errors"]

_PACKED = "piece long, place long, cell binary"
_GLOB = re.compile(r"([\\{}\[\]*?])")


@dataclass(frozen=True)
class Piece:
    """A part of a file that one task reads, and whether the file begins there."""

    path: str
    first: bool


@dataclass(frozen=True)
class Plan:
    """The pieces in order, and the partition that each one belongs to.

    Attributes:
        pieces: in the order of names, then of places in the file.
        partitions: for each piece; ascending.
        keys: for each piece, the number that its rows carry.
        stays: whether Spark's own partitions are these, in this order.
    """

    pieces: tuple[Piece, ...]
    partitions: tuple[int, ...]
    keys: tuple[int, ...] = ()
    stays: bool = False


def list_files(spark: SparkSession, reader: str, paths: Sequence[str], options: dict[str, Any]) -> list[str]:
    """The files that Spark finds, sorted by name (driver; no job).

    Raises:
        PlanError: a path that does not exist, or no file at all.
    """
    from pyspark.errors import AnalysisException

    try:
        # Spark's reader of text, for that lists whatever the content.
        found = spark.read.options(**options).text(list(paths)).inputFiles()
    except AnalysisException as error:
        raise PlanError(f"{reader}: {said(error)}") from error
    if not found:
        raise PlanError(f"{reader}: no file found under {', '.join(paths)} (names with _ or . in front do not count)")
    return sorted(map(unquote, found))


def as_path(file: str) -> str:
    """A file's name as Spark takes it, where some characters would make a pattern of it."""
    return _GLOB.sub(r"\\\1", file)


def said(error: Exception) -> str:
    """What Spark said, in a line, without its codes; of a failed job what the task said."""
    raised = getattr(error, "java_exception", None)  # py4j's own error, for what pyspark has no class for
    lines = str(error if raised is None else raised.getMessage()).strip().splitlines() or [type(error).__name__]
    coded = re.search(r"\[[A-Z0-9_.]+\]\s*(.*?)\s*(?:SQLSTATE: \w+)?$", lines[0])
    return coded[1] if coded and coded[1] else lines[0]


def spark_errors() -> tuple[type[Exception], ...]:
    """What a Spark job raises on the driver."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return (PySparkException, Py4JError)


def one_file(path: str, partitions: int) -> Plan:
    """The plan for the only file: Spark cuts it in order, and nothing moves."""
    pieces = tuple(Piece(path, first=number == 0) for number in range(partitions))
    return Plan(pieces, tuple(range(partitions)), stays=True)


def measure(df: DataFrame, counted: Sequence[Column] = ()) -> list[Any]:
    """For each piece of a file that has rows: path, start, Spark's partition, key, rows; and non-nulls of columns.

    Runs a job that reads what it must to count.
    """
    from pyspark.sql import functions as F  # noqa: N812

    by = [
        F.col("_metadata.file_path").alias("path"),
        F.col("_metadata.file_block_start").alias("start"),
        F.spark_partition_id().alias("partition"),
        _key().alias("key"),
    ]
    counts = [F.count(column).alias(f"count {number}") for number, column in enumerate(counted)]
    return df.groupBy(*by).agg(F.count(F.lit(1)).alias("rows"), *counts).collect()


def _key() -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    # A number, for a path beside each row would outweigh the row.
    return F.xxhash64("_metadata.file_path", "_metadata.file_block_start")


def plan(found: Iterable[Sequence[Any]], partitions: int, slots: int) -> Plan:
    """Where each piece goes: alone where there are no more files than slots, else with its neighbours.

    Args:
        found: what ``measure`` found.
        partitions: how many Spark made.
        slots: how many tasks run at the same time.
    """
    rows = sorted((unquote(path), start, partition, key, count) for path, start, partition, key, count, *_ in found)
    keys = tuple(key for _, _, _, key, _ in rows)
    if len(set(keys)) < len(keys):
        raise PlanError("a file was given twice; each file can be read once")
    alone = len({row[0] for row in rows}) <= slots
    places = list(range(len(rows))) if alone else _join([row[4] for row in rows], max(slots, partitions))
    stays = len(set(places)) == partitions and [row[2] for row in rows] == places
    # Spark leaves out what has no rows; so a file's first piece here is the one in which it begins.
    pieces = tuple(Piece(path, first=start == 0) for path, start, *_ in rows)
    return Plan(pieces, tuple(places), keys, stays)


def _join(counts: Sequence[int], groups: int) -> list[int]:
    """Neighbours in at most ``groups`` groups of about equally many rows; the group of each."""
    total = max(1, sum(counts))
    middles = (end - count / 2 for count, end in zip(counts, accumulate(counts), strict=True))
    raw = [min(groups - 1, int(middle * groups / total)) for middle in middles]
    dense = {group: number for number, group in enumerate(dict.fromkeys(raw))}
    return [dense[group] for group in raw]


def in_order(
    df: DataFrame, columns: Sequence[Column], plan: Plan, to_cell: Callable[[pa.RecordBatch], bytes]
) -> RDD[tuple[int, Any]]:
    """``(number of the piece, cell)`` in the plan's partitions, in order; a cell is a batch of rows as bytes.

    Args:
        df: what was measured.
        columns: what of it to pack.
        plan: where pieces go.
        to_cell: packs a batch (task).
    """
    keyed = not plan.stays and len(plan.pieces) > 1
    # Selected in one go: only the DataFrame that reads the files knows them.
    chosen = frames.plain_columns(df.select(*columns, _key()) if keyed else df.select(*columns))
    if len(plan.pieces) == 1:
        chosen = chosen.coalesce(1)
    packed = chosen.mapInArrow(partial(_pack, to_cell, keyed), _PACKED).rdd
    if not keyed:
        return packed.mapPartitionsWithIndex(_number)
    seats = {key: (place, number) for number, (key, place) in enumerate(zip(plan.keys, plan.partitions, strict=True))}
    return packed.map(partial(_seat, seats)).partitionBy(plan.partitions[-1] + 1, int).mapPartitions(_sort)


def _pack(
    to_cell: Callable[[pa.RecordBatch], bytes], keyed: bool, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Each batch as a cell, cut where the piece changes."""
    import pyarrow as pa

    types = (pa.int64(), pa.int64(), pa.binary())
    place = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        keys = batch.column(batch.num_columns - 1).to_numpy() if keyed else np.zeros(batch.num_rows, dtype=np.int64)
        content = batch.select(range(batch.num_columns - 1)) if keyed else batch
        bounds = [0, *(np.flatnonzero(np.diff(keys)) + 1).tolist(), batch.num_rows]
        for begin, end in pairwise(bounds):
            row = (int(keys[begin]), place, to_cell(content.slice(begin, end - begin)))
            arrays = [pa.array([value], kind) for value, kind in zip(row, types, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, names=["piece", "place", "cell"])
            place += 1


def _number(partition: int, rows: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    for _, _, cell in rows:
        yield partition, cell


def _seat(seats: dict[int, tuple[int, int]], row: Any) -> tuple[int, tuple[int, int, Any]]:
    key, place, cell = row
    partition, number = seats[key]
    return partition, (number, place, cell)


def _sort(rows: Iterable[tuple[int, tuple[int, int, Any]]]) -> Iterator[tuple[int, Any]]:
    for number, _, cell in sorted((row for _, row in rows), key=lambda row: row[:2]):
        yield number, cell
