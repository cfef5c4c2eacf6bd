"""What a door needs to know of an opened graph to serve it: its ends, as specs; and graphs kept as checkpoints."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from firesteel.core.errors import PlanError, UnknownName
from firesteel.core.spec import TensorSpec
from firesteel.frameworks.tfgraph.sources import Opened, tensor_in

__all__ = ["newest", "open_checkpoint", "specs_of"]


def open_checkpoint(path: str) -> Opened:
    """The graph and values of a TensorFlow 1 checkpoint: the newest in a folder, or that of this prefix."""
    prefix = newest(path) if os.path.isdir(path) else path
    if prefix is None or not os.path.isfile(f"{prefix}.meta"):
        raise PlanError(f"there is no TensorFlow 1 checkpoint in {path!r}: no file that ends in .meta")
    graph = tf.Graph()
    session = tf.compat.v1.Session(graph=graph)
    with graph.as_default():
        saver = tf.compat.v1.train.import_meta_graph(f"{prefix}.meta", clear_devices=True)
        saver.restore(session, prefix)
    return Opened(graph, session)


def newest(folder: str) -> str | None:
    """The prefix of the newest checkpoint, also in a folder that was moved: TensorFlow notes where it was written."""
    state = tf.train.get_checkpoint_state(folder)
    here = None if state is None else os.path.join(folder, os.path.basename(state.model_checkpoint_path))
    if here is not None and os.path.isfile(f"{here}.meta"):
        return here
    found: str | None = tf.train.latest_checkpoint(folder)
    return found


def specs_of(opened: Opened, names: Iterable[str], side: str) -> list[TensorSpec]:
    """These ends (``side``: ``"inputs"`` or ``"outputs"``) as a row has them: dtype, and shape without the rows.

    Names are those of the signature, where there is one, else of tensors. Raises ``UnknownName`` with those there are,
    ``PlanError`` for one of which nothing is known beforehand.
    """
    known: Mapping[str, str] = getattr(opened, side)
    specs = []
    for name in names:
        if known and name not in known:
            raise UnknownName(f"tensor among the model's {side}", name, known)
        tensor: Any = tensor_in(opened.graph, known.get(name, name))
        if tensor.shape.rank is None or tensor.shape.rank == 0:
            raise PlanError(f"the tensor {name!r} does not have one entry for each row: its shape is {tensor.shape}")
        specs.append(TensorSpec(name, tensor.dtype.base_dtype.name, tuple(tensor.shape.as_list()[1:])))
    return specs
