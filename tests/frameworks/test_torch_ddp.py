"""When DDP need not look for parameters that a call left out."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from firesteel.frameworks.torch.ddp import uses_everything


class Own(nn.Sequential):
    """What its forward does nobody can tell."""


def hooked() -> nn.Module:
    layer = nn.Linear(2, 2)
    layer.register_forward_hook(lambda module, inputs, output: output)
    return nn.Sequential(layer)


CASES: dict[str, tuple[Any, bool]] = {
    "layers in a row": (nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.BatchNorm1d(3)), True),
    "rows of rows": (nn.Sequential(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()), nn.Linear(8, 2)), True),
    "one layer": (nn.Linear(2, 3), True),
    "a class of the user's": (nn.Sequential(nn.Linear(2, 2), Own(nn.Linear(2, 2))), False),
    "a layer made of layers": (nn.Sequential(nn.TransformerEncoderLayer(4, 2)), False),
    "a hook": (hooked(), False),
    "a parametrization": (nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)), False),
}


@pytest.mark.parametrize("name", CASES)
def test_only_where_it_can_be_seen(name: str) -> None:
    model, wanted = CASES[name]
    assert uses_everything(model) is wanted
