"""A function as a program: its parameters are inputs, what it returns are outputs, found out on arrays of zeros."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from firesteel.core.columns import DTYPES, Bound, NotTriedOut, Port, Shape, refuse_dtype
from firesteel.core.errors import FiresteelError, PlanError, UnknownName
from firesteel.core.program import Program
from firesteel.frameworks.arrays.kinds import KINDS, is_layer, kind_of, make_kind

__all__ = ["ArraysContent", "Call", "bind", "capture", "inputs"]

Array = npt.NDArray[Any]

_SIZES = (2, 3)  # of dimensions that are not known: what differs between two runs depends on them


@dataclass(frozen=True)
class ArraysContent:
    """What travels.

    Attributes:
        kind: whose arrays the function takes.
        single: the name of an only output, if it can have one.
        outputs: all outputs' names, where they are known.
        fed: the parameters that are fed, in order; others keep their defaults.
    """

    function: Callable[..., Any]
    kind: str
    single: str | None
    outputs: tuple[str, ...] | None = None
    fed: tuple[str, ...] = ()


def capture(model: Any, *, kind: str | None = None, outputs: Sequence[str] | None = None) -> Program:
    """The program of a function or a torch module. Driver only."""
    if kind is not None and kind not in KINDS:
        raise UnknownName("kind of function", kind, KINDS)
    if not callable(model):
        raise PlanError(f"a program is a function of arrays, not {model!r}")
    if outputs is not None:
        names = (outputs,) if isinstance(outputs, str) else tuple(outputs)
        if not names or not all(isinstance(name, str) for name in names):
            raise PlanError(f"outputs must be the names of what the function returns, not {outputs!r}")
        if len(set(names)) < len(names):
            raise PlanError(f"two outputs have one name: {', '.join(names)}")
    else:
        names = None
    return Program("arrays", ArraysContent(model, kind or kind_of(model), _single(model), names))


def _single(model: Any) -> str | None:
    """The name of what a function returns, if that is one value."""
    if is_layer(model):
        return "output"
    while isinstance(model, functools.partial):
        model = model.func
    name = getattr(model, "__name__", None)
    return name if name and name.isidentifier() else None


def inputs(program: Program) -> tuple[Port, ...]:
    """A port for each parameter; those with a default can be left out."""
    content: ArraysContent = program.content
    found = []
    for parameter in _parameters(content.function):
        if parameter.kind is parameter.VAR_POSITIONAL:
            raise PlanError(
                f"a program's parameters are named after columns, and *{parameter.name} has no names; write them out"
            )
        if parameter.kind is not parameter.VAR_KEYWORD:
            found.append(Port(parameter.name, is_needed=parameter.default is parameter.empty))
    return tuple(found)


def _parameters(function: Any) -> list[inspect.Parameter]:
    target = function
    if is_layer(function):  # a Keras layer has the one, a torch module the other
        target = getattr(function, "call", None) or function.forward
    try:
        return list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError) as error:
        raise PlanError(
            f"the parameters of {function!r} cannot be seen; wrap it in a function that has them"
        ) from error


@dataclass(frozen=True)
class Call:
    """A call of a function by the names of its inputs."""

    content: ArraysContent

    def bind(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function of its fed parameters alone, in their order."""
        kinds = {parameter.name: parameter.kind for parameter in _parameters(self.content.function)}
        if all(kinds[name] is not inspect.Parameter.POSITIONAL_ONLY for name in self.content.fed):
            names = self.content.fed
            return lambda *arrays: function(**dict(zip(names, arrays, strict=True)))
        return function

    def named(self, result: Any) -> dict[str, Any]:
        """What a call gave, by name, in order."""
        content = self.content
        found = _structure(result)
        if found is None:
            if content.outputs is not None and len(content.outputs) == 1 and not isinstance(result, tuple):
                return {content.outputs[0]: result}
            if isinstance(result, (list, tuple)) and content.outputs is not None:
                found = dict(zip(map(str, range(len(result))), result, strict=True))
            elif isinstance(result, tuple):
                raise PlanError(
                    f"the function returns {len(result)} values without names; return a dict or a named tuple, or name "
                    f"them with program(fn, outputs=[…])"
                )
            elif content.outputs is not None:
                found = {"": result}
            elif content.single is None:
                raise PlanError(
                    "the function has no name that its result could have; name it with program(fn, outputs=['z'])"
                )
            else:
                return {content.single: result}
        if content.outputs is None:
            return found
        if set(found) == set(content.outputs):
            return {name: found[name] for name in content.outputs}
        if isinstance(result, Mapping) or len(found) != len(content.outputs):
            raise PlanError(
                f"the function returns {len(found)} outputs ({', '.join(found)}), but these were named: "
                f"{', '.join(content.outputs)}"
            )
        return dict(zip(content.outputs, found.values(), strict=True))


