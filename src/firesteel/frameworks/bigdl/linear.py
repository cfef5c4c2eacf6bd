"""Linear maps, look-up tables, and learnt factors and biases."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from firesteel.core.errors import PlanError
from firesteel.frameworks.bigdl.module import Layer, Settings, kind

__all__ = ["CAdd", "CMul", "Linear"]


@kind()
class Linear(Layer, nn.Linear):
    def __init__(self, settings: Settings) -> None:
        super().__init__(settings.input_size, settings.output_size, settings.with_bias, dtype=settings.dtype)

    def expects(self) -> str:
        return f"(…, {self.in_features})"


@kind()
class Bilinear(Layer, nn.Bilinear):
    def __init__(self, settings: Settings) -> None:
        sizes = settings.input_size1, settings.input_size2, settings.output_size
        super().__init__(*sizes, settings.bias_res, dtype=settings.dtype)

    def forward(self, inputs: Any) -> torch.Tensor:
        first, second = inputs
        return super().forward(first, second)

    def fans(self, name: str) -> tuple[int, int]:
        return (self.in1_features, self.out_features) if name == "weight" else super().fans(name)

    def expects(self) -> str:
        return f"a table of (…, {self.in1_features}) and (…, {self.in2_features})"


@kind()
class LookupTable(Layer, nn.Embedding):
    takes_integers = True

    def __init__(self, settings: Settings) -> None:
        place = int(settings.padding_value)
        super().__init__(
            settings.n_index,
            settings.n_output,
            padding_idx=place - 1 if place > 0 else None,
            max_norm=settings.max_norm,
            norm_type=settings.norm_type,
            scale_grad_by_freq=settings.should_scale_grad_by_freq,
            dtype=settings.dtype,
        )

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        places = numbers.long()
        wrong = (places < 1) | (places > self.num_embeddings) | (places != numbers)
        if wrong.any():
            found = numbers[wrong].flatten()[0].item()
            raise PlanError(f"{self.title} takes whole numbers from 1 to {self.num_embeddings}, not {found:g}")
        return super().forward(places - 1)

    def begin(self, name: str, parameter: torch.Tensor) -> None:
        parameter.normal_(0, 1)

    def fans(self, name: str) -> tuple[int, int]:
        return self.num_embeddings, self.embedding_dim


class _Learnt(Layer):
    """Weights of a size that broadcasts against a row."""

    def begin(self, name: str, parameter: torch.Tensor) -> None:
        self.spread(parameter, parameter.numel())

    def fans(self, name: str) -> tuple[int, int]:
        return getattr(self, name).numel(), 1

    def expects(self) -> str:
        return f"rows that broadcast with {tuple(next(self.parameters()).shape)}"


def _empty(settings: Settings, size: Any = None) -> nn.Parameter:
    return nn.Parameter(torch.empty(size or tuple(settings.size), dtype=settings.dtype))


@kind()
class Add(_Learnt):
    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.bias = _empty(settings, (settings.input_size,))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if values.shape[-1] != self.bias.numel():
            raise PlanError(f"{self.title} takes (…, {self.bias.numel()}), not {tuple(values.shape)}")
        return values + self.bias


@kind()
class CAdd(_Learnt):
    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.bias = _empty(settings)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return _fitting(values, self.bias) + values


@kind()
class Mul(_Learnt):
    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.weight = _empty(settings, (1,))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values * self.weight


@kind()
class CMul(_Learnt):
    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.weight = _empty(settings)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values * _fitting(values, self.weight)


@kind()
class Scale(_Learnt):
    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.weight, self.bias = _empty(settings), _empty(settings)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values * _fitting(values, self.weight) + _fitting(values, self.bias)


def _fitting(values: torch.Tensor, learnt: torch.Tensor) -> torch.Tensor:
    """A size against a row: where the rows have fewer axes, the size's leading ones must be 1."""
    if learnt.dim() > values.dim():
        return learnt.reshape(learnt.shape[learnt.dim() - values.dim() :])
    return learnt


@kind()
class Cosine(Layer):
    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.weight = _empty(settings, (settings.output_size, settings.input_size))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return functional.cosine_similarity(values.unsqueeze(-2), self.weight, dim=-1, eps=1e-12)

    def expects(self) -> str:
        return f"(…, {self.weight.shape[1]})"


@kind()
class Euclidean(Layer):
    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.weight = _empty(settings, (settings.input_size, settings.output_size))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        difference = values.unsqueeze(-1) - self.weight
        return torch.linalg.vector_norm(difference, dim=-2)

    def fans(self, name: str) -> tuple[int, int]:
        return tuple(self.weight.shape)

    def expects(self) -> str:
        return f"(…, {self.weight.shape[0]})"


@kind()
class Maxout(Layer, nn.Linear):
    def __init__(self, settings: Settings) -> None:
        self.units = (settings.maxout_number, settings.output_size)
        outputs = settings.maxout_number * settings.output_size
        super().__init__(settings.input_size, outputs, settings.with_bias, dtype=settings.dtype)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return super().forward(values).unflatten(-1, self.units).amax(-2)

    def expects(self) -> str:
        return f"(…, {self.in_features})"


@kind()
class Highway(Layer):
    order = ("gate_weight", "gate_bias", "weight", "bias")

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        size = settings.size
        self.activation = settings.activation
        for name in ("gate_weight", "weight"):
            setattr(self, name, _empty(settings, (size, size)))
        for name in ("gate_bias", "bias"):
            self.register_parameter(name, _empty(settings, (size,)) if settings.with_bias else None)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        gate = torch.sigmoid(functional.linear(values, self.gate_weight, self.gate_bias))
        changed = functional.linear(values, self.weight, self.bias)
        if self.activation is not None:
            changed = self.activation(changed)
        return gate * changed + (1 - gate) * values

    def regularized(self, part: str) -> tuple[str, ...]:
        return (*super().regularized(part), *super().regularized(f"gate_{part}"))

    def expects(self) -> str:
        return f"(…, {self.weight.shape[0]})"
