"""A module as a graph of torch's own operators, in JSON: it computes without the module's class, and can only compute.

For modules whose class nobody else can import. The graph is that of ``torch.export``; weights stay outside, by name.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from firesteel.core.errors import CheckpointError, PlanError

__all__ = ["ExportedModule", "export_module", "open_exported"]

_ROWS = 3  # as an example: 0 and 1 are special to torch.export


def export_module(
    model: nn.Module, inputs: Sequence[tuple[Sequence[int], str]]
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The graph of ``model`` in evaluation mode, and its weights by name.

    It takes inputs of these row shapes and dtypes, and any number of rows.

    Raises:
        PlanError: what the module does depends on values, or on more than tensors.
    """
    rows = torch.export.Dim("rows", min=1)
    arrays = tuple(torch.from_numpy(np.zeros((_ROWS, *shape), dtype)) for shape, dtype in inputs)
    was_training = model.training
    model.eval()
    try:
        program = torch.export.export(model, arrays, dynamic_shapes=tuple({0: rows} for _ in arrays))
    except Exception as error:
        raise PlanError(
            f"{type(model).__qualname__} can be saved neither by its class, which cannot be imported, nor as a graph: "
            f"{str(error).strip().splitlines()[0]}. Define the class in a module"
        ) from error
    finally:
        model.train(was_training)
    return _graph_of(program, type(model).__qualname__)


def open_exported(path: str) -> ExportedModule:
    """The program that ``torch.export.save`` wrote; ``PlanError`` where there is none, or one that cannot be held."""
    try:
        program = torch.export.load(path)
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise PlanError(f"{path} is no program of torch.export: {lines[0]}") from error
    graph, weights = _graph_of(program, path)
    module = ExportedModule(graph)
    module.load_state_dict({key: value.detach() for key, value in weights.items()})
    return module


def _graph_of(program: Any, name: str) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    signature = program.graph_signature
    weights = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    state = {**program.state_dict, **program.constants}
    weights |= signature.inputs_to_lifted_tensor_constants
    nodes = []
    for node in program.graph.nodes:
        if node.op == "placeholder":
            about = {"weight": weights[node.name]} if node.name in weights else {"input": True}
            nodes.append({"name": node.name, **about})
        elif node.op == "call_function":
            inner = {"args": _encode(node.args), "kwargs": {key: _encode(value) for key, value in node.kwargs.items()}}
            nodes.append({"name": node.name, "call": _target(node.target), **inner})
        elif node.op == "output":
            nodes.append({"name": node.name, "result": _encode(node.args[0])})
        else:
            raise PlanError(f"the graph of {name} has a part that cannot be saved: {node.op}")
    shapes = {name: [list(state[name].shape), _dtype(state[name].dtype)] for name in weights.values()}
    is_single = len(signature.user_outputs) == 1
    return {"nodes": nodes, "weights": shapes, "is_single": is_single}, {name: state[name] for name in shapes}


class ExportedModule(nn.Module):
    """Runs a graph that ``export_module`` gave. Its weights have their old names, with dots as they were."""

    def __init__(self, graph: dict[str, Any]) -> None:
        super().__init__()
        self.graph = graph
        self._values = {
            name: torch.zeros(shape, dtype=getattr(torch, dtype)) for name, (shape, dtype) in graph["weights"].items()
        }

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
        """The weights."""
        return dict(self._values)

    def load_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        """Take some or all of the weights over; ``RuntimeError`` where they are others, as torch has it."""
        for name, value in state_dict.items():
            if name not in self._values or value.shape != self._values[name].shape:
                raise RuntimeError(f"the graph has no weight {name} of shape {tuple(value.shape)}")
        self._values |= {name: value.clone() for name, value in state_dict.items()}

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Outputs for these rows."""
        known: dict[str, Any] = {}
        given = iter(inputs)
        for node in self.graph["nodes"]:
            if "weight" in node:
                known[node["name"]] = self._values[node["weight"]]
            elif "input" in node:
                known[node["name"]] = next(given)
            elif "call" in node:
                args = _decode(node["args"], known)
                kwargs = {key: _decode(value, known) for key, value in node["kwargs"].items()}
                known[node["name"]] = _function(node["call"])(*args, **kwargs)
            else:
                found = _decode(node["result"], known)
                return found[0] if self.graph["is_single"] else found
        raise CheckpointError("a graph without outputs")


def _target(target: Any) -> str:
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    name = getattr(target, "__name__", "")
    if getattr(operator, name, None) is target:
        return f"operator.{name}"
    if getattr(torch, name, None) is target:
        return f"torch.{name}"
    raise PlanError(f"the graph calls {target}, which cannot be saved")


@functools.cache
def _function(name: str) -> Any:
    room, _, rest = name.partition(".")
    if room in ("operator", "torch"):
        return getattr(operator if room == "operator" else torch, rest)
    found: Any = getattr(torch.ops, room)
    for part in rest.split("."):
        found = getattr(found, part)
    return found


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _encode(value: Any) -> Any:
    if isinstance(value, torch.fx.Node):
        return {"node": value.name}
    if value is None or isinstance(value, (bool, str)) or type(value) in (int, float):
        return value if value == value and value not in (float("inf"), float("-inf")) else {"float": repr(value)}
    if isinstance(value, (list, tuple)):
        return [_encode(each) for each in value]
    kinds = {torch.dtype: "dtype", torch.layout: "layout", torch.memory_format: "memory_format"}
    for kind, name in kinds.items():
        if isinstance(value, kind):
            return {name: str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    raise PlanError(f"the graph holds a {type(value).__qualname__}, which cannot be saved")


def _decode(value: Any, known: dict[str, Any]) -> Any:
    if isinstance(value, list):
        return [_decode(each, known) for each in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "node":
        return known[content]
    if kind == "float":
        return float(content)
    return torch.device(content) if kind == "device" else getattr(torch, content)
