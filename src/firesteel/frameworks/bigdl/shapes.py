"""Shapes, axes and arithmetic without weights. Axes count from 1 in the settings, from 0 in torch."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from firesteel.core.errors import PlanError
from firesteel.frameworks.bigdl.activations import Plain
from firesteel.frameworks.bigdl.module import Settings, axis_of, kind

__all__ = ["Penalty", "Shaping", "slice_axis"]

_log = logging.getLogger("firesteel.bigdl")


class Shaping(Plain):
    """Moves numbers about, whatever they are."""

    takes_integers = True

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings


@kind()
class Reshape(Shaping):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        size, is_batch = tuple(self.settings.size), self.settings.batch_mode
        wanted, found = math.prod(size), values.numel()
        if is_batch is None:
            is_batch = not (found == wanted and values.shape[0] != 1)
        if is_batch and found == wanted * values.shape[0]:
            return values.reshape(values.shape[0], *size)
        if not is_batch and found == wanted:
            return values.reshape(size)
        rows = f"{values.shape[0]} rows of " if is_batch else ""
        per_row = found // max(1, values.shape[0]) if is_batch else found
        raise PlanError(
            f"{self.title} gives {wanted} elements of shape {size}, but an input of shape {tuple(values.shape)} has "
            f"{found} elements ({rows}{per_row})"
        )


@kind()
class InferReshape(Shaping):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        first = int(self.settings.batch_mode)
        size = list(values.shape[:first])
        for place, length in enumerate(self.settings.size, first):
            if length == 0 and place >= values.dim():
                raise PlanError(f"{self.title} keeps axis {place + 1}, which an input of {values.dim()} axes has not")
            size.append(values.shape[place] if length == 0 else length)
        return _reshaped(self, values, size)


@kind()
class View(Shaping):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        sizes, row_dims = list(self.settings.sizes), self.settings.num_input_dims
        if -1 in sizes:
            has_batch = not row_dims or values.dim() > row_dims
            return _reshaped(self, values, [*values.shape[:1], *sizes] if has_batch else sizes)
        wanted, found = math.prod(sizes), values.numel()
        in_row = math.prod(values.shape[-row_dims:]) if 0 < row_dims < values.dim() else found
        if wanted == 0 or in_row % wanted:
            raise PlanError(
                f"{self.title} gives {wanted} elements, but an input of shape {tuple(values.shape)} has {found}"
            )
        has_batch = 0 < row_dims < values.dim() or (not row_dims and values.dim() > 0 and values.shape[0] == 1)
        if found == wanted and not has_batch:
            return values.reshape(sizes)
        return values.reshape(found // wanted, *sizes)


def _reshaped(layer: Plain, values: torch.Tensor, size: list[int]) -> torch.Tensor:
    rest = math.prod(length for length in size if length != -1)
    if values.numel() % rest if -1 in size and rest else values.numel() != rest:
        raise PlanError(
            f"{layer.title} gives the shape {tuple(size)}, but an input of shape {tuple(values.shape)} has "
            f"{values.numel()} elements"
        )
    return values.reshape(size)


@kind()
class Squeeze(Shaping):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        dim, row_dims = self.settings.dim, self.settings.num_input_dims
        if dim is not None:
            return values.squeeze(axis_of(self, dim, values.dim(), row_dims))
        is_batch = row_dims is not None and values.dim() == row_dims + 1
        shape = [length for place, length in enumerate(values.shape) if length != 1 or (is_batch and place == 0)]
        return values.reshape(shape)


@kind()
class Unsqueeze(Shaping):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values.unsqueeze(axis_of(self, self.settings.pos, values.dim(), self.settings.num_input_dims, extra=1))


@kind()
class Transpose(Shaping):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        for one, other in self.settings.permutations:
            values = values.transpose(axis_of(self, one, values.dim()), axis_of(self, other, values.dim()))
        return values


def slice_axis(layer: Plain, offset: int, length: int, size: int) -> tuple[int, int]:
    """Begin (from 0) and length of a slice whose offset counts from 1 and whose length may count from the end."""
    begin = offset - 1 if offset > 0 else size + offset
    count = length if length > 0 else size - begin + length + 1
    if begin < 0 or count < 1 or begin + count > size:
        raise PlanError(f"{layer.title} has no {length} from {offset} on in {size}")
    return begin, count


@kind()
class Select(Shaping):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        axis = axis_of(self, self.settings.dim, values.dim())
        return values.select(axis, slice_axis(self, self.settings.index, 1, values.shape[axis])[0])


@kind()
class Narrow(Shaping):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        axis = axis_of(self, self.settings.dimension, values.dim())
        return values.narrow(axis, *slice_axis(self, self.settings.offset, self.settings.length, values.shape[axis]))


@kind()
class Index(Shaping):
    def forward(self, inputs: Any) -> torch.Tensor:
        values, numbers = inputs
        axis = axis_of(self, self.settings.dimension, values.dim())
        places = numbers.long()
        wrong = (places < 1) | (places > values.shape[axis]) | (places != numbers)
        if wrong.any():
            found = numbers[wrong].flatten()[0].item()
            raise PlanError(f"{self.title} takes whole numbers from 1 to {values.shape[axis]}, not {found:g}")
        return values.index_select(axis, places.reshape(-1) - 1)


@kind()
class MaskedSelect(Shaping):
    def forward(self, inputs: Any) -> torch.Tensor:
        values, mask = inputs
        return values.masked_select(mask != 0)


@kind()
class Replicate(Shaping):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        rows = self.settings.n_dim
        axis = self.settings.dim - 1 + (rows is not None and values.dim() > rows)
        if axis > values.dim():
            raise PlanError(f"{self.title} has no place for a new axis {axis + 1} in an input of {values.dim()} axes")
        shape = list(values.shape)
        shape.insert(axis, self.settings.n_features)
        return values.unsqueeze(axis).expand(shape)


@kind()
class Tile(Shaping):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        axis = axis_of(self, self.settings.dim, values.dim())
        return torch.cat([values] * self.settings.copies, axis)


@kind()
class ExpandSize(Shaping):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values.expand(self.settings.sizes)


@kind()
class Reverse(Shaping):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values.flip(axis_of(self, self.settings.dimension, values.dim()))


@kind()
class Padding(Shaping):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        pad, place = self.settings.pad, self.settings.n_index
        axis = axis_of(self, self.settings.dim, values.dim(), self.settings.n_input_dim)
        size = values.shape[axis]
        shape = list(values.shape)
        shape[axis] = abs(pad)
        filling = values.new_full(shape, self.settings.value)
        cut = place - 1 if pad < 0 else size - place + 1
        if not 0 <= cut <= size:
            raise PlanError(f"{self.title} has no place {place} in an axis of {size}")
        return torch.cat([values.narrow(axis, 0, cut), filling, values.narrow(axis, cut, size - cut)], axis)


@kind()
class Max(Shaping):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values.max(axis_of(self, self.settings.dim, values.dim(), self.settings.num_input_dims)).values


@kind()
class Min(Shaping):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values.min(axis_of(self, self.settings.dim, values.dim(), self.settings.num_input_dims)).values


@kind()
class Mean(Shaping):
    takes_integers = False

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        axis = axis_of(self, self.settings.dimension, values.dim(), self.settings.n_input_dims)
        return values.mean(axis, keepdim=not self.settings.squeeze)


@kind()
class Sum(Shaping):
    takes_integers = False

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        axis = axis_of(self, self.settings.dimension, values.dim(), self.settings.n_input_dims)
        total = values.sum(axis, keepdim=not self.settings.squeeze)
        return total / values.shape[axis] if self.settings.size_average else total


# --- element by element -----------------------------------------------------------------------------------------------


class _Elements(Plain):
    """A function of one number and the settings."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return _FUNCTIONS[type(self).__name__](values, self.settings)


