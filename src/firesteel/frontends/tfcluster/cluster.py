"""``TFCluster``: an existing program, ``map_fun(args, ctx)``, as one node per Spark task."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from firesteel.cluster.ports import listed_ports
from firesteel.cluster.roles import crew
from firesteel.cluster.travel import pack
from firesteel.core.errors import PlanError, UnknownName, UnsupportedError
from firesteel.core.plan import Launch
from firesteel.engine.nodes import Node, Nodes, NodeSettings
from firesteel.frontends.tfcluster.arguments import argv_of, num_gpus_of
from firesteel.frontends.tfcluster.context import About, NodeContext
from firesteel.frontends.tfcluster.paths import default_file_system

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext
    from pyspark.sql import SparkSession

__all__ = ["InputMode", "TFCluster", "make_nodes", "session_of"]

_QUEUES = ("input", "output", "error")
_DAYS_3 = 259_200


class InputMode(IntEnum):
    """How a program gets its data."""

    TENSORFLOW = 0
    """It reads them itself."""
    SPARK = 1
    """An RDD is fed to it."""


class _NoFeed(PlanError, TypeError):
    """What was to be fed is nothing that Spark knows."""


class TFCluster:
    """A cluster that runs; made by ``TFCluster.run``. As a context manager it shuts itself down.

    Attributes:
        sc: the SparkContext.
        num_executors: how many nodes there are.
        cluster_id: a name, the same on all nodes.
        cluster_info: for each node a dict with ``executor_id``, ``host``, ``job_name``, ``task_index``, ``port``,
            ``tb_pid``, ``tb_port``.
        cluster_meta: what the nodes were told of the cluster; no secrets.
        input_mode: an ``InputMode``.
        queues: the names that a feed may have.
        defaultFS, working_dir: as in ``ctx``.
    """

    InputMode: ClassVar[type[InputMode]] = InputMode

    def __init__(
        self, sc: SparkContext, nodes: Nodes, plan: Launch, settings: NodeSettings, about: About, cluster_id: str
    ) -> None:
        self.sc = sc
        self.defaultFS = about.defaultFS
        self.working_dir = about.working_dir
        self.num_executors = plan.world
        self.cluster_id = cluster_id
        self.input_mode = InputMode.SPARK if settings.is_fed else InputMode.TENSORFLOW
        self.queues = list(settings.queues)
        self.cluster_info = [
            {
                "executor_id": number,
                "host": node["host"],
                "job_name": post.role,
                "task_index": post.index,
                "port": node["ports"]["port"],
                "tb_pid": node.get("tb_pid", 0),
                "tb_port": node.get("tb_port", 0),
            }
            for number, (node, post) in enumerate(zip(nodes.info, about.posts, strict=True))
        ]
        template: dict[str, list[int]] = {}
        for number, post in enumerate(about.posts):
            template.setdefault(post.role, []).append(number)
        self.cluster_meta = {
            "id": cluster_id,
            "cluster_template": template,
            "num_executors": plan.world,
            "default_fs": about.defaultFS,
            "working_dir": about.working_dir,
            "server_addr": nodes.address,
            "release_port": settings.releases_port,
        }
        self._nodes = nodes
        self._is_shut = False

    @staticmethod
    def run(
        sc: SparkContext | SparkSession,
        map_fun: Callable[[Any, NodeContext], Any],
        tf_args: Any,
        num_executors: int,
        num_ps: int,
        tensorboard: bool = False,
        input_mode: int = InputMode.TENSORFLOW,
        log_dir: str | None = None,
        driver_ps_nodes: bool = False,
        master_node: str | None = None,
        reservation_timeout: float = 600,
        queues: Sequence[str] = _QUEUES,
        eval_node: bool = False,
        release_port: bool = True,
    ) -> TFCluster:
        """Start ``num_executors`` nodes; returns when every one has reported.

        Args:
            sc: the SparkContext, or a SparkSession.
            map_fun: the program, ``map_fun(args, ctx)``. Each node runs it in a process of its own.
            tf_args: its arguments: a dict, an ``argparse.Namespace``, or a list of words, which is ``sys.argv`` too.
            num_executors: how many nodes, all roles together. Each takes a task slot.
            num_ps: how many of them are parameter servers.
            tensorboard: start TensorBoard beside the first worker, on ``log_dir``.
            input_mode: whether the program reads its data, or ``train`` and ``inference`` feed it.
            log_dir: for TensorBoard; default a folder in the node's working directory.
            driver_ps_nodes: parameter servers run on the driver, and take no slot.
            master_node: ``"chief"`` or ``"master"``: one node gets that role.
            reservation_timeout: seconds in which all nodes have to report.
            queues: names that a feed may have; ``input``, ``output`` and ``error`` always exist.
            eval_node: one node is the evaluator.
            release_port: whether a node's port is free when its program begins; else ``ctx.release_port()`` frees it.

        Raises:
            PlanError: roles and numbers that do not fit (a ``ValueError``).
            NotEnoughSlots: Spark cannot run as many tasks at the same time.
            ReplicaFailed: a node failed before all had reported.
        """
        context, spark = session_of(sc)
        mode = _mode(input_mode)
        posts = crew(num_executors, num_ps, master_node, has_evaluator=bool(eval_node))
        if mode is InputMode.SPARK and (driver_ps_nodes or eval_node):
            name = "driver_ps_nodes" if driver_ps_nodes else "eval_node"
            raise PlanError(
                f"{name}=True goes with InputMode.TENSORFLOW only: with SPARK input all nodes are executors'"
            )
        if not callable(map_fun):
            raise PlanError(f"map_fun must be a function map_fun(args, ctx), not {map_fun!r}")
        plan = Launch(len(posts), max_failures=0, max_preemptions=0, roles=tuple(post.role for post in posts))
        board = next((number for number, post in enumerate(posts) if str(post) == "worker:0"), None)
        if board is None:
            board = next(number for number, post in enumerate(posts) if post.trains)
        settings = NodeSettings(
            posts,
            is_fed=mode is InputMode.SPARK,
            queues=tuple(dict.fromkeys((*_QUEUES, *queues))),
            releases_port=bool(release_port),
            on_driver=num_ps if driver_ps_nodes else 0,
            timeout_seconds=_seconds(reservation_timeout, "reservation_timeout"),
            num_gpus=num_gpus_of(tf_args),
            tensorboard=board if tensorboard else None,
            log_dir=log_dir,
            argv=argv_of(tf_args),
            address=os.environ.get("TFOS_SERVER_HOST") or None,
            ports=listed_ports(os.environ.get("TFOS_SERVER_PORT"), "TFOS_SERVER_PORT"),
        )
        about = About(default_file_system(context), os.getcwd(), posts, len(posts))
        nodes = make_nodes(
            spark, plan.world, partial(_play, map_fun, tf_args, about), settings, map_fun=map_fun, tf_args=tf_args
        )
        nodes.start()
        return TFCluster(context, nodes, plan, settings, about, secrets.token_hex(8))

    def train(
        self,
        dataRDD: Any,  # noqa: N803 - the document's name
        num_epochs: int = 1,
        feed_timeout: float = 600,
        qname: str = "input",
    ) -> None:
        """Feed an RDD, a DataFrame (rows as tuples) or a DStream to the nodes.

        Returns when all was taken, or when the program has ended the feed; for a DStream at once.

        Args:
            dataRDD: what to feed.
            num_epochs: how many times; 0 means again and again until the program ends it.
            feed_timeout: seconds for which nothing may be taken while something waits.
            qname: the name of the feed.
        """
        from firesteel.engine.passes import feed

        self._require_feed("train")
        epochs = _epochs(num_epochs)
        seconds = _seconds(feed_timeout, "feed_timeout")
        self._check_queue(qname)
        if _is_stream(dataRDD):
            dataRDD.foreachRDD(lambda rdd: feed(self._nodes, rdd, max(1, epochs), seconds, qname))
            return
        _require_data(dataRDD, "train")
        feed(self._nodes, dataRDD, epochs, seconds, qname)

    def inference(self, dataRDD: Any, feed_timeout: float = 600, qname: str = "input") -> RDD[Any]:  # noqa: N803
        """A lazy RDD with one result for each item of ``dataRDD``, in the same order and the same partitions.

        Args:
            dataRDD: an RDD, or a DataFrame (rows as tuples).
            feed_timeout: seconds for which nothing may be taken, or answered, while something waits.
            qname: the name of the feed.
        """
        from firesteel.engine.passes import answers

        self._require_feed("inference")
        seconds = _seconds(feed_timeout, "feed_timeout")
        self._check_queue(qname)
        _require_data(dataRDD, "inference")
        rdd = dataRDD if hasattr(dataRDD, "mapPartitionsWithIndex") else dataRDD.rdd
        return answers(self._nodes, rdd, seconds, qname)

    def shutdown(self, ssc: Any = None, grace_secs: float = 0, timeout: float = _DAYS_3) -> None:
        """Tell the end of the feed, wait until every chief, master and worker has returned, end the others.

        Raises what any node has raised. A second call does nothing.

        Args:
            ssc: a StreamingContext that feeds; waits for its end first, and stops it when the program wants no more.
            grace_secs: accepted and never slept: nothing is cut off.
            timeout: seconds after which the nodes are ended, and ``TimeoutError`` names them; -1 = never.
        """
        if self._is_shut:
            return
        self._is_shut = True
        try:
            if ssc is not None:
                self._nodes.follow(lambda seconds: bool(ssc.awaitTerminationOrTimeout(seconds)))
                ssc.stop(stopSparkContext=False, stopGraceFully=True)
            self._nodes.feeding.end()
            self._nodes.wait_trained(None if timeout == -1 else _seconds(timeout, "timeout"))
        finally:
            self._nodes.end()
        self._nodes.check()

    def tensorboard_url(self) -> str | None:
        """Where TensorBoard is, if it was asked for."""
        for node in self.cluster_info:
            if node["tb_port"]:
                return f"http://{node['host']}:{node['tb_port']}"
        return None

    def __enter__(self) -> TFCluster:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.shutdown()
        else:
            self._is_shut = True
            self._nodes.end()

    def __repr__(self) -> str:
        roles = ", ".join(f"{node['job_name']}:{node['task_index']}" for node in self.cluster_info)
        return f"<TFCluster {self.cluster_id}: {roles}>"

    def _require_feed(self, what: str) -> None:
        if self._is_shut:
            raise PlanError(f"{what}: this cluster was shut down; TFCluster.run starts another one")
        if self.input_mode is not InputMode.SPARK:
            raise PlanError(
                f"{what} feeds a program, and this cluster was started with InputMode.TENSORFLOW: it reads "
                "its own data. Pass input_mode=InputMode.SPARK to TFCluster.run"
            )

    def _check_queue(self, name: str) -> None:
        if name not in self.queues:
            raise UnknownName("queue", name, self.queues)


def _play(map_fun: Callable[[Any, Any], Any], tf_args: Any, about: About, node: Node) -> None:
    """What a node's process does."""
    map_fun(tf_args, NodeContext(node, about))


