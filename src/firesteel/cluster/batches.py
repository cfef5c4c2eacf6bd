"""Rows on their way to a task's Python, in Arrow batches of a few megabytes.

Spark counts rows, ten thousand of them unless they are very wide. Of vectors of 784 doubles that is 63 MB, for which
the JVM gets new memory, copies as it grows, and gives it back: more than half of the time that handing over such rows
takes.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["in_small_batches"]

_log = logging.getLogger(__name__)

_BYTES, _KEY = 4 << 20, "spark.sql.execution.arrow.maxBytesPerBatch"


def in_small_batches(df: DataFrame) -> DataFrame:
    """The same rows for a job of ours, in a copy of the user's session: whatever else runs there keeps its settings.

    The frame as it is where the user has set the size, or Spark does not let us.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame, SparkSession

    context = df.sparkSession.sparkContext
    jvm: Any = context._jvm
    try:
        theirs = df._jdf.sparkSession()
        if theirs.conf().contains(_KEY):
            return df
        copy = theirs.cloneSession()
        copy.conf().set(_KEY, str(_BYTES))
        rows = jvm.org.apache.spark.sql.classic.Dataset.ofRows(copy, df._jdf.queryExecution().analyzed())
    except (Py4JError, PySparkException) as error:  # no API of Spark's that is promised: without it, as before
        _log.debug("rows come in batches of Spark's own size: %s", error)
        return df
    return DataFrame(rows, SparkSession(context, copy))
