"""Numbers brought to one scale, on XShards of pandas. What a scaler knows of a column is found by Spark SQL, once."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from firesteel.core.errors import PlanError, SchemaError
from firesteel.data.shards import XShards
from firesteel.data.transformer.encoding import from_text
from firesteel.data.transformer.indexer import columns_of, names_in

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import Column

__all__ = ["MinMaxScaler", "StandardScaler"]

_Statistics = dict[str, list[float | None]]


class _Scaler(ABC):
    """What both scalers share: columns, fitting, applying, JSON."""

    _parameters: ClassVar[tuple[str, ...]]
    _aggregates: ClassVar[tuple[str, ...]]

    def __init__(self, inputCol: str | list[str] | None, outputCol: str | None) -> None:  # noqa: N803
        self.inputCol: str | list[str] | None = None
        self.outputCol: str | None = None
        self._statistics: _Statistics | None = None
        if inputCol is not None or outputCol is not None:
            self.setInputOutputCol(inputCol, outputCol)

    def setInputOutputCol(self, inputCol: str | list[str] | None, outputCol: str | None) -> Self:  # noqa: N802, N803
        """Choose the columns; what was fitted is forgotten. Returns itself.

        Args:
            inputCol: a column's name, for a number in each row, or a list of names, for a list of numbers.
            outputCol: the column to make, or to replace. Not one of the inputs: these stay.
        """
        names = columns_of("inputCol", inputCol)
        output: object = outputCol
        if not isinstance(output, str) or output in names:
            raise PlanError(f"outputCol must be the name of a column that is no input, found {output!r}")
        self.inputCol, self.outputCol = inputCol, outputCol
        self._statistics = None
        return self

    def fit_transform(self, shards: XShards) -> XShards:
        """Find what there is to know of the columns, over all shards, and scale them."""
        names = self._columns(shards, "fit_transform")
        self._statistics = _fit(type(self).__name__, shards, names, self._aggregates)
        return self._apply(shards, names)

    def transform(self, shards: XShards) -> XShards:
        """Scale columns by what was fitted. Nulls stay null."""
        if self._statistics is None:
            raise PlanError(f"{type(self).__name__}.transform: call fit_transform first")
        return self._apply(shards, self._columns(shards, "transform"))

    def to_json(self) -> str:
        """The scaler as text, fitted or not; ``from_json`` reads it."""
        held = {name: getattr(self, name) for name in (*self._parameters, "inputCol", "outputCol")}
        return json.dumps({type(self).__name__: {**held, "statistics": self._statistics}})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What ``to_json`` wrote."""
        held = from_text(text, cls.__name__)
        statistics = held.pop("statistics")
        made = cls(**held)
        made._statistics = statistics
        return made

    def _columns(self, shards: XShards, operation: str) -> list[str]:
        name = f"{type(self).__name__}.{operation}"
        if self.inputCol is None:
            raise PlanError(f"{name}: set inputCol and outputCol first, with setInputOutputCol")
        return names_in(shards, name, columns_of("inputCol", self.inputCol))

    def _apply(self, shards: XShards, names: list[str]) -> XShards:
        assert self._statistics is not None  # the callers have seen to both
        assert self.outputCol is not None
        known = {name: np.array(values, dtype=float) for name, values in self._statistics.items()}
        scale = partial(_scale, names, isinstance(self.inputCol, str), self.outputCol, self._formula(known))
        return shards.transform_shard(scale)

    @abstractmethod
    def _formula(self, known: Mapping[str, Any]) -> Callable[[Any], Any]:
        """What makes a ``(rows, columns)`` array of numbers scaled ones (task)."""

    def __repr__(self) -> str:
        named = (f"{name}={getattr(self, name)!r}" for name in (*self._parameters, "inputCol", "outputCol"))
        return f"{type(self).__name__}({', '.join(named)})"


