"""L-BFGS on flat arrays: steps of a fixed length along the direction that the last gradients and moves give.

The arithmetic of torch's ``LBFGS`` without a line search: it asks for the gradient several times in one update.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from firesteel.core.optimizers import LBFGS

__all__ = ["Memory"]

Array = npt.NDArray[Any]


class Memory:
    """What an L-BFGS remembers between gradients."""

    def __init__(self, method: LBFGS) -> None:
        self._method = method
        self.moves: list[Array] = []
        self.changes: list[Array] = []
        self.scale = 1.0
        self.steps = 0
        self.last: tuple[Array, Array, float] | None = None
        """Gradient before the last move, its direction and its length."""

    def update(self, weights: Array, evaluate: Callable[[Array | None], tuple[float, Array]], rate: float) -> Array:
        """The weights after one update. ``evaluate(weights)`` gives loss and gradient there; ``None``: the first's."""
        method = self._method
        most = method.max_eval or method.max_iter * 5 // 4
        loss, gradient = evaluate(None)
        evaluations = 1
        if np.abs(gradient).max(initial=0.0) <= method.tolfun:
            return weights
        for iteration in range(1, method.max_iter + 1):
            direction, length = self._next(gradient, rate)
            self.last = gradient.copy(), direction, length
            if float(gradient @ direction) > -method.tolx:
                break
            weights = weights + length * direction
            before = loss
            if iteration != method.max_iter:
                loss, gradient = evaluate(weights)
                evaluations += 1
            if evaluations >= most or np.abs(gradient).max() <= method.tolfun:
                break
            if np.abs(length * direction).max() <= method.tolx or abs(loss - before) < method.tolx:
                break
        return weights

    def arrays(self) -> dict[str, Array]:
        """Everything that is remembered, for another process."""
        found = {f"moves/{place:03d}": move for place, move in enumerate(self.moves)}
        found |= {f"changes/{place:03d}": change for place, change in enumerate(self.changes)}
        found["numbers"] = np.array([self.scale, self.steps, 0.0 if self.last is None else self.last[2]])
        if self.last is not None:
            found |= {"gradient": self.last[0], "direction": self.last[1]}
        return found

    def load(self, arrays: dict[str, Array]) -> None:
        """The reverse."""
        self.moves = [arrays[name] for name in sorted(arrays) if name.startswith("moves/")]
        self.changes = [arrays[name] for name in sorted(arrays) if name.startswith("changes/")]
        self.scale, self.steps = float(arrays["numbers"][0]), int(arrays["numbers"][1])
        self.last = None
        if "gradient" in arrays:
            self.last = arrays["gradient"], arrays["direction"], float(arrays["numbers"][2])

    def _next(self, gradient: Array, rate: float) -> tuple[Array, float]:
        self.steps += 1
        if self.last is None:
            return -gradient, min(1.0, 1.0 / float(np.abs(gradient).sum())) * rate
        before, direction, length = self.last
        change, move = gradient - before, length * direction
        curved = float(change @ move)
        if curved > 1e-10:
            if len(self.moves) == self._method.ncorrection:
                self.moves.pop(0)
                self.changes.pop(0)
            if self._method.ncorrection:
                self.moves.append(move)
                self.changes.append(change)
            self.scale = curved / float(change @ change)
        return self._direction(gradient), rate

    def _direction(self, gradient: Array) -> Array:
        found = -gradient
        weights = [1.0 / float(change @ move) for move, change in zip(self.moves, self.changes, strict=True)]
        parts = [0.0] * len(self.moves)
        for place in reversed(range(len(self.moves))):
            parts[place] = float(self.moves[place] @ found) * weights[place]
            found = found - parts[place] * self.changes[place]
        found = found * self.scale
        for place, (move, change) in enumerate(zip(self.moves, self.changes, strict=True)):
            found = found + move * (parts[place] - float(change @ found) * weights[place])
        return found
