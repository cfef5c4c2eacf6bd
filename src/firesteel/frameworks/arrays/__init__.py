"""The bench for plain functions over NumPy, torch or JAX arrays. Registered under ``firesteel.frameworks``.

A function's parameters are named after columns; it learns nothing and has no weights but what it closes over. It
offers what ``core.columns`` asks for, and nothing of ``fit``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from firesteel.core.columns import Bound, Port
from firesteel.core.program import Program
from firesteel.frameworks.arrays.program import bind, capture, inputs
from firesteel.frameworks.arrays.replica import ArraysReplica

__all__ = ["ArraysFramework", "framework"]


class ArraysFramework:
    """How functions are captured on the driver and called in a process."""

    name = "arrays"
    packages = ("numpy",)

    def accepts(self, model: object) -> bool:
        """Anything that can be called."""
        return callable(model)

    def capture(self, model: object, **parts: Any) -> Program:
        """See ``program.capture``."""
        return capture(model, **parts)

    def capture_columns(self, model: object, **parts: Any) -> Program:
        """A function is a program over columns as it is."""
        return capture(model, **parts)

    def outputs(self, program: Program) -> tuple[str, ...] | None:
        """Their names, where they were given."""
        named: tuple[str, ...] | None = program.content.outputs
        return named

    def inputs(self, program: Program) -> tuple[Port, ...]:
        """See ``program.inputs``."""
        return inputs(program)

    def bind(self, program: Program, given: Mapping[str, Port], outputs: Sequence[Port] | None = None) -> Bound:
        """See ``program.bind``."""
        return bind(program, given, outputs)

    def ahead(self, program: Program) -> tuple[str, ...]:
        """Arrays are not trained."""
        return ()

    def replica(self, program: Program, device: str = "cpu", threads: int = 1) -> ArraysReplica:
        """The function in this process."""
        return ArraysReplica(program, device, threads)


framework = ArraysFramework()
