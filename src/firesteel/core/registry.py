"""Frameworks found by name, through entry points, so that an outsider's is loaded by the same path as ours."""

from __future__ import annotations

from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING

from firesteel.core.errors import UnknownName
from firesteel.core.imports import importing

if TYPE_CHECKING:
    from firesteel.core.ports import Framework
    from firesteel.core.program import Program

__all__ = ["framework", "framework_names", "imports_of"]

_GROUP = "firesteel.frameworks"


@cache
def _entry_points() -> dict[str, metadata.EntryPoint]:
    return {entry.name: entry for entry in metadata.entry_points(group=_GROUP)}


def framework_names() -> list[str]:
    """The names that are registered in this environment, sorted."""
    return sorted(_entry_points())


@cache
def framework(name: str) -> Framework:
    """The framework of this name. Loads its module, which may import the framework itself."""
    entry = _entry_points().get(name)
    if entry is None:  # its package may have come since: Spark's Python workers live long
        _entry_points.cache_clear()
        entry = _entry_points().get(name)
    if entry is None:
        raise UnknownName("framework", name, framework_names())
    with importing():
        found: Framework = entry.load()
    return found


def imports_of(program: Program) -> tuple[str, ...]:
    """What a process of this program may import before it is asked for; see ``Framework.ahead``."""
    ahead = getattr(framework(program.framework), "ahead", None)  # an outsider's may be older than this
    return () if ahead is None else ahead(program)
