"""What the tests of the doors need: an exact count of Spark jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark import SparkContext


@pytest.fixture(scope="session")
def jobs(sc: SparkContext) -> Callable[[], int]:
    """How many jobs Spark has started until now, from any thread."""
    scheduler = sc._jsc.sc().dagScheduler()
    return lambda: int(scheduler.numTotalJobs())
