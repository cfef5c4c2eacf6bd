"""A graph program living in a process: one session, whose graph never grows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from firesteel.core.errors import CheckpointError, SchemaError
from firesteel.core.program import Program
from firesteel.core.spec import Batch, rows_of
from firesteel.frameworks.tfgraph.calls import make_call
from firesteel.frameworks.tfgraph.cutting import needed, op_of
from firesteel.frameworks.tfgraph.figures import TensorMean
from firesteel.frameworks.tfgraph.program import Ends, Feed, GraphContent
from firesteel.frameworks.tfgraph.state import unpack

__all__ = ["GraphReplica", "fitted"]

Array = npt.NDArray[Any]


class GraphReplica:
    """One replica; see ``core.ports.Replica``.

    ``threads`` = 0 leaves the number of threads to TensorFlow: the driver's process belongs to the user.
    """

    def __init__(self, program: Program, device: str = "cpu", threads: int = 1) -> None:
        content: GraphContent = program.content
        self._content = content
        self.graph = tf.Graph()
        with self.graph.as_default():
            self._graph_def = tf.compat.v1.GraphDef()
            self._graph_def.ParseFromString(content.graph)
            tf.import_graph_def(self._graph_def, name="")
        config = _config(content, device, threads)
        self.session = tf.compat.v1.Session(graph=self.graph, config=config)
        has_gpu = device != "cpu" and bool(tf.config.list_physical_devices("GPU"))
        self._is_here = threads == config.inter_op_parallelism_threads == 1 and not has_gpu
        self.main: Any = None
        self.runner: Any = None
        self.model, self.optimizer, self.scheduler, self.loss_function = self.graph, None, None, None
        self._forward: Any = None
        self._measure: Any = None
        self._doubles = False
        if program.state is not None:
            self._set(unpack(program.state["model"]))
        if content.starters:
            feeds = {self._tensor(name): path for name, path in content.starter_feeds}
            self.session.run([self.graph.get_operation_by_name(name) for name in content.starters], feeds)
        if content.training is None:
            self.graph.finalize()

    # --- scoring ---

    def forward(self, batch: Batch) -> dict[str, Array]:
        """Outputs for these rows; see ``Replica``."""
        ends = self._content.ends
        if self._forward is None:
            self._feeds = self._fed([name for _, name in ends.outputs])
            tensors = [self._tensor(name) for _, name in ends.outputs]
            self._forward = self._callable(tensors, self._feeds)
            self._names = [name for name, _ in ends.outputs]
        arrays = self._arrays(batch, self._feeds)
        calls = [
            [np.asarray(value) for value in self._forward(*piece)] for piece in _calls(arrays, rows_of(batch), ends)
        ]
        if ends.is_by_row:
            columns = [np.stack(values) for values in zip(*calls, strict=True)]
        else:
            columns = [values[0] if len(values) == 1 else np.concatenate(values) for values in zip(*calls, strict=True)]
            if ends.rows is not None:
                columns = [column[: rows_of(batch)] for column in columns]
        return {name: _wide(column) for name, column in zip(self._names, columns, strict=True)}

    def measure(self, batch: Batch, metrics: Mapping[str, Any]) -> tuple[float, float] | None:
        """Feed the figures with these rows; see ``Replica``."""
        content = self._content
        if self._measure is None:
            names = [name for measure in content.measures for name in measure.tensors]
            names += [] if content.loss is None else [content.loss]
            self._measure_feeds = self._fed(names)
            self._measure = self._callable([self._tensor(name) for name in names], self._measure_feeds)
        rows = rows_of(batch)
        values, is_doubled = self._whole(self._measure, self._arrays(batch, self._measure_feeds), rows)
        if is_doubled:
            values = [value[:1] if np.ndim(value) and len(value) == 2 else value for value in values]
        loss = None if content.loss is None else float(values.pop())
        self._feed_figures({measure.name: metrics.get(measure.name) for measure in content.measures}, values, rows)
        return None if loss is None else (loss * rows, float(rows))

    def load(self, state: dict[str, bytes]) -> None:
        """Take over variables; see ``Replica``."""
        self._set(unpack(state["model"]))

    def values(self) -> dict[str, Array]:
        """Every variable's value, by name."""
        tensors = {variable.name: self._tensor(variable.read) for variable in self._content.variables}
        return {name: np.array(value) for name, value in self.session.run(tensors).items()}

    def close(self) -> None:
        """Let go of the session."""
        self.session.close()

    def _whole(self, run: Any, arrays: Sequence[Array], rows: int, *more: Any) -> tuple[list[Any], bool]:
        """What a run gives; of one row that the graph cannot take alone, that of the same row twice.

        ``tf.squeeze`` takes the axis of one row too, and old programs squeeze their labels. Losses are means:
        two equal rows have that of one.
        """
        if rows != 1 or not self._doubles:
            try:
                return list(run(*arrays, *more)), False
            except tf.errors.InvalidArgumentError:
                if rows != 1:
                    raise
        found = list(run(*(np.repeat(values, 2, axis=0) for values in arrays), *more))
        self._doubles = True
        return found, True

    def _feed_figures(self, metrics: Mapping[str, Any], values: Sequence[Any], rows: int) -> None:
        """Feed metrics with the tensors of their measures, in the order of these."""
        waiting = iter(values)
        for measure in self._content.measures:
            if measure.name not in metrics:
                continue
            found = [next(waiting) for _ in measure.tensors]
            metric = metrics[measure.name]
            if isinstance(metric, TensorMean):
                metric.add(found[0], rows)
            elif metric is not None:
                metric(found[0], found[1] + measure.shift if measure.shift else found[1])

    # --- the graph's ends ---

    def _set(self, values: Mapping[str, Array]) -> None:
        known = {variable.name: variable for variable in self._content.variables}
        missing, extra = sorted(known.keys() - values.keys()), sorted(values.keys() - known.keys())
        if missing or extra:
            raise CheckpointError(
                f"these values are of another graph: it lacks {', '.join(missing) or 'nothing'}, and has besides: "
                f"{', '.join(extra) or 'nothing'}"
            )
        for name, value in values.items():
            if value.shape != known[name].shape:
                raise CheckpointError(f"variable {name!r} has shape {known[name].shape}, its value {value.shape}")
        feeds = {self._tensor(known[name].value): value for name, value in values.items()}
        self.session.run([self.graph.get_operation_by_name(known[name].write) for name in values], feeds)

    def _callable(
        self, fetches: Any, feeds: Sequence[Feed], *, is_training: bool = False, beside: Sequence[Any] = ()
    ) -> Any:
        """A function of the feeds' arrays and those ``beside``, made once: later calls look nothing up."""
        flags = self._content.ends.flags
        values = [there if is_training else here for _, here, there in flags]
        tensors = [
            *(self._tensor(name) for name, _, _ in flags),
            *(self._tensor(feed.tensor) for feed in feeds),
            *beside,
        ]
        run = make_call(self.session, fetches, tensors, is_here=self._is_here)
        return lambda *arrays: run(*values, *arrays)

    def _fetch(self, name: str) -> Any:
        """An op or a tensor by its name."""
        return self._tensor(name) if ":" in name else self.graph.get_operation_by_name(name)

    def _fed(self, names: Sequence[str], beside: Sequence[str] = ()) -> list[Feed]:
        """The feeds that these ops or tensors depend on, where those ``beside`` are fed too."""
        ends = self._content.ends
        stops = [*(feed.tensor for feed in ends.feeds), *(name for name, _, _ in ends.flags), *beside]
        reached = needed(self._graph_def, names, stops)
        by_tensor = {name for op in reached for name in self._inputs_of(op)} | set(names)
        return [feed for feed in ends.feeds if feed.tensor in by_tensor]

    def _inputs_of(self, op: str) -> list[str]:
        return [tensor.name for tensor in self.graph.get_operation_by_name(op).inputs]

    def _arrays(self, batch: Batch, feeds: Sequence[Feed]) -> list[Array]:
        # A dict of arrays is matched by the placeholders' names.
        names = [feed.name if feed.name in batch else f"{feed.name[:1]}.{op_of(feed.tensor)}" for feed in feeds]
        missing = [feed.name for feed, name in zip(feeds, names, strict=True) if name not in batch]
        if missing:
            raise SchemaError(f"the graph needs {', '.join(missing)}, and the data has: {', '.join(batch)}")
        is_by_row = self._content.ends.is_by_row
        return [fitted(batch[name], feed, is_by_row=is_by_row) for feed, name in zip(feeds, names, strict=True)]

    def _tensor(self, name: str) -> Any:
        return self.graph.get_tensor_by_name(name)


