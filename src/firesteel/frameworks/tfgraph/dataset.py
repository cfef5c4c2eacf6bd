"""A ``tf.data.Dataset`` as its graph, run by a session of its own in each replica.

Every replica runs the same graph and takes its part of each batch, so all must see the same rows in the same order:
shuffles without a seed get one that is a function of seed and epoch. A function that makes the dataset serves as well:
it is called where the rows are needed, and may then hold Python of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from firesteel.core.errors import PlanError
from firesteel.core.spec import Batch
from firesteel.frameworks.tfgraph.cutting import cut, needed, op_of

__all__ = ["DatasetMaker", "GraphDataset", "components", "is_dataset", "made_by", "pack_dataset", "spec_of"]

_PYTHON = frozenset({"PyFunc", "EagerPyFunc", "PyFuncStateless"})
_SEED = "firesteel/shuffle_seed"
_IGNORE_STATE = 1  # external_state_policy: what is random in a map stays random


def is_dataset(value: object) -> bool:
    """A ``tf.data.Dataset`` of any age, or one that is packed."""
    names = {(cls.__module__.partition(".")[0], cls.__name__) for cls in type(value).__mro__}
    return ("tensorflow", "DatasetV2") in names or isinstance(value, (GraphDataset, DatasetMaker))


def components(dataset: Any) -> list[Any]:
    """What an element holds, flat: dtypes and shapes. Only dense tensors can become rows."""
    flat = tf.nest.flatten(dataset.element_spec)
    for each in flat:
        if not isinstance(each, tf.TensorSpec):
            raise PlanError(f"elements of the dataset must be dense tensors, not {type(each).__name__}")
    return list(flat)


@dataclass(frozen=True)
class _Form:
    """How elements become batches.

    Attributes:
        names: of the components in a batch; ``None`` for those that are left out.
        is_batched: elements are batches already.
        shuffle: how many elements are mixed, in an order of each epoch's own; 0: none.
        is_endless: whether it is known to have no end.
    """

    names: tuple[str | None, ...]
    is_batched: bool = False
    shuffle: int = 0
    is_endless: bool = False


@dataclass(frozen=True)
class GraphDataset:
    """A dataset's graph; see ``pack_dataset``. Called with a batch size, it gives itself in batches of that."""

    graph: bytes = field(repr=False)
    output: str
    elements: tuple[tuple[str, tuple[int | None, ...] | None], ...]
    starters: tuple[str, ...]
    form: _Form
    batch_size: int | None = None

    @property
    def is_endless(self) -> bool:
        """Whether there is no last row."""
        return self.form.is_endless

    def __call__(self, config: dict[str, Any], batch_size: int | None) -> GraphDataset:
        """A data creator's call."""
        from dataclasses import replace

        return replace(self, batch_size=batch_size)

    def open(self) -> _Running:
        """The dataset in a graph of its own."""
        graph = tf.Graph()
        with graph.as_default():
            graph_def = tf.compat.v1.GraphDef()
            graph_def.ParseFromString(self.graph)
            tf.import_graph_def(graph_def, name="")
            element = tuple(tf.TensorSpec(shape, dtype) for dtype, shape in self.elements)
            dataset = tf.data.experimental.from_variant(graph.get_tensor_by_name(self.output), element)
        starters = [graph.get_operation_by_name(name) for name in self.starters]
        return _Running(graph, dataset, starters, self.form, self.batch_size)


@dataclass(frozen=True)
class DatasetMaker:
    """A function that returns a dataset, called in a fresh graph wherever rows are needed."""

    make: Callable[[], Any]
    form: _Form
    batch_size: int | None = None

    is_endless = False

    def __call__(self, config: dict[str, Any], batch_size: int | None) -> DatasetMaker:
        """A data creator's call."""
        from dataclasses import replace

        return replace(self, batch_size=batch_size)

    def open(self) -> _Running:
        """The dataset in a graph of its own."""
        graph = tf.Graph()
        with graph.as_default():
            dataset = self.make()
            if not is_dataset(dataset):
                raise PlanError(f"the function must return a tf.data.Dataset, not {type(dataset).__qualname__}")
            starters = graph.get_collection(tf.compat.v1.GraphKeys.TABLE_INITIALIZERS)
        return _Running(graph, dataset, starters, self.form, self.batch_size)


class _Running:
    """A dataset in a session: batches of each epoch."""

    def __init__(self, graph: Any, dataset: Any, starters: Sequence[Any], form: _Form, batch_size: int | None) -> None:
        self._form = form
        with graph.as_default():
            self._seed = _placeholder(graph)
            if form.shuffle:
                dataset = dataset.shuffle(form.shuffle, seed=self._seed, reshuffle_each_iteration=False)
            if not form.is_batched:
                dataset = dataset.batch(batch_size or 32)
            iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
            self._next = tf.nest.flatten(iterator.get_next())
            self._begin = iterator.initializer
        self._session = tf.compat.v1.Session(graph=graph, config=tf.compat.v1.ConfigProto(device_count={"GPU": 0}))
        self._session.run(list(starters))
        graph.finalize()
        self._step = self._session.make_callable(self._next)

    def batches(self, seed: int, epoch: int) -> Iterator[Batch]:
        """One pass."""
        mixed = np.random.default_rng([seed % 2**32, epoch + 1]).integers(1, 2**31)
        self._session.run(self._begin, {self._seed: mixed})
        while True:
            try:
                values = self._step()
            except tf.errors.OutOfRangeError:
                return
            named = zip(self._form.names, values, strict=True)
            yield {name: np.asarray(value) for name, value in named if name is not None}


