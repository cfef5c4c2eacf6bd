"""The shapes that columns have: all rows read once, each partition's answer merged on the driver."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from firesteel.core.columns import Shape
from firesteel.data.cells import lengths
from firesteel.data.columns import TensorColumn
from firesteel.data.quoting import quoted
from firesteel.engine.answers import ANSWER_SCHEMA, answer, collect, failed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["cell_shape", "shapes_of_frame"]

_Range = list[tuple[int, int]]
"""The least and the greatest size of each axis."""


def shapes_of_frame(df: DataFrame, columns: Sequence[TensorColumn]) -> list[Shape]:
    """Each column's shape, rows first; ``None`` for sizes that differ. Driver; runs a job.

    Raises:
        SchemaError: a null in one of the columns.
    """
    chosen = df.select(*(quoted(column.name) for column in columns))
    chosen = chosen.toDF(*(f"c{place}" for place in range(len(columns))))
    answers = chosen.mapInArrow(partial(_measure_task, tuple(columns)), ANSWER_SCHEMA)
    parts = [json.loads(header) for header, _ in collect(answers)]
    rows = {part["rows"] for part in parts}
    first = rows.pop() if len(rows) == 1 else None
    return [
        (first, *_settled([part["cells"][place] for part in parts], len(column.cell)))
        for place, column in enumerate(columns)
    ]


def cell_shape(values: pa.Array, column: TensorColumn) -> Shape:
    """The shape of the cells that are here; ``None`` for sizes that differ, and where there are no cells."""
    return _settled([_ranges(values, column)], len(column.cell))


def _settled(ranges: Sequence[Sequence[Sequence[int]]], axes: int) -> Shape:
    found: list[int | None] = []
    for axis in range(axes):
        sizes = {size for each in ranges if axis < len(each) for size in each[axis]}
        found.append(sizes.pop() if len(sizes) == 1 else None)
    return tuple(found)


def _ranges(values: pa.Array, column: TensorColumn) -> _Range:
    """Sizes of the axes that there are any of: an axis of nothing has no size."""
    sizes = lengths(values, column)
    found: _Range = []
    for axis in range(sizes.shape[1]):
        if not len(sizes):
            break
        found.append((int(sizes[:, axis].min()), int(sizes[:, axis].max())))
        sizes = sizes[sizes[:, axis] > 0]
    return found


def _measure_task(columns: tuple[TensorColumn, ...], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    rows = 0
    cells: list[Any] = [[] for _ in columns]
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            rows += batch.num_rows
            for place, column in enumerate(columns):
                found = _ranges(batch.column(place), column)
                cells[place] = _merged(cells[place], found)
        if not rows:
            return
        answered = answer(json.dumps({"rows": rows, "cells": cells}), b"")
    except Exception as error:  # noqa: BLE001 - the driver raises it
        answered = failed(error, 0)
    yield answered


def _merged(one: _Range, other: _Range) -> _Range:
    found = [(min(a[0], b[0]), max(a[1], b[1])) for a, b in zip(one, other, strict=False)]
    return [*found, *one[len(found) :], *other[len(found) :]]
