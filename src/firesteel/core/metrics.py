"""Metrics as sums: a batch becomes a small state of arrays, states add up, and a value is read off at the end.

Because states only ever add, any split of the rows over batches, replicas and processes gives the value of a
single pass: sums and counts, confusion counts and score histograms travel, never averages of averages.

Metric                        call, compute, reset, merge, state, load_state, fresh
├── mean of row values        MAE, MSE, the accuracies, the cross entropies, KLDivergence, Poisson, MeanOf
├── confusion counts          Precision, Recall, F1Score
└── score histogram           AUC, ROC, PrecisionRecallCurve

A score counts as positive when it is above 0.5 (exactly 0.5 is negative, as in Keras).
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from numbers import Integral
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from firesteel.core.errors import PlanError

__all__ = [
    "AUC",
    "MAE",
    "MSE",
    "ROC",
    "Accuracy",
    "BinaryAccuracy",
    "BinaryCrossEntropy",
    "CategoricalAccuracy",
    "CategoricalCrossEntropy",
    "F1Score",
    "KLDivergence",
    "MeanOf",
    "Metric",
    "Poisson",
    "Precision",
    "PrecisionRecallCurve",
    "Recall",
    "SparseCategoricalAccuracy",
    "SparseCategoricalCrossEntropy",
    "Top5Accuracy",
    "as_metrics",
]

Array = npt.NDArray[Any]
State = dict[str, Array]

_EPSILON = 1e-7
"""Keeps logarithms finite; the same number as Keras and BigDL use."""


class Metric(ABC):
    """A figure over rows, fed batch by batch: ``metric(preds, targets)``, then ``metric.compute()``.

    ``preds`` and ``targets`` are arrays with one leading length, or whatever NumPy can read; torch tensors may
    need gradients, be bfloat16 and live on a device. Labels of shape ``(rows,)`` and ``(rows, 1)`` mean the same.
    A batch of no rows changes nothing.

    A subclass says three things: ``_empty()``, the state before any row; ``_measure(preds, targets)``, the state
    of one batch of at least one row; ``compute()``. Its constructor hands its arguments, by name, to
    ``super().__init__``, so that ``fresh`` and ``merge`` know them.
    """

    is_several = False
    """Whether ``compute`` gives a dict of values, each with a name of its own."""

    def __init__(self, **settings: Any) -> None:
        self._settings = settings
        self._state = self._empty()

    @abstractmethod
    def _empty(self) -> State:
        """The state before any row. A length of 0 stands for one that the first batch decides."""

    @abstractmethod
    def _measure(self, preds: Array, targets: Array) -> State:
        """The state of one batch of at least one row."""

    @abstractmethod
    def compute(self) -> Any:
        """The value over all rows seen since the last ``reset``."""

    def __call__(self, preds: Any, targets: Any) -> None:
        """Adds one batch. Returns nothing: a value per batch is work that nobody reads; ask ``compute``.

        Raises:
            PlanError: the shapes do not fit each other, or a label is none of the classes.
        """
        preds, targets = self._read(preds, "predictions"), self._read(targets, "targets")
        if min(preds.ndim, targets.ndim) == 0:
            raise self._misfit(preds, targets, "a leading axis of rows in both")
        if len(preds) == len(targets) == 0:
            return
        # A diverged model shows in the value (nan, inf); a warning in a task's log would tell nobody.
        with np.errstate(over="ignore", invalid="ignore"):
            self._absorb(self._measure(preds, targets))

    def reset(self) -> None:
        """Forgets all rows."""
        self._state = self._empty()

    def merge(self, other: Metric) -> None:
        """Adds the rows that ``other`` has seen; ``other`` stays as it is.

        Raises:
            PlanError: ``other`` is of another class, has other settings, or has seen data of another layout.
        """
        if self._identity() != other._identity():
            raise PlanError(f"{self} and {other} cannot be merged: they must be of one class with equal settings.")
        self._absorb(other._state)

    def fresh(self) -> Self:
        """A metric with the same settings that has seen no rows."""
        return type(self)(**self._settings)

    def get_name(self) -> str:
        """The class's name: the key in results."""
        return type(self).__name__

    def state(self) -> State:
        """What has been seen so far, as a copy: numeric arrays only, so that it travels without pickle."""
        return {name: array.copy() for name, array in self._state.items()}

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Replaces what has been seen with a ``state()``; to add it instead, ``merge`` a ``fresh()`` one that loads it.

        Raises:
            PlanError: the state is not that of a metric with this class and these settings.
        """
        empty = self._empty()
        if state.keys() != empty.keys():
            raise PlanError(f"{self} has a state of {sorted(empty)}, not of {sorted(state)}.")
        for name, model in empty.items():
            found = np.asarray(state[name])
            fits = len(found.shape) == len(model.shape) and all(
                length in (0, other) for length, other in zip(model.shape, found.shape, strict=True)
            )
            if not fits or not np.can_cast(found.dtype, model.dtype, "same_kind"):
                raise PlanError(
                    f"{self} has a state {name!r} of {model.dtype} and shape {model.shape}, "
                    f"not of {found.dtype} and shape {found.shape}."
                )
        self._state = {name: np.array(state[name], dtype=model.dtype) for name, model in empty.items()}

    def __repr__(self) -> str:
        return f"{self.get_name()}({', '.join(f'{name}={value!r}' for name, value in self._settings.items())})"

    def _identity(self) -> tuple[Any, ...]:
        """What two metrics must share to be merged."""
        return type(self), self._settings

    def _absorb(self, state: State) -> None:
        for name, array in state.items():
            self._state[name] += array

    # -- reading arguments; methods only so that errors can name the metric

    def _read(self, value: Any, what: str) -> Array:
        """``value`` as an array of booleans, integers or floats, not copied unless it must be."""
        # Duck typing stands for torch here: core must not import it.
        for step in ("detach", "cpu"):
            if callable(method := getattr(value, step, None)):
                value = method()
        if callable(is_floating := getattr(value, "is_floating_point", None)) and is_floating():
            value = value.float() if value.element_size() < 4 else value  # NumPy cannot read bfloat16
        try:
            array = np.asarray(value)
            if array.dtype.kind == "V":  # JAX's and TensorFlow's bfloat16 (ml_dtypes)
                array = array.astype(np.float32)
        except (TypeError, ValueError, RuntimeError) as error:
            raise PlanError(f"{self.get_name()} cannot read the {what} as one array: {error}") from error
        if array.dtype.kind not in "biuf":
            raise PlanError(f"{self.get_name()} takes numbers, but the {what} are of {array.dtype}.")
        return array

    def _misfit(self, preds: Array, targets: Array, expected: str) -> PlanError:
        return PlanError(
            f"{self.get_name()} needs {expected}, but predictions have shape {preds.shape} "
            f"and targets shape {targets.shape}."
        )

    def _paired(self, preds: Array, targets: Array) -> tuple[Array, Array]:
        """Both with equal shapes, the shorter one of ``(rows,)`` and ``(rows, 1)`` (else NumPy would broadcast)."""
        pair = _pair(preds, targets)
        if pair is None:
            raise self._misfit(preds, targets, "one target for each prediction")
        return pair

    def _paired_floats(self, preds: Array, targets: Array) -> tuple[Array, Array]:
        preds, targets = self._paired(preds, targets)
        return preds.astype(np.float64, copy=False), targets.astype(np.float64, copy=False)

    def _paired_classes(self, preds: Array, targets: Array) -> tuple[Array, Array]:
        """Float predictions and one-hot (or soft) targets, both ``(rows, ..., classes)``."""
        if preds.shape != targets.shape or preds.ndim < 2:
            raise self._misfit(preds, targets, "predictions and targets of shape (rows, classes)")
        return preds.astype(np.float64, copy=False), targets.astype(np.float64, copy=False)

    def _labels(self, preds: Array, targets: Array, first_label: int = 0) -> Array:
        """Targets as indices into the last axis of ``preds``: int64, of shape ``preds.shape[:-1]``."""
        if targets.shape not in (preds.shape[:-1], (*preds.shape[:-1], 1)) or preds.ndim < 2:
            raise self._misfit(preds, targets, "predictions of shape (rows, classes) and one label a row")
        return self._indices(targets.reshape(preds.shape[:-1]), preds.shape[-1], first_label)

    def _indices(self, labels: Array, classes: int, first_label: int = 0) -> Array:
        """Labels as int64, counted from 0.

        A label outside the classes is an error and not a wrong answer: it mostly means labels counted from 1.
        """
        indices = labels.astype(np.int64) - first_label
        wrong = (indices != labels - first_label) | (indices < 0) | (indices >= classes)
        if wrong.any():
            last_label = classes - 1 + first_label
            found = labels[wrong].flat[0]
            raise PlanError(f"{self.get_name()} needs whole labels from {first_label} to {last_label}, not {found}.")
        return indices


def _pair(preds: Array, targets: Array) -> tuple[Array, Array] | None:
    """Both with equal shapes if they differ by a last axis of length 1 at most, else None."""
    if preds.shape == targets.shape:
        return preds, targets
    if preds.shape == (*targets.shape, 1):
        return preds[..., 0], targets
    if targets.shape == (*preds.shape, 1):
        return preds, targets[..., 0]
    return None


# -- means ------------------------------------------------------------------------------------------------------------


class _Mean(Metric):
    """The mean of one value per row, or per position of a row: a float64 sum and an int64 count."""

    def _empty(self) -> State:
        return {"total": np.zeros((), np.float64), "count": np.zeros((), np.int64)}

    def _measure(self, preds: Array, targets: Array) -> State:
        values = self._values(preds, targets)
        return {"total": np.asarray(values.sum(dtype=np.float64)), "count": np.asarray(values.size)}

    @abstractmethod
    def _values(self, preds: Array, targets: Array) -> Array:
        """What the mean is taken of: numbers, or booleans for right and wrong."""

    def compute(self) -> float:
        """The mean over all rows seen since the last ``reset``; nan without rows."""
        count = int(self._state["count"])
        return float(self._state["total"]) / count if count else float("nan")


class Accuracy(_Mean):
    """The share of right answers, whatever the answers look like.

    With one more axis in the predictions than in the labels, the index of the largest output is the answer. With
    equal shapes, float predictions are scores, rounded at 0.5; integers are answers already. A single output a row,
    ``(rows, 1)``, is a score.

    Args:
        zero_based_label: whether labels count from 0; False takes labels that count from 1.
    """

    def __init__(self, zero_based_label: bool = True) -> None:
        super().__init__(zero_based_label=zero_based_label)
        self._first_label = 0 if zero_based_label else 1

    def _values(self, preds: Array, targets: Array) -> Array:
        pair = _pair(preds, targets)
        if pair is None:
            labels = self._labels(preds, targets, self._first_label)
            return np.asarray(preds.argmax(axis=-1) == labels)
        answers, labels = pair
        if answers.dtype.kind == "f":
            answers = answers > 0.5
        return np.asarray(answers == labels.astype(np.float64, copy=False) - self._first_label)


class SparseCategoricalAccuracy(_Mean):
    """The share of rows whose largest output is at the label's index; labels count from 0."""

    def _values(self, preds: Array, targets: Array) -> Array:
        labels = self._labels(preds, targets)
        return np.asarray(preds.argmax(axis=-1) == labels)