def fitted(values: Array, feed: Feed, *, is_by_row: bool = False) -> Array:
    """Rows as the tensor takes them: its dtype, and its shape where the sizes agree.

    Raises:
        SchemaError: rows of another shape, or strings for numbers; with the tensor's name and both.
    """
    if feed.dtype == "string":
        if values.dtype.kind not in "OSUT":
            raise SchemaError(
                f"the tensor {feed.tensor!r} takes strings, and the data has {values.dtype}", column=feed.name
            )
        values = values if values.dtype.kind == "O" else values.astype(object)
    elif values.dtype.kind in "OSUT":
        raise SchemaError(
            f"the tensor {feed.tensor!r} takes {feed.dtype}, and the data has strings or objects", column=feed.name
        )
    else:
        wanted = tf.as_dtype(feed.dtype).as_numpy_dtype
        values = values if values.dtype == wanted else values.astype(wanted)
    if feed.shape is None:
        return values
    row = feed.shape if is_by_row else feed.shape[1:]
    found = values.shape[1:]
    if len(found) == len(row) and all(want in (None, have) for want, have in zip(row, found, strict=True)):
        return values
    if row.count(None) <= 1 and not is_by_row:
        size, rest = int(np.prod(found)), int(np.prod([length for length in row if length is not None]))
        if size == rest if None not in row else rest and size % rest == 0 and len(found) < len(row):
            return values.reshape(len(values), *(-1 if length is None else length for length in row))
    raise SchemaError(
        f"the tensor {feed.tensor!r} takes rows of shape {_shown(row)}, and the data has rows of shape {_shown(found)}",
        column=feed.name,
        expected=_shown(row),
        found=_shown(found),
    )


