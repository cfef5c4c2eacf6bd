"""Stages on disk, by Spark's own writers and readers: JSON metadata and files with hashes. No pickle, no code.

A folder holds Spark's ``metadata/`` and the stage's files beside it. Spark writes it wherever Spark can write; the
files in it can be opened without Spark.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import tempfile
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReader, MLWriter

from firesteel.cluster.preflight import is_remote
from firesteel.core.errors import CheckpointError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Fetch", "Saved", "StageReader", "StageWriter"]

FORMAT = 1
"""Of the folder. A reader refuses one that is newer than its own."""
_KEY = "firesteel"

Fetch = Callable[[str], bytes]
"""The content of a stage's file, checked against its hash."""


class Saved(Protocol):
    """A stage that can be saved: its Params, facts (JSON) and files."""

    uid: str

    def _contents(self) -> tuple[dict[str, Any], dict[str, bytes], set[str]]:
        """Facts, files by name, and Params that the files hold already. Raises before anything is written."""
        ...


class StageWriter(MLWriter):
    """Writes one stage; ``overwrite`` as Spark has it."""

    def __init__(self, stage: Any) -> None:
        super().__init__()
        self._stage = stage

    def save(self, path: str) -> None:
        """Write the folder. What cannot be saved is said before anything on disk changes."""
        if not isinstance(path, str):
            raise TypeError(f"path should be a string, got type {type(path)}")
        self._made = self._stage._contents()
        if self.shouldOverwrite and is_remote(self.sparkSession):
            self.saveImpl(path)  # file by file: nobody here can remove a folder of the server's
        else:
            super().save(path)

    def saveImpl(self, path: str) -> None:
        """See ``MLWriter``."""
        facts, files, held = self._made
        hashes = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
        extra = {_KEY: {"format": FORMAT, "files": hashes, **facts}}
        own = {param.name: value for param, value in self._stage._paramMap.items() if param.name not in held}
        text = DefaultParamsWriter._get_metadata_to_save(self._stage, self.sparkSession, extra, own)
        frame = self.sparkSession.createDataFrame([(text,)], "value string").coalesce(1)
        writer = frame.write.mode("overwrite") if self.shouldOverwrite else frame.write
        writer.text(posixpath.join(path, "metadata"))  # raises where there is one already
        for name, data in files.items():
            _put(self.sparkSession, posixpath.join(path, name), data)


class StageReader(MLReader[Any]):
    """Reads one stage. ``options`` go to its ``_from_contents``."""

    def __init__(self, cls: type, **options: Any) -> None:
        super().__init__()
        self._cls: Any = cls
        self._options = options

    def load(self, path: str) -> Any:
        """The stage in this folder. ``CheckpointError`` where there is none of this class, or one that is newer."""
        from pyspark.errors import AnalysisException

        spark = self.sparkSession
        try:
            metadata = DefaultParamsReader.loadMetadata(path, spark)
        except AnalysisException as error:
            raise CheckpointError(f"there is no saved stage in {path}: no metadata", path=path) from error
        except (json.JSONDecodeError, TypeError) as error:
            raise CheckpointError(f"the metadata in {path} are no JSON of a stage", path=path) from error
        wanted = f"{self._cls.__module__}.{self._cls.__name__}"
        if metadata["class"] != wanted:
            raise CheckpointError(f"{path} holds a {metadata['class']}, not a {wanted}: load it as that", path=path)
        about = metadata.get(_KEY, {})
        if about.get("format", 0) > FORMAT:
            raise CheckpointError(
                f"{path} was written by a newer version of Firesteel (format {about['format']}, and this one reads up "
                f"to {FORMAT}): update Firesteel",
                path=path,
            )

        def fetch(name: str) -> bytes:
            wanted = about["files"].get(name)
            data = _get(spark, posixpath.join(path, name)) if wanted is not None else None
            if data is None:
                raise CheckpointError(f"{path} is not whole: there is no file {name}", path=path)
            if hashlib.sha256(data).hexdigest() != wanted:
                raise CheckpointError(f"{path} is damaged: {name} is not what was written", path=path)
            return data

        stage = self._cls._from_contents(about, fetch, **self._options)
        stage._resetUid(metadata["uid"])
        DefaultParamsReader.getAndSetParams(stage, metadata)
        return stage


def _put(spark: SparkSession, path: str, data: bytes) -> None:
    """Write a file where Spark's own go."""
    with tempfile.TemporaryDirectory(prefix="firesteel-") as folder:
        local = os.path.join(folder, posixpath.basename(path))
        with open(local, "wb") as file:
            file.write(data)
        if is_remote(spark):
            try:
                spark.copyFromLocalToFs(local, path)
            except Exception as error:
                if "local file system" not in str(error):
                    raise
                _put_by_task(spark, path, data)
            return
        system, place = _hadoop(spark, path)
        source = spark._jvm.org.apache.hadoop.fs.Path(f"file://{local}")  # type: ignore[union-attr]
        system.copyFromLocalFile(False, True, source, place)


def _put_by_task(spark: SparkSession, path: str, data: bytes) -> None:
    """Write a file on a disk of the server's, to which a client sends none: where a task puts Spark's own too."""
    import pyarrow as pa

    place = path.removeprefix("file://").removeprefix("file:")

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for content in batch.column(0):
                os.makedirs(os.path.dirname(place), exist_ok=True)
                with open(f"{place}.part", "wb") as file:
                    file.write(content.as_buffer())
                os.replace(f"{place}.part", place)
            yield batch.slice(0, 0)

    frame = spark.createDataFrame(pa.table({"content": pa.array([data], pa.binary())})).coalesce(1)
    frame.mapInArrow(write, "content binary").collect()


def _get(spark: SparkSession, path: str) -> bytes | None:
    """The content of a file, or ``None`` where there is none."""
    if is_remote(spark):
        from pyspark.errors import AnalysisException

        try:
            rows = spark.read.format("binaryFile").load(path).select("content").collect()
        except AnalysisException:
            return None
        return bytes(rows[0][0]) if rows else None
    system, place = _hadoop(spark, path)
    if not system.exists(place):
        return None
    with tempfile.TemporaryDirectory(prefix="firesteel-") as folder:
        local = os.path.join(folder, "file")
        target = spark._jvm.org.apache.hadoop.fs.Path(f"file://{local}")  # type: ignore[union-attr]
        system.copyToLocalFile(False, place, target, True)
        with open(local, "rb") as file:
            return file.read()


def _hadoop(spark: SparkSession, path: str) -> tuple[Any, Any]:
    place = spark._jvm.org.apache.hadoop.fs.Path(path)  # type: ignore[union-attr]
    return place.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()), place
