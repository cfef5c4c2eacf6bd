"""The user's session: made, read, set, saved and restored without an op added to its graph."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from firesteel.core.errors import CheckpointError, PlanError
from firesteel.frameworks.tfgraph import variables
from firesteel.frameworks.tfgraph.program import values_of
from firesteel.frameworks.tfgraph.sources import Opened
from firesteel.frameworks.tfgraph.state import unpack
from firesteel.frameworks.tfgraph.text import export_meta

__all__ = [
    "export_training",
    "load_session",
    "read_session",
    "restore_checkpoint",
    "save_checkpoint",
    "start_session",
    "state_names",
]

Array = npt.NDArray[Any]


def start_session(graph: Any, seed: int | None, config: Any = None) -> Any:
    """A session with all variables initialized, the random ones by ``seed``, and tables too."""
    known = variables.known_variables(graph)
    values = values_of(Opened(graph, is_ours=False), graph.as_graph_def(), list(known), seed=seed)
    session = tf.compat.v1.Session(graph=graph, config=config)
    variables.load(graph, session, values)
    session.run(graph.get_collection(tf.compat.v1.GraphKeys.TABLE_INITIALIZERS))
    return session


def read_session(session: Any) -> dict[str, Array]:
    """Values of all variables that have one."""
    ops = variables.find(session.graph, variables.known_variables(session.graph))
    return variables.read(session.graph, session, ops)[0]


def load_session(session: Any, model: bytes) -> None:
    """Put a packed state into a session's variables; one that does not fit changes nothing."""
    values = unpack(model)
    known = variables.known_variables(session.graph)
    _check(values, known)
    variables.load(session.graph, session, values)


def state_names(model: bytes) -> list[str]:
    """The variables that a packed state has."""
    return sorted(unpack(model))


def save_checkpoint(path: str, session: Any, beside: Mapping[str, Array]) -> None:
    """A TensorFlow checkpoint of the session's variables, and of arrays ``beside``: what a ``Saver`` restores."""
    folder = os.path.dirname(os.path.abspath(path))
    os.makedirs(folder, exist_ok=True)
    names = {variable.op.name: variable._shared_name for variable in variables.known_variables(session.graph).values()}
    values = {names[name]: value for name, value in read_session(session).items()} | dict(beside)
    graph = tf.Graph()
    with graph.as_default(), tf.compat.v1.Session(graph=graph) as scratch:
        given = {name: tf.compat.v1.placeholder(value.dtype, value.shape) for name, value in values.items()}
        # Saved in one piece under another name, then renamed file by file, the index last: without it there is none.
        part = f"{path}.part"
        op = tf.raw_ops.SaveV2(
            prefix=part,
            tensor_names=list(given),
            shape_and_slices=[""] * len(given),
            tensors=list(given.values()),
        )
        scratch.run(op, {given[name]: value for name, value in values.items()})
    for ending in (".data-00000-of-00001", ".index"):
        os.replace(part + ending, path + ending)
    name = os.path.basename(path)
    newest = f'model_checkpoint_path: "{name}"\nall_model_checkpoint_paths: "{name}"\n'
    _write(f"{path}.meta", export_meta(session.graph).SerializeToString())
    _write(os.path.join(folder, "checkpoint"), newest.encode())


def export_training(
    folder: str,
    session: Any,
    ends: Mapping[str, Sequence[Any]],
    metrics: Mapping[str, Any],
    flags: Mapping[Any, tuple[Any, Any]],
) -> None:
    """A graph with what is needed to train it elsewhere: names as JSON, the graph, a checkpoint of the variables."""
    everything = [*(each for part in ends.values() for each in part), *metrics.values(), *flags]
    for each in everything:
        if each.graph is not session.graph:
            raise PlanError(f"{each.name!r} is of another graph than the session")
    meta = {name: [each.name for each in part] for name, part in ends.items()}
    facts = {
        **meta,
        "loss": meta["loss"][0],
        "metrics": {name: tensor.name for name, tensor in metrics.items()},
        "tensor_with_value": {tensor.name: list(pair) for tensor, pair in flags.items()},
        "variables": sorted(read_session(session)),
    }
    os.makedirs(folder, exist_ok=True)
    save_checkpoint(os.path.join(folder, "model"), session, {})
    _write(os.path.join(folder, "training_meta.json"), json.dumps(facts, indent=1).encode())


def _write(path: str, data: bytes) -> None:
    with open(f"{path}.part", "wb") as file:
        file.write(data)
    os.replace(f"{path}.part", path)


def restore_checkpoint(path: str, session: Any, prefix: str) -> dict[str, Array]:
    """Set the session's variables from a checkpoint (its prefix, or the folder it is the newest of).

    Returns:
        The checkpoint's other arrays whose names begin with ``prefix``, by the rest of their names.
    """
    found = tf.train.latest_checkpoint(path) if os.path.isdir(path) else path
    try:
        reader = tf.train.load_checkpoint(found or path)
    except (tf.errors.OpError, ValueError) as error:
        raise CheckpointError(f"there is no TensorFlow checkpoint at {path}: {error}", path=path) from error
    there = reader.get_variable_to_shape_map()
    objects = variables.known_variables(session.graph)
    known = {variable._shared_name: name for name, variable in objects.items()}
    values = {known[name]: np.asarray(reader.get_tensor(name)) for name in there if name in known}
    _check(values, objects, path)
    variables.load(session.graph, session, values)
    beside = [name for name in there if name.startswith(prefix)]
    return {name.removeprefix(prefix): np.asarray(reader.get_tensor(name)) for name in beside}


def _check(values: Mapping[str, Array], known: Mapping[str, Any], path: str | None = None) -> None:
    where = "" if path is None else f"{path}: "
    extra, missing = sorted(values.keys() - known.keys()), sorted(known.keys() - values.keys())
    if extra or (missing and path is not None):
        raise CheckpointError(
            f"{where}these are the variables of another graph: missing are {', '.join(missing) or 'none'}, "
            f"too many are {', '.join(extra) or 'none'}",
            path=path,
        )
    for name, value in values.items():
        if not known[name].shape.is_compatible_with(value.shape):
            raise CheckpointError(
                f"{where}variable {name!r} has shape {known[name].shape}, its value {value.shape}", path=path
            )
