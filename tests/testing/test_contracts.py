"""The shipped contract holds for our own bench, and notices benches that break it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from firesteel.core.registry import framework
from firesteel.core.spec import batch_of
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
