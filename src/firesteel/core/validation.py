"""BigDL's validation methods, as metrics: states that add up. Labels count from 1 unless a class says otherwise.

Metric
├── mean of row values        Top1Accuracy, Top5Accuracy, TreeNNAccuracy
├── score histogram           AUC
├── rows of one user          HitRatio, NDCG
└── the surest rows           MeanAveragePrecision
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt

from firesteel.core import metrics
from firesteel.core.errors import PlanError
from firesteel.core.metrics import Metric

__all__ = [
    "AUC",
    "MAE",
    "NDCG",
    "HitRatio",
    "MeanAveragePrecision",
    "Top1Accuracy",
    "Top5Accuracy",
    "TreeNNAccuracy",
    "rows_together",
]

Array = npt.NDArray[Any]
State = dict[str, Array]


def rows_together(found: Mapping[str, Metric]) -> int:
    """How many neighbouring rows belong together for these metrics: data is not to be cut inside of such a group."""
    return math.lcm(*(getattr(metric, "group_rows", 1) for metric in found.values()))


class _Mean(metrics._Mean):
    """With BigDL's ``bigdl_type``, which changes nothing."""

    def __init__(self, *, bigdl_type: str = "float") -> None:
        super().__init__()


class Top1Accuracy(_Mean):
    """The share of rows whose largest output is at the label, from 1; one output is a score: 0.5 or more is 1."""

    def _values(self, preds: Array, targets: Array) -> Array:
        if preds.ndim < 2 or preds.shape[-1] == 1:
            scores, labels = self._paired(preds, targets)
            return np.asarray((scores >= 0.5) == labels)
        return np.asarray(preds.argmax(axis=-1) == self._labels(preds, targets, 1))


class Top5Accuracy(_Mean):
    """The share of rows whose label, from 1, is among the five largest outputs."""

    def _values(self, preds: Array, targets: Array) -> Array:
        return metrics.Top5Accuracy()._values(preds, self._labels(preds, targets, 1))


class TreeNNAccuracy(Top1Accuracy):
    """`Top1Accuracy` of the first node of (rows, nodes, classes)."""

    def get_name(self) -> str:
        """As BigDL writes it."""
        return "TreeNNAccuracy()"

    def _values(self, preds: Array, targets: Array) -> Array:
        if preds.ndim != 3:
            raise self._misfit(preds, targets, "predictions of shape (rows, nodes, classes)")
        return super()._values(preds[:, 0], targets[:, 0] if targets.ndim > 1 else targets)


class MAE(metrics.MAE):
    """The mean of absolute differences, over all elements."""

    def __init__(self, *, bigdl_type: str = "float") -> None:
        super().__init__()


class AUC(metrics.AUC):
    """The area under the ROC curve, by ``threshold_num`` thresholds; labels are 0 and 1."""

    def __init__(self, threshold_num: int = 200, *, bigdl_type: str = "float") -> None:
        super().__init__(threshold_num)

    def get_name(self) -> str:
        """As BigDL calls it."""
        return "AucScore"


