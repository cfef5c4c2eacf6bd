"""What every layer can do. A layer is a description; its torch module is made when it is first needed."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Self

from firesteel.core.errors import PlanError
from firesteel.core.schedules import Limit
from firesteel.frontends.bigdl.described import Described, bench
from firesteel.frontends.bigdl.initialization import InitializationMethod
from firesteel.frontends.bigdl.regularizers import Regularizer

if TYPE_CHECKING:
    import numpy.typing as npt

    from firesteel.frontends.bigdl.samples import EvaluatedResult

    Array = npt.NDArray[Any]

__all__ = [
    "Activation",
    "Container",
    "Input",
    "Layer",
    "Node",
    "Part",
    "Parts",
    "Regularized",
    "TorchModule",
    "as_layer",
]


class Layer(Described):
    """A layer. ``layer(node)`` or ``layer([node, …])`` makes a node of a graph; see ``Input`` and ``Model``.

    Arrays go in and come out as NumPy's; a table is a list of them. Axes and class labels count from 1.
    """

    _takes_table = False
    """Whether its input is a table."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._name = f"{type(self).__name__}{secrets.token_hex(4)}"
        self._module: Any = None

    # --- who it is ---

    def set_name(self, name: str) -> Self:
        """Give it a name, which must be the only one of its kind in a model."""
        self._name = str(name)
        if self._module is not None:
            bench().set_label(self._module, self._name)
        return self

    def name(self) -> str:
        """Its name; made up unless ``set_name`` was called."""
        return self._name

    def __call__(self, nodes: Node | Sequence[Node] | None = None) -> Node:
        """A node of a graph, fed by these nodes."""
        return Node.of(self, nodes)

    def to_torch(self) -> Any:
        """The ``torch.nn.Module`` underneath: always the same object, with the weights."""
        if self._module is None:
            self._module = self._make()
        return self._module

    def _make(self) -> Any:
        return bench().build(type(self).__name__, self._parts(), dtype=self.dtype, label=self._name)

    def _parts(self) -> dict[str, Any]:
        """Settings for the bench: layers as their modules, regularizers as numbers."""
        return {name: _for_bench(value) for name, value in self.settings().items()}

    def children(self) -> Iterator[Layer]:
        """The layers that it is made of."""
        for value in self.settings().values():
            for each in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(each, Layer):
                    yield each

    def input_range(self) -> tuple[int, int | None]:
        """How many inputs it takes, at least and at most."""
        return (1, None) if self._takes_table else (1, 1)

    def row_shape(self) -> tuple[int, ...] | None:
        """What one row of its input looks like, where that follows from the settings."""
        return None

    def _check_pads(self, **pads: int) -> None:
        """-1 means the same size, of all axes or of none."""
        if -1 in pads.values() and set(pads.values()) != {-1}:
            raise PlanError(f"{type(self).__name__}'s {' and '.join(pads)} must all be -1 (the same size), or none.")

    # --- computing ---

    def forward(self, input: Any) -> Any:
        """Outputs for an array, or a list of arrays."""
        return bench().forward(self.to_torch(), input, self.dtype)

    def backward(self, input: Any, grad_output: Any) -> Any:
        """The input's gradient; adds to the parameters' gradients. Random layers repeat the last ``forward``."""
        return bench().backward(self.to_torch(), input, grad_output, self.dtype)

    def zero_grad_parameters(self) -> None:
        """Set the parameters' gradients to 0."""
        bench().zero_grad(self.to_torch())

    def update_parameters(self, learning_rate: float) -> None:
        """``w -= learning_rate · gradient``."""
        bench().update(self.to_torch(), float(learning_rate))

    def reset(self) -> Self:
        """New initial weights."""
        bench().reset(self.to_torch())
        return self

    def set_seed(self, seed: int = 123) -> Self:
        """Seed what is random: initial weights and noise."""
        bench().seed(seed)
        return self

    # --- weights ---

    def parameters(self) -> dict[str, dict[str, Array]]:
        """``{layer name: {"weight", "bias", "gradWeight", "gradBias", …}}`` of all layers that have weights."""
        found: dict[str, dict[str, Array]] = bench().parameters(self.to_torch())
        return found

    def get_weights(self) -> list[Array] | None:
        """All weights in order, layer by layer: weight, bias. ``None`` where there are none."""
        found: list[Array] = bench().get_weights(self.to_torch())
        return found or None

    def set_weights(self, weights: Any) -> None:
        """Take over what ``get_weights`` gave; one array alone where there is one.

        Raises:
            PlanError: another number of arrays, or another shape.
        """
        bench().set_weights(self.to_torch(), weights)

    def is_with_weights(self) -> bool:
        """Whether there are weights."""
        return self.get_weights() is not None

    def set_init_method(
        self,
        weight_init_method: InitializationMethod | None = None,
        bias_init_method: InitializationMethod | None = None,
    ) -> Self:
        """How weights begin, from now on and at once."""
        methods = {"weight": weight_init_method, "bias": bias_init_method}
        for name, method in methods.items():
            if method is not None and not isinstance(method, InitializationMethod):
                raise PlanError(
                    f"{name}_init_method is one of firesteel.bigdl.nn.initialization_method, not {method!r}"
                )
        given = {name: method.settings() for name, method in methods.items() if method is not None}
        bench().set_init(self.to_torch(), given)
        return self

    def setWRegularizer(self, wRegularizer: Regularizer | None) -> Self:
        """Regularize the weight from now on; ``None`` stops it."""
        bench().set_regularizer(self.to_torch(), "weight", None if wRegularizer is None else wRegularizer.strengths)
        return self

    def setBRegularizer(self, bRegularizer: Regularizer | None) -> Self:
        """Regularize the bias from now on; ``None`` stops it."""
        bench().set_regularizer(self.to_torch(), "bias", None if bRegularizer is None else bRegularizer.strengths)
        return self

    def set_running_mean(self, running_mean: Any) -> Self:
        """The running mean of a batch normalization."""
        bench().set_running(self.to_torch(), "running_mean", running_mean)
        return self

    def set_running_std(self, running_std: Any) -> Self:
        """The running **variance** of a batch normalization, under BigDL's name."""
        bench().set_running(self.to_torch(), "running_var", running_std)
        return self

    # --- states ---

    def training(self, is_training: bool = True) -> Self:
        """Switch dropout, batch normalization and noise to training, or away from it."""
        self.to_torch().train(bool(is_training))
        return self

    def is_training(self) -> bool:
        """Whether dropout, batch normalization and noise behave as in training."""
        return bool(self.to_torch().training)

    def freeze(self, names: Sequence[str] | None = None) -> Self:
        """Keep the weights of the layers of these names, or all, as they are while the rest trains."""
        bench().freeze(self.to_torch(), _names(names), True)
        return self

    def unfreeze(self, names: Sequence[str] | None = None) -> Self:
        """Let them train again."""
        bench().freeze(self.to_torch(), _names(names), False)
        return self

    # --- using a model ---

    def evaluate(self, dataset: Any = None, batch_size: int | None = None, val_methods: Any = None) -> Any:
        """Without arguments: away from training. Else the validation methods' values over all rows.

        Args:
            dataset: an RDD of ``Sample``, or ``(X, Y)``.
            batch_size: rows at a time.
            val_methods: of ``firesteel.bigdl.optim.optimizer``.

        Returns:
            This layer, or a list of ``EvaluatedResult``.
        """
        if dataset is None and batch_size is None and val_methods is None:
            return self.training(False)
        from firesteel.frontends.bigdl import scoring

        found: list[EvaluatedResult] = scoring.evaluate(self, dataset, batch_size, val_methods)
        return found

    def predict(self, features: Any, batch_size: int = -1) -> Any:
        """Outputs for arrays as an array; for an RDD of ``Sample`` an RDD of arrays, in order."""
        from firesteel.frontends.bigdl import scoring

        return scoring.predict(self, features, batch_size)

    def predict_local(self, X: Any, batch_size: int = -1) -> Any:
        """Outputs for arrays, in this process."""
        from firesteel.frontends.bigdl import scoring

        return scoring.predict_local(self, X, batch_size)

    def predict_distributed(self, data_rdd: Any, batch_size: int = -1) -> Any:
        """Outputs for an RDD of ``Sample``, as an RDD of arrays, lazily and in order."""
        from firesteel.frontends.bigdl import scoring

        return scoring.predict_distributed(self, data_rdd, batch_size)

    def predict_class(self, features: Any, batch_size: int = -1) -> Any:
        """The place of the largest output of each row, from 1."""
        from firesteel.frontends.bigdl import scoring

        return scoring.classes(self.predict(features, batch_size))

    def predict_class_local(self, X: Any, batch_size: int = -1) -> Any:
        """``predict_class`` of arrays."""
        from firesteel.frontends.bigdl import scoring

        return scoring.classes(self.predict_local(X, batch_size))

    def predict_class_distributed(self, data_rdd: Any, batch_size: int = -1) -> Any:
        """``predict_class`` of an RDD of ``Sample``."""
        from firesteel.frontends.bigdl import scoring

        return scoring.classes(self.predict_distributed(data_rdd, batch_size))

    def saveModel(
        self,
        modelPath: str,
        weightPath: str | None = None,
        over_write: bool = False,
    ) -> None:
        """The layers as JSON at ``modelPath``, the weights beside it (``modelPath + ".safetensors"``). No pickle.

        Raises:
            FileExistsError: there is such a file already, unless ``over_write``.
        """
        from firesteel.frontends.bigdl import saving

        saving.save_model(self, modelPath, weightPath, over_write)

    def load_torch(self, path: str) -> Self:
        """A safetensors file's tensors, or a state dict from ``torch.save``, into this layer's weights, by their names.

        The names are those of ``to_torch().state_dict()``.
        """
        from firesteel.frontends.bigdl import saving

        saving.load_weights(self, path)
        return self


