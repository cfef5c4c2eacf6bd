"""The training loop's promises: where epochs end, what is recorded, validated and kept at which step, and going on."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch

from engine.desk import resumed, train
from firesteel.core.errors import PlanError
from firesteel.core.plan import EarlyStopping, Position, Validation
from firesteel.core.triggers import EveryEpoch, MaxEpoch, MaxIteration, MaxScore, MinLoss, SeveralIteration, TriggerOr
from firesteel.learn.pytorch.callbacks import Callback


def counts(run: Any) -> list[tuple[int, int, int]]:
    return [(r["epoch"], r["batch_count"], r["num_samples"]) for r in run.records]


def test_an_epoch_has_as_many_steps_as_it_takes() -> None:
    run = train(rows=20)  # steps of 8, 8 and 4 rows
    assert counts(run) == [(1, 3, 20), (2, 3, 20), (3, 3, 20)]
    assert run.steps() == list(range(1, 10))
    losses = run.losses()
    for epoch, record in enumerate(run.records):
        first, second, third = losses[3 * epoch : 3 * epoch + 3]
        assert record["train_loss"] == pytest.approx((8 * first + 8 * second + 4 * third) / 20)
        assert record["last_train_loss"] == pytest.approx(third)
        assert all(type(value) in (int, float) for value in record.values())
    assert run.position == Position(epoch=3, step=9, data_pass=3)


def test_max_steps_ends_inside_an_epoch() -> None:
    run = train(rows=50, batch_size=10, epochs=1, max_steps=7)
    assert counts(run) == [(1, 5, 50), (2, 2, 20)]
    assert run.steps() == list(range(1, 8))
    assert counts(train(rows=50, batch_size=10, epochs=9, max_steps=5)) == [(1, 5, 50)]


def test_epochs_cut_by_steps_go_on_in_the_same_pass() -> None:
    seen: list[list[float]] = []
    run = train(rows=40, steps_per_epoch=2, epochs=4, callbacks=(Rows(seen),), shuffle=True)
    # A pass has 5 steps: epochs of 2, 2 and 1 (the data ends first), then the next pass.
    assert [record["batch_count"] for record in run.records] == [2, 2, 1, 2]
    assert sorted(chain(*seen[:5])) == list(range(40))
    assert len(set(chain(*seen[5:]))) == 16
    assert run.position == Position(epoch=4, step=7, data_pass=1, pass_step=2)
    assert [record["batch_count"] for record in train(rows=20, steps_per_epoch=7).records] == [3, 3, 3]


class Rows(Callback):
    def __init__(self, seen: list[list[float]], rows: int = 40) -> None:
        self.seen, self.rows = seen, rows

    def after_train_iter(self, runner: Any) -> None:
        self.seen.append([round(float(v) * self.rows) for v in runner.batch[0][:, 0]])


@pytest.mark.parametrize(
    ("trigger", "steps", "places"),
    [
        (SeveralIteration(4), [4, 8], [(1, 1), (2, 2)]),
        (EveryEpoch(), [3, 6, 9], [(1, 0), (2, 0), (3, 0)]),
        (
            SeveralIteration(3),
            [3, 6, 9],
            [(1, 0), (2, 0), (3, 0)],
        ),  # on an epoch's last step: once, and the epoch is over
    ],
)
def test_checkpoints_come_once_at_their_steps(trigger: Any, steps: list[int], places: list[tuple[int, int]]) -> None:
    for stream in (None, list_of_batches):
        run = train(rows=20, checkpoint_trigger=trigger, stream=stream)
        assert [at["step"] for at in run.checkpoints] == steps
        assert [(at["epoch"], at["epoch_step"]) for at in run.checkpoints] == places


def list_of_batches(config: dict[str, Any], batch_size: int) -> Any:
    x = np.stack([np.arange(20), np.cos(np.arange(20))], 1).astype(np.float32)
    return [(x[i : i + 8] / [20, 1], x[i : i + 8, 1] * 2) for i in range(0, 20, 8)]


def test_a_checkpoint_where_the_run_is_cut_leaves_the_epoch_open() -> None:
    run = train(rows=20, max_steps=4, checkpoint_trigger=SeveralIteration(4))
    assert [(at["step"], at["epoch"], at["epoch_step"]) for at in run.checkpoints] == [(4, 1, 1)]
    whole = train(rows=20)
    again = resumed(run, 0, rows=20)
    assert counts(again) == [(2, 3, 20), (3, 3, 20)]
    np.testing.assert_allclose(again.weights, whole.weights, atol=1e-6)


@pytest.mark.parametrize("number", range(9))
def test_resuming_anywhere_equals_not_stopping(number: int) -> None:
    schedule = (lambda optimizer, config: torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.7), "batch")
    run = train(rows=20, checkpoint_trigger=SeveralIteration(1), scheduler=schedule)
    again = resumed(run, number, rows=20, scheduler=schedule)
    np.testing.assert_allclose(again.weights, run.weights, atol=1e-7)
    whole = {record["epoch"]: record for record in run.records}
    for record in again.records:  # also the record of the epoch that was resumed in its middle
        assert record == pytest.approx(whole[record["epoch"]])
    rates = [rate for event in run.events("steps") for rate in event["rates"]]
    assert [rate for event in again.events("steps") for rate in event["rates"]] == pytest.approx(rates[number + 1 :])
    assert rates[0] == 0.05
    assert rates[2] == pytest.approx(0.035)


@pytest.mark.parametrize(
    ("plan", "steps", "with_validation"),
    [
        (Validation(4), [3, 6, 9], [1, 2, 3]),
        (Validation(4, every_epochs=2), [6], [2]),
        (Validation(4, trigger=SeveralIteration(4)), [4, 8], [2, 3]),
        (Validation(4, trigger=SeveralIteration(3)), [3, 6, 9], [1, 2, 3]),
        (Validation(4, trigger=EveryEpoch()), [3, 6, 9], [1, 2, 3]),
    ],
)
def test_validations_come_once_at_their_steps(plan: Validation, steps: list[int], with_validation: list[int]) -> None:
    run = train(rows=20, validation=plan)
    assert run.validations == steps
    assert [record["epoch"] for record in run.records if "val_loss" in record] == with_validation
    assert all(record["val_num_samples"] == 10 for record in run.records if "val_loss" in record)


def test_validation_after_every_second_epoch_counts_from_the_first_when_resumed() -> None:
    run = train(rows=20, checkpoint_trigger=EveryEpoch(), epochs=4, validation=Validation(4, every_epochs=2))
    again = resumed(run, 0, rows=20, epochs=4, validation=Validation(4, every_epochs=2))
    assert run.validations == again.validations == [6, 12]


def test_validation_is_cut_by_steps() -> None:
    run = train(rows=20, validation=Validation(3, steps=2))
    assert [record["val_num_samples"] for record in run.records] == [6, 6, 6]


def test_min_loss_sees_every_steps_loss() -> None:
    run = train(rows=20, checkpoint_trigger=MinLoss(2.0), epochs=4)
    below = [step for step, loss in zip(run.steps(), run.losses(), strict=True) if loss < 2.0]
    assert below
    assert below != run.steps()
    assert [at["step"] for at in run.checkpoints] == below


def test_a_trigger_ends_the_training_and_an_epoch_that_it_cuts_is_completed_later() -> None:
    assert counts(train(rows=20, end_trigger=MaxEpoch(2))) == [(1, 3, 20), (2, 3, 20)]
    assert train(rows=20, end_trigger=EveryEpoch()).steps() == [1, 2, 3]
    cut = train(rows=20, end_trigger=MaxIteration(4), checkpoint_trigger=SeveralIteration(2))
    assert [at["step"] for at in cut.checkpoints] == [2, 4]
    assert (cut.position.epoch, cut.position.step, cut.position.epoch_step) == (1, 4, 1)
    rest = train(rows=20, state=cut.state, position=cut.position, end_trigger=MaxEpoch(2))
    assert rest.steps() == [5, 6]
    assert counts(rest) == [(2, 3, 20)]
    whole = train(rows=20, end_trigger=MaxEpoch(2))
    np.testing.assert_allclose(rest.weights, whole.weights, atol=1e-7)
    assert rest.position == whole.position
    for trigger in (MaxEpoch(2), MaxIteration(6)):
        assert train(rows=20, state=whole.state, position=whole.position, end_trigger=trigger).steps() == []
    assert train(rows=20, end_trigger=TriggerOr(MinLoss(1e9), MaxEpoch(5))).steps() == [1]
    scored = train(rows=20, end_trigger=MaxScore(-1.0), validation=Validation(4, trigger=SeveralIteration(2)))
    assert scored.steps() == [1, 2]


def test_patience() -> None:
    rule = EarlyStopping(monitor="train_loss", patience=2)
    assert len(train(rows=8, rate=0.0, epochs=10, early_stopping=rule).records) == 3
    assert len(train(rows=8, rate=0.0, epochs=10, early_stopping=EarlyStopping("train_loss")).records) == 2
    assert len(train(rows=8, epochs=5, early_stopping=rule).records) == 5  # it gets better all the time
    hopeless = EarlyStopping("train_loss", patience=1, baseline=-1.0)
    assert len(train(rows=8, epochs=5, early_stopping=hopeless).records) == 1
    every_second = EarlyStopping(patience=2)
    run = train(rows=8, rate=0.0, epochs=9, early_stopping=every_second, validation=Validation(4, every_epochs=2))
    assert len(run.records) == 6  # epochs without the value do not count


def test_the_best_epochs_weights_are_restored() -> None:
    rule = EarlyStopping("train_loss", patience=2, mode="max", restore_best_weights=True)
    run = train(rows=8, epochs=9, early_stopping=rule, checkpoint_trigger=EveryEpoch())
    assert len(run.records) == 3  # it gets smaller, which this rule thinks worse
    first = resumed(run, 0, rows=8, epochs=1)
    assert first.records == []
    np.testing.assert_array_equal(run.weights, first.weights)


@pytest.mark.parametrize("hook", ["after_train_iter", "before_train_iter", "after_train_epoch"])
def test_a_callback_stops_the_run(hook: str) -> None:
    class Stop(Callback):
        pass

    def stop(self: Any, runner: Any) -> None:
        runner.stop = runner.stop or runner.global_step >= 4

    setattr(Stop, hook, stop)
    run = train(rows=20, callbacks=(Stop(),))
    wanted = {"after_train_iter": [3, 1], "before_train_iter": [3, 2], "after_train_epoch": [3, 3]}[hook]
    assert [record["batch_count"] for record in run.records] == wanted


def test_data_that_can_be_read_once_says_so() -> None:
    with pytest.raises(PlanError, match="pass 2 over the training data gave no rows"):
        train(rows=20, stream=lambda config, batch_size: iter(list_of_batches(config, batch_size)))


def test_endless_data_goes_on_from_epoch_to_epoch() -> None:
    drawn = []

    def endless(config: dict[str, Any], batch_size: int) -> Any:
        while True:
            drawn.append(len(drawn))
            yield np.full((8, 2), len(drawn), np.float32), np.zeros(8, np.float32)

    run = train(stream=endless, steps_per_epoch=3, epochs=3)
    assert [record["batch_count"] for record in run.records] == [3, 3, 3]
    assert len(drawn) == 10  # nine steps, and a look ahead
    assert run.position == Position(epoch=3, step=9, pass_step=9)


@pytest.mark.parametrize("validation", [None, Validation(4)])
def test_a_plateau_sees_the_validation_if_there_is_one(validation: Validation | None) -> None:
    seen = []

    class Seeing(torch.optim.lr_scheduler.ReduceLROnPlateau):
        def step(self, metrics: float, epoch: None = None) -> None:
            seen.append(metrics)

    run = train(scheduler=(lambda optimizer, config: Seeing(optimizer), "epoch"), validation=validation)
    assert seen == [record["train_loss" if validation is None else "val_loss"] for record in run.records]


def test_a_loss_that_is_no_number_is_told_once() -> None:
    schedule = (
        lambda opt, config: torch.optim.lr_scheduler.LambdaLR(opt, lambda n: float("nan") if n else 1.0),
        "batch",
    )
    run = train(rows=20, scheduler=schedule)
    assert [event["text"] for event in run.events("warning")] == ["the loss is nan at step 3 on replica 0"]
    assert len(run.records) == 3
