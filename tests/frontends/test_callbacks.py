"""Callbacks run in every replica, in their order; what they do reaches all; what they write is on the driver."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from firesteel import Estimator
from firesteel.core.errors import PlanError
from firesteel.learn.optimizers import SGD, Adam
from firesteel.learn.pytorch.callbacks import (
    Callback,
    MainCallback,
    MaxstepsCallback,
    ModelCheckpoint,
    Runner,
    TensorBoardCallback,
    TqdmCallback,
)
from firesteel.testing.faults import Fault, inject

pytestmark = pytest.mark.usefixtures("spark")
X = np.arange(20, dtype=np.float32)[:, None]
DATA = X, 2 * X[:, 0]


def estimator(**options: Any) -> Any:
    torch.manual_seed(3)
    options = {"optimizer": Adam(0.05), "loss": nn.MSELoss(), "seed": 1, "workers_per_node": 2, **options}
    return Estimator.from_torch(model=nn.Linear(1, 1), **options)


class Diary(Callback):
    """Writes down what it sees, each replica into a file of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def write(self, runner: Runner, hook: str, **more: Any) -> None:
        with open(f"{self.folder}/{runner.rank}", "a") as file:
            file.write(json.dumps({"hook": hook, "step": runner.global_step, "epochs": runner.epochs, **more}) + "\n")

    def before_run(self, runner: Runner) -> None:
        named = {"model": runner.model, "optimizer": runner.optimizer, "criterion": runner.criterion}
        runner.put("first", 1)
        runner.update("first", runner.get("first") + 1)
        with pytest.raises(KeyError):
            runner.put("first", 2)
        kept = runner.get("first")
        runner.remove("first")
        about = {key: type(value).__name__ for key, value in named.items()}
        self.write(
            runner, "before_run", rank=runner.rank, workers=runner.num_workers, config=runner.config, kept=kept,
            gone=runner.get("first"), **about, scheduler=type(runner.scheduler).__name__,
        )  # fmt: skip

    def before_iter(self, runner: Runner) -> None:
        self.write(runner, "before_iter")

    def after_train_iter(self, runner: Runner) -> None:
        batch, target = runner.batch
        rows = [float(v) for v in batch[:, 0]]
        assert [2 * v for v in rows] == target.flatten().tolist()
        loss = None if runner.loss is None else float(runner.loss)
        assert runner.loss is None or runner.output.shape == (len(rows), 1)
        self.write(runner, "after_train_iter", rows=rows, loss=loss, second=self.every_n_iter(runner, 2))

    def after_train_epoch(self, runner: Runner) -> None:
        self.write(runner, "after_train_epoch", stats=runner.stats, second=self.every_n_epoch(runner, 2))

    def after_val_epoch(self, runner: Runner) -> None:
        self.write(runner, "after_val_epoch", stats=runner.stats)

    def after_run(self, runner: Runner) -> None:
        self.write(runner, "after_run")