def _shown(shape: Sequence[int | None]) -> str:
    return "(" + ", ".join("?" if length is None else str(length) for length in shape) + ")"


def _calls(arrays: Sequence[Array], rows: int, ends: Ends) -> Iterator[list[Array]]:
    """What each call of the graph is fed."""
    if ends.is_by_row:
        for row in range(rows):
            yield [np.asarray(values[row]) for values in arrays]
    elif ends.rows is None:
        yield list(arrays)
    else:
        for begin in range(0, rows, ends.rows):
            pieces = [values[begin : begin + ends.rows] for values in arrays]
            short = ends.rows - len(pieces[0]) if pieces else 0
            # Filled up with its last row, not with zeros, which may not be a row that the graph can compute.
            yield [
                np.concatenate([piece, np.repeat(piece[-1:], short, axis=0)]) if short else piece for piece in pieces
            ]


def _wide(values: Array) -> Array:
    return values.astype(np.float32) if values.dtype.name in ("bfloat16", "float16") else values


def _config(content: GraphContent, device: str, threads: int) -> Any:
    config = tf.compat.v1.ConfigProto(allow_soft_placement=True)
    if threads:
        # Of its own: what the process began with need not be what this task may use.
        config.use_per_session_threads = True
        config.intra_op_parallelism_threads = threads
        config.inter_op_parallelism_threads = threads
    config.gpu_options.allow_growth = True
    if device == "cpu":
        config.device_count["GPU"] = 0
    if content.config is not None:
        config.MergeFromString(content.config)
    return config