def _structure(result: Any) -> dict[str, Any] | None:
    """Outputs that have names of their own."""
    if isinstance(result, Mapping):
        if not result or not all(isinstance(name, str) for name in result):
            raise PlanError(f"a function that returns a dict needs names of outputs as its keys, not {list(result)!r}")
        return dict(result)
    if isinstance(result, tuple) and hasattr(result, "_fields"):
        return dict(result._asdict())
    return None


def bind(program: Program, given: Mapping[str, Port], outputs: Sequence[Port] | None = None) -> Bound:
    """The program for these inputs, and its outputs: those declared, else what it returns for zeros."""
    fed = tuple(port.name for port in inputs(program) if port.name in given)
    content = replace(program.content, fed=fed)
    if outputs is not None:
        # Nothing is run: what is declared may be all that can be known before there is data.
        names = tuple(port.name for port in outputs)
        if content.outputs is not None and set(names) != set(content.outputs):
            raise PlanError(
                f"schema declares {', '.join(names)}, but the program's outputs are {', '.join(content.outputs)}"
            )
        content = replace(content, outputs=content.outputs or names)
        declared = {port.name: port for port in outputs}
        assert content.outputs is not None
        return Bound(Program("arrays", content), tuple(declared[name] for name in content.outputs))
    try:
        runs = [_try_out(content, given, size) for size in _SIZES]
    except FiresteelError:
        raise
    except Exception as error:
        raise NotTriedOut(_failed(error, given)) from error
    first, second = runs
    if list(first) != list(second):
        raise PlanError(
            f"the function's outputs change from call to call: {', '.join(first)}, then {', '.join(second)}"
        )
    ports = tuple(_port(name, first[name], second[name], content.kind) for name in first)
    return Bound(Program("arrays", replace(content, outputs=tuple(first))), ports)


def _failed(error: Exception, given: Mapping[str, Port]) -> str:
    unknown = [name for name, port in given.items() if any(size is None for size in (port.shape or ())[1:])]
    hint = f", or make the sizes of {', '.join(unknown)} known with analyze or append_shape" if unknown else ""
    return (
        f"the function cannot be tried on zeros to see its outputs ({type(error).__name__}: {error}); "
        f"declare them with schema={{name: (dtype, cell shape)}}{hint}"
    )


def _try_out(content: ArraysContent, given: Mapping[str, Port], size: int) -> dict[str, Array]:
    """Outputs for zeros; ``size`` is that of all that is not known."""
    kind = make_kind(content.kind)
    call = Call(content)
    function = call.bind(kind.prepare(content.function))
    arrays = [_zeros(given[name], size) for name in content.fed]
    with warnings.catch_warnings(), np.errstate(all="ignore"), kind.context():
        warnings.simplefilter("ignore")
        named = call.named(function(*map(kind.enter, arrays)))
        return {name: kind.leave(value, name) for name, value in named.items()}


def _zeros(port: Port, size: int) -> Array:
    assert port.shape is not None, "a column has a shape"
    shape = tuple(size if length is None else length for length in port.shape)
    if port.dtype in ("string", "binary"):
        array = np.full(shape, "" if port.dtype == "string" else b"", object)
    else:
        array = np.zeros(shape, port.dtype)
    array.flags.writeable = False  # as they will be
    return array[()]  # a number alone is no array


def _port(name: str, first: Array, second: Array, kind: str) -> Port:
    if first.ndim != second.ndim:
        raise PlanError(f"output {name!r} has {first.ndim} dimensions, or {second.ndim}: declare it with schema=")
    dtype = first.dtype.name
    if first.dtype.kind == "S" or (first.dtype.kind == "O" and all(isinstance(each, bytes) for each in first.flat)):
        dtype = "binary"
    elif first.dtype.kind in "OUT":
        raise PlanError(
            f"output {name!r} holds strings or objects; declare it, as in schema={{{name!r}: ('string', [])}}"
        )
    if dtype not in DTYPES:
        raise refuse_dtype(name, dtype, name + make_kind(kind).cast)
    shape: Shape = tuple(one if one == two else None for one, two in zip(first.shape, second.shape, strict=True))
    return Port(name, dtype, shape)
