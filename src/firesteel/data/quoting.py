"""Columns' names as Spark's parser reads them."""

from __future__ import annotations

__all__ = ["quoted"]


def quoted(*path: str) -> str:
    """A column, or a field inside a struct, whatever is in the names: dots, spaces, backticks."""
    return ".".join("`" + name.replace("`", "``") + "`" for name in path)