class CategoricalAccuracy(_Mean):
    """The share of rows whose largest output is where the one-hot target's largest is."""

    def _values(self, preds: Array, targets: Array) -> Array:
        preds, targets = self._paired_classes(preds, targets)
        return np.asarray(preds.argmax(axis=-1) == targets.argmax(axis=-1))


class BinaryAccuracy(_Mean):
    """The share of scores on their label's side of 0.5; labels are 0 and 1."""

    def _values(self, preds: Array, targets: Array) -> Array:
        preds, targets = self._paired(preds, targets)
        return np.asarray((preds > 0.5) == targets)


class Top5Accuracy(_Mean):
    """The share of rows whose label is among the five largest outputs; labels count from 0.

    Of equal outputs the first is the larger, as for ``argmax``; so a constant model is not always right.
    """

    def _values(self, preds: Array, targets: Array) -> Array:
        labels = self._labels(preds, targets)[..., np.newaxis]  # (rows, ..., 1)
        if preds.dtype.kind == "f":
            preds = np.where(np.isnan(preds), -np.inf, preds)
        own = np.take_along_axis(preds, labels, axis=-1)
        before = (preds > own) | ((preds == own) & (np.arange(preds.shape[-1]) < labels))
        return np.asarray(before.sum(axis=-1) < 5)


