"""A distributed data set brought to the driver's disk, block by block: how a validation set gets to all ranks.

Spark has no way to hand one task partitions of two DataFrames without a shuffle, so the smaller set takes this way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from firesteel.core.errors import PlanError
from firesteel.core.spec import Batch, rows_of
from firesteel.data.packed import PACKED_SCHEMA, cut, pack, pack_error, unpack
from firesteel.data.reading import Reading
from firesteel.data.sources import Frame, Packed
from firesteel.data.spool import SpoolReader, SpoolWriter, files_for

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["gather", "packed"]


def packed(source: Frame | Packed) -> Any:
    """The data set as a DataFrame of packed blocks."""
    if isinstance(source, Packed):
        return source.df
    selected = source.df.select(*source.reading.select(source.df))
    return selected.mapInArrow(partial(_pack_rows, source.reading), PACKED_SCHEMA)


def _pack_rows(reading: Reading, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    try:
        for rows in batches:
            yield packed_batch(cut(reading.batch(rows)))
    except PlanError as error:  # a row that does not fit: whoever opens this block raises it
        yield _record([pack_error(error)])


def packed_batch(pieces: Iterable[Batch]) -> pa.RecordBatch:
    """Packed blocks as the record batch that Spark expects. Runs in a task."""
    return _record([pack(piece) for piece in pieces if rows_of(piece)])


def _record(rows: Sequence[tuple[str, bytes]]) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.RecordBatch.from_arrays(
        [pa.array([header for header, _ in rows], pa.string()), pa.array([data for _, data in rows], pa.binary())],
        ["header", "data"],
    )


def gather(source: Frame | Packed) -> tuple[Batch | None, SpoolWriter | None]:
    """All rows, as arrays mapped from files on the driver; keep the writer, which holds them. ``None`` without rows."""
    writer: SpoolWriter | None = None
    with contextlib.ExitStack() as kept:
        for row in packed(source).toLocalIterator(prefetchPartitions=True):
            batch = unpack(row["header"], bytes(row["data"]))
            if writer is None:
                writer = kept.enter_context(SpoolWriter(files_for(batch)))
            writer.append(0, batch)
        kept.pop_all()  # whole: it is the caller's now
    if writer is None or writer.signature is None:
        return None, None
    return SpoolReader(writer.descriptors, writer.signature, writer.blocks).arrays(), writer
