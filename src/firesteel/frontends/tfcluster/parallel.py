"""``TFParallel``: one program, N times, each run knowing nothing of the others."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from firesteel.core.errors import PlanError
from firesteel.core.plan import positive
from firesteel.engine.nodes import Node, NodeSettings
from firesteel.frontends.tfcluster.arguments import argv_of, num_gpus_of
from firesteel.frontends.tfcluster.cluster import make_nodes, session_of
from firesteel.frontends.tfcluster.context import About, ParallelContext
from firesteel.frontends.tfcluster.paths import default_file_system

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

__all__ = ["run"]


def run(
    sc: SparkContext | SparkSession,
    map_fn: Callable[[Any, ParallelContext], Any],
    tf_args: Any,
    num_executors: int,
    use_barrier: bool = True,
) -> None:
    """Run ``map_fn(args, ctx)`` on ``num_executors`` nodes that do not know of each other; returns when all are done.

    Args:
        sc: the SparkContext, or a SparkSession.
        map_fn: the program; each run is a process of its own.
        tf_args: its arguments, as for ``TFCluster.run``.
        num_executors: how many.
        use_barrier: all at the same time, ``NotEnoughSlots`` where that cannot be; else as slots come.

    Raises ``ReplicaFailed`` with a node's own traceback; the others are ended.
    """
    context, spark = session_of(sc)
    world = positive(num_executors, "num_executors")
    assert world is not None
    if not callable(map_fn):
        raise PlanError(f"map_fn must be a function map_fn(args, ctx), not {map_fn!r}")
    about = About(default_file_system(context), os.getcwd(), (), world)
    settings = NodeSettings((), is_gang=bool(use_barrier), num_gpus=num_gpus_of(tf_args), argv=argv_of(tf_args))
    nodes = make_nodes(spark, world, partial(_play, map_fn, tf_args, about), settings, map_fn=map_fn, tf_args=tf_args)
    nodes.start()
    nodes.wait_all()


def _play(map_fn: Callable[[Any, Any], Any], tf_args: Any, about: About, node: Node) -> None:
    """What a node's process does."""
    map_fn(tf_args, ParallelContext(node, about))