class MAE(_Mean):
    """The mean of absolute differences, over all elements."""

    def _values(self, preds: Array, targets: Array) -> Array:
        preds, targets = self._paired_floats(preds, targets)
        return np.asarray(np.abs(preds - targets))


class MSE(_Mean):
    """The mean of squared differences, over all elements."""

    def _values(self, preds: Array, targets: Array) -> Array:
        preds, targets = self._paired_floats(preds, targets)
        return np.asarray(np.square(preds - targets))


class BinaryCrossEntropy(_Mean):
    """``-t·log(p) - (1-t)·log(1-p)``, the mean over all elements; p is a probability, clipped to [1e-7, 1-1e-7]."""

    def _values(self, preds: Array, targets: Array) -> Array:
        preds, targets = self._paired_floats(preds, targets)
        preds = _clipped(preds)
        return np.asarray(-targets * np.log(preds) - (1 - targets) * np.log1p(-preds))


class CategoricalCrossEntropy(_Mean):
    """``-Σ t·log(p)`` over the classes, the mean over rows; targets are one-hot or soft.

    p are probabilities, clipped to [1e-7, 1-1e-7] and not scaled to sum to 1.
    """

    def _values(self, preds: Array, targets: Array) -> Array:
        preds, targets = self._paired_classes(preds, targets)
        return np.asarray(-(targets * np.log(_clipped(preds))).sum(axis=-1))