def flat(parts: list[list[Any]]) -> list[Any]:
    return [item for part in parts for item in part]


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_hooks_come_in_order_with_the_truth_in_the_runner(tmp_path: Path) -> None:
    est = estimator(
        config={"a": 1},
        scheduler_creator=lambda optimizer, config: torch.optim.lr_scheduler.ConstantLR(optimizer),
    )
    history = est.fit(
        DATA, epochs=2, batch_size=8, shuffle=False, validation_data=DATA, validation_batch_size=20,
        callbacks=[Diary(tmp_path)], verbose=0,
    )  # fmt: skip
    pages = [read(tmp_path / str(rank)) for rank in range(2)]
    steps = ["before_iter", "after_train_iter"] * 3
    epoch = [*steps, "before_iter", "after_val_epoch", "after_train_epoch"]
    for rank, page in enumerate(pages):
        assert [entry["hook"] for entry in page] == ["before_run", *epoch, *epoch, "after_run"]
        assert page[0] == {
            "hook": "before_run", "step": 0, "epochs": 0, "rank": rank, "workers": 2, "config": {"a": 1}, "kept": 2,
            "gone": None, "model": "Linear", "optimizer": "BigDLAdam", "criterion": "MSELoss",
            "scheduler": "ConstantLR",
        }  # fmt: skip
        ends = [entry for entry in page if entry["hook"] == "after_train_epoch"]
        assert [entry["stats"] for entry in ends] == list(history)
        assert [(entry["epochs"], entry["second"]) for entry in ends] == [(0, False), (1, True)]
        assert all(entry["stats"]["val_num_samples"] == 20 for entry in page if entry["hook"] == "after_val_epoch")
        after = [entry for entry in page if entry["hook"] == "after_train_iter"]
        assert [(entry["step"], entry["second"]) for entry in after] == [(n, n % 2 == 0) for n in range(1, 7)]
    for step in range(6):
        rows = [[e for e in page if e["hook"] == "after_train_iter"][step]["rows"] for page in pages]
        begin = 8 * (step % 3)
        assert flat(rows) == list(range(begin, min(begin + 8, 20)))


class StopsAlone(Callback):
    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def after_train_iter(self, runner: Runner) -> None:
        if runner.rank == 1 and runner.global_step == 4:
            runner.stop = True

    def after_run(self, runner: Runner) -> None:
        Path(self.folder, f"{runner.rank}").write_text(str(runner.global_step))


