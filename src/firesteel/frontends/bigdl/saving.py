"""A model as JSON and safetensors: its layers as a list, each with its settings, and weights by torch's names.

Shared layers are in the list once; a setting or a container names layers by their place. No pickle, and no code.
"""

from __future__ import annotations

import inspect
import json
from typing import Any

import numpy as np

from firesteel.core.errors import CheckpointError, PlanError, UnsupportedError
from firesteel.engine.files import exists, read_bytes, write_bytes
from firesteel.frontends.bigdl import containers
from firesteel.frontends.bigdl.described import bench
from firesteel.frontends.bigdl.layer import Container, Layer, TorchModule, _Entry
from firesteel.frontends.bigdl.layers import (
    activations,
    convolution,
    linear,
    normalization,
    pooling,
    recurrent,
    shapes,
    tables,
)
from firesteel.frontends.bigdl.regularizers import Regularizer
from firesteel.frontends.bigdl.tfnet import TFNet

__all__ = ["describe", "from_description", "load_model", "load_weights", "read_description", "save_model"]

_FORMAT = "firesteel.bigdl"
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_MODULES = (activations, containers, convolution, linear, normalization, pooling, recurrent, shapes, tables)
_CLASSES: dict[str, type[Layer]] = {name: getattr(module, name) for module in _MODULES for name in module.__all__} | {
    "TFNet": TFNet,
    "_Entry": _Entry,
}


def describe(model: Layer) -> dict[str, Any]:
    """The layers as JSON can hold them. Driver only; no weights."""
    entries: list[dict[str, Any]] = []
    places: dict[int, int] = {}
    root = _enter(model, entries, places)
    return {"format": _FORMAT, "version": 1, "root": root, "layers": entries}


def _enter(layer: Layer, entries: list[dict[str, Any]], places: dict[int, int]) -> int:
    if id(layer) in places:
        return places[id(layer)]
    entry: dict[str, Any] = {"class": type(layer).__name__, "name": layer.name()}
    if layer.bigdl_type != "float":
        entry["bigdl_type"] = layer.bigdl_type
    if isinstance(layer, TorchModule):
        entry["module"] = type(layer.module).__qualname__
    elif type(layer).__name__ not in _CLASSES:
        raise UnsupportedError(f"a layer of the class {type(layer).__qualname__} cannot be written down as JSON")
    else:
        settings = layer.settings().items()
        entry["settings"] = {name: _encode(value, entries, places) for name, value in settings if _is_kept(value)}
        if isinstance(layer, Container):
            entry["layers"] = [_enter(child, entries, places) for child in layer.layers]
    module = layer.to_torch()
    if bench().frozen(module):
        entry["frozen"] = True
    entry |= {key: value for key, value in bench().notes(module).items() if value}
    places[id(layer)] = len(entries)
    entries.append(entry)
    return places[id(layer)]


def _is_kept(value: Any) -> bool:
    """Initial weights are not: the weights themselves are."""
    return value is not None and not isinstance(value, np.ndarray)


def _encode(value: Any, entries: list[dict[str, Any]], places: dict[int, int]) -> Any:
    if isinstance(value, Layer):
        return {"layer": _enter(value, entries, places)}
    if isinstance(value, Regularizer):
        return {"regularizer": value.settings()}
    if isinstance(value, (list, tuple)):
        return [_encode(each, entries, places) for each in value]
    if isinstance(value, dict):
        return {key: _encode(each, entries, places) for key, each in value.items()}
    return value


def from_description(found: dict[str, Any]) -> Layer:
    """The layers that ``describe`` wrote down, with new weights."""
    if found.get("format") != _FORMAT:
        raise UnsupportedError("this is not a model that Firesteel saved")
    made: list[Layer] = []
    for entry in found["layers"]:
        made.append(_make(entry, made))
    for entry, layer in zip(found["layers"], made, strict=True):
        bench().take_notes(layer.to_torch(), entry)
    for entry, layer in zip(found["layers"], made, strict=True):
        if entry.get("frozen"):
            layer.freeze()
    return made[int(found["root"])]


def _make(entry: dict[str, Any], made: list[Layer]) -> Layer:
    name = entry["class"]
    if name == "TorchModule":
        raise UnsupportedError(
            f"the model holds a torch module, {entry['module']}, whose code is not in the file; "
            f"make the model as it was made before, and load into it"
        )
    if name not in _CLASSES:
        raise UnsupportedError(f"the model holds a layer {name!r}, which this version does not know")
    settings = {key: _decode(value, made) for key, value in entry["settings"].items()}
    needed = inspect.signature(_CLASSES[name]).parameters.values()
    settings = {each.name: None for each in needed if each.default is each.empty and each.kind in _NAMED} | settings
    children = [made[place] for place in entry.get("layers", ())]
    kind = entry.get("bigdl_type", "float")
    layer: Layer
    if name == "Model":
        layer = containers.Model.of(children, settings["graph"], kind)
    else:
        try:
            layer = _CLASSES[name](**settings, bigdl_type=kind)
        except TypeError as error:
            raise PlanError(f"these are not the settings of {name}: {error}") from None
        if isinstance(layer, Container):
            for child in children:
                layer.add(child)
    return layer.set_name(entry["name"])


def _decode(value: Any, made: list[Layer]) -> Any:
    if isinstance(value, dict):
        if set(value) == {"layer"}:
            return made[value["layer"]]
        if set(value) == {"regularizer"}:
            return Regularizer.from_settings(value["regularizer"])
        return {key: _decode(each, made) for key, each in value.items()}
    return [_decode(each, made) for each in value] if isinstance(value, list) else value


# --- files ------------------------------------------------------------------------------------------------------------


def save_model(model: Layer, path: str, weight_path: str | None = None, overwrite: bool = False) -> None:
    """JSON at ``path``, safetensors at ``weight_path`` (default ``path + ".safetensors"``)."""
    weights = weight_path or f"{path}.safetensors"
    for each in (path, weights):
        if not overwrite and exists(str(each)):
            raise FileExistsError(f"{each} exists already; pass over_write=True to replace it")
    text = json.dumps(describe(model), indent=1)
    write_bytes(str(weights), bench().pack_model(model.to_torch().state_dict()))
    write_bytes(str(path), text.encode())  # last: where there is a description, there are weights


def read_description(path: str) -> dict[str, Any]:
    """The JSON at ``path``; ``UnsupportedError`` for anything else, such as a file of the JVM's format."""
    data = read_bytes(str(path))
    try:
        found = json.loads(data)
    except (ValueError, UnicodeDecodeError):
        found = None
    if not isinstance(found, dict) or found.get("format") != _FORMAT:
        raise UnsupportedError(
            f"{path} is not a model that Firesteel saved. Files of BigDL's own (JVM) format cannot be read: "
            f"write the layers in Python, and set_weights from the JVM's get_weights"
        )
    return found


def load_model(path: str, weight_path: str | None = None) -> Layer:
    """What ``save_model`` wrote."""
    model = from_description(read_description(path))
    load_weights(model, weight_path or f"{path}.safetensors")
    return model


def load_weights(model: Layer, path: str) -> None:
    """A safetensors file's tensors, or a state dict of ``torch.save``, into a model; all of them or none."""
    data = read_bytes(str(path))
    try:
        state, _ = bench().unpack_file(data)
    except CheckpointError:
        state = bench().read_state_dict(data, str(path))
    try:
        bench().load_into(model.to_torch(), state["model"])
    except CheckpointError as error:
        raise CheckpointError(f"{path} does not fit: {error}", path=str(path)) from error