class SparseCategoricalCrossEntropy(_Mean):
    """``-log(p)`` at the label's index, the mean over rows; labels count from 0.

    p are probabilities, clipped to [1e-7, 1-1e-7] and not scaled to sum to 1.
    """

    def _values(self, preds: Array, targets: Array) -> Array:
        labels = self._labels(preds, targets)[..., np.newaxis]  # (rows, ..., 1)
        own = np.take_along_axis(preds, labels, axis=-1).astype(np.float64)
        return -np.log(_clipped(own))


class KLDivergence(_Mean):
    """``Σ t·log(t/p)`` over the last axis, the mean over rows; t and p are clipped to [1e-7, 1], as in Keras.

    ``(rows,)`` is read as ``(rows, 1)``.
    """

    def _values(self, preds: Array, targets: Array) -> Array:
        preds, targets = self._paired_floats(preds, targets)
        preds, targets = np.clip(preds, _EPSILON, 1), np.clip(targets, _EPSILON, 1)
        divergence = targets * np.log(targets / preds)
        return np.asarray(divergence.sum(axis=-1)) if divergence.ndim > 1 else divergence


class Poisson(_Mean):
    """``p - t·log(p + 1e-7)``, the mean over all elements."""

    def _values(self, preds: Array, targets: Array) -> Array:
        preds, targets = self._paired_floats(preds, targets)
        return np.asarray(preds - targets * np.log(preds + _EPSILON))


def _clipped(probabilities: Array) -> Array:
    return np.clip(probabilities, _EPSILON, 1 - _EPSILON)


class MeanOf(_Mean):
    """A user's function ``f(preds, targets)`` as a metric: its value per batch, averaged by rows.

    The mean equals a single pass exactly when the function is itself a mean over rows.

    Args:
        fn: the function; it returns one number.
        name: the key in results; None takes the function's own name.
    """

    def __init__(self, fn: Callable[[Any, Any], Any], name: str | None = None) -> None:
        self._fn = fn
        self._name = _name_of(fn) if name is None else name
        super().__init__(fn=fn, name=self._name)

    def __call__(self, preds: Any, targets: Any) -> None:
        """Adds one batch; the function gets the arguments unchanged, and is not called for a batch of no rows.

        The rows are those of the (first) target, or where targets have no length, of the first output.

        Raises:
            PlanError: the rows cannot be counted, or the function returned something else than one number.
        """
        rows = _row_count(targets)
        if rows is None:
            rows = _row_count(preds)
        if rows is None:
            raise PlanError(f"the rows of metric {self._name!r} cannot be counted: no target or output has a length.")
        if rows == 0:
            return
        value = self._read(self._fn(preds, targets), "results")
        if value.size != 1:
            raise PlanError(f"metric {self._name!r} must return one number a batch, not an array of {value.shape}.")
        self._absorb({"total": np.asarray(float(value.item()) * rows), "count": np.asarray(rows)})

    def get_name(self) -> str:
        """The name given, or the function's own."""
        return self._name

    def __repr__(self) -> str:
        return f"MeanOf({self._name})"

    def _identity(self) -> tuple[Any, ...]:
        # By name: a function that was shipped to two tasks comes back as two functions.
        return type(self), self._name

    def _values(self, preds: Array, targets: Array) -> Array:
        raise AssertionError("MeanOf does not read arrays")


