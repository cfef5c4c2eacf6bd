"""Reduce by key: rows folded where they lie, the results brought together by key and folded again. Lazy.

A task keeps one row for each key it has seen, and hands them on when they are too many; after the shuffle rows come
sorted by key, and a key is done when the next one comes. So memory depends neither on the rows nor on the keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from firesteel.core.columns import ColumnReplica
from firesteel.core.plan import Reduce
from firesteel.core.spec import Batch
from firesteel.data.cells import Read, batch_of_rows, to_arrow
from firesteel.data.columns import field_of
from firesteel.data.quoting import quoted
from firesteel.engine.blocks import noted, partition_of_task
from firesteel.engine.folding import Folding, codes_of, folding_of, joined, result_read
from firesteel.engine.scorer import Scorer, make_scorer

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["aggregate_frame"]

_PLACE = "place"
_MOST_KEYS = 1 << 16
_WAITING_ROWS = 1 << 16
_WAITING_BYTES = 1 << 26


def aggregate_frame(df: DataFrame, keys: Sequence[Column], plan: Reduce, reads: Sequence[Read]) -> DataFrame:
    """The keys and, for each, the one row that is left of its rows. Lazy.

    ``reads`` are the columns that are folded, under their own names; ``keys`` are any expressions over ``df``.
    """
    from pyspark.sql.functions import col
    from pyspark.sql.types import DoubleType, FloatType, LongType, StructField, StructType

    scorer, folding = make_scorer(df.sparkSession, plan), folding_of(plan)
    asked = df.select(*keys).schema.fields
    # Zero has two signs, which are one key.
    plain = [
        (key + 0.0).cast(field.dataType) if isinstance(field.dataType, (DoubleType, FloatType)) else key
        for key, field in zip(keys, asked, strict=True)
    ]
    names = [f"k{place}" for place in range(len(plain))]
    chosen = df.select(
        *(key.alias(name) for key, name in zip(plain, names, strict=True)),
        *(col(quoted(read.column.name)).alias(f"v{place}") for place, read in enumerate(reads)),
    )
    folded = [field_of(spec) for spec in folding.outputs]
    values = [StructField(f"v{place}", field.dataType, False) for place, field in enumerate(folded)]
    kept = [StructField(name, field.dataType, field.nullable) for name, field in zip(names, asked, strict=True)]
    partial_rows = StructType([*kept, *values, StructField(_PLACE, LongType(), False)])
    parts = chosen.mapInArrow(partial(_combine_task, scorer, folding, tuple(reads), len(names)), partial_rows)
    parts = (parts.repartition(*names) if names else parts.repartition(1)).sortWithinPartitions(*names, _PLACE)
    again = tuple(result_read(spec) for spec in folding.outputs)
    done = parts.mapInArrow(partial(_finish_task, scorer, folding, again, len(names)), StructType([*kept, *values]))
    fields = [*asked, *folded]
    return done.select(
        *(
            col(was).alias(field.name, metadata=field.metadata)
            for was, field in zip([*names, *(each.name for each in values)], fields, strict=True)
        )
    )


# --- in the tasks -----------------------------------------------------------------------------------------------------


class _Keyed:
    """Rows with their keys: record batches of keys, and what is folded as arrays."""

    def __init__(self, keys: pa.RecordBatch, rows: Batch) -> None:
        self.keys = keys
        self.rows = rows

    def __len__(self) -> int:
        return int(self.keys.num_rows)

    @property
    def nbytes(self) -> int:
        return int(self.keys.nbytes) + sum(values.nbytes for values in self.rows.values())

    def slice(self, begin: int, end: int) -> _Keyed:
        return _Keyed(
            self.keys.slice(begin, end - begin), {name: values[begin:end] for name, values in self.rows.items()}
        )


def _together(parts: Sequence[_Keyed]) -> _Keyed:
    if len(parts) == 1:
        return parts[0]
    table = pa.Table.from_batches([part.keys for part in parts])
    columns = [pa.concat_arrays(column.chunks) for column in table.columns]
    keys = pa.RecordBatch.from_arrays(columns, table.schema.names)
    return _Keyed(keys, joined([part.rows for part in parts]))


def _folded(replica: ColumnReplica, folding: Folding, keyed: _Keyed, *, is_raw: bool) -> _Keyed:
    """One row for each key, in the order in which keys first came."""
    codes = codes_of(keyed.keys.columns) if keyed.keys.num_columns else np.zeros(len(keyed), np.int64)
    order = np.argsort(codes, kind="stable")
    counts = np.bincount(codes)
    firsts = order[np.cumsum(counts) - counts]
    rows = {name: values[order] for name, values in keyed.rows.items()}
    rows = folding.fold_keys(replica, rows, counts, is_raw=is_raw)
    return _Keyed(keyed.keys.take(pa.array(firsts)), rows)


def _combine_task(
    scorer: Scorer, folding: Folding, reads: tuple[Read, ...], keys: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Before the shuffle: this partition's rows of each key as one, or as few."""
    partition = partition_of_task()
    place = partition << 40  # results of one key keep the order of partitions
    with noted("aggregate", partition):
        for part in _combined(scorer, folding, _read(reads, keys, batches)):
            yield _as_rows(part, folding, np.arange(place, place + len(part)))
            place += len(part)


