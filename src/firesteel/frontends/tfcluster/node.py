"""``TFNode``: what a program of a cluster may ask for by function instead of through ``ctx``."""

from __future__ import annotations

from typing import Any

from firesteel.frontends.tfcluster.context import NodeContext, export_saved_model
from firesteel.frontends.tfcluster.feed import DataFeed
from firesteel.frontends.tfcluster.paths import hdfs_path

__all__ = ["DataFeed", "export_saved_model", "hdfs_path", "release_port", "start_cluster_server"]


def start_cluster_server(ctx: NodeContext, num_gpus: int = 1, rdma: bool = False) -> tuple[Any, Any]:
    """``ctx.start_cluster_server(num_gpus, rdma)``."""
    return ctx.start_cluster_server(num_gpus, rdma)


def release_port(ctx: NodeContext) -> None:
    """``ctx.release_port()``."""
    ctx.release_port()
