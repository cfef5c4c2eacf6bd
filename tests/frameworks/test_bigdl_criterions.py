"""BigDL's criterions: the spec's numbers, torch's where there is a namesake, gradients that are the numeric ones.

Over parts of a batch they add up to the whole: by rows, by sums, by weights of labels, and by several at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from firesteel.bigdl.nn import criterion as bigdl
from firesteel.bigdl.nn.criterion import (
    BCECriterion,
    ClassNLLCriterion,
    CosineDistanceCriterion,
    CrossEntropyCriterion,
    GaussianCriterion,
    KLDCriterion,
    MSECriterion,
    MultiCriterion,
    MultiLabelMarginCriterion,
    MultiMarginCriterion,
    ParallelCriterion,
    SmoothL1Criterion,
    TimeDistributedCriterion,
    TimeDistributedMaskCriterion,
    TransformerCriterion,
)
from firesteel.bigdl.nn.layer import MulConstant, Tanh
from firesteel.core.errors import PlanError

B = bigdl
LOGS = np.log([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1]])
STEPS = np.log([[[0.5, 0.5], [0.25, 0.75]], [[0.5, 0.5], [0.75, 0.25]]])


def r(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def pos(*shape: int, seed: int = 0) -> np.ndarray:
    return np.abs(r(*shape, seed=seed)) + 0.1


def logs(*shape: int) -> np.ndarray:
    values = r(*shape)
    return values - np.log(np.exp(values).sum(-1, keepdims=True))


def signs(*shape: int) -> np.ndarray:
    return np.sign(r(*shape, seed=1))


@pytest.mark.parametrize(
    ("criterion", "output", "target", "expected"),
    [
        (ClassNLLCriterion(), LOGS, [1, 2], 0.289909),
        (ClassNLLCriterion(), LOGS, [[1], [2]], 0.289909),
        (ClassNLLCriterion(np.array([1, 2, 1])), LOGS, [1, 2], 0.267654),
        (ClassNLLCriterion(size_average=False), LOGS, [1, 2], 0.579818),
        (ClassNLLCriterion(), LOGS, [1, -1], 0.356675),
        (ClassNLLCriterion(logProbAsInput=False), np.exp(LOGS), [1, 2], 0.289909),
        (CrossEntropyCriterion(), [[1, 2, 3], [3, 2, 1]], [3, 1], 0.407606),
        (MSECriterion(), [[1, 2], [3, 4]], [[1, 0], [0, 4]], 3.25),
        (SmoothL1Criterion(), [0.5, 3], [0, 0], 1.3125),
        (BCECriterion(), [0.9, 0.2], [1, 0], 0.164252),
        (MultiMarginCriterion(), [0.1, 0.2, 0.7], 3, 0.3),
        (MultiLabelMarginCriterion(), [0.1, 0.2, 0.4, 0.8], [4, 1, 0, 2], 0.85),
        (CosineDistanceCriterion(), [1, 2, 3, 4, 5], [5, 4, 3, 2, 1], 0.363636),
        (CosineDistanceCriterion(), [[1, 2, 3, 4, 5]], [[5, 4, 3, 2, 1]], 0.363636),
        (KLDCriterion(), [np.array([1.0, 0]), np.zeros(2)], None, 0.5),
        (KLDCriterion(), [np.array([[1.0, 0]]), np.zeros((1, 2))], np.zeros(1), 0.5),
        (GaussianCriterion(), [np.array([1.0, 0]), np.zeros(2)], [0, 0], 2.337877),
        (TimeDistributedCriterion(ClassNLLCriterion()), STEPS, [[1, 2], [2, 1]], 0.980829),
        (TimeDistributedCriterion(ClassNLLCriterion(), True), STEPS, [[1, 2], [2, 1]], 0.490415),
        (TimeDistributedMaskCriterion(ClassNLLCriterion()), STEPS, [[1, 0], [2, 1]], 0.557992),
    ],
)
def test_numbers(criterion: Any, output: Any, target: Any, expected: float) -> None:
    given = output if isinstance(output, list) and isinstance(output[0], np.ndarray) else np.array(output, float)
    found = criterion.forward(given, None if target is None else np.array(target, float))
    assert isinstance(found, float)
    assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("label", [0, 4, 1.5])
def test_a_label_outside_of_the_classes(label: float) -> None:
    with pytest.raises(PlanError, match=f"1 to 3.*not {label}"):
        ClassNLLCriterion().forward(LOGS, np.array([1, label]))


# Criterion, outputs, targets, and what torch (or the formula) says. In float64, so that differences can be small.
CASES: dict[str, tuple[Callable[..., Any], Any, Any, Callable[..., Any]]] = {
    "ClassNLL": (B.ClassNLLCriterion, logs(4, 3), np.array([1, 3, 2, 2]), lambda x, t: F.nll_loss(x, t - 1)),
    "CrossEntropy": (
        lambda **o: B.CrossEntropyCriterion(np.array([1.0, 2, 0.5]), **o),
        r(4, 3),
        np.array([1, 3, 2, 2]),
        lambda x, t: F.cross_entropy(x, t - 1, torch.tensor([1.0, 2, 0.5], dtype=torch.float64)),
    ),
    "SoftmaxWith": (
        lambda **o: B.SoftmaxWithCriterion(2, **o),
        r(2, 3, 2, 2),
        np.array([[[[1, 2], [3, 1]]], [[[2, 2], [3, 3]]]]),
        lambda x, t: F.cross_entropy(x, t[:, 0] - 1, ignore_index=1),
    ),
    "MSE": (B.MSECriterion, r(4, 3), r(4, 3, seed=1), F.mse_loss),
    "Abs": (B.AbsCriterion, r(4, 3), r(4, 3, seed=1), F.l1_loss),
    "SmoothL1": (B.SmoothL1Criterion, 2 * r(4, 3), r(4, 3, seed=1), F.smooth_l1_loss),
    "SmoothL1 with weights": (
        lambda **o: B.SmoothL1CriterionWithWeights(2.0, 3, **o),
        r(4, 3),
        [r(4, 3, seed=1), pos(4, 3), pos(4, 3, seed=2)],
        lambda x, t: (t[2] * F.smooth_l1_loss(t[1] * x, t[1] * t[0], reduction="none", beta=0.25)).sum() / 3,
    ),
    "BCE": (
        lambda **o: B.BCECriterion(np.array([1.0, 2, 0.5]), **o),
        np.exp(logs(4, 3)),
        (r(4, 3) > 0) * 1.0,
        lambda x, t: F.binary_cross_entropy(x, t, torch.tensor([1.0, 2, 0.5], dtype=torch.float64)),
    ),
    "MultiLabelSoftMargin": (
        B.MultiLabelSoftMarginCriterion,
        r(4, 3),
        (r(4, 3, seed=1) > 0) * 1.0,
        F.multilabel_soft_margin_loss,
    ),
    "SoftMargin": (B.SoftMarginCriterion, r(4, 3), signs(4, 3), F.soft_margin_loss),
    "MultiMargin": (
        lambda **o: B.MultiMarginCriterion(2, None, 0.5, **o),
        r(4, 3),
        np.array([1, 3, 2, 2]),
        lambda x, t: F.multi_margin_loss(x, t - 1, 2, 0.5),
    ),
    "MultiLabelMargin": (
        B.MultiLabelMarginCriterion,
        r(2, 4),
        np.array([[4, 1, 0, 2], [2, 0, 0, 0]]),
        lambda x, t: F.multilabel_margin_loss(x, t - 1),
    ),
    "Margin": (
        lambda **o: B.MarginCriterion(0.5, squared=True, **o),
        r(4, 3),
        signs(4, 3),
        lambda x, t: ((0.5 - x * t).clamp(min=0) ** 2).mean(),
    ),
    "MarginRanking": (
        lambda **o: B.MarginRankingCriterion(0.3, **o),
        [r(4), r(4, seed=1)],
        signs(4),
        lambda x, t: F.margin_ranking_loss(*x, t, 0.3),
    ),
    "HingeEmbedding": (B.HingeEmbeddingCriterion, r(4), signs(4), F.hinge_embedding_loss),
    "L1HingeEmbedding": (
        lambda **o: B.L1HingeEmbeddingCriterion(3.0, **o),
        [r(4, 3), r(4, 3, seed=1)],
        signs(4),
        lambda x, t: F.hinge_embedding_loss((x[0] - x[1]).abs().sum(1), t, 3.0, reduction="sum"),
    ),
    "CosineEmbedding": (
        lambda **o: B.CosineEmbeddingCriterion(0.1, **o),
        [r(4, 3), r(4, 3, seed=1)],
        signs(4),
        lambda x, t: F.cosine_embedding_loss(*x, t, 0.1),
    ),
    "CosineDistance": (
        B.CosineDistanceCriterion,
        r(4, 3),
        r(4, 3, seed=1),
        lambda x, t: (1 - F.cosine_similarity(x, t)).mean(),
    ),
    "CosineProximity": (
        B.CosineProximityCriterion,
        r(4, 3),
        r(4, 3, seed=1),
        lambda x, t: -(F.normalize(x) * F.normalize(t)).mean(),
    ),
    "DistKLDiv": (
        B.DistKLDivCriterion,
        logs(4, 3),
        np.exp(logs(4, 3))[::-1].copy(),
        lambda x, t: F.kl_div(x, t, reduction="none").mean(),
    ),
    "CategoricalCrossEntropy": (
        B.CategoricalCrossEntropy,
        np.exp(logs(4, 3)),
        np.eye(3, dtype=np.float32)[[2, 0, 1, 1]],
        lambda x, t: F.nll_loss(x.log(), t.argmax(1)),
    ),
    "KullbackLeibler": (
        B.KullbackLeiblerDivergenceCriterion,
        np.exp(logs(4, 3)),
        np.exp(logs(4, 3))[::-1].copy(),
        lambda x, t: (t * (t / x).log()).sum(1).mean(),
    ),
    "KLD": (
        B.KLDCriterion,
        [r(4, 3), r(4, 3, seed=1)],
        r(4, 3),
        lambda x, t: 0.5 * (x[0] ** 2 + x[1].exp() - 1 - x[1]).sum(1).mean(),
    ),
    "Gaussian": (
        B.GaussianCriterion,
        [r(4, 3), r(4, 3, seed=1)],
        r(4, 3, seed=2),
        lambda x, t: F.gaussian_nll_loss(x[0], t, x[1].exp(), full=True, reduction="sum"),
    ),
    "Poisson": (B.PoissonCriterion, pos(4, 3), pos(4, 3, seed=1), lambda x, t: (x - t * (x + 1e-7).log()).mean()),
    "MeanAbsolutePercentage": (
        B.MeanAbsolutePercentageCriterion,
        r(4, 3),
        pos(4, 3),
        lambda x, t: 100 * ((x - t) / t).abs().mean(),
    ),
    "MeanSquaredLogarithmic": (
        B.MeanSquaredLogarithmicCriterion,
        pos(4, 3),
        pos(4, 3, seed=1),
        lambda x, t: F.mse_loss(x.log1p(), t.log1p()),
    ),
    "L1Cost": (B.L1Cost, r(4, 3), r(4, 3), lambda x, t: x.abs().sum()),
    "DiceCoefficient": (
        B.DiceCoefficientCriterion,
        pos(4, 3),
        (r(4, 3) > 0) * 1.0,
        lambda x, t: (1 - (2 * (x * t).sum(1) + 1) / (x.sum(1) + t.sum(1) + 1)).mean(),
    ),
    "DotProduct": (B.DotProductCriterion, r(4, 3), r(4, 3, seed=1), lambda x, t: (x * t).sum()),
    "PG": (B.PGCriterion, np.exp(logs(4, 3)), r(4, 3), lambda x, t: -(t * x.log()).sum()),
    "Multi": (
        lambda **o: B.MultiCriterion(**o).add(B.MSECriterion(**o), 0.5).add(B.AbsCriterion(False, **o), 2.0),
        r(4, 3),
        r(4, 3, seed=1),
        lambda x, t: 0.5 * F.mse_loss(x, t) + 2 * F.l1_loss(x, t, reduction="sum"),
    ),
    "Parallel": (
        lambda **o: B.ParallelCriterion(**o).add(B.ClassNLLCriterion(**o)).add(B.MSECriterion(**o), 0.5),
        [logs(4, 3), r(4, 2)],
        [np.array([1, 3, 2, -1]), r(4, 2, seed=1)],
        lambda x, t: F.nll_loss(x[0], t[0] - 1, ignore_index=-2) + 0.5 * F.mse_loss(x[1], t[1]),
    ),
    "TimeDistributed": (
        lambda **o: B.TimeDistributedCriterion(B.ClassNLLCriterion(np.array([1.0, 2, 0.5]), **o), True, **o),
        logs(4, 2, 3),
        np.array([[1, 2], [3, 1], [2, 2], [1, 1]]),
        lambda x, t: sum(F.nll_loss(x[:, s], t[:, s] - 1, torch.tensor([1.0, 2, 0.5]).double()) for s in (0, 1)) / 2,
    ),
    "TimeDistributedMask": (
        lambda **o: B.TimeDistributedMaskCriterion(B.ClassNLLCriterion(**o), 0, **o),
        logs(4, 2, 3),
        np.array([[1, 0], [3, 1], [0, 0], [1, 1]]),
        lambda x, t: F.nll_loss(x.flatten(0, 1), t.flatten() - 1, ignore_index=-1),
    ),
    "Transformer": (
        lambda **o: B.TransformerCriterion(B.MSECriterion(**o), Tanh(**o), MulConstant(2.0, **o), **o),
        r(4, 3),
        r(4, 3, seed=1),
        lambda x, t: F.mse_loss(torch.tanh(x), 2 * t),
    ),
}


def leaves(value: Any) -> list[Any]:
    return [leaf for each in value for leaf in leaves(each)] if isinstance(value, list) else [value]


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    return [mapped(each, change) for each in value] if isinstance(value, list) else change(value)


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_torch(name: str) -> None:
    make, output, target, reference = CASES[name]
    criterion = make(bigdl_type="double")
    x = mapped(output, lambda each: torch.tensor(each, requires_grad=True))
    expected = reference(x, mapped(target, torch.tensor))
    assert criterion.forward(output, target) == pytest.approx(float(expected.detach()), abs=1e-7)
    expected.backward()
    for mine, theirs in zip(leaves(criterion.backward(output, target)), leaves(x), strict=True):
        np.testing.assert_allclose(mine, theirs.grad.numpy(), atol=1e-7)


@pytest.mark.parametrize("name", [*CASES, "ClassSimplex"])
def test_backward_is_the_numeric_gradient(name: str) -> None:
    simplex = (lambda **o: B.ClassSimplexCriterion(4, **o), r(3, 4), np.array([1, 4, 2]))
    make, output, target = CASES[name][:3] if name in CASES else simplex
    criterion = make(bigdl_type="double")
    gradients = leaves(criterion.backward(output, target))
    for place, (array, gradient) in enumerate(zip(leaves(output), gradients, strict=True)):
        for index in list(np.ndindex(array.shape))[:6]:
            values = []
            for step in (1e-5, -1e-5):
                moved = [each.copy() for each in leaves(output)]
                moved[place][index] += step
                values.append(criterion.forward(moved if isinstance(output, list) else moved[0], target))
            assert gradient[index] == pytest.approx((values[0] - values[1]) / 2e-5, abs=1e-4)


@pytest.mark.parametrize("name", [name for name in CASES if name not in ("L1Cost",)])
def test_parts_of_a_batch_add_up(name: str) -> None:
    """The gradient of a whole batch is that of its parts, each scaled by its part of what the whole divides by."""
    make, output, target, _ = CASES[name]
    module = make(bigdl_type="double").to_torch()
    rows = len(leaves(output)[0])
    whole = make(bigdl_type="double").backward(output, target)
    cuts = [slice(0, 1), slice(1, rows)]
    targets = [mapped(target, lambda each, cut=cut: torch.tensor(each[cut])) for cut in cuts]
    masses = [np.array(module.masses(part, count)) for part, count in zip(targets, (1, rows - 1), strict=True)]
    total = sum(masses)
    found: list[list[np.ndarray]] = []
    for cut, part, mass in zip(cuts, targets, masses, strict=True):
        x = mapped(output, lambda each, cut=cut: torch.tensor(each[cut], requires_grad=True))
        parts = module.parts(x, part)
        scaled = [p.value * (1 if p.kind == "sum" else share) for p, share in zip(parts, mass / total, strict=True)]
        sum(scaled).backward()
        found.append([leaf.grad.numpy() for leaf in leaves(x)])
    for place, wanted in enumerate(leaves(whole)):
        np.testing.assert_allclose(np.concatenate([each[place] for each in found]), wanted, atol=1e-9)


def test_a_simplex_is_regular() -> None:
    corners = B.ClassSimplexCriterion(4, bigdl_type="double").to_torch().corners.numpy()
    distances = [np.linalg.norm(corners[i] - corners[j]) for i in range(4) for j in range(i)]
    np.testing.assert_allclose(distances, distances[0])
    np.testing.assert_allclose(np.linalg.norm(corners, axis=1), 1)
    assert B.ClassSimplexCriterion(2).forward(np.array([[1.0, 0.0]]), np.array([1.0])) == pytest.approx(0, abs=1e-9)


def test_modes_of_softmax() -> None:
    x, t = r(2, 3, 2), np.array([[1, 2], [2, 3]])
    terms = F.cross_entropy(torch.tensor(x), torch.tensor(t) - 1, reduction="none")
    counted = float(terms[torch.tensor(t) != 2].sum())
    for mode, divisor in (("VALID", 2), ("FULL", 4), ("BATCH_SIZE", 2), ("NONE", 1)):
        assert B.SoftmaxWithCriterion(2, mode).forward(x, t) == pytest.approx(counted / divisor, abs=1e-5)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: MSECriterion().forward(r(4, 3), r(4, 2)), r"\(4, 3\).*\(4, 2\)"),
        (lambda: MSECriterion().forward(r(4, 3), r(3, 4)), r"\(4, 3\).*\(3, 4\)"),
        (lambda: ClassNLLCriterion(np.ones(2)).forward(LOGS, np.array([1, 2])), "2 weights for 3 classes"),
        (lambda: ClassNLLCriterion().forward(LOGS, np.array([1, 2, 3])), r"\(2,\).*\(3,\)"),
        (lambda: KLDCriterion().forward(r(4, 3), None), "table of two"),
        (lambda: ParallelCriterion().add(MSECriterion()).forward([r(2), r(2)], [r(2)]), "table of as many"),
        (lambda: MultiCriterion().forward(r(2), r(2)), "add"),
        (lambda: MultiCriterion().add("mse"), "criterion"),
        (lambda: TimeDistributedCriterion(Tanh()), "criterion"),
        (lambda: B.SoftmaxWithCriterion(normalize_mode="ALL"), "VALID"),
        (lambda: MultiMarginCriterion(3), "1 or 2"),
        (lambda: TransformerCriterion(MSECriterion(), "tanh"), "layer"),
    ],
)
def test_wrong_words(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        make()


def test_weights_of_all_rows_skipped_cost_nothing() -> None:
    criterion = ClassNLLCriterion()
    assert criterion.forward(LOGS, np.array([-1, -1])) == 0
    assert not criterion.backward(LOGS, np.array([-1, -1])).any()
    assert math.isfinite(TimeDistributedMaskCriterion(criterion).forward(STEPS, np.zeros((2, 2))))
