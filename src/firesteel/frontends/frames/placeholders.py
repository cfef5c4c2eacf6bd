"""Placeholders made after columns, for programs that are written as TensorFlow graphs."""

from __future__ import annotations

from typing import Any

from firesteel.core import registry
from firesteel.frontends.frames.tables import table_of, usable

__all__ = ["block", "row"]


def block(df: Any, col_name: str, tf_name: str | None = None) -> Any:
    """A placeholder for blocks of this column: its dtype and shape, with an unknown number of rows.

    It is made in TensorFlow's default graph and named ``tf_name``, or as the column.
    """
    column = usable(table_of(df), col_name)
    framework: Any = registry.framework("tfgraph")
    return framework.placeholder(column.dtype, (None, *column.cell), tf_name or col_name)


def row(df: Any, col_name: str, tf_name: str | None = None) -> Any:
    """A placeholder for one cell of this column: its dtype and shape.

    It is made in TensorFlow's default graph and named ``tf_name``, or as the column.
    """
    column = usable(table_of(df), col_name)
    framework: Any = registry.framework("tfgraph")
    return framework.placeholder(column.dtype, column.cell, tf_name or col_name)
