"""Blocks and rows without Spark: random columns, shapes and cuts, against NumPy row by row."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.core.errors import SchemaError
from firesteel.core.plan import Map
from firesteel.core.program import Program
from firesteel.core.spec import TensorSpec
from firesteel.data.cells import Read, to_arrow
from firesteel.data.columns import TensorColumn
from firesteel.engine.blocks import results, trimmed, work_of


class Doubling:
    """Twice each input; remembers what it was called with."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []

    def forward(self, batch: dict[str, Any]) -> dict[str, Any]:
        self.shapes.append(next(iter(batch.values())).shape)
        return {f"{name}2": values * 2 for name, values in batch.items()}

    rows = forward


DTYPES = ("float64", "float32", "int64", "int32", "int16", "bool")
SIZES = st.integers(0, 3)


@st.composite
def tables(draw: Any) -> Any:
    """Columns by name: dtype, number of axes, and a cell for each row; cells of one column may differ in shape."""
    rows = draw(st.integers(0, 12))
    columns = {}
    for name in draw(st.sampled_from(("x", "xy", "xyz"))):
        dtype, axes, is_ragged = draw(st.sampled_from(DTYPES)), draw(st.integers(0, 2)), draw(st.booleans())
        shape = tuple(draw(SIZES) for _ in range(axes))
        shapes = [tuple(draw(SIZES) for _ in range(axes)) if is_ragged else shape for _ in range(rows)]
        columns[name] = (
            dtype,
            axes,
            [(np.arange(np.prod(s)).reshape(s) + k).astype(dtype) for k, s in enumerate(shapes)],
        )
    return rows, columns, draw(st.lists(st.integers(0, rows), max_size=3))


def batches_of(rows: int, columns: Any, cuts: list[int]) -> tuple[list[pa.RecordBatch], list[Read]]:
    reads, arrays = [], []
    for name, (dtype, axes, cells) in columns.items():
        reads.append(Read(name, TensorColumn(name, dtype, (None,) * (axes + 1)), dtype))
        kind = pa.from_numpy_dtype(dtype)
        for _ in range(axes):
            kind = pa.list_(kind)
        arrays.append(pa.array([cell.tolist() for cell in cells], kind))
    whole = pa.RecordBatch.from_arrays(arrays, list(columns))
    edges = sorted({0, rows, *cuts})
    return [whole.slice(a, b - a) for a, b in pairwise(edges)], reads


def plan_of(columns: Any, each: str, size: int = 0) -> Map:
    outputs = tuple(
        TensorSpec(f"{name}2", "int64" if dtype == "bool" else dtype, (None,) * axes)
        for name, (dtype, axes, _) in columns.items()
    )
    return Map(Program("none", None), size, each=each, outputs=outputs)


@given(table=tables())
@settings(max_examples=150, deadline=None)
def test_every_row_once_and_in_order(table: Any) -> None:
    rows, columns, cuts = table
    batches, reads = batches_of(rows, columns, cuts)
    plan = plan_of(columns, "row")
    found: list[pa.RecordBatch] = []
    for piece, values in results(Doubling(), work_of(plan, reads), iter(batches)):
        arrays = [to_arrow(value, spec) for value, spec in zip(values, plan.outputs, strict=True)]
        assert all(len(array) == piece.num_rows for array in arrays)
        found.append(pa.RecordBatch.from_arrays(arrays, list(columns)))
    for name, (_, axes, cells) in columns.items():
        made = [cell for batch in found for cell in batch.column(name).to_pylist()]
        if axes < 2:
            assert made == [(cell * 2).tolist() for cell in cells]
        else:  # in lists an axis below one of length 0 is nowhere to be seen
            assert [np.array(cell).ravel().tolist() for cell in made] == [(cell * 2).ravel().tolist() for cell in cells]


@given(count=st.integers(0, 40), cuts=st.lists(st.integers(0, 40), max_size=5), size=st.integers(0, 15))
@settings(max_examples=100, deadline=None)
def test_blocks_are_cut_where_they_should_be(count: int, cuts: list[int], size: int) -> None:
    columns = {"x": ("float64", 0, [np.float64(k) for k in range(count)])}
    batches, reads = batches_of(count, columns, [cut for cut in cuts if cut < count])
    replica, work = Doubling(), work_of(plan_of(columns, "block", size), reads)
    made = [x for _, values in results(replica, work, iter(batches)) for x in values[0].tolist()]
    assert made == [2.0 * k for k in range(count)]
    step = size or count or 1
    assert [shape[0] for shape in replica.shapes] == [min(step, count - k) for k in range(0, count, step)]
    assert [len(values[0]) for values in trimmed(Doubling(), work, iter(batches))] == [s[0] for s in replica.shapes]


def test_what_an_output_turns_out_to_be_is_checked() -> None:
    columns = {"x": ("float64", 1, [np.zeros(2), np.ones(2)])}
    batches, reads = batches_of(2, columns, [])

    def check(spec: TensorSpec, words: str) -> None:
        work = work_of(Map(Program("none", None), 0, each="block", outputs=(spec,)), reads)
        with pytest.raises(SchemaError, match=words) as caught:
            list(results(Doubling(), work, iter(batches), partition=4))
        assert caught.value.__notes__ == ["in map_blocks, partition 4"]

    check(TensorSpec("x2", "float64", (3,)), r"'x2' has cells of shape \[2\], but \[3\]")
    check(TensorSpec("x2", "float64", ()), r"'x2' has cells of shape \[2\], but \[\]")
    check(TensorSpec("x2", "int64", (2,)), "'x2' is float64, but int64")
    check(TensorSpec("x2", "string", (2,)), "'x2' is float64, but string")
