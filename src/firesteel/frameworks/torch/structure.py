"""A module's structure as JSON: classes by their import path, plain attributes, shapes. Weights stay outside.

A module is put together again without calling its class's constructor, whose arguments nobody knows any more: its
attributes are what they were, and its parameters are loaded. What cannot be said in JSON is refused by name.
"""

from __future__ import annotations

import importlib
import inspect
import math
from typing import Any

import torch
from torch import nn

from firesteel.core.errors import CheckpointError, PlanError
from firesteel.core.imports import follow, path_of

__all__ = ["describe", "rebuild"]

_OWN = set(nn.Module().__dict__)
_RNN_ARGUMENTS = ("input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional")
_MAX_DEPTH = 32


def describe(module: nn.Module) -> dict[str, Any]:
    """The structure of a module. ``PlanError`` names what cannot be saved. Driver only."""
    return _Describer(module).describe(module, "")


def rebuild(structure: dict[str, Any]) -> nn.Module:
    """The module of a structure, with parameters to be loaded. ``CheckpointError`` where a class is not found."""
    found = _Rebuilder()
    module = found.rebuild(structure, "")
    for path, first in found.ties:
        owner, _, name = path.rpartition(".")
        _of(module, owner)._parameters[name] = module.get_parameter(first)
    return module


class _Describer:
    def __init__(self, root: nn.Module) -> None:
        self._modules: dict[int, str] = {}
        self._parameters: dict[int, str] = {}
        self._root = root

    def describe(self, module: nn.Module, path: str) -> dict[str, Any]:
        if id(module) in self._modules:
            return {"same": self._modules[id(module)]}
        self._modules[id(module)] = path
        where = f"{type(module).__qualname__}" + (f" ({path})" if path else "")
        kind = path_of(type(module))
        if kind is None or isinstance(module, torch.jit.ScriptModule):
            raise PlanError(f"the class of {where} cannot be found by an import path: define it in a module")
        self._check_hooks(module, where)
        found: dict[str, Any] = {"class": kind, "training": module.training}
        if isinstance(module, nn.RNNBase):
            # These hold weak references to their parameters: only their constructor makes them.
            found["arguments"] = {name: getattr(module, name) for name in _RNN_ARGUMENTS}
            if module.proj_size:
                found["arguments"]["proj_size"] = module.proj_size
            if type(module) is nn.RNN:
                found["arguments"]["nonlinearity"] = module.nonlinearity
        else:
            attributes = {name: value for name, value in vars(module).items() if name not in _OWN}
            found["attributes"] = {name: _encode(value, f"{where}.{name}", 0) for name, value in attributes.items()}
            found["buffers"] = {
                name: None if value is None else [list(value.shape), _dtype(value), name not in _passing(module)]
                for name, value in module._buffers.items()
            }
            self._check_passing(module, where)
        found["parameters"] = {name: self._parameter(value, path, name) for name, value in module._parameters.items()}
        found["modules"] = {
            name: None if each is None else self.describe(each, f"{path}.{name}" if path else name)
            for name, each in module._modules.items()
        }
        return found

    def _parameter(self, value: nn.Parameter | None, path: str, name: str) -> Any:
        if value is None:
            return None
        if isinstance(value, nn.parameter.UninitializedParameter):
            raise PlanError(f"parameter {name!r} has no shape yet: the model must have seen a batch")
        whole = f"{path}.{name}" if path else name
        first = self._parameters.setdefault(id(value), whole)
        if first != whole:
            return {"same": first}
        return [list(value.shape), _dtype(value), value.requires_grad]

    @staticmethod
    def _check_hooks(module: nn.Module, where: str) -> None:
        hooks = [name for name in _OWN if name.endswith("_hooks") and getattr(module, name, None)]
        if hooks:
            raise PlanError(f"{where} has hooks ({', '.join(hooks)}), which cannot be saved")

    @staticmethod
    def _check_passing(module: nn.Module, where: str) -> None:
        lost = [name for name in _passing(module) if module._buffers.get(name) is not None]
        if lost:
            raise PlanError(f"{where} has buffers that it does not save: {', '.join(lost)}")


