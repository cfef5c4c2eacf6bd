"""A group of one: nothing to exchange."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

__all__ = ["SoloGroup"]


class SoloGroup:
    """See ``core.ports.Group``."""

    rank = 0
    size = 1

    def all_reduce(self, array: npt.NDArray[Any]) -> None:
        """The sum over one."""

    def all_gather(self, array: npt.NDArray[Any], bounds: Sequence[tuple[int, int]]) -> None:
        """All parts are here."""

    def broadcast(self, array: npt.NDArray[Any], root: int = 0) -> None:
        """Nobody else listens."""

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """Its own."""
        return [data]

    def close(self) -> None:
        """Nothing to leave."""
