"""A dataset's files: where they lie, how new ones are put in their place, and which pieces there are to read.

``path/_orca_metadata`` is the schema, ``path/chunk=0/part-00000.parquet`` the first block of rows, and so on. A piece
is a row group of such a file: what one read brings into memory. Rows are in the order of chunk number, file, row.

A write leaves nothing half done: it goes to a folder beside the dataset (an append: inside it), whose name begins with
a dot, and takes its place at the end, by renaming. Where a file system has no renaming (object stores), moving copies.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from firesteel.core.errors import PlanError
from firesteel.data.file import Files, Path, files_of
from firesteel.data.image.cells import Column, read_columns
from firesteel.data.image.schema import Schema, decode_schema
from firesteel.data.structure import even_boundaries

if TYPE_CHECKING:
    import pyarrow.parquet as pq

__all__ = [
    "METADATA",
    "DatasetExists",
    "DatasetMissing",
    "Piece",
    "Target",
    "chunk_folder",
    "extended",
    "read_dataset",
    "read_piece",
    "replaced",
    "share",
    "target_of",
]

METADATA = "_orca_metadata"

_CHUNK = re.compile(r"chunk=(\d+)")
_FOOTER_THREADS = 8


class DatasetExists(PlanError, FileExistsError):
    """There is something already where a dataset was to be written."""


class DatasetMissing(PlanError, FileNotFoundError):
    """There is no dataset where one was to be read."""


# Writing


@dataclass(frozen=True)
class Target:
    """Where a dataset is to be written.

    Attributes:
        files: the file system.
        path: the dataset's folder.
        exists: whether anything is there (an empty folder is nothing).
        is_dataset: whether that is a dataset.
        chunks: the number of the next chunk.
    """

    files: Files
    path: str
    exists: bool
    is_dataset: bool
    chunks: int

    @property
    def schema(self) -> Schema:
        """The schema of the dataset that is there."""
        return _schema_at(self.files, self.path)


def target_of(path: Path) -> Target:
    """Look at the place where a dataset is to be written."""
    files, place = _located(path)
    left = _left_behind(files, place)
    if left is not None:
        files.move(left, place)
    names = [] if not files.exists(place) or files.is_file(place) else files.names(place)
    chunks = _chunk_numbers(names)
    return Target(
        files,
        place,
        exists=bool(names) or files.is_file(place),
        is_dataset=METADATA in names or bool(chunks),
        chunks=max(chunks, default=-1) + 1,
    )


def chunk_folder(folder: str, number: int) -> str:
    """Where a chunk's files lie."""
    return f"{folder}/chunk={number}"


@contextmanager
def replaced(target: Target) -> Iterator[str]:
    """A folder to write a dataset into, which takes the target's place when the block ends well."""
    files, path = target.files, target.path
    folder, name = _split(path)
    new, old, trash = (f"{folder}/.{name}.{word}-{secrets.token_hex(4)}" for word in ("new", "old", "trash"))
    try:
        files.make_folder(new)
        yield new
        is_there = files.exists(path)
        try:
            if is_there:
                files.copy_mode(path, new)
                files.move(path, old)
            files.move(new, path)
        except BaseException:
            if is_there and not files.exists(path):
                files.move(old, path)
            raise
    except BaseException:
        with suppress(FileNotFoundError):
            files.remove_tree(new)
        raise
    if is_there:
        files.move(old, trash)  # at once: what is half removed must not be taken for an old dataset
        files.remove_tree(trash)


@contextmanager
def extended(target: Target) -> Iterator[str]:
    """A folder to write further chunks into, which join the target's own when the block ends well."""
    files = target.files
    made = f"{target.path}/.new-{secrets.token_hex(4)}"
    try:
        files.make_folder(made)
        yield made
        # Object stores have no folder without files.
        for number in _chunk_numbers(files.names(made) if files.exists(made) else []):
            files.move(chunk_folder(made, number), chunk_folder(target.path, number))
    finally:
        with suppress(FileNotFoundError):
            files.remove_tree(made)


def _located(path: Path) -> tuple[Files, str]:
    files, place = files_of(path)
    if files.is_local:
        # Renaming a link would leave its target behind, and a relative path means something else in a task.
        return files, os.path.realpath(place)
    return files, place.rstrip("/")


