"""The four forms in which the engine takes rows, and what the user said about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from firesteel.core.errors import SchemaError
from firesteel.core.spec import Batch
from firesteel.data.reading import Reading
from firesteel.data.spool import heap_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Asked", "Columns", "Frame", "Local", "Packed", "Source", "Streamed"]


@dataclass(frozen=True)
class Frame:
    """Rows of a Spark DataFrame."""

    df: DataFrame
    reading: Reading


@dataclass(frozen=True)
class Packed:
    """Blocks of rows in a Spark DataFrame (``data.packed``)."""

    df: DataFrame
    names: tuple[str, ...]
    cells: tuple[str, ...] = ()
    """Those of them that hold bytes."""

    @property
    def files(self) -> tuple[str, ...]:
        """The files that these rows take in a spool."""
        return (*self.names, *map(heap_of, self.cells))


@dataclass(frozen=True)
class Local:
    """Arrays on the driver."""

    batch: Batch


@dataclass(frozen=True)
class Streamed:
    """A loader, or a creator that makes one in each replica."""

    source: Any
    is_creator: bool


Source = Frame | Packed | Local | Streamed


@dataclass(frozen=True)
class Columns:
    """What the user said about columns. ``verb`` is "training" or "prediction", for messages."""

    features: tuple[str, ...] | None
    labels: tuple[str, ...] | None
    weight: str | None
    verb: str

    @classmethod
    def of(cls, features: Any, labels: Any, weight: str | None, verb: str) -> Columns:
        """Names alone or in lists."""
        return cls(_names(features, "feature_cols"), _names(labels, "label_cols"), weight, verb)

    def require(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Features and labels, where both are needed."""
        if self.features is None:
            raise SchemaError(f"feature columns is None in {self.verb}; pass feature_cols")
        if self.labels is None and self.verb != "prediction":
            raise SchemaError(f"label columns is None in {self.verb}; pass label_cols")
        return self.features, self.labels or ()


def _names(value: Any, what: str) -> tuple[str, ...] | None:
    if value is None:
        return None
    names = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    if not names or not all(isinstance(name, str) for name in names):
        raise SchemaError(f"{what} must be a column's name or a list of names, not {value!r}")
    return names


@dataclass(frozen=True)
class Asked:
    """What a door asks of the data.

    Attributes:
        columns: what the user said about columns.
        inputs: how many inputs the model takes, at least and at most; asked only where it matters.
        is_loader: whether an object is the framework's own loader.
        counts_inputs: whether arrays must be as many as the inputs; not where the user's own code feeds the model.
        takes_strings: whether the model can be fed strings and bytes.
        dtypes: which numbers it wants of columns, by tensor, where not the default ones.
        outputs: how many outputs labels are for, where that is known: several label columns of one are joined.
    """

    columns: Columns
    inputs: Callable[[], tuple[int, int | None]]
    is_loader: Callable[[object], bool]
    counts_inputs: bool = True
    takes_strings: bool = False
    dtypes: Mapping[str, str] | None = None
    outputs: int | None = None
