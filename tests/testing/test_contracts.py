"""The shipped contract holds for our own bench, and notices benches that break it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from firesteel.core.errors import UnknownName
from firesteel.core.program import Program
from firesteel.core.registry import framework
from firesteel.core.spec import Batch, batch_of
from firesteel.extend import FlatReplica
from firesteel.testing import check_framework


def make_model(config: dict) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


OPTIMIZERS = {
    "sgd": lambda model, config: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    "adam": lambda model, config: torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1),
    "two groups": lambda model, config: torch.optim.Adam(
        [{"params": model[0].parameters(), "lr": 0.01}, {"params": model[2].parameters()}], lr=0.1
    ),
    "not elementwise": lambda model, config: torch.optim.LBFGS(model.parameters(), lr=0.1),
}


def batch() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return batch_of(random.random((7, 3), dtype=np.float32), random.random((7, 1), dtype=np.float32))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_torch_keeps_the_contract(optimizer: str) -> None:
    bench = framework("torch")
    program = bench.capture(make_model, optimizer=OPTIMIZERS[optimizer], loss=nn.MSELoss(), seed=1)
    check_framework(bench, program, batch())


def test_a_loss_that_forgets_its_share_is_noticed() -> None:
    bench = framework("torch")
    program = bench.capture(make_model, optimizer=OPTIMIZERS["sgd"], loss=lambda o, t: ((o - t) ** 2).sum(), seed=1)
    with pytest.raises(AssertionError, match="do not add up"):
        check_framework(bench, program, batch())


class Normed(nn.Module):
    """Divides by the batch's own size, so that a row's output depends on its company."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) / len(x)


def test_rows_that_change_each_others_outputs_are_noticed() -> None:
    bench = framework("torch")
    program = bench.capture(lambda config: Normed(), optimizer=OPTIMIZERS["sgd"], loss=nn.MSELoss(), seed=1)
    with pytest.raises(AssertionError, match="row by row"):
        check_framework(bench, program, batch())


class Line(FlatReplica):
    """One number times x, by gradient descent."""

    learning_rate = 0.1

    def __init__(self) -> None:
        super().__init__(np.zeros(1))

    def forward(self, batch: Batch) -> dict[str, Any]:
        return {"prediction": batch["x0"] * self.values[0]}

    def loss(self, batch: Batch) -> tuple[float, Any]:
        off = self.forward(batch)["prediction"] - batch["y0"]
        return float((off**2).mean()), np.array([2 * (off * batch["x0"]).mean()])

    def apply(self, gradient: Any, begin: int, end: int) -> None:
        self.values[begin:end] -= self.learning_rate * gradient[begin:end]


class Lines:
    name = "lines"
    packages = ()

    def replica(self, program: Program, device: str, threads: int) -> Line:
        made = Line()
        if program.state is not None:
            made.load(program.state)
        return made


class Forgetful(Lines):
    def replica(self, program: Program, device: str, threads: int) -> Line:
        return Line()


def test_a_bench_of_ones_own() -> None:
    x = np.linspace(0, 1, 8, dtype=np.float32)
    check_framework(Lines(), Program("lines", None), batch_of(x, 3 * x))
    with pytest.raises(AssertionError, match="program's state"):
        check_framework(Forgetful(), Program("lines", None), batch_of(x, 3 * x))


def test_a_framework_that_comes_later_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python worker of Spark's had looked before the package was on its path, and never looked again."""
    with pytest.raises(UnknownName, match="late"):
        framework("late")
    about = tmp_path / "late-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: late\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[firesteel.frameworks]\nlate = late:bench\n")
    (tmp_path / "late.py").write_text("bench = 'here'")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert framework("late") == "here"
