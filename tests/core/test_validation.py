"""BigDL's validation methods: labels from 1, users that stay together, states that add up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from firesteel.core.errors import PlanError
from firesteel.core.validation import (
    AUC,
    MAE,
    NDCG,
    HitRatio,
    MeanAveragePrecision,
    Top1Accuracy,
    Top5Accuracy,
    TreeNNAccuracy,
    rows_together,
)

OUTPUTS = np.array([[0.1, 0.7, 0.2], [0.6, 0.3, 0.1]])
SCORES = np.array([0.9, 0.1, 0.8, 0.3, 0.2])
LABELS = np.array([0, 0, 1, 0, 0])


def value(metric: Any, preds: Any, targets: Any, cut: int | None = None) -> float:
    """Over all rows, in one go or in two merged halves."""
    if cut is None:
        metric(preds, targets)
        return float(metric.compute())
    parts = [metric.fresh(), metric.fresh()]
    parts[0](preds[:cut], targets[:cut])
    parts[1](preds[cut:], targets[cut:])
    whole = metric.fresh()
    for part in parts:
        travelled = metric.fresh()
        travelled.load_state(part.state())
        whole.merge(travelled)
    return float(whole.compute())


def test_accuracy_counts_from_one() -> None:
    assert value(Top1Accuracy(), OUTPUTS, np.array([2, 2])) == 0.5
    assert value(Top1Accuracy(), OUTPUTS, np.array([[2], [2]]), cut=1) == 0.5
    assert value(Top1Accuracy(), np.array([[0.5], [0.4], [0.9]]), np.array([1, 1, 0])) == pytest.approx(1 / 3)
    with pytest.raises(PlanError, match="1 to 3, not 0"):
        value(Top1Accuracy(), OUTPUTS, np.array([0, 1]))
    many = np.arange(8.0)[np.newaxis]
    assert value(Top5Accuracy(), many, np.array([4])) == 1
    assert value(Top5Accuracy(), many, np.array([3])) == 0
    with pytest.raises(PlanError, match="1 to 8, not 9"):
        value(Top5Accuracy(), many, np.array([9]))
    tree = np.stack([OUTPUTS, OUTPUTS[::-1]], axis=1)
    assert value(TreeNNAccuracy(), tree, np.array([[2, 3], [1, 1]])) == 1
    assert TreeNNAccuracy().get_name() == "TreeNNAccuracy()"
    assert AUC(100, bigdl_type="float").get_name() == "AucScore"
    assert value(MAE(bigdl_type="double"), OUTPUTS, OUTPUTS + 1) == 1


def test_ranks() -> None:
    assert value(HitRatio(2, 4), SCORES, LABELS) == 1
    assert value(HitRatio(1, 4), SCORES, LABELS) == 0
    assert value(NDCG(2, 4), SCORES, LABELS) == pytest.approx(0.630930, abs=1e-6)
    assert HitRatio(2, 4).get_name() == "HitRate@2"
    # Two users, in batches that end anywhere, and merged.
    scores, labels = np.concatenate([SCORES, SCORES[::-1]]), np.concatenate([LABELS, [1, 0, 0, 0, 0]])
    metric = HitRatio(2, 4)
    for begin in range(0, 10, 3):
        metric(scores[begin : begin + 3, np.newaxis], labels[begin : begin + 3])
    assert metric.compute() == 0.5
    assert value(HitRatio(2, 4), scores, labels, cut=5) == 0.5
    with pytest.raises(PlanError, match="4 are left over"):
        value(HitRatio(2, 4), scores, labels, cut=4)
    with pytest.raises(PlanError, match="a group has 2"):
        value(HitRatio(2, 4), SCORES, np.array([0, 1, 1, 0, 0]))
    assert rows_together({"a": HitRatio(1, 4), "b": NDCG(1, 9), "c": MAE()}) == 10


def test_mean_average_precision() -> None:
    """Labels from 0. The numbers are those of BigDL 2.4.0 for the same rows."""
    random = np.random.RandomState(3)
    x, y = random.rand(8, 3).astype(np.float32), random.randint(0, 3, size=8)
    for k, expected in ((8, 0.408730), (7, 0.367064), (5, 0.2), (3, 0.125)):
        assert value(MeanAveragePrecision(k, 3), x, y) == pytest.approx(expected, abs=1e-6)
        assert value(MeanAveragePrecision(k, 3), x, y, cut=3) == pytest.approx(expected, abs=1e-6)
    assert value(MeanAveragePrecision(-1, 3), x, y) == pytest.approx(0.408730, abs=1e-6)
    assert MeanAveragePrecision(5, 3).get_name() == "MAP@5"
    with pytest.raises(PlanError, match="k must be"):
        MeanAveragePrecision(0, 3)
