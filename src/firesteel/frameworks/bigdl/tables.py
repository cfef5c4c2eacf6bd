"""Layers between tables: lists of tensors."""

from __future__ import annotations

from functools import reduce
from itertools import combinations
from typing import Any

import torch
from torch.nn import functional

from firesteel.core.errors import PlanError
from firesteel.frameworks.bigdl.module import Container, Settings, axis_of, kind, shape_of
from firesteel.frameworks.bigdl.shapes import Shaping, slice_axis

__all__ = ["OfTable"]


class OfTable(Shaping):
    """Takes a table."""

    takes_integers = False

    def __call__(self, *inputs: Any) -> Any:
        if not isinstance(inputs[0], (list, tuple)):
            raise PlanError(f"{self.title} takes a table (a list of arrays), not {shape_of(*inputs)}")
        return super().__call__(*inputs)

    def two(self, inputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        if len(inputs) != 2:
            raise PlanError(f"{self.title} takes a table of two, not of {len(inputs)}")
        return tuple(inputs)

    def expects(self) -> str:
        return "a table of arrays that fit together"


@kind()
class CAddTable(OfTable):
    def forward(self, inputs: Any) -> torch.Tensor:
        return reduce(torch.add, inputs)


@kind()
class CSubTable(OfTable):
    def forward(self, inputs: Any) -> torch.Tensor:
        return torch.sub(*self.two(inputs))


@kind()
class CMulTable(OfTable):
    def forward(self, inputs: Any) -> torch.Tensor:
        return reduce(torch.mul, inputs)


@kind()
class CDivTable(OfTable):
    def forward(self, inputs: Any) -> torch.Tensor:
        return torch.div(*self.two(inputs))


@kind()
class CMaxTable(OfTable):
    def forward(self, inputs: Any) -> torch.Tensor:
        return reduce(torch.maximum, inputs)


@kind()
class CMinTable(OfTable):
    def forward(self, inputs: Any) -> torch.Tensor:
        return reduce(torch.minimum, inputs)


@kind()
class CAveTable(OfTable):
    def forward(self, inputs: Any) -> torch.Tensor:
        return reduce(torch.add, inputs) / len(inputs)


@kind()
class TableOperation(OfTable):
    is_container = True

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.operation, self.settings = settings.operation_layer, None

    def forward(self, inputs: Any) -> Any:
        first, second = self.two(inputs)
        if first.dim() != second.dim():
            small, large = sorted((first, second), key=torch.Tensor.dim)
            small = small.reshape(*small.shape, *[1] * (large.dim() - small.dim()))
            first, second = (small, second) if first.dim() < second.dim() else (first, small)
        return self.operation(list(torch.broadcast_tensors(first, second)))


@kind()
class JoinTable(OfTable):
    takes_integers = True

    def forward(self, inputs: Any) -> torch.Tensor:
        axis = axis_of(self, self.settings.dimension, inputs[0].dim(), self.settings.n_input_dims)
        return torch.cat(list(inputs), axis)


@kind()
class Pack(OfTable):
    takes_integers = True

    def forward(self, inputs: Any) -> torch.Tensor:
        return torch.stack(list(inputs), axis_of(self, self.settings.dimension, inputs[0].dim(), extra=1))


@kind()
class SplitTable(Shaping):
    def forward(self, values: torch.Tensor) -> list[torch.Tensor]:
        return list(values.unbind(axis_of(self, self.settings.dimension, values.dim(), self.settings.n_input_dims)))


@kind()
class BifurcateSplitTable(Shaping):
    def forward(self, values: torch.Tensor) -> list[torch.Tensor]:
        axis = axis_of(self, self.settings.dimension, values.dim())
        size = values.shape[axis]
        return list(values.split([size // 2, size - size // 2], axis))


@kind()
class SelectTable(OfTable):
    takes_integers = True

    def forward(self, inputs: Any) -> Any:
        return inputs[slice_axis(self, self.settings.index, 1, len(inputs))[0]]


@kind()
class NarrowTable(OfTable):
    takes_integers = True

    def forward(self, inputs: Any) -> list[Any]:
        begin, count = slice_axis(self, self.settings.offset, self.settings.length, len(inputs))
        return list(inputs[begin : begin + count])


@kind()
class FlattenTable(OfTable):
    takes_integers = True

    def forward(self, inputs: Any) -> list[torch.Tensor]:
        return _flat(inputs)


def _flat(value: Any) -> list[torch.Tensor]:
    return [leaf for each in value for leaf in _flat(each)] if isinstance(value, (list, tuple)) else [value]


@kind()
class MixtureTable(OfTable):
    def forward(self, inputs: Any) -> torch.Tensor:
        gater, experts = self.two(inputs)
        if isinstance(experts, (list, tuple)):
            axis = gater.dim() - 1
            experts = torch.stack(list(experts), axis)
        else:
            axis = gater.dim() - 1 if self.settings.dim is None else axis_of(self, self.settings.dim, experts.dim())
        if experts.shape[axis] != gater.shape[-1]:
            raise PlanError(f"{self.title} has {gater.shape[-1]} weights for {experts.shape[axis]} experts")
        shape = [1] * experts.dim()
        shape[axis] = gater.shape[-1]
        if gater.dim() == 2:
            shape[0] = gater.shape[0]
        return (gater.reshape(shape) * experts).sum(axis)


@kind()
class DotProduct(OfTable):
    def forward(self, inputs: Any) -> torch.Tensor:
        first, second = self.two(inputs)
        return (first * second).sum(-1)


@kind()
class CosineDistance(OfTable):
    def forward(self, inputs: Any) -> torch.Tensor:
        return functional.cosine_similarity(*self.two(inputs), dim=-1, eps=1e-12)


@kind()
class PairwiseDistance(OfTable):
    def forward(self, inputs: Any) -> torch.Tensor:
        first, second = self.two(inputs)
        return torch.linalg.vector_norm(first - second, self.settings.norm, dim=-1)


@kind()
class CrossProduct(OfTable):
    def forward(self, inputs: Any) -> torch.Tensor:
        wanted, width = self.settings.numTensor, self.settings.embeddingSize
        if wanted and len(inputs) != wanted:
            raise PlanError(f"{self.title} takes {wanted} arrays, not {len(inputs)}")
        if width and any(each.shape[-1] != width for each in inputs):
            raise PlanError(f"{self.title} takes arrays of width {width}, not {shape_of(*inputs)}")
        return torch.stack([(one * other).sum(-1) for one, other in combinations(inputs, 2)], -1)


@kind()
class MM(OfTable):
    def forward(self, inputs: Any) -> torch.Tensor:
        first, second = self.two(inputs)
        return _turned(first, self.settings.trans_a) @ _turned(second, self.settings.trans_b)


@kind()
class MV(OfTable):
    def forward(self, inputs: Any) -> torch.Tensor:
        matrix, vector = self.two(inputs)
        return (_turned(matrix, self.settings.trans) @ vector.unsqueeze(-1)).squeeze(-1)


@kind()
class Gemm(OfTable):
    def forward(self, inputs: Any) -> torch.Tensor:
        if len(inputs) != 3:
            raise PlanError(f"{self.title} takes a table of three, not of {len(inputs)}")
        first, second, third = inputs
        product = _turned(first, self.settings.trans_a) @ _turned(second, self.settings.trans_b)
        return self.settings.alpha * product + self.settings.beta * third


def _turned(matrix: torch.Tensor, is_turned: bool) -> torch.Tensor:
    return matrix.transpose(-1, -2) if is_turned else matrix


@kind()
class GaussianSampler(OfTable):
    def forward(self, inputs: Any) -> torch.Tensor:
        mean, variance = self.two(inputs)
        return mean + torch.randn_like(mean) * (variance / 2).exp()


# --- containers -------------------------------------------------------------------------------------------------------


@kind()
class Sequential(Container):
    def forward(self, values: Any) -> Any:
        for part in self.parts:
            values = part(values)
        return values


@kind()
class Concat(Container):
    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.axis = settings.dimension

    def forward(self, values: Any) -> torch.Tensor:
        outputs = [part(values) for part in self.parts]
        axis = axis_of(self, self.axis, outputs[0].dim())
        try:
            return torch.cat(outputs, axis)
        except RuntimeError as error:
            raise PlanError(f"{self.title} cannot join outputs of shapes {shape_of(*outputs)}: {error}") from error


@kind()
class ConcatTable(Container):
    def forward(self, values: Any) -> list[Any]:
        return [part(values) for part in self.parts]


@kind()
class ParallelTable(Container):
    def forward(self, inputs: Any) -> list[Any]:
        if not isinstance(inputs, (list, tuple)) or len(inputs) != len(self.parts):
            raise PlanError(f"{self.title} takes a table of {len(self.parts)}, not {shape_of(inputs)}")
        return [part(values) for part, values in zip(self.parts, inputs, strict=True)]


@kind()
class MapTable(Container):
    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        if settings.module is not None:
            self.append(settings.module)

    def forward(self, inputs: Any) -> list[Any]:
        if not isinstance(inputs, (list, tuple)):
            raise PlanError(f"{self.title} takes a table, not {shape_of(inputs)}")
        return [self.parts[0](values) for values in inputs]


@kind()
class Bottle(Container):
    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.append(settings.module)
        self.takes = settings.n_input_dim  # what comes out unfolds by itself, however many axes the layer gives

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        folded = values.dim() - self.takes + 1
        if folded <= 1:
            return self.parts[0](values)
        leading = values.shape[:folded]
        made = self.parts[0](values.flatten(0, folded - 1))
        return made.unflatten(0, leading)


@kind()
class TimeDistributed(Container):
    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.append(settings.model)

    def forward(self, values: Any) -> Any:
        rows, steps = _leading(values)
        return _each(self.parts[0](_each(values, lambda t: t.flatten(0, 1))), lambda t: t.unflatten(0, (rows, steps)))


def _leading(values: Any) -> Any:
    return values.shape[:2] if isinstance(values, torch.Tensor) else _leading(values[0])


def _each(values: Any, change: Any) -> Any:
    return change(values) if isinstance(values, torch.Tensor) else [_each(value, change) for value in values]


@kind()
class Model(Container):
    """A graph: nodes in an order in which each comes after those that feed it."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        graph = settings.graph
        self.nodes, self.entries, self.exits = graph["nodes"], graph["inputs"], graph["outputs"]
        self.stopped = set(graph["stopped"])
        last: dict[int, int] = {}
        for place, (_, edges) in enumerate(self.nodes):
            last |= dict.fromkeys(edges, place)
        kept = set(self.exits)
        self.spent = [
            [at for at, end in last.items() if end == place and at not in kept] for place in range(len(self.nodes))
        ]

    def forward(self, values: Any) -> Any:
        inputs = [values] if len(self.entries) == 1 else values
        if not isinstance(inputs, (list, tuple)) or len(inputs) != len(self.entries):
            raise PlanError(f"{self.title} takes a table of {len(self.entries)} inputs, not {shape_of(values)}")
        found: dict[int, Any] = {}
        given = dict(zip(self.entries, inputs, strict=True))
        for place, (part, edges) in enumerate(self.nodes):
            fed = [found[edge] for edge in edges]
            made = self.parts[part](given[place] if place in given else fed[0] if len(fed) == 1 else fed)
            found[place] = _each(made, torch.Tensor.detach) if place in self.stopped else made
            for at in self.spent[place]:
                del found[at]  # nobody needs it any more
        outputs = [found[place] for place in self.exits]
        return outputs[0] if len(outputs) == 1 else outputs
