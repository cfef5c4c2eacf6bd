"""A launch's events as rows of a DataFrame: how they come back where nothing can reach the client (Spark Connect).

On rank 0 each event goes to a file as it happens. When the gang is done, the file becomes rows: one with the event's
JSON, then its buffers in pieces. Spark returns them in any order; on the client they are put in theirs and read out.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any

from firesteel.cluster.wire import Buffer
from firesteel.core.errors import ClusterError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

__all__ = ["LOG_SCHEMA", "EventLog", "read_out", "replay"]

LOG_SCHEMA = "number long, text string, data binary"
_PIECE_BYTES = 4 << 20
_WINDOW_BYTES = 32 << 20
_ROWS_IN_BATCH = 1000


@dataclass
class _Entry:
    text: str
    begin: int
    sizes: list[int] = field(default_factory=list)


class EventLog:
    """Rank 0's end; a context manager. Its file has no name and is gone with it.

    ``directory`` is where there is room for it; default the system's own.
    """

    def __init__(self, directory: str | None = None) -> None:
        self._file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 - closed by __exit__
        self._entries: dict[int, _Entry] = {}
        self._count = 0
        self._end = 0

    def __enter__(self) -> EventLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, event: dict[str, Any], buffers: Sequence[Buffer] = ()) -> int:
        """Enter an event, by one thread at a time; returns its number."""
        entry = _Entry(json.dumps(event), self._end)
        self._file.seek(self._end)
        for buffer in buffers:
            self._file.write(buffer)
            entry.sizes.append(memoryview(buffer).nbytes)
        self._end = self._file.tell()
        self._entries[self._count] = entry
        self._count += 1
        return self._count - 1

    def drop(self, number: int) -> None:
        """Take an event out again: nobody needs it any more."""
        del self._entries[number]

    def rows(self) -> Iterator[pa.RecordBatch]:
        """All of it, as Spark expects it from ``mapInArrow``."""
        rows: list[tuple[int, str, bytes | None]] = []
        held = 0
        for number, (text, data) in enumerate(self._pieces()):
            rows.append((number, text, data))
            held += len(text) + len(data or b"")
            if held > _PIECE_BYTES or len(rows) == _ROWS_IN_BATCH:
                yield _record_batch(rows)
                rows, held = [], 0
        if rows:
            yield _record_batch(rows)

    def _pieces(self) -> Iterator[tuple[str, bytes | None]]:
        for entry in self._entries.values():
            left = sum(entry.sizes)
            pieces = -(-left // _PIECE_BYTES)
            yield json.dumps({"event": entry.text, "sizes": entry.sizes, "pieces": pieces}), None
            self._file.seek(entry.begin)
            while left:
                piece = self._file.read(min(left, _PIECE_BYTES))
                left -= len(piece)
                yield "", piece


def _record_batch(rows: list[tuple[int, str, bytes | None]]) -> pa.RecordBatch:
    import pyarrow as pa

    numbers, texts, data = zip(*rows, strict=True)
    arrays = [pa.array(numbers, pa.int64()), pa.array(texts, pa.string()), pa.array(data, pa.binary())]
    return pa.RecordBatch.from_arrays(arrays, ["number", "text", "data"])


def replay(log: DataFrame, take: Callable[[dict[str, Any], list[bytearray]], None]) -> None:
    """Hand out a log's events in their order. Runs on the client; ``log`` must be computed already.

    What is large comes in several small queries: a server computes faster than a client takes, and what waits is in
    the server's memory. Raises ``ClusterError`` where rows are missing.
    """
    from pyspark.sql.functions import col, length

    heads = log.select("number", "text", length("data").alias("size")).collect()

    def fetch(begin: int, end: int) -> Iterator[tuple[int, bytes]]:
        window = log.where((col("number") >= begin) & (col("number") < end)).select("number", "data")
        return ((row["number"], bytes(row["data"])) for row in window.toLocalIterator() if row["data"] is not None)

    read_out([(row["number"], row["text"], row["size"] or 0) for row in heads], fetch, take)


def read_out(
    heads: Iterable[tuple[int, str, int]],
    fetch: Callable[[int, int], Iterable[tuple[int, bytes]]],
    take: Callable[[dict[str, Any], list[bytearray]], None],
) -> None:
    """The events of a log, from number, text and size of its rows; ``fetch(begin, end)`` gives the data of some."""
    rows = sorted(heads)
    if [number for number, _, _ in rows] != list(range(len(rows))):
        raise ClusterError("Spark lost a part of what replica 0 had to say; run it again")
    pieces = _in_windows(rows, fetch)
    for _, text, _ in rows:
        if text:
            about = json.loads(text)
            buffers = [bytearray() for _ in about["sizes"]]
            content = bytearray().join(next(pieces) for _ in range(about["pieces"]))
            place = 0
            for buffer, size in zip(buffers, about["sizes"], strict=True):
                buffer += memoryview(content)[place : place + size]
                place += size
            take(json.loads(about["event"]), buffers)


def _in_windows(
    rows: Sequence[tuple[int, str, int]], fetch: Callable[[int, int], Iterable[tuple[int, bytes]]]
) -> Iterator[bytes]:
    """All data in order, fetched a window at a time."""
    begin, held = 0, 0
    for number, _, size in rows:
        held += size
        if held >= _WINDOW_BYTES or number == rows[-1][0]:
            if held:
                for _, data in sorted(fetch(begin, number + 1)):
                    yield data
            begin, held = number + 1, 0
