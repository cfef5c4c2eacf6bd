"""What a user calls fetches, as a program: tensors of a graph, a TensorFlow function, a layer, a plain function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from firesteel.core import registry
from firesteel.core.columns import ColumnFramework, Port
from firesteel.core.errors import PlanError, UnknownName
from firesteel.core.program import Program

__all__ = ["Captured", "FrameProgram", "capture", "program"]

KINDS = ("jax", "numpy", "tensorflow", "torch")


@dataclass(frozen=True)
class FrameProgram:
    """A function, whose arrays it takes, and what its outputs are called; see ``program``."""

    function: Any
    kind: str | None = None
    outputs: tuple[str, ...] | None = None
    is_algebraic: bool = True


@dataclass(frozen=True)
class Captured:
    """A program, its bench, and what it says of itself."""

    framework: ColumnFramework
    program: Program
    inputs: tuple[Port, ...]
    outputs: tuple[str, ...] | None
    is_list: bool
    is_algebraic: bool = True


def program(
    fn: Any, kind: str | None = None, outputs: Sequence[str] | None = None, *, algebraic: bool = True
) -> FrameProgram:
    """A function whose kind or output names cannot be seen, as a program.

    Args:
        fn: its parameters are named after columns.
        kind: ``"numpy"``, ``"torch"``, ``"jax"`` or ``"tensorflow"``: whose arrays it takes and gives. Default: what it
            shows; a plain function takes NumPy's.
        outputs: names for what it returns, in order.
        algebraic: ``False`` for ``reduce_blocks`` and ``aggregate`` by a function that is not associative, a median
            say: it then gets all rows (of a key) in one block, which must fit in memory.
    """
    if isinstance(fn, FrameProgram):
        fn = fn.function
    if not callable(fn):
        raise TypeError(f"program takes a function, not {type(fn).__name__}")
    if kind is not None and kind not in KINDS:
        raise UnknownName("kind of program", kind, KINDS)
    names = None
    if outputs is not None:
        names = (outputs,) if isinstance(outputs, str) else tuple(outputs)
        if not names or not all(names):
            raise PlanError(f"outputs must be names for what the function returns, not {outputs!r}")
        if len(set(names)) < len(names):
            raise PlanError(f"two outputs have one name: {', '.join(names)}")
    return FrameProgram(fn, kind, names, bool(algebraic))


def capture(fetches: Any, *, initial_variables: bool = True) -> Captured:
    """The program that these fetches are; ``TypeError`` for what is none. Driver only; nothing is run."""
    given = fetches if isinstance(fetches, FrameProgram) else FrameProgram(fetches)
    function, kind = given.function, given.kind
    is_list = isinstance(function, (list, tuple))
    if kind == "tensorflow" or (kind is None and _is_tensorflow(function)):
        framework: Any = registry.framework("tfgraph")
        made = framework.capture_columns(function, outputs=given.outputs, initialize=bool(initial_variables))
    elif is_list or not callable(function):
        raise TypeError(
            f"fetches must be a tensor (or a list of tensors) of a TensorFlow graph, a tf.function, a torch module or "
            f"a function of arrays, not {_described(fetches)}"
        )
    else:
        framework = registry.framework("arrays")
        made = framework.capture_columns(function, kind=kind, outputs=given.outputs)
    return Captured(
        framework, made, framework.inputs(made), framework.outputs(made), is_list, is_algebraic=given.is_algebraic
    )


def _is_tensorflow(fetches: Any) -> bool:
    """Whether this is TensorFlow's, or a list with such a thing in it. The bench says whether it will do."""
    if isinstance(fetches, (list, tuple)):
        return any(_is_tensorflow(each) for each in fetches)
    homes = {cls.__module__.partition(".")[0] for cls in type(fetches).__mro__}
    return "tensorflow" in homes and "torch" not in homes


def _described(fetches: Any) -> str:
    if isinstance(fetches, (list, tuple)):
        return f"a list of {', '.join(sorted({type(each).__name__ for each in fetches})) or 'nothing'}"
    return f"{type(fetches).__name__} {fetches!r}"