class TorchModule(Layer):
    """A torch module as it is. It has weights like any layer, but cannot be written down as JSON."""

    module: Any

    def _make(self) -> Any:
        return self.module

    def children(self) -> Iterator[Layer]:
        """None that we know of."""
        return iter(())

    def input_range(self) -> tuple[int, int | None]:
        """As its ``forward`` has them."""
        least, most = bench().input_range(self.module)
        return int(least), most


class Container(Layer):
    """A layer made of layers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._layers: list[Layer] = []

    def add(self, model: Any) -> Self:
        """Put a layer, or any ``torch.nn.Module``, at the end; returns this container."""
        layer = as_layer(model)
        self._check_added(layer)
        self._layers.append(layer)
        if self._module is not None:
            bench().append(self._module, layer.to_torch())
        return self

    def _check_added(self, layer: Layer) -> None:
        """Raise ``PlanError`` where such a layer has no place here."""
        if layer is self or any(each is self for each in _walk(layer)):
            raise PlanError(f"{type(self).__name__} {self._name!r} cannot be put into itself")

    @property
    def layers(self) -> list[Layer]:
        """The layers, in order."""
        return list(self._layers)

    def flattened_layers(self, include_container: bool = False) -> list[Layer]:
        """All layers in order, those inside of containers too; if wanted, each container after its own layers."""
        found: dict[Layer, None] = {}
        for layer in self.children():
            inside = layer.flattened_layers(include_container) if isinstance(layer, Container) else [layer]
            found |= dict.fromkeys(inside)
        return [*found, self] if include_container else list(found)

    def children(self) -> Iterator[Layer]:
        """The settings' layers and those added."""
        yield from super().children()
        yield from self._layers

    def _make(self) -> Any:
        names = [layer.name() for layer in dict.fromkeys(_walk(self))]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise PlanError(f"two layers of {self._name!r} are called {twice!r}; give one of them another name")
        made = super()._make()
        for layer in self._layers:
            bench().append(made, layer.to_torch())
        return made


