"""``dfutil``: DataFrames as folders of TFRecord files, under the document's names."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from firesteel.core.errors import SchemaError
from firesteel.data.tfrecord import example_schema, make_example, parse_example, read_tfrecords, write_tfrecords
from firesteel.frontends.tfcluster.cluster import session_of

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["fromTFExample", "infer_schema", "isLoadedDF", "loadTFRecords", "saveAsTFRecords", "toTFExample"]

_KINDS = {
    "boolean": "int64",
    "tinyint": "int64",
    "smallint": "int64",
    "int": "int64",
    "bigint": "int64",
    "float": "float",
    "double": "float",
    "string": "bytes",
    "binary": "bytes",
}
_ARRAY = re.compile(r"array<(.+)>")

_loaded: dict[int, weakref.ref[Any]] = {}


def saveAsTFRecords(df: DataFrame, output_dir: str) -> None:  # noqa: N802 - the document's name
    """Write a DataFrame: one ``tf.train.Example`` per row, one file per partition, and the schema as JSON beside them.

    Raises:
        SchemaError: a column of a type that TFRecord cannot hold (a ``ValueError``), naming both.
        PlanError: the folder exists.
    """
    write_tfrecords(df, output_dir)


def loadTFRecords(  # noqa: N802
    sc: SparkContext | SparkSession,
    input_dir: str,
    binary_features: Sequence[str] = (),
    schema: StructType | str | None = None,
) -> DataFrame:
    """The Examples in a folder as a DataFrame.

    Args:
        sc: the SparkContext, or a SparkSession.
        input_dir: the folder, a file, or a glob.
        binary_features: byte strings that are no text, where the schema is inferred.
        schema: what to read; default the schema that was stored with the files, else one that fits all records.
    """
    frame = read_tfrecords(
        input_dir, schema, binary_features=binary_features, float_type="double", spark=session_of(sc)[1]
    )
    key = id(frame)
    _loaded[key] = weakref.ref(frame, lambda _: _loaded.pop(key, None))
    return frame


def isLoadedDF(df: DataFrame) -> bool:  # noqa: N802
    """Whether this very object came from ``loadTFRecords``."""
    found = _loaded.get(id(df))
    return found is not None and found() is df


def toTFExample(dtypes: Sequence[tuple[str, str]]) -> Callable[[Iterable[Any]], Iterator[tuple[bytearray, None]]]:  # noqa: N802
    """A function for ``rdd.mapPartitions``: rows to ``(serialized Example, None)``. ``dtypes`` are ``df.dtypes``.

    Raises ``SchemaError`` where a column's type cannot be held.
    """
    kinds = {name: _kind(name, dtype) for name, dtype in dtypes}
    names = list(kinds)

    def convert(rows: Iterable[Any]) -> Iterator[tuple[bytearray, None]]:
        for row in rows:
            values = row if isinstance(row, dict) else dict(zip(names, row, strict=True))
            yield bytearray(make_example({name: values[name] for name in names}, kinds)), None

    return convert


def fromTFExample(iter: Iterable[Any], binary_features: Sequence[str] = ()) -> Iterator[Row]:  # noqa: N802
    """For ``rdd.mapPartitions``: ``(serialized Example, None)``, or the bytes alone, to rows with sorted names.

    A feature with one value is that value, else a list; byte strings are text unless named in ``binary_features``.
    """
    from pyspark.sql import Row

    for record in iter:
        data = bytes(record[0] if isinstance(record, (tuple, list)) else record)
        features = parse_example(data)
        yield Row(**{name: _value(features[name], name in binary_features) for name in sorted(features)})


def infer_schema(example: Any, binary_features: Sequence[str] = ()) -> StructType:
    """The schema of one ``tf.train.Example``, given as such or as its bytes."""
    data = example.SerializeToString() if hasattr(example, "SerializeToString") else bytes(example)
    return example_schema(data, binary_features, "double")


def _kind(name: str, dtype: str) -> str:
    match = _ARRAY.fullmatch(dtype)
    kind = _KINDS.get(match[1] if match else dtype)
    if kind is None:
        raise SchemaError(
            f"column {name!r} is of type {dtype}, which TFRecord cannot hold; it holds {', '.join(_KINDS)} and arrays "
            f"of these",
            column=name,
            expected=", ".join(_KINDS),
            found=dtype,
        )
    return kind


def _value(values: Any, is_binary: bool) -> Any:
    plain = list(values) if isinstance(values, list) else values.tolist()
    if isinstance(values, list):
        plain = [bytearray(each) if is_binary else each.decode() for each in plain]
    return plain[0] if len(plain) == 1 else plain
