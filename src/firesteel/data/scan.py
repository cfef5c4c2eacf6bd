"""Cells that a task reads from Parquet files itself, where a DataFrame is no more than rows of such files.

A wide binary cell goes from its file through Spark's rows, Arrow's writer, a socket and Arrow's reader before Python
has it: five copies, of which the file's own would do. Which rows there are stays Spark's to say, filters included: a
task gets each row's file and its number there (Spark's ``_metadata``), and reads the cells of just these rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from firesteel.core.errors import SchemaError
from firesteel.core.switches import switch

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["SETTING", "Cells", "Piece", "Scan", "bare_names", "is_exact", "is_wanted", "named", "pieces_of", "scan_of"]

SETTING = "spark.firesteel.readFiles"
"""Whether tasks read files themselves."""

Piece = tuple[str, int, int]
"""Of a file: its path, the first byte, the one behind the last."""

_METADATA = "_metadata"
_DEFAULT = "EXISTS_DEFAULT"
_SELECTIONS = frozenset({"Project", "SubqueryAlias"})
_TOLERANT = ("spark.sql.files.ignoreMissingFiles", "spark.sql.files.ignoreCorruptFiles")


@dataclass(frozen=True)
class Scan:
    """A column of files. Travels to the tasks.

    Attributes:
        name: the column's, in the files.
        is_exact: whether upper and lower case are different names, as the session has it.
    """

    name: str
    is_exact: bool

    def where(self) -> tuple[Column, Column]:
        """Spark's columns that say where a row lies: what ``Cells.read`` takes. Driver only."""
        from pyspark.sql.functions import col

        return col(f"{_METADATA}.file_path"), col(f"{_METADATA}.row_index")


def scan_of(df: DataFrame, place: int) -> Scan | None:
    """The scan behind the column at this place, where that is one of local Parquet files. Driver only, no job.

    ``None`` for rows that were computed, cached or shuffled, for files that only the JVM can open (other file systems,
    encrypted ones), and wherever Spark does not let us look.
    """
    if any(name.lower() == _METADATA for name in df.columns):
        return None  # the user's own, which hides Spark's

    def look(plan: Any) -> Scan | None:
        names = _sources(plan, [plan.output().apply(place).exprId().id()], _SELECTIONS | {"Filter"})
        if names is None:
            return None
        scan = Scan(names[0], is_exact(df))
        df.select(*scan.where())
        return scan

    return _looked(df, look)


def bare_names(df: DataFrame) -> tuple[str, ...] | None:
    """What the columns are called in local Parquet files, where the rows are all of theirs. Driver only, no job.

    ``None`` as in ``scan_of``, and for rows that a filter has chosen.
    """

    def look(plan: Any) -> tuple[str, ...] | None:
        names = _sources(plan, [each.exprId().id() for each in _items(plan.output())], _SELECTIONS)
        return None if names is None else tuple(names)

    return _looked(df, look)


def pieces_of(df: DataFrame, most: int) -> list[list[Piece]] | None:
    """Of which pieces of files Spark would make each partition. Driver only, no job.

    ``None`` where there are more than ``most``, for asking takes time, and wherever Spark does not let us look.
    """

    def look(plan: Any) -> list[list[Piece]] | None:
        leaves = df._jdf.queryExecution().executedPlan().collectLeaves()
        if leaves.size() != 1 or _kind(leaves.apply(0)) != "FileSourceScanExec":
            return None
        partitions = [list(each.files()) for each in _items(leaves.apply(0).inputRDD().filePartitions())]
        if sum(map(len, partitions)) > most:
            return None
        return [[_piece(file) for file in files] for files in partitions]

    return _looked(df, look)


def _piece(file: Any) -> Piece:
    begin = int(file.start())
    return _path_at(str(file.urlEncodedPath())), begin, begin + int(file.length())


_Found = TypeVar("_Found")


def _looked(df: DataFrame, look: Callable[[Any], _Found | None]) -> _Found | None:
    """What is found in the plan, where files may be read at all."""
    from py4j.protocol import Py4JError
    from pyspark.errors import AnalysisException

    spark = df.sparkSession
    if not hasattr(df, "_jdf") or not is_wanted(spark):
        return None
    try:
        if any(_setting(spark, key) for key in _TOLERANT) or _setting(spark, "spark.sql.parquet.fieldId.read.enabled"):
            return None  # files need not be whole, or names say nothing
        if spark.sparkContext._jsc.hadoopConfiguration().get("parquet.crypto.factory.class"):
            return None
        return look(df._jdf.queryExecution().withCachedData())
    except (Py4JError, AnalysisException):  # no API of Spark's that is promised: without it, as before
        return None


def is_wanted(spark: SparkSession) -> bool:
    """Whether tasks may read files themselves. ``PlanError`` where the setting says neither. Driver only."""
    return switch(lambda name: spark.conf.get(name, None), SETTING, True)


def _path_at(address: str) -> str:
    """A local file's path, of its address as Spark writes it."""
    return unquote(urlsplit(address).path)


def is_exact(df: DataFrame) -> bool:
    """Whether upper and lower case are different names."""
    return _setting(df.sparkSession, "spark.sql.caseSensitive")


def _setting(spark: Any, key: str) -> bool:
    return str(spark.conf.get(key, "false")).lower() == "true"