def _row_count(value: Any) -> int | None:
    """The leading length of a tensor, of the first tensor of several, or of a list of plain values; None if none."""
    if isinstance(value, Mapping):
        return _row_count(next(iter(value.values()), None))
    shape = getattr(value, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    if isinstance(value, list | tuple):
        return _row_count(value[0]) if value and hasattr(value[0], "shape") else len(value)
    return None


# -- confusion counts -------------------------------------------------------------------------------------------------

_LAYOUTS = ("no rows", "one score a row", "classes", "labels")
"""What a confusion count was counted over; the index travels in the state."""


class _Confusion(Metric):
    """True positives, false positives and false negatives per class; 0/0 counts as 0.

    What the classes are follows from the shapes: one score a row at 0.5 (class 1 is the positive one); one more
    axis in the predictions than in the labels, the largest output; equal shapes with several columns, each column a
    question of its own at 0.5.

    Args:
        average: None gives the positive class's value for one score a row, else that of the counts of all classes
            together (micro). ``"micro"`` and ``"macro"`` ask for that average over all classes, also over the two
            of one score a row. Macro leaves out classes that neither labels nor predictions name.
    """

    def __init__(self, average: str | None = None) -> None:
        if average not in (None, "micro", "macro"):
            raise PlanError(f"average is None, 'micro' or 'macro', not {average!r}.")
        self._average = average
        super().__init__(average=average)

    def _empty(self) -> State:
        return {"layout": np.zeros((), np.int64), "counts": np.zeros((3, 0), np.int64)}

    def _measure(self, preds: Array, targets: Array) -> State:
        pair = _pair(preds, targets)
        if pair is None:
            labels = self._labels(preds, targets)
            layout, counts = "classes", _count_classes(preds.argmax(axis=-1), labels, preds.shape[-1])
        else:
            answers, labels = (pair[0] > 0.5).astype(np.int64), self._indices(pair[1], 2)
            if labels.size == len(labels):
                layout, counts = "one score a row", _count_classes(answers, labels, 2)
            else:
                layout, counts = "labels", _count_columns(answers, labels)
        return {"layout": np.asarray(_LAYOUTS.index(layout)), "counts": counts}

    def _absorb(self, state: State) -> None:
        mine, other = int(self._state["layout"]), int(state["layout"])
        if other == 0:
            return
        if mine == 0:
            self._state = {name: array.astype(np.int64) for name, array in state.items()}
            return
        shapes = self._state["counts"].shape[1], state["counts"].shape[1]
        if mine != other or shapes[0] != shapes[1]:
            raise PlanError(
                f"{self.get_name()} has counted {shapes[0]} classes ({_LAYOUTS[mine]}) and cannot add "
                f"{shapes[1]} classes ({_LAYOUTS[other]})."
            )
        self._state["counts"] += state["counts"]

    def compute(self) -> float:
        """The value over all rows seen since the last ``reset``; nan without rows."""
        layout, counts = _LAYOUTS[int(self._state["layout"])], self._state["counts"]
        if layout == "no rows":
            return float("nan")
        if self._average is None and layout == "one score a row":
            counts = counts[:, 1:]
        elif self._average == "macro":
            # A column without a single positive is still a question that was asked; a class without one was not.
            counts = counts if layout == "labels" else counts[:, counts.any(axis=0)]
        else:
            counts = counts.sum(axis=1, keepdims=True)
        part, whole = self._ratio(*counts)
        return float(np.divide(part, whole, out=np.zeros(len(whole)), where=whole > 0).mean())

    @abstractmethod
    def _ratio(self, true_positives: Array, false_positives: Array, false_negatives: Array) -> tuple[Array, Array]:
        """Numerator and denominator, per class."""


def _count_classes(answers: Array, labels: Array, classes: int) -> Array:
    """True positives, false positives and false negatives of each class: (3, classes)."""
    right = np.bincount(labels[answers == labels], minlength=classes)
    answered = np.bincount(answers.ravel(), minlength=classes)
    labelled = np.bincount(labels.ravel(), minlength=classes)
    return np.stack([right, answered - right, labelled - right])


def _count_columns(answers: Array, labels: Array) -> Array:
    """The same for each column of zeros and ones: (3, columns)."""
    outer = tuple(range(labels.ndim - 1))
    right, answered, labelled = (counted.sum(axis=outer) for counted in (answers & labels, answers, labels))
    return np.stack([right, answered - right, labelled - right])


class Precision(_Confusion):
    """The share of right ones among those predicted positive; no prediction at all is 0.

    The shapes decide what is counted: one score a row at 0.5, the largest output of several against a label, or, with
    equal shapes, each column at 0.5.

    Args:
        average: None is the positive class's for one score a row, else micro; ``"micro"``; ``"macro"``.
    """

    def _ratio(self, true_positives: Array, false_positives: Array, false_negatives: Array) -> tuple[Array, Array]:
        return true_positives, true_positives + false_positives


class Recall(_Confusion):
    """The share of found ones among those labelled positive; shapes and ``average`` as for ``Precision``."""

    def _ratio(self, true_positives: Array, false_positives: Array, false_negatives: Array) -> tuple[Array, Array]:
        return true_positives, true_positives + false_negatives


class F1Score(_Confusion):
    """The harmonic mean of precision and recall; shapes and ``average`` as for ``Precision``.

    Macro is the mean of the classes' F1, as in scikit-learn, not the F1 of mean precision and mean recall.
    """

    def _ratio(self, true_positives: Array, false_positives: Array, false_negatives: Array) -> tuple[Array, Array]:
        return 2 * true_positives, 2 * true_positives + false_positives + false_negatives


# -- score histograms -------------------------------------------------------------------------------------------------


class _ScoreHistogram(Metric):
    """How many scores of each label lie from one threshold up to the next.

    The thresholds are ``k / (threshold_num - 1)``, from 0 to 1; at a threshold, scores at or above it are positive.
    Memory is two integers a threshold, however many rows. Scores of shape ``(rows, columns)`` are counted together.

    Args:
        threshold_num: the number of thresholds, at least 2.
    """

    def __init__(self, threshold_num: int = 200) -> None:
        given: object = threshold_num
        if isinstance(given, bool) or not isinstance(given, Integral) or given < 2:
            raise PlanError(f"threshold_num is an integer of at least 2, not {given!r}.")
        self._thresholds: Array = np.arange(threshold_num) / (threshold_num - 1)
        super().__init__(threshold_num=threshold_num)

    def _empty(self) -> State:
        return {"histogram": np.zeros((2, len(self._thresholds)), np.int64)}  # (label, threshold)

    def _measure(self, preds: Array, targets: Array) -> State:
        preds, targets = self._paired(preds, targets)
        scores, labels = preds.astype(np.float64, copy=False).ravel(), self._indices(targets, 2).ravel()
        # float32 softmax may end a hair above 1; anything further out is no probability, and would sit in the
        # outermost bins and give a plausible wrong value.
        outside = ~((scores >= -1e-6) & (scores <= 1 + 1e-6))
        if outside.any():
            raise PlanError(f"{self.get_name()} needs scores from 0 to 1, not {scores[outside][0]}.")
        # Compared with the thresholds, not multiplied: 0.07 * 100 is below 7.
        bins = np.searchsorted(self._thresholds, scores, side="right") - 1
        size = len(self._thresholds)
        flat = np.bincount(labels * size + np.maximum(bins, 0), minlength=2 * size)
        return {"histogram": flat.reshape(2, size)}

    def _positives_at(self) -> tuple[Array, Array]:
        """False and true positives at each threshold, ascending."""
        false, true = self._state["histogram"][:, ::-1].cumsum(axis=1)[:, ::-1]
        return false, true


class AUC(_ScoreHistogram):
    """The area under the ROC curve, by trapezoids between the thresholds.

    It is the share of (positive, negative) pairs whose positive scores higher, where a pair between the same two
    thresholds counts half: Σ pos[k]·(neg below k + neg[k]/2) / (positives·negatives). It is exact when no such pair
    exists, and else off by at most half the share of such pairs.

    Args:
        threshold_num: the number of thresholds ``k / (threshold_num - 1)``, at least 2.
    """

    def compute(self) -> float:
        """The area; nan unless both labels were seen."""
        negatives, positives = self._state["histogram"].astype(np.float64)  # float: the products may pass int64
        below = negatives.cumsum() - negatives
        pairs = negatives.sum() * positives.sum()
        return float(positives @ (below + negatives / 2) / pairs) if pairs else float("nan")


class ROC(_ScoreHistogram):
    """The ROC curve, at fixed thresholds.

    Args:
        threshold_num: the number of thresholds ``k / (threshold_num - 1)``, at least 2.
    """

    def compute(self) -> tuple[Array, Array, Array]:
        """``(false positive rates, true positive rates, thresholds)``, in scikit-learn's order.

        Rates rise from (0, 0) at threshold inf to (1, 1) at threshold 0: ``threshold_num + 1`` points. A rate
        without rows to count is nan.
        """
        false, true = (np.append(0, counts[::-1]) for counts in self._positives_at())
        thresholds = np.append(np.inf, self._thresholds[::-1])
        return _rates(false, false[-1], np.nan), _rates(true, true[-1], np.nan), thresholds


class PrecisionRecallCurve(_ScoreHistogram):
    """The precision-recall curve, at fixed thresholds.

    Args:
        threshold_num: the number of thresholds ``k / (threshold_num - 1)``, at least 2.
    """

    def compute(self) -> tuple[Array, Array, Array]:
        """``(precisions, recalls, thresholds)``, in scikit-learn's order.

        Thresholds rise; precisions and recalls have one point more, a last (1, 0). Precision is 1 at a threshold
        that no score reaches, and nan without rows; recall is nan without positives.
        """
        false, true = self._positives_at()
        precisions = _rates(true, false + true, 1.0 if self._state["histogram"].any() else np.nan)
        recalls = _rates(true, true[0], np.nan)
        return np.append(precisions, 1.0), np.append(recalls, 0.0), self._thresholds.copy()


def _rates(part: Array, whole: Array, of_nothing: float) -> Array:
    whole = np.broadcast_to(whole, part.shape)
    return np.asarray(np.divide(part, whole, out=np.full(part.shape, of_nothing), where=whole > 0))


# -- what users write -------------------------------------------------------------------------------------------------


def as_metrics(metrics: Any) -> dict[str, Metric]:
    """Whatever a user gave as ``metrics``, as names and empty metrics of our own.

    Takes None, one metric, a list, or a dict name -> metric, where a metric is an instance, a class of this module
    or a function ``f(preds, targets)``. The user's instances are not fed: each comes back ``fresh``, so that one
    instance under two names is two metrics. In a list, a name's second use becomes ``name_1``, its third ``name_2``.

    Raises:
        PlanError: something else was given, such as a name; the message lists the classes.
    """
    if metrics is None:
        return {}
    if isinstance(metrics, Mapping):
        if wrong := [name for name in metrics if not isinstance(name, str)]:
            raise PlanError(f"the keys of metrics are names, not {wrong[0]!r}.")
        return {name: _as_metric(metric, name) for name, metric in metrics.items()}
    named: dict[str, Metric] = {}
    for given in metrics if isinstance(metrics, list | tuple) else [metrics]:
        metric = _as_metric(given, None)
        named[next(name for name in _candidates(metric.get_name()) if name not in named)] = metric
    return named


def _as_metric(given: Any, name: str | None) -> Metric:
    if isinstance(given, Metric):
        return given.fresh()
    if isinstance(given, type):
        if issubclass(given, Metric) and not inspect.isabstract(given) and given is not MeanOf:
            return given()
    elif callable(given):
        return MeanOf(given, name)
    classes = ", ".join(name for name in __all__ if name not in ("MeanOf", "Metric", "as_metrics"))
    raise PlanError(
        f"{given!r} is not a metric: give a function of (preds, targets), or one of these from "
        f"firesteel.learn.metrics: {classes}."
    )


def _candidates(name: str) -> Iterator[str]:
    yield name
    number = 1
    while True:
        yield f"{name}_{number}"
        number += 1


def _name_of(fn: Callable[..., Any]) -> str:
    while isinstance(fn, partial):
        fn = fn.func
    name = getattr(fn, "__name__", type(fn).__name__)
    return "metric" if name == "<lambda>" else str(name)
