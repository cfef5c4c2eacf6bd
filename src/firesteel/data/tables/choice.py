"""Which of a file's columns a shard has, under which names and types: a value, made before any job runs.

``names``, ``usecols``, ``dtype``, ``index_col`` and ``squeeze`` mean the same for every reader and engine, because all
of them come here. No Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from firesteel.core.errors import PlanError
from firesteel.data.shards.kinds import check_columns, listed, type_name

if TYPE_CHECKING:
    pass

__all__ = ["Choice", "Wanted", "check_names", "choose"]


@dataclass(frozen=True)
class Choice:
    """What becomes of a file's columns.

    Attributes:
        names: the new name of every column in the file; one that is not chosen may have a made-up name.
        positions: the columns that are chosen, in the file's order.
        dtype: ``None``, one type for all, or a dict from a chosen column's new name to its type.
        index_col: the column that becomes the index.
        squeeze: whether a single column becomes a Series.
    """

    names: tuple[str, ...]
    positions: tuple[int, ...]
    dtype: Any = None
    index_col: str | None = None
    squeeze: bool = False

    @property
    def chosen(self) -> list[str]:
        """The new names of the chosen columns."""
        return [self.names[position] for position in self.positions]

    def has_dtype(self, name: str) -> bool:
        """Whether the user said which type a column has."""
        return name in self.dtype if isinstance(self.dtype, dict) else self.dtype is not None


@dataclass(frozen=True)
class Wanted:
    """What the caller said of columns, before anybody knows the file's."""

    reader: str
    names: Any = None
    usecols: Any = None
    dtype: Any = None
    index_col: Any = None
    squeeze: bool = False

    def among(self, found: Sequence[str]) -> Choice:
        """The choice among a file's columns."""
        return choose(
            self.reader,
            found,
            names=self.names,
            usecols=self.usecols,
            dtype=self.dtype,
            index_col=self.index_col,
            squeeze=self.squeeze,
        )


def choose(
    reader: str,
    found: Sequence[str],
    *,
    names: Sequence[str] | None = None,
    usecols: Any = None,
    dtype: Any = None,
    index_col: Any = None,
    squeeze: bool = False,
) -> Choice:
    """The choice among ``found``, the names of a file's columns.

    Raises:
        PlanError: what was asked for does not fit the file; the message says what there is.
    """
    found = list(found)
    new_names = None if names is None else check_names(reader, names)
    if new_names is None or len(new_names) == len(found):
        all_names = found if new_names is None else new_names
        positions = _positions(reader, usecols, all_names)
    else:
        chosen = [] if usecols is None else _old_positions(reader, usecols, found, new_names)
        if len(new_names) != len(chosen):
            asked = "" if usecols is None else f", and usecols chooses {len(chosen)}"
            raise PlanError(f"{reader}: names has {len(new_names)} names, but the file has {len(found)} columns{asked}")
        # Made-up names for the others: an old name might be a new one of another column.
        all_names = [f"unused column {position}" for position in range(len(found))]
        for position, name in zip(chosen, new_names, strict=True):
            all_names[position] = name
        positions = chosen
    made = Choice(tuple(all_names), tuple(positions), None, index_col, bool(squeeze))
    if index_col is not None:
        if not isinstance(index_col, str):
            raise PlanError(f"{reader}: index_col must be a column's name, found {index_col!r}")
        check_columns(f"{reader}: index_col", [index_col], made.chosen)
    return Choice(made.names, made.positions, _dtype_by_name(reader, dtype, made), index_col, made.squeeze)


def check_names(reader: str, names: Any) -> list[str]:
    """The new names as a list of strings."""
    if isinstance(names, (str, bytes, dict)) or not isinstance(names, Iterable):
        raise PlanError(f"{reader}: names must be a list of column names, found {type_name(names)}")
    new_names = list(names)
    wrong = [name for name in new_names if not isinstance(name, str)]
    if wrong or not new_names:
        raise PlanError(f"{reader}: names must be a list of strings, found {new_names!r}")
    twice = sorted({name for name in new_names if new_names.count(name) > 1})
    if twice:
        raise PlanError(f"{reader}: duplicate names are not allowed: {listed(twice)}")
    return new_names


def _positions(reader: str, usecols: Any, names: Sequence[str]) -> list[int]:
    """The columns that ``usecols`` speaks of, ascending."""
    if usecols is None:
        return list(range(len(names)))
    if callable(usecols):
        chosen = _by_function(usecols, names)
    else:
        wanted = _as_list(reader, usecols)
        places = {name: position for position, name in enumerate(names)}
        known: Any = range(len(names)) if isinstance(wanted[0], int) else places
        unknown = [column for column in wanted if column not in known]
        if unknown:
            raise PlanError(
                f"{reader}: usecols do not match the file's columns: {listed(unknown)} not found; "
                f"there are: {listed(names)}"
            )
        chosen = sorted({column if isinstance(column, int) else places[column] for column in wanted})
    if not chosen:
        raise PlanError(f"{reader}: usecols chooses no column; there are: {listed(names)}")
    return chosen


def _old_positions(reader: str, usecols: Any, found: Sequence[str], new_names: Sequence[str]) -> list[int]:
    """The columns that are to be renamed, where ``names`` has not a name for each."""
    if not callable(usecols):
        wanted = _as_list(reader, usecols)
        # pandas' reading of names that are nowhere in the file: they are the first columns.
        if isinstance(wanted[0], str) and set(wanted) == set(new_names) and not set(wanted) & set(found):
            return list(range(min(len(new_names), len(found))))
    return _positions(reader, usecols, found)


def _by_function(usecols: Callable[[str], Any], names: Sequence[str]) -> list[int]:
    return [position for position, name in enumerate(names) if usecols(name)]


def _as_list(reader: str, usecols: Any) -> list[Any]:
    if isinstance(usecols, (str, bytes, dict)) or not isinstance(usecols, Iterable):
        raise PlanError(
            f"{reader}: usecols must be a list of names, a list of positions or a function, found {type_name(usecols)}"
        )
    wanted = [int(each) if isinstance(each, np.integer) else each for each in usecols]
    if not wanted:
        raise PlanError(f"{reader}: usecols chooses no column: it is empty")
    if {type(each) for each in wanted} not in ({int}, {str}):
        kinds = sorted({type_name(each) for each in wanted})
        raise PlanError(f"{reader}: usecols must be all names or all positions, found {listed(kinds)}: {wanted!r}")
    return wanted


def _dtype_by_name(reader: str, dtype: Any, choice: Choice) -> Any:
    """``dtype`` with new names for positions in the file."""
    if dtype is None or not isinstance(dtype, dict):
        return dtype
    by_name = {}
    for key, kind in dtype.items():
        name = key
        if isinstance(key, (int, np.integer)) and not isinstance(key, bool):
            name = choice.names[key] if 0 <= key < len(choice.names) and key in choice.positions else None
        if name not in choice.chosen:
            raise PlanError(
                f"{reader}: dtype: column {key!r} is not in current dataframe; there are: {listed(choice.chosen)}"
            )
        by_name[name] = kind
    return by_name