def as_layer(value: Any) -> Layer:
    """A layer as it is, or the one that holds a torch module."""
    if isinstance(value, Layer):
        return value
    if not isinstance(value, type) and bench().accepts(value):
        return TorchModule(value)
    kind = value.__name__ if isinstance(value, type) else type(value).__qualname__
    hint = f"; did you mean {kind}(…)?" if isinstance(value, type) and issubclass(value, Layer) else ""
    raise PlanError(f"a container takes layers of firesteel.bigdl.nn.layer and torch modules, not {kind}{hint}")


# --- settings that are layers or regularizers ---


@dataclass(frozen=True)
class _PartLimit(Limit):
    def plain(self, value: Any) -> Any:
        """The layer, or the layers."""
        try:
            return tuple(as_layer(each) for each in value) if self.many else as_layer(value)
        except PlanError:
            raise ValueError from None


@dataclass(frozen=True)
class _ActivationLimit(Limit):
    def plain(self, value: Any) -> Any:
        """The layer that this is, or that this name means."""
        from firesteel.frontends.bigdl.layers.activations import BY_NAME

        return BY_NAME[value.lower()]() if isinstance(value, str) and value.lower() in BY_NAME else _PART.plain(value)


@dataclass(frozen=True)
class _RegularizerLimit(Limit):
    def plain(self, value: Any) -> Any:
        """The regularizer."""
        if not isinstance(value, Regularizer):
            raise ValueError
        return value


