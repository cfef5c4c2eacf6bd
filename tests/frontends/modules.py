"""Small torch modules that the tests of the doors share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class Apply(nn.Module):
    """A module without weights around a function of its inputs."""

    def __init__(self, function: Callable[..., Any] = lambda x: x) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


class Pair(nn.Module):
    """Two inputs."""

    def forward(self, left: Any, right: Any) -> Any:
        return left + 10 * right


def linear(inputs: int = 3, outputs: int = 1, seed: int = 3) -> nn.Module:
    """Untrained, and the same for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Linear(inputs, outputs)
