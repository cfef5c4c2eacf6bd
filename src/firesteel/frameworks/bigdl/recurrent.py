"""Cells, and the layers that walk them through time."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from firesteel.core.errors import PlanError
from firesteel.frameworks.bigdl.module import Container, Layer, Settings, kind

__all__ = ["Cell", "Recurrent"]

State = tuple[Any, ...]


class Cell(Layer):
    """One time step. Inputs of all steps are multiplied at once (``project``), then each step adds what came before."""

    gates = 1

    def start_with(self, s: Settings, hidden: dict[str, int], biases: dict[str, bool]) -> None:
        """Make the input's weight, one weight per entry of ``hidden`` (as so many blocks), and biases."""
        self.inputs, self.size, self.p = s.input_size, s.hidden_size, getattr(s, "p", 0.0)
        self.weight = nn.Parameter(torch.empty(self.gates * self.size, self.inputs, dtype=s.dtype))
        for name, blocks in hidden.items():
            setattr(self, name, nn.Parameter(torch.empty(blocks * self.size, self.size, dtype=s.dtype)))
        for name, is_there in biases.items():
            bias = nn.Parameter(torch.empty(self.gates * self.size, dtype=s.dtype)) if is_there else None
            self.register_parameter(name, bias)

    def begin(self, name: str, parameter: torch.Tensor) -> None:
        self.spread(parameter, self.inputs if name in ("weight", "bias") else self.size)

    def fans(self, name: str) -> tuple[int, int]:
        return (self.inputs, self.gates * self.size) if name == "weight" else super().fans(name)

    def regularized(self, part: str) -> tuple[str, ...]:
        if part == "hidden":
            return tuple(name for name in ("hidden", "candidate") if getattr(self, name, None) is not None)
        if part == "bias":
            return tuple(name for name in ("bias", "hidden_bias") if getattr(self, name, None) is not None)
        return super().regularized(part)

    def project(self, values: torch.Tensor) -> torch.Tensor:
        """(rows, time, inputs) as (rows, time, gates·size)."""
        if not (self.training and self.p):
            return functional.linear(values, self.weight, self.bias)
        blocks = self.weight.chunk(self.gates)
        made = torch.cat([functional.linear(functional.dropout(values, self.p), block) for block in blocks], -1)
        return made if self.bias is None else made + self.bias

    def first(self, values: torch.Tensor) -> State:
        """The state before the first step, for rows like these."""
        return (values.new_zeros(len(values), self.size),)

    def step(self, projected: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        """Output and state after one step."""
        raise NotImplementedError

    def expects(self) -> str:
        return f"(rows, time, {self.inputs})"


def _activation(module: Any, default: Any) -> Any:
    return default if module is None else module


@kind()
class RnnCell(Cell):
    order = ("weight", "bias", "hidden", "hidden_bias")

    def __init__(self, s: Settings) -> None:
        super().__init__()
        self.start_with(s, {"hidden": 1}, {"bias": s.isInputWithBias, "hidden_bias": s.isHiddenWithBias})
        self.activation = _activation(s.activation, nn.Tanh())

    def step(self, projected: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        made = self.activation(projected + functional.linear(state[0], self.hidden, self.hidden_bias))
        return made, (made,)


@kind()
class LSTM(Cell):
    order = ("weight", "bias", "hidden")
    gates = 4

    def __init__(self, s: Settings) -> None:
        super().__init__()
        self.start_with(s, {"hidden": 4}, {"bias": True})
        self.activation = _activation(getattr(s, "activation", None), nn.Tanh())
        self.inner = _activation(getattr(s, "inner_activation", None), nn.Sigmoid())

    def first(self, values: torch.Tensor) -> State:
        return values.new_zeros(len(values), self.size), values.new_zeros(len(values), self.size)

    def step(self, projected: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        output, memory = state
        enter, candidate, forget, leave = (projected + functional.linear(output, self.hidden)).chunk(4, -1)
        memory = self.inner(forget) * memory + self.inner(enter) * self.activation(candidate)
        output = self.inner(leave) * self.activation(memory)
        return output, (output, memory)


@kind()
class LSTMPeephole(LSTM):
    order = ("weight", "bias", "hidden", "see_input", "see_forget", "see_output")

    def __init__(self, s: Settings) -> None:
        super().__init__(s)
        for name in ("see_input", "see_forget", "see_output"):
            setattr(self, name, nn.Parameter(torch.empty(self.size, dtype=s.dtype)))

    def step(self, projected: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        output, memory = state
        enter, candidate, forget, leave = (projected + functional.linear(output, self.hidden)).chunk(4, -1)
        kept = self.inner(forget + self.see_forget * memory) * memory
        memory = kept + self.inner(enter + self.see_input * memory) * self.activation(candidate)
        output = self.inner(leave + self.see_output * memory) * self.activation(memory)
        return output, (output, memory)


@kind()
class GRU(Cell):
    order = ("weight", "bias", "hidden", "candidate")
    gates = 3

    def __init__(self, s: Settings) -> None:
        super().__init__()
        self.start_with(s, {"hidden": 2, "candidate": 1}, {"bias": True})
        self.activation = _activation(s.activation, nn.Tanh())
        self.inner = _activation(s.inner_activation, nn.Sigmoid())

    def step(self, projected: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        (before,) = state
        gates, candidate = projected.split([2 * self.size, self.size], -1)
        reset, update = self.inner(gates + functional.linear(before, self.hidden)).chunk(2, -1)
        new = self.activation(candidate + functional.linear(reset * before, self.candidate))
        output = (1 - update) * new + update * before
        return output, (output,)


@kind()
class MultiRNNCell(Cell):
    order = ()
    is_container = True

    def __init__(self, s: Settings) -> None:
        super().__init__()
        self.cells = nn.ModuleList(s.cells)

    def project(self, values: torch.Tensor) -> torch.Tensor:
        return values

    def first(self, values: torch.Tensor) -> State:
        return tuple(cell.first(values) for cell in self.cells)

    def step(self, values: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        states = []
        for cell, before in zip(self.cells, state, strict=True):
            values, after = cell.step(cell.project(values.unsqueeze(1)).squeeze(1), before)
            states.append(after)
        return values, tuple(states)

    def expects(self) -> str:
        return self.cells[0].expects()


class _Walker(Container):
    """Keeps the state after the last step, for ``get_hidden_state``."""

    hidden: Any = None

    def cell(self) -> Cell:
        if not len(self.parts):
            raise PlanError(f"{self.title} has no cell yet: call add(cell)")
        return self.parts[0]

    def walk(self, cell: Cell, values: torch.Tensor) -> tuple[torch.Tensor, State]:
        """(rows, time, features) through a cell: outputs of all steps, and the last state."""
        is_batch = values.dim() == 3
        try:
            projected = cell.project(values if is_batch else values.unsqueeze(0))
            state = cell.first(projected)
            outputs = []
            for step in projected.unbind(1):
                made, state = cell.step(step, state)
                outputs.append(made)
            whole = torch.stack(outputs, 1)
        except (RuntimeError, IndexError) as error:
            why = str(error).partition("\n")[0]
            raise PlanError(
                f"{cell.title} takes {cell.expects()} and cannot use an input of shape {tuple(values.shape)}: {why}"
            ) from error
        return (whole if is_batch else whole.squeeze(0)), state


@kind()
class Recurrent(_Walker):
    takes_integers = False

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        made, state = self.walk(self.cell(), values)
        self.hidden = _detached(state)  # it travels with the module, and must not bring a graph along
        return made


@kind()
class RecurrentDecoder(_Walker):
    takes_integers = False

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.length = settings.output_length

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        cell = self.cell()
        if values.dim() != 2:
            raise PlanError(f"{self.title} takes (rows, features), not {tuple(values.shape)}")
        state, outputs = None, []
        try:
            for _ in range(self.length):
                projected = cell.project(values.unsqueeze(1)).squeeze(1)
                state = cell.first(projected) if state is None else state
                values, state = cell.step(projected, state)
                outputs.append(values)
        except (RuntimeError, IndexError) as error:
            why = str(error).partition("\n")[0]
            raise PlanError(f"{self.title} feeds outputs back as inputs, which must be as wide: {why}") from error
        self.hidden = _detached(state)
        return torch.stack(outputs, 1)


def _detached(state: Any) -> Any:
    return state.detach() if isinstance(state, torch.Tensor) else tuple(_detached(each) for each in state)


@kind()
class BiRecurrent(_Walker):
    takes_integers = False

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.merge = settings.merge

    def append(self, module: nn.Module) -> None:
        back = copy.deepcopy(module)
        for each in back.modules():
            if isinstance(each, Layer):
                each.label = f"{each.label}_reverse"
        super().append(module)
        super().append(back)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        forwards, _ = self.walk(self.cell(), values)
        backwards, _ = self.walk(self.parts[1], values.flip(-2))
        both = [forwards, backwards.flip(-2)]
        return both[0] + both[1] if self.merge is None else self.merge(both)
