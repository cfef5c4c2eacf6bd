"""Which files there are to read, found by Spark: folders, globs and single files, wherever Spark can read.

Names that begin with ``_`` or ``.`` are passed over, and folders called ``column=value`` make columns, as with every
file that Spark reads.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from firesteel.core.errors import PlanError, SchemaError
from firesteel.data.file import files_of, read_bytes
from firesteel.data.tfrecord.schema import SCHEMA_FILE, from_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType, StructType

__all__ = ["File", "Listing", "as_paths", "ask", "escape", "group", "is_connect", "list_files", "stored_schema"]

NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
TAKEN = ("path", "modificationtime", "length", "content")
"""What Spark itself calls the columns of a list of files, in whatever case: folders cannot have these names."""
_ESCAPED = re.compile("[\x00-\x1f\x7f\"#%'*/:=?\\\\{\\[\\]^]")
_OPEN_BYTES = 4 << 20  # what opening a file costs, in bytes read meanwhile: Spark's own guess
_TASK_BYTES = 128 << 20  # Spark's own size for a task
_SLOTS_UNKNOWN = 16


@dataclass(frozen=True)
class File:
    """A file, and what its folders say: the text of each partition column, ``None`` for null."""

    path: str
    size: int
    partition: tuple[str | None, ...] = ()


@dataclass(frozen=True)
class Listing:
    """The files in the order of their names, and the partition columns with the types that Spark reads from them."""

    files: tuple[File, ...]
    partition_by: dict[str, DataType] = field(default_factory=dict)
    folders: tuple[str, ...] = ()  # where the schema may be stored


def is_connect(spark: SparkSession) -> bool:
    """Whether this session has no Spark of its own."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def as_paths(path: Any) -> list[str]:
    """One path or several, as text."""
    paths = list(path) if isinstance(path, (list, tuple)) else [path]
    if not paths or not all(isinstance(each, (str, os.PathLike)) for each in paths):
        raise PlanError(f"path must be a path, a URL, a glob or a list of these, not {path!r}")
    return [os.fspath(each) for each in paths]


def list_files(spark: SparkSession, paths: Sequence[str]) -> Listing:
    """The files under these paths (driver; runs a small job). ``PlanError`` where a path does not exist."""
    from pyspark.errors import AnalysisException
    from pyspark.sql.functions import col

    try:
        # Spark's reader of whole files, for it lists whatever the content; the content itself is not touched.
        frame = spark.read.format("binaryFile").load(list(paths))
        types = {each.name: each.dataType for each in frame.schema.fields if each.name.lower() not in TAKEN}
        rows = frame.select(col("_metadata.file_path"), col("_metadata.file_size")).collect()
        # Spark passes empty files over, which is right unless there are no others.
        found = sorted([tuple(row) for row in rows] or [(path, 0) for path in frame.inputFiles()])
    except AnalysisException as error:
        raise PlanError(f"TFRecord files cannot be listed: {str(error).splitlines()[0]}") from error
    files, folders = [], dict[str, None]()
    for path, size in ((unquote(path), size) for path, size in found):
        folder = posixpath.dirname(path)
        values: dict[str, str | None] = {}
        while (equals := posixpath.basename(folder).partition("="))[1] and unquote(equals[0]) in types:
            values[unquote(equals[0])] = None if equals[2] == NULL_FOLDER else unquote(equals[2])
            folder = posixpath.dirname(folder)
        folders[folder] = None
        place = files_of(path)[1] if path.startswith("file:") else path
        files.append(File(place, size, tuple(values.get(name) for name in types)))
    return Listing(tuple(files), types, tuple(folders or paths))


def escape(text: str) -> str:
    """A column's name or value as part of a folder's name, by the rules of Hive, which Spark has taken over."""
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


def group(files: Sequence[File], slots: int) -> list[tuple[File, ...]]:
    """Files for each task: neighbours in the order of names, so that rows keep it, and about equally many bytes."""
    weights = [each.size + _OPEN_BYTES for each in files]
    most = min(_TASK_BYTES, max(_OPEN_BYTES, sum(weights) // max(1, slots)))
    groups: list[list[File]] = []
    weight = most
    for each, its_weight in zip(files, weights, strict=True):
        if weight + its_weight > most:
            groups.append([])
            weight = 0
        groups[-1].append(each)
        weight += its_weight
    return [tuple(each) for each in groups]


def slots_of(spark: SparkSession) -> int:
    """How many tasks run at the same time; a guess under Connect, whose client is not told."""
    return _SLOTS_UNKNOWN if is_connect(spark) else int(spark.sparkContext.defaultParallelism)


def stored_schema(spark: SparkSession, folders: Sequence[str]) -> StructType | None:
    """The schema that was written beside the files; ``None`` where one of the folders has none."""
    texts: list[str | None] = ask(spark, partial(_read_texts, [f"{each}/{SCHEMA_FILE}" for each in folders]))
    schemas = [
        None if text is None else from_json(text, f"{folder}/{SCHEMA_FILE}")
        for folder, text in zip(folders, texts, strict=True)
    ]
    if not schemas or None in schemas:
        return None
    for folder, schema in zip(folders, schemas, strict=True):
        if schema != schemas[0]:
            raise SchemaError(f"{folders[0]} and {folder} have different schemas stored beside the files; pass schema=")
    return schemas[0]


def _read_texts(paths: Sequence[str]) -> list[str | None]:
    texts: list[str | None] = []
    for path in paths:
        try:
            texts.append(read_bytes(path).decode())
        except (FileNotFoundError, NotADirectoryError):
            texts.append(None)
    return texts


def ask(spark: SparkSession, question: Callable[[], Any]) -> Any:
    """What ``question`` (a value that JSON can hold) is where the files are.

    That is here, on the driver; under Connect the client may be elsewhere, so a task answers.
    """
    if not is_connect(spark):
        return question()
    # A closure and no method: it is pickled.
    rows = spark.range(1, numPartitions=1).mapInArrow(lambda batches: _answer(question, batches), "answer string")
    return json.loads(rows.collect()[0][0])


def _answer(question: Callable[[], Any], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for _ in batches:
        yield pa.RecordBatch.from_pydict({"answer": [json.dumps(question())]})
