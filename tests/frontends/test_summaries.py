"""Scalars of every step and validation: in memory, and in files that TensorBoard reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from firesteel import Estimator
from firesteel.core.errors import UnknownName
from firesteel.learn.metrics import AUC, BinaryAccuracy
from firesteel.learn.optimizers import SGD

pytestmark = pytest.mark.usefixtures("spark")


def test_steps_and_validations_are_recorded_and_written(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((20, 2)).astype(np.float32)
    data = x, (x[:, :1] > 0).astype(np.float32)
    torch.manual_seed(1)
    est: Any = Estimator.from_torch(
        model=nn.Sequential(nn.Linear(2, 1), nn.Sigmoid()),
        optimizer=SGD(0.1),
        loss=nn.BCELoss(),
        metrics=[BinaryAccuracy(), AUC()],
        workers_per_node=2,
        model_dir=str(tmp_path / "model"),
    )
    for find in (est.get_train_summary, est.get_validation_summary):
        assert find("Loss") is None
    est.set_tensorboard(str(tmp_path / "d"), "t")
    history = est.fit(data, epochs=3, batch_size=8, validation_data=data, verbose=0)
    train, validation = est.get_train_summary("Loss"), est.get_validation_summary("Loss")
    assert [step for step, _, _ in train] == list(range(1, 10))
    assert [step for step, _, _ in validation] == [3, 6, 9]
    assert [value for _, value, _ in validation] == [record["val_loss"] for record in history]
    first = np.average([value for _, value, _ in train[:3]], weights=[8, 8, 4])
    assert first == pytest.approx(history[0]["train_loss"])
    times = [at for _, _, at in train]
    assert times == sorted(times)
    assert all(speed > 0 for _, speed, _ in est.get_train_summary("Throughput"))
    assert set(est.get_train_summary()) == {"Loss", "LearningRate", "Throughput"}
    assert set(est.get_validation_summary()) == {"Loss", "BinaryAccuracy", "AUC"}
    assert est.get_validation_summary("Top1Accuracy") == est.get_validation_summary("BinaryAccuracy")
    assert est.get_validation_summary("AucScore") == est.get_validation_summary("AUC")
    with pytest.raises(UnknownName, match="Throughput"):
        est.get_train_summary("Speed")
    for part, tags in (("train", est.get_train_summary()), ("validation", est.get_validation_summary())):
        read = EventAccumulator(str(tmp_path / "d" / "t" / part)).Reload()
        assert set(read.Tags()["scalars"]) == set(tags)
        for tag, entries in tags.items():
            found = [(event.step, event.value, event.wall_time) for event in read.Scalars(tag)]
            assert found == [pytest.approx(entry, rel=1e-6) for entry in map(tuple, entries)]
    assert not (tmp_path / "model" / "summary").exists()


def test_without_set_tensorboard_they_go_to_the_model_dir(tmp_path: Path) -> None:
    data = np.ones((8, 1), np.float32), np.zeros(8, np.float32)
    est: Any = Estimator.from_torch(
        model=nn.Linear(1, 1), optimizer=SGD(0.1), loss=nn.MSELoss(), model_dir=str(tmp_path)
    )
    est.fit(data, epochs=2, batch_size=8, verbose=0)
    read = EventAccumulator(str(tmp_path / "summary" / "train")).Reload()
    assert [event.step for event in read.Scalars("Loss")] == [1, 2]
    assert not (tmp_path / "summary" / "validation").exists()
    assert est.get_validation_summary() == {}
