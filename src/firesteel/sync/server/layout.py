"""How a program's flat buffers lie, and which run of each one server of several looks after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from firesteel.core.errors import SyncError

__all__ = ["Layout"]

Array = npt.NDArray[Any]
Kinds = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Layout:
    """Dtype and length of each flat buffer, and the run ``bounds`` of it that one server updates.

    A gradient may be longer than its weights: what comes after them (which parameters got one, the loss) goes to every
    server.
    """

    weights: Kinds
    gradients: Kinds
    bounds: tuple[tuple[int, int], ...]

    @classmethod
    def of(
        cls, weights: Sequence[Array], gradients: Sequence[Array], bounds: Sequence[tuple[int, int]] | None
    ) -> Layout:
        """The layout of a replica's buffers; without ``bounds`` one server has all of it."""
        whole = tuple((0, len(array)) for array in weights)
        return cls(_kinds(weights), _kinds(gradients), whole if bounds is None else tuple(map(tuple, bounds)))  # type: ignore[arg-type]

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Layout:
        """The reverse of ``to_json``."""
        return cls(
            *(tuple((first, last) for first, last in value[name]) for name in ("weights", "gradients", "bounds"))
        )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {name: [list(pair) for pair in getattr(self, name)] for name in ("weights", "gradients", "bounds")}

    @cached_property
    def is_whole(self) -> bool:
        """Whether one server has everything: then a push is the gradient buffers as they are."""
        return all(bound == (0, length) for bound, (_, length) in zip(self.bounds, self.weights, strict=True))

    @property
    def push_bytes(self) -> list[int]:
        """The length of each buffer of a push."""
        if self.is_whole:
            return [length * np.dtype(dtype).itemsize for dtype, length in self.gradients]
        found = []
        for (dtype, length), (_, weights), (begin, end) in zip(self.gradients, self.weights, self.bounds, strict=True):
            size = np.dtype(dtype).itemsize
            found += [(end - begin) * size, (length - weights) * size]
        return found

    def as_gradients(self, pushed: Sequence[Array]) -> list[Array]:
        """Bytes of a push as gradient buffers, where it ``is_whole``."""
        return [each.view(dtype) for each, (dtype, _) in zip(pushed, self.gradients, strict=True)]

    def as_weights(self, pulled: Sequence[Array]) -> list[Array]:
        """Bytes of a pull as weight buffers, where it ``is_whole``."""
        return [each.view(dtype) for each, (dtype, _) in zip(pulled, self.weights, strict=True)]

    @property
    def pull_bytes(self) -> list[int]:
        """The length of each buffer of a pull."""
        return [
            (end - begin) * np.dtype(dtype).itemsize
            for (dtype, _), (begin, end) in zip(self.weights, self.bounds, strict=True)
        ]

    def of_gradients(self, arrays: Sequence[Array]) -> list[Array]:
        """The runs that a push consists of: views of a replica's gradient buffers."""
        self._check(arrays, self.gradients, "gradients")
        if self.is_whole:
            return list(arrays)
        found = []
        for array, (_, weights), (begin, end) in zip(arrays, self.weights, self.bounds, strict=True):
            found += [array[begin:end], array[weights:]]
        return found

    def of_weights(self, arrays: Sequence[Array]) -> list[Array]:
        """The runs that a pull consists of: views of a replica's weight buffers."""
        self._check(arrays, self.weights, "weights")
        return [array[begin:end] for array, (begin, end) in zip(arrays, self.bounds, strict=True)]

    def _check(self, arrays: Sequence[Array], wanted: Kinds, what: str) -> None:
        if _kinds(arrays) != wanted:
            raise SyncError(
                f"the parameter server holds another program: its {what} are {_words(wanted)}, "
                f"this replica's {_words(_kinds(arrays))}"
            )


def _kinds(arrays: Sequence[Array]) -> Kinds:
    return tuple((array.dtype.str, len(array)) for array in arrays)


def _words(kinds: Kinds) -> str:
    return ", ".join(f"{length} × {np.dtype(dtype).name}" for dtype, length in kinds) or "nothing"
