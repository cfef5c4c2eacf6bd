"""What an element of a dataset looks like: which tensors, under which names, in which structure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from firesteel.core.errors import PlanError
from firesteel.core.spec import Batch
from firesteel.data.packed import pack, pack_error

__all__ = ["Field", "Layout", "packed_rows", "stated", "typed_rows"]

_FORBIDDEN = re.compile(r"[^A-Za-z0-9_.\\/>-]")


@dataclass(frozen=True)
class Field:
    """One tensor of an element: NumPy's name of its dtype (``"string"`` for strings), a row's shape, its name."""

    dtype: str
    shape: tuple[int | None, ...]
    name: str

    def row(self, value: Any) -> Any:
        """A row's value, cast and checked; ``ValueError`` with the tensor's name. Runs in tasks."""
        if self.dtype == "string":
            cells = np.asarray(value, object)
            found = np.vectorize(_encoded, otypes=[object])(cells) if cells.size else cells
        else:
            try:
                found = np.asarray(value, self.dtype)
            except (TypeError, ValueError) as error:
                raise ValueError(f"a row of tensor {self.name!r} cannot become {self.dtype}: {error}") from error
        fits = len(found.shape) == len(self.shape)
        if not fits or any(want not in (None, have) for want, have in zip(self.shape, found.shape, strict=True)):
            raise ValueError(
                f"a row of tensor {self.name!r} has shape {found.shape}, and shape {_shown(self.shape)} was declared"
            )
        return found


@dataclass(frozen=True)
class Layout:
    """A structure of fields.

    Attributes:
        features: a ``Field``, or a list or dict of them; in the flat form a list.
        labels: likewise; ``None`` where there are none.
        is_flat: the document's form: rows are lists of arrays, of which the first so many are used.
        is_bare: the features are not put into a tuple for the user.
    """

    features: Any
    labels: Any = None
    is_flat: bool = False
    is_bare: bool = False

    @property
    def fields(self) -> dict[str, Field]:
        """All fields by their names in a batch: ``x0``, ``x1``, … or ``x.key``, …, then labels with ``y``."""
        found = _named("x", self.features)
        return found if self.labels is None else found | _named("y", self.labels)

    @property
    def structure(self) -> Any:
        """The fields as users see them: a list in the flat form, else a tuple."""
        if self.is_flat:
            return list(self.features)
        if self.is_bare:
            return self.features
        return (self.features,) if self.labels is None else (self.features, self.labels)

    def parts(self, element: Any) -> list[Any]:
        """The values of an element, in the order of ``fields``. Runs in tasks."""
        if self.is_flat:
            values = list(element) if isinstance(element, (list, tuple)) else [element]
            if len(values) < len(self.features):
                names = ", ".join(field.name for field in self.features)
                raise ValueError(f"an element has {len(values)} arrays, and {len(self.features)} are declared: {names}")
            return values[: len(self.features)]
        if self.labels is None:
            is_alone = isinstance(element, tuple) and len(element) == 1 and isinstance(self.features, Field)
            return _pick(self.features, element[0] if is_alone else element)
        if not isinstance(element, (tuple, list)) or len(element) != 2:
            raise ValueError(f"an element must be (features, labels), not {type(element).__qualname__}")
        return _pick(self.features, element[0]) + _pick(self.labels, element[1])

    def typed(self, element: Any) -> list[Any]:
        """The values of an element, cast and checked. Runs in tasks."""
        return [field.row(value) for field, value in zip(self.fields.values(), self.parts(element), strict=True)]


def _named(letter: str, part: Any) -> dict[str, Field]:
    if isinstance(part, Mapping) and all(isinstance(field, Field) for field in part.values()):
        return {f"{letter}.{key}": field for key, field in part.items()}
    return {f"{letter}{place}": field for place, field in enumerate(leaves(part))}


def stated(given: Any, names: Callable[[int | str | None], str], what: str, dtype_of: Callable[[Any], str]) -> Any:
    """Fields from ``(dtype, shape)``, or a list or dict of such; ``names`` says what each is called."""
    if isinstance(given, Mapping):
        return {key: _field(value, _plain(str(key)), what, dtype_of) for key, value in given.items()}
    if isinstance(given, list):
        return [_field(value, names(place), what, dtype_of) for place, value in enumerate(given)]
    return _field(given, names(None), what, dtype_of)


def leaves(structure: Any) -> Iterator[Any]:
    """What a structure holds, in order."""
    if isinstance(structure, Mapping):
        for part in structure.values():
            yield from leaves(part)
    elif isinstance(structure, (list, tuple)):
        for part in structure:
            yield from leaves(part)
    else:
        yield structure


def rebuilt(structure: Any, values: Iterator[Any]) -> Any:
    """The same structure with other leaves."""
    if isinstance(structure, Mapping):
        return {key: rebuilt(part, values) for key, part in structure.items()}
    if isinstance(structure, (list, tuple)):
        parts = [rebuilt(part, values) for part in structure]
        return parts if isinstance(structure, list) else tuple(parts)
    return next(values)


def packed_rows(layout: Layout, rows: int, elements: Iterable[Any]) -> Iterator[tuple[str, bytes]]:
    """Elements stacked into packed blocks of so many rows; what is wrong with one comes as a value. Runs in tasks."""
    source = iter(elements)
    try:
        while block := [layout.typed(element) for element in islice(source, rows)]:
            yield pack(_stacked(layout, block))
    except ValueError as error:
        yield pack_error(ValueError(str(error)))


def typed_rows(layout: Layout, elements: Iterable[Any]) -> Iterator[Any]:
    """Elements as ``(x, y)`` of checked arrays in the layout's structure, or ``x``. Runs in tasks."""
    for element in elements:
        found = rebuilt(layout.structure, iter(layout.typed(element)))
        yield found[0] if layout.labels is None and isinstance(found, tuple) else found


