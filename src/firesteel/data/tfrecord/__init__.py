"""TFRecord files without TensorFlow: records of bytes, Examples, and Spark DataFrames. Loaded on first touch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from firesteel.data.tfrecord.example import make_example, parse_example
    from firesteel.data.tfrecord.framing import RecordError, read_records, write_records
    from firesteel.data.tfrecord.reading import infer_schema, read_record_bytes, read_tfrecords
    from firesteel.data.tfrecord.schema import example_schema
    from firesteel.data.tfrecord.writing import write_tfrecords

_HOMES = {
    "RecordError": "framing",
    "example_schema": "schema",
    "infer_schema": "reading",
    "make_example": "example",
    "parse_example": "example",
    "read_record_bytes": "reading",
    "read_records": "framing",
    "read_tfrecords": "reading",
    "write_records": "framing",
    "write_tfrecords": "writing",
}

__all__ = [
    "RecordError",
    "example_schema",
    "infer_schema",
    "make_example",
    "parse_example",
    "read_record_bytes",
    "read_records",
    "read_tfrecords",
    "write_records",
    "write_tfrecords",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"firesteel.data.tfrecord.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'firesteel.data.tfrecord' has no attribute {name!r}")
