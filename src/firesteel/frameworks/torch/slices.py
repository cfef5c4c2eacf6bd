"""An optimizer that updates only this rank's slice of the flat weights, with the user's own optimizer class.

A slice is a handful of flat parameters, each a run of one of the model's. Elementwise optimizers do not notice.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch

from firesteel.core.errors import PlanError
from firesteel.frameworks.torch import optimizers
from firesteel.frameworks.torch.flat import Flat, Piece
from firesteel.frameworks.torch.state import pack_tree, unpack_tree

__all__ = ["SlicedOptimizer", "merge_slices"]


class SlicedOptimizer:
    """Wraps the user's optimizer: its groups' settings (a schedule changes them) count, its class does the work."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: list[torch.nn.Parameter],
        flats: Sequence[Flat],
        bounds: Sequence[tuple[int, int]],
    ) -> None:
        self._full = optimizer
        numbers = {id(parameter): number for number, parameter in enumerate(parameters)}
        places = {}  # parameter number in the model -> (group, number in the optimizer)
        count = 0
        for index, group in enumerate(optimizer.param_groups):
            for parameter in group["params"]:
                places[numbers[id(parameter)]] = (index, count)
                count += 1
        self._pieces: list[tuple[Piece, Flat, torch.nn.Parameter, int]] = []
        groups: list[dict[str, Any]] = [
            {**{key: value for key, value in group.items() if key != "params"}, "params": []}
            for group in optimizer.param_groups
        ]
        for flat, (begin, end) in zip(flats, bounds, strict=True):
            for piece in flat.pieces(begin, end):
                if piece.parameter not in places:
                    continue  # the user left this parameter out of the optimizer
                index, number = places[piece.parameter]
                low = piece.offset + piece.begin
                part = torch.nn.Parameter(flat.values[low : low + piece.end - piece.begin])
                groups[index]["params"].append(part)
                self._pieces.append((piece, flat, part, number))
        self._group_numbers = [index for index, group in enumerate(groups) if group["params"]]
        self._optimizer = _like(optimizer, [groups[index] for index in self._group_numbers])
        self._take_state()

    @staticmethod
    def can_slice(optimizer: torch.optim.Optimizer) -> bool:
        """Whether updating slices gives the same numbers as updating whole parameters."""
        return optimizers.is_elementwise(optimizer)

    def step(self) -> None:
        """Update this rank's slice from the flat gradients."""
        if self._optimizer is None:
            return
        for mine, number in zip(self._optimizer.param_groups, self._group_numbers, strict=True):
            mine.update({k: v for k, v in self._full.param_groups[number].items() if k != "params"})
        for piece, flat, part, _ in self._pieces:
            if flat.has_gradient(piece.parameter):
                low = piece.offset + piece.begin
                part.grad = flat.gradient[low : low + piece.end - piece.begin].to(part.device, part.dtype)
            else:
                part.grad = None
        self._optimizer.step()

    def pack(self) -> bytes:
        """State of each piece, with the parameter's number in the optimizer and the run it covers."""
        entries = []
        if self._optimizer is not None:
            for piece, _, part, number in self._pieces:
                state = self._optimizer.state.get(part)
                if state:
                    entries.append({"number": number, "begin": piece.begin, "end": piece.end, "state": dict(state)})
        return pack_tree(entries)

    def _take_state(self) -> None:
        """Cut the full optimizer's state (from a checkpoint, or an instance that trained before) to the pieces."""
        if self._optimizer is None:
            return
        whole = [p for group in self._full.param_groups for p in group["params"]]
        for piece, _, part, number in self._pieces:
            state = self._full.state.get(whole[number])
            if state:
                self._optimizer.state[part] = {
                    key: _cut(key, value, whole[number], piece) for key, value in state.items()
                }


def _cut(key: str, value: Any, parameter: torch.Tensor, piece: Piece) -> Any:
    # A parameter without dimensions has state that looks like the step counter, which belongs to all pieces.
    if isinstance(value, torch.Tensor) and value.shape == parameter.shape and key != "step":
        return value.detach().reshape(-1)[piece.begin : piece.end].clone()
    return value.clone() if isinstance(value, torch.Tensor) else value


def _like(optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]]) -> torch.optim.Optimizer | None:
    if not groups:
        return None
    accepted = inspect.signature(type(optimizer).__init__).parameters
    settings = {key: value for key, value in optimizer.defaults.items() if key in accepted}
    return type(optimizer)(groups, **settings)


def merge_slices(slices: Sequence[bytes], optimizer: torch.optim.Optimizer) -> dict[int, dict[str, Any]]:
    """All ranks' pieces as the state of the whole optimizer, by parameter number."""
    whole = [p for group in optimizer.param_groups for p in group["params"]]
    merged: dict[int, dict[str, Any]] = {}
    for data in slices:
        for entry in unpack_tree(data):
            parameter = whole[entry["number"]]
            state = merged.setdefault(entry["number"], {})
            for key, value in entry["state"].items():
                if isinstance(value, torch.Tensor) and value.dim() == 1 and len(value) == entry["end"] - entry["begin"]:
                    full = state.setdefault(key, torch.zeros(parameter.numel(), dtype=value.dtype))
                    full[entry["begin"] : entry["end"]] = value
                else:
                    state.setdefault(key, value)
    for number, state in merged.items():
        for key, value in state.items():
            if isinstance(value, torch.Tensor) and value.dim() == 1 and value.numel() == whole[number].numel():
                state[key] = value.view(whole[number].shape)
    if any(number >= len(whole) for number in merged):
        raise PlanError("the optimizer's slices are of another model")
    return merged
