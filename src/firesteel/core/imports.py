"""Importing: classes and functions by their path, ``"package.module:name"``, without pickle; large packages sooner."""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from firesteel.core.errors import CheckpointError

__all__ = ["follow", "import_ahead", "importing", "path_of"]


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
def importing(without: Iterable[str] = ()) -> Iterator[None]:
    """Inside, Python does not look for garbage: a framework's modules are none, and looking a sixth of its import.

    Packages ``without`` seem not to be installed, unless they are imported already: what a framework imports only in
    case somebody wants it with them. For processes of our own, where nobody does.
    """
    was_enabled = gc.isenabled()
    hidden = [name for name in without if name not in sys.modules]
    gc.disable()
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None: Python's word for "not there"
    try:
        yield
    finally:
        for name in hidden:
            sys.modules.pop(name, None)
        if was_enabled:
            gc.enable()


def import_ahead(words: Iterable[str]) -> None:
    """Import each "module", or call its function where it is "module:function", before anybody asks for it.

    What cannot be imported is left to whoever needs it, who can say so.
    """
    with importing():
        for word in words:
            module, _, function = word.partition(":")
            with contextlib.suppress(Exception):
                found: Any = importlib.import_module(module)
                if function:
                    getattr(found, function)()
