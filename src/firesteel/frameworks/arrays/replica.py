"""A function living in a process: one call on a block, or all rows of a batch, each by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from firesteel.core.errors import PlanError
from firesteel.core.program import Program
from firesteel.core.spec import Batch
from firesteel.frameworks.arrays.kinds import make_kind
from firesteel.frameworks.arrays.program import ArraysContent, Call
from firesteel.frameworks.arrays.rowwise import OneByOne

__all__ = ["ArraysReplica"]

Array = npt.NDArray[Any]

_FEW_ROWS = 4  # which need no second way


class ArraysReplica:
    """See ``core.columns.ColumnReplica``."""

    def __init__(self, program: Program, device: str = "cpu", threads: int = 1) -> None:
        content: ArraysContent = program.content
        self._kind = make_kind(content.kind, device, threads)
        self._call = Call(content)
        self._function = self._call.bind(self._kind.prepare(content.function))
        self._names = content.fed
        self._is_by_row = False

    def forward(self, batch: Batch) -> dict[str, Array]:
        """One call with these arrays."""
        with self._kind.context():
            return self._one([batch[name] for name in self._names])

    def rows(self, batch: Batch) -> dict[str, Any]:
        """The function on each row: at once where its library or ``Rows`` can, and a few rows prove it the same."""
        arrays = [batch[name] for name in self._names]
        with self._kind.context():
            if not self._is_by_row and len(arrays[0]) > _FEW_ROWS:
                found = self._at_once(arrays)
                if found is not None:
                    return found
                self._is_by_row = True
            return self._by_row(arrays)

    def _one(self, arrays: list[Array]) -> dict[str, Array]:
        result = self._function(*map(self._kind.enter, arrays))
        return {name: self._kind.leave(value, name) for name, value in self._call.named(result).items()}

    def _at_once(self, arrays: list[Array]) -> dict[str, Any] | None:
        rows = len(arrays[0])
        try:
            result = self._kind.several(self._function, arrays)
            named = self._call.named(result)
            found = {name: self._kind.at_once(value, rows, name) for name, value in named.items()}
            for place in {0, rows // 2, rows - 1}:
                if not _agree(self._one([array[place] for array in arrays]), found, place):
                    return None
        except PlanError:
            raise
        except (OneByOne, Exception):  # noqa: BLE001 - rows one by one show whose error it is
            return None
        return found

    def _by_row(self, arrays: list[Array]) -> dict[str, Any]:
        results = [self._one(list(cells)) for cells in zip(*arrays, strict=True)]
        return {name: _stacked([result[name] for result in results]) for name in results[0]}


def _agree(one: dict[str, Array], found: dict[str, Any], place: int) -> bool:
    """Whether a row computed alone is what it was among others, up to the order of additions."""
    if list(one) != list(found):
        return False
    for name, value in one.items():
        other = found[name][place]
        if value.shape != other.shape or value.dtype != other.dtype:
            return False
        if value.dtype.kind == "f":
            limit = 32 * np.finfo(value.dtype).eps
            scale = np.abs(value).max(initial=0, where=np.isfinite(value))
            if not np.allclose(value, other, rtol=limit, atol=limit * scale, equal_nan=True):
                return False
        elif not np.array_equal(value, other):
            return False
    return True


def _stacked(values: list[Array]) -> Any:
    """One array where all have one shape; else the list."""
    if len({value.shape for value in values}) > 1:
        return values
    if values[0].dtype.kind in "OSU":
        whole = np.empty((len(values), *values[0].shape), object)
        for place, value in enumerate(values):
            whole[place] = value[()]
        return whole
    return np.stack(values)
