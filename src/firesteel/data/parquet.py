"""Rows that ranks read from Parquet files themselves, where a DataFrame is all rows of such files.

Spark says which pieces of which files make each partition, and the task whose turn it is reads just these: a row group
belongs to the piece that has its middle, as Spark's own readers have it. So rows, their order and their partitions are
those that Spark would have sent. What comes of it are the Arrow arrays that Spark would have written.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from firesteel.core.errors import ClusterError, SchemaError
from firesteel.data.raw import form_of
from firesteel.data.scan import SETTING, Piece, Scan, bare_names, is_exact, named, pieces_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

__all__ = ["FileRows", "files_of"]

_MOST_PIECES = 1000  # to learn of each takes the driver some 0.3 ms
_MOST_FIELDS = 400_000  # in the schemas of all files together: to read these takes the driver about a second
_BATCH_BYTES = 2 << 20  # what a processor's caches hold
_BUFFER_BYTES = 1 << 20
_BATCH_ROWS = 1 << 16
_BATCH_CELLS = 1 << 10  # of strings and bytes, whose size a file does not tell where equal ones are written once


@dataclass(frozen=True)
class FileRows:
    """The rows of some partitions. Travels to the tasks.

    Attributes:
        partitions: the pieces of each.
        columns: in the order in which they are selected.
        kinds: of these columns, as Spark would send them.
    """

    partitions: tuple[tuple[Piece, ...], ...]
    columns: tuple[Scan, ...]
    kinds: tuple[pa.DataType, ...]

    def is_readable(self) -> bool:
        """Whether every file is, and has columns that become these. Driver only, no job."""
        import pyarrow.parquet as pq

        fields = 0
        try:
            for path in dict.fromkeys(path for pieces in self.partitions for path, _, _ in pieces):
                schema = pq.read_schema(path)
                fields += len(schema)
                if fields > _MOST_FIELDS or not self._fits(schema):
                    return False
        except (OSError, SchemaError, pa.ArrowException):
            return False  # Spark reads it, or says what it makes of it
        return True

    def _fits(self, schema: pa.Schema) -> bool:
        names = [named(schema, column) for column in self.columns]
        return all(
            name is None or _becomes(schema.field(name).type, kind)
            for name, kind in zip(names, self.kinds, strict=True)
        )

    def read(self, partition: int) -> Iterator[pa.RecordBatch]:
        """A partition's rows, in order, a few at a time. Runs in a task."""
        for path, begin, end in self.partitions[partition]:
            try:
                yield from self._read(path, begin, end)
            except (OSError, pa.ArrowException) as error:
                reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
                # A disk or a mount may fail on this host alone: a task on another one is worth a try.
                is_lasting = not isinstance(error, OSError) or error.errno in (None, errno.ENOENT)
                raise ClusterError(
                    f"{path} could not be read: {reason}. If Spark itself can read it, "
                    f'spark.conf.set("{SETTING}", "false") has it do so.',
                    is_lasting=is_lasting,
                ) from error

    def _read(self, path: str, begin: int, end: int) -> Iterator[pa.RecordBatch]:
        with _opened(path) as file:
            names = [named(file.schema_arrow, column) for column in self.columns]
            there = sorted({name for name in names if name is not None})
            for number in range(file.metadata.num_row_groups):
                group = file.metadata.row_group(number)
                if not begin <= _middle(group) < end:
                    continue
                if not there:
                    yield self._rows([pa.nulls(group.num_rows, kind) for kind in self.kinds])
                    continue
                size = _rows_at_once(group, there, self.kinds)
                for found in file.iter_batches(size, row_groups=[number], columns=there, use_threads=False):
                    yield self._rows([_column(found, *each) for each in zip(names, self.kinds, strict=True)])

    @staticmethod
    def _rows(arrays: Sequence[pa.Array]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(arrays, [f"c{place}" for place in range(len(arrays))])


def files_of(selected: DataFrame) -> FileRows | None:
    """The files of a DataFrame; ``None`` where its rows had better come through Spark. Driver only, no job."""
    kinds = [_kind_of(field.dataType) for field in selected.schema]
    if not kinds or None in kinds:
        return None
    names = bare_names(selected)
    pieces = None if names is None else pieces_of(selected, _MOST_PIECES)
    if names is None or pieces is None:
        return None
    columns = tuple(Scan(name, is_exact(selected)) for name in names)
    found = FileRows(tuple(map(tuple, pieces)), columns, tuple(kinds))
    return found if found.is_readable() else None


def _opened(path: str) -> Any:
    import pyarrow.parquet as pq

    # Read as it goes, not mapped: a row group may be larger than a task's memory.
    return pq.ParquetFile(path, buffer_size=_BUFFER_BYTES)


def _kind_of(kind: DataType) -> pa.DataType | None:
    """What a column of this type comes as: numbers, lists of them, strings and bytes do."""
    from pyspark.sql.types import BinaryType, StringType

    if type(kind) in (StringType, BinaryType):
        return pa.string() if isinstance(kind, StringType) else pa.binary()
    form = form_of(kind)
    return None if form is None or form.is_vector else form.arrow_type


def _middle(group: Any) -> int:
    """The byte in the middle of a row group."""
    columns = [group.column(place) for place in range(group.num_columns)]
    first = columns[0]
    begin = first.data_page_offset
    if first.has_dictionary_page and 0 < first.dictionary_page_offset < begin:
        begin = first.dictionary_page_offset
    return int(begin + sum(column.total_compressed_size for column in columns) // 2)


def _rows_at_once(group: Any, names: Sequence[str], kinds: Sequence[pa.DataType]) -> int:
    """How many rows of these columns are read at a time."""
    chosen = [
        column
        for column in (group.column(place) for place in range(group.num_columns))
        if column.path_in_schema.split(".")[0] in {name.split(".")[0] for name in names}
    ]
    size = sum(max(column.total_uncompressed_size, 8 * column.num_values) for column in chosen)
    rows = int(_BATCH_BYTES * group.num_rows / max(1, size))
    is_cells = any(pa.types.is_string(kind) or pa.types.is_binary(kind) for kind in kinds)
    return max(1, min(rows, _BATCH_CELLS if is_cells else _BATCH_ROWS))


def _column(rows: pa.RecordBatch, name: str | None, kind: pa.DataType) -> pa.Array:
    if name is None:
        return pa.nulls(rows.num_rows, kind)  # as Spark has it, of a file that is older than the column
    found = rows.column(rows.schema.names.index(name))
    if found.type == kind:
        return found
    if not _becomes(found.type, kind):
        raise pa.ArrowTypeError(f"column {name!r} is of type {found.type} there, and was of {kind} in other files")
    return found.cast(kind)


def _becomes(found: pa.DataType, kind: pa.DataType) -> bool:
    """Whether Spark reads values that are written so as these, and Arrow the same: equal types, narrower numbers."""
    types = pa.types
    if types.is_dictionary(found):
        found = found.value_type
    if types.is_list(kind):
        is_list = types.is_list(found) or types.is_large_list(found) or types.is_fixed_size_list(found)
        return bool(is_list) and _becomes(found.value_type, kind.value_type)
    if types.is_string(kind):  # not bytes: Spark passes on what is no UTF-8
        return bool(types.is_string(found) or types.is_large_string(found))
    if types.is_binary(kind):
        return bool(types.is_binary(found) or types.is_large_binary(found) or types.is_fixed_size_binary(found))
    if types.is_floating(kind):  # not half ones, of which Spark knows nothing
        return bool(types.is_floating(found) and 32 <= found.bit_width <= kind.bit_width)
    if types.is_integer(kind):
        return bool(types.is_integer(found) and found.bit_width + types.is_unsigned_integer(found) <= kind.bit_width)
    return bool(found == kind)
