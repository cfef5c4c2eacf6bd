"""A graph on blocks of columns, and on each row by itself: many rows in one call of the session.

A graph of one row is put into a loop over rows that TensorFlow unrolls into operations on all of them (``pfor``). What
it cannot unroll, or what gives a different shape for each row (a decoded image), runs in a loop inside the graph.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from firesteel.core.program import Program
from firesteel.core.spec import Batch, rows_of
from firesteel.frameworks.tfgraph.calls import make_call
from firesteel.frameworks.tfgraph.columns import ColumnContent
from firesteel.frameworks.tfgraph.cutting import cut
from firesteel.frameworks.tfgraph.program import Feed
from firesteel.frameworks.tfgraph.replica import GraphReplica

__all__ = ["ColumnGraphReplica"]

Array = npt.NDArray[Any]

_OUTSIDE = ("VarHandleOp", "VariableV2", "Variable", "HashTableV2", "MutableHashTableV2", "MutableDenseHashTableV2")


class ColumnGraphReplica(GraphReplica):
    """See ``core.columns.ColumnReplica``."""

    def __init__(self, program: Program, device: str = "cpu", threads: int = 1) -> None:
        super().__init__(program, device, threads)
        self._column_content: ColumnContent = program.content
        self._names = [name for name, _ in self._column_content.ends.outputs]
        self._fed_all = list(self._column_content.ends.feeds)
        self._block: Any = None
        self._unrolled: Any = None
        self._looped: Any = None
        self._row: Any = None
        self._is_looped = False

    def forward(self, batch: Batch) -> dict[str, Array]:
        """One call with these arrays, as they are."""
        if self._block is None:
            fetches = [self._tensor(name) for _, name in self._column_content.ends.outputs]
            self._block = self._callable(fetches, self._fed_all)
        found = self._block(*(_entering(batch[feed.name]) for feed in self._fed_all))
        return {name: np.asarray(value) for name, value in zip(self._names, found, strict=True)}

    def rows(self, batch: Batch) -> dict[str, Any]:
        """The graph on each row, in one call; see ``ColumnReplica``."""
        arrays = [_entering(batch[feed.name]) for feed in self._fed_all]
        if not self._is_looped:
            try:
                self._unrolled = self._unrolled or self._unroll()
                return dict(zip(self._names, map(np.asarray, self._unrolled(*arrays)), strict=True))
            except Exception:  # noqa: BLE001 - what is wrong with a row, a loop over rows will say
                self._is_looped = True
        self._looped = self._looped or self._loop()
        values, shapes = self._looped(*arrays)
        count = rows_of(batch)
        return {
            name: _parted(np.asarray(flat), shape, count)
            for name, flat, shape in zip(self._names, values, shapes, strict=True)
        }

    def _unroll(self) -> Any:
        with self._more_ops("firesteel_rows"):
            stacked = [_stacked(feed) for feed in self._fed_all]
            with _quietly():
                made = tf.vectorized_map(lambda cells: tuple(self._one(cells)), tuple(stacked))
            return make_call(self.session, list(made), stacked)

    def _loop(self) -> Any:
        with self._more_ops("firesteel_loop"):
            stacked = [_stacked(feed) for feed in self._fed_all]
            rows = tf.shape(stacked[0])[0]
            dtypes = [self._tensor(name).dtype.base_dtype for _, name in self._column_content.ends.outputs]
            values = [_list_of(dtype, rows) for dtype in dtypes]
            shapes = [_list_of(tf.int64, rows) for _ in dtypes]

            def body(row: Any, values: Any, shapes: Any) -> Any:
                found = self._one([each[row] for each in stacked])
                written = [to.write(row, tf.reshape(each, [-1])) for to, each in zip(values, found, strict=True)]
                sizes = [to.write(row, tf.shape(each, tf.int64)) for to, each in zip(shapes, found, strict=True)]
                return row + 1, written, sizes

            _, values, shapes = tf.while_loop(lambda row, *_: row < rows, body, (0, values, shapes))
            made = [each.concat() for each in values], [each.stack() for each in shapes]
            return self.session.make_callable(made, stacked)

    @contextlib.contextmanager
    def _more_ops(self, scope: str) -> Iterator[None]:
        self.graph._unsafe_unfinalize()  # TensorFlow's own name for it; the session has nothing against more ops
        try:
            with self.graph.as_default(), tf.name_scope(scope):
                yield
        finally:
            self.graph.finalize()

    def _one(self, cells: Any) -> list[Any]:
        """The graph once more, on these tensors; variables and tables are those that there are."""
        if self._row is None:
            names = [name for _, name in self._column_content.ends.outputs]
            self._row = _callable_functions(cut(self._graph_def, names))
        graph_def, functions = self._row
        here = tf.compat.v1.get_default_graph()
        for function in functions:
            function.add_to_graph(here)
        mapped = {f"{node.name}:0": self._outside(node.name) for node in graph_def.node if node.op in _OUTSIDE}
        for feed, cell in zip(self._fed_all, cells, strict=True):
            mapped[feed.tensor] = tf.ensure_shape(cell, feed.shape) if feed.shape is not None else cell
        kept = [name for _, name in self._column_content.ends.outputs]
        found = tf.import_graph_def(graph_def, input_map=mapped, return_elements=kept, name="row")
        return [mapped.get(name, each) for name, each in zip(kept, found, strict=True)]

    def _outside(self, name: str) -> Any:
        """What a variable or table is known by, from inside a loop's body too."""
        tensor = self._tensor(f"{name}:0")
        here = tf.compat.v1.get_default_graph()
        if tensor.dtype._is_ref_dtype:
            return tf.identity(tensor)
        return tensor if here is self.graph else here.capture(tensor)


