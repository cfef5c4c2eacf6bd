"""A Keras model's loss and metrics as states that add up.

A metric of Keras keeps sums, counts and confusion matrices in variables. So what several processes saw is the sum of
their variables, and the value read off from that is the one that a single process would have found. Whether a metric
of the user's own is of that kind is tried out on the first rows: what two halves make must be what both together make.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from firesteel.core.errors import PlanError
from firesteel.core.metrics import Metric
from firesteel.frameworks.keras.variables import numpy_of

__all__ = ["Accounts", "KerasFigures", "check_adds_up", "own_metrics", "read_states"]

Array = npt.NDArray[Any]

_ABOUT = "about"


def read_states(model: Any) -> list[Array]:
    """The variables of all the model's metrics, copied."""
    return [numpy_of(variable) for variable in _variables(model)]


class Accounts:
    """Whose states are in the model's metrics now: the training's, or a measurement's. Moved only when that changes."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self._open: KerasFigures | None = None
        self._training: list[Array] | None = None

    def enter(self, figures: KerasFigures | None) -> None:
        """From now on rows count for ``figures``; ``None`` is the training."""
        if figures is self._open:
            return
        self.save()
        self._open = figures
        states = self._training if figures is None else figures.parts
        if states:
            write_states(self.model, states)
        else:
            self.model.reset_metrics()

    def save(self) -> None:
        """Put what the model's metrics hold where it belongs."""
        states = read_states(self.model)
        if self._open is None:
            self._training = states
        else:
            self._open.parts = states

    def is_open(self, figures: KerasFigures) -> bool:
        """Whether rows count for ``figures`` now."""
        return figures is self._open

    def training(self) -> list[Array]:
        """The training's states so far."""
        self.enter(None)
        return read_states(self.model)

    def load_training(self, states: Sequence[Array]) -> None:
        """Let the training go on from these."""
        self.enter(None)
        write_states(self.model, states)


class KerasFigures(Metric):
    """All figures of a model in one: its states travel as any metric's, its values need the model."""

    is_several = True

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[Array] = []
        self.accounts: Accounts | None = None
        self.about: list[list[Any]] = []
        """Names, dtypes and shapes of the tensors that were measured: a model elsewhere is built by them."""

    @classmethod
    def of(cls, tallies: Sequence[Sequence[Array]]) -> KerasFigures:
        """The sum of several processes' states."""
        made = cls()
        for tally in tallies:
            made._add(list(tally))
        return made

    def values(self, model: Any) -> dict[str, Any]:
        """The values, by their names in Keras. The model's own states are what they were afterwards."""
        self._settle()
        before = read_states(model)
        if self.parts:
            write_states(model, self.parts)
        found = {name: _plain(value) for name, value in model.get_metrics_result().items()}
        write_states(model, before)
        return found

    def compute(self) -> Any:
        """The values, where a model is at hand in this process."""
        return {} if self.accounts is None else self.values(self.accounts.model)

    def fresh(self) -> KerasFigures:
        """One that has seen nothing, of the same model."""
        made = KerasFigures()
        made.accounts = self.accounts
        return made

    def reset(self) -> None:
        """Forget all rows."""
        self._settle()
        if self.accounts is not None:
            self.accounts.enter(None)
        self.parts = []

    def merge(self, other: Any) -> KerasFigures:
        """Add what another has seen."""
        self._settle()
        if self.accounts is not None:
            self.accounts.enter(None)
        self._add(other._settle())
        self.accounts = self.accounts or other.accounts
        self.about = self.about or other.about
        return self

    def state(self) -> dict[str, Array]:
        """For another process."""
        about = np.frombuffer(json.dumps(self.about).encode(), np.uint8)
        return {_ABOUT: about, **{f"{place:04d}": part for place, part in enumerate(self._settle())}}

    def load_state(self, state: dict[str, Array]) -> None:
        """The reverse."""
        self.about = json.loads(bytes(state[_ABOUT])) if _ABOUT in state else []
        self.parts = [np.array(state[name]) for name in sorted(state) if name != _ABOUT]

    def _settle(self) -> list[Array]:
        if self.accounts is not None and self.accounts.is_open(self):
            self.accounts.save()
        return self.parts

    def _add(self, parts: list[Array]) -> None:
        if not parts:
            return
        if not self.parts:
            self.parts = [np.array(part) for part in parts]
            return
        if [part.shape for part in parts] != [part.shape for part in self.parts]:
            raise PlanError("a metric's state changes its shape with the rows it sees; such a one cannot be merged")
        self.parts = [mine + theirs for mine, theirs in zip(self.parts, parts, strict=True)]

    def _empty(self) -> dict[str, Array]:
        return {}

    def _measure(self, preds: Array, targets: Array) -> dict[str, Array]:
        raise PlanError("a Keras model's figures are measured by the model itself")


def own_metrics(model: Any) -> list[Any]:
    """The metrics that are of the user's own classes."""
    found = []
    for metric in model.metrics:
        inner = getattr(metric, "metrics", None) or [metric]
        found += [each for each in inner if not type(each).__module__.startswith("keras.")]
    return found


def check_adds_up(model: Any, run: Callable[[slice], None], rows: int) -> None:
    """``PlanError`` where a metric's state after some rows is not the sum of what their parts make of it.

    The states are left as they were.
    """
    before = read_states(model)
    halves = slice(0, rows // 2), slice(rows // 2, rows)
    sums = {}
    for names in (halves[:1], halves[1:], halves):
        model.reset_metrics()
        for part in names:
            run(part)
        sums[len(sums)] = [[numpy_of(v) for v in metric.variables] for metric in own_metrics(model)]
    write_states(model, before)
    for metric, first, second, both in zip(own_metrics(model), *sums.values(), strict=True):
        for one, two, whole in zip(first, second, both, strict=True):
            if one.shape != whole.shape or not np.allclose(one + two, whole, rtol=1e-4, atol=1e-5, equal_nan=True):
                raise PlanError(
                    f"the metric {metric.name!r} ({type(metric).__qualname__}) cannot be merged over replicas: what it "
                    f"keeps for some rows is not the sum of what it keeps for their parts. Let it keep sums and counts"
                )


def write_states(model: Any, states: Sequence[Array]) -> None:
    """Put states that ``read_states`` gave into the model's metrics."""
    for variable, values in zip(_variables(model), states, strict=True):
        variable.assign(np.asarray(values).astype(variable.dtype))


def _variables(model: Any) -> Iterable[Any]:
    seen: set[int] = set()
    for metric in model.metrics:
        for variable in metric.variables:
            if id(variable) not in seen:
                seen.add(id(variable))
                yield variable


def _plain(value: Any) -> Any:
    array = np.asarray(value)
    return float(array) if array.ndim == 0 else array
