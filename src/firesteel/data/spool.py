"""A rank's rows as typed blocks in anonymous files: written once by the task, mapped by its child.

One file per tensor, rows one after the other; cells of bytes (strings, encoded images) lie in a second one, their
*heap*, and their tensor says where. The files have no name on disk, so that whatever dies, however it
dies, leaves nothing behind. Written in the task, read in its child through inherited descriptors.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from firesteel.core.errors import ClusterError, SchemaError
from firesteel.core.spec import Batch, Signature, TensorSpec
from firesteel.data.ragged import Ragged

__all__ = ["Block", "SpoolReader", "SpoolWriter", "files_for", "heap_of", "spool_directory"]

_RESIDENT_BYTES = 64 << 20
_MARK_STRIDE = 61


def spool_directory() -> str:
    """Where Spark lets its tasks keep scratch files, else the system's place for them."""
    for path in os.environ.get("SPARK_LOCAL_DIRS", "").split(","):
        if path and os.path.isdir(path) and os.access(path, os.W_OK):
            return path
    return tempfile.gettempdir()


def heap_of(tensor: str) -> str:
    """The file that holds a tensor's cells of bytes."""
    return f"{tensor}/heap"


def files_for(batch: Batch) -> tuple[str, ...]:
    """The files that rows like these take."""
    return (*batch, *(heap_of(name) for name, values in batch.items() if values.dtype == object))


@dataclass(frozen=True)
class Block:
    """The rows of one partition: which, where they begin in the spool, how many there are."""

    partition: int
    begin: int
    rows: int


class SpoolWriter:
    """Takes a rank's batches as they arrive from Spark. Lives in the task; a context manager."""

    def __init__(self, files: tuple[str, ...], directory: str | None = None) -> None:
        self._directory = directory or spool_directory()
        self._files: dict[str, IO[bytes]] = {}
        try:
            for name in files:
                self._files[name] = tempfile.TemporaryFile(dir=self._directory, buffering=0)  # noqa: SIM115 - see __exit__
        except OSError as error:
            self.__exit__(None, None, None)
            raise _cannot_write(self._directory, error) from error
        self._specs: dict[str, TensorSpec] = {}
        self._blocks: list[Block] = []
        self._marks: dict[int, int] = {}
        self._rows = 0

    def __enter__(self) -> SpoolWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files.values():
            file.close()

    @property
    def descriptors(self) -> dict[str, int]:
        """File descriptors by tensor or heap, for a child to inherit."""
        return {name: file.fileno() for name, file in self._files.items()}

    @property
    def signature(self) -> Signature | None:
        """The tensors as the data turned out to be; ``None`` before the first row."""
        return Signature(tuple(self._specs[name] for name in self._files if name in self._specs)) or None

    @property
    def blocks(self) -> tuple[Block, ...]:
        """One entry for each partition that had rows."""
        return tuple(self._blocks)

    @property
    def marks(self) -> list[list[int]]:
        """Partitions and a checksum of a sample of their rows: whether they came in the same order as another time."""
        return [[partition, mark] for partition, mark in self._marks.items()]

    def append(self, partition: int, batch: Mapping[str, npt.NDArray[Any] | Ragged]) -> None:
        """Add rows of ``partition``; a partition's rows come in one piece, in order."""
        rows = len(next(iter(batch.values())))
        if rows == 0:
            return
        known = self._blocks[-1].rows if self._blocks and self._blocks[-1].partition == partition else 0
        for name, given in batch.items():
            file = self._files[name]
            if isinstance(given, np.ndarray) and given.dtype == object:
                given = Ragged.of_objects(given, name)
            values = self._heap(name, given) if isinstance(given, Ragged) else np.ascontiguousarray(given)
            self._check(name, values)
            _write_all(file, values, self._directory)
            # Every so-manieth row of the partition, however it is cut into batches: the whole would cost too much.
            # (Of a heap only the lengths: where a cell begins depends on what this rank holds besides.)
            marked = values[:, 1] if isinstance(given, Ragged) else values
            sample = np.ascontiguousarray(marked[-known % _MARK_STRIDE :: _MARK_STRIDE])
            mark = self._marks.get(partition, 0)
            self._marks[partition] = zlib.crc32(sample.reshape(-1).view(np.uint8).data, mark) if sample.size else mark
        if self._blocks and self._blocks[-1].partition == partition:
            last = self._blocks.pop()
            self._blocks.append(Block(partition, last.begin, last.rows + rows))
        else:
            self._blocks.append(Block(partition, self._rows, rows))
        self._rows += rows

    def _heap(self, name: str, cells: Ragged) -> npt.NDArray[np.int64]:
        file = self._files[heap_of(name)]
        places = cells.places(file.tell())
        _write_all(file, cells.run(), self._directory)
        return places

    def _check(self, name: str, values: npt.NDArray[Any]) -> None:
        found = TensorSpec(name, values.dtype.str, tuple(values.shape[1:]))
        known = self._specs.setdefault(name, found)
        if known != found:
            raise SchemaError(
                f"rows of {name!r} have shape {known.shape} at first and {found.shape} later: "
                f"all rows must have the same shape",
                column=name,
                expected=str(known.shape),
                found=str(found.shape),
            )


