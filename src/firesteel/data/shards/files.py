"""Shards in files: Parquet, which is safe to open, and Spark's pickle file, which is not.

``save_parquet``: a file for each partition, a row group for each shard (``data.shards.cells``). A list of them is
written last, in one go, so that a folder holds the old shards or the new ones, whatever dies in between; and an
attempt of a task that failed, or that ran twice, leaves files that no list names.
"""

from __future__ import annotations

import json
import os
import secrets
import warnings
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from firesteel.core.errors import PlanError, SchemaError
from firesteel.data.file import Files, files_of
from firesteel.data.shards.cells import decode, encode
from firesteel.data.shards.kinds import check_positive
from firesteel.data.structure import even_boundaries

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import RDD, SparkContext

__all__ = ["load_parquet", "load_pickle", "save_parquet", "save_pickle"]

_LIST = "_firesteel_shards.json"
_PICKLE_MARK = "_firesteel_pickle"
_FORMAT = "firesteel shards"
_CHUNK_BYTES = 1 << 28
"""Parquet's cells end at 2 GB; larger buffers are several."""


def save_parquet(rdd: RDD[Any], path: str, overwrite: bool) -> None:
    """Write all shards, then the list, then remove what an older list named."""
    storage, folder = files_of(path)
    old: list[dict[str, Any]] | None = None
    if storage.exists(folder) and (storage.is_file(folder) or storage.names(folder)):
        if not overwrite:
            raise FileExistsError(f"{path} exists; pass overwrite=True to replace it")
        old = _read_list(storage, folder, path)
    storage.make_folder(folder)
    token = secrets.token_hex(4)
    try:
        found = []
        for part in rdd.mapPartitionsWithIndex(partial(_write, storage.url(folder), token)).collect():
            if isinstance(part, SchemaError):
                raise part
            found.append(part)
        _write_list(storage, folder, found)
    except BaseException:
        if old is None:
            storage.remove_tree(folder)
        else:
            _remove(storage, folder, keep=[str(part["file"]) for part in old])
        raise
    _remove(storage, folder, keep=[str(part["file"]) for part in found])


def load_parquet(context: SparkContext, path: str, least: int | None) -> RDD[Any]:
    """One task for each partition that was saved, or more."""
    if least is not None:
        check_positive("minPartitions", least)
    storage, folder = files_of(path)
    parts = _read_list(storage, folder, path)
    places = [[(str(part["file"]), group) for group in range(part["shards"])] for part in parts]
    if least is not None and least > len(places):
        flat = [place for part in places for place in part]
        bounds = even_boundaries(len(flat), int(least))
        places = [flat[begin:end] for begin, end in pairwise(bounds)]
    return context.parallelize(places, max(1, len(places))).mapPartitions(partial(_read, storage.url(folder)))


def save_pickle(rdd: RDD[Any], path: str, batch_size: int) -> None:
    """Spark's own pickle file, with a mark that it is ours."""
    check_positive("batchSize", batch_size)
    path = os.fspath(path)
    storage, folder, join = _hadoop(rdd.context, path)
    if storage.exists(folder):
        raise FileExistsError(f"{path} exists already")
    rdd.saveAsPickleFile(path, int(batch_size))
    storage.create(join(_PICKLE_MARK)).close()


def load_pickle(context: SparkContext, path: str, least: int | None) -> RDD[Any]:
    """A pickle file, if ``save_pickle`` wrote it."""
    if least is not None:
        check_positive("minPartitions", least)
    path = os.fspath(path)
    storage, folder, join = _hadoop(context, path)
    if not storage.exists(folder):
        raise PlanError(f"Path does not exist: {path}")
    if not storage.exists(join(_PICKLE_MARK)):
        raise PlanError(f"{path} was not written by save_pickle: a pickle runs code when it is read, so no other is")
    warnings.warn(
        f"reading pickles runs code from the file: open {path} only if you trust who wrote it; save_parquet and "
        f"load_parquet do without",
        stacklevel=3,
    )
    # Named one by one, in order: Hadoop lists a folder as the disk has it.
    found = [str(status.getPath().toString()) for status in storage.listStatus(folder)]
    parts = sorted(part for part in found if part.rpartition("/")[2].startswith("part-"))
    return context.pickleFile(",".join(parts), least)


