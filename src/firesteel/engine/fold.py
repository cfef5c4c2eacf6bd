"""Reduce: metric states and losses folded over batches, exactly: states are merged, never averages of averages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from firesteel.core.metrics import Metric
from firesteel.core.ports import Replica
from firesteel.core.spec import Batch, rows_of
from firesteel.data.packed import pack, unpack

__all__ = ["Fold"]


@dataclass
class Fold:
    """Loss and metrics over the rows seen so far."""

    metrics: Mapping[str, Metric]
    rows: int = 0
    loss_sum: Any = 0.0
    """A number; an array where the loss has parts that divide by several things, as ``loss_mass`` then."""
    loss_mass: Any = 0.0
    has_loss: bool = False

    @classmethod
    def fresh(cls, metrics: Mapping[str, Metric]) -> Fold:
        """One that has seen nothing."""
        return cls({name: metric.fresh() for name, metric in metrics.items()})

    def feed(self, replica: Replica, batch: Batch) -> None:
        """Add a batch's rows."""
        rows = rows_of(batch)
        if rows == 0:
            return
        loss = replica.measure(batch, self.metrics)
        self.rows += rows
        if loss is not None:
            self.has_loss = True
            self.loss_sum = self.loss_sum + loss[0]
            self.loss_mass = self.loss_mass + loss[1]

    def to_bytes(self) -> bytes:
        """The states, for another process."""
        states: Batch = {}
        for name, metric in self.metrics.items():
            states |= {f"{name}/{key}": value for key, value in metric.state().items()}
        header, data = pack(states)
        loss = [np.asarray(each).tolist() for each in (self.loss_sum, self.loss_mass)]
        note = json.dumps({"rows": self.rows, "loss": loss, "has_loss": self.has_loss, "header": header}).encode()
        return len(note).to_bytes(8, "little") + note + data

    def merge(self, others: Iterable[bytes]) -> Fold:
        """Add what other processes saw (``to_bytes``)."""
        for data in others:
            size = int.from_bytes(data[:8], "little")
            note = json.loads(data[8 : 8 + size])
            states = unpack(note["header"], data[8 + size :])
            self.rows += note["rows"]
            self.loss_sum, self.loss_mass = (
                np.add(mine, other)[()]
                for mine, other in zip((self.loss_sum, self.loss_mass), note["loss"], strict=True)
            )
            self.has_loss = self.has_loss or note["has_loss"]
            for name, metric in self.metrics.items():
                other = metric.fresh()
                prefix = f"{name}/"
                other.load_state({k[len(prefix) :]: v for k, v in states.items() if k.startswith(prefix)})
                metric.merge(other)
        return self

    def figures(self) -> dict[str, Any]:
        """Metric values by name; a metric that is several gives each of its own."""
        found: dict[str, Any] = {}
        for name, metric in self.metrics.items():
            value = metric.compute()
            found |= value if metric.is_several else {name: value}
        return found

    @property
    def loss(self) -> float | None:
        """Mean loss over all rows."""
        if not self.has_loss or not np.any(self.loss_mass):
            return None
        sums, masses = np.atleast_1d(self.loss_sum), np.atleast_1d(self.loss_mass)
        return float(np.divide(sums, masses, out=np.zeros(len(sums)), where=masses != 0).sum())
