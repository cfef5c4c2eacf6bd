"""Outputs in the container that their rows came in: arrays, dicts, shards, pandas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from firesteel.core.errors import SchemaError
from firesteel.engine.score import check_count
from firesteel.engine.scorer import Outputs

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["add_columns", "contained", "finish_shard"]


def contained(outputs: Outputs) -> Any:
    """Outputs as users get them: one array alone, several in a list, named ones in a dict."""
    if list(outputs) == ["prediction"]:
        return outputs["prediction"]
    if all(name == f"_{index}" for index, name in enumerate(outputs)):
        return list(outputs.values())
    return outputs


def finish_shard(shard: Any, outputs: Outputs) -> dict[str, Any]:
    """A shard with its predictions: a dict keeps what it has, an array or the first of a tuple becomes ``x``."""
    kept = shard if isinstance(shard, dict) else {"x": shard[0] if isinstance(shard, tuple) else shard}
    if "prediction" in kept:
        raise SchemaError("the shards have a key 'prediction' already; rename it", column="prediction")
    return {**kept, "prediction": contained(outputs)}


def add_columns(frame: pd.DataFrame, outputs: Outputs, names: Sequence[str] | None) -> pd.DataFrame:
    """A new frame with the outputs as columns: a number per row, an array where that is a row's output, or a dict."""
    columns: dict[str, Any] = dict(outputs)
    if names is not None:
        check_count(names, len(outputs))
        columns = dict(zip(names, outputs.values(), strict=True))
        if len(columns) < len(names):
            raise SchemaError(f"output_cols has a name twice: {', '.join(names)}")
    elif list(outputs) != ["prediction"]:
        columns = {"prediction": outputs}
    for name in columns:
        if name in frame.columns:
            raise SchemaError(
                f"the frame has a column {name!r} already; pass output_cols with another name", column=name
            )
    return frame.assign(**{name: _cells(value, len(frame)) for name, value in columns.items()})


def _cells(value: Any, rows: int) -> Any:
    if not isinstance(value, dict) and value.ndim == 1:
        return value
    cells = np.empty(rows, object)  # one by one, for NumPy would make one array of equal ones
    for row in range(rows):
        cells[row] = _row(value, row)
    return cells


def _row(value: Any, row: int) -> Any:
    return {key: _row(part, row) for key, part in value.items()} if isinstance(value, dict) else value[row]
