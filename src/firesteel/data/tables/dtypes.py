"""One dtype for a column over all shards: what pandas would have found, had it seen all rows at once.

A task looks at its own rows only, so it says of each column what *kind* it found there; the driver makes one dtype of
all kinds, and tasks then cast to that, or read the column again as it is written. No Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["AS_WRITTEN", "cast", "kinds_of", "one_dtype"]

AS_WRITTEN = "as written"
"""No dtype holds all values: each is what the file says, unconverted."""

_NUMBERS = {"int", "negative", "uint", "float", "null"}
_BOOLEANS = {"bool", "bool or null"}


def kinds_of(frame: pd.DataFrame) -> dict[str, str]:
    """What each column holds in these rows (task)."""
    return {str(name): _kind(frame[name]) for name in frame.columns}


def _kind(column: pd.Series) -> str:
    from pandas.api.types import infer_dtype

    if not len(column):
        return "empty"
    dtype = str(column.dtype)
    if (dtype in ("object", "float64") or dtype.startswith("datetime64")) and bool(column.isna().all()):
        return "null"
    match dtype:
        case "int64":
            return "negative" if column.min() < 0 else "int"
        case "uint64":
            return "uint"
        case "float64":
            return "float"
        case "bool":
            return "bool"
        case "object":
            # Cells that are lists or dicts are "mixed" to infer_dtype.
            return "bool or null" if infer_dtype(column, skipna=True) == "boolean" else "object"
    return dtype


def one_dtype(kinds: Iterable[str], *, booleans_are_numbers: bool = False) -> str | None:
    """The dtype of a column in which tasks found these kinds; ``None`` where all have the same dtype already.

    Args:
        kinds: what was found.
        booleans_are_numbers: pandas reads ``true`` beside a number or null as 1.0 from JSON, as text from CSV.
    """
    found = set(kinds)
    if len(found) == 1:
        return None
    found.discard("empty")
    if found <= _NUMBERS:
        return _number(found)
    if booleans_are_numbers and found <= _NUMBERS | {"bool"} and found != {"bool"}:
        return _number((found - {"bool"}) | {"int"})
    if found == {"bool"}:
        return "bool"
    if found <= _BOOLEANS | {"null"}:
        return "object"
    others = found - {"null"}
    if others == {"object"}:
        return "object"
    if len(others) == 1 and not others & (_NUMBERS | _BOOLEANS):
        return others.pop()
    return AS_WRITTEN


def _number(found: set[str]) -> str:
    if "uint" in found:
        if found <= {"int", "uint"}:
            return "uint64"
        return "float64" if "float" in found else AS_WRITTEN
    return "int64" if found <= {"int", "negative"} else "float64"


def cast(frame: pd.DataFrame, dtypes: Mapping[str, str]) -> pd.DataFrame:
    """The frame with these columns cast (task); those to be left as written were read so, and are objects."""
    targets = {name: "object" if dtype == AS_WRITTEN else dtype for name, dtype in dtypes.items()}
    wanted: Any = {name: dtype for name, dtype in targets.items() if str(frame[name].dtype) != dtype}
    return frame.astype(wanted) if wanted else frame