_FUNCTIONS: dict[str, Callable[[torch.Tensor, Settings], torch.Tensor]] = {
    "Abs": lambda x, s: x.abs(),
    "Exp": lambda x, s: x.exp(),
    "Log": lambda x, s: x.log(),
    "Sqrt": lambda x, s: x.sqrt(),
    "Square": lambda x, s: x * x,
    "Negative": lambda x, s: -x,
    "Power": lambda x, s: (s.shift + s.scale * x) ** s.power,
    "Clamp": lambda x, s: x.clamp(s.min, s.max),
    "AddConstant": lambda x, s: x + s.constant_scalar,
    "MulConstant": lambda x, s: x * s.scalar,
}
for _name in _FUNCTIONS:
    globals()[_name] = kind()(type(_name, (_Elements,), {"__module__": __name__, "__qualname__": _name}))


# --- passing through --------------------------------------------------------------------------------------------------


@kind("Identity", "_Entry")
class Identity(Plain, nn.Identity):
    takes_integers = True

    def __init__(self, settings: Settings) -> None:
        nn.Module.__init__(self)


@kind()
class Contiguous(Shaping):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values.contiguous()


@kind()
class Echo(Shaping):
    def forward(self, values: Any) -> Any:
        _log.info("%s: %s", self.title, tuple(getattr(values, "shape", ())))
        return values


@kind()
class Masking(Plain):
    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.value = settings.mask_value

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if values.dim() < 3:
            raise PlanError(f"{self.title} takes (rows, time, features), not {tuple(values.shape)}")
        kept = (values != self.value).flatten(2).any(-1)
        return values * kept.reshape(*kept.shape, *[1] * (values.dim() - 2)).to(values.dtype)


class _Change(torch.autograd.Function):
    """Passes values through; the gradient is what a function makes of it."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, change: Callable[..., torch.Tensor]) -> torch.Tensor:
        ctx.save_for_backward(values)
        ctx.change = change
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (values,) = ctx.saved_tensors
        return ctx.change(values, gradient), None


class Penalty(Plain):
    """Passes values through; its penalty enters the gradient.

    ``share`` is this replica's part of the step: a mean over elements is one over the whole step's.
    """

    share = 1.0

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return _Change.apply(values, self.change) if values.requires_grad else values

    def change(self, values: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


@kind()
class GradientReversal(Penalty):
    def change(self, values: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * -self.settings.the_lambda


@kind()
class L1Penalty(Penalty):
    def change(self, values: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        weight = self.settings.l1weight
        if self.settings.size_average:
            weight *= self.share / max(1, values.numel())
        penalty = values.sign() * weight
        return gradient + penalty if self.settings.provide_output else penalty


@kind()
class ActivityRegularization(Penalty):
    def change(self, values: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        return gradient + self.settings.l1 * values.sign() + 2 * self.settings.l2 * values


@kind()
class NegativeEntropyPenalty(Penalty):
    def change(self, values: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        return gradient + self.settings.beta * (values.log() + 1)