class MinMaxScaler(_Scaler):
    """Columns from ``min`` to ``max``: their least value becomes the one, their largest the other.

    A constant column becomes ``(min + max) / 2``.

    Args:
        min: the least value there will be.
        max: the largest.
        inputCol: a column's name, for a number in each row, or a list of names, for a list of numbers.
        outputCol: the column to make.
    """

    _parameters = ("min", "max")
    _aggregates = ("min", "max")

    def __init__(
        self,
        min: float = 0.0,
        max: float = 1.0,
        inputCol: str | list[str] | None = None,  # noqa: N803
        outputCol: str | None = None,  # noqa: N803
    ) -> None:
        if not min < max:
            raise PlanError(f"min must be less than max, found {min!r} and {max!r}")
        self.min = float(min)
        self.max = float(max)
        super().__init__(inputCol, outputCol)

    def _formula(self, known: Mapping[str, Any]) -> Callable[[Any], Any]:
        return partial(_min_max, self.min, self.max, known["min"], known["max"])


class StandardScaler(_Scaler):
    """Columns divided by their standard deviation, the sample's. A constant column becomes 0.

    Args:
        withMean: whether the mean is taken off first.
        withStd: whether to divide.
        inputCol: a column's name, for a number in each row, or a list of names, for a list of numbers.
        outputCol: the column to make.
    """

    _parameters = ("withMean", "withStd")
    _aggregates = ("avg", "stddev_samp", "min", "max")

    def __init__(
        self,
        withMean: bool = False,  # noqa: N803
        withStd: bool = True,  # noqa: N803
        inputCol: str | list[str] | None = None,  # noqa: N803
        outputCol: str | None = None,  # noqa: N803
    ) -> None:
        self.withMean = bool(withMean)
        self.withStd = bool(withStd)
        super().__init__(inputCol, outputCol)

    def _formula(self, known: Mapping[str, Any]) -> Callable[[Any], Any]:
        # By least and largest: a deviation that should be 0 may be a rounding error instead.
        deviation = np.where(known["min"] == known["max"], 0.0, known["stddev_samp"])
        # What is constant is its own mean; Spark's may differ in the last digit.
        mean = np.where(known["min"] == known["max"], known["min"], known["avg"])
        return partial(_standard, mean if self.withMean else None, deviation if self.withStd else None)


def _fit(scaler: str, shards: XShards, names: Sequence[str], aggregates: Sequence[str]) -> _Statistics:
    """Each aggregate of each column; ``None`` where a column has nothing but nulls (driver; runs a job)."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import BooleanType, NullType, NumericType

    df = shards.select(list(names)).to_spark_df()
    for field in df.schema.fields:
        if not isinstance(field.dataType, (NumericType, BooleanType, NullType)):
            raise SchemaError(
                f"{scaler}: column {field.name!r} holds {field.dataType.simpleString()}, not numbers",
                column=field.name,
                expected="numbers",
                found=field.dataType.simpleString(),
            )
    numbers: list[Column] = [F.col(f"`{name.replace('`', '``')}`").cast("double") for name in names]
    wanted = [
        getattr(F, aggregate)(number).alias(f"{aggregate} {place}")
        for aggregate in aggregates
        for place, number in enumerate(numbers)
    ]
    row = df.agg(*wanted).collect()[0]
    return {aggregate: [row[f"{aggregate} {place}"] for place in range(len(names))] for aggregate in aggregates}


# In tasks


def _scale(
    names: Sequence[str], single: bool, output: str, formula: Callable[[Any], Any], frame: pd.DataFrame
) -> pd.DataFrame:
    numbers = [frame[name].to_numpy(dtype=float, na_value=np.nan) for name in names]
    scaled = formula(np.stack(numbers, axis=1))  # (rows, columns)
    return frame.assign(**{output: scaled[:, 0] if single else scaled.tolist()})


def _min_max(low: float, high: float, least: Any, largest: Any, numbers: Any) -> Any:
    width = largest - least
    constant = width == 0
    share = np.where(constant, 0.5, (numbers - least) / np.where(constant, 1.0, width))
    return np.where(np.isnan(numbers), np.nan, share * (high - low) + low)


def _standard(mean: Any, deviation: Any, numbers: Any) -> Any:
    centred = numbers if mean is None else numbers - mean
    if deviation is None:
        return centred
    constant = deviation == 0
    scaled = np.where(constant, 0.0, centred / np.where(constant, 1.0, deviation))
    return np.where(np.isnan(numbers), np.nan, scaled)
