"""How the user's functions and models get to the tasks: packed once on the driver, inside the Spark closure.

The only place that unpickles, and it only ever opens what Spark itself delivered. What cannot be packed is named.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import types
from collections.abc import Iterator
from typing import Any

import cloudpickle

from firesteel.core.errors import PlanError
from firesteel.core.imports import importing

__all__ = ["pack", "unpack"]

_MAX_DEPTH = 24
_NEVER_PACKED = (types.GetSetDescriptorType, types.MemberDescriptorType)  # a class makes its own


def pack(value: object, what: str) -> bytes:
    """``value`` as bytes for a Spark closure. Raises ``PlanError`` naming the variable that cannot travel."""
    try:
        with _user_modules_by_value():
            return bytes(cloudpickle.dumps(value))
    except Exception:  # noqa: BLE001 - a module's global that cannot travel; by name it need not
        pass
    try:
        return bytes(cloudpickle.dumps(value))
    except Exception as error:
        path, culprit = _culprit(value, what, _MAX_DEPTH, set())
        raise PlanError(
            f"{path} (a {type(culprit).__module__}.{type(culprit).__qualname__}) cannot travel to the replicas: "
            f"{error}. Create it inside the function that uses it, or pass a creator function."
        ) from error


@functools.cache
def _real_path(file: str) -> str:
    """Where a file is. Asked of a few thousand modules, each time that something is packed."""
    return os.path.realpath(file)


@contextlib.contextmanager
def _user_modules_by_value() -> Iterator[None]:
    """Classes and functions of the user's own modules travel whole: tasks need not have the files beside the script."""
    installed = {os.path.realpath(path) for path in (sys.prefix, sys.base_prefix, os.path.dirname(os.__file__))}
    own = os.path.realpath(os.path.dirname(os.path.dirname(__file__)))
    registered = []
    sent = _sent_files()
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        # What Spark sends along (--py-files, addPyFile) is imported there, so that its own top level runs.
        if not file or module.__name__ == "__main__" or f"{module.__name__.partition('.')[0]}.py" in sent:
            continue
        place = _real_path(file)
        if "site-packages" in place or "dist-packages" in place or place.startswith((own + os.sep, *installed)):
            continue
        if module.__name__ not in cloudpickle.list_registry_pickle_by_value():
            cloudpickle.register_pickle_by_value(module)
            registered.append(module)
    try:
        yield
    finally:
        for module in registered:
            cloudpickle.unregister_pickle_by_value(module)


def _sent_files() -> set[str]:
    """Names of the files that this driver's Spark gives to every task."""
    core: Any = sys.modules.get("pyspark")
    if core is None or getattr(core.SparkContext, "_active_spark_context", None) is None:
        return set()
    try:
        return set(os.listdir(core.SparkFiles.getRootDirectory()))
    except OSError:
        return set()


def unpack(data: bytes) -> Any:
    """The reverse of ``pack``, in a task or its child. ``data`` must have come inside a Spark closure."""
    with importing():
        return cloudpickle.loads(data)


def _culprit(value: object, path: str, depth: int, seen: set[int]) -> tuple[str, object]:
    """The deepest named part of ``value`` that cannot be packed."""
    is_ours = type(value).__module__.startswith("firesteel.")
    if depth > 0:
        for name, part in _parts(value):
            if id(part) in seen:
                continue
            seen.add(id(part))
            try:
                cloudpickle.dumps(part)
            except Exception:  # noqa: BLE001 - any error means that this part is on the way to the culprit
                # The way through our own values says nothing to a user.
                return _culprit(part, path if is_ours else f"{path}, {name}", depth - 1, seen)
    return path, value


def _parts(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, types.MethodType):
        yield "its object", value.__self__
        value = value.__func__
    if isinstance(value, types.FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=False):
            try:
                yield f"closure variable {name!r}", cell.cell_contents
            except ValueError:
                continue  # not bound yet
        for name in _names(value.__code__):
            if name in value.__globals__:
                yield f"global variable {name!r}", value.__globals__[name]
        for default in value.__defaults__ or ():
            yield "a default argument", default
    elif isinstance(value, dict):
        for key, part in value.items():
            yield f"[{key!r}]", part
    elif isinstance(value, (list, tuple, set)):
        for index, part in enumerate(value):
            yield f"[{index}]", part
    else:
        if isinstance(value, functools.partial):
            yield "the function", value.func
            yield "its arguments", value.args
            yield "its keywords", value.keywords
        for name, part in getattr(value, "__dict__", {}).items():
            if not isinstance(part, _NEVER_PACKED):
                yield f"attribute {name!r}", part


def _names(code: types.CodeType) -> Iterator[str]:
    """Names that a function and those defined inside it look up outside."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
