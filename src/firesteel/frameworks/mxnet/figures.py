"""MXNet's metrics as states that add up over replicas: sums and counts, or confusion counts.

A metric that keeps anything else cannot be merged, and says so as soon as there is something to merge.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import mxnet as mx
import numpy as np
import numpy.typing as npt

from firesteel.core.errors import PlanError, UnsupportedError
from firesteel.core.metrics import Metric

__all__ = ["MXNetFigures", "make_metric", "metric_names", "read_states", "values_of", "write_states"]

Array = npt.NDArray[Any]

_SUMS = ("sum_metric", "num_inst", "global_sum_metric", "global_num_inst")
_COUNTS = ("true_positives", "false_negatives", "false_positives", "true_negatives")
_START = "_firesteel_start"


def make_metric(creator: Callable[..., Any] | None, config: dict[str, Any]) -> Any:
    """The metric, or several as one, that a creator makes; ``None`` without one."""
    if creator is None:
        return None
    made = creator(dict(config))
    try:
        metric = mx.metric.create(list(made) if isinstance(made, (list, tuple)) else made)
    except (AssertionError, TypeError, ValueError) as error:
        raise PlanError(
            f"a metrics creator must return a metric of MXNet, its name, or a list of them: {error}"
        ) from error
    metric.reset()
    for each in _leaves(metric):
        # To find out on the way whether it keeps more than sums.
        vars(each)[_START] = {key: copy.deepcopy(value) for key, value in vars(each).items() if key not in _SUMS}
    return metric


def metric_names(creator: Callable[..., Any] | None, config: dict[str, Any]) -> list[str]:
    """The names of a creator's metrics. Driver only."""
    metric = make_metric(creator, config)
    return [] if metric is None else list(values_of(metric))


def values_of(metric: Any) -> dict[str, float]:
    """Values by name, as MXNet has them."""
    return {} if metric is None else {name: float(value) for name, value in metric.get_name_value()}


def read_states(metric: Any) -> list[Array]:
    """What is summed over replicas, for each metric an array. One of length 0: this one cannot be."""
    return [] if metric is None else [_read(each) for each in _leaves(metric)]


def write_states(metric: Any, tallies: Sequence[Sequence[Array]]) -> None:
    """Give a metric the sum of several replicas' states."""
    if metric is None:
        return
    for place, each in enumerate(_leaves(metric)):
        parts = [np.asarray(tally[place]) for tally in tallies if len(tally)]
        if any(part.size == 0 for part in parts):
            raise UnsupportedError(
                f"the metric {each.name!r} keeps neither sums and counts nor confusion counts, so what several workers "
                f"saw cannot be merged; use num_workers=1, or another metric"
            )
        if parts:
            _write(each, _padded_sum(parts))


def _leaves(metric: Any) -> Iterator[Any]:
    if isinstance(metric, mx.metric.CompositeEvalMetric):
        for each in metric.metrics:
            yield from _leaves(each)
    else:
        yield metric


def _confusion(metric: Any) -> Any:
    """Where F1 and MCC count, unless they are means of batches' values."""
    if isinstance(metric, mx.metric.F1) and metric.average != "macro":
        return metric.metrics
    if isinstance(metric, mx.metric.MCC) and metric._average != "macro":
        return metric._metrics
    return None


def _read(metric: Any) -> Array:
    counts = _confusion(metric)
    if counts is not None:
        return np.array([float(getattr(counts, name)) for name in _COUNTS])
    if isinstance(metric, mx.metric.PCC):
        return np.concatenate([[float(metric.num_inst)], metric.lcm.reshape(-1)])
    if not _keeps_sums(metric):
        return np.empty(0)
    return np.array([float(metric.sum_metric), float(metric.num_inst)])


def _keeps_sums(metric: Any) -> bool:
    """Whether sum and count are all that rows have changed."""
    if isinstance(metric, (mx.metric.F1, mx.metric.MCC)):
        return True
    if not all(hasattr(metric, name) for name in _SUMS[:2]):
        return False
    start = vars(metric)[_START]
    now = {key: value for key, value in vars(metric).items() if key not in (*_SUMS, _START)}
    return start.keys() == now.keys() and all(_is_same(start[key], value) for key, value in now.items())


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return bool(np.array_equal(one, other))
    if callable(one):
        return True
    return bool(one == other) or repr(one) == repr(other)


