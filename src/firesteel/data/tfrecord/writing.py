"""A Spark DataFrame as a folder of TFRecord files.

Tasks write into a folder beside it, each attempt at names of its own; when all are done the driver moves the files that
the successful attempts made to their places. So a task that is tried again, or a job that fails, leaves nothing behind.
"""

from __future__ import annotations

import itertools
import json
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from firesteel.core.errors import PlanError, SchemaError, UnknownName
from firesteel.data.file import files_of, read_bytes
from firesteel.data.tfrecord.columns import Field, to_records
from firesteel.data.tfrecord.framing import check_compression, open_whole, write_records
from firesteel.data.tfrecord.listing import NULL_FOLDER, TAKEN, as_paths, ask, escape, is_connect
from firesteel.data.tfrecord.schema import SCHEMA_FILE, fields_of, from_json, to_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["MODES", "write_tfrecords"]

MODES = ("append", "error", "errorifexists", "ignore", "overwrite")
_DONE = "_SUCCESS"


def write_tfrecords(
    df: DataFrame,
    path: Any,
    *,
    mode: str = "error",
    compression: str | None = None,
    partition_by: str | Sequence[str] = (),
) -> None:
    """Write a DataFrame as TFRecord files of Examples, one file for each partition.

    A row is an Example, a column a feature of the same name: floats and doubles are lists of 32-bit floats, booleans
    and integers of 64-bit integers, strings and binary of bytes. A scalar is a list of one, a null a feature that is
    not there. The DataFrame's schema is kept beside the files, so ``read_tfrecords`` gives back what was written.

    Args:
        df: the DataFrame.
        path: a folder, or its URL; made if need be.
        mode: if the folder is there: ``"error"``, ``"overwrite"``, ``"append"`` or ``"ignore"``. The old files stay
            until the new ones are written.
        compression: ``"gzip"`` or ``None``.
        partition_by: columns that become folders called ``column=value`` instead of features.

    Raises:
        SchemaError: a column of another type, a null inside an array, a double beyond 32 bits, or, when appending,
            another schema than the folder has.
        PlanError: the folder exists and the mode is ``"error"``.
    """
    check_compression(compression)
    if mode not in MODES:
        raise UnknownName("mode", mode, MODES)
    keys = _checked_keys(df.schema, partition_by)
    fields = fields_of(field for field in df.schema.fields if field.name not in keys)
    if not fields:
        raise SchemaError("no column is left to be written: each one is a folder")
    (text,) = as_paths([path])
    spark = df.sparkSession
    folder = _qualified(spark, text)
    there = ask(spark, partial(_look, folder))
    if there["is_file"]:
        raise PlanError(f"{text} is a file; give the path of a folder")
    if there["exists"] and mode in ("error", "errorifexists"):
        raise PlanError(f'{text} already exists; pass mode="overwrite", "append" or "ignore", or another path')
    if there["exists"] and mode == "ignore":
        return
    is_added = mode == "append" and there["has_files"]
    if is_added and there["schema"] is not None:
        _check_same(df.schema, from_json(there["schema"], f"{folder}/{SCHEMA_FILE}"), text)
    job = secrets.token_hex(4)
    above, slash, name = folder.rpartition("/")
    writing = _Writing(
        staging=f"{above}{slash}_{name}-{job}",
        suffix=(f"-{job}" if is_added else "") + (".gz" if compression == "gzip" else ""),
        fields=fields,
        keys=keys,
        compression=compression or "none",
    )
    # Beside files whose schema nobody knows a stored one would speak for them, too.
    schema = None if is_added and there["schema"] is None else to_json(df.schema)
    try:
        files = _run(df, writing)
        ask(spark, partial(_commit, folder, files, mode == "overwrite", schema))
    finally:
        ask(spark, partial(_remove, writing.staging))


@dataclass(frozen=True)
class _Writing:
    """What a task needs to know."""

    staging: str
    suffix: str
    fields: tuple[Field, ...]
    keys: tuple[str, ...]
    compression: str


# --- on the driver ----------------------------------------------------------------------------------------------------


def _checked_keys(schema: StructType, partition_by: str | Sequence[str]) -> tuple[str, ...]:
    from pyspark.sql.types import ArrayType, BinaryType, MapType, StructType, UserDefinedType

    keys = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
    for name in keys:
        if name not in schema.names:
            there = ", ".join(schema.names)
            raise SchemaError(f"there is no column {name!r} to partition by; the DataFrame has: {there}", column=name)
        if name.lower() in TAKEN:
            raise SchemaError(
                f"column {name!r} cannot be a folder: Spark has columns of that name where it lists files; rename it",
                column=name,
            )
        kind = schema[name].dataType
        if isinstance(kind, (ArrayType, BinaryType, MapType, StructType, UserDefinedType)):
            raise SchemaError(
                f"column {name!r} is of type {kind.simpleString()}, which cannot be a folder's name",
                column=name,
                found=kind.simpleString(),
            )
    if len(set(keys)) < len(keys):
        raise SchemaError(f"partition_by names a column twice: {', '.join(keys)}")
    return keys


def _check_same(ours: StructType, theirs: StructType, path: str) -> None:
    mine = {field.name: field.dataType.simpleString() for field in ours.fields}
    there = {field.name: field.dataType.simpleString() for field in theirs.fields}
    if mine != there:
        raise SchemaError(
            f"{path} has other columns than the DataFrame to be appended: {_listed(there)}; not {_listed(mine)}",
            expected=_listed(there),
            found=_listed(mine),
        )


