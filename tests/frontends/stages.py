"""Functions and classes that tests of the pipeline door save by their import path."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Net(nn.Module):
    """An importable class whose constructor needs to be told something."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(3, width), nn.Linear(width, 2)
        self.drop = nn.Dropout(0.5)
        self.activate = torch.relu

    def forward(self, x: Any) -> Any:
        return self.out(self.drop(self.activate(self.hidden(x))))


def make_net(config: dict[str, Any]) -> nn.Module:
    torch.manual_seed(5)
    return Net(config["width"])


def make_keras(config: dict[str, Any]) -> Any:
    import keras

    keras.utils.set_random_seed(5)
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(config["width"], "relu"), keras.layers.Dense(2)])


def squared(output: Any, target: Any) -> Any:
    return ((output - target) ** 2).mean()


class TwoByTwo(nn.Module):
    """Two inputs, two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(2, 1, bias=False), nn.Linear(1, 3, bias=False)

    def forward(self, a: Any, b: Any) -> Any:
        return self.left(a), self.right(b)


def both(outputs: Any, targets: Any) -> Any:
    return sum(
        ((output - target.reshape(output.shape)) ** 2).mean() for output, target in zip(outputs, targets, strict=True)
    )