def _stacked(layout: Layout, rows: Sequence[Sequence[Any]]) -> Batch:
    batch: Batch = {}
    for (name, field), values in zip(layout.fields.items(), zip(*rows, strict=True), strict=True):
        shapes = {value.shape for value in values}
        if len(shapes) > 1:
            one, other = sorted(shapes)[:2]
            raise ValueError(f"rows of tensor {field.name!r} in one batch have the shapes {one} and {other}")
        batch[name] = np.stack(values) if values[0].dtype != object else _objects(values)
    return batch


def _objects(values: Sequence[Any]) -> Any:
    found = np.empty((len(values), *values[0].shape), object)
    for place, value in enumerate(values):
        found[place] = value[()]
    return found


def _pick(fields: Any, value: Any) -> list[Any]:
    if isinstance(fields, Mapping):
        missing = [key for key in fields if not isinstance(value, Mapping) or key not in value]
        if missing:
            raise ValueError(f"an element has no {', '.join(map(repr, missing))}; declared are: {', '.join(fields)}")
        return [value[key] for key in fields]
    if isinstance(fields, list):
        if not isinstance(value, (list, tuple)) or len(value) != len(fields):
            count = len(value) if isinstance(value, (list, tuple)) else 1
            names = ", ".join(field.name for field in fields)
            raise ValueError(f"an element has {count} arrays where {len(fields)} are declared: {names}")
        return list(value)
    return [value]


def _field(given: Any, name: str, what: str, dtype_of: Callable[[Any], str]) -> Field:
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise PlanError(f"{what} must be (dtype, shape), or a list or dict of such, not {given!r}")
    dtype, shape = given
    return Field(dtype_of(dtype), checked_shape(shape, name), name)


def checked_shape(shape: Any, name: str) -> tuple[int | None, ...]:
    """A declared shape; ``PlanError`` where there is none."""
    if shape is None:
        raise PlanError(f"tensor {name!r} needs a shape: [] for a scalar, None inside it for a size that is not known")
    try:
        return tuple(None if length is None or int(length) < 0 else int(length) for length in shape)
    except (TypeError, ValueError):
        raise PlanError(f"the shape of tensor {name!r} must be a list of sizes, not {shape!r}") from None


def _plain(name: str) -> str:
    """A name as TensorFlow takes it for an op."""
    found = _FORBIDDEN.sub("_", name)
    return found if re.match(r"[A-Za-z0-9.]", found) else f"t{found}"


def _encoded(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _shown(shape: Sequence[int | None]) -> str:
    inner = ", ".join("?" if length is None else str(length) for length in shape)
    return f"({inner},)" if len(shape) == 1 else f"({inner})"
