"""BigDL's initialization methods, on torch tensors."""

from __future__ import annotations

import math
from typing import Any

import torch

from firesteel.core.errors import PlanError, UnknownName

__all__ = ["fill"]


def fill(tensor: torch.Tensor, method: dict[str, Any], fan_in: int, fan_out: int) -> None:
    """Fill a tensor in place by a method's settings."""
    match method:
        case {"class": "Zeros"}:
            tensor.zero_()
        case {"class": "Ones"}:
            tensor.fill_(1)
        case {"class": "ConstInitMethod", "value": value}:
            tensor.fill_(value)
        case {"class": "RandomUniform", "upper": None}:
            bound = 1 / math.sqrt(max(1, fan_in))
            tensor.uniform_(-bound, bound)
        case {"class": "RandomUniform", "upper": one, "lower": other}:
            tensor.uniform_(min(one, other), max(one, other))
        case {"class": "RandomNormal", "mean": mean, "stdv": deviation}:
            tensor.normal_(mean, deviation)
        case {"class": "Xavier"}:
            bound = math.sqrt(6 / (fan_in + fan_out))
            tensor.uniform_(-bound, bound)
        case {"class": "MsraFiller", "varianceNormAverage": is_mean}:
            count = (fan_in + fan_out) / 2 if is_mean else fan_out
            tensor.normal_(0, math.sqrt(2 / count))
        case {"class": "BilinearFiller"}:
            tensor.copy_(_bilinear(tensor.shape).to(tensor.dtype))
        case _:
            raise UnknownName("initialization method", method.get("class"), ())


def _bilinear(shape: torch.Size) -> torch.Tensor:
    if len(shape) < 4 or shape[-1] != shape[-2]:
        raise PlanError(f"BilinearFiller is for square kernels of images, not for a weight of shape {tuple(shape)}")
    size = shape[-1]
    half = math.ceil(size / 2)
    centre = (2 * half - 1 - half % 2) / (2 * half)
    line = 1 - (torch.arange(size, dtype=torch.float64) / half - centre).abs()
    return torch.outer(line, line).expand(shape)
