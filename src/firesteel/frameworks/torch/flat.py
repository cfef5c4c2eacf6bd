"""A model's trainable parameters as one flat buffer per dtype, so that replicas exchange few, large arrays.

Parameters become views of the weight buffer: what a collective writes there is in the model at once, and a slice
of it is a flat parameter that any elementwise optimizer can update.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["Flat", "Piece", "flatten"]


@dataclass(frozen=True)
class Piece:
    """A run of one parameter's elements inside a slice: parameter number, and where it begins and ends in it."""

    parameter: int
    begin: int
    end: int
    offset: int  # of the parameter in the flat buffer


class Flat:
    """All trainable parameters of one dtype.

    The gradient buffer has two more parts than the weights: one element per parameter that tells whether it got a
    gradient at all (optimizers pass over those that did not), and one for the loss.
    """

    def __init__(self, numbers: list[int], parameters: list[torch.nn.Parameter]) -> None:
        self.numbers = numbers
        self.parameters = parameters
        self.places = {number: place for place, number in enumerate(numbers)}
        first = parameters[0]
        self.offsets = np.concatenate([[0], np.cumsum([p.numel() for p in parameters])]).astype(int).tolist()
        self.size = self.offsets[-1]
        self.values = torch.empty(self.size, dtype=first.dtype, device=first.device)
        wide = torch.float64 if first.dtype == torch.float64 else torch.float32
        for parameter, begin, end in zip(parameters, self.offsets, self.offsets[1:], strict=False):
            self.values[begin:end].copy_(parameter.data.reshape(-1))
        self._point()
        self.bind(torch.zeros(self.size + len(parameters) + 1, dtype=wide))()

    def settle(self, values: torch.Tensor) -> None:
        """Make this the weight buffer; it gets the weights."""
        values.copy_(self.values)
        self.values = values
        self._point()

    def _point(self) -> None:
        for parameter, begin, end in zip(self.parameters, self.offsets, self.offsets[1:], strict=False):
            parameter.data = self.values[begin:end].view(parameter.shape)

    def bind(self, gradient: torch.Tensor) -> Callable[[], None]:
        """A function that makes this the gradient buffer. Its views are made here: a step has no time for it."""
        mask = gradient[self.size : -1].numpy()
        views = [
            gradient[begin:end].view(parameter.shape)
            for parameter, begin, end in zip(self.parameters, self.offsets, self.offsets[1:], strict=False)
        ]

        def use() -> None:
            self.gradient, self._mask, self._views = gradient, mask, views

        return use

    @property
    def is_shared(self) -> bool:
        """Whether NumPy can see the weights in place."""
        return self.values.device.type == "cpu" and self.values.dtype in (torch.float32, torch.float64)

    def collect(self, loss: float) -> None:
        """Copy the parameters' gradients into the buffer."""
        views, gradients = [], []
        for index, (parameter, view) in enumerate(zip(self.parameters, self._views, strict=True)):
            gradient = parameter.grad
            self._mask[index] = gradient is not None
            if gradient is None:
                view.zero_()
            else:
                views.append(view)
                gradients.append(gradient.to_dense() if gradient.is_sparse else gradient)
        if views:
            torch._foreach_copy_(views, gradients)
        self.gradient[-1] = loss

    def spread(self) -> None:
        """Give the buffer's parts back to the parameters as their gradients."""
        for index, (parameter, view) in enumerate(zip(self.parameters, self._views, strict=True)):
            parameter.grad = view.to(parameter.device, parameter.dtype) if self._mask[index] > 0 else None

    def regions(self) -> Iterator[tuple[torch.nn.Parameter, torch.Tensor]]:
        """Each parameter that got a gradient on any rank, and its part of the gradient buffer, in its shape."""
        for index, (parameter, view) in enumerate(zip(self.parameters, self._views, strict=True)):
            if self._mask[index] > 0:
                yield parameter, view

    def has_gradient(self, number: int) -> bool:
        """Whether the parameter of this number got a gradient on any rank."""
        return bool(self._mask[self.places[number]] > 0)

    def pieces(self, begin: int, end: int) -> list[Piece]:
        """The parameters, or parts of them, between two places of the buffer."""
        found = []
        for number, low, high in zip(self.numbers, self.offsets, self.offsets[1:], strict=False):
            first, last = max(begin, low), min(end, high)
            if first < last:
                found.append(Piece(number, first - low, last - low, low))
        return found

    def to_numpy(self) -> npt.NDArray[Any]:
        """The weights; in place where ``is_shared``, else a copy."""
        return self.values.numpy() if self.is_shared else self.values.float().cpu().numpy()

    def from_numpy(self, array: npt.NDArray[Any]) -> None:
        """Take over weights that ``to_numpy`` gave."""
        if not self.is_shared:
            self.values.copy_(torch.from_numpy(array))


def flatten(parameters: list[torch.nn.Parameter]) -> list[Flat]:
    """One ``Flat`` per dtype, over the parameters that are trained; numbers count through ``parameters``."""
    groups: dict[tuple[torch.dtype, torch.device], tuple[list[int], list[torch.nn.Parameter]]] = {}
    for number, parameter in enumerate(parameters):
        if parameter.requires_grad:
            numbers, members = groups.setdefault((parameter.dtype, parameter.device), ([], []))
            numbers.append(number)
            members.append(parameter)
    return [Flat(numbers, members) for numbers, members in groups.values()]