def _combined(scorer: Scorer, folding: Folding, parts: Iterator[_Keyed]) -> Iterator[_Keyed]:
    if not folding.is_algebraic:
        yield from parts
        return
    replica: Any = None
    state: _Keyed | None = None
    for waiting in _gathered(parts):
        replica = replica or scorer.wake().replica
        found = _folded(replica, folding, waiting, is_raw=True)
        state = found if state is None else _folded(replica, folding, _together([state, found]), is_raw=False)
        if len(state) >= _MOST_KEYS or state.nbytes >= _WAITING_BYTES:
            yield state
            state = None
    if state is not None:
        yield state


def _gathered(parts: Iterator[_Keyed]) -> Iterator[_Keyed]:
    """The same rows in larger parts, so that a call has more to do."""
    waiting: list[_Keyed] = []
    rows = size = 0
    for part in parts:
        waiting.append(part)
        rows, size = rows + len(part), size + part.nbytes
        if rows >= _WAITING_ROWS or size >= _WAITING_BYTES:
            yield _together(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield _together(waiting)


def _finish_task(
    scorer: Scorer, folding: Folding, reads: tuple[Read, ...], keys: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """After the shuffle, sorted by key: one row for each key."""
    is_raw = not folding.is_algebraic
    replica: Any = None
    open_rows: list[_Keyed] = []  # of the last key, which may go on in the next batch
    with noted("aggregate", None):
        for part in _read(reads, keys, batches):
            replica = replica or scorer.wake().replica
            first = _first_of_last_key(part)
            if first == 0 and open_rows and _is_one_key(open_rows[-1], part):
                open_rows = [*open_rows, part]
                if folding.is_algebraic:
                    open_rows = [_folded(replica, folding, _together(open_rows), is_raw=False)]
                continue
            done = (
                _together([*open_rows, part.slice(0, first)]) if first else _together(open_rows or [part.slice(0, 0)])
            )
            if len(done):
                yield _as_rows(_folded(replica, folding, done, is_raw=is_raw), folding)
            open_rows = [part.slice(first, len(part))]
        if open_rows:
            yield _as_rows(_folded(replica, folding, _together(open_rows), is_raw=is_raw), folding)


def _first_of_last_key(part: _Keyed) -> int:
    """Where the rows of the last row's key begin; equal keys follow each other."""
    if not part.keys.num_columns:
        return 0
    codes = codes_of(part.keys.columns)
    return int((codes == codes[-1]).argmax())


def _is_one_key(one: _Keyed, other: _Keyed) -> bool:
    if not one.keys.num_columns:
        return True
    ends = _together([one.slice(0, 1), other.slice(0, 1)])
    return bool(codes_of(ends.keys.columns)[1] == 0)


def _read(reads: tuple[Read, ...], keys: int, batches: Iterator[pa.RecordBatch]) -> Iterator[_Keyed]:
    for rows in batches:
        if rows.num_rows:
            columns = rows.columns
            yield _Keyed(_only(rows, keys), batch_of_rows(reads, columns[keys:]))


def _only(rows: pa.RecordBatch, keys: int) -> pa.RecordBatch:
    if keys:
        return rows.select(range(keys))
    return pa.RecordBatch.from_struct_array(pa.array([{}] * rows.num_rows, pa.struct([])))


def _as_rows(part: _Keyed, folding: Folding, places: Any = None) -> pa.RecordBatch:
    values = [to_arrow(part.rows[spec.name], spec) for spec in folding.outputs]
    arrays = [*part.keys.columns, *values]
    names = [*part.keys.schema.names, *(f"v{place}" for place in range(len(values)))]
    if places is not None:
        arrays, names = [*arrays, pa.array(places)], [*names, _PLACE]
    return pa.RecordBatch.from_arrays(arrays, names)