def _write_all(file: IO[bytes], values: npt.NDArray[Any], directory: str) -> None:
    view = memoryview(values.reshape(-1).view(np.uint8).data)
    try:
        while view:
            view = view[file.write(view) :]
    except OSError as error:
        raise _cannot_write(directory, error) from error


def _cannot_write(directory: str, error: OSError) -> ClusterError:
    return ClusterError(
        f"the spool in {directory} could not be written: {error.strerror}. "
        f"Free some space there, or point spark.local.dir to a larger disk."
    )


class SpoolReader:
    """Rows by number from a spool. Lives in the child; holds a bounded part of the files in memory."""

    def __init__(self, descriptors: dict[str, int], signature: Signature, blocks: tuple[Block, ...]) -> None:
        self.signature = signature
        self.blocks = blocks
        self._rows = sum(block.rows for block in blocks)
        self._maps: dict[str, mmap.mmap] = {}
        self._arrays: dict[str, npt.NDArray[Any]] = {}
        self._touched = 0
        self._cells: dict[str, memoryview] = {}  # heaps of tensors that are bytes
        for spec in signature:
            if heap_of(spec.name) in descriptors:
                self._map_heap(spec.name, descriptors[heap_of(spec.name)])
            size = spec.row_bytes * self._rows
            shape = (self._rows, *spec.shape)
            if size == 0:
                self._arrays[spec.name] = np.empty(shape, spec.dtype)  # type: ignore[arg-type]
                continue
            mapped = mmap.mmap(descriptors[spec.name], size, access=mmap.ACCESS_READ)
            self._maps[spec.name] = mapped
            self._arrays[spec.name] = np.frombuffer(mapped, spec.dtype).reshape(shape)  # type: ignore[arg-type]

    def take(self, rows: npt.NDArray[np.int64], epoch: int = 0) -> Batch:
        """A copy of these rows (numbers count through the whole spool), in this order: the same in every epoch."""
        batch = {name: np.take(array, rows, axis=0) for name, array in self._arrays.items()}
        read = sum(array.nbytes for array in batch.values())
        for name in self._cells:
            read += int(batch[name][:, 1].sum())
            batch[name] = self._bytes(name, batch[name])
        self._release(read)
        return batch

    def empty(self) -> Batch:
        """A batch of no rows, with the right dtypes and shapes."""
        none = {name: array[:0] for name, array in self._arrays.items()}
        return none | {name: np.empty(0, object) for name in self._cells}

    def arrays(self) -> Batch:
        """All rows, mapped, not copied; but for cells of bytes, which become objects."""
        return self._arrays | {name: self._bytes(name, self._arrays[name]) for name in self._cells}

    def _map_heap(self, name: str, descriptor: int) -> None:
        self._cells[name] = memoryview(b"")
        if os.fstat(descriptor).st_size:
            self._maps[heap_of(name)] = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
            self._cells[name] = memoryview(self._maps[heap_of(name)])

    def _bytes(self, name: str, places: npt.NDArray[Any]) -> npt.NDArray[Any]:
        heap = self._cells[name]
        found = np.empty(len(places), object)
        found[:] = [bytes(heap[begin : begin + length]) for begin, length in places.tolist()]
        return found

    def _release(self, touched: int) -> None:
        # Mapped pages count as resident until they are let go of. They stay in the page cache, so that coming
        # back to one costs a minor fault (measured: a few milliseconds for each 64 MiB).
        self._touched += touched
        if self._touched > _RESIDENT_BYTES:
            self._touched = 0
            for mapped in self._maps.values():
                mapped.madvise(mmap.MADV_DONTNEED)
