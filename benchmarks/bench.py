"""What the cases share: a Spark session with two slots, a scratch folder, and how large the work is."""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["REPLICAS", "ROOT", "Bench", "drain", "seconds", "touch_memory"]

ROOT = Path(__file__).resolve().parent.parent
REPLICAS = 2
_LEAST_ROWS = 512
_TOUCHED_BYTES = 4 << 30


@dataclass(frozen=True)
class Bench:
    """Handed to every case.

    Args:
        folder: for data; emptied at the end.
        scale: all row counts are multiplied by it.
        is_quick: whether to leave out what takes minutes.
    """

    folder: Path
    scale: float = 1.0
    is_quick: bool = False

    @classmethod
    @contextlib.contextmanager
    def opened(cls, scale: float, is_quick: bool) -> Iterator[Bench]:
        """A bench with its folder; at the end both the folder and the session are gone."""
        with tempfile.TemporaryDirectory(prefix="firesteel-bench-") as folder:
            bench = cls(Path(folder), scale, is_quick)
            try:
                yield bench
            finally:
                bench.stop_spark()

    def rows(self, count: int) -> int:
        """So many rows, at this bench's scale."""
        return max(_LEAST_ROWS, int(count * self.scale))

    @cached_property
    def spark(self) -> SparkSession:
        """The session that all subjects in this process share; started at the first touch."""
        from pyspark.sql import SparkSession

        from firesteel import init_context

        # Functions of the peers are found by name in Spark's workers and in the processes these start.
        path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ["PYTHONPATH"] = os.pathsep.join(path)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        init_context("local", cores=REPLICAS, memory="4g", app_name="firesteel-bench")
        return SparkSession.builder.getOrCreate()

    def clear(self) -> None:
        """A session and files are the next case's own: neither old code in Java nor a full page cache is its doing."""
        self.stop_spark()
        for entry in self.folder.iterdir():
            shutil.rmtree(entry)

    def stop_spark(self) -> None:
        """End the session, so that subjects with a JVM of their own have the machine for themselves."""
        if "spark" in self.__dict__:
            from firesteel import stop_context

            stop_context()
            del self.__dict__["spark"]


def seconds(run: Callable[[], object]) -> float:
    """How long it takes, with memory at hand."""
    touch_memory()
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def touch_memory() -> None:
    """Use some memory and let go of it.

    A virtual machine that hands free memory back to its host gets it again page by page, and a gigabyte takes seconds
    (measured: 2.5). Whoever keeps rows would pay that, and whoever drops them would not; on a machine that keeps its
    memory, neither does.
    """
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    size = min(_TOUCHED_BYTES, free // 4)
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without them
                memory.madvise(mmap.MADV_HUGEPAGE)
        for place in range(0, size, mmap.PAGESIZE):
            memory[place] = 1


def drain(df: DataFrame) -> None:
    """Compute every column of every row, and drop them."""
    df.write.format("noop").mode("overwrite").save()
