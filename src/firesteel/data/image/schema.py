"""What a row of a dataset is: named fields, each an image file, an array or a scalar. No Spark, no Arrow.

The schema is kept as JSON in the file ``_orca_metadata``, in the form that Orca writes and reads.
"""

from __future__ import annotations

import enum
import json
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from firesteel.core.errors import PlanError, UnknownName

__all__ = ["DType", "FeatureType", "Schema", "SchemaField", "check_schema", "decode_schema", "encode_schema"]


class FeatureType(enum.Enum):
    """How a field's values are given and stored."""

    IMAGE = "image"
    """Given as a file's path, stored as the file's bytes."""
    NDARRAY = "ndarray"
    """An array of one dtype and shape."""
    SCALAR = "scalar"
    """A number, a string or bytes."""


class DType(enum.Enum):
    """The type of a scalar, or of an array's elements. The value is NumPy's name for it."""

    STRING = "str"
    BYTES = "bytes"
    BOOL = "bool"
    UINT8 = "uint8"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT16 = "float16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"

    @property
    def is_number(self) -> bool:
        """Numbers and booleans: what an array can hold."""
        return self not in (DType.STRING, DType.BYTES)


@dataclass(frozen=True)
class SchemaField:
    """One field of a row.

    Args:
        feature_type: how its values are given and stored.
        dtype: the type of its values. That of an image says nothing: its bytes are stored as they are.
        shape: an array's shape, with -1 for a dimension of any length. Of no matter for images and scalars.

    Raises:
        PlanError: not of these types, a dimension below -1, or an array of strings.
    """

    feature_type: FeatureType
    dtype: DType
    shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.feature_type, FeatureType):
            raise PlanError(f"feature_type must be one of {_members(FeatureType)}, found {self.feature_type!r}")
        if not isinstance(self.dtype, DType):
            raise PlanError(f"dtype must be one of {_members(DType)}, found {self.dtype!r}")
        try:
            object.__setattr__(self, "shape", tuple(operator.index(length) for length in self.shape))
        except TypeError:
            raise PlanError(f"shape must be a tuple of ints, found {self.shape!r}") from None
        if any(length < -1 for length in self.shape):
            raise PlanError(f"shape {self.shape} has a negative length; only -1 is allowed, for any length")
        if self.feature_type is FeatureType.NDARRAY and not self.dtype.is_number:
            raise PlanError(f"an NDARRAY holds numbers or booleans, not {self.dtype}; a SCALAR can be a string")

    @property
    def is_ragged(self) -> bool:
        """Whether rows differ in their shape."""
        return self.feature_type is FeatureType.NDARRAY and -1 in self.shape

    def to_dict(self) -> dict[str, Any]:
        """The three parts by name."""
        return {"feature_type": self.feature_type, "dtype": self.dtype, "shape": self.shape}

    @classmethod
    def from_dict(cls, parts: Mapping[str, Any]) -> SchemaField:
        """The inverse of ``to_dict``."""
        return cls(**parts)


Schema = dict[str, SchemaField]


def check_schema(schema: Any) -> Schema:
    """The schema as a plain dict; ``PlanError`` where it is none."""
    if not isinstance(schema, Mapping) or not schema:
        raise PlanError(f"a schema must be a dict from field names to SchemaField, found {schema!r}")
    for name, field in schema.items():
        if not isinstance(name, str) or not isinstance(field, SchemaField):
            raise PlanError(f"a schema must map a name to a SchemaField, found {name!r}: {field!r}")
    return dict(schema)


def encode_schema(schema: Schema) -> str:
    """As JSON."""
    return json.dumps(
        {
            name: {
                "feature_type": {"__enum__": str(field.feature_type)},
                "dtype": {"__enum__": str(field.dtype)},
                "shape": list(field.shape),
            }
            for name, field in schema.items()
        }
    )


def decode_schema(text: str, source: str) -> Schema:
    """From JSON. ``source`` is the file, for messages."""
    try:
        return {
            str(name): SchemaField(
                _member(FeatureType, field["feature_type"]), _member(DType, field["dtype"]), tuple(field["shape"])
            )
            for name, field in json.loads(text).items()
        }
    except UnknownName:
        raise
    except (json.JSONDecodeError, AttributeError, KeyError, TypeError) as error:
        raise PlanError(f"{source} is damaged: it does not hold a dataset's schema as JSON") from error


def _member(kind: type[Any], value: Any) -> Any:
    name = str(value["__enum__"]).rpartition(".")[2]
    if name not in kind.__members__:
        raise UnknownName(kind.__name__, name, kind.__members__)
    return kind[name]


def _members(kind: type[enum.Enum]) -> str:
    return ", ".join(str(member) for member in kind)
