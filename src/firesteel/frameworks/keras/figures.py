"""A Keras model's loss and metrics as states that add up.

A metric of Keras keeps sums, counts and confusion matrices in variables. So what several processes saw is the sum of
their variables, and the value read off from that is the one that a single process would have found. Whether a
metric is of that kind is found out on the way: adding rows must add to its state what these rows alone make of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from firesteel.core.errors import PlanError
from firesteel.core.metrics import Metric

__all__ = ["KerasFigures", "read_states"]

Array = npt.NDArray[Any]

_ABOUT = "about"


def read_states(model: Any) -> list[Array]:
    """The variables of all the model's metrics."""
    return [np.asarray(variable) for variable in _variables(model)]


class KerasFigures(Metric):
    """All figures of a model in one: its states travel as any metric's, its values need the model."""

    is_several = True

    def __init__(self) -> None:
        super().__init__()
        self._model: Any = None
        self._parts: list[Array] = []
        self.about: list[list[Any]] = []
        """Names, dtypes and shapes of the tensors that were measured: a model elsewhere is built by them."""

    @classmethod
    def of(cls, tallies: Sequence[Sequence[Array]]) -> KerasFigures:
        """The sum of several processes' states."""
        made = cls()
        for tally in tallies:
            made._add(list(tally))
        return made

    def measure(self, model: Any, run: Callable[[], None], about: list[list[Any]]) -> None:
        """Add what ``run`` puts into the model's metrics, which are this one's alone meanwhile."""
        self.about = about
        before = read_states(model)
        model.reset_metrics()
        run()
        self._add(read_states(model))
        self._model = model
        _write(model, before)

    def result(self, model: Any) -> dict[str, float]:
        """The values, by their names in Keras. The model's own states are what they were afterwards."""
        before = read_states(model)
        if self._parts:
            _write(model, self._parts)
        found = {name: _plain(value) for name, value in model.get_metrics_result().items()}
        _write(model, before)
        return found

    def compute(self) -> Any:
        """The values, where a model was measured in this process."""
        return {} if self._model is None else self.result(self._model)

    def fresh(self) -> KerasFigures:
        """One that has seen nothing, of the same model."""
        made = KerasFigures()
        made._model = self._model
        return made

    def reset(self) -> None:
        """Forget all rows."""
        self._parts = []

    def merge(self, other: Any) -> KerasFigures:
        """Add what another has seen."""
        self._add(other._parts)
        self._model = self._model or other._model
        self.about = self.about or other.about
        return self

    def state(self) -> dict[str, Array]:
        """For another process."""
        about = np.frombuffer(json.dumps(self.about).encode(), np.uint8)
        return {_ABOUT: about, **{f"{place:04d}": part for place, part in enumerate(self._parts)}}

    def load_state(self, state: dict[str, Array]) -> None:
        """The reverse."""
        self.about = json.loads(bytes(state[_ABOUT])) if _ABOUT in state else []
        self._parts = [np.array(state[name]) for name in sorted(state) if name != _ABOUT]

    def _add(self, parts: list[Array]) -> None:
        if not parts:
            return
        if not self._parts:
            self._parts = [np.array(part) for part in parts]
            return
        if [part.shape for part in parts] != [part.shape for part in self._parts]:
            raise PlanError("a metric's state changes its shape with the rows it sees; such a one cannot be merged")
        self._parts = [mine + theirs for mine, theirs in zip(self._parts, parts, strict=True)]

    def _empty(self) -> dict[str, Array]:
        return {}

    def _measure(self, preds: Array, targets: Array) -> dict[str, Array]:
        raise PlanError("a Keras model's figures are measured by the model itself")


def _variables(model: Any) -> Iterable[Any]:
    seen: set[int] = set()
    for metric in model.metrics:
        for variable in metric.variables:
            if id(variable) not in seen:
                seen.add(id(variable))
                yield variable


def _write(model: Any, states: Sequence[Array]) -> None:
    for variable, values in zip(_variables(model), states, strict=True):
        variable.assign(np.asarray(values).astype(variable.dtype))


def _plain(value: Any) -> Any:
    array = np.asarray(value)
    return float(array) if array.ndim == 0 else array
