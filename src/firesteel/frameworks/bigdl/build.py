"""From a layer's name and settings to its torch module."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from firesteel.core.errors import UnknownName
from firesteel.frameworks.bigdl import (  # noqa: F401 - each enters its classes
    activations,
    convolution,
    linear,
    normalization,
    pooling,
    recurrent,
    shapes,
    tables,
    tfnet,
)
from firesteel.frameworks.bigdl.criterions import CRITERIONS
from firesteel.frameworks.bigdl.module import KINDS, Layer

__all__ = ["build", "build_criterion"]


def build(name: str, settings: dict[str, Any], *, dtype: str, label: str) -> nn.Module:
    """The module of a layer. Settings that are layers come as modules."""
    if name not in KINDS:
        raise UnknownName("layer", name, KINDS)
    number = getattr(torch, dtype)
    given = SimpleNamespace(**settings, dtype=number)
    made = KINDS[name](given)
    assert isinstance(made, Layer)
    made.settle(label, given, number)
    return made


def build_criterion(name: str, settings: dict[str, Any], *, dtype: str) -> nn.Module:
    """The module of a criterion."""
    if name not in CRITERIONS:
        raise UnknownName("criterion", name, CRITERIONS)
    return CRITERIONS[name](SimpleNamespace(**settings, dtype=getattr(torch, dtype)))