def _hadoop(context: SparkContext, path: str) -> tuple[Any, Any, Any]:
    """Spark's own file system for this path, the path, and how to name something inside."""
    make: Any = context._jvm.org.apache.hadoop.fs.Path  # type: ignore[union-attr]
    folder = make(path)
    return folder.getFileSystem(context._jsc.hadoopConfiguration()), folder, lambda name: make(folder, name)


def _read_list(storage: Files, folder: str, path: str) -> list[dict[str, Any]]:
    if not storage.exists(folder):
        raise PlanError(f"Path does not exist: {path}")
    try:
        with storage.open(f"{folder}/{_LIST}", "rb") as file:
            found = json.loads(file.read())
        if found["format"] != _FORMAT:
            raise ValueError(found["format"])
    except (OSError, ValueError, KeyError) as error:
        raise PlanError(f"{path} was not written by save_parquet, or not to the end: {error}") from error
    return list(found["partitions"])


def _write_list(storage: Files, folder: str, parts: list[dict[str, Any]]) -> None:
    text = json.dumps({"format": _FORMAT, "version": 1, "partitions": parts}, indent=1)
    beside = f"{folder}/{_LIST}.{secrets.token_hex(4)}"
    with storage.open(beside, "wb") as file:
        file.write(text.encode())
    storage.replace(beside, f"{folder}/{_LIST}")


def _remove(storage: Files, folder: str, keep: list[str]) -> None:
    """Everything of ours that the list does not name."""
    for name in storage.names(folder):
        if name.startswith(("shards-", f"{_LIST}.")) and name not in keep:
            storage.remove(f"{folder}/{name}")


# In tasks


def _schema() -> pa.Schema:
    import pyarrow as pa

    # A buffer is `ends[i] - ends[i - 1]` chunks.
    fields = [("structure", pa.string()), ("chunks", pa.list_(pa.binary())), ("ends", pa.list_(pa.int64()))]
    return pa.schema(fields)


def _write(path: str, token: str, partition: int, shards: Iterable[Any]) -> Iterator[dict[str, Any] | SchemaError]:
    import pyarrow as pa
    from pyarrow import parquet

    storage, folder = files_of(path)
    name = f"shards-{partition:05d}-{token}-{secrets.token_hex(4)}.parquet"
    count = 0
    # One value at a time: Parquet measures a page only after a batch of them, and it must stay below 2 GB.
    options: dict[str, Any] = {"use_dictionary": False, "write_statistics": False, "write_batch_size": 1}
    try:
        with (
            storage.open(f"{folder}/{name}", "wb") as file,
            parquet.ParquetWriter(file, _schema(), compression="lz4", **options) as writer,
        ):
            for shard in shards:
                text, buffers = encode(shard)
                chunks: list[memoryview] = []
                ends: list[int] = []
                for buffer in buffers:
                    view = memoryview(buffer)
                    chunks += [view[at : at + _CHUNK_BYTES] for at in range(0, len(view), _CHUNK_BYTES)]
                    ends.append(len(chunks))
                writer.write_table(pa.table({"structure": [text], "chunks": [chunks], "ends": [ends]}, _schema()))
                count += 1
    except SchemaError as error:
        yield SchemaError(f"save_parquet: {error} (shard {count} of partition {partition})", found=error.found)
        return
    yield {"file": name, "shards": count}


def _read(path: str, parts: Iterator[list[tuple[str, int]]]) -> Iterator[Any]:
    from pyarrow import parquet

    storage, folder = files_of(path)
    for places in parts:
        name, file = "", None
        for wanted, group in places:
            if wanted != name or file is None:
                name = wanted
                file = parquet.ParquetFile(storage.open(f"{folder}/{name}", "rb"))
            row = file.read_row_group(group)
            chunks = row["chunks"].combine_chunks().values
            buffers, begin = [], 0
            for end in row["ends"][0].as_py():
                pieces = [chunks[place].as_buffer() for place in range(begin, end)]
                buffers.append(pieces[0].to_pybytes() if len(pieces) == 1 else b"".join(map(bytes, pieces)))
                begin = end
            yield decode(row["structure"][0].as_py(), buffers)
