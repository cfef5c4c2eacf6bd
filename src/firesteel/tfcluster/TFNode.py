"""``firesteel.tfcluster.TFNode``: see ``firesteel.frontends.tfcluster.node``."""

from firesteel.frontends.tfcluster.node import (
    DataFeed,
    export_saved_model,
    hdfs_path,
    release_port,
    start_cluster_server,
)

__all__ = ["DataFeed", "export_saved_model", "hdfs_path", "release_port", "start_cluster_server"]
