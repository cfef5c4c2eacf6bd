"""Triggers: each row of the table, their settings, and what is taken for one."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest

import firesteel.learn.trigger as facade
from firesteel.core import triggers as t
from firesteel.core.errors import PlanError


def at(epoch=0, step=1, is_epoch_end=False, loss=None, score=None):
    return t.Progress(epoch, step, is_epoch_end, loss, score)


def run(trigger, epochs=3, steps_per_epoch=3):
    """The steps after which the trigger fires in a whole run."""
    total = epochs * steps_per_epoch
    return [
        step
        for step in range(1, total + 1)
        if trigger.fires(at(step // steps_per_epoch, step, step % steps_per_epoch == 0))
    ]


@pytest.mark.parametrize(
    ("trigger", "steps"),
    [
        (t.EveryEpoch(), [3, 6, 9]),
        (t.SeveralIteration(4), [4, 8]),
        (t.SeveralIteration(np.int64(4)), [4, 8]),
        (t.MaxEpoch(2), [6, 7, 8, 9]),
        (t.MaxIteration(8), [8, 9]),
        (t.TriggerAnd(t.EveryEpoch(), t.SeveralIteration(2)), [6]),
        (t.TriggerOr(t.EveryEpoch(), t.SeveralIteration(4)), [3, 4, 6, 8, 9]),
        (t.TriggerOr(t.TriggerAnd("everyepoch", t.MaxEpoch(3)), t.SeveralIteration(5)), [5, 9]),
        (t.TriggerAnd(t.EveryEpoch()), [3, 6, 9]),
    ],
    ids=repr,
)
def test_when_they_fire(trigger, steps):
    assert run(trigger) == steps


def test_intervals_do_not_fire_before_the_first_update():
    assert not t.SeveralIteration(1).fires(at(step=0))


def test_bounds_are_strict_and_need_a_value():
    assert t.MaxScore(0.9).fires(at(score=0.91))
    assert not t.MaxScore(0.9).fires(at(score=0.9))
    assert not t.MaxScore(0.9).fires(at())
    assert t.MinLoss(0.1).fires(at(loss=0.09))
    assert not t.MinLoss(0.1).fires(at(loss=0.1))
    assert not t.MinLoss(0.1).fires(at())
    assert not t.MinLoss(0.1).fires(at(loss=float("nan")))


def test_a_loose_loss_stops_after_one_update():
    assert t.TriggerOr(t.MinLoss(1e3), t.MaxEpoch(50)).fires(at(step=1, loss=3.0))


@pytest.mark.parametrize("make", [t.SeveralIteration, t.MaxEpoch, t.MaxIteration])
@pytest.mark.parametrize("wrong", [0, -1, 2.0, "2", None, True])
def test_counts_are_positive_integers(make, wrong):
    with pytest.raises(PlanError, match=f"{make.__name__} needs a positive integer"):
        make(wrong)


@pytest.mark.parametrize("make", [t.MaxScore, t.MinLoss])
@pytest.mark.parametrize("wrong", ["2", None, True, float("nan")])
def test_bounds_are_numbers(make, wrong):
    with pytest.raises(PlanError, match=f"{make.__name__} needs a number"):
        make(wrong)


def test_they_are_values():
    first = t.MaxEpoch(3)
    combined = t.TriggerOr(first, t.MinLoss(0.1))
    assert combined == t.TriggerOr(t.MaxEpoch(3), t.MinLoss(0.1))
    assert combined != t.TriggerAnd(first, t.MinLoss(0.1))
    assert hash(combined) == hash(t.TriggerOr(first, t.MinLoss(0.1)))
    assert pickle.loads(pickle.dumps(combined)) == combined  # noqa: S301 (a closure carries them)
    assert combined.other == (t.MinLoss(0.1),)
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.max_epoch = 4


def test_as_trigger():
    trigger = t.SeveralIteration(4)
    assert t.as_trigger(trigger) is trigger
    assert t.as_trigger("everyepoch") == t.as_trigger("EveryEpoch") == t.EveryEpoch()


@pytest.mark.parametrize("wrong", ["every_epoch", 4, None, t.EveryEpoch])
def test_what_is_no_trigger_lists_what_works(wrong):
    with pytest.raises(PlanError) as raised:
        t.as_trigger(wrong)
    for name in ("everyepoch", *facade.__all__):
        assert name in str(raised.value)
    with pytest.raises(PlanError):
        t.TriggerAnd(t.EveryEpoch(), wrong)


def test_the_facade_has_the_same_names():
    assert set(facade.__all__) == set(t.__all__) - {"Progress", "Trigger", "as_trigger"}
    assert all(getattr(facade, name) is getattr(t, name) for name in facade.__all__)