def _write(metric: Any, state: Array) -> None:
    counts = _confusion(metric)
    if counts is not None:
        for name, value in zip(_COUNTS, state, strict=True):
            setattr(counts, name, int(value))
            setattr(counts, f"global_{name}", int(value))
        total = counts.total_examples
        metric.num_inst = metric.global_num_inst = total
        value = counts.fscore if isinstance(metric, mx.metric.F1) else counts.matthewscc()
        metric.sum_metric = metric.global_sum_metric = value * total
    elif isinstance(metric, mx.metric.PCC):
        side = round((len(state) - 1) ** 0.5)
        metric.k, metric.num_inst, metric.global_num_inst = side, state[0], state[0]
        metric.lcm = state[1:].reshape(side, side)
        metric.gcm = metric.lcm.copy()
    else:
        metric.sum_metric = metric.global_sum_metric = float(state[0])
        metric.num_inst = metric.global_num_inst = state[1]


def _padded_sum(parts: Sequence[Array]) -> Array:
    """Confusion matrices of different sizes are those of the largest, with zeros."""
    largest = max(len(part) for part in parts)
    if all(len(part) == largest for part in parts):
        return np.sum(parts, axis=0)
    side = round((largest - 1) ** 0.5)
    total = np.zeros((side, side))
    for part in parts:
        own = round((len(part) - 1) ** 0.5)
        total[:own, :own] += part[1:].reshape(own, own)
    return np.concatenate([[sum(part[0] for part in parts)], total.reshape(-1)])


class MXNetFigures(Metric):
    """The metrics that a creator makes, as one of ours: for validation and evaluation."""

    is_several = True

    def __init__(self, creator: Callable[..., Any] | None, config: dict[str, Any]) -> None:
        super().__init__(creator=creator, config=config)
        self._metric: Any = None
        self._tallies: list[list[Array]] = []

    def measure(self, labels: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Add these rows."""
        if self._metric is None:
            self._metric = make_metric(self._settings["creator"], self._settings["config"])
        if self._metric is not None:
            self._metric.update(list(labels), list(outputs))

    def compute(self) -> dict[str, float]:
        """The values, by MXNet's names."""
        if self._settings["creator"] is None:
            return {}
        tallies = self._all()
        if self._metric is not None and not self._tallies:
            return values_of(self._metric)
        metric = make_metric(self._settings["creator"], self._settings["config"])
        if len(tallies) == 1:
            return dict(zip(values_of(metric), tallies[0][0].tolist(), strict=True))
        write_states(metric, [tally[1:] for tally in tallies])
        return values_of(metric)

    def reset(self) -> None:
        """Forget all rows."""
        self._metric, self._tallies = None, []

    def merge(self, other: Any) -> None:
        """Add what another has seen."""
        self._tallies += other._all()

    def state(self) -> dict[str, Array]:
        """For another process."""
        return {
            f"{number:04d}/{place:04d}": part
            for number, tally in enumerate(self._all())
            for place, part in enumerate(tally)
        }

    def load_state(self, state: Any) -> None:
        """The reverse."""
        found: dict[str, list[Array]] = {}
        for name in sorted(state):
            found.setdefault(name.partition("/")[0], []).append(np.array(state[name]))
        self._tallies = list(found.values())

    def _all(self) -> list[list[Array]]:
        return self._tallies if self._metric is None else [*self._tallies, _tally(self._metric)]

    def _empty(self) -> dict[str, Array]:
        return {}

    def _measure(self, preds: Array, targets: Array) -> dict[str, Array]:
        raise PlanError("MXNet's metrics are fed with its own arrays")


def _tally(metric: Any) -> list[Array]:
    """The values that this process found, which is all that some can tell; then the states."""
    return [np.array(list(values_of(metric).values())), *read_states(metric)]
