"""Params as Spark ML has them, said once: a class lists them, and gets its constructor, getters and setters."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from typing import Any, Self

from pyspark.ml.param import Param, Params, TypeConverters

from firesteel.core.errors import FiresteelError, PlanError, UnknownName

__all__ = ["Stage", "choice", "declare", "flag", "names", "optional", "real", "size", "text", "whole"]

Convert = Callable[[Any], Any]

_NONE = object()

text: Convert = TypeConverters.toString
flag: Convert = TypeConverters.toBoolean
names: Convert = TypeConverters.toListString


def real(value: Any) -> float:
    """A number; not a boolean, which Python takes for one."""
    if isinstance(value, bool):
        raise TypeError(f"Could not convert {value} to a number")
    return float(TypeConverters.toFloat(value))


def whole(value: Any) -> int:
    """A whole number; not a boolean."""
    if isinstance(value, bool):
        raise TypeError(f"Could not convert {value} to a whole number")
    return int(TypeConverters.toInt(value))


def size(value: Any) -> int:
    """A positive whole number, or -1 for all."""
    number = whole(value)
    if number != -1 and number < 1:
        raise PlanError(f"a size is a positive number, or -1 for all there is, not {value!r}")
    return number


def choice(kind: str, known: Collection[str]) -> Convert:
    """One of these names; ``UnknownName`` lists them."""

    def convert(value: Any) -> str:
        if value not in known:
            raise UnknownName(kind, value, known)
        return str(value)

    return convert


def optional(convert: Convert) -> Convert:
    """``None`` passes."""
    return lambda value: None if value is None else convert(value)


def declare(name: str, doc: str, convert: Convert, default: Any = _NONE) -> Param[Any]:
    """A Param, as a class attribute, and its default."""
    param: Param[Any] = Param(Params._dummy(), name, doc, typeConverter=convert)
    if default is not _NONE:
        param.default = default  # type: ignore[attr-defined]
    return param


class Stage(Params):
    """A stage whose Params are set by keyword. A subclass with Params gets ``getX`` and ``setX`` for each."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, param in list(vars(cls).items()):
            if isinstance(param, Param):
                letter = name[0].upper() + name[1:]
                for word, make in (("get", _getter), ("set", _setter)):
                    if f"{word}{letter}" not in vars(cls):
                        setattr(cls, f"{word}{letter}", make(name, param.doc))

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(**{param.name: param.default for param in self.params if hasattr(param, "default")})

    def setParams(self, **params: Any) -> Self:
        """Set Params by keyword. An unknown one is refused, and the message lists those there are."""
        known = [param.name for param in self.params]
        for name in params:
            if name not in known:
                raise UnknownName(f"Param of {type(self).__name__}", name, known)
        self._set(**params)
        return self

    def set(self, param: Param[Any], value: Any) -> None:
        """As in Spark ML; but what is wrong is said by our own errors, which Spark would turn into plain ones."""
        with contextlib.suppress(TypeError):  # which Spark words itself
            try:
                param.typeConverter(value)
            except FiresteelError:
                raise
            except ValueError:
                pass
        super().set(param, value)

    def _value(self, name: str) -> Any:
        return self.getOrDefault(name)


def _getter(name: str, doc: str) -> Callable[[Any], Any]:
    def get(self: Stage) -> Any:
        return self.getOrDefault(name)

    get.__name__ = f"get{name[0].upper()}{name[1:]}"
    get.__doc__ = f"The Param ``{name}``: {doc}"
    return get


def _setter(name: str, doc: str) -> Callable[[Any, Any], Any]:
    def set_(self: Stage, value: Any) -> Any:
        self._set(**{name: value})
        return self

    set_.__name__ = f"set{name[0].upper()}{name[1:]}"
    set_.__doc__ = f"Set the Param ``{name}``: {doc}"
    return set_