def _listed(columns: dict[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())


def _qualified(spark: SparkSession, path: str) -> str:
    """The path with the file system that Spark takes it for: its default one may be another than this machine's."""
    if not is_connect(spark) and "://" not in path:
        place = spark._jvm.org.apache.hadoop.fs.Path(path)  # type: ignore[union-attr]
        system = place.getFileSystem(spark._jsc.hadoopConfiguration())
        path = str(system.makeQualified(place).toString())
    return path.rstrip("/")


def _run(df: DataFrame, writing: _Writing) -> list[list[str]]:
    """Write all files aside, and say which: where each is, and where it belongs, below the folder."""
    from pyspark.sql.functions import coalesce, col, lit

    from firesteel.data.quoting import quoted

    rows = df
    if writing.keys:
        # Spark's own text of each value. Sorted, so that a task has one file open at a time.
        texts = [coalesce(col(quoted(name)).cast("string"), lit("")) for name in writing.keys]
        names = [f"key{place}" for place in range(len(texts))]
        rows = df.select(
            *[col(quoted(field.name)).alias(f"c{place}") for place, field in enumerate(writing.fields)],
            *[text.alias(name) for text, name in zip(texts, names, strict=True)],
        ).sortWithinPartitions(*names)
    found = rows.mapInArrow(lambda batches: _write(writing, batches), "answer string").collect()
    answers = [json.loads(row[0]) for row in found]
    for answer in answers:
        if "error" in answer:
            raise SchemaError(answer["error"], column=answer["column"])
    return [file for answer in answers for file in answer["files"]]


def _look(folder: str) -> dict[str, Any]:
    """What is there already."""
    files, place = files_of(folder)
    exists, is_file = files.exists(place), files.is_file(place)
    names = files.names(place) if exists and not is_file else []
    text = read_bytes(f"{folder}/{SCHEMA_FILE}").decode() if SCHEMA_FILE in names else None
    has_files = any(not name.startswith((".", "_")) for name in names)
    return {"exists": exists, "is_file": is_file, "has_files": has_files, "schema": text}


def _commit(folder: str, moves: Sequence[Sequence[str]], is_new: bool, schema: str | None) -> None:
    """Move the files to their places; ``is_new``: what is there goes."""
    files, place = files_of(folder)
    if is_new and files.exists(place):
        files.remove_tree(place)
    for below in sorted({target.rpartition("/")[0] for _, target in moves}):
        files.make_folder(f"{place}/{below}".rstrip("/"))
    for source, target in moves:
        files.move(files_of(source)[1], f"{place}/{target}")
    for name, text in ((SCHEMA_FILE, schema), (_DONE, "")):
        if text is not None:
            with open_whole(f"{folder}/{name}") as stream:
                stream.write(text.encode())


def _remove(folder: str) -> None:
    files, place = files_of(folder)
    if files.exists(place):
        files.remove_tree(place)


# --- in tasks ---------------------------------------------------------------------------------------------------------


def _write(writing: _Writing, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write a partition, and answer with one row of JSON: its files, or the error that ended it."""
    try:
        answer: dict[str, Any] = {"files": _write_files(writing, batches)}
    except SchemaError as error:  # as a value: nobody should try again, and Spark would bury what it says
        answer = {"error": str(error), "column": error.column}
    yield pa.RecordBatch.from_pydict({"answer": [json.dumps(answer)]})


def _write_files(writing: _Writing, batches: Iterable[pa.RecordBatch]) -> list[list[str]]:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    number, attempt = context.partitionId(), context.taskAttemptId()
    name = f"part-r-{number:05d}{writing.suffix}"
    files: list[list[str]] = []
    if not writing.keys:
        runs: Iterable[tuple[str, Iterable[pa.RecordBatch]]] = [("", batches)]
    else:
        pieces = itertools.groupby(_pieces(batches, writing.keys), key=lambda piece: piece[0])
        runs = ((folder, (rows for _, rows in run)) for folder, run in pieces)
    for below, rows in runs:
        staged = f"{writing.staging}/{number:05d}-{attempt}-{len(files)}"
        write_records(staged, _records(rows, writing.fields), compression=writing.compression)
        files.append([staged, f"{below}/{name}".lstrip("/")])
    return files


def _records(batches: Iterable[pa.RecordBatch], fields: Sequence[Field]) -> Iterator[bytes]:
    for batch in batches:
        yield from to_records(batch.columns[: len(fields)], fields)


def _pieces(batches: Iterable[pa.RecordBatch], keys: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Rows that belong together, with their folder; a batch's last columns are the keys, sorted."""
    for batch in batches:
        if not batch.num_rows:
            continue
        texts = batch.columns[-len(keys) :]
        changes = np.zeros(batch.num_rows - 1, bool)
        for text in texts:
            changes |= pc.not_equal(text[1:], text[:-1]).to_numpy(zero_copy_only=False)
        limits = [0, *(np.flatnonzero(changes) + 1).tolist(), batch.num_rows]
        for begin, end in itertools.pairwise(limits):
            values = [text[begin].as_py() for text in texts]
            names = [f"{escape(key)}={escape(value) or NULL_FOLDER}" for key, value in zip(keys, values, strict=True)]
            yield "/".join(names), batch.slice(begin, end - begin)
