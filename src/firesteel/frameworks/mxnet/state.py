"""An MXNet model's state as safetensors: weights by name, the optimizer's arrays and counters, what data looks like."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from typing import Any

import mxnet as mx
import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from firesteel.core.errors import CheckpointError

__all__ = [
    "pack_file",
    "pack_model",
    "pack_optimizer",
    "read_params",
    "unpack_file",
    "unpack_model",
    "unpack_optimizer",
]

Array = npt.NDArray[Any]

_NOTE = "firesteel"
_OPTIMIZER = "optimizer/"


def pack_model(arrays: Mapping[str, Array], seen: Any = None) -> bytes:
    """Weights by name; ``seen`` says what the data looked like, by which a model elsewhere is made ready."""
    return _save(dict(arrays), {"seen": seen})


def unpack_model(data: bytes) -> tuple[dict[str, Array], Any]:
    """The reverse of ``pack_model``."""
    return _load(data), _note(data).get("seen")


def pack_optimizer(updater: Any) -> bytes:
    """An updater's states, and the counters of its optimizer and schedule."""
    arrays: dict[str, Array] = {}
    states = {str(index): _encode(state, arrays) for index, state in updater.states.items()}
    optimizer = updater.optimizer
    note = {
        "states": states,
        "counts": {str(index): count for index, count in optimizer._index_update_count.items()},
        "numbers": _numbers(optimizer),
        "schedule": _numbers(optimizer.lr_scheduler) if optimizer.lr_scheduler is not None else None,
    }
    return _save(arrays, note)


def unpack_optimizer(data: bytes, updater: Any, context: Any) -> None:
    """Take over what ``pack_optimizer`` gave, in place."""
    arrays, note = _load(data), _note(data)
    try:
        states = {int(index): _decode(state, arrays, context) for index, state in note["states"].items()}
        counts = {int(index): count for index, count in note["counts"].items()}
        updater.states = states
        updater.states_synced = dict.fromkeys(states, True)
        optimizer = updater.optimizer
        vars(optimizer).update(note["numbers"])
        optimizer._index_update_count.clear()
        optimizer._index_update_count.update(counts)
        if note["schedule"] is not None and optimizer.lr_scheduler is not None:
            vars(optimizer.lr_scheduler).update(note["schedule"])
    except KeyError as error:
        raise CheckpointError(f"the optimizer's state lacks {error}") from error


def pack_file(state: dict[str, bytes], facts: dict[str, Any]) -> bytes:
    """Model, optimizer and counters as one safetensors file, weights under their own names."""
    arrays, seen = unpack_model(state["model"])
    note: dict[str, Any] = {"seen": seen, "facts": facts}
    if "optimizer" in state:
        note["optimizer"] = _note(state["optimizer"])
        arrays |= {_OPTIMIZER + name: values for name, values in _load(state["optimizer"]).items()}
    return _save(arrays, note)


def unpack_file(data: bytes) -> tuple[dict[str, bytes], dict[str, Any]]:
    """The reverse of ``pack_file``; ``CheckpointError`` where it is no such file."""
    arrays, note = _load(data), _note(data)
    state = {"model": pack_model({n: v for n, v in arrays.items() if not n.startswith(_OPTIMIZER)}, note.get("seen"))}
    if "optimizer" in note:
        rest = {n[len(_OPTIMIZER) :]: v for n, v in arrays.items() if n.startswith(_OPTIMIZER)}
        state["optimizer"] = _save(rest, note["optimizer"])
    return state, note.get("facts", {})


def read_params(data: bytes, path: str, model: Any) -> dict[str, bytes]:
    """A ``.params`` file that MXNet wrote, for this model."""
    with tempfile.TemporaryDirectory(prefix="firesteel-") as folder:
        place = os.path.join(folder, "model.params")
        with open(place, "wb") as file:
            file.write(data)
        try:
            found = mx.nd.load(place)
        except mx.MXNetError as error:
            raise CheckpointError(f"{path} is neither a safetensors file nor one of MXNet's", path=path) from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} holds arrays without names", path=path)
    arrays = {name: values.asnumpy() for name, values in found.items()}
    plain = {name.removeprefix("arg:").removeprefix("aux:"): values for name, values in arrays.items()}
    if isinstance(model, mx.gluon.Block):
        plain = _by_place(model, plain)
    return {"model": pack_model(plain)}


def _by_place(model: Any, arrays: dict[str, Array]) -> dict[str, Array]:
    """Weights under the names that they have by their place in the model, whichever way the file names them."""
    own = model._collect_params_with_prefix()
    if all(name in own for name in arrays):
        return arrays
    full = {parameter.name: name for name, parameter in own.items()}
    if all(name in full for name in arrays):
        return {full[name]: values for name, values in arrays.items()}
    # MXNet's names count the blocks that a process has made; without these counts they agree.
    short = {_uncounted(parameter.name): name for name, parameter in own.items()}
    if len(short) == len(own) and {_uncounted(name) for name in arrays} == set(short):
        return {short[_uncounted(name)]: values for name, values in arrays.items()}
    if len(arrays) == len(own):
        return dict(zip(own, arrays.values(), strict=True))
    return arrays  # what does not fit is said by whoever loads it


def _uncounted(name: str) -> str:
    return "_".join(part.rstrip("0123456789") for part in name.split("_"))


def _numbers(thing: Any) -> dict[str, Any]:
    """What an optimizer or a schedule counts and changes on its way."""
    return {key: value for key, value in vars(thing).items() if isinstance(value, (bool, int, float))}


def _encode(state: Any, arrays: dict[str, Array]) -> Any:
    if isinstance(state, (tuple, list)):
        return {"list" if isinstance(state, list) else "tuple": [_encode(part, arrays) for part in state]}
    if state is None or isinstance(state, (int, float)):
        return {"value": state}
    name = str(len(arrays))
    arrays[name] = state.asnumpy()
    return {"array": name}


def _decode(note: dict[str, Any], arrays: dict[str, Array], context: Any) -> Any:
    ((kind, content),) = note.items()
    if kind in ("tuple", "list"):
        parts = [_decode(part, arrays, context) for part in content]
        return tuple(parts) if kind == "tuple" else parts
    if kind == "value":
        return content
    return mx.nd.array(arrays[content], ctx=context, dtype=arrays[content].dtype)


def _save(arrays: dict[str, Array], note: dict[str, Any]) -> bytes:
    plain = {name: np.ascontiguousarray(values) for name, values in arrays.items()}
    return bytes(save(plain, {_NOTE: json.dumps(note)}))


def _load(data: bytes) -> dict[str, Array]:
    try:
        found: dict[str, Array] = load(data)
    except SafetensorError as error:
        raise CheckpointError(f"the state cannot be read: {error}") from error
    return found


def _note(data: bytes) -> dict[str, Any]:
    size = int.from_bytes(data[:8], "little")
    found: dict[str, Any] = json.loads(json.loads(data[8 : 8 + size]).get("__metadata__", {}).get(_NOTE, "{}"))
    return found
