"""Whatever holds a graph, opened: tensors of a live graph, a frozen GraphDef, a SavedModel, a ``tf.function``, a text.

All become one thing, ``Opened``: a graph, the values of its variables as far as there are any, and the names by which
its ends are known.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import numpy.typing as npt
import tensorflow as tf

from firesteel.core.errors import PlanError, UnknownName
from firesteel.frameworks.tfgraph.text import read_text

__all__ = [
    "Opened",
    "is_function",
    "is_symbolic",
    "open_function",
    "open_graph",
    "open_graph_def",
    "open_saved_model",
    "open_tensors",
    "open_text",
    "tensor_in",
]

_INIT_SIGNATURE = "__saved_model_init_op"


@dataclass
class Opened:
    """A graph and what is known of it.

    Attributes:
        graph: where the ops are.
        session: holds variables' values; ``None`` where nobody has set any.
        values: values of variables that are in no session, by the names of their ops.
        inputs: names of the graph's ends, and their tensors' names, where the source says so.
        outputs: likewise.
        starters: ops to be run once before anything else, and what to feed them (a SavedModel's assets).
        starter_feeds: see there.
        loss: the tensor that the source calls its loss.
        is_ours: whether ops may be added: not to a user's graph.
    """

    graph: Any
    session: Any = None
    values: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    starters: list[str] = field(default_factory=list)
    starter_feeds: dict[str, str] = field(default_factory=dict)
    loss: str | None = None
    is_ours: bool = True


def is_symbolic(value: object) -> bool:
    """A tensor of a graph, not one that has its value already."""
    return isinstance(value, tf.Tensor) and hasattr(value, "graph") and not hasattr(value, "_numpy")


def is_function(value: object) -> bool:
    """A ``tf.function``, or one of its traces."""
    return hasattr(value, "get_concrete_function") or hasattr(value, "captured_inputs")


def open_graph(model: Any, session: Any = None) -> Opened:
    """The right one of the functions below, by what ``model`` is."""
    if isinstance(model, Opened):
        return model
    if isinstance(model, tf.Graph):
        return Opened(model, session, is_ours=False)
    if isinstance(model, tf.compat.v1.GraphDef | bytes):
        return open_graph_def(model)
    if isinstance(model, str) and model.lstrip().startswith("{"):
        return open_text(model)
    if isinstance(model, (str, os.PathLike)):
        path = os.fspath(model)
        return open_saved_model(path) if os.path.isdir(path) else open_graph_def(path)
    if is_function(model):
        return open_function(model)
    return open_tensors(tf.nest.flatten(model), session)


def open_tensors(tensors: Iterable[Any], session: Any = None) -> Opened:
    """Tensors and operations of one graph."""
    graph = None
    for each in tensors:
        own = None if each is None or hasattr(each, "_numpy") else getattr(each, "graph", None)
        if own is None:
            raise PlanError(f"a tensor of a graph is needed, not {_kind(each)}")
        if graph is not None and own is not graph:
            raise PlanError(f"tensors are of two graphs: {each.name!r} is not in the graph of the others")
        graph = own
    if graph is None:
        raise PlanError("there is no tensor to tell the graph by")
    if session is not None and session.graph is not graph:
        raise PlanError("the session is of another graph than the tensors")
    return Opened(graph, session, is_ours=False)


def open_graph_def(model: Any) -> Opened:
    """A frozen graph: a GraphDef, its bytes, or the path of a ``.pb`` file."""
    if isinstance(model, str):
        if not os.path.isfile(model):
            raise PlanError(f"there is no file {model!r} to read a frozen graph from")
        with open(model, "rb") as file:
            model = file.read()
    if isinstance(model, bytes):
        data, model = model, tf.compat.v1.GraphDef()
        try:
            model.ParseFromString(data)
        except Exception as error:  # protobuf's class for it depends on how protobuf was built
            raise PlanError(f"this is no serialized GraphDef: {error}") from error
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(model, name="")
    return Opened(graph)


def open_text(text: str) -> Opened:
    """What ``build_graph`` returned. Variables have no values yet: their initializers give them."""
    meta, loss = read_text(text)
    return Opened(import_meta(meta), loss=loss)


def open_saved_model(path: str, tag: str | Sequence[str] | None = None, signature: str | None = None) -> Opened:
    """A SavedModel of TensorFlow 1 or 2, by a signature (``serving_default``); inputs sorted by their keys."""
    tags = [tag] if isinstance(tag, str) else list(tag or ["serve"])
    if not os.path.isfile(os.path.join(path, "saved_model.pb")):
        raise PlanError(f"there is no SavedModel in {path!r}: no file saved_model.pb")
    graph = tf.Graph()
    session = tf.compat.v1.Session(graph=graph)
    with graph.as_default():
        from tensorflow.python.saved_model.loader_impl import SavedModelLoader  # the public one warns of its age

        try:
            meta = SavedModelLoader(path).load(session, tags)
        except RuntimeError as error:
            raise PlanError(f"the SavedModel in {path!r} has no graph tagged {', '.join(tags)}: {error}") from error
    known = [name for name in meta.signature_def if name != _INIT_SIGNATURE]
    wanted = signature or "serving_default"
    opened = Opened(graph, session)
    if wanted in known:
        ends = meta.signature_def[wanted]
        opened.inputs = {key: ends.inputs[key].name for key in sorted(ends.inputs)}
        opened.outputs = {key: ends.outputs[key].name for key in sorted(ends.outputs)}
    elif signature is not None:
        raise UnknownName("signature", signature, known)
    if _INIT_SIGNATURE in meta.signature_def:
        opened.starters = [each.name for each in meta.signature_def[_INIT_SIGNATURE].outputs.values()]
    for asset in meta.asset_file_def:
        opened.starter_feeds[asset.tensor_info.name] = os.path.join(path, "assets", asset.filename)
    return opened


def open_function(function: Any, *specs: Any) -> Opened:
    """A ``tf.function`` or a trace of one. ``specs``: what it is traced for, where it has no signature of its own."""
    if hasattr(function, "get_concrete_function"):
        try:
            function = function.get_concrete_function(*specs)
        except (TypeError, ValueError) as error:
            raise PlanError(f"the tf.function cannot be traced without more said of its inputs: {error}") from error
    captures = list(function.graph.captures)
    variables = {id(variable.handle): variable for variable in function.variables}
    opened = Opened(tf.Graph())
    # Outside the new graph, where these tensors have values.
    constants = {id(outer): outer.numpy() for outer, _ in captures if outer.dtype != tf.resource}
    values = {key: variable.numpy() for key, variable in variables.items()}
    with opened.graph.as_default():
        inner: dict[str, Any] = {}
        for outer, placeholder in captures:
            if id(outer) in constants:
                inner[placeholder.name] = tf.constant(constants[id(outer)])
                continue
            variable = variables.get(id(outer))
            if variable is None:
                raise PlanError("the tf.function uses a lookup table or another resource, which cannot travel with it")
            # Handles of one shared name are one variable, and no name is a name too.
            own = opened.graph.unique_name(f"variables/{_plain_name(variable.name)}", mark_as_used=False)
            handle = tf.raw_ops.VarHandleOp(dtype=variable.dtype, shape=variable.shape, shared_name=own, name=own)
            opened.values[handle.op.name] = values[id(outer)]
            inner[placeholder.name] = handle
        tf.import_graph_def(function.graph.as_graph_def(), input_map=inner, name="")
    fed = function.inputs[: len(function.inputs) - len(captures)]
    opened.inputs = dict(zip(_parameters(function, len(fed)), (each.name for each in fed), strict=True))
    opened.outputs = {name: tensor.name for name, tensor in _results(function).items()}
    return opened


def import_meta(meta: Any) -> Any:
    """A fresh graph from a MetaGraphDef, its variables and old-style loops included."""
    from tensorflow.python.framework import meta_graph  # the public import_meta_graph makes a Saver, which adds ops

    graph = tf.Graph()
    with graph.as_default():
        meta_graph.import_scoped_meta_graph(meta, clear_devices=True)
    return graph


def tensor_in(graph: Any, tensor: Any) -> Any:
    """A tensor of this graph by itself or by its name; ``PlanError`` names those that are near."""
    if not isinstance(tensor, str):
        if getattr(tensor, "graph", None) is not graph or hasattr(tensor, "_numpy"):
            raise PlanError(f"a tensor of this graph is needed, not {_kind(tensor)}")
        return tensor
    name = tensor if ":" in tensor else f"{tensor}:0"
    try:
        return graph.get_tensor_by_name(name)
    except (KeyError, ValueError):
        there = [each.name for op in graph.get_operations() for each in op.outputs]
        near = get_close_matches(name, there, 8, 0.4)
        fed = [op.outputs[0].name for op in graph.get_operations() if op.type.startswith("Placeholder")]
        raise UnknownName("tensor", tensor, dict.fromkeys([*near, *fed[:8]])) from None


def _plain_name(name: str) -> str:
    return name.partition(":")[0] or "variable"


def _parameters(function: Any, count: int) -> list[str]:
    """A function's parameter names, or where a parameter holds several tensors, their own."""
    args, kwargs = function.structured_input_signature
    if count == len(tf.nest.flatten((args, kwargs))):
        names = list(function.function_type.parameters)
        if len(names) == count and len(set(names)) == count:
            return names
    return [_plain_name(each.name) for each in function.inputs[:count]]


def _results(function: Any) -> dict[str, Any]:
    """Outputs by dict keys, by a named tuple's fields, by place, or by the function's own name."""
    made = function.structured_outputs
    flat = function.outputs
    if isinstance(made, Mapping):
        names = [str(name) for name in sorted(made)]  # as TensorFlow flattens a dict
    elif hasattr(made, "_fields"):
        names = list(made._fields)
    elif isinstance(made, (list, tuple)):
        names = [f"_{place}" for place in range(len(flat))]
    else:
        names = [function.function_type_name if hasattr(function, "function_type_name") else _own_name(function)]
    if len(names) != len(flat):
        names = [f"_{place}" for place in range(len(flat))]
    return dict(zip(names, flat, strict=True))


def _own_name(function: Any) -> str:
    name = function.name.decode() if isinstance(function.name, bytes) else str(function.name)
    return name.removeprefix("__inference_").rpartition("_")[0] or name


def _kind(value: object) -> str:
    named = f" named {value.name!r}" if isinstance(getattr(value, "name", None), str) else ""
    return f"{type(value).__module__}.{type(value).__qualname__}{named}"
