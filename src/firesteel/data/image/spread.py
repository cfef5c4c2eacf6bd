"""Items of the driver over the cluster, in order, so that tasks read what they name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import RDD

__all__ = ["partitions_for", "spread"]


def partitions_for(items: int, per_slot: int = 1) -> int:
    """How many partitions: so many to a task slot, but never more than items."""
    from firesteel.data.shards.context import spark_context, task_slots

    return max(1, min(items, per_slot * task_slots(spark_context())))


def spread(items: Sequence[Any], per_slot: int = 1) -> RDD[Any]:
    """The items as an RDD. ``UnsupportedError`` under Spark Connect."""
    from firesteel.data.shards.context import spark_context

    return spark_context().parallelize(items, partitions_for(len(items), per_slot))
