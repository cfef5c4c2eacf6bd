"""Strings to ids on XShards of pandas."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from firesteel.core.errors import PlanError, SchemaError, UnknownName
from firesteel.data.shards import SharedValue, XShards
from firesteel.data.shards.kinds import check_columns, type_name
from firesteel.data.transformer.encoding import from_text, ids_of

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["StringIndexer", "columns_of", "names_in"]


class StringIndexer:
    """Replaces strings by ids from 1 on, in ascending order of the string. 0 is kept for what is not known.

    Ids are int64, or float64 in all shards where one of them is null.

    Args:
        inputCol: a column's name, or a list of them; each gets ids of its own.
        handle_unknown: what becomes of a string that was not there when the ids were made: ``"null"``, or ``"zero"``,
            with which a missing string is 0, too.
    """

    def __init__(self, inputCol: str | list[str] | None = None, handle_unknown: str = "null") -> None:  # noqa: N803
        self.inputCol: str | list[str] | None = None
        self.handle_unknown = _checked(handle_unknown)
        self._ids: dict[str, dict[str, int]] | None = None
        if inputCol is not None:
            self.setInputCol(inputCol)

    def setInputCol(self, inputCol: str | list[str]) -> StringIndexer:  # noqa: N802, N803
        """Choose the columns; what was fitted is forgotten. Returns itself."""
        columns_of("inputCol", inputCol)
        self.inputCol = inputCol
        self._ids = None
        return self

    def fit_transform(self, shards: XShards) -> XShards:
        """Find the ids of all strings in these shards, and replace them."""
        names = self._columns(shards, "fit_transform")
        df = shards.select(names).transform_shard(_as_text, names).to_spark_df()
        try:
            self._ids = dict(zip(names, ids_of(df, names), strict=True))
        except SchemaError as error:
            raise SchemaError(f"StringIndexer: {error}", column=error.column, found=error.found) from None
        return self.transform(shards)

    def transform(self, shards: XShards, handle_unknown: str | None = None) -> XShards:
        """Replace strings by the ids that were fitted. Looks at the shards, for one null makes a column float64.

        Args:
            shards: pandas frames.
            handle_unknown: other than what the indexer was made with.
        """
        if self._ids is None:
            raise PlanError("StringIndexer.transform: call fit_transform first")
        names = self._columns(shards, "transform")
        unknown = self.handle_unknown if handle_unknown is None else _checked(handle_unknown)
        encoded = shards.transform_shard(partial(_encode, unknown == "zero"), SharedValue(self._ids))
        if unknown == "zero":
            return encoded.transform_shard(_cast, dict.fromkeys(names, "int64"))
        nulls = encoded.select(names).get_null_sum()
        dtypes = {
            name: "float64" if total else "int64" for name, total in zip(nulls["col"], nulls["total"], strict=True)
        }
        return encoded.transform_shard(_cast, dtypes)

    def to_dict(self) -> dict[str, Any]:
        """The ids: of string to id, or of column to such a dict where ``inputCol`` is a list."""
        if self._ids is None:
            raise PlanError("StringIndexer.to_dict: call fit_transform first")
        return dict(self._ids[self.inputCol]) if isinstance(self.inputCol, str) else dict(self._ids)

    def to_json(self) -> str:
        """The indexer as text, fitted or not; ``from_json`` reads it."""
        held = {"inputCol": self.inputCol, "handle_unknown": self.handle_unknown, "ids": self._ids}
        return json.dumps({"StringIndexer": held})

    @classmethod
    def from_json(cls, text: str) -> StringIndexer:
        """What ``to_json`` wrote."""
        held = from_text(text, "StringIndexer")
        made = cls(held["inputCol"], held["handle_unknown"])
        made._ids = held["ids"]
        return made

    def _columns(self, shards: XShards, operation: str) -> list[str]:
        if self.inputCol is None:
            raise PlanError(f"StringIndexer.{operation}: set inputCol first")
        return names_in(shards, f"StringIndexer.{operation}", columns_of("inputCol", self.inputCol))

    def __repr__(self) -> str:
        return f"StringIndexer(inputCol={self.inputCol!r}, handle_unknown={self.handle_unknown!r})"


def columns_of(parameter: str, given: Any) -> list[str]:
    """A column's name or a list of them, as a list."""
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, (list, tuple)) or not names or not all(isinstance(name, str) for name in names):
        raise PlanError(f"{parameter} must be a column's name or a list of them, found {given!r}")
    if len(set(names)) < len(names):
        raise PlanError(f"{parameter} has a column twice: {given!r}")
    return list(names)


def names_in(shards: Any, operation: str, names: Sequence[str]) -> list[str]:
    """The same names, which frames in these shards must have."""
    if not isinstance(shards, XShards):
        raise PlanError(f"{operation} works on XShards, found {type_name(shards)}")
    schema = shards.get_schema()
    if schema is None:
        raise PlanError(f"{operation} works on shards that are a Pandas DataFrame, found {type_name(shards.first())}")
    check_columns(operation, names, schema["columns"])
    return list(names)


def _checked(handle_unknown: str) -> str:
    if handle_unknown not in ("null", "zero"):
        raise UnknownName("handle_unknown", handle_unknown, ("null", "zero"))
    return handle_unknown


# In tasks


def _as_text(frame: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    return frame.assign(**{name: _text(frame[name]) for name in names})


def _text(column: pd.Series) -> pd.Series:
    """The strings of a column; integers as they are written."""
    if column.dtype.kind in "iu":
        return column.astype(str)
    return column.astype(object) if hasattr(column, "cat") else column


def _encode(zero: bool, frame: pd.DataFrame, ids: SharedValue) -> pd.DataFrame:
    known: Mapping[str, Mapping[str, int]] = ids.value
    encoded = {name: _text(frame[name]).map(known[name]) for name in known}
    return frame.assign(**{name: column.fillna(0) if zero else column for name, column in encoded.items()})


def _with_null(frame: pd.DataFrame, names: Sequence[str]) -> list[str]:
    return [name for name in names if frame[name].isna().any()]


def _cast(frame: pd.DataFrame, dtypes: Mapping[str, str]) -> pd.DataFrame:
    return frame.astype(dict(dtypes))