def _count(metric: str, name: str, value: object, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise PlanError(f"{metric}'s {name} must be a whole number of at least {least}, not {value!r}.")
    return int(value)


class _Ranking(Metric):
    """Every ``neg_num + 1`` rows are one user: one positive among negatives.

    Rows come in order, but batches may end anywhere: what is left of a user waits for the next batch.
    """

    def __init__(self, k: int = 10, neg_num: int = 100, *, bigdl_type: str = "float") -> None:
        self._k = _count(type(self).__name__, "k", k)
        self.group_rows = _count(type(self).__name__, "neg_num", neg_num) + 1
        super().__init__(k=k, neg_num=neg_num)

    def _empty(self) -> State:
        return {"total": np.zeros(()), "users": np.zeros((), np.int64), "rest": np.zeros((2, 0))}

    def _measure(self, preds: Array, targets: Array) -> State:
        scores, labels = self._paired_floats(preds, targets)
        rows = np.concatenate([self._state["rest"], np.stack([scores.ravel(), labels.ravel()])], axis=1)
        users = rows.shape[1] // self.group_rows
        whole, rest = np.split(rows, [users * self.group_rows], axis=1)
        scores, labels = whole.reshape(2, users, self.group_rows)
        positives = (labels > 0).sum(axis=1)
        if (positives != 1).any():
            raise PlanError(
                f"{self.get_name()} needs one positive in every {self.group_rows} rows, neighbouring ones of one user; "
                f"a group has {positives[positives != 1][0]}"
            )
        own = scores[labels > 0][:, np.newaxis]
        ranks = 1 + (scores > own).sum(axis=1)
        return {"total": np.asarray(self._gains(ranks).sum()), "users": np.asarray(users), "rest": rest}

    @abstractmethod
    def _gains(self, ranks: Array) -> Array:
        """What a positive at these ranks is worth."""

    def _absorb(self, state: State) -> None:
        self._state["total"] += state["total"]
        self._state["users"] += state["users"]
        self._state["rest"] = state["rest"]

    def merge(self, other: Metric) -> None:
        """Adds the users that ``other`` has seen; both must have seen whole ones."""
        assert isinstance(other, _Ranking)
        for each in (self, other):
            each._check_whole()
        super().merge(other)

    def _check_whole(self) -> None:
        left = self._state["rest"].shape[1]
        if left:
            raise PlanError(
                f"{self.get_name()} needs whole users of {self.group_rows} rows in each partition; {left} are left over"
            )

    def compute(self) -> float:
        """The mean over users; nan without any."""
        self._check_whole()
        users = int(self._state["users"])
        return float(self._state["total"]) / users if users else float("nan")


class HitRatio(_Ranking):
    """The share of users whose positive is among the ``k`` best scores of its ``neg_num + 1`` rows."""

    def get_name(self) -> str:
        """``HitRate@k``."""
        return f"HitRate@{self._k}"

    def _gains(self, ranks: Array) -> Array:
        return np.asarray(ranks <= self._k, dtype=np.float64)


class NDCG(_Ranking):
    """``ln 2 / ln(rank + 1)`` of a user's positive if it is among the ``k`` best, else 0; the mean over users."""

    def _gains(self, ranks: Array) -> Array:
        return np.where(ranks <= self._k, math.log(2) / np.log(ranks + 1), 0.0)


class MeanAveragePrecision(Metric):
    """The mean over classes of the average precision of the ``k`` rows most sure of a class; labels count **from 0**.

    Args:
        k: how many rows; -1 = all.
        classes: how many classes.
    """

    def __init__(self, k: int, classes: int, *, bigdl_type: str = "float") -> None:
        self._k = -1 if k == -1 else _count("MeanAveragePrecision", "k", k)
        self._classes = _count("MeanAveragePrecision", "classes", classes)
        super().__init__(k=k, classes=classes)

    def get_name(self) -> str:
        """``MAP@k``."""
        return f"MAP@{self._k}"

    def _empty(self) -> State:
        # Of each class: the scores of the rows most sure of it, whether they are right, and how many are.
        return {
            "scores": np.zeros((0, self._classes)),
            "right": np.zeros((0, self._classes), np.int64),
            "positives": np.zeros(self._classes, np.int64),
        }

    def _measure(self, preds: Array, targets: Array) -> State:
        if preds.ndim != 2 or preds.shape[1] != self._classes:
            raise self._misfit(preds, targets, f"predictions of shape (rows, {self._classes})")
        labels = self._labels(preds, targets)
        right = (labels[:, np.newaxis] == np.arange(self._classes)).astype(np.int64)
        return {"scores": preds.astype(np.float64), "right": right, "positives": right.sum(axis=0)}

    def _absorb(self, state: State) -> None:
        scores = np.concatenate([self._state["scores"], state["scores"]])
        right = np.concatenate([self._state["right"], state["right"]])
        order = np.argsort(-scores, axis=0, kind="stable")
        order = order if self._k == -1 else order[: self._k]
        self._state = {
            "scores": np.take_along_axis(scores, order, axis=0),
            "right": np.take_along_axis(right, order, axis=0),
            "positives": self._state["positives"] + state["positives"],
        }

    def compute(self) -> float:
        """The mean over classes; a class without positives counts as 0, no rows are nan."""
        positives = self._state["positives"]
        if not positives.any():
            return float("nan")
        right = self._state["right"]
        hits = right.cumsum(axis=0)
        places = np.arange(1, len(right) + 1)[:, np.newaxis]
        precision = hits / places
        # At each recall the best precision at that recall or a higher one.
        best = np.maximum.accumulate((precision * right)[::-1], axis=0)[::-1]
        totals = (best * right).sum(axis=0)
        return float(np.divide(totals, positives, out=np.zeros(self._classes), where=positives > 0).mean())