def test_one_replica_stops_all_and_files_reach_the_driver(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    folder.mkdir()
    (folder / "older.ckpt").write_bytes(b"")  # a folder that has some already is fine
    callbacks = [
        StopsAlone(tmp_path),
        ModelCheckpoint(str(folder / "{epoch}_{iter}"), interval=1),
        ModelCheckpoint(str(folder / "light-{iter}"), by_epoch=False, interval=2, save_weights_only=True),
        TensorBoardCallback(str(tmp_path / "board"), freq=2),
        TensorBoardCallback(str(tmp_path / "epochs")),
        TqdmCallback(),
    ]
    est = estimator()
    history = est.fit(DATA, epochs=9, batch_size=8, callbacks=callbacks, verbose=0)
    assert [record["batch_count"] for record in history] == [3, 1]
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == ["4", "4"]
    wanted = {
        "older.ckpt",
        "epoch=1_iter=3.ckpt",
        "epoch=2_iter=4.ckpt",
        "light-iter=2.ckpt",
        "light-iter=4.ckpt",
        "last.ckpt",
    }
    assert {path.name for path in folder.iterdir()} == wanted
    weights = est.get_model().weight.item()
    again = estimator()
    for name in ("last.ckpt", "epoch=2_iter=4.ckpt", "light-iter=4.ckpt"):
        again.load(str(folder / name))
        assert again.get_model().weight.item() == weights, name
    again.load(str(folder / "epoch=1_iter=3.ckpt"))
    assert again.get_model().weight.item() != weights
    assert (folder / "light-iter=2.ckpt").stat().st_size < (folder / "epoch=1_iter=3.ckpt").stat().st_size
    board = EventAccumulator(str(tmp_path / "board")).Reload()
    assert [event.step for event in board.Scalars("train_loss")] == [2, 4]
    epochs = EventAccumulator(str(tmp_path / "epochs")).Reload()
    found = [(event.step, event.value) for event in epochs.Scalars("train_loss")]
    assert found == [(3, pytest.approx(history[0]["train_loss"])), (4, pytest.approx(history[1]["train_loss"]))]


class Doubled(MainCallback):
    """Trains on twice the target, and moves the rate by itself."""

    def on_train_forward(self, runner: Runner) -> None:
        x, target = runner.batch
        runner.output, runner.target = runner.model(x), 2 * target.reshape(-1, 1)
        runner.loss = ((runner.output - runner.target) ** 2).mean()

    on_val_forward = on_train_forward

    def on_lr_adjust(self, runner: Runner) -> None:
        for group in runner.optimizer.param_groups:
            group["lr"] /= 2


def test_a_main_callback_decides_forward_and_rate_and_rows_stay_weighted() -> None:
    found = []
    for replicas in (1, 2):
        est = estimator(loss=None, optimizer=SGD(0.002), workers_per_node=replicas, backend="torch_distributed")
        history = est.fit(
            DATA, epochs=2, batch_size=7, shuffle=False, validation_data=DATA, callbacks=Doubled(), verbose=0
        )
        rates = [rate for _, rate, _ in est.get_train_summary("LearningRate")]
        found.append((est.get_model().weight.item(), [record["val_loss"] for record in history], rates))
    assert found[0][2] == found[1][2] == pytest.approx([0.002 / 2**n for n in range(6)])
    assert found[1][0] == pytest.approx(found[0][0], rel=1e-5)
    assert found[1][1] == pytest.approx(found[0][1], rel=1e-5)
    torch.manual_seed(3)
    model = nn.Linear(1, 1)
    x, y = torch.from_numpy(X), torch.from_numpy(2 * DATA[1])
    for number in range(6):
        part = slice(7 * (number % 3), 7 * (number % 3) + 7)
        model.zero_grad()
        nn.functional.mse_loss(model(x[part])[:, 0], y[part]).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.002 / 2**number * parameter.grad
    assert found[0][0] == pytest.approx(model.weight.item(), rel=1e-4)
    with pytest.raises(PlanError, match="one MainCallback"):
        estimator().fit(DATA, callbacks=[MainCallback(), Doubled()])


def test_maxsteps_and_wrong_callbacks() -> None:
    est = estimator()
    history = est.fit(DATA, epochs=9, batch_size=8, callbacks=[MaxstepsCallback(5)], verbose=0)
    assert [record["batch_count"] for record in history] == [3, 2]
    with pytest.raises(PlanError, match="not str"):
        est.fit(DATA, callbacks=["early"])
    with pytest.raises(PlanError, match="freq"):
        TensorBoardCallback(freq=0)


class Account(Callback):
    """Adds up what it sees, here and in the runner."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.begun, self.steps, self.losses = str(folder), 0, 0, []

    def before_run(self, runner: Runner) -> None:
        self.begun += 1

    def before_train_epoch(self, runner: Runner) -> None:
        self.lines: Any = open(f"{self.folder}/lines", "a")  # noqa: SIM115

    def after_train_iter(self, runner: Runner) -> None:
        self.lines.write("\n")  # what no commit point can hold is there all the same
        self.steps += 1
        self.losses.append(float(runner.loss))
        runner.update("steps", runner.get("steps", 0) + 1)

    def after_train_epoch(self, runner: Runner) -> None:
        self.lines.close()

    def after_run(self, runner: Runner) -> None:
        if runner.rank == 0:
            seen = [self.begun, self.steps, runner.get("steps"), self.losses]
            Path(self.folder, "seen").write_text(json.dumps(seen))


def test_callbacks_go_on_where_the_training_does(tmp_path: Path) -> None:
    """TensorBoard's callback once forgot all that came before the loss of a process."""
    found = []
    for faults in ((), (Fault("kill child", rank=1, moment="step", step=12),)):
        folder = tmp_path / str(len(found))
        folder.mkdir()
        board = TensorBoardCallback(str(folder / "board"), freq="batch")
        with inject(*faults):
            history = estimator().fit(DATA, epochs=4, batch_size=4, callbacks=[Account(folder), board], verbose=0)
        assert len(history.recoveries) == len(faults)
        events = EventAccumulator(str(folder / "board")).Reload()
        begun, *seen = json.loads((folder / "seen").read_text())
        assert begun == 1  # as often as the run that led here had begun
        found.append((seen, [(each.step, each.value) for each in events.Scalars("train_loss")]))
    assert found[0] == found[1]
    assert found[0][0][:2] == [20, 20]
    assert [step for step, _ in found[0][1]] == list(range(1, 21))
