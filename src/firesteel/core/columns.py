"""Programs over columns: what a framework has to say so that one can be bound to columns by name.

A framework that runs such programs has, besides ``capture`` and ``replica``:

- ``capture_columns(model, …)``: the program of a model whose inputs are named after columns;
- ``inputs(program)``: the tensors that a program takes, as far as it says; ``outputs(program)``: the names of those
  that it gives, where they are known;
- ``bind(program, given, outputs)``: the program for inputs of these dtypes and shapes, and what it gives for them;
- a replica with ``forward(batch)``, one call of the program, and ``rows(batch)``, the program on each row by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt

from firesteel.core.errors import PlanError
from firesteel.core.program import Program
from firesteel.core.spec import Batch

__all__ = [
    "DTYPES",
    "Bound",
    "ColumnFramework",
    "ColumnReplica",
    "NotTriedOut",
    "Port",
    "Shape",
    "refuse_dtype",
    "shape_text",
]

Shape = tuple[int | None, ...]
"""A tensor's shape; ``None`` for a size that is not known."""

DTYPES = ("float64", "float32", "int64", "int32", "int16", "int8", "bool", "string", "binary")
"""What a column's tensor can hold. Strings are text, binary is bytes."""

_NEAREST = {
    "float16": "float32",
    "bfloat16": "float32",
    "uint8": "int16",
    "uint16": "int32",
    "uint32": "int64",
    "uint64": "int64",
}


class NotTriedOut(PlanError):
    """A function's outputs are not known, for it fails on arrays of zeros. It may work on the data all the same."""


@dataclass(frozen=True)
class Port:
    """A named tensor that a program takes or gives; the shape is the tensor's own, rows included where it has them.

    Attributes:
        dtype: one of ``DTYPES``; ``None``: whatever comes.
        shape: ``None`` where not even the number of dimensions is known.
        is_needed: whether the program cannot do without it.
    """

    name: str
    dtype: str | None = None
    shape: Shape | None = None
    is_needed: bool = True


@dataclass(frozen=True)
class Bound:
    """A program for inputs that are known, and its outputs."""

    program: Program
    outputs: tuple[Port, ...]


class ColumnReplica(Protocol):
    """A bound program living in a process."""

    def forward(self, batch: Batch) -> dict[str, npt.NDArray[Any]]:
        """One call with these tensors: its outputs, in order."""
        ...

    def rows(self, batch: Batch) -> dict[str, Any]:
        """The program on each row by itself. Each output is ``(rows, *shape)``, or a list where shapes differ."""
        ...


class ColumnFramework(Protocol):
    """What a framework offers to programs over columns."""

    def capture_columns(self, model: object, **parts: Any) -> Program:
        """The program of this model; ``PlanError`` where it is none. Driver only."""
        ...

    def inputs(self, program: Program) -> tuple[Port, ...]:
        """The tensors that the program takes, in order."""
        ...

    def outputs(self, program: Program) -> tuple[str, ...] | None:
        """Names of what it gives, in order; ``None`` where only a run can tell."""
        ...

    def bind(self, program: Program, given: Mapping[str, Port], outputs: Sequence[Port] | None = None) -> Bound:
        """The program for inputs like these. Driver only; ``PlanError`` where it has no outputs for them.

        ``NotTriedOut`` where nothing but the data can tell them.

        ``outputs`` are what the user declared; a framework that has no other way to know them takes them over.
        """
        ...

    def replica(self, program: Program, device: str, threads: int) -> ColumnReplica:
        """Bring a bound program to life in this process."""
        ...


def refuse_dtype(name: str, dtype: str, cast: str) -> PlanError:
    """The error for an output that no Spark column can hold; ``cast`` is how the framework writes one, with ``{}``."""
    if dtype.startswith("complex"):
        return PlanError(
            f"output {name!r} is {dtype}, for which Spark has no type; give its real and its imaginary part instead"
        )
    nearest = _NEAREST.get(dtype)
    advice = f"cast it in the program, as in {cast.format(nearest)}" if nearest else "declare it in schema="
    return PlanError(f"output {name!r} is {dtype}, for which Spark has no type; {advice}")


def shape_text(shape: Shape | None) -> str:
    """A shape as schemas print it: ``[?,2]``; ``[...]`` where nothing is known."""
    return "[...]" if shape is None else "[" + ",".join("?" if size is None else str(size) for size in shape) + "]"
