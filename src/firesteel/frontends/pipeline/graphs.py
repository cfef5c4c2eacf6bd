"""Graphs of the pipeline door: as text, as programs that train and score, as what columns must be to feed them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from firesteel.core import registry
from firesteel.core.errors import PlanError
from firesteel.core.program import Program
from firesteel.data.reading import Reading, Tensor, make_reading

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["bench", "build_graph", "feeds_of", "open_text", "read_columns", "scoring_program", "training_program"]

# Doubles are read as float32, but for tensors that would see the difference: a float32 counts to 2^24.
_WIDE = ("float64", "int32", "uint32", "int64", "uint64")


def bench() -> Any:
    """The framework of TensorFlow graphs."""
    return registry.framework("tfgraph")


def build_graph(func: Callable[[], Any]) -> str:
    """Run ``func`` in a fresh graph; the graph as JSON text, for ``SparkAsyncDL(tensorflowGraph=…)``.

    The loss is what ``func`` returns, if that is a scalar tensor, else the first of the graph's ``LOSSES``. The
    caller's default graph is untouched, and the same function gives the same text.

    Raises:
        PlanError: there is no loss, or Python functions are part of the graph.
    """
    text: str = bench().build_graph(func)
    return text


def open_text(text: str | None) -> Any:
    """A graph from its text, fresh each time. ``PlanError`` where it is none."""
    if not text or not text.strip():
        raise PlanError("there is no graph: pass tensorflowGraph what build_graph returns")
    return bench().open_text(text)


def training_program(
    text: str, *, inputs: str | None, label: str | None, output: str | None, optimizer: Any, seed: int
) -> tuple[Program, dict[str, Any]]:
    """What trains, and its feeds by name. ``PlanError`` where tensors are not there or not fed."""
    opened = open_text(text)
    if opened.loss is None:
        raise PlanError("the graph has no loss to be lowered: build_graph's function must return one")
    program: Program = bench().capture(
        opened,
        inputs={"x0": inputs},
        labels=None if label is None else {"y0": label},
        outputs=None if output is None else {"prediction": output},
        loss=opened.loss,
        optimizer=optimizer,
        seed=seed,
        flags=dict.fromkeys(bench().phases(opened), (True, False)),
    )
    return program, feeds_of(program)


def scoring_program(
    opened: Any, *, inputs: str, output: str, dropout: str | None, keeps: bool, values: Mapping[str, Any]
) -> Program:
    """What scores with these values of the variables."""
    opened.values.update(values)
    # A SavedModel's keys stand for its tensors' names.
    inputs, output = opened.inputs.get(inputs, inputs), opened.outputs.get(output, output)
    flags: dict[str, Any] = dict.fromkeys(bench().phases(opened), False)
    if dropout is not None:
        flags[dropout] = bench().flag_of(opened, dropout, 1.0 if keeps else 0.0)
    program: Program = bench().capture(opened, inputs={"x0": inputs}, outputs={"prediction": output}, flags=flags)
    return program


def feeds_of(program: Program) -> dict[str, Any]:
    """The tensors that rows are fed to, by the names of a batch's arrays."""
    return {feed.name: feed for feed in program.content.ends.feeds}


def read_columns(df: DataFrame, features: str, label: str | None, feeds: Mapping[str, Any]) -> Reading:
    """How ``df`` becomes batches for these feeds: their dtypes, and their lengths where they say them."""
    reading = make_reading(df.schema, [features], [] if label is None else [label])
    return Reading(tuple(_fitted(tensor, feeds[tensor.name]) for tensor in reading.tensors))


def _fitted(tensor: Tensor, feed: Any) -> Tensor:
    (column,) = tensor.columns
    if feed.dtype in _WIDE and column.dtype == "float32":
        column = replace(column, dtype="float64")
    row = None if feed.shape is None else tuple(feed.shape[1:])
    shape = None
    if column.kind == "scalar":
        # One number for a row: (rows, 1), or (rows,) where the tensor has no other axis.
        shape = None if feed.shape is not None and len(feed.shape) == 1 else (1,)
    elif row is not None and None not in row and (column.kind == "vector" or column.depth == 1):
        column = replace(column, shape=(int(np.prod(row)),))  # said with the column's name, where it is another
    return Tensor(tensor.name, (column,), shape)
