"""Names, functions and classes that a user gave, as JSON that another process can follow."""

from __future__ import annotations

from typing import Any

from firesteel.core.errors import PlanError
from firesteel.core.imports import path_of

__all__ = ["refer"]


def refer(thing: Any, what: str) -> Any:
    """A name stays a name; a function or class becomes its import path. ``PlanError`` where it has none."""
    if thing is None or isinstance(thing, (str, bool, int, float)):
        return thing
    if isinstance(thing, (list, tuple)):
        return [refer(each, what) for each in thing]
    path = path_of(thing)
    if path is None:
        raise PlanError(
            f"{what} ({getattr(thing, '__qualname__', None) or type(thing).__qualname__}) cannot be saved, for another "
            f"process could not import it: move it into a module"
        )
    return {"import": path}