_PART = _PartLimit("a layer")
Part = Annotated[Any, _PART]
Parts = Annotated[Sequence[Any], _PartLimit("a list of layers", many=True)]
Activation = Annotated[Any, _ActivationLimit('a layer, or the name of an activation such as "tanh"')]
Regularized = Annotated[Regularizer, _RegularizerLimit("an L1Regularizer, L2Regularizer or L1L2Regularizer")]


# --- graphs ---


class Node:
    """A layer's place in a graph, and the nodes that feed it."""

    def __init__(self, layer: Layer, nodes: Sequence[Node] = ()) -> None:
        self.layer = layer
        self.nodes = tuple(nodes)

    @classmethod
    def of(cls, layer: Layer, nodes: Node | Sequence[Node] | None) -> Node:
        """The node of a layer that is called with these nodes."""
        given: list[Any] = [] if nodes is None else list(nodes) if isinstance(nodes, (list, tuple)) else [nodes]
        for each in given:
            if not isinstance(each, Node):
                found = type(each).__qualname__
                raise PlanError(
                    f"{type(layer).__name__} is called with nodes of a graph (begin with Input()), not {found}"
                )
        return cls(layer, given)

    def element(self) -> Layer:
        """The layer."""
        return self.layer

    def __repr__(self) -> str:
        return f"Node({self.layer!r}, fed by {len(self.nodes)})"


class _Entry(Layer):
    """Where a graph's input comes in: gives what it gets."""


class Input(Node):
    """The beginning of a graph."""

    def __init__(self, *, bigdl_type: str = "float") -> None:
        super().__init__(_Entry(bigdl_type=bigdl_type))
        self.layer.set_name(f"Input{secrets.token_hex(4)}")


def _for_bench(value: Any) -> Any:
    if isinstance(value, Layer):
        return value.to_torch()
    if isinstance(value, Regularizer):
        return value.strengths
    if isinstance(value, (list, tuple)):
        return tuple(_for_bench(each) for each in value)
    if isinstance(value, Mapping):
        return {key: _for_bench(each) for key, each in value.items()}
    return value


def _walk(layer: Layer) -> Iterator[Layer]:
    """The layer and everything in it, outer ones first."""
    yield layer
    for child in layer.children():
        yield from _walk(child)


def _names(names: Sequence[str] | None) -> list[str] | None:
    if names is None:
        return None
    return [names] if isinstance(names, str) else list(names)
