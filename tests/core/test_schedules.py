"""Schedules give the rates of the specification's table, and are values."""

import json
import math

import numpy as np
import pytest

from firesteel.core.errors import PlanError, UnknownName
from firesteel.core.schedules import (
    Default,
    Exponential,
    MultiStep,
    Plateau,
    Poly,
    Schedule,
    SequentialSchedule,
    Step,
    Warmup,
)

WARM_THEN_STEP = SequentialSchedule(5).add(Warmup(0.1), 2).add(Step(2, 0.5), 10)
WARM_THEN_POLY = SequentialSchedule(5).add(Warmup(0.1), 2).add(Poly(1, 6), 10)

EVERY = [
    Default(),
    Step(2, 0.5),
    MultiStep([2, 3], 0.1),
    Exponential(2, 0.5, True),
    Poly(2, 4),
    Warmup(0.05),
    Plateau("score", 0.5, 3, "max", 1e-3, 2, 1e-5),
    WARM_THEN_STEP,
]


def rates(schedule: Schedule, count: int, base: float = 0.1, decay: float = 0.0) -> list[float]:
    return [schedule.rate(n, base, decay) for n in range(count)]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Default(), [0.1, 0.1, 0.1]),
        (Step(2, 0.5), [0.1, 0.1, 0.05, 0.05, 0.025]),
        (Poly(2, 4), [0.1, 0.05625, 0.025, 0.00625, 0, 0]),
        (Exponential(2, 0.5), [0.1, 0.070711, 0.05]),
        (Exponential(2, 0.5, True), [0.1, 0.1, 0.05]),
        (MultiStep([2, 3], 0.1), [0.1, 0.1, 0.01, 0.001]),
        (Warmup(0.05), [0.1, 0.15, 0.2]),
        (WARM_THEN_STEP, [0.1, 0.2, 0.3, 0.3, 0.15, 0.15, 0.075]),
        (WARM_THEN_POLY, [0.1, 0.2, 0.3, 0.15, 0.1, 0.05, 0]),
    ],
    ids=repr,
)
def test_the_specifications_numbers(schedule: Schedule, expected: list[float]) -> None:
    assert rates(schedule, len(expected)) == pytest.approx(expected, abs=1e-6)


def test_only_default_heeds_the_decay() -> None:
    assert rates(Default(), 3, decay=1.0) == pytest.approx([0.1, 0.05, 0.1 / 3])
    assert rates(Step(2, 0.5), 5, decay=1.0) == rates(Step(2, 0.5), 5)
    assert rates(SequentialSchedule(1).add(Warmup(0.1), 1).add(Default(), 9), 4, decay=1.0) == pytest.approx(
        [0.1, 0.2, 0.1, 0.2 / 3]
    )


def test_the_last_of_a_sequence_goes_on_and_each_starts_from_the_rate_before() -> None:
    three = SequentialSchedule(1).add(Warmup(0.1), 2).add(Step(1, 0.5), 2).add(Warmup(1.0), 1)
    assert rates(three, 8) == pytest.approx([0.1, 0.2, 0.3, 0.15, 0.075, 1.075, 2.075, 3.075])


def test_a_sequence_in_a_sequence_counts_from_its_start() -> None:
    inner = SequentialSchedule(1).add(Warmup(0.1), 1).add(Step(1, 0.5), 9)
    assert rates(SequentialSchedule(1).add(Default(), 2).add(inner, 9), 6) == pytest.approx(
        [0.1, 0.1, 0.1, 0.2, 0.1, 0.05]
    )


def test_add_returns_the_same_object() -> None:
    schedule = SequentialSchedule(5)
    assert schedule.add(Default(), 1) is schedule


def test_a_sequence_of_nothing_has_no_rate() -> None:
    with pytest.raises(PlanError, match="at least one schedule"):
        SequentialSchedule(5).rate(0, 0.1)


@pytest.mark.parametrize("schedule", EVERY, ids=repr)
def test_settings_survive_json(schedule: Schedule) -> None:
    again = Schedule.from_settings(json.loads(json.dumps(schedule.settings(), allow_nan=False)))
    assert again == schedule
    assert hash(again) == hash(schedule)


def test_settings_of_nothing_known() -> None:
    for name in ("Cosine", "Schedule", "Value", None):
        with pytest.raises(UnknownName, match="there are: Default, "):
            Schedule.from_settings({"class": name})
    with pytest.raises(PlanError, match="gamma"):
        Schedule.from_settings({"class": "Step", "step_size": 2})
    with pytest.raises(UnknownName):
        Step.from_settings(Warmup(0.1).settings())


def test_numpy_numbers_become_pythons() -> None:
    schedule = MultiStep(np.array([2, 3]), np.float32(0.5))  # type: ignore[arg-type]
    assert schedule == MultiStep([2, 3], 0.5)
    assert type(schedule.gamma) is float
    assert schedule.step_sizes == (2, 3)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Step(0, 0.5), "Step's step_size must be a whole number >= 1, not 0"),
        (lambda: Step(2.0, 0.5), "step_size"),
        (lambda: Step(True, 0.5), "step_size"),
        (lambda: Step(2, -1), "gamma"),
        (lambda: MultiStep(3, 0.1), "step_sizes"),
        (lambda: MultiStep(["2"], 0.1), "step_sizes"),
        (lambda: Exponential(2, 0.5, "yes"), "stair_case"),
        (lambda: Poly(math.nan, 3), "power"),
        (lambda: Warmup("0.1"), "delta"),
        (lambda: Default(bigdl_type="half"), "bigdl_type"),
        (lambda: Plateau("Loss", factor=1.0), "factor"),
        (lambda: Plateau("Loss", mode="least"), "mode"),
        (lambda: Plateau("accuracy"), "monitor"),
        (lambda: Plateau("Loss", patience=-1), "patience"),
        (lambda: SequentialSchedule(0), "iteration_per_epoch"),
        (lambda: SequentialSchedule(1).add(Default(), 0), "max_iteration"),
        (lambda: SequentialSchedule(1).add(0.1, 1), "scheduler"),
        (lambda: SequentialSchedule(1).add(Plateau("Loss"), 1), "scheduler"),
        (lambda: SequentialSchedule(1).add(SequentialSchedule(1), 1), "at least one schedule"),
    ],
)
def test_nonsense_is_refused_in_one_sentence(make, says: str) -> None:
    with pytest.raises(PlanError, match=says) as error:
        make()
    assert str(error.value).endswith(".")
    assert "\n" not in str(error.value)


def test_plateau_waits_then_lowers_then_rests() -> None:
    state = Plateau("Loss", factor=0.5, patience=1, cooldown=2, min_lr=0.3).start(1.0)
    seen = [state.observe(value) for value in [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]]
    assert seen == [1.0, 1.0, 0.5, 0.5, 0.5, 0.5, 0.3, 0.3, 0.3, 0.3, 0.3]
