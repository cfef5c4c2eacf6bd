"""A replica whose weights are one flat array: what is left to write of a bench is its arithmetic."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from firesteel.core.metrics import Metric
from firesteel.core.ports import Array, State
from firesteel.core.spec import Batch, rows_of

__all__ = ["FlatReplica"]


class _Plain:
    """What a plain model has not: random layers, schedules, state that no gradient reaches."""

    learning_rate = 0.0
    """Of the next update, for the records."""

    def mass(self, batch: Batch) -> None:
        """The loss is a mean over rows."""

    def seed(self, *numbers: int) -> None:
        """Nothing is drawn."""

    def schedule(self, event: str, figures: Mapping[str, float] | None = None) -> None:
        """The rate stays."""

    def go_native(self, *, is_nearby: bool) -> bool:
        """There is nobody else to agree."""
        return False

    def frozen(self) -> list[Array]:
        """All state is weights."""
        return []

    def load_frozen(self, values: Sequence[Array]) -> None:
        """All state is weights."""

    def buffers(self) -> list[Array]:
        """All state is weights."""
        return []

    def load_buffers(self, buffers: Sequence[Array]) -> None:
        """All state is weights."""


class FlatReplica(_Plain, ABC):
    """Write ``forward``, ``loss`` and ``apply``; the rest follows. Plain gradient descent needs no more.

    An optimizer with a memory keeps it in ``slots``, arrays of the weights' length: they travel with the weights, and
    are cut where the update is shared out among ranks.
    """

    def __init__(self, weights: Array) -> None:
        self.values = np.array(weights, dtype=np.float32).reshape(-1)
        """All weights."""
        self.slots: dict[str, Array] = {}
        """The optimizer's memory, by name."""
        self.model: Any = self
        """What callbacks are shown as ``runner.model``; likewise the next three."""
        self.optimizer: Any = self
        self.scheduler: Any = None
        self.loss_function: Any = self.loss
        self._gradient = np.zeros_like(self.values)
        self._slice = (0, len(self.values))
        self._last: tuple[Batch, float] | None = None

    @abstractmethod
    def forward(self, batch: Batch) -> dict[str, Array]:
        """See ``Replica``."""

    @abstractmethod
    def loss(self, batch: Batch) -> tuple[float, Array]:
        """The mean loss of these rows, and its gradient for all weights."""

    @abstractmethod
    def apply(self, gradient: Array, begin: int, end: int) -> None:
        """Update ``values[begin:end]`` (and ``slots``, likewise) with this whole gradient."""

    # --- scoring ---

    def measure(self, batch: Batch, metrics: Mapping[str, Metric]) -> tuple[float, float] | None:
        """See ``Replica``."""
        rows = rows_of(batch)
        if rows == 0:
            return 0.0, 0.0
        output = self.forward(batch)["prediction"]
        for metric in metrics.values():
            metric(output, batch["y0"])
        return self.loss(batch)[0] * rows, rows

    def load(self, state: State) -> None:
        """See ``Replica``."""
        self.values[...] = load(state["model"])["values"]
        for name, values in load(state["optimizer"]).items() if "optimizer" in state else ():
            self.slots[name] = values

    # --- learning ---

    def start(self, state: State | None) -> None:
        """See ``Trainable``."""
        if state is not None:
            self.load(state)

    def backward(self, batch: Batch, share: float) -> float | None:
        """See ``Trainable``."""
        self._last = batch, share
        self._gradient[...] = 0.0
        if rows_of(batch) == 0:
            return None
        value, gradient = self.loss(batch)
        self._gradient += np.asarray(gradient, np.float32) * share
        return value

    def again(self) -> None:
        """See ``Trainable``."""
        assert self._last is not None
        self.backward(*self._last)

    def gradients(self) -> list[Array]:
        """See ``Trainable``."""
        return [self._gradient]

    def bind_gradients(self, buffers: Sequence[Array]) -> Callable[[], None] | None:
        """See ``Trainable``."""
        (buffer,) = buffers

        def use() -> None:
            self._gradient = buffer

        return use

    def bind_weights(self, buffers: Sequence[Array]) -> bool:
        """See ``Trainable``."""
        (buffer,) = buffers
        buffer[...] = self.values
        self.values = buffer
        return True

    def update(self, again: Callable[[], None] | None = None) -> None:
        """See ``Trainable``."""
        self.apply(self._gradient, *self._slice)

    def bounds(self, rank: int, size: int) -> list[tuple[int, int]] | None:
        """See ``Trainable``."""
        count = len(self.values)
        return [(count * rank // size, count * (rank + 1) // size)]

    def take_slice(self, bounds: Sequence[tuple[int, int]]) -> None:
        """See ``Trainable``."""
        self._slice = bounds[0]

    def weights(self) -> list[Array]:
        """See ``Trainable``."""
        return [self.values]

    def load_weights(self, weights: Sequence[Array]) -> None:
        """See ``Trainable``."""
        self.values[...] = weights[0]

    def optimizer_slice(self) -> bytes:
        """See ``Trainable``."""
        begin, end = self._slice
        return bytes(save({name: values[begin:end].copy() for name, values in self.slots.items()}))

    def state(self, slices: Sequence[bytes] | None = None) -> State:
        """See ``Trainable``."""
        slots = self.slots
        if slices is not None:
            parts = [load(each) for each in slices]
            slots = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        return {"model": bytes(save({"values": self.values})), "optimizer": bytes(save(slots))}
