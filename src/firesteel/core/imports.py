"""Classes and functions by their import path, ``"package.module:name"``: how others find them without pickle."""

from __future__ import annotations

import importlib
from typing import Any

from firesteel.core.errors import CheckpointError

__all__ = ["follow", "path_of"]


def path_of(thing: Any) -> str | None:
    """The import path of a class or function that can be found by it; ``None`` for others.

    What a script defines (``__main__``), or a function inside another one, only this process can find.
    """
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if not module or not name or module == "__main__" or "<" in name:
        return None
    path = f"{module}:{name}"
    try:
        return path if follow(path) is thing else None
    except CheckpointError:
        return None


def follow(path: str) -> Any:
    """What an import path names. ``CheckpointError`` where it is not there."""
    module, _, name = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split(".") if name else ():
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise CheckpointError(
            f"{path!r} cannot be imported here ({error}): put its module on Python's path", path=path
        ) from error
    return found
