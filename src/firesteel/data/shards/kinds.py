"""What a shard is, and the words in which errors say it. No Spark here, and pandas only where it is loaded already."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from firesteel.core.errors import PlanError, SchemaError
from firesteel.data.structure import type_name

__all__ = ["Kind", "check_columns", "check_positive", "is_frame", "is_series", "kind_of", "listed", "type_name"]


def check_positive(name: str, value: object) -> None:
    """Refuse what is no positive int."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise PlanError(f"{name} must be a positive int, found {value!r}")


def check_columns(operation: str, names: Iterable[Any], columns: Sequence[Any]) -> None:
    """Refuse a column that is not there."""
    for name in names:
        if name not in columns:
            raise SchemaError(
                f"{operation}: column {name!r} does not exist; there are: {listed(columns)}",
                column=str(name),
                expected=listed(columns),
            )


def listed(names: Iterable[Any]) -> str:
    """Names, for a message."""
    return ", ".join(str(name) for name in names) or "none"


@dataclass(frozen=True)
class Kind:
    """What a shard is, without the shard. ``columns`` and ``dtypes`` are a DataFrame's."""

    name: str
    is_pair: bool = False
    is_series: bool = False
    columns: list[Any] | None = None
    dtypes: Any = None


def kind_of(shard: Any) -> Kind:
    """What this shard is."""
    if is_frame(shard):
        return Kind(type_name(shard), columns=list(shard.columns), dtypes=shard.dtypes)
    is_pair = isinstance(shard, (tuple, list)) and len(shard) == 2
    return Kind(type_name(shard), is_pair=is_pair, is_series=is_series(shard))


def is_frame(value: object) -> bool:
    """Whether this is a pandas DataFrame."""
    # Whoever holds a DataFrame has loaded pandas; asking must not load it.
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, pandas.DataFrame)


def is_series(value: object) -> bool:
    """Whether this is a pandas Series."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, pandas.Series)
