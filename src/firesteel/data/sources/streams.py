"""Loaders of the framework's own, and creators that make one in each replica."""

from __future__ import annotations

from typing import Any

from firesteel.data.sources.kinds import Asked, Streamed

__all__ = ["take"]


def take(data: Any, asked: Asked) -> Streamed | None:
    """A loader, or anything that can be called."""
    if asked.is_loader(data):
        return Streamed(data, is_creator=False)
    return Streamed(data, is_creator=True) if callable(data) else None
