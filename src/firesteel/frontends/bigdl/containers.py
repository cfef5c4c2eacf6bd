"""Layers made of layers: one after another, side by side, and as a graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Self

from firesteel.core.errors import PlanError, UnknownName, UnsupportedError
from firesteel.frontends.bigdl.described import bench
from firesteel.frontends.bigdl.layer import Container, Layer, Node, Part
from firesteel.frontends.bigdl.settings import Axis, PositiveCount

__all__ = [
    "Bottle",
    "Concat",
    "ConcatTable",
    "MapTable",
    "Model",
    "ParallelTable",
    "Sequential",
    "TimeDistributed",
]


class Sequential(Container):
    """One layer after another."""

    def input_range(self) -> tuple[int, int | None]:
        """Its first layer's."""
        return self._layers[0].input_range() if self._layers else (1, None)

    def row_shape(self) -> tuple[int, ...] | None:
        """Its first layer's."""
        return self._layers[0].row_shape() if self._layers else None


class Concat(Container):
    """All layers on the same input, their outputs joined along an axis."""

    dimension: Axis


class ConcatTable(Container):
    """All layers on the same input; their outputs are a table."""


class ParallelTable(Container):
    """The i-th layer on the i-th input of a table."""

    _takes_table = True

    def input_range(self) -> tuple[int, int | None]:
        """As many as there are layers."""
        return len(self._layers), len(self._layers)


class MapTable(Container):
    """One layer on each input of a table; its weights are shared."""

    _takes_table = True
    module: Part | None = None

    def _check_added(self, layer: Layer) -> None:
        super()._check_added(layer)
        if self.module is not None or self._layers:
            raise PlanError(f"MapTable {self._name!r} has its one layer already")


class Bottle(Container):
    """Folds leading axes into one for the layer, and unfolds them again.

    ``n_input_dim`` is how many axes the layer takes, ``n_output_dim1`` how many it gives (default: as many).
    """

    module: Part
    n_input_dim: PositiveCount = 2
    n_output_dim1: PositiveCount | None = None

    def _check_added(self, layer: Layer) -> None:
        raise PlanError("a Bottle has its one layer already")


class TimeDistributed(Layer):
    """The layer on each time slice of (batch, time, …)."""

    model: Part


class Model(Container):
    """A graph of layers, from input nodes to output nodes. Several inputs take a table, several outputs give one.

    Example:
        >>> a = Input()  # doctest: +SKIP
        >>> b = Linear(2, 2)(a)  # doctest: +SKIP
        >>> model = Model([a], [CAddTable()([a, b])])  # doctest: +SKIP
    """

    inputs: Any
    outputs: Any

    def __post_init__(self) -> None:
        super().__post_init__()
        self.inputs, self.outputs = _nodes(self.inputs, "inputs"), _nodes(self.outputs, "outputs")
        self._order = _sorted(self.outputs)
        places = {id(node): place for place, node in enumerate(self._order)}
        for node in self.inputs:
            if id(node) not in places:
                raise PlanError(f"no output of the graph depends on its input {node.layer.name()!r}")
        given = {id(node) for node in self.inputs}
        for node in self._order:
            if not node.nodes and id(node) not in given:
                raise PlanError(f"{node.layer.name()!r} is not fed by any node, and is none of the graph's inputs")
        self._edges = [[places[id(each)] for each in node.nodes] for node in self._order]
        self._ends = [[places[id(each)] for each in ends] for ends in (self.inputs, self.outputs)]
        self._stopped: list[str] = []
        self._layers = list(dict.fromkeys(node.layer for node in self._order))

    def add(self, model: Any) -> Self:
        """Not here: call layers with nodes instead."""
        raise UnsupportedError("a graph is not added to; call layers with nodes, and make a Model of them")

    def node(self, name: str) -> Node:
        """The node of the layer of this name."""
        found = [node for node in self._order if node.layer.name() == name]
        if not found:
            raise UnknownName("layer", name, [layer.name() for layer in self._layers])
        return found[0]

    def stop_gradient(self, stop_layers: Sequence[str]) -> Self:
        """Let no gradient pass through the outputs of the layers of these names."""
        self._stopped = [self.node(name).layer.name() for name in stop_layers]
        if self._module is not None:
            bench().stop_gradient(self._module, self._stops())
        return self

    def input_range(self) -> tuple[int, int | None]:
        """As many as there are input nodes."""
        return len(self.inputs), len(self.inputs)

    def row_shape(self) -> tuple[int, ...] | None:
        """That of the layer which the one input feeds."""
        first = [node.layer for node in self._order if len(self.inputs) == 1 and self.inputs[0] in node.nodes]
        return first[0].row_shape() if len(first) == 1 else None

    def children(self) -> Iterator[Layer]:
        """The layers of its nodes."""
        yield from self._layers

    def graph(self) -> dict[str, Any]:
        """The edges as plain numbers: for each node its layer's place and the nodes that feed it."""
        places = {id(layer): place for place, layer in enumerate(self._layers)}
        nodes = [[places[id(node.layer)], edges] for node, edges in zip(self._order, self._edges, strict=True)]
        return {"nodes": nodes, "inputs": self._ends[0], "outputs": self._ends[1], "stopped": self._stops()}

    @classmethod
    def of(cls, layers: Sequence[Layer], graph: dict[str, Any], bigdl_type: str = "float") -> Model:
        """The model that ``graph`` described, of these layers."""
        made: list[Node] = []
        for layer, edges in graph["nodes"]:
            made.append(Node(layers[layer], [made[place] for place in edges]))
        ends = [[made[place] for place in graph[key]] for key in ("inputs", "outputs")]
        model = cls(*ends, bigdl_type=bigdl_type)
        model._stopped = [made[place].layer.name() for place in graph["stopped"]]
        return model

    def settings(self) -> dict[str, Any]:
        """The graph."""
        return {"graph": self.graph()}

    def _stops(self) -> list[int]:
        return [place for place, node in enumerate(self._order) if node.layer.name() in self._stopped]

    @staticmethod
    def loadModel(modelPath: str, weightPath: str | None = None, bigdl_type: str = "float") -> Layer:
        """What ``saveModel`` wrote.

        Raises:
            UnsupportedError: a file of the JVM's format.
        """
        from firesteel.frontends.bigdl import saving

        return saving.load_model(modelPath, weightPath)


def _nodes(value: Any, what: str) -> list[Node]:
    nodes = list(value) if isinstance(value, (list, tuple)) else [value]
    if not nodes or not all(isinstance(node, Node) for node in nodes):
        raise PlanError(f"a Model's {what} are nodes: begin with Input() and call layers with nodes; found {value!r}")
    return nodes


def _sorted(outputs: Sequence[Node]) -> list[Node]:
    """All nodes that the outputs depend on, each after those that feed it. Without recursion: graphs may be deep."""
    order: list[Node] = []
    done: set[int] = set()
    stack = [(node, False) for node in reversed(outputs)]
    while stack:
        node, is_fed = stack.pop()
        if id(node) in done:
            continue
        if is_fed:
            done.add(id(node))
            order.append(node)
        else:
            stack.append((node, True))
            stack.extend((each, False) for each in reversed(node.nodes))
    return order
