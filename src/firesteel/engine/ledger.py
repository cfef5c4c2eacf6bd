"""What this replica's steps cost: losses, rows, rates and times, until all replicas add them up."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from firesteel.core.ports import Group

__all__ = ["Ledger", "Totals"]


@dataclass(frozen=True)
class Totals:
    """The same steps over all replicas."""

    losses: list[float]
    rows: list[int]
    rates: list[float]
    times: list[float]
    seconds: list[float]
    epochs: list[int]
    """Epochs done."""
    ends: list[bool]
    """Whether the step ended one."""
    loss_sum: float

    def event(self, last_step: int) -> dict[str, Any]:
        """As the driver wants to hear it."""
        return {
            "name": "steps",
            "first": last_step - len(self.losses) + 1,
            "losses": self.losses,
            "rows": self.rows,
            "rates": self.rates,
            "times": self.times,
            "seconds": self.seconds,
            "epochs": self.epochs,
            "ends": self.ends,
        }


@dataclass
class Ledger:
    """Entries since the last agreement: exchanging them once for many steps costs next to nothing per step."""

    _entries: list[tuple[float, int]] = field(default_factory=list)
    _about: list[tuple[float, float, float, int, bool]] = field(default_factory=list)

    def add(self, loss_sum: float, rows: int, rate: float, seconds: float, epochs: int, is_epoch_end: bool) -> None:
        """One step: this replica's part of the loss and of the rows; the update's rate; how long it took; the epoch."""
        self._entries.append((loss_sum, rows))
        self._about.append((rate, time.time(), seconds, epochs, is_epoch_end))

    def agree(self, group: Group) -> Totals | None:
        """Add up over all replicas and start afresh; ``None`` when there was no step. A collective."""
        if not self._entries:
            return None
        sums = np.array(self._entries, dtype=np.float64)  # (steps, 2)
        group.all_reduce(sums)
        names = ("rates", "times", "seconds", "epochs", "ends")
        about: dict[str, Any] = dict(zip(names, map(list, zip(*self._about, strict=True)), strict=True))
        self._entries.clear()
        self._about.clear()
        losses = sums[:, 0] / np.maximum(sums[:, 1], 1)
        return Totals(losses.tolist(), sums[:, 1].astype(int).tolist(), loss_sum=float(sums[:, 0].sum()), **about)