def _split(path: str) -> tuple[str, str]:
    folder, _, name = path.rpartition("/")
    return folder, name


def _left_behind(files: Files, path: str) -> str | None:
    """The old dataset, where a writer died in the instant between its two renamings."""
    folder, name = _split(path)
    above = folder or "/" if files.is_local else folder
    if files.exists(path) or not above or not files.exists(above):
        return None
    found = [other for other in files.names(above) if other.startswith(f".{name}.old-")]
    return f"{folder}/{found[0]}" if found else None


def _chunk_numbers(names: Sequence[str]) -> list[int]:
    return sorted(int(match[1]) for match in map(_CHUNK.fullmatch, names) if match)


# Reading


@dataclass(frozen=True)
class Piece:
    """Some rows of a dataset that are read together.

    Attributes:
        file: the Parquet file, as a task can open it.
        group: the row group in it.
        start: the first row in the row group.
        stop: the row after the last.
        row_bytes: what a row takes, about.
    """

    file: str
    group: int
    start: int
    stop: int
    row_bytes: int

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return self.stop - self.start


def read_dataset(path: Path) -> tuple[Schema, list[Piece]]:
    """The schema, and all pieces in order. Reads the files' footers, not their rows.

    Raises:
        DatasetMissing: no dataset is there (a ``PlanError`` and a ``FileNotFoundError``).
    """
    files, place = _located(path)
    place = _left_behind(files, place) or place
    if not files.exists(f"{place}/{METADATA}"):
        raise DatasetMissing(f"there is no dataset at {os.fspath(path)}: No such file: {place}/{METADATA}")
    schema = _schema_at(files, place)
    found = []
    for number in _chunk_numbers(files.names(place)):
        folder = chunk_folder(place, number)
        names = [name for name in files.names(folder) if name.endswith(".parquet") and name[0] not in "._"]
        found += [files.url(f"{folder}/{name}") for name in names]
    with ThreadPoolExecutor(_FOOTER_THREADS) as threads:
        return schema, [piece for pieces in threads.map(_pieces_of, found) for piece in pieces]


def read_piece(piece: Piece, schema: Schema) -> dict[str, Column]:
    """The values of a piece's rows. Runs in tasks and loaders' processes."""
    with _open(piece.file) as file:
        table = file.read_row_group(piece.group, use_threads=False)  # tasks and workers have a core each
    return read_columns(table.slice(piece.start, piece.rows), schema, piece.file)


def share(pieces: Sequence[Piece], parts: int, index: int) -> list[Piece]:
    """Part ``index`` of ``parts``: rows in their order, parts that differ by one row at most.

    Every row is in exactly one part, also where there are more parts than pieces, or than rows.
    """
    boundaries = even_boundaries(sum(piece.rows for piece in pieces), parts)
    begin, end = boundaries[index], boundaries[index + 1]
    mine, place = [], 0
    for piece in pieces:
        start, stop = max(begin - place, 0), min(end - place, piece.rows)
        if start < stop:
            mine.append(Piece(piece.file, piece.group, piece.start + start, piece.start + stop, piece.row_bytes))
        place += piece.rows
    return mine


def _schema_at(files: Files, place: str) -> Schema:
    source = f"{place}/{METADATA}"
    with files.open(source, "rb") as stream:
        return decode_schema(stream.read().decode("utf-8"), source)


def _pieces_of(file: str) -> list[Piece]:
    with _open(file) as opened:
        groups = [opened.metadata.row_group(number) for number in range(opened.metadata.num_row_groups)]
    return [
        Piece(file, number, 0, group.num_rows, -(-group.total_byte_size // group.num_rows))
        for number, group in enumerate(groups)
        if group.num_rows
    ]


@contextmanager
def _open(file: str) -> Iterator[pq.ParquetFile]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    files, place = files_of(file)
    try:
        if files.is_local:  # Arrow's own reading of a file is faster than through Python's
            with pq.ParquetFile(place) as opened:
                yield opened
        else:
            with files.open(place, "rb") as stream, pq.ParquetFile(stream) as opened:
                yield opened
    except pa.ArrowInvalid as error:
        raise PlanError(f"{file} is damaged, or no Parquet file: {error}") from error
