"""A program: what is computed, before any process holds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Program"]


@dataclass(frozen=True)
class Program:
    """Model, loss, optimizer and whatever else a framework needs to bring a replica to life.

    Attributes:
        framework: the framework's registered name.
        content: the framework's own value; nobody else looks inside. Travels packed in the Spark closure.
        state: weights and optimizer state to start from, where they differ from what ``content`` makes.
    """

    framework: str
    content: Any
    state: dict[str, bytes] | None = None