def _callable_functions(graph_def: Any) -> tuple[Any, list[Any]]:
    """A graph, and the functions that it calls in the form that TensorFlow can unroll; they have new names there."""
    # What SavedModels are loaded by: nothing public gives a function of a GraphDef its graph.
    from tensorflow.core.protobuf.saved_object_graph_pb2 import SavedObjectGraph
    from tensorflow.python.saved_model.function_deserialization import load_function_def_library
    from tensorflow.python.saved_model.nested_structure_coder import encode_structure

    if not graph_def.library.function:
        return graph_def, []
    said = SavedObjectGraph()
    for function in graph_def.library.function:
        signature = function.signature
        ends = [
            tuple(tf.TensorSpec(None, tf.as_dtype(each.type)) for each in args)
            for args in (signature.input_arg, signature.output_arg)
        ]
        said.concrete_functions[signature.name].canonicalized_input_signature.CopyFrom(encode_structure((ends[0], {})))
        said.concrete_functions[signature.name].output_signature.CopyFrom(encode_structure(ends[1]))
    functions = load_function_def_library(graph_def.library, said)
    graph_def.ClearField("library")
    for node in graph_def.node:
        for value in node.attr.values():
            for called in [value.func, *value.list.func] if value.HasField("func") else value.list.func:
                called.name = _name_of(functions[called.name])
    return graph_def, list(functions.values())


def _name_of(function: Any) -> str:
    return function.name.decode() if isinstance(function.name, bytes) else str(function.name)


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without TensorFlow's long complaint about what cannot be unrolled: there is another way."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _stacked(feed: Feed) -> Any:
    """A placeholder for many rows of this feed."""
    shape = None if feed.shape is None else [None, *feed.shape]
    return tf.compat.v1.placeholder(tf.as_dtype(feed.dtype), shape)


def _list_of(dtype: Any, rows: Any) -> Any:
    return tf.TensorArray(dtype, size=rows, infer_shape=False, element_shape=[None])


def _entering(array: Array) -> Array:
    return array if array.dtype.kind != "U" else array.astype(object)


def _parted(flat: Array, shapes: Any, count: int) -> Any:
    """Rows out of one run of values: an array where all have one shape, else a list."""
    shapes = np.asarray(shapes).reshape(count, -1)
    if (shapes == shapes[:1]).all():
        return flat.reshape(count, *(int(size) for size in shapes[0]))
    ends = np.cumsum(np.prod(shapes, axis=1))
    return [part.reshape(shape) for part, shape in zip(np.split(flat, ends[:-1]), shapes, strict=True)]
