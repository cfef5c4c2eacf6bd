"""Checkpoints come when asked for, and a training that goes on from one equals a training that never stopped."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import safetensors.torch
from pyspark.sql import SparkSession
from torch import nn

from firesteel import Estimator
from firesteel.core.errors import CheckpointError, PlanError
from firesteel.learn.trigger import EveryEpoch, SeveralIteration
from frontends import resuming
from frontends.resuming import ROWS, counted, estimator, train


def weights(est: Any) -> np.ndarray:
    return nn.utils.parameters_to_vector(est.get_model().parameters()).detach().numpy()


def versions(folder: Path) -> list[int]:
    return sorted(int(path.suffix[1:]) for path in folder.glob("*/model.*"))


@pytest.fixture(scope="module")
def whole(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[np.ndarray, Path]:
    """Weights after three epochs in one go, and the folder with a checkpoint of each."""
    folder = tmp_path_factory.mktemp("whole")
    est = estimator(folder / "model")
    history = train(spark, est, folder / "rows", epochs=3, checkpoint_trigger=EveryEpoch())
    assert [record["batch_count"] for record in history] == [3, 3, 3]
    assert counted(folder / "rows") == sorted([*range(ROWS)] * 3)
    return weights(est), folder / "model"


def test_a_checkpoint_at_every_epochs_end(whole: tuple[np.ndarray, Path]) -> None:
    trained, folder = whole
    assert versions(folder) == [3, 6, 9]
    newest = Estimator.latest_checkpoint(str(folder))
    assert newest.endswith("/model.9")
    names = {path.name for path in Path(newest).parent.iterdir()}
    assert names == {f"{part}.{step}" for part in ("model", "optimMethod-Model") for step in (3, 6, 9)}
    for name in names:
        safetensors.torch.load_file(Path(newest).parent / name)  # no pickle anywhere
    loaded = safetensors.torch.load_file(newest)
    np.testing.assert_array_equal(np.concatenate([t.numpy().ravel() for t in loaded.values()]).size, trained.size)
    with pytest.raises(CheckpointError, match="no checkpoint"):
        Estimator.latest_checkpoint(str(folder.parent / "rows"))


def test_going_on_from_a_checkpoint_equals_not_stopping(
    spark: SparkSession, whole: tuple[np.ndarray, Path], tmp_path: Path
) -> None:
    trained, folder = whole
    est = estimator(tmp_path / "unused")
    est.load_checkpoint(str(folder), version=6)
    history = train(spark, est, tmp_path / "rows", epochs=1)
    assert [(record["epoch"], record["batch_count"]) for record in history] == [(3, 3)]
    np.testing.assert_allclose(weights(est), trained, atol=1e-6)
    assert [step for step, _, _ in est.get_train_summary("Loss")] == [7, 8, 9]
    # By hand: two epochs, a checkpoint where the user wants it, one more epoch in another estimator.
    first = estimator(tmp_path / "unused")
    train(spark, first, tmp_path / "rows", epochs=2)
    path = first.save_checkpoint(str(tmp_path / "mine"))
    assert path == str(tmp_path / "mine" / "model.6")
    second = estimator(tmp_path / "unused")
    second.load_orca_checkpoint(str(tmp_path / "mine"), version=None, prefix="optimMethod-Model")
    train(spark, second, tmp_path / "rows", epochs=1)
    np.testing.assert_allclose(weights(second), trained, atol=1e-6)


def test_several_iterations_and_as_many_as_are_kept(spark: SparkSession, tmp_path: Path) -> None:
    est = estimator(tmp_path / "model")
    train(spark, est, tmp_path / "rows", epochs=3, checkpoint_trigger=SeveralIteration(4))
    assert versions(tmp_path / "model") == [4, 8]
    assert Estimator.latest_checkpoint(str(tmp_path / "model")).endswith("model.8")
    est = estimator(tmp_path / "few")
    train(spark, est, tmp_path / "rows", epochs=1, checkpoint_trigger=SeveralIteration(1), keep_checkpoints=2)
    assert versions(tmp_path / "few") == [2, 3]
    assert len(list((tmp_path / "few").glob("*/optimMethod-*"))) == 2


def test_a_damaged_checkpoint_is_passed_over(
    spark: SparkSession, whole: tuple[np.ndarray, Path], tmp_path: Path
) -> None:
    trained, folder = whole
    shutil.copytree(folder, tmp_path / "model")
    (dated,) = (path for path in (tmp_path / "model").iterdir() if path.name != "summary")
    newest = dated / "model.9"
    newest.write_bytes(newest.read_bytes()[:-3])
    est = estimator(tmp_path / "model")
    with pytest.warns(UserWarning, match=r"damaged checkpoint: .*model\.9"):
        history = train(spark, est, tmp_path / "rows", resume=True, epochs=3)
    assert [record["epoch"] for record in history] == [3]
    np.testing.assert_allclose(weights(est), trained, atol=1e-6)


def test_killed_in_the_middle_of_an_epoch(spark: SparkSession, whole: tuple[np.ndarray, Path], tmp_path: Path) -> None:
    killed = tmp_path / "killed"
    killed.mkdir()
    path = os.pathsep.join(sys.path)
    process = subprocess.Popen(
        [sys.executable, resuming.__file__, str(killed)],
        env={**os.environ, "PYTHONPATH": path},
        stderr=subprocess.DEVNULL,
    )
    try:
        end = time.monotonic() + 120
        while not list(killed.glob(f"model/*/model.{resuming.LAST_STEP}")):
            assert process.poll() is None, "the training ended by itself"
            assert time.monotonic() < end, "no checkpoint within 120 s"
            time.sleep(0.1)
        family = psutil.Process(process.pid).children(recursive=True)
        assert len(family) >= 3  # Java, and two replicas
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    _, alive = psutil.wait_procs(family, timeout=30)
    assert alive == [], "something outlived the driver"
    assert counted(killed / "rows") != []
    for replicas in (2, 3):
        folder = tmp_path / f"again{replicas}"
        shutil.copytree(killed, folder)
        est = estimator(folder / "model", replicas)
        history = train(spark, est, folder / "rows", resume=True, epochs=3, checkpoint_trigger=EveryEpoch())
        assert [(r["epoch"], r["batch_count"], r["num_samples"]) for r in history] == [(2, 3, 20), (3, 3, 20)]
        assert counted(folder / "rows") == sorted([*range(ROWS)] * 3)
        np.testing.assert_allclose(weights(est), whole[0], atol=1e-5)
        before = weights(est).copy()
        again = estimator(folder / "model", replicas)
        history = train(spark, again, folder / "rows", resume=True, epochs=2)
        assert list(history) == []
        np.testing.assert_array_equal(weights(again), before)


def test_resume_without_a_checkpoint_begins(spark: SparkSession, tmp_path: Path) -> None:
    est = estimator(tmp_path / "model", replicas=1)
    assert len(train(spark, est, tmp_path / "rows", resume=True, max_steps=2)) == 1
    with pytest.raises(CheckpointError, match="of version 7"):
        est.load_checkpoint(str(tmp_path), version=7)


@pytest.fixture
def half(spark: SparkSession, tmp_path: Path) -> Path:
    """A training that has ended after step 4: one of three in epoch 2."""
    folder = tmp_path / "half"
    folder.mkdir()
    train(spark, estimator(folder / "model"), folder / "rows", max_steps=4, checkpoint_trigger=SeveralIteration(1))
    assert len(counted(folder / "rows")) == ROWS + 8
    return folder


def test_resumed_with_another_batch_size_every_row_still_counts_once(spark: SparkSession, half: Path) -> None:
    """Steps of 8 rows were once taken for steps of 5, and a third of the epoch's rows came twice."""
    est = estimator(half / "model")
    trigger = SeveralIteration(1)
    history = train(spark, est, half / "rows", resume=True, max_steps=5, batch_size=5, checkpoint_trigger=trigger)
    assert [(r["epoch"], r["batch_count"], r["num_samples"]) for r in history] == [(2, 2, 13)]
    est = estimator(half / "model", replicas=3)
    history = train(spark, est, half / "rows", resume=True, epochs=3, batch_size=3, checkpoint_trigger=trigger)
    # 12 = 20 - 8 rows are left, 7 after a step of 5, which are 3, 3 and 1.
    assert [(r["epoch"], r["batch_count"], r["num_samples"]) for r in history] == [(2, 5, 20), (3, 7, 20)]
    assert counted(half / "rows") == sorted([*range(ROWS)] * 3)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"partitions": 3}, "its 20 rows lie in 3 partitions, and lay in 4"),
        ({"seed": 9}, "seed is 9, and was 21"),
        ({"shuffle": False}, "shuffle is False, and was True"),
    ],
)
def test_rows_that_lie_otherwise_cannot_be_resumed_in_the_middle(
    spark: SparkSession, half: Path, changed: dict[str, Any], says: str
) -> None:
    """Without a word, some rows of the epoch came twice and others not at all."""
    before = counted(half / "rows")
    with pytest.raises(PlanError, match=f"in the middle of epoch 2, after 1 of its steps.*{says}"):
        train(spark, estimator(half / "model"), half / "rows", resume=True, epochs=3, **changed)
    assert counted(half / "rows") == before
    anew = estimator(half / "model")
    anew.load_checkpoint(str(half / "model"))
    history = train(spark, anew, half / "rows", epochs=1, **changed)
    assert [(r["epoch"], r["batch_count"], r["num_samples"]) for r in history] == [(2, 3, 20)]


def test_whoever_is_further_than_the_last_checkpoint_stays_there(spark: SparkSession, tmp_path: Path) -> None:
    est = estimator(tmp_path / "model")
    train(spark, est, tmp_path / "rows", epochs=3, checkpoint_trigger=SeveralIteration(2))
    before = weights(est).copy()
    assert list(train(spark, est, tmp_path / "rows", resume=True, epochs=2)) == []
    np.testing.assert_array_equal(weights(est), before)
