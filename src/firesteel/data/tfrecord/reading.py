"""TFRecord files as a Spark DataFrame: each task reads whole files, a block of records at a time."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from firesteel.core.errors import PlanError, SchemaError
from firesteel.data.tfrecord.columns import Field, survey, to_columns
from firesteel.data.tfrecord.framing import BLOCK_BYTES, RecordError, blocks_in, check_compression
from firesteel.data.tfrecord.listing import File, Listing, as_paths, group, list_files, slots_of, stored_schema
from firesteel.data.tfrecord.schema import Found, as_schema, fields_of, merge, schema_of
from firesteel.data.tfrecord.wire import Misfit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["infer_schema", "read_blocks", "read_record_bytes", "read_tfrecords"]


def read_tfrecords(
    path: Any,
    schema: StructType | str | None = None,
    *,
    binary_features: Collection[str] = (),
    float_type: str = "float",
    compression: str | None = None,
    spark: SparkSession | None = None,
) -> DataFrame:
    """The Examples in TFRecord files as a DataFrame, in the order of file names, then of records.

    Files are listed at once; records are read when Spark needs them, several files in a task where they are small.

    Args:
        path: a file, folder or glob, or a list of these, on anything that Spark reads. Folders called ``column=value``
            make a column.
        schema: the columns to read; features that it does not name are passed over. By default the one that
            ``write_tfrecords`` left beside the files, else one that fits **all** records, which a job finds out first.
        binary_features: byte strings that are ``binary`` though they may look like text, where the schema is inferred.
        float_type: ``"float"`` or ``"double"`` for floats, where the schema is inferred.
        compression: ``"gzip"``, ``"none"``, or ``None`` to see from each file.
        spark: the session; default: the current one.

    Raises:
        PlanError: no such path, or nothing in it; a schema that cannot be.
        RecordError: a file that is not a TFRecord file of Examples, found while the schema is inferred. Found later,
            it is the message of the error that Spark raises. It has the file and the record's offset.
    """
    check_compression(compression)
    paths = as_paths(path)
    session = _session(spark)
    given = None if schema is None else as_schema(schema)  # a string is parsed by the session
    listing = list_files(session, paths)
    wanted = given if given is not None else stored_schema(session, listing.folders)
    if not listing.files and (wanted is None or given is not None):
        raise PlanError(f"there are no TFRecord files in {', '.join(paths)}")
    if wanted is None:
        wanted = _infer(session, listing, binary_features, float_type, compression)
    return _frame(session, listing, wanted, compression)


def read_record_bytes(path: Any, *, compression: str | None = None, spark: SparkSession | None = None) -> DataFrame:
    """The records themselves, one to a row: a DataFrame with the column ``value``, in the order of ``read_tfrecords``.

    ``path`` is as there; nothing is read before Spark needs it.
    """
    check_compression(compression)
    paths = as_paths(path)
    session = _session(spark)
    listing = list_files(session, paths)
    if not listing.files:
        raise PlanError(f"there are no TFRecord files in {', '.join(paths)}")
    groups = group(listing.files, slots_of(session))
    read = partial(_read_bytes, groups, compression)
    return session.range(0, len(groups), 1, len(groups)).mapInArrow(lambda batches: read(batches), "value binary")


def infer_schema(
    path: Any,
    *,
    binary_features: Collection[str] = (),
    float_type: str = "float",
    compression: str | None = None,
    spark: SparkSession | None = None,
) -> StructType:
    """The schema that fits all records under ``path``, whatever is stored there; arguments as in ``read_tfrecords``.

    Names are sorted, partition columns come last. Runs a job that reads every record.
    """
    check_compression(compression)
    session = _session(spark)
    paths = as_paths(path)
    listing = list_files(session, paths)
    if not listing.files:
        raise PlanError(f"there are no TFRecord files in {', '.join(paths)}")
    return _infer(session, listing, binary_features, float_type, compression)


def read_blocks(
    path: str, fields: Sequence[Field], *, compression: str | None = None, block_bytes: int = BLOCK_BYTES
) -> Iterator[tuple[int, list[pa.Array]]]:
    """One file as blocks of columns: how many rows, and an Arrow array for each field. No Spark."""
    for block in blocks_in(path, compression=compression, block_bytes=block_bytes):
        try:
            columns = to_columns(block, fields)
        except Misfit as misfit:
            raise RecordError.at(path, block.offset_of(misfit.place), misfit.what) from misfit
        yield len(block), columns


def _session(spark: SparkSession | None) -> SparkSession:
    if spark is not None:
        return spark
    from pyspark.sql import SparkSession

    return SparkSession.builder.getOrCreate()


def _frame(spark: SparkSession, listing: Listing, wanted: StructType, compression: str | None) -> DataFrame:
    from pyspark.sql.functions import col
    from pyspark.sql.types import StringType, StructType

    from firesteel.data.quoting import quoted

    if not wanted.fields:
        raise SchemaError("the schema has no columns")
    inside = [field for field in wanted.fields if field.name not in listing.partition_by]
    fields = fields_of(inside)
    if not listing.files:
        return spark.createDataFrame([], wanted)
    by_name = {name: place for place, name in enumerate(listing.partition_by)}
    folders = [field for field in wanted.fields if field.name in by_name]
    groups = group(listing.files, slots_of(spark))
    read = partial(_read_groups, groups, fields, [(field.name, by_name[field.name]) for field in folders], compression)
    result = StructType(list(inside))
    for folder in folders:
        result = result.add(folder.name, StringType())
    rows = spark.range(0, len(groups), 1, len(groups)).mapInArrow(lambda batches: read(batches), result)
    if not folders:
        return rows
    typed = {folder.name: folder.dataType for folder in folders}
    columns = [(field.name, col(quoted(field.name))) for field in wanted.fields]
    return rows.select(*[c.cast(typed[name]).alias(name) if name in typed else c for name, c in columns])


def _infer(
    spark: SparkSession,
    listing: Listing,
    binary_features: Collection[str],
    float_type: str,
    compression: str | None,
) -> StructType:
    groups = group(listing.files, slots_of(spark))
    look = partial(_survey_groups, groups, compression)
    rows = spark.range(0, len(groups), 1, len(groups)).mapInArrow(lambda batches: look(batches), "found string")
    parts = [json.loads(row[0]) for row in rows.collect()]
    # The first in the order of files, so that the same files give the same error.
    for error in sorted((part["error"] for part in parts if "error" in part), key=lambda each: str(each["path"])):
        raise RecordError(error["text"], path=error["path"], offset=error["offset"])
    findings = merge(
        {name: {kind: Found(**found) for kind, found in kinds.items()} for name, kinds in part["features"].items()}
        for part in parts
    )
    for name in listing.partition_by:
        findings.pop(name, None)
    if not findings:
        raise SchemaError("the files have no record with a feature, so there is no schema to infer; pass schema=")
    schema = schema_of(findings, binary_features, float_type)
    for name, kind in listing.partition_by.items():
        schema = schema.add(name, kind)
    return schema


# --- in tasks ---------------------------------------------------------------------------------------------------------


def _read_groups(
    groups: Sequence[Sequence[File]],
    fields: Sequence[Field],
    folders: Sequence[tuple[str, int]],
    compression: str | None,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """The rows of the files in the groups whose numbers come in; ``folders`` are the partition columns and places."""
    names = [field.name for field in fields] + [name for name, _ in folders]
    for file in _files(groups, batches):
        for row_count, columns in read_blocks(file.path, fields, compression=compression):
            for _, place in folders:
                columns.append(pa.repeat(pa.scalar(file.partition[place], pa.string()), row_count))
            yield pa.RecordBatch.from_arrays(columns, names)


def _read_bytes(
    groups: Sequence[Sequence[File]], compression: str | None, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for file in _files(groups, batches):
        for block in blocks_in(file.path, compression=compression):
            yield pa.RecordBatch.from_arrays([pa.array(list(block.records()), pa.binary())], ["value"])


def _survey_groups(
    groups: Sequence[Sequence[File]], compression: str | None, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """One row of JSON: what the records have, or the error that ended the search."""
    try:
        findings = merge(found for file in _files(groups, batches) for found in _survey_file(file.path, compression))
        features = {name: {kind: asdict(found) for kind, found in kinds.items()} for name, kinds in findings.items()}
        answer: dict[str, Any] = {"features": features}
    except RecordError as error:  # as a value: nobody should try again, and Spark would bury what it says
        answer = {"error": {"text": str(error), "path": error.path, "offset": error.offset}}
    yield pa.RecordBatch.from_pydict({"found": [json.dumps(answer)]})


def _survey_file(path: str, compression: str | None) -> Iterator[dict[str, dict[str, Found]]]:
    for block in blocks_in(path, compression=compression):
        try:
            seen = survey(block)
        except Misfit as misfit:
            raise RecordError.at(path, block.offset_of(misfit.place), misfit.what) from misfit
        where = partial("{}, record at byte {}".format, path)
        yield {
            name: {kind: Found.of(each, where(block.offset_of(each.place))) for kind, each in kinds.items()}
            for name, kinds in seen.items()
        }


def _files(groups: Sequence[Sequence[File]], batches: Iterable[pa.RecordBatch]) -> Iterator[File]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield from groups[number]
