"""Optimizers are values: equal, hashable, checked when made, and JSON can hold them."""

import dataclasses
import inspect
import json
import math
import pickle

import numpy as np
import pytest

from firesteel.core.errors import PlanError, UnknownName
from firesteel.core.optimizers import (
    LBFGS,
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    Ftrl,
    OptimMethod,
    ParallelAdam,
    RMSprop,
)
from firesteel.core.schedules import Default, Plateau, SequentialSchedule, Step, Warmup

EVERY = [SGD, Adam, ParallelAdam, Adagrad, RMSprop, Adadelta, Adamax, Ftrl, LBFGS]


def test_parameters_order_and_defaults_are_the_specifications() -> None:
    def positional(kind: type) -> dict[str, object]:
        parameters = inspect.signature(kind).parameters.values()
        return {one.name: one.default for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD}

    adam = {"learningrate": 1e-3, "learningrate_decay": 0.0, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
    expected = {
        SGD: {
            "learningrate": 1e-3,
            "learningrate_decay": 0.0,
            "weightdecay": 0.0,
            "momentum": 0.0,
            "dampening": None,
            "nesterov": False,
            "learningrate_schedule": None,
            "learningrates": None,
            "weightdecays": None,
        },
        Adam: adam,
        ParallelAdam: {**adam, "parallel_num": -1},
        Adagrad: {"learningrate": 1e-3, "learningrate_decay": 0.0, "weightdecay": 0.0},
        RMSprop: {"learningrate": 1e-2, "learningrate_decay": 0.0, "decayrate": 0.99, "epsilon": 1e-8},
        Adadelta: {"decayrate": 0.9, "epsilon": 1e-10},
        Adamax: {"learningrate": 0.002, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-38},
        Ftrl: {
            "learningrate": 1e-3,
            "learningrate_power": -0.5,
            "initial_accumulator_value": 0.1,
            "l1_regularization_strength": 0.0,
            "l2_regularization_strength": 0.0,
            "l2_shrinkage_regularization_strength": 0.0,
        },
        LBFGS: {
            "max_iter": 20,
            "max_eval": None,
            "tolfun": 1e-5,
            "tolx": 1e-9,
            "ncorrection": 100,
            "learningrate": 1.0,
            "verbose": False,
            "linesearch": None,
            "linesearch_options": None,
        },
    }
    for kind, parameters in expected.items():
        assert list(positional(kind).items()) == list(parameters.items()), kind


@pytest.mark.parametrize("kind", EVERY)
def test_equal_settings_make_equal_values(kind: type[OptimMethod]) -> None:
    assert kind() == kind(bigdl_type="double")
    assert hash(kind()) == hash(kind())
    assert kind() != kind(learningrate_schedule=Warmup(0.1))
    assert pickle.loads(pickle.dumps(kind())) == kind()  # noqa: S301 - our own bytes
    with pytest.raises(dataclasses.FrozenInstanceError):
        kind().learningrate_schedule = None


@pytest.mark.parametrize("kind", EVERY)
def test_settings_survive_json(kind: type[OptimMethod]) -> None:
    for method in (kind(), kind(learningrate_schedule=SequentialSchedule(2).add(Warmup(0.1), 3).add(Step(2, 0.5), 4))):
        assert OptimMethod.from_settings(json.loads(json.dumps(method.settings()))) == method


def test_settings_of_factors() -> None:
    method = SGD(learningrates=np.array([1.0, 0.5], np.float32), weightdecays=[0.0, 0.1])
    assert method.settings()["learningrates"] == [1.0, 0.5]
    assert OptimMethod.from_settings(json.loads(json.dumps(method.settings()))) == method
    for name in ("Lion", "OptimMethod", "_Scheduled", "Step"):
        with pytest.raises(UnknownName, match="there are: Adadelta, "):
            OptimMethod.from_settings({"class": name})


def test_a_schedule_has_two_spellings_and_a_place() -> None:
    schedule = Step(2, 0.5)
    by_place = SGD(0.1, 0.0, 0.0, 0.0, None, False, schedule)
    assert by_place == SGD(0.1, leaningrate_schedule=schedule) == SGD(0.1, learningrate_schedule=schedule)
    assert by_place.schedule is schedule
    assert Adam(leaningrate_schedule=schedule).schedule == schedule
    assert Adam().schedule == Default()
    assert dataclasses.replace(by_place, learningrate_schedule=None) == SGD(0.1)


def test_a_schedule_is_copied() -> None:
    schedule = SequentialSchedule(1).add(Warmup(0.1), 2)
    method = SGD(0.1, learningrate_schedule=schedule)
    schedule.add(Step(1, 0.0), 2)
    assert method.rate(4) == pytest.approx(0.5)


def test_rates() -> None:
    assert [Adam(0.1, 1.0).rate(n) for n in range(3)] == pytest.approx([0.1, 0.05, 0.1 / 3])
    assert [SGD(0.1, 1.0, leaningrate_schedule=Step(2, 0.5)).rate(n) for n in range(3)] == [0.1, 0.1, 0.05]
    assert [Adadelta(learningrate_schedule=Step(1, 0.5)).rate(n) for n in range(3)] == [1.0, 0.5, 0.25]
    assert Adamax().rate(7) == 0.002
    assert SGD(0.1, learningrate_schedule=Plateau("Loss")).rate(7) == 0.1


def test_constant_rates_are_known_as_such() -> None:
    assert all(kind().is_constant for kind in EVERY)
    assert SGD(learningrate_schedule=Default()).is_constant
    assert not SGD(learningrate_decay=0.1).is_constant
    assert not SGD(learningrate_schedule=Plateau("Loss")).is_constant


def test_dampening_not_given_is_the_momentum() -> None:
    assert SGD(momentum=0.9).damping == 0.9
    assert SGD(momentum=0.9, dampening=0).damping == 0


def test_a_part_has_its_elements_factors() -> None:
    method = SGD(0.1, learningrates=[1, 2, 3, 4], weightdecays=[0, 0, 1, 1])
    assert method.part(1, 3) == SGD(0.1, learningrates=[2, 3], weightdecays=[0, 1])
    assert SGD(0.1).part(1, 3) == SGD(0.1)
    assert Adam(0.1).part(1, 3) == Adam(0.1)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: SGD(-0.1), "SGD's learningrate must be a number >= 0, not -0.1"),
        (lambda: SGD("0.1"), "learningrate"),
        (lambda: SGD(math.inf), "learningrate"),
        (lambda: SGD(nesterov=True), "momentum > 0 and dampening=0"),
        (lambda: SGD(momentum=0.9, nesterov=True), "momentum > 0 and dampening=0"),
        (lambda: SGD(learningrates=[[1.0]]), "learningrates"),
        (lambda: SGD(learningrates=[1.0], weightdecays=[1.0, 1.0]), "same length"),
        (lambda: SGD(weightdecay=0.1, weightdecays=[0.1]), "not both"),
        (lambda: SGD(learningrate_schedule=Default(), leaningrate_schedule=Default()), "not both"),
        (lambda: SGD(learningrate_schedule=0.1), "a schedule"),
        (lambda: SGD(learningrate_schedule=SequentialSchedule(1)), "at least one schedule"),
        (lambda: Adam(beta1=1.0), "beta1"),
        (lambda: Adam(bigdl_type="int"), "bigdl_type"),
        (lambda: Ftrl(learningrate_power=0.5), "learningrate_power"),
        (lambda: Ftrl(l1_regularization_strength=-1), "l1_regularization_strength"),
        (lambda: Ftrl(l2_regularization_strength=-1), "l2_regularization_strength"),
        (lambda: Ftrl(l2_shrinkage_regularization_strength=-1), "l2_shrinkage"),
        (lambda: Ftrl(initial_accumulator_value=-1), "initial_accumulator_value"),
        (lambda: LBFGS(max_iter=0), "max_iter"),
        (lambda: LBFGS(linesearch="wolfe"), "linesearch"),
        (lambda: LBFGS(linesearch_options={}), "linesearch_options"),
    ],
)
def test_nonsense_is_refused_in_one_sentence(make, says: str) -> None:
    with pytest.raises(PlanError, match=says) as error:
        make()
    assert "\n" not in str(error.value)


def test_the_door_has_the_same_classes() -> None:
    from firesteel.core import optimizers, schedules
    from firesteel.learn import optimizers as door
    from firesteel.learn.optimizers import schedule

    assert all(getattr(door, name) is getattr(optimizers, name) for name in door.__all__)
    assert sorted(door.__all__) == sorted(kind.__name__ for kind in EVERY)
    assert all(getattr(schedule, name) is getattr(schedules, name) for name in schedule.__all__)
    assert len(schedule.__all__) == 8
