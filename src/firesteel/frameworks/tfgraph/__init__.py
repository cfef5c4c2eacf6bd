"""The bench for TensorFlow graphs. Registered under ``firesteel.frameworks``; nobody imports it by name.

``registry.framework("tfgraph")`` gives a ``TFGraphFramework``, and that is the whole of what other rooms call:

- ``capture(model, inputs=…, outputs=…)`` makes a program of a graph, whoever holds it (see ``program.capture``):
  tensors of a live graph and a session's values, a frozen GraphDef, a SavedModel, a ``tf.function``, or a text of
  ``build_graph``. A program is a GraphDef, names, and safetensors; nothing of the user's TensorFlow travels.
- ``replica(program).forward(batch)`` feeds arrays by their names in ``inputs`` and gives outputs by theirs in
  ``outputs``, cast and shaped as the tensors want them, through one session whose graph never grows.
- ``build_graph(function)`` is a graph as JSON text; ``open_…`` open what needs more said than its place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from firesteel.core.columns import Bound, Port, Shape
from firesteel.core.errors import missing_extra
from firesteel.core.program import Program
from firesteel.core.spec import Batch

__all__ = ["TFGraphFramework", "framework"]


class TFGraphFramework:
    """How graphs are captured on the driver and brought to life in a process; see ``core.ports.Framework``."""

    name = "tfgraph"
    packages = ("tensorflow",)

    def accepts(self, model: object) -> bool:
        """A tensor of a graph (or a list of such), a ``tf.Graph``, a ``tf.function``, a GraphDef."""
        sources = _sources()
        import tensorflow as tf

        if isinstance(model, (list, tuple)):
            return bool(model) and all(sources.is_symbolic(each) for each in model)
        kinds = (tf.Graph, tf.compat.v1.GraphDef, tf.Operation)
        return isinstance(model, kinds) or sources.is_symbolic(model) or sources.is_function(model)

    def capture(self, model: object, **parts: Any) -> Program:
        """See ``program.capture``."""
        _sources()
        from firesteel.frameworks.tfgraph.program import capture

        return capture(model, **parts)

    def ahead(self, program: Program) -> tuple[str, ...]:
        """TensorFlow; it starts no thread before its first op."""
        return ("firesteel.frameworks.tfgraph.start:lean",)

    def replica(self, program: Program, device: str = "cpu", threads: int = 1) -> Any:
        """A replica in this process."""
        _sources()
        from firesteel.frameworks.tfgraph.columns import ColumnContent

        if isinstance(program.content, ColumnContent):
            from firesteel.frameworks.tfgraph.rows import ColumnGraphReplica

            return ColumnGraphReplica(program, device, threads)
        if program.content.training is not None:
            from firesteel.frameworks.tfgraph.learning import LearningReplica

            return LearningReplica(program, device, threads)
        from firesteel.frameworks.tfgraph.replica import GraphReplica

        return GraphReplica(program, device, threads)

    # --- programs over columns: see ``core.columns`` ---

    def capture_columns(self, model: object, **parts: Any) -> Program:
        """See ``columns.capture_columns``."""
        return _columns().capture_columns(model, **parts)

    def inputs(self, program: Program) -> tuple[Port, ...]:
        """See ``columns.inputs``."""
        return _columns().inputs(program)

    def outputs(self, program: Program) -> tuple[str, ...] | None:
        """See ``columns.outputs``."""
        return _columns().outputs(program)

    def bind(self, program: Program, given: Mapping[str, Port], outputs: Sequence[Port] | None = None) -> Bound:
        """See ``columns.bind``."""
        return _columns().bind(program, given, outputs)

    def placeholder(self, dtype: str, shape: Shape, name: str) -> Any:
        """See ``columns.placeholder``."""
        return _columns().placeholder(dtype, shape, name)

    # --- what graphs are made of ---

    def build_graph(self, function: Callable[[], Any]) -> str:
        """See ``text.build_graph``."""
        _sources()
        from firesteel.frameworks.tfgraph.text import build_graph

        return build_graph(function)

    def open_tensors(self, tensors: Any, session: Any = None) -> Any:
        """See ``sources.open_tensors``: says where tensors are of two graphs. What it returns has their ``graph``."""
        return _sources().open_tensors(tensors, session)

    def open_saved_model(self, path: str, tag: Any = None, signature: str | None = None) -> Any:
        """See ``sources.open_saved_model``. What it returns is a model for ``capture``."""
        return _sources().open_saved_model(path, tag, signature)

    def open_checkpoint(self, path: str) -> Any:
        """See ``serving.open_checkpoint``. What it returns is a model for ``capture``."""
        _sources()
        from firesteel.frameworks.tfgraph.serving import open_checkpoint

        return open_checkpoint(path)

    def specs_of(self, opened: Any, names: Any, side: str) -> Any:
        """See ``serving.specs_of``."""
        _sources()
        from firesteel.frameworks.tfgraph.serving import specs_of

        return specs_of(opened, names, side)

    def open_function(self, function: Any, *specs: Any) -> Any:
        """See ``sources.open_function``. What it returns is a model for ``capture``."""
        return _sources().open_function(function, *specs)

    def open_text(self, text: str) -> Any:
        """What ``build_graph`` returned, opened: its ``graph``, the name of its ``loss``. A model for ``capture``."""
        return _sources().open_text(text)

    def open_elsewhere(self, path: str) -> Any:
        """See ``elsewhere.open_elsewhere``. What it returns is a model for ``capture``."""
        _sources()
        from firesteel.frameworks.tfgraph.elsewhere import open_elsewhere

        return open_elsewhere(path)

    def as_text(self, opened: Any) -> str:
        """A graph that was opened, as text; its variables' values stay outside."""
        _sources()
        from firesteel.frameworks.tfgraph.text import write_text

        return write_text(opened.graph, opened.loss)

    def trainable(self, opened: Any) -> list[str]:
        """The names of the trainable variables, in the graph's order."""
        return [variable.op.name for variable in opened.graph.get_collection("trainable_variables")]

    def kind_of(self, opened: Any, tensor: str) -> str:
        """The kind of op that makes a tensor; ``UnknownName`` lists near names where there is none."""
        return str(_sources().tensor_in(opened.graph, tensor).op.type)

    def phases(self, opened: Any) -> list[str]:
        """Placeholders that say whether this is training: booleans with a default, called as everybody calls them."""
        return [
            op.outputs[0].name
            for op in opened.graph.get_operations()
            if op.type == "PlaceholderWithDefault"
            and op.outputs[0].dtype.name == "bool"
            and re.fullmatch(r"(is_)?training|keras_learning_phase", re.sub(r"_\d+$", "", op.name.split("/")[-1]))
        ]

    def flag_of(self, opened: Any, tensor: str, value: float) -> Any:
        """A number as a tensor's dtype has it: a boolean where that is one."""
        return bool(value) if _sources().tensor_in(opened.graph, tensor).dtype.name == "bool" else value

    def output_shape(self, program: Program) -> tuple[int, ...] | None:
        """A row's shape of the one output, where the graph says it."""
        from firesteel.frameworks.tfgraph.program import output_shape

        return output_shape(program)

    def pack(self, values: Any) -> bytes:
        """See ``state.pack``."""
        from firesteel.frameworks.tfgraph.state import pack

        return pack(values)

    def unpack(self, data: bytes) -> dict[str, Any]:
        """See ``state.unpack``."""
        from firesteel.frameworks.tfgraph.state import unpack

        return unpack(data)

    def optimizer(self, name: str, options: Any) -> Any:
        """See ``optimizers.make_optimizer``."""
        _sources()
        from firesteel.frameworks.tfgraph.optimizers import make_optimizer

        return make_optimizer(name, options)

    def save(self, program: Program, path: str) -> None:
        """See ``elsewhere.save_saved_model``."""
        _sources()
        from firesteel.frameworks.tfgraph.elsewhere import save_saved_model

        save_saved_model(program, path)

    def zoo_optimizer(self, optimizer: Any, name: str | None = None) -> Any:
        """See ``marks.ZooOptimizer``."""
        _sources()
        from firesteel.frameworks.tfgraph.marks import ZooOptimizer

        return ZooOptimizer(optimizer, name)

    def placeholders(self, tensors: Any) -> list[Any]:
        """The placeholders that tensors of a graph depend on, in the order in which they were made."""
        _sources()
        from firesteel.frameworks.tfgraph.cutting import needed

        graph = self.open_tensors(tensors).graph
        there = needed(graph.as_graph_def(), [tensor.name for tensor in tensors])
        kinds = ("Placeholder", "PlaceholderV2", "PlaceholderWithDefault")
        return [op.outputs[0] for op in graph.get_operations() if op.type in kinds and op.name in there]

    def check_rows(self, name: str, tensor: Any, values: Any) -> None:
        """Raise ``SchemaError`` where rows like these cannot be fed to a tensor."""
        _sources()
        from firesteel.frameworks.tfgraph.program import describe
        from firesteel.frameworks.tfgraph.replica import fitted

        fitted(values[:0], describe({name: tensor})[0])

    def mean(self, name: str) -> Any:
        """The metric that a replica feeds with a tensor, called ``name`` among ``measures``."""
        from firesteel.frameworks.tfgraph.figures import TensorMean

        return TensorMean(name)

    def stream(
        self, source: object, batch_size: int | None, seed: int, epoch: int, has_labels: bool = True, inputs: int = 1
    ) -> Iterator[Batch]:
        """See ``stream.stream``."""
        _sources()
        from firesteel.frameworks.tfgraph.stream import stream

        return stream(source, batch_size, seed, epoch, None if has_labels else inputs)

    def take_shard(self, source: object, rank: int, size: int) -> bool:
        """Nothing here shards itself."""
        return False

    def is_loader(self, source: object) -> bool:
        """A ``tf.data.Dataset``, as it is or on its way."""
        names = {(cls.__module__.partition(".")[0], cls.__name__) for cls in type(source).__mro__}
        return ("tensorflow", "DatasetV2") in names

    # Rooms that hold tests, doors and sessions of the user's find the rest of the bench by its modules.

    @property
    def sessions(self) -> Any:
        """The module for sessions of the user's: see ``sessions``."""
        _sources()
        from firesteel.frameworks.tfgraph import sessions

        return sessions

    @property
    def datasets(self) -> Any:
        """The module for ``tf.data``: see ``dataset``."""
        _sources()
        from firesteel.frameworks.tfgraph import dataset

        return dataset

    def travelling(self, *args: Any, **options: Any) -> Any:
        """See ``stream.travelling``."""
        _sources()
        from firesteel.frameworks.tfgraph.stream import travelling

        return travelling(*args, **options)


def _sources() -> Any:
    """The module that opens graphs; the first to need TensorFlow."""
    try:
        from firesteel.frameworks.tfgraph import sources
    except ModuleNotFoundError as error:
        raise missing_extra(error.name or "tensorflow", "tensorflow") from error
    return sources


def _columns() -> Any:
    _sources()
    from firesteel.frameworks.tfgraph import columns

    return columns


framework = TFGraphFramework()