class _Rebuilder:
    def __init__(self) -> None:
        self.ties: list[tuple[str, str]] = []
        self._made: dict[str, nn.Module] = {}

    def rebuild(self, structure: dict[str, Any], path: str) -> nn.Module:
        if "same" in structure:
            return self._made[structure["same"]]
        kind = follow(structure["class"])
        if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
            raise CheckpointError(f"{structure['class']} is no torch module")
        module = kind(**structure["arguments"]) if "arguments" in structure else self._bare(kind, structure)
        self._made[path] = module
        module.training = structure["training"]
        for name, about in structure["parameters"].items():
            whole = f"{path}.{name}" if path else name
            if isinstance(about, dict):
                self.ties.append((whole, about["same"]))
                module._parameters[name] = None
            elif about is None:
                module._parameters[name] = None
            elif "arguments" in structure:
                module._parameters[name].requires_grad_(about[2])
            else:
                shape, dtype, requires_grad = about
                value = torch.zeros(shape, dtype=getattr(torch, dtype))
                module._parameters[name] = nn.Parameter(value, requires_grad=requires_grad)
        for name, each in structure["modules"].items():
            inner = f"{path}.{name}" if path else name
            module._modules[name] = None if each is None else self.rebuild(each, inner)
        return module

    @staticmethod
    def _bare(kind: type[nn.Module], structure: dict[str, Any]) -> nn.Module:
        module = kind.__new__(kind)
        nn.Module.__init__(module)
        for name, value in structure["attributes"].items():
            object.__setattr__(module, name, _decode(value))
        for name, about in structure["buffers"].items():
            value = None if about is None else torch.zeros(about[0], dtype=getattr(torch, about[1]))
            module.register_buffer(name, value, persistent=about is None or about[2])
        return module


def _of(module: nn.Module, path: str) -> nn.Module:
    return module.get_submodule(path) if path else module


def _passing(module: nn.Module) -> set[str]:
    return module._non_persistent_buffers_set


def _dtype(value: torch.Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def _encode(value: Any, where: str, depth: int) -> Any:
    """A plain value as JSON; kinds that JSON does not have are dicts of one entry."""
    if depth > _MAX_DEPTH:
        raise PlanError(f"{where} is nested too deep to be saved")
    if value is None or isinstance(value, (bool, str)) or type(value) is int:
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, torch.Size):
        return {"size": list(value)}
    if type(value) in (list, tuple, set, frozenset):
        return {type(value).__name__: [_encode(each, where, depth + 1) for each in value]}
    if isinstance(value, dict):
        pairs = [[_encode(key, where, depth + 1), _encode(each, where, depth + 1)] for key, each in value.items()]
        return {"dict": pairs}
    if inspect.isroutine(value) or isinstance(value, type):
        path = path_of(value) or _torch_path(value)
        if path is not None:
            return {"import": path}
    raise PlanError(f"{where} is a {type(value).__qualname__}, which cannot be saved without pickle")


def _torch_path(function: Any) -> str | None:
    """A builtin of torch, which does not know its module: ``torch.relu``, ``torch.nn.functional.gelu``."""
    name = getattr(function, "__name__", "")
    for module in ("torch", "torch.nn.functional"):
        if name and getattr(importlib.import_module(module), name, None) is function:
            return f"{module}:{name}"
    return None


def _decode(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "float":
        return float(content)
    if kind == "dtype":
        return getattr(torch, content)
    if kind == "device":
        return torch.device(content)
    if kind == "size":
        return torch.Size(content)
    if kind == "dict":
        return {_decode(key): _decode(each) for key, each in content}
    if kind == "import":
        return follow(content)
    makers: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
    return makers[kind](_decode(each) for each in content)
