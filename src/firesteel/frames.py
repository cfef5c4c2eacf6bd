"""Small numeric programs over DataFrame columns: ``import firesteel.frames as tfs``.

A program's inputs and outputs are named after columns; Spark carries it to the rows. The names are loaded on first
touch: importing this loads no framework and no pyspark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from firesteel.frontends.frames.placeholders import block, row
    from firesteel.frontends.frames.programs import program
    from firesteel.frontends.frames.schema import analyze, append_shape, explain, print_schema
    from firesteel.frontends.frames.verbs import aggregate, map_blocks, map_rows, reduce_blocks, reduce_rows

__all__ = [
    "aggregate",
    "analyze",
    "append_shape",
    "block",
    "explain",
    "map_blocks",
    "map_rows",
    "print_schema",
    "program",
    "reduce_blocks",
    "reduce_rows",
    "row",
]

_HOMES = {
    "analyze": "schema",
    "append_shape": "schema",
    "block": "placeholders",
    "explain": "schema",
    "print_schema": "schema",
    "program": "programs",
    "row": "placeholders",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'firesteel.frames' has no attribute {name!r}; there are: {', '.join(__all__)}")
    value = getattr(importlib.import_module(f"firesteel.frontends.frames.{_HOMES.get(name, 'verbs')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
