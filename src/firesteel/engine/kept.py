"""What callbacks have learnt on the way, as bytes in a commit point: numbers, text, arrays, lists and dicts of these.

Children end with every new form of their gang, and callbacks with them. What is plain in a callback's attributes goes
on from the commit point; the rest (a model, an open file) is what its hooks make of it again. Nothing is pickled.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from types import FunctionType
from typing import Any

import numpy as np

from firesteel.core.imports import follow, path_of
from firesteel.data.packed import pack, unpack

__all__ = ["from_bytes", "heavy", "load", "plain", "state_of", "to_bytes"]

_log = logging.getLogger(__name__)

_SCALARS = (bool, int, float, str, type(None))
_HEAVY_BYTES = 1 << 20
_SERIES = {"list": list, "tuple": tuple, "set": set}


class _NotPlain(Exception):
    """A value that is more than data."""


def heavy(thing: Any) -> dict[str, Any]:
    """Attributes that a callback comes with and that are large, as rows to validate on: they come again anyway."""
    return {name: value for name, value in vars(thing).items() if _bytes_of(value) > _HEAVY_BYTES}


def plain(values: Mapping[str, Any], without: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Those that are data through and through; not those that still are the very objects in ``without``."""
    known = without or {}
    there = {name: value for name, value in values.items() if name not in known or value is not known[name]}
    return {name: value for name, value in there.items() if _is_plain(value)}


def state_of(callback: Any, without: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What it says of itself in ``state_dict()``, where it has that and ``load_state_dict``; else its attributes."""
    return dict(callback.state_dict()) if _speaks(callback) else plain(vars(callback), without)


def load(callback: Any, state: Mapping[str, Any]) -> None:
    """The reverse of ``state_of``."""
    if _speaks(callback):
        callback.load_state_dict(dict(state))
    else:
        vars(callback).update(state)


def _speaks(callback: Any) -> bool:
    return hasattr(callback, "state_dict") and hasattr(callback, "load_state_dict")


def to_bytes(states: list[dict[str, Any]]) -> bytes:
    """States as one piece; an entry that is not plain is left out, and the log says so."""
    arrays: list[Any] = []
    written = []
    for state in states:
        entries = {}
        for name, value in state.items():
            try:
                entries[name] = _write(value, arrays, ())
            except _NotPlain:
                _log.warning("a callback's %r is no number, text or array, and will not survive a loss", name)
        written.append(entries)
    header, data = pack({str(place): array for place, array in enumerate(arrays)})
    head = json.dumps([written, header]).encode()
    return len(head).to_bytes(8, "little") + head + data


def from_bytes(data: bytes) -> list[dict[str, Any]]:
    """The reverse of ``to_bytes``."""
    end = 8 + int.from_bytes(data[:8], "little")
    written, header = json.loads(data[8:end])
    arrays = unpack(header, data[end:])
    return [{name: _read(value, arrays) for name, value in entries.items()} for entries in written]


def _is_plain(value: Any) -> bool:
    try:
        _write(value, [], ())
    except _NotPlain:
        return False
    return True


def _bytes_of(value: Any) -> int:
    """How large it is written, about; nothing where it is not plain."""
    arrays: list[Any] = []
    try:
        written = _write(value, arrays, ())
    except _NotPlain:
        return 0
    text = len(json.dumps(written)) if isinstance(written, (list, str)) else 0
    return text + sum(int(array.nbytes) for array in arrays)


def _write(value: Any, arrays: list[Any], above: tuple[int, ...]) -> Any:
    """As JSON: scalars as they are, all else as a list of its kind and its parts. Exact types: others mean more."""
    kind = type(value)
    if kind in _SCALARS:
        return value
    if id(value) in above:
        raise _NotPlain  # it holds itself
    inside = (*above, id(value))
    if kind.__name__ in _SERIES and kind is _SERIES[kind.__name__]:
        return [kind.__name__, [_write(each, arrays, inside) for each in value]]
    if kind is dict:
        items = [[_write(key, arrays, inside), _write(each, arrays, inside)] for key, each in value.items()]
        return ["dict", items]
    if kind is bytes:
        arrays.append(np.frombuffer(value, np.uint8))
        return ["bytes", len(arrays) - 1]
    if (kind is np.ndarray or isinstance(value, np.generic)) and not np.asarray(value).dtype.hasobject:
        arrays.append(np.asarray(value))
        return ["array" if kind is np.ndarray else "scalar", len(arrays) - 1]
    if kind is FunctionType and (path := path_of(value)) is not None:
        return ["function", path]  # as Keras keeps the way that values are compared
    raise _NotPlain


def _read(value: Any, arrays: Mapping[str, Any]) -> Any:
    if not isinstance(value, list):
        return value
    kind, parts = value
    if kind == "dict":
        return {_read(key, arrays): _read(each, arrays) for key, each in parts}
    if kind == "function":
        return follow(parts)
    if kind in _SERIES:
        return _SERIES[kind](_read(each, arrays) for each in parts)
    array = arrays[str(parts)]
    if kind == "bytes":
        return array.tobytes()
    return array[()] if kind == "scalar" else array.copy()
