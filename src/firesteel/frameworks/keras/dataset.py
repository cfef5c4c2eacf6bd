"""A ``tf.data.Dataset`` on its way to the replicas: as the graph that it is.

Every replica runs the same graph and takes its share of each batch, so all must see the same rows in the same order. A
shuffle without a seed gets one; and the order of an epoch is that of the dataset's iterator of that number, wherever
training goes on, for TensorFlow counts reshuffles by iterators.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from firesteel.core.errors import PlanError
from firesteel.frameworks.keras.sealed import Sealed

__all__ = ["PackedDataset", "RowsOf", "iterate"]

_CALLS_PYTHON = frozenset({"PyFunc", "EagerPyFunc", "PyFuncStateless"})
_IGNORE_STATE = 1  # external_state_policy: what is random in a map stays random


class PackedDataset:
    """A dataset's graph and the types of its elements; ``unpack`` gives a dataset again, in any process."""

    def __init__(self, dataset: Any, seed: int) -> None:
        variant = dataset._variant_tensor
        packed = tf.raw_ops.DatasetToGraphV2(input_dataset=variant, external_state_policy=_IGNORE_STATE).numpy()
        graph = tf.compat.v1.GraphDef.FromString(packed)
        if _operations(graph) & _CALLS_PYTHON:
            raise PlanError(
                "this tf.data.Dataset calls Python (from_generator, py_function), which cannot leave this process: "
                "pass a creator (config, batch_size) that makes it"
            )
        _seed_shuffles(graph, seed)
        self.is_endless = int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY
        self._graph = graph.SerializeToString()
        self._element = Sealed(dataset.element_spec)
        self._unpacked: Any = None

    def unpack(self) -> Any:
        """The dataset, the same object each time."""
        if self._unpacked is None:
            variant = tf.raw_ops.DatasetFromGraph(graph_def=self._graph)
            self._unpacked = tf.data.experimental.from_variant(variant, self._element.open())
        return self._unpacked

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_unpacked": None}


class RowsOf:
    """The creator of batches from a dataset whose elements are rows."""

    def __init__(self, packed: PackedDataset) -> None:
        self._packed = packed
        self.is_endless = packed.is_endless

    def __call__(self, config: dict[str, Any], batch_size: int) -> Any:
        """The dataset in batches of that many rows."""
        return self._packed.unpack().batch(batch_size)


def iterate(dataset: Any, epoch: int) -> Iterator[Any]:
    """Elements as NumPy, in the order of this epoch's reshuffling."""
    made = getattr(dataset, "_firesteel_passes", 0)
    wanted = epoch + 1  # the look at the first batch, before all epochs, is an iterator too
    for _ in range(made, wanted):
        iter(dataset)
    dataset._firesteel_passes = max(made, wanted) + 1
    return iter(dataset.as_numpy_iterator())


def _operations(graph: Any) -> set[str]:
    inner = {node.op for function in graph.library.function for node in function.node_def}
    return inner | {node.op for node in graph.node}


def _seed_shuffles(graph: Any, seed: int) -> None:
    """Give shuffles that have no seed this one. Zeros stand for none."""
    nodes = {node.name: node for node in graph.node}
    for node in graph.node:
        if not node.op.startswith("ShuffleDataset") and not node.op.startswith("ShuffleAndRepeatDataset"):
            continue
        seeds = [nodes[name.partition(":")[0]] for name in node.input[2:4]]
        if all(each.op == "Const" and int(tf.make_ndarray(each.attr["value"].tensor)) == 0 for each in seeds):
            for place, each in enumerate(seeds):
                # A constant of its own: the zero may be shared with others.
                own = graph.node.add()
                own.CopyFrom(each)
                own.name = f"{node.name}/firesteel_seed_{place}"
                own.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(seed + 1, dtype=tf.int64))
                node.input[2 + place] = own.name
