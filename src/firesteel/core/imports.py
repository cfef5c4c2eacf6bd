"""Importing: classes and functions by their path, ``"package.module:name"``, without pickle; large packages sooner."""

from __future__ import annotations

import contextlib
import gc
import importlib
from collections.abc import Iterator
from typing import Any

from firesteel.core.errors import CheckpointError

__all__ = ["follow", "importing", "path_of"]


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


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Inside, Python does not look for garbage: a framework's modules are none, and looking a sixth of its import."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