def pack_dataset(
    dataset: Any,
    names: Sequence[str | None],
    *,
    is_batched: bool = False,
    shuffle: int = 0,
    refuse: Sequence[str] = (),
) -> GraphDataset:
    """A dataset as what travels. Driver only.

    Args:
        dataset: made eagerly, or in a graph; then its lookup tables come along.
        names: see ``_Form``, as the next two.
        is_batched: see there.
        shuffle: see there.
        refuse: kinds of dataset that must not be inside (``"Batch"``, ``"Repeat"``).

    Raises:
        PlanError: Python functions inside, or one of ``refuse``.
    """
    variant = dataset._variant_tensor
    starters: list[str] = []
    if hasattr(variant, "numpy"):
        packed = tf.raw_ops.DatasetToGraphV2(input_dataset=variant, external_state_policy=_IGNORE_STATE).numpy()
        graph_def = tf.compat.v1.GraphDef.FromString(packed)
        (returned,) = [node for node in graph_def.node if node.op == "_Retval"]
        output = returned.input[0]
        graph_def = cut(graph_def, [output])
        output = output if ":" in output else f"{output}:0"
    else:
        graph, output = variant.graph, variant.name
        whole = graph.as_graph_def()
        there = needed(whole, [output])
        tables = graph.get_collection(tf.compat.v1.GraphKeys.TABLE_INITIALIZERS)
        starters = [op.name for op in tables if any(each.op.name in there for each in op.inputs)]
        graph_def = cut(whole, [output, *starters])
    _check(graph_def, output, refuse)
    _seed_shuffles(graph_def)
    elements = tuple(
        (each.dtype.name, None if each.shape.rank is None else tuple(each.shape.as_list()))
        for each in components(dataset)
    )
    is_endless = hasattr(variant, "numpy") and int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY
    form = _Form(tuple(names), is_batched, shuffle, is_endless)
    return GraphDataset(graph_def.SerializeToString(), output, elements, tuple(starters), form)


def made_by(
    function: Callable[[], Any], names: Sequence[str | None], *, is_batched: bool = False, shuffle: int = 0
) -> DatasetMaker:
    """A function that makes a dataset, as what travels."""
    return DatasetMaker(function, _Form(tuple(names), is_batched, shuffle))


def spec_of(function: Callable[[], Any]) -> Any:
    """What elements the dataset of a function holds: it is called once, in a graph that is thrown away."""
    with tf.Graph().as_default():
        made = function()
        if not is_dataset(made):
            raise PlanError(f"the function must return a tf.data.Dataset, not {type(made).__qualname__}")
        return made.element_spec


def _placeholder(graph: Any) -> Any:
    """What seeds of shuffles are fed by; the graph may have it already."""
    try:
        return graph.get_tensor_by_name(f"{_SEED}:0")
    except KeyError:
        return tf.compat.v1.placeholder(tf.int64, [], _SEED)


def _check(graph_def: Any, output: str, refuse: Sequence[str]) -> None:
    inner = [node for function in graph_def.library.function for node in function.node_def]
    python = [node.name for node in [*graph_def.node, *inner] if node.op in _PYTHON]
    if python:
        raise PlanError(
            f"the tf.data.Dataset calls Python inside ({python[0]}), which cannot leave this process: pass a function "
            f"that makes the dataset instead"
        )
    there = needed(graph_def, [output])
    for kind in refuse:
        found = [n.op for n in graph_def.node if n.name in there and kind in n.op and n.op.endswith(_ENDINGS)]
        if found:
            raise PlanError(
                f"the tf.data.Dataset must give single elements, and has .{kind.lower()} inside; leave it out, for "
                f"batches and epochs are made from the arguments"
            )


_ENDINGS = ("Dataset", "DatasetV2", "DatasetV3")


def _seed_shuffles(graph_def: Any) -> None:
    """Let shuffles that have no seed follow ``_SEED``. Zeros stand for none. In place."""
    nodes = {node.name: node for node in graph_def.node}
    shuffles = [n for n in graph_def.node if n.op in ("ShuffleDataset", "ShuffleDatasetV3", "ShuffleAndRepeatDataset")]
    is_needed = False
    for node in shuffles:
        seeds = [nodes[op_of(name)] for name in node.input[2:4]]
        if all(each.op == "Const" and int(tf.make_ndarray(each.attr["value"].tensor)) == 0 for each in seeds):
            node.input[2] = node.input[3] = _SEED
            is_needed = True
    if is_needed:
        added = graph_def.node.add(name=_SEED, op="Placeholder")
        added.attr["dtype"].type = tf.int64.as_datatype_enum
        added.attr["shape"].shape.SetInParent()
