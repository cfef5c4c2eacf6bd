"""Cells, and the layers that walk them through time. Input is (batch, time, features)."""

from __future__ import annotations

from typing import Any

from firesteel.core.errors import PlanError
from firesteel.frontends.bigdl.described import bench
from firesteel.frontends.bigdl.layer import Activation, Container, Layer, Part, Parts, Regularized
from firesteel.frontends.bigdl.settings import Flag, PositiveCount, Probability

__all__ = [
    "GRU",
    "LSTM",
    "BiRecurrent",
    "LSTMPeephole",
    "MultiRNNCell",
    "Recurrent",
    "RecurrentDecoder",
    "RnnCell",
]


class Cell(Layer):
    """What computes one time step. Used inside of `Recurrent`, `BiRecurrent` and `RecurrentDecoder` only."""

    def forward(self, input: Any) -> Any:
        """Not by itself."""
        raise PlanError(f"{type(self).__name__} computes one step; put it into a Recurrent: Recurrent().add(cell)")


class RnnCell(Cell):
    """``h = act(W·x + b + U·h + c)``. Weights: (H, I), b, (H, H), c."""

    input_size: PositiveCount
    hidden_size: PositiveCount
    activation: Activation | None
    isInputWithBias: Flag = True
    isHiddenWithBias: Flag = True
    wRegularizer: Regularized | None = None
    uRegularizer: Regularized | None = None
    bRegularizer: Regularized | None = None


class LSTM(Cell):
    """A long short-term memory. Weights: (4H, I), (4H), (4H, H), in blocks **input, candidate, forget, output**.

    ``p``: dropout of each gate's inputs. ``activation`` is of candidate and output, ``inner_activation`` of the gates.
    """

    input_size: PositiveCount
    hidden_size: PositiveCount
    p: Probability = 0.0
    activation: Activation | None = None
    inner_activation: Activation | None = None
    wRegularizer: Regularized | None = None
    uRegularizer: Regularized | None = None
    bRegularizer: Regularized | None = None


class LSTMPeephole(Cell):
    """An `LSTM` whose gates see the cell. Weights: as there, then (H) for the input, forget and output gate."""

    input_size: PositiveCount = 4
    hidden_size: PositiveCount = 3
    p: Probability = 0.0
    wRegularizer: Regularized | None = None
    uRegularizer: Regularized | None = None
    bRegularizer: Regularized | None = None


class GRU(Cell):
    """A gated unit. Weights: (3H, I), (3H), (2H, H), (H, H), in blocks reset, update, candidate.

    The candidate is ``act(W·x + b + U·(r∘h))``: the reset gate comes before the matrix, unlike in ``torch.nn.GRU``.
    """

    input_size: PositiveCount
    hidden_size: PositiveCount
    p: Probability = 0.0
    activation: Activation | None = None
    inner_activation: Activation | None = None
    wRegularizer: Regularized | None = None
    uRegularizer: Regularized | None = None
    bRegularizer: Regularized | None = None


class MultiRNNCell(Cell):
    """Cells one above another in the same time step."""

    cells: Parts

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.cells or not all(isinstance(cell, Cell) for cell in self.cells):
            raise PlanError("MultiRNNCell takes a list of cells.")


class _Walker(Container):
    def _check_added(self, layer: Layer) -> None:
        super()._check_added(layer)
        if not isinstance(layer, Cell):
            raise PlanError(f"{type(self).__name__} takes a cell (RnnCell, LSTM, GRU, …), not {type(layer).__name__}")
        if self._layers:
            raise PlanError(f"{type(self).__name__} {self._name!r} has its one cell already")


class Recurrent(_Walker):
    """A cell through time: (batch, time, features) gives (batch, time, hidden)."""

    def get_hidden_state(self) -> Any:
        """The state after the last time step of the last ``forward``; a list where the cell has several parts."""
        return bench().hidden_state(self.to_torch())


class RecurrentDecoder(_Walker):
    """(batch, features) gives (batch, output_length, hidden): each output is the next input."""

    output_length: PositiveCount

    def get_hidden_state(self) -> Any:
        """As ``Recurrent.get_hidden_state``."""
        return bench().hidden_state(self.to_torch())


class BiRecurrent(_Walker):
    """A cell forwards and a copy of it backwards through time, merged by the layer ``merge``, by default their sum."""

    merge: Part | None = None
