"""Errors of a stage's fit: what the rows' own computation raises is a worker's failure, as any other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from firesteel.core.errors import ReplicaFailed

__all__ = ["as_failures"]


@contextlib.contextmanager
def as_failures() -> Iterator[None]:
    """Spark's report of an exception in Python that computes rows, a UDF or an RDD's function, as ``ReplicaFailed``."""
    from pyspark.errors import PythonException

    try:
        yield
    except PythonException as error:
        if not hasattr(error, "rank"):
            raise  # of no task that Spark knows
        begin = str(error).find("Traceback (most recent call last)")
        traceback = str(error)[max(begin, 0) :].partition("\n\nJVM stacktrace:")[0].strip()
        said = [line for line in traceback.splitlines() if line and not line.startswith(" ")]
        raise ReplicaFailed(
            f"its rows could not be computed: {said[-1] if said else type(error).__name__}",
            rank=error.rank,
            host=str(getattr(error, "host", "?")),
            traceback=traceback,
        ) from error
