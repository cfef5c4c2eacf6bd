"""Metrics: the spec's numbers, scikit-learn's numbers, and that no split of the rows changes them."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import firesteel.learn.metrics as facade
from firesteel.core import metrics as m
from firesteel.core.errors import PlanError

SCORES = np.array([0.9, 0.4, 0.6, 0.2, 0.7])
LABELS = np.array([1, 0, 1, 1, 0])
ROWS = np.array([[0.2, 0.5, 0.3], [0.6, 0.3, 0.1], [0.1, 0.1, 0.8]])
CLASSES = np.array([1, 1, 2])
ONE_HOT = np.eye(3)[CLASSES]
OUTPUTS = np.array([[1, 2], [3, 5]])
WANTED = np.array([[1, 0], [0, 4]])


def value(metric, preds, targets):
    metric(preds, targets)
    return metric.compute()


# Each metric that the spec lists, with data that suits it and the value worked out by hand or printed in the spec.
CASES = [
    (m.BinaryAccuracy(), SCORES, LABELS, 0.6),
    (m.AUC(), SCORES, LABELS, 0.5),
    (m.Precision(), SCORES, LABELS, 2 / 3),
    (m.Recall(), SCORES, LABELS, 2 / 3),
    (m.F1Score(), SCORES, LABELS, 2 / 3),
    (m.F1Score(average="macro"), SCORES, LABELS, (2 / 3 + 1 / 2) / 2),
    (m.BinaryCrossEntropy(), SCORES, LABELS, 0.788084),
    (m.Accuracy(), SCORES, LABELS, 0.6),
    (m.Accuracy(), ROWS, CLASSES, 2 / 3),
    (m.Accuracy(zero_based_label=False), ROWS, CLASSES + 1, 2 / 3),
    (m.SparseCategoricalAccuracy(), ROWS, CLASSES, 2 / 3),
    (m.CategoricalAccuracy(), ROWS, ONE_HOT, 2 / 3),
    (m.Top5Accuracy(), np.tile(np.arange(7.0), (3, 1)), np.array([1, 2, 6]), 2 / 3),
    (m.SparseCategoricalCrossEntropy(), ROWS, CLASSES, 0.706755),
    (m.CategoricalCrossEntropy(), ROWS, ONE_HOT, 0.706755),
    (m.F1Score(), ROWS, CLASSES, 2 / 3),
    (m.MAE(), OUTPUTS, WANTED, 1.5),
    (m.MSE(), OUTPUTS, WANTED, 3.5),
    (m.KLDivergence(), np.array([[0.6, 0.4], [0.4, 0.6]]), np.array([[0, 1], [0, 0]]), 0.45814306),  # Keras's own
    (m.Poisson(), np.array([[1, 1], [0, 0]]), np.array([[0, 1], [0, 0]]), 0.49999997),
    (m.MeanOf(lambda p, t: np.abs(p - t).mean(), "mine"), OUTPUTS, WANTED, 1.5),
]


def each(cases):
    return pytest.mark.parametrize(("metric", "preds", "targets", "expected"), cases, ids=[repr(c[0]) for c in cases])


each_case = each(CASES)
each_case_with_labels = each([case for case in CASES if case[2].ndim == 1])
each_case_of_ours = each([case for case in CASES if not isinstance(case[0], m.MeanOf)])
SCALARS = [m.Accuracy, m.MAE, m.AUC, m.F1Score, m.Precision, m.Recall, m.KLDivergence, m.Top5Accuracy]


@each_case
def test_values_of_the_spec(metric, preds, targets, expected):
    metric = metric.fresh()
    assert metric(preds, targets) is None
    assert type(metric.compute()) is float
    assert metric.compute() == pytest.approx(expected, abs=1e-6)
    assert math.isnan(metric.fresh().compute())


@each_case
def test_two_halves_merged_are_the_same(metric, preds, targets, expected):
    first, second = metric.fresh(), metric.fresh()
    first(preds[:1], targets[:1])
    second(preds[1:], targets[1:])
    first.merge(second)
    assert first.compute() == pytest.approx(expected, abs=1e-6)
    first.reset()
    assert math.isnan(first.compute())


@each_case_with_labels
def test_labels_with_an_axis_of_one(metric, preds, targets, expected):
    """NumPy would broadcast (rows,) against (rows, 1) to (rows, rows) and report nonsense."""
    assert value(metric.fresh(), preds, targets[:, None]) == pytest.approx(expected, abs=1e-6)
    if preds.ndim == 1:
        assert value(metric.fresh(), preds[:, None], targets) == pytest.approx(expected, abs=1e-6)
        assert value(metric.fresh(), preds[:, None], targets[:, None]) == pytest.approx(expected, abs=1e-6)


@each_case_of_ours
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_torch_tensors_that_need_gradients(metric, preds, targets, expected, dtype):
    tensor = torch.tensor(preds, dtype=dtype, requires_grad=True)
    assert value(metric.fresh(), tensor, torch.tensor(targets)) == pytest.approx(expected, abs=1e-6)


def test_bfloat16_tensors():
    scores = torch.tensor(SCORES, dtype=torch.bfloat16, requires_grad=True)
    assert value(m.BinaryAccuracy(), scores, torch.tensor(LABELS, dtype=torch.bfloat16)) == pytest.approx(0.6)


@each_case
def test_empty_batches_change_nothing(metric, preds, targets, expected):
    metric = metric.fresh()
    metric(preds[:0], targets[:0])
    assert math.isnan(metric.compute())
    metric(preds, targets)
    metric(preds[:0], targets[:0])
    metric.merge(metric.fresh())
    assert metric.compute() == pytest.approx(expected, abs=1e-6)


# -- any split, through bytes, equals one pass


def rows_of(kind, size, seed):
    generator = np.random.default_rng(seed)
    if kind == "scores":
        return generator.random(size), generator.integers(0, 2, size)
    preds = generator.dirichlet(np.ones(7), size)
    if kind == "classes":
        return preds, np.sort(generator.integers(0, 7, size))  # sorted: classes are not spread evenly
    if kind == "columns":
        return preds, generator.integers(0, 2, (size, 7))
    return preds, generator.dirichlet(np.ones(7), size)


def mean_difference(preds, targets):
    return (preds - targets).mean()


SPLITTABLE = [
    *(("scores", make) for make in (m.Accuracy, m.BinaryAccuracy, m.BinaryCrossEntropy, m.AUC, m.Precision, m.Recall)),
    *(("scores", make) for make in (m.F1Score, m.ROC, m.PrecisionRecallCurve, m.MAE, partial(m.F1Score, "macro"))),
    *(("classes", make) for make in (m.Accuracy, m.SparseCategoricalAccuracy, m.Top5Accuracy, m.F1Score)),
    *(("classes", make) for make in (m.SparseCategoricalCrossEntropy, partial(m.Precision, average="macro"))),
    *(("columns", make) for make in (m.F1Score, partial(m.Recall, average="macro"), m.AUC, m.BinaryAccuracy)),
    *(("shares", make) for make in (m.KLDivergence, m.Poisson, m.MSE, m.CategoricalCrossEntropy)),
    *(("shares", make) for make in (m.CategoricalAccuracy, partial(m.MeanOf, mean_difference))),
]


def over_the_wire(state):
    """As replicas send it: names, dtypes and shapes as JSON, buffers as bytes."""
    header = json.dumps({name: [str(array.dtype), array.shape] for name, array in state.items()})
    buffers = [array.tobytes() for array in state.values()]
    described = zip(json.loads(header).items(), buffers, strict=True)
    return {name: np.frombuffer(data, dtype).reshape(shape) for (name, (dtype, shape)), data in described}


@pytest.mark.parametrize(("kind", "make"), SPLITTABLE, ids=[f"{kind}-{make()!r}" for kind, make in SPLITTABLE])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_split_merged_through_states_equals_one_pass(kind, make, data):
    size = data.draw(st.integers(0, 40))
    preds, targets = rows_of(kind, size, data.draw(st.integers(0, 2**32 - 1)))
    cuts = sorted(data.draw(st.lists(st.integers(0, size), max_size=6)))
    replicas = [make() for _ in range(data.draw(st.integers(1, 3)))]
    bounds = [0, *cuts, size]
    for number, (start, stop) in enumerate(pairwise(bounds)):
        replicas[number % len(replicas)](preds[start:stop], targets[start:stop])

    total = make()
    for replica in replicas:
        arrived = total.fresh()
        arrived.load_state(over_the_wire(replica.state()))
        total.merge(arrived)
    merged, one_pass = total.compute(), value(make(), preds, targets)
    if isinstance(merged, tuple):  # a curve
        merged, one_pass = np.hstack(merged), np.hstack(one_pass)
    np.testing.assert_allclose(merged, one_pass, rtol=1e-12, atol=1e-12)


def test_float32_batches_are_summed_in_float64():
    metric = m.MAE()
    for _ in range(2000):
        metric(np.full(1000, 0.1, np.float32), np.zeros(1000, np.float32))
    assert metric.compute() == pytest.approx(float(np.float32(0.1)), rel=1e-12)


def test_states_are_copies():
    metric = m.MAE()
    metric([1.0], [0.0])
    state = metric.state()
    other = metric.fresh()
    other.load_state(state)
    other([5.0], [0.0])
    assert metric.compute() == 1.0
    assert float(state["total"]) == 1.0


# -- scikit-learn agrees


@pytest.fixture(scope="module")
def binary():
    generator = np.random.default_rng(7)
    labels = generator.integers(0, 2, 3000)
    return np.clip(generator.normal(0.35 + 0.3 * labels, 0.2), 0, 1), labels


@pytest.fixture(scope="module")
def classes():
    generator = np.random.default_rng(8)
    labels = generator.choice(6, 2000, p=[0.4, 0.3, 0.2, 0.05, 0.05, 0])  # class 5 is never right
    preds = generator.dirichlet(np.ones(6), 2000) + 0.5 * np.eye(6)[labels]
    return preds / preds.sum(axis=1, keepdims=True), labels


def test_auc_is_sklearns_on_fine_thresholds(binary):
    scores, labels = binary
    exact = sk.roc_auc_score(labels, scores)
    assert value(m.AUC(threshold_num=100_001), scores, labels) == pytest.approx(exact, abs=1e-6)
    assert value(m.AUC(), scores, labels) == pytest.approx(exact, abs=1e-3)


def test_auc_is_sklearns_on_binned_scores(binary):
    """The histogram is the only approximation: scores that sit on thresholds give the exact area."""
    scores, labels = np.round(binary[0] * 199) / 199, binary[1]
    assert value(m.AUC(), scores, labels) == pytest.approx(sk.roc_auc_score(labels, scores), abs=1e-12)


def test_auc_needs_both_labels():
    assert math.isnan(value(m.AUC(), [0.1, 0.9], [1, 1]))


def test_auc_at_the_ends_of_the_range():
    assert value(m.AUC(), [0.0, 1.0, 1.0000001], [0, 1, 1]) == 1.0


def test_roc_is_sklearns_at_each_threshold(binary):
    scores, labels = np.round(binary[0] * 99) / 99, binary[1]
    false, true, thresholds = value(m.ROC(threshold_num=100), scores, labels)
    expected_false, expected_true, _ = sk.roc_curve(labels, scores, drop_intermediate=False)
    points = set(zip(false.tolist(), true.tolist(), strict=True))
    assert set(zip(expected_false.tolist(), expected_true.tolist(), strict=True)) == points
    assert (false[0], true[0], thresholds[0]) == (0, 0, np.inf)
    assert (false[-1], true[-1], thresholds[-1]) == (1, 1, 0)
    for at in (1, 25, 50, 75, 100):
        assert true[at] == pytest.approx(sk.recall_score(labels, scores >= thresholds[at]))
    assert sk.auc(false, true) == pytest.approx(value(m.AUC(threshold_num=100), scores, labels), abs=1e-12)


def test_precision_recall_curve_is_sklearns_at_each_threshold(binary):
    scores, labels = binary
    precisions, recalls, thresholds = value(m.PrecisionRecallCurve(), scores, labels)
    assert len(precisions) == len(recalls) == len(thresholds) + 1 == 201
    assert (precisions[-1], recalls[-1]) == (1, 0)
    for at in range(0, 200, 20):
        wanted = scores >= thresholds[at]
        assert precisions[at] == pytest.approx(sk.precision_score(labels, wanted))
        assert recalls[at] == pytest.approx(sk.recall_score(labels, wanted))


def test_curves_without_rows_are_nan():
    assert np.isnan(m.ROC().compute()[0]).all()
    assert np.isnan(m.PrecisionRecallCurve().compute()[0][:-1]).all()


@pytest.mark.parametrize("average", ["micro", "macro"])
@pytest.mark.parametrize(
    ("make", "expected"),
    [(m.F1Score, sk.f1_score), (m.Precision, sk.precision_score), (m.Recall, sk.recall_score)],
)
def test_averages_are_sklearns(make, expected, average, classes, binary):
    preds, labels = classes
    score = value(make(average=average), preds, labels)
    assert score == pytest.approx(expected(labels, preds.argmax(1), average=average, zero_division=0))
    scores, two = binary
    assert value(make(average), scores, two) == pytest.approx(expected(two, scores > 0.5, average=average))
    assert value(make(), scores, two) == pytest.approx(expected(two, scores > 0.5))
    columns = np.eye(6, dtype=int)[labels]
    score = value(make(average=average), preds, columns)
    assert score == pytest.approx(expected(columns, preds > 0.5, average=average, zero_division=0))


def test_no_average_is_micro_for_several_classes(classes):
    assert value(m.F1Score(), *classes) == value(m.F1Score(average="micro"), *classes)


def test_entropies_and_errors_are_sklearns(classes, binary):
    preds, labels = classes
    expected = sk.log_loss(labels, preds, labels=range(6))
    assert value(m.SparseCategoricalCrossEntropy(), preds, labels) == pytest.approx(expected, abs=1e-6)
    assert value(m.CategoricalCrossEntropy(), preds, np.eye(6)[labels]) == pytest.approx(expected, abs=1e-6)
    top5 = sk.top_k_accuracy_score(labels, preds, k=5, labels=range(6))
    assert value(m.Top5Accuracy(), preds, labels) == pytest.approx(top5)
    scores, two = binary
    inside = np.clip(scores, 0.01, 0.99)
    assert value(m.BinaryCrossEntropy(), inside, two) == pytest.approx(sk.log_loss(two, inside), abs=1e-9)
    assert value(m.MAE(), scores, two) == pytest.approx(sk.mean_absolute_error(two, scores), abs=1e-12)
    assert value(m.MSE(), scores, two) == pytest.approx(sk.mean_squared_error(two, scores), abs=1e-12)


# -- corners


def test_certain_and_wrong_is_finite():
    assert value(m.BinaryCrossEntropy(), [1.0, 0.0], [0, 1]) == pytest.approx(-math.log(1e-7))
    assert value(m.SparseCategoricalCrossEntropy(), [[1.0, 0.0]], [1]) == pytest.approx(-math.log(1e-7))


def test_half_is_negative():
    assert value(m.BinaryAccuracy(), [0.5], [0]) == 1.0
    assert value(m.Accuracy(), [0.5], [0]) == 1.0


def test_accuracy_takes_integers_as_answers():
    assert value(m.Accuracy(), [0, 2, 3, 4], [1, 2, 3, 4]) == 0.75


def test_booleans_are_labels_and_answers():
    for make in (m.Accuracy, m.BinaryAccuracy, m.F1Score, m.AUC):
        assert value(make(), torch.tensor([True, False]), np.array([True, False])) == 1.0
    assert value(m.Accuracy(zero_based_label=False), ROWS, CLASSES.astype(np.uint8) + 1) == pytest.approx(2 / 3)


def test_accuracy_over_positions_of_a_row():
    preds = np.eye(4)[np.array([[0, 1], [2, 3], [3, 3]])]  # (rows, positions, classes)
    assert value(m.Accuracy(), preds, [[0, 1], [2, 0], [3, 3]]) == pytest.approx(5 / 6)
    assert value(m.Accuracy(), preds[:, :1], [[0], [2], [0]]) == pytest.approx(2 / 3)


def test_one_row_of_several_classes_is_not_several_rows():
    assert value(m.Accuracy(), [[0.1, 0.9, 0.0]], [1]) == 1.0


def test_a_constant_model_is_not_always_in_the_top_five():
    assert value(m.Top5Accuracy(), np.zeros((7, 7)), np.arange(7)) == pytest.approx(5 / 7)
    assert value(m.Top5Accuracy(), np.full((7, 7), np.nan), np.arange(7)) == pytest.approx(5 / 7)


def test_nothing_predicted_is_a_precision_of_zero():
    assert value(m.Precision(), [0.1, 0.2], [1, 0]) == 0.0
    assert value(m.F1Score(), [0.1, 0.2], [0, 0]) == 0.0


def test_a_diverged_model_gives_nan_and_no_warning():
    assert math.isnan(value(m.MSE(), [np.inf, 1.0], [np.inf, 1.0]))
    assert math.isnan(value(m.BinaryCrossEntropy(), [np.nan], [1]))
    assert value(m.MSE(), [1e200], [0]) == math.inf


# -- errors


@pytest.mark.parametrize("make", SCALARS)
def test_bad_shapes_name_both(make):
    with pytest.raises(PlanError, match=r"\(4, 3\).*\(5,\)"):
        make()(np.zeros((4, 3)), np.zeros(5))


@pytest.mark.parametrize("make", SCALARS)
def test_rows_that_differ_in_number(make):
    with pytest.raises(PlanError, match=r"shape \(0, 3\) and targets shape \(5,\)"):
        make()(np.zeros((0, 3)), np.zeros(5))


def test_scalars_are_no_rows():
    with pytest.raises(PlanError, match="leading axis"):
        m.MAE()(1.0, 2.0)


@pytest.mark.parametrize("label", [3, -1, 0.5, math.nan])
@pytest.mark.parametrize("make", [m.Accuracy, m.SparseCategoricalCrossEntropy, m.F1Score, m.Top5Accuracy])
def test_labels_outside_the_classes(make, label):
    with pytest.raises(PlanError, match=f"from 0 to 2, not {label}"):
        make()(np.ones((1, 3)), np.array([label]))


def test_labels_from_one_that_are_from_zero():
    with pytest.raises(PlanError, match="from 1 to 3, not 0"):
        m.Accuracy(zero_based_label=False)(ROWS, [0, 1, 2])


@pytest.mark.parametrize("score", [1.5, -0.1, math.nan])
@pytest.mark.parametrize("make", [m.AUC, m.ROC, m.PrecisionRecallCurve])
def test_scores_that_are_no_probabilities(make, score):
    with pytest.raises(PlanError, match=f"from 0 to 1, not {score}"):
        make()([score], [1])


@pytest.mark.parametrize("preds", [["a"], [None], [[1], [1, 2]], [1j]])
def test_things_that_are_no_numbers(preds):
    with pytest.raises(PlanError, match="MAE"):
        m.MAE()(preds, [1])


def test_a_failed_batch_leaves_the_state_alone():
    metric = m.F1Score()
    metric(SCORES, LABELS)
    with pytest.raises(PlanError, match=r"2 classes \(one score a row\) and cannot add 3 classes \(classes\)"):
        metric(ROWS, CLASSES)
    assert metric.compute() == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    "other", [m.MSE(), m.AUC(threshold_num=10), m.F1Score(average="macro"), m.MeanOf(mean_difference, "other")]
)
def test_merging_what_differs(other):
    mine = {m.AUC: m.AUC, m.F1Score: m.F1Score, m.MeanOf: partial(m.MeanOf, mean_difference)}.get(type(other), m.MAE)()
    with pytest.raises(PlanError, match="cannot be merged"):
        mine.merge(other)


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"total": np.zeros(()), "count": np.zeros(()), "more": np.zeros(())},
        {"total": np.zeros(2), "count": np.zeros((), int)},
        {"total": np.zeros(()), "count": np.zeros((), float)},
    ],
)
def test_states_of_something_else(state):
    with pytest.raises(PlanError, match="MAE"):
        m.MAE().load_state(state)
    with pytest.raises(PlanError, match="shape"):
        m.AUC(threshold_num=3).load_state(m.AUC().state())


def test_settings_are_checked():
    for wrong in (1, 0, 2.5, True, "200"):
        with pytest.raises(PlanError, match="threshold_num"):
            m.AUC(threshold_num=wrong)
    with pytest.raises(PlanError, match="'weighted'"):
        m.F1Score(average="weighted")


# -- functions, and what users write


def test_functions_get_their_tensors_unchanged_and_count_by_rows():
    seen = []

    def error(preds, targets):
        seen.append((preds, targets))
        return (preds - targets).abs().mean()

    metric = m.MeanOf(error, "error")
    batches = [(torch.ones(3, 1, requires_grad=True), torch.zeros(3, 1)), (torch.ones(1, 1) * 5, torch.zeros(1, 1))]
    for preds, targets in batches:
        metric(preds, targets)
    metric(torch.ones(0, 1), torch.zeros(0, 1))
    assert len(seen) == 2
    assert all(p is preds and t is targets for (p, t), (preds, targets) in zip(seen, batches, strict=True))
    assert metric.compute() == pytest.approx((3 * 1 + 5) / 4)
    assert metric.get_name() == "error"


@pytest.mark.parametrize(
    ("preds", "targets"),
    [
        ((np.zeros((4, 2)), np.zeros(4)), None),
        ({"a": np.zeros((4, 2))}, {"b": np.zeros(4)}),
        (np.zeros((4, 2)), [np.zeros((4, 1)), np.zeros((4, 3))]),
        (np.zeros((4, 2)), [1, 0, 1, 0]),
        (np.zeros((4, 2)), [[1, 0], [0, 1], [1, 0], [0, 1]]),
        (np.zeros((4, 2)), np.float64(1)),
    ],
)
def test_rows_of_a_functions_arguments(preds, targets):
    metric = m.MeanOf(lambda p, t: 2.0)
    metric(preds, targets)
    assert int(metric.state()["count"]) == 4
    assert metric.compute() == 2.0


def test_functions_that_return_something_else():
    with pytest.raises(PlanError, match=r"'f' must return one number a batch, not an array of \(2,\)"):
        m.MeanOf(lambda p, t: p, "f")(np.zeros(2), np.zeros(2))
    with pytest.raises(PlanError, match="f takes numbers"):
        m.MeanOf(lambda p, t: None, "f")(np.zeros(2), np.zeros(2))
    with pytest.raises(PlanError, match="cannot be counted"):
        m.MeanOf(lambda p, t: 1.0, "f")(None, None)


def test_as_metrics_takes_one_a_list_and_a_dict():
    assert m.as_metrics(None) == {}
    assert m.as_metrics([]) == {}
    assert list(m.as_metrics(m.Accuracy())) == ["Accuracy"]
    assert list(m.as_metrics(m.AUC)) == ["AUC"]
    assert list(m.as_metrics(mean_difference)) == ["mean_difference"]
    many = m.as_metrics(
        [m.AUC(10), m.AUC, mean_difference, lambda p, t: 0, lambda p, t: 1, m.AUC(), torch.nn.MSELoss()]
    )
    assert list(many) == ["AUC", "AUC_1", "mean_difference", "metric", "metric_1", "AUC_2", "MSELoss"]
    assert repr(many["AUC"]) == "AUC(threshold_num=10)"
    named = m.as_metrics({"area": m.AUC, "mine": mean_difference, "f1": m.F1Score("macro")})
    assert list(named) == ["area", "mine", "f1"]
    assert named["mine"].get_name() == "mine"
    assert list(m.as_metrics((partial(mean_difference), mean_difference))) == ["mean_difference", "mean_difference_1"]


def test_names_never_collide():
    def a():
        pass

    def a_1():
        pass

    a_1.__name__, a.__name__ = "a_1", "a"
    assert list(m.as_metrics([a_1, a, a])) == ["a_1", "a", "a_2"]


def test_as_metrics_leaves_the_users_instances_alone():
    mine = m.MAE()
    mine([1.0], [0.0])
    given = m.as_metrics({"a": mine, "b": mine})
    given["a"]([3.0], [0.0])
    assert mine.compute() == 1.0
    assert given["a"].compute() == 3.0
    assert math.isnan(given["b"].compute())


@pytest.mark.parametrize("wrong", ["accuracy", ["Accuracy"], 3, torch.nn.MSELoss, m.Metric, m.MeanOf, {"a": "auc"}])
def test_what_is_no_metric_lists_the_classes(wrong):
    with pytest.raises(PlanError) as raised:
        m.as_metrics(wrong)
    for name in m.__all__:
        if name not in ("Metric", "MeanOf", "as_metrics"):
            assert name in str(raised.value)


def test_keys_that_are_no_names():
    with pytest.raises(PlanError, match="not 1"):
        m.as_metrics({1: m.AUC()})


def test_a_users_own_metric():
    class Largest(m.Metric):
        def _empty(self):
            return {"largest": np.full((), -np.inf)}

        def _measure(self, preds, targets):
            return {"largest": np.asarray(preds.max(), float)}

        def _absorb(self, state):
            self._state["largest"] = np.maximum(self._state["largest"], state["largest"])

        def compute(self):
            return float(self._state["largest"])

    metric = m.as_metrics(Largest)["Largest"]
    metric([1, 5], [0, 0])
    metric([3], [0])
    assert metric.compute() == 5.0


def test_the_facade_has_the_same_names():
    assert set(facade.__all__) == set(m.__all__) - {"as_metrics"}
    assert all(getattr(facade, name) is getattr(m, name) for name in facade.__all__)


def test_metrics_load_neither_spark_nor_a_framework():
    code = "import sys, firesteel.core.metrics; sys.exit(bool({'torch', 'pyspark'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
