"""Graphs that were trained elsewhere: checkpoints, SavedModels, frozen graphs, Keras files; and one for others."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from firesteel.core.errors import PlanError
from firesteel.core.program import Program
from firesteel.frameworks.tfgraph import variables
from firesteel.frameworks.tfgraph.replica import GraphReplica
from firesteel.frameworks.tfgraph.serving import newest
from firesteel.frameworks.tfgraph.sources import Opened, import_meta, open_function, open_graph_def, open_saved_model

__all__ = ["open_elsewhere", "save_saved_model"]


def open_elsewhere(path: str) -> Opened:
    """A model by its place, whatever it is.

    A checkpoint's prefix with a ``.meta`` file beside it is that very checkpoint; a folder with a ``checkpoint`` file
    stands for the latest one in it; other folders are SavedModels, files frozen graphs or Keras models.
    """
    if os.path.isfile(f"{path}.meta"):
        return _open_checkpoint(path)
    if os.path.isfile(os.path.join(path, "saved_model.pb")):
        return open_saved_model(path)
    if os.path.isfile(os.path.join(path, "checkpoint")):
        latest = newest(path)
        if latest is None or not os.path.isfile(f"{latest}.meta"):
            raise PlanError(f"the folder {path!r} names the checkpoint {latest!r}, and there is no {latest}.meta")
        return _open_checkpoint(latest)
    if path.endswith(".keras") and os.path.isfile(path):
        return _open_keras(path)
    if os.path.isfile(path):
        return open_graph_def(path)
    raise PlanError(
        f"there is no model at {path!r}: give a checkpoint's prefix (with its .meta file), a folder with a checkpoint "
        f"file, a SavedModel's folder, a frozen .pb or a .keras file"
    )


def save_saved_model(program: Program, path: str) -> None:
    """Write a program that scores as a SavedModel with one signature, ``serving_default``; variables become constants.

    Raises:
        FileExistsError: something is there already.
    """
    if os.path.exists(path):
        raise FileExistsError(f"{path} exists already; remove it, or choose another place")
    replica = GraphReplica(program, threads=0)
    values = replica.values()
    graph_def = replica.graph.as_graph_def()
    ends = program.content.ends
    graph = tf.Graph()
    with graph.as_default():
        fixed = {
            name: tf.constant(value, replica.graph.get_tensor_by_name(name).dtype) for name, value, _ in ends.flags
        }
        fixed |= {tensor: tf.constant(values[name]) for tensor, name in _reads(graph_def, values).items()}
        tf.import_graph_def(graph_def, input_map=fixed, name="")
        inputs = {feed.name: graph.get_tensor_by_name(feed.tensor) for feed in ends.feeds}
        found = {name: graph.get_tensor_by_name(tensor) for name, tensor in ends.outputs}
        frozen = tf.compat.v1.graph_util.extract_sub_graph(
            graph.as_graph_def(), [each.op.name for each in found.values()]
        )
    replica.close()
    _write(frozen, path, {k: v.name for k, v in inputs.items()}, {k: v.name for k, v in found.items()})


def _reads(graph_def: Any, values: Mapping[str, Any]) -> dict[str, str]:
    """Tensors that are a variable's value → the variable's name."""
    found = {}
    for node in graph_def.node:
        if node.op == "ReadVariableOp" and node.input[0].partition(":")[0] in values:
            found[f"{node.name}:0"] = node.input[0].partition(":")[0]
        elif node.op in ("VariableV2", "Variable") and node.name in values:
            found[f"{node.name}:0"] = node.name
    return found


def _write(graph_def: Any, path: str, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> None:
    graph = tf.Graph()
    with graph.as_default(), tf.compat.v1.Session(graph=graph) as session:
        tf.import_graph_def(graph_def, name="")
        ends = [{key: graph.get_tensor_by_name(name) for key, name in part.items()} for part in (inputs, outputs)]
        builder = tf.compat.v1.saved_model.Builder(path)
        signature = tf.compat.v1.saved_model.predict_signature_def(*ends)
        builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": signature})
        builder.save()


def _open_checkpoint(prefix: str) -> Opened:
    """Exactly this checkpoint, never a later one; every variable that it holds."""
    meta = tf.compat.v1.MetaGraphDef()
    with open(f"{prefix}.meta", "rb") as file:
        meta.ParseFromString(file.read())
    graph = import_meta(meta)
    reader = tf.train.load_checkpoint(prefix)
    kept = reader.get_variable_to_shape_map()
    known = variables.known_variables(graph)
    found = {}
    for name, variable in known.items():
        for key in (name, getattr(variable, "_shared_name", name)):
            if key in kept:
                found[name] = np.asarray(reader.get_tensor(key))
                break
    return Opened(graph, values=found)


def _open_keras(path: str) -> Opened:
    import keras

    if keras.backend.backend() != "tensorflow":
        raise PlanError(
            f"a .keras file becomes a graph where Keras runs on TensorFlow, not on {keras.backend.backend()}"
        )
    model = keras.saving.load_model(path, compile=False)
    specs = [tf.TensorSpec((None, *tensor.shape[1:]), tensor.dtype, tensor.name) for tensor in model.inputs]

    def outputs(*inputs: Any) -> Any:
        return model(inputs[0] if len(inputs) == 1 else list(inputs), training=False)

    opened = open_function(tf.function(outputs, autograph=False), *specs)
    opened.inputs = _by_layer(model.inputs, opened.inputs.values())
    opened.outputs = _by_layer(model.outputs, opened.outputs.values())
    return opened


def _by_layer(tensors: Any, names: Iterable[str]) -> dict[str, str]:
    """Tensors' names in the graph by their names in Keras, and by those of the layers that they are of."""
    found = {}
    for tensor, name in zip(tensors, names, strict=True):
        found |= {tensor.name: name, tensor._keras_history.operation.name: name}
    return found
