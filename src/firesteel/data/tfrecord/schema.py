"""Spark's types and TFRecord's: which column is which feature, what records say of it, the schema kept beside them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from firesteel.core.errors import PlanError, SchemaError, UnknownName
from firesteel.data.tfrecord.columns import KINDS, MOST_FEATURES, Field, Seen, survey
from firesteel.data.tfrecord.wire import Block, Misfit

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField, StructType

__all__ = [
    "FLOAT_TYPES",
    "SCHEMA_FILE",
    "Found",
    "as_schema",
    "example_schema",
    "field_of",
    "fields_of",
    "from_json",
    "merge",
    "schema_of",
    "to_json",
]

SCHEMA_FILE = "_schema.json"
FLOAT_TYPES = ("double", "float")

_TYPES = {
    "boolean": ("int64", pa.bool_()),
    "byte": ("int64", pa.int8()),
    "short": ("int64", pa.int16()),
    "integer": ("int64", pa.int32()),
    "long": ("int64", pa.int64()),
    "float": ("float", pa.float32()),
    "double": ("float", pa.float64()),
    "string": ("bytes", pa.string()),
    "binary": ("bytes", pa.binary()),
}
"""By Spark's name of a type: the kind of feature that it is, and Arrow's type of a value."""


def field_of(field: StructField) -> Field:
    """The feature that a column is. Raises ``SchemaError`` with the column and its type where it can be none."""
    from pyspark.sql.types import ArrayType

    kind: DataType = field.dataType
    is_array = isinstance(kind, ArrayType)
    element = kind.elementType if isinstance(kind, ArrayType) else kind
    known = _TYPES.get(element.typeName())
    if known is None:
        raise SchemaError(
            f"column {field.name!r} is of type {field.dataType.simpleString()}, which TFRecord cannot hold; "
            "it holds numbers, booleans, strings, binary, and arrays of these"
            + ("; turn the vectors into arrays with vector_to_array" if "VectorUDT" in type(element).__name__ else ""),
            column=field.name,
            expected="a number, boolean, string, binary, or an array of one of them",
            found=field.dataType.simpleString(),
        )
    return Field(field.name, *known, is_array, field.nullable)


def fields_of(schema: Iterable[StructField]) -> tuple[Field, ...]:
    """The features that columns are; each name may be there once."""
    fields = [field_of(field) for field in schema]
    names = [field.name for field in fields]
    for name in names:
        if names.count(name) > 1:
            raise SchemaError(f"there are {names.count(name)} columns called {name!r}; rename all but one", column=name)
    return tuple(fields)


def as_schema(schema: Any) -> StructType:
    """A schema as users give it: a ``StructType``, or a string such as ``"image array<float>, label long"``."""
    from pyspark.sql.types import StructType, _parse_datatype_string

    found = _parse_datatype_string(schema) if isinstance(schema, str) else schema
    if not isinstance(found, StructType):
        raise SchemaError(f"schema must be a StructType or a string such as 'x array<float>, y long', not {schema!r}")
    return found


# --- what the records say ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """What one kind of values of a feature looked like in all records, and one place where it is."""

    where: str
    is_single: bool
    is_text: bool

    @classmethod
    def of(cls, seen: Seen, where: str) -> Found:
        """With the place in words."""
        return cls(where, seen.is_single, seen.is_text)


Findings = dict[str, dict[str, Found]]
"""By feature, by kind. There should be one kind only."""


def merge(all_findings: Iterable[Mapping[str, Mapping[str, Found]]]) -> Findings:
    """What several parts say together, with the first one's places. ``SchemaError`` for more than ``MOST_FEATURES``."""
    merged: Findings = {}
    for findings in all_findings:
        for name, kinds in findings.items():
            mine = merged.setdefault(name, {})
            for kind, found in kinds.items():
                have = mine.get(kind, found)
                mine[kind] = Found(have.where, have.is_single and found.is_single, have.is_text and found.is_text)
        if len(merged) > MOST_FEATURES:
            raise SchemaError(f"the files have more than {MOST_FEATURES:,} features; pass schema= with those to read")
    return merged


def schema_of(
    findings: Mapping[str, Mapping[str, Found]],
    binary_features: Collection[str] = (),
    float_type: str = "float",
) -> StructType:
    """The schema that fits all records: names sorted, an array where some record has other than one value.

    Byte strings are ``string`` if all of them are UTF-8, else ``binary``, and ``binary`` where the feature is named in
    ``binary_features``.
    """
    from pyspark.sql.types import ArrayType, BinaryType, DoubleType, FloatType, LongType, StringType, StructField
    from pyspark.sql.types import StructType as Struct

    if float_type not in FLOAT_TYPES:
        raise UnknownName("float_type", float_type, FLOAT_TYPES)
    if isinstance(binary_features, str):
        binary_features = (binary_features,)
    for name in binary_features:
        if name not in findings:
            raise UnknownName("feature in binary_features", name, findings)
    fields = []
    for name in sorted(findings):
        kinds = findings[name]
        if len(kinds) > 1:
            places = " and ".join(f"{KINDS[kind]} ({found.where})" for kind, found in sorted(kinds.items()))
            raise SchemaError(f"feature {name!r} holds {places}; one column cannot", column=name, found=places)
        ((kind, found),) = kinds.items()
        element: DataType
        if name in binary_features and kind != "bytes":
            raise SchemaError(f"feature {name!r} is named in binary_features, but holds {KINDS[kind]}", column=name)
        if kind == "int64":
            element = LongType()
        elif kind == "float":
            element = FloatType() if float_type == "float" else DoubleType()
        else:
            element = StringType() if found.is_text and name not in binary_features else BinaryType()
        fields.append(StructField(name, element if found.is_single else ArrayType(element)))
    return Struct(fields)


def example_schema(record: bytes, binary_features: Collection[str] = (), float_type: str = "float") -> StructType:
    """The schema that fits one record."""
    try:
        seen = survey(Block.of([record]))
    except Misfit as misfit:
        raise PlanError(f"the record cannot be read: {misfit.what}") from misfit
    findings = {name: {kind: Found.of(each, "") for kind, each in kinds.items()} for name, kinds in seen.items()}
    return schema_of(findings, binary_features, float_type)


# --- the stored schema ------------------------------------------------------------------------------------------------


def to_json(schema: StructType) -> str:
    """The text of ``SCHEMA_FILE``: the DataFrame's schema as Spark itself writes it."""
    return json.dumps(schema.jsonValue(), indent=1)


def from_json(text: str, path: str) -> StructType:
    """The schema in a file that ``to_json`` made. Raises ``SchemaError`` naming the file where it holds something else.

    Types are looked at before Spark does, for its parser imports the Python class that a user-defined type names.
    """
    from pyspark.sql.types import StructType

    try:
        stored = json.loads(text)
        for field in stored["fields"]:
            kind = field["type"]
            is_array = isinstance(kind, dict) and kind["type"] == "array"
            if not isinstance(kind["elementType"] if is_array else kind, str):
                raise ValueError(f"column {field['name']!r} has a type that TFRecord cannot hold")
        return StructType.fromJson(stored)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = "is not a schema that was written with TFRecord files"
        raise SchemaError(f"{path} {what} ({error}); pass schema=, or remove it") from error
