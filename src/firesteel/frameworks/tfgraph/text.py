"""A graph as text: the MetaGraphDef that a function builds, as JSON, its loss named. Equal functions: equal text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from google.protobuf import json_format

from firesteel.core.errors import PlanError

__all__ = ["build_graph", "export_meta", "read_text", "write_text"]

_LOSS = "firesteel_loss"
_KEPT = (
    "variables",
    "trainable_variables",
    "local_variables",
    "update_ops",
    "table_initializer",
    "losses",
    "global_step",
    "cond_context",
    "while_context",
)
_PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc")


def build_graph(function: Callable[[], Any]) -> str:
    """Run ``function`` in a fresh graph; the graph as JSON text.

    Its loss is what the function returns, if that is a scalar tensor, else the first of the graph's ``LOSSES``.

    Raises:
        PlanError: neither is there, or Python functions are part of the graph, which cannot travel.
    """
    graph = tf.Graph()
    graph._firesteel_has_phases = True  # for ``tf1.layers``: the same graph is trained and scored with
    with graph.as_default():
        returned = function()
        losses = tf.compat.v1.losses.get_losses()
    loss = returned if isinstance(returned, tf.Tensor) and returned.shape.rank == 0 else None
    if loss is None:
        if not losses:
            raise PlanError(
                "the function must return its loss, a scalar tensor, or make one with tf.losses: it returned "
                f"{returned!r}, and the graph's LOSSES collection is empty"
            )
        loss = losses[0]
    if loss.graph is not graph:
        raise PlanError(f"the loss {loss.name!r} is of another graph: build everything inside the function")
    return write_text(graph, loss.name)


def write_text(graph: Any, loss: str | None = None) -> str:
    """A graph as JSON text, and the name of its loss where it has one."""
    meta = export_meta(graph)
    if loss is not None:
        meta.collection_def[_LOSS].node_list.value.append(loss)
    python = [node.name for node in _nodes(meta.graph_def) if node.op in _PYTHON]
    if python:
        raise PlanError(f"the graph has Python functions inside, which cannot travel: {', '.join(python)}")
    _rename_functions(meta.graph_def)
    return json.dumps(json_format.MessageToDict(meta), sort_keys=True)


def export_meta(graph: Any) -> Any:
    """A graph as MetaGraphDef, with its variables and old-style loops, without the rest of its collections."""
    from tensorflow.python.framework import meta_graph

    with graph.as_default():
        meta, _ = meta_graph.export_scoped_meta_graph(graph=graph, clear_devices=True, collection_list=_KEPT)
    meta.meta_info_def.Clear()
    return meta


def read_text(text: str) -> tuple[Any, str | None]:
    """The MetaGraphDef of a text, and its loss's name; ``None`` for one that was written without."""
    meta = tf.compat.v1.MetaGraphDef()
    try:
        json_format.Parse(text, meta)
        named = list(meta.collection_def[_LOSS].node_list.value)
        del meta.collection_def[_LOSS]
    except (json_format.ParseError, KeyError, ValueError) as error:
        raise PlanError(f"this is no graph that build_graph made: {error}") from error
    return meta, str(named[0]) if named else None


def _nodes(graph_def: Any) -> list[Any]:
    return [*graph_def.node, *(node for function in graph_def.library.function for node in function.node_def)]


def _rename_functions(graph_def: Any) -> None:
    """Number the functions by where they stand: TensorFlow's own numbers go on counting through the whole process."""
    names: dict[str, str] = {}
    for function in graph_def.library.function:
        stem = re.sub(r"_\d+(_rewritten)?$", "", function.signature.name).removeprefix("__inference_")
        names[function.signature.name] = f"{stem}_f{len(names)}"
    for function in graph_def.library.function:
        function.signature.name = names[function.signature.name]
        function.attr.pop("_original_func_name", None)
    for node in _nodes(graph_def):
        node.op = names.get(node.op, node.op)
        for value in node.attr.values():
            for called in ([value.func] if value.HasField("func") else []) + list(value.list.func):
                called.name = names.get(called.name, called.name)
    for gradient in graph_def.library.gradient:
        gradient.function_name = names.get(gradient.function_name, gradient.function_name)
        gradient.gradient_func = names.get(gradient.gradient_func, gradient.gradient_func)
