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

from collections.abc import Callable, Iterator
from typing import Any

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

    def replica(self, program: Program, device: str = "cpu", threads: int = 1) -> Any:
        """A replica in this process."""
        _sources()
        if program.content.training is not None:
            from firesteel.frameworks.tfgraph.learning import LearningReplica

            return LearningReplica(program, device, threads)
        from firesteel.frameworks.tfgraph.replica import GraphReplica

        return GraphReplica(program, device, threads)

    def build_graph(self, function: Callable[[], Any]) -> str:
        """See ``text.build_graph``."""
        _sources()
        from firesteel.frameworks.tfgraph.text import build_graph

        return build_graph(function)

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

    def zoo_optimizer(self, optimizer: Any, name: str | None = None) -> Any:
        """See ``marks.ZooOptimizer``."""
        _sources()
        from firesteel.frameworks.tfgraph.marks import ZooOptimizer

        return ZooOptimizer(optimizer, name)

    def mean(self, name: str) -> Any:
        """The metric that a replica feeds with a tensor, called ``name`` among ``measures``."""
        from firesteel.frameworks.tfgraph.figures import TensorMean

        return TensorMean(name)

    def stream(
        self, source: object, batch_size: int | None, seed: int, epoch: int, has_labels: bool = True, inputs: int = 1
    ) -> Iterator[Batch]:
        """See ``stream.stream``."""
        raise NotImplementedError

    def take_shard(self, source: object, rank: int, size: int) -> bool:
        """Nothing here shards itself."""
        return False

    def is_loader(self, source: object) -> bool:
        """A ``tf.data.Dataset``."""
        names = {(cls.__module__.partition(".")[0], cls.__name__) for cls in type(source).__mro__}
        return ("tensorflow", "DatasetV2") in names


def _sources() -> Any:
    """The module that opens graphs; the first to need TensorFlow."""
    try:
        from firesteel.frameworks.tfgraph import sources
    except ModuleNotFoundError as error:
        raise missing_extra(error.name or "tensorflow", "tensorflow") from error
    return sources


framework = TFGraphFramework()
