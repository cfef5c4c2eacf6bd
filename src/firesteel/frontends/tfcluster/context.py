"""``ctx``: what a program of a cluster is told about itself and the others."""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from firesteel.cluster.roles import Post
from firesteel.core.errors import UnsupportedError
from firesteel.engine.inbox import Inbox
from firesteel.engine.nodes import Node
from firesteel.frontends.tfcluster.feed import DataFeed
from firesteel.frontends.tfcluster.paths import hdfs_path

__all__ = ["About", "NodeContext", "ParallelContext", "export_saved_model"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class About:
    """What all nodes are told alike."""

    defaultFS: str  # noqa: N815 - the document's name
    working_dir: str
    posts: tuple[Post, ...]
    world: int


class ParallelContext:
    """``ctx`` of a program that runs N times and knows nothing of the others.

    Attributes:
        executor_id, worker_num: the node's number, from 0.
        num_workers: how many there are.
        defaultFS: Spark's default file system.
        working_dir: the driver's working directory.
    """

    def __init__(self, node: Node, about: About) -> None:
        self.executor_id = self.worker_num = node.number
        self.num_workers = about.world
        self.defaultFS = about.defaultFS
        self.working_dir = about.working_dir
        self._node = node

    def absolute_path(self, path: str) -> str:
        """``path`` with its file system: relative ones are below the driver's folder, or the user's home."""
        return hdfs_path(self, path)

    def __repr__(self) -> str:
        return f"<node {self.executor_id} of {self.num_workers}>"


class NodeContext(ParallelContext):
    """``ctx`` of a cluster's program.

    Attributes:
        executor_id, worker_num: the node's number, from 0.
        job_name, task_index: its role, and its number within that.
        cluster_spec: all addresses by role, in the order of nodes.
        num_workers: how many masters, chiefs and workers there are.
        defaultFS: Spark's default file system.
        working_dir: the driver's working directory.
    """

    def __init__(self, node: Node, about: About) -> None:
        super().__init__(node, about)
        post = about.posts[node.number]
        self.job_name, self.task_index = post.role, post.index
        self.cluster_spec = {role: list(places) for role, places in node.spec.items()}
        self.num_workers = sum(each.trains for each in about.posts)

    @property
    def mgr(self) -> Inbox:
        """What ``TFNode.DataFeed`` takes."""
        return self._node.inbox

    @property
    def tmp_socket(self) -> socket.socket | None:
        """The socket that holds this node's port, until ``release_port``."""
        return self._node.bound

    def get_data_feed(
        self,
        train_mode: bool = True,
        qname_in: str = "input",
        qname_out: str = "output",
        input_mapping: Mapping[str, str] | None = None,
    ) -> DataFeed:
        """What is fed to this node, in batches."""
        return DataFeed(self.mgr, train_mode, qname_in, qname_out, input_mapping)

    def release_port(self) -> None:
        """Set this node's port free, for the program to listen at."""
        if not self._node.release_port():
            _log.warning("this node's port is free already: pass release_port=False to TFCluster.run to keep it")

    def start_cluster_server(self, num_gpus: int = 1, rdma: bool = False) -> tuple[Any, Any]:
        """A TensorFlow 1 server on this node's port: ``(ClusterSpec, Server)``.

        ``num_gpus`` is accepted: which devices this process sees was settled before it started.
        """
        if rdma:
            raise UnsupportedError("rdma=True: TensorFlow has no RDMA transport any more; gRPC serves, rdma=False")
        import tensorflow as tf

        self._node.release_port()
        spec = tf.train.ClusterSpec(self.cluster_spec)
        return spec, tf.distribute.Server(spec, job_name=self.job_name, task_index=self.task_index)

    def export_saved_model(self, sess: Any, export_dir: str, tag_set: str, signatures: Mapping[str, Any]) -> None:
        """Write a SavedModel from a TensorFlow 1 session; see ``TFNode.export_saved_model``."""
        export_saved_model(sess, self.absolute_path(export_dir), tag_set, signatures)

    def __repr__(self) -> str:
        return f"<node {self.executor_id}, {self.job_name}:{self.task_index}>"


def export_saved_model(sess: Any, export_dir: str, tag_set: str, signatures: Mapping[str, Any]) -> None:
    """Write a SavedModel from a TensorFlow 1 session.

    Args:
        sess: the session, with its graph and variables.
        export_dir: a folder that is not there yet.
        tag_set: tags, with commas between them.
        signatures: ``{key: {"inputs": {alias: tensor}, "outputs": {alias: tensor}, "method_name": …}}``.
    """
    import tensorflow.compat.v1 as tf1

    made = {}
    for key, signature in signatures.items():
        sides = [
            {alias: tf1.saved_model.utils.build_tensor_info(tensor) for alias, tensor in signature[side].items()}
            for side in ("inputs", "outputs")
        ]
        method = signature.get("method_name") or tf1.saved_model.signature_constants.PREDICT_METHOD_NAME
        made[key] = tf1.saved_model.signature_def_utils.build_signature_def(*sides, method)
    with sess.graph.as_default():
        is_frozen = sess.graph.finalized
        if is_frozen:
            sess.graph._unsafe_unfinalize()  # a monitored session's graph: the writer has to add its own nodes
        builder = tf1.saved_model.builder.SavedModelBuilder(export_dir)
        builder.add_meta_graph_and_variables(
            sess, [tag.strip() for tag in tag_set.split(",")], signature_def_map=made, clear_devices=True
        )
        if is_frozen:
            sess.graph.finalize()
    builder.save()
