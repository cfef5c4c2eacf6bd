"""Commit points: going on from any of them equals not stopping, and they change nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine.desk import train
from firesteel.core.plan import EarlyStopping, Launch, Validation
from firesteel.engine import commits
from firesteel.engine.commits import CommitFiles, Commits, join, split


class EveryStep(Commits):
    """Commits after each step."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.due = 0

    def plan(self, *args: Any) -> None:
        self.due = 0


@pytest.fixture
def every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firesteel.engine.worker.Commits", EveryStep)


def test_a_note_and_its_parts() -> None:
    note, parts = {"step": 3, "score": None}, {"model": b"weights", "empty": b"", "own 0": bytes(9)}
    assert split(b"".join(join(note, dict(parts)))) == (note, parts)


def test_files_are_written_in_turn_and_the_last_whole_one_stays() -> None:
    class Desk:
        def __init__(self, descriptors: dict[str, int]) -> None:
            self.descriptors, self.kept = descriptors, None

        def keep(self, note: Any) -> None:
            self.kept = note

    with CommitFiles() as files:
        desk: Any = Desk(files.descriptors)
        assert files.read(None) == []
        first = Commits(desk, None, 0)
        first.write(1, 0, [b"one"])
        first.leave_note()
        first.write(2, 0, [b"second, longer"])  # and dies before it says so
        assert files.read(desk.kept) == [b"one"]
        again = Commits(desk, desk.kept, 1)
        assert again.read() == b"one"
        again.write(2, 0, [b"two"])
        again.leave_note()
        assert files.read(desk.kept) == [b"two"]


def test_they_take_their_small_part_of_the_time() -> None:
    paced: Any = Commits.__new__(Commits)
    paced._costs, paced._is_first = [], True
    paced.plan(8, 1.0, 0.01)
    assert paced.due == 8 + 32  # the first says little
    paced.plan(40, 0.02, 0.01)
    assert paced.due == 40 + 400  # 0.02 s in 400 steps of 0.01 s: half a percent
    paced.plan(440, 0.5, 0.01)
    assert paced.due == 440 + 400  # an odd slow one does not count
    paced.plan(840, 0.0, 10.0)
    assert paced.due == 841


@pytest.mark.usefixtures("every_step")
@pytest.mark.parametrize("stopping", [False, True])
def test_going_on_from_any_commit_equals_not_stopping(stopping: bool) -> None:
    options: dict[str, Any] = {"rows": 20, "validation": Validation(4), "steps_per_epoch": 2, "epochs": 5}
    if stopping:
        rule = EarlyStopping("train_loss", patience=1, restore_best_weights=True, mode="max")
        options |= {"early_stopping": rule, "epochs": 20}
    whole = train(**options)
    assert len(whole.commits) > 3
    for data in whole.commits:
        again = train(**options, left=data)
        np.testing.assert_array_equal(again.weights, whole.weights)
        assert again.position == whole.position
        assert again.records[-1] == pytest.approx(whole.records[-1])


def test_they_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    without = train(launch=Launch(1, max_failures=0, max_preemptions=0))
    assert without.kept == []
    monkeypatch.setattr("firesteel.engine.worker.Commits", EveryStep)
    committed = train()
    assert len(committed.kept) > 5
    np.testing.assert_array_equal(committed.weights, without.weights)
    assert committed.position == replace(without.position)


def test_a_full_disk_costs_only_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firesteel.engine.worker.Commits", EveryStep)

    def full(*args: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(commits.os, "pwrite", full)
    run = train()
    assert run.kept == []
    assert "No space left" in run.events("warning")[0]["text"]
    np.testing.assert_array_equal(run.weights, train(launch=Launch(1, 0, 0)).weights)
