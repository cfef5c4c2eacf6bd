"""Torch state as safetensors: tensors as they are, everything else as JSON in the header. No pickle."""

from __future__ import annotations

import io
import json
from collections import Counter
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from firesteel.core.errors import CheckpointError

__all__ = [
    "pack_file",
    "pack_model",
    "pack_tree",
    "read_header",
    "read_state_dict",
    "unpack_file",
    "unpack_tensors",
    "unpack_tree",
]

_TREE = "firesteel.tree"
_OPTIMIZER = "optimizer/"


def pack_model(tensors: dict[str, Any], **facts: Any) -> bytes:
    """A state dict as one safetensors file; ``facts`` (JSON values) go into its header."""
    # Cloned, for safetensors refuses tensors that share memory: tied weights, and all that live in a flat buffer.
    whole = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    return bytes(save(whole, metadata={"firesteel": json.dumps(facts)}))


def unpack_tensors(data: bytes) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file."""
    try:
        return dict(load(data))
    except SafetensorError as error:
        raise CheckpointError(f"not a whole safetensors file: {error}") from error


def read_header(data: bytes) -> dict[str, str]:
    """The strings in a safetensors file's header."""
    try:
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
    except (ValueError, UnicodeDecodeError) as error:
        raise CheckpointError(f"not a safetensors file: {error}") from error
    found = header.get("__metadata__", {}) if isinstance(header, dict) else {}
    return dict(found)


def pack_file(state: dict[str, bytes], facts: dict[str, Any]) -> bytes:
    """A whole state as one file: weights under their own names, the optimizer's tensors under ``optimizer/…``."""
    tensors = dict(load(state["model"]))
    header = {"firesteel": json.dumps(facts)}
    if "optimizer" in state:
        tensors |= {_OPTIMIZER + name: value for name, value in load(state["optimizer"]).items()}
        header[_TREE] = read_header(state["optimizer"])[_TREE]
    return bytes(save(tensors, metadata=header))


def unpack_file(data: bytes) -> tuple[dict[str, bytes], dict[str, Any]]:
    """The reverse of ``pack_file``; a file of weights alone has no optimizer and no facts."""
    header = read_header(data)
    tensors = unpack_tensors(data)
    model = {name: value for name, value in tensors.items() if not name.startswith(_OPTIMIZER)}
    state = {"model": bytes(save(model))}
    if _TREE in header:
        rest = {name[len(_OPTIMIZER) :]: value for name, value in tensors.items() if name.startswith(_OPTIMIZER)}
        state["optimizer"] = bytes(save(rest, metadata={_TREE: header[_TREE]}))
    return state, json.loads(header.get("firesteel", "{}"))


def read_state_dict(data: bytes, path: str) -> dict[str, bytes]:
    """A state dict that ``torch.save`` wrote, read without running any code of the file."""
    try:
        found = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointError(
            f"{path} is neither a safetensors file nor a state dict of torch.save: {error}", path=path
        ) from error
    for key in ("state_dict", "model", "model_state_dict"):
        if isinstance(found, dict) and isinstance(found.get(key), dict):
            found = found[key]
    if not isinstance(found, dict) or not all(isinstance(value, torch.Tensor) for value in found.values()):
        raise CheckpointError(f"{path} holds no state dict", path=path)
    return {"model": pack_model(found)}


def pack_tree(tree: Any) -> bytes:
    """Any nesting of dicts, lists, tuples, numbers, strings and tensors (an optimizer's state dict) as safetensors."""
    tensors: dict[str, torch.Tensor] = {}
    text = json.dumps(_encode(tree, tensors))
    return bytes(save(tensors, metadata={_TREE: text}))


def unpack_tree(data: bytes) -> Any:
    """The reverse of ``pack_tree``."""
    header = read_header(data)
    if _TREE not in header:
        raise CheckpointError("a safetensors file without the header that Firesteel writes")
    return _decode(json.loads(header[_TREE]), unpack_tensors(data))


def _encode(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().cpu().contiguous().clone()
        return {"tensor": name}
    if isinstance(value, Counter):
        return {"counter": [[_encode(k, tensors), v] for k, v in value.items()]}
    if isinstance(value, dict):
        return {"dict": [[_encode(k, tensors), _encode(v, tensors)] for k, v in value.items() if not callable(v)]}
    if isinstance(value, tuple):
        return {"tuple": [_encode(item, tensors) for item in value]}
    if isinstance(value, list):
        return {"list": [_encode(item, tensors) for item in value]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"value": value}
    if callable(value):
        return {"value": None}  # a schedule's function: it comes back with the schedule that made it
    raise CheckpointError(f"a {type(value).__qualname__} in the optimizer's state cannot be saved without pickle")


def _decode(value: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Any:
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "counter":
        return Counter({_decode(k, tensors): v for k, v in content})
    if kind == "dict":
        return {_decode(k, tensors): _decode(v, tensors) for k, v in content}
    if kind == "tuple":
        return tuple(_decode(item, tensors) for item in content)
    if kind == "list":
        return [_decode(item, tensors) for item in content]
    return content
