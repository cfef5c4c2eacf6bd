"""Metrics of an epoch's training rows, counted as they pass: states that add up over replicas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt

from firesteel.core.metrics import Metric

__all__ = ["Tallies"]

Array = npt.NDArray[Any]


class Tallies:
    """What one replica has counted since the epoch began."""

    def __init__(self, metrics: Mapping[str, Metric] | None) -> None:
        self._metrics = {name: metric.fresh() for name, metric in (metrics or {}).items()}

    def __bool__(self) -> bool:
        return bool(self._metrics)

    def add(self, output: Any, target: Any) -> None:
        """Count these rows."""
        for metric in self._metrics.values():
            metric(output, target)

    def states(self) -> list[Array]:
        """The states' arrays, one after the other."""
        return [array for metric in self._metrics.values() for _, array in sorted(metric.state().items())]

    def load(self, tallies: Sequence[Sequence[Array]]) -> None:
        """Begin with what replicas had counted before."""
        for metric in self._metrics.values():
            metric.reset()
        for states in tallies:
            arrays = iter(states)
            for metric in self._metrics.values():
                other = metric.fresh()
                other.load_state({name: next(arrays) for name in sorted(other.state())})
                metric.merge(other)

    def figures(self, tallies: Sequence[Sequence[Array]]) -> dict[str, float]:
        """What all replicas' counts come to; this one begins anew."""
        self.load(tallies)
        found: dict[str, Any] = {}
        for name, metric in self._metrics.items():
            value = metric.compute()
            found |= value if metric.is_several else {name: value}
            metric.reset()
        return {name: float(value) for name, value in found.items() if isinstance(value, float)}
