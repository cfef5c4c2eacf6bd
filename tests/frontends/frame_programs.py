"""Small programs that the tests of frames share: the same thing said in each framework."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn


@contextlib.contextmanager
def graph() -> Iterator[Any]:
    """TensorFlow's old namespace, with a graph of its own as the default one."""
    import tensorflow.compat.v1 as tf

    with tf.Graph().as_default():
        yield tf


def z(x: Any) -> Any:
    """A NumPy function; every framework's version gives the same column."""
    return x + 3


class Plus3(nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"z": x + 3}


def sum_of(name: str) -> Any:
    """``def name(name_input)``: the sum along the rows."""
    space: dict[str, Any] = {}
    exec(f"def {name}({name}_input): return {name}_input.sum(axis=0)", space)
    return space[name]


def pair_sum(name: str) -> Any:
    """``def name(name_1, name_2)``: their sum."""
    space: dict[str, Any] = {}
    exec(f"def {name}({name}_1, {name}_2): return {name}_1 + {name}_2", space)
    return space[name]


def values(df: Any, *columns: str) -> list[Any]:
    """The rows of a DataFrame or a pandas frame, plain."""
    if hasattr(df, "collect"):
        rows = df.select(*columns).collect() if columns else df.collect()
        return [row[0] if len(row) == 1 else tuple(row) for row in rows]
    chosen = df[list(columns)] if columns else df
    plain = [tuple(_plain(cell) for cell in row) for row in chosen.itertuples(index=False)]
    return [row[0] if len(row) == 1 else row for row in plain]


def _plain(cell: Any) -> Any:
    return cell.tolist() if isinstance(cell, (np.ndarray, np.generic)) else cell