def make_nodes(
    spark: SparkSession, world: int, entry: Callable[[Node], None], settings: NodeSettings, **parts: Any
) -> Nodes:
    """Nodes that are not started yet. Where something cannot travel to them, the error says in which part it is."""
    try:
        return Nodes(spark, world, entry, settings)
    except PlanError:
        for name, part in parts.items():
            pack(part, name)
        raise


def session_of(sc: Any) -> tuple[SparkContext, SparkSession]:
    """The SparkContext and a session of it, whichever of the two was given."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if isinstance(sc, SparkContext):
        return sc, SparkSession.builder.getOrCreate()
    if isinstance(sc, SparkSession):
        return sc.sparkContext, sc
    if type(sc).__module__.startswith("pyspark.sql.connect"):
        raise UnsupportedError("nodes need a SparkContext, which Spark Connect does not have: use a classic session")
    raise PlanError(f"sc must be a SparkContext or a SparkSession, not {sc!r}")


def _mode(value: Any) -> InputMode:
    try:
        return InputMode(value)
    except ValueError:
        raise UnknownName("input_mode", value, (f"InputMode.{each.name}" for each in InputMode)) from None


def _seconds(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise PlanError(f"{name} must be a positive number of seconds, not {value!r}")
    return float(value)


def _is_stream(data: Any) -> bool:
    return type(data).__module__.startswith("pyspark.streaming") and hasattr(data, "foreachRDD")


def _epochs(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise PlanError(f"num_epochs must be a whole number that is not negative, not {value!r}")
    return value


def _require_data(data: Any, what: str) -> None:
    from pyspark import RDD
    from pyspark.sql import DataFrame

    if not isinstance(data, (RDD, DataFrame)):
        raise _NoFeed(
            f"{what} takes an RDD or a DataFrame, not {type(data).__name__}; sc.parallelize(…) makes an RDD of a list"
        )
