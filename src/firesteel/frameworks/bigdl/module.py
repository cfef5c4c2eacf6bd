"""What BigDL's layers have in common on torch: a label, BigDL's order and shape of weights, errors that name them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from firesteel.core.errors import PlanError
from firesteel.frameworks.bigdl import initialization

__all__ = ["KINDS", "Container", "Layer", "Settings", "axis_of", "kind", "leaves", "shape_of"]

Settings = SimpleNamespace
"""A layer's settings by BigDL's names; ``dtype`` among them."""

KINDS: dict[str, Callable[[Settings], nn.Module]] = {}
"""What makes a layer's module, by the layer's name."""


def kind(*names: str) -> Callable[[Any], Any]:
    """Enter a class, or a function of the settings, under these names; a class's own name by default."""

    def enter(maker: Any) -> Any:
        for name in names or (maker.__name__,):
            KINDS[name] = maker
        return maker

    return enter


class Layer(nn.Module):
    """A module that is one of BigDL's layers. Its weights are torch's; to BigDL's users they show in BigDL's shape."""

    label: str = ""
    order: ClassVar[tuple[str, ...]] = ("weight", "bias")
    """Names of the parameters in BigDL's order; those that are ``None`` are left out."""
    takes_integers: ClassVar[bool] = False
    """Whether whole numbers go in as they are; else they become floats."""
    is_container: ClassVar[bool] = False

    # Not in __init__: these classes stand before torch's own in the line of bases, and have its constructor.
    regularizers: dict[str, tuple[float, float]]
    methods: dict[str, dict[str, Any]]
    given: dict[str, Any]

    def settle(self, label: str, settings: Settings, dtype: torch.dtype) -> None:
        """Take the name and what does not concern the arithmetic, and fill the weights."""
        self.label, self.number = label, dtype
        self.regularizers, self.methods, self.given = {}, {}, {}
        for part, setting in _REGULARIZERS.items():
            strengths = _first(settings, setting)
            if strengths is not None:
                for name in self.regularized(part):
                    self.regularizers[name] = strengths
        for name in ("weight", "bias"):
            if getattr(settings, f"init_{name}", None) is not None:
                self.given[name] = getattr(settings, f"init_{name}")
        self.reset()

    def regularized(self, part: str) -> tuple[str, ...]:
        """The parameters that a regularizer of ``"weight"``, ``"bias"``, ``"hidden"`` or ``"point"`` is for."""
        return (part,) if getattr(self, part, None) is not None else ()

    # --- weights ---

    def named_weights(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The parameters in BigDL's order."""
        for name in self.order:
            parameter = getattr(self, name, None)
            if parameter is not None:
                yield name, parameter

    def show(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """A parameter, or its gradient, in BigDL's shape."""
        return tensor

    def take(self, name: str, array: Any) -> torch.Tensor:
        """An array in BigDL's shape as the parameter of this name; ``PlanError`` where the shape is another."""
        parameter = getattr(self, name)
        expected = tuple(self.show(name, parameter).shape)
        tensor = torch.as_tensor(np.array(array), dtype=parameter.dtype)
        if tuple(tensor.shape) != expected and not (tensor.numel() == 1 and parameter.numel() == 1):
            raise PlanError(
                f"{name} of {self.title} has shape {expected}, but the array given has shape {tuple(tensor.shape)}"
            )
        return self.unshow(name, tensor.reshape(expected))

    def unshow(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """The reverse of ``show``."""
        return tensor

    # --- the beginning ---

    def reset(self) -> None:
        """Initial weights: those given, or by the method that was set, or the layer's own way."""
        with torch.no_grad():
            for name, parameter in self.named_weights():
                part = "bias" if "bias" in name else "weight"
                if name in self.given:
                    parameter.copy_(self.take(name, self.given[name]))
                elif part in self.methods and name in ("weight", "bias"):
                    initialization.fill(parameter, self.methods[part], *self.fans(name))
                else:
                    self.begin(name, parameter)

    def begin(self, name: str, parameter: torch.Tensor) -> None:
        """The layer's own way to fill a parameter: uniform in ±1/√fan_in of the weight."""
        self.spread(parameter, self.fans("weight")[0])

    def spread(self, parameter: torch.Tensor, fan_in: int) -> None:
        """Uniform in ±1/√fan_in."""
        bound = 1 / math.sqrt(max(1, fan_in))
        parameter.uniform_(-bound, bound)

    def fans(self, name: str) -> tuple[int, int]:
        """How many numbers go into, and out of, one unit of this parameter."""
        parameter = getattr(self, name)
        if parameter.dim() < 2:
            return parameter.numel(), 1
        return parameter.shape[1], parameter.shape[0]

    # --- being called ---

    @property
    def title(self) -> str:
        """Kind and name, for messages."""
        return f"{type(self).__name__} {self.label!r}"

    def expects(self) -> str | None:
        """What an input looks like, for messages."""
        return None

    def __call__(self, *inputs: Any) -> Any:
        if not self.takes_integers:
            inputs = tuple(_floats(each, self.number) for each in inputs)
        if self.is_container:
            return super().__call__(*inputs)
        try:
            return super().__call__(*inputs)
        except PlanError:
            raise
        except (RuntimeError, ValueError, IndexError, TypeError, AttributeError) as error:
            why = str(error).partition("\n")[0]
            wanted = self.expects()
            takes = "" if wanted is None else f" takes {wanted} and"
            raise PlanError(f"{self.title}{takes} cannot use an input of shape {shape_of(*inputs)}: {why}") from error


class Container(Layer):
    """A layer that calls others. ``parts`` are those, in order."""

    is_container = True
    takes_integers = True
    order = ()

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.parts = nn.ModuleList()

    def append(self, module: nn.Module) -> None:
        """Put one more at the end."""
        self.parts.append(module)


def leaves(module: nn.Module) -> Iterator[nn.Module]:
    """The modules that have weights of their own, in order, each once."""
    seen: set[int] = set()

    def walk(at: nn.Module) -> Iterator[nn.Module]:
        if id(at) in seen:
            return
        seen.add(id(at))
        if isinstance(at, Layer):
            if any(True for _ in at.named_weights()):
                yield at
            for child in at.children():
                yield from walk(child)
        elif isinstance(at, (nn.ModuleList, nn.ModuleDict)):
            for child in at.children():
                yield from walk(child)
        elif any(True for _ in at.parameters()):
            yield at

    yield from walk(module)


def axis_of(layer: Layer, axis: int, dims: int, row_dims: int | None = None, *, extra: int = 0) -> int:
    """An axis from 0, for one that counts from 1 or from the end; ``row_dims`` axes make a row, one more a batch.

    ``extra``: how many axes more than the input there may be.
    """
    is_batch = row_dims is not None and row_dims > 0 and dims == row_dims + 1
    place = axis - 1 + is_batch if axis > 0 else dims + extra + axis
    if not 0 <= place < dims + extra:
        raise PlanError(f"{layer.title} has no axis {axis} in an input of {dims} axes")
    return place


def shape_of(*inputs: Any) -> str:
    """Shapes of what came in, for messages."""
    return ", ".join(map(_shape, inputs))


def _shape(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return str(tuple(value.shape))
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_shape, value))}]"
    return type(value).__name__


def _floats(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        return value if value.is_floating_point() else value.to(dtype)
    if isinstance(value, (list, tuple)):
        return [_floats(each, dtype) for each in value]
    return value


_REGULARIZERS = {
    "weight": ("wRegularizer", "w_regularizer", "weight_regularizer"),
    "bias": ("bRegularizer", "b_regularizer", "bias_regularizer"),
    "hidden": ("uRegularizer",),
    "point": ("p_regularizer",),
}


def _first(settings: Settings, names: Sequence[str]) -> Any:
    return next((found for name in names if (found := getattr(settings, name, None)) is not None), None)