def _sources(plan: Any, numbers: Sequence[int], above: Set[str]) -> list[str] | None:
    """The files' names of the attributes with these numbers, below nothing but ``above``."""
    while (kind := _kind(plan)) in above:
        if kind == "Project":
            entries = {each.exprId().id(): each for each in _items(plan.projectList())}
            below = [_attribute(entries.get(number)) for number in numbers]
            if None in below:
                return None
            numbers = [number for number in below if number is not None]
        plan = plan.child()
    if kind != "LogicalRelation" or not _is_local_parquet(plan.relation()):
        return None
    # What folders are called counts, also where the files have a column of that name.
    folders = {name.lower() for name in plan.relation().partitionSchema().fieldNames()}
    held = {name for name in plan.relation().dataSchema().fieldNames() if name.lower() not in folders}
    attributes = {each.exprId().id(): each for each in _items(plan.output())}
    found = [attributes.get(number) for number in numbers]
    # With a default, what older files lack has a value all the same.
    names = [str(each.name()) for each in found if each is not None and not each.metadata().contains(_DEFAULT)]
    return names if len(names) == len(numbers) and held.issuperset(names) else None


def _attribute(entry: Any) -> int | None:
    """The number of the attribute that an entry of a selection is, renamed or not."""
    if entry is not None and _kind(entry) == "Alias":
        entry = entry.child()
    return None if entry is None or _kind(entry) != "AttributeReference" else int(entry.exprId().id())


def _is_local_parquet(relation: Any) -> bool:
    if _kind(relation) != "HadoopFsRelation" or _kind(relation.fileFormat()) != "ParquetFileFormat":
        return False
    if any(key.lower().startswith("ignore") for key in _keys(relation.options())):
        return False  # files need not be whole, for this reader alone
    return all(path.toUri().getScheme() == "file" for path in _items(relation.location().rootPaths()))


def _kind(thing: Any) -> str:
    return str(thing.getClass().getSimpleName())


def _keys(options: Any) -> list[str]:
    return [str(key) for key in _items(options.keys().toSeq())]


def _items(sequence: Any) -> Iterator[Any]:
    return (sequence.apply(place) for place in range(sequence.size()))


class Cells:
    """A task's way from rows' places to cells. Rows mostly come as they lie in their files, and are read ahead so.

    Args:
        scan: the column.
        rows: how many are read at a time.
    """

    def __init__(self, scan: Scan, rows: int) -> None:
        self._scan = scan
        self._rows = rows
        self._path: str | None = None
        self._file: _File | None = None

    def read(self, paths: pa.Array, rows: pa.Array) -> Iterator[pa.Array]:
        """The cells of these rows, in order, a few at a time; an empty array of none."""
        if not len(rows):
            yield pa.array([], pa.binary())
            return
        encoded = paths.dictionary_encode()
        names, which = encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
        numbers = rows.to_numpy()
        # A run ends where the file changes, or rows do not go on.
        ends = np.flatnonzero((np.diff(which) != 0) | (np.diff(numbers) != 1)) + 1
        edges = [0, *ends.tolist(), len(numbers)]
        for begin, end in pairwise(edges):
            yield from self._open(names[which[begin]]).read(int(numbers[begin]), end - begin)

    def _open(self, path: str) -> _File:
        if self._file is None or path != self._path:
            self._file, self._path = _File(_path_at(path), self._scan, self._rows), path
        return self._file


class _File:
    """One file, read forwards; from a row group's start where somebody goes back."""

    def __init__(self, path: str, scan: Scan, rows: int) -> None:
        import pyarrow.parquet as pq

        self._file = pq.ParquetFile(path, memory_map=True)
        self._column = named(self._file.schema_arrow, scan)
        self._rows = rows
        groups = self._file.metadata
        counts = [groups.row_group(place).num_rows for place in range(groups.num_row_groups)]
        self._edges: npt.NDArray[np.int64] = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._pieces: Iterator[pa.RecordBatch] = iter(())
        self._piece = pa.array([], pa.binary())
        self._begin = self._end = 0  # of the piece, in rows of the file; the pieces go on from the end
        self._is_open = False

    def read(self, begin: int, count: int) -> Iterator[pa.Array]:
        """These rows."""
        if self._column is None:
            yield pa.nulls(count, pa.binary())  # as Spark has it, of a file that is older than the column
            return
        while count:
            self._go_to(begin)
            found = self._piece.slice(begin - self._begin, min(count, self._end - begin))
            yield found
            begin, count = begin + len(found), count - len(found)

    def _go_to(self, row: int) -> None:
        if not self._begin <= row < self._end:
            group = int(np.searchsorted(self._edges, row, side="right")) - 1
            if not self._is_open or row < self._begin or self._edges[group] > self._end:
                self._seek(group)
        while row >= self._end:
            self._piece = next(self._pieces).column(0)
            if not pa.types.is_binary(self._piece.type):
                self._piece = self._piece.cast(pa.binary())
            self._begin, self._end = self._end, self._end + len(self._piece)

    def _seek(self, group: int) -> None:
        groups = list(range(group, len(self._edges) - 1))
        self._pieces = self._file.iter_batches(self._rows, row_groups=groups, columns=[self._column], use_threads=False)
        self._begin = self._end = int(self._edges[group])
        self._is_open = True


def named(schema: pa.Schema, scan: Scan) -> str | None:
    """The file's own name of the column, as Spark looks for it."""
    if scan.is_exact:
        return scan.name if scan.name in schema.names else None
    found = [name for name in schema.names if name.lower() == scan.name.lower()]
    if len(found) > 1:
        raise SchemaError(f"a file has the columns {', '.join(found)}: which of them is {scan.name!r}?")
    return found[0] if found else None
