"""Spark settings that are on or off."""

from __future__ import annotations

from collections.abc import Callable

from firesteel.core.errors import PlanError

__all__ = ["switch"]


def switch(read: Callable[[str], str | None], name: str, default: bool) -> bool:
    """Whether the setting of this name is on: ``read`` gives its value, or ``None``."""
    value = read(name)
    if value is None:
        return default
    truth = {"true": True, "false": False}.get(value.strip().lower())
    if truth is None:
        raise PlanError(f"{name} must be true or false, not {value!r}")
    return truth
