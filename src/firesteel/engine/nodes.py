"""Nodes: a user's own program on every rank of a cluster, from the first process to the last.

A door hands over a function; each rank's process calls it with a ``Node``: who it is, who the others are, the port that
was set aside for it, and its inbox. On the driver ``Nodes`` starts them, hears of every end and failure, and ends them.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from firesteel.cluster.beside import TensorBoard, require_tensorboard
from firesteel.cluster.child import Desk
from firesteel.cluster.coordinator import Assignments, Coordinator, Reports
from firesteel.cluster.deadlines import Deadlines, Overdue
from firesteel.cluster.devices import NodeGpus, free_gpus, share_gpus
from firesteel.cluster.failure import Failure
from firesteel.cluster.launch import Form, launch
from firesteel.cluster.ports import listed_ports, reserve
from firesteel.cluster.preflight import await_slots, cores_per_task, setting_of
from firesteel.cluster.roles import Post, Role, cluster_spec, place, program_environment
from firesteel.cluster.seat import Aborted, Invitation, Seat
from firesteel.cluster.tls import Certificate, Sealed, wanted
from firesteel.cluster.travel import pack
from firesteel.engine.feeder import FeedCard
from firesteel.engine.feeding import Feeding, Pass
from firesteel.engine.inbox import Inbox

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = ["Node", "NodeSettings", "Nodes", "main", "serve", "this_node"]

_log = logging.getLogger(__name__)

_PORT = "TENSORFLOW_PORT"
_LEAVE_SECONDS = 60.0
_LOST_SECONDS = 15.0
_THREADS = {"TF_NUM_INTRAOP_THREADS": None, "TF_NUM_INTEROP_THREADS": "2"}
_UNGROUPED = ("TF_CONFIG", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_HINT = (
    "Each node takes one: start fewer nodes, or give Spark more: spark.executor.instances, spark.cores.max, "
    "a larger local[n], or a smaller spark.task.cpus."
)

Entry = Callable[["Node"], None]
"""What a node's process does: the door's function around the user's."""


@dataclass(frozen=True)
class NodeSettings:
    """How nodes are started.

    Args:
        posts: what each node is; nothing for nodes that do not know of each other.
        is_fed: whether items are fed to them. Then nodes outlive their tasks, whose slots the feeders need.
        queues: the names of feeds.
        releases_port: whether a node's port is set free just before its program runs.
        on_driver: how many nodes, the first ones, run on the driver.
        is_gang: whether all run at the same time; else as slots come.
        timeout_seconds: in which all nodes have to report.
        num_gpus: how many each wants; ``None`` is one, where there is one.
        tensorboard: the node beside which TensorBoard runs.
        log_dir: what it shows.
        argv: ``sys.argv`` of the nodes' processes.
        address, ports: where the driver listens, if not where Spark does.
    """

    posts: tuple[Post, ...]
    is_fed: bool = False
    queues: tuple[str, ...] = ()
    releases_port: bool = True
    on_driver: int = 0
    is_gang: bool = True
    timeout_seconds: float = 600.0
    num_gpus: int | None = None
    tensorboard: int | None = None
    log_dir: str | None = None
    argv: tuple[str, ...] | None = None
    address: str | None = None
    ports: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class NodeProgram:
    """The child's half of a node: travels inside the Spark closure."""

    entry: Entry
    settings: NodeSettings
    secret: bytes
    sealed: Sealed | None


@dataclass(frozen=True)
class NodeCard:
    """The task's half."""

    payload: bytes
    settings: NodeSettings
    threads: int
    probes_gpus: bool


# --- in a node's own process ------------------------------------------------------------------------------------------


class Node:
    """What a node's program is given, in its own process."""

    current: ClassVar[Node | None] = None

    def __init__(self, number: int, assignment: dict[str, Any], inbox: Inbox, bound: socket.socket | None) -> None:
        self.number = number
        self.spec: dict[str, list[str]] = assignment["spec"]
        """All addresses, by role."""
        self.inbox = inbox
        self.bound = bound
        """The socket that holds the node's port; ``None`` once that is free."""

    def release_port(self) -> bool:
        """Set the node's port free; whether it was held."""
        bound, self.bound = self.bound, None
        if bound is not None:
            bound.close()
        return bound is not None


def this_node() -> Node | None:
    """The node that this process is, if it is one."""
    return Node.current


def main(desk: Desk) -> None:
    """A node's process: wait for the others, become what was assigned, run the program."""
    assignment = desk.assignment()
    for name, value in assignment["environment"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    bound = _adopt(desk, "port")
    meeting = _adopt(desk, "meeting")
    program: NodeProgram = desk.program()  # only now: what it imports may look at the environment
    settings = program.settings
    if settings.argv is not None:
        sys.argv = list(settings.argv)
    inbox = Inbox(_adopt(desk, "feed"), program.secret, program.sealed, settings.queues, desk.tell)
    threading.Thread(target=_listen, args=(desk, inbox), name="firesteel-messages", daemon=True).start()
    node = Node.current = Node(desk.rank, assignment, inbox, bound)
    for unused in (meeting, *([] if not settings.releases_port else [bound])):
        if unused is not None:
            unused.close()
    if settings.releases_port:
        node.bound = None
    try:
        program.entry(node)
    except SystemExit as left:
        if left.code not in (None, 0):
            raise
    inbox.leave()
    # The process ends without the interpreter's own teardown, but what a program has registered for its end is its own.
    atexit._run_exitfuncs()


def _adopt(desk: Desk, name: str) -> socket.socket | None:
    return socket.socket(fileno=desk.descriptors[name]) if name in desk.descriptors else None


def _listen(desk: Desk, inbox: Inbox) -> None:
    for message in desk.messages():
        inbox.hear(message)


# --- in a node's task, or its keeper ----------------------------------------------------------------------------------


def serve(seat: Seat, rows: Iterator[pa.RecordBatch], card: NodeCard) -> None:
    """A node's task: set ports aside, start the process, report, and stay until it has ended."""
    settings = card.settings
    seat.on_line = _print_line
    role = Role(seat.rank, seat.world, card.threads)
    with ExitStack() as stack:
        board = None
        if settings.tensorboard == seat.rank:
            folder = settings.log_dir or f"tensorboard_{secrets.token_hex(4)}"
            board = stack.enter_context(TensorBoard(folder, seat.host))
            seat.on_stop = board.end
        report = _start_child(seat, card, role)
        if card.probes_gpus and not seat.gpus and _is_served(settings, seat.rank):
            report["found"] = free_gpus()
        if board is not None:
            board.wait()
            report |= {"tb_pid": board.pid, "tb_port": board.port}
        seat.work(seat.ready(report))
        if board is not None:
            seat.rest()


def _start_child(seat: Seat, card: NodeCard, role: Role) -> dict[str, Any]:
    """Start the process with the sockets that are its own from then on; what the others have to know of them."""
    settings = card.settings
    sockets: dict[str, socket.socket] = {}
    with ExitStack() as stack:
        if settings.posts:
            sockets["port"] = stack.enter_context(reserve(listed_ports(os.environ.get(_PORT), _PORT), _PORT))
            sockets["meeting"] = stack.enter_context(reserve())
        if settings.is_fed:
            sockets["feed"] = stack.enter_context(_listener(seat.host))
        for each in sockets.values():
            each.set_inheritable(True)
        descriptors = {name: each.fileno() for name, each in sockets.items()}
        seat.prepare("firesteel.engine.nodes:main", card.payload, descriptors, role)
        ports = {name: each.getsockname()[1] for name, each in sockets.items()}
    return {"rank": seat.rank, "host": seat.host, "ports": ports, "given": seat.gpus, "found": ()}


def _listener(host: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, 0), family=family, backlog=128)


def _is_served(settings: NodeSettings, number: int) -> bool:
    """Whether this node may want a GPU."""
    is_server = bool(settings.posts) and settings.posts[number].role == "ps"
    return settings.num_gpus != 0 and not is_server


def _print_line(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # the task's own output may be gone before the node's
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


# --- on the driver ----------------------------------------------------------------------------------------------------


class Nodes:
    """The nodes of a cluster, as the driver sees them. ``start`` them, and ``end`` them in any case."""

    _held_gpus: ClassVar[dict[str, set[str]]] = {}
    _gpus_lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, spark: SparkSession, world: int, entry: Entry, settings: NodeSettings) -> None:
        self.info: list[dict[str, Any]] = []
        """What each node has reported, once all have."""
        self.error: BaseException | None = None
        """What ended them, if something did; there once ``is_over``."""
        self.is_over = False
        self._spark = spark
        self._world = world
        self._settings = settings
        self._secret = secrets.token_bytes(32)
        self._sealed = Certificate.seal() if settings.is_fed and wanted(lambda key: spark.conf.get(key, None)) else None
        self._payload = pack(NodeProgram(entry, settings, self._secret, self._sealed), "map_fun")
        self._coordinator: Coordinator | None = None
        self._invitation: Invitation | None = None
        self._done: frozenset[int] = frozenset()
        self._is_unwanted = False
        self._change = threading.Condition()
        self._own_gpus: dict[int, tuple[str, tuple[str, ...]]] = {}
        self.feeding = Feeding(
            [number for number, post in enumerate(settings.posts) if post.trains],
            settings.queues,
            self._tell,
            self._why_lost,
            self.wake,
            self._count_tasks,
            may_speculate=setting_of(spark, "spark.speculation") == "true",
        )

    @property
    def address(self) -> tuple[str, int]:
        """Where the driver listens."""
        assert self._coordinator is not None
        return self._coordinator.address

    def start(self) -> None:
        """Start all nodes; returns when every one has reported (or, of nodes that are no gang, at once)."""
        from pyspark.util import InheritableThread

        settings, spark = self._settings, self._spark
        tasks = self._world - settings.on_driver
        if settings.tensorboard is not None:
            require_tensorboard()
        if settings.is_gang:
            await_slots(spark, tasks, _HINT)
        self._thread = InheritableThread(target=self._run, name="firesteel-nodes", daemon=True)
        self._thread.start()
        if not settings.is_gang:
            return
        try:
            with self._change:
                self._change.wait_for(lambda: self.info or self.is_over, settings.timeout_seconds)
            if not self.info and not self.is_over:
                missing = self._missing()
                self.end()
                raise missing
        except BaseException:
            self.end()
            raise
        self.check()

    def check(self) -> None:
        """Raise what has failed, if something has."""
        if self._is_failing():
            self._wait_over(_LEAVE_SECONDS)
        if self.error is not None:
            raise self.error

    def wait(self, is_enough: Callable[[], bool], seconds: float | None = None) -> bool:
        """Wait until this is so, or the nodes have come to an end, good or bad; whether it is so."""
        end = math.inf if seconds is None else time.monotonic() + seconds
        with self._change:
            while not is_enough():
                left = end - time.monotonic()
                if self.is_over or self._is_failing() or left <= 0:
                    return is_enough()
                self._change.wait(min(left, 1.0))
        return True

    def wake(self) -> None:
        """Let whoever waits look again."""
        with self._change:
            self._change.notify_all()

    def wait_trained(self, seconds: float | None) -> None:
        """Wait until every node that trains has returned from its program. ``Overdue`` names those that have not."""
        training = {number for number, post in enumerate(self._settings.posts) if post.trains}
        self.wait(lambda: training <= self._done, seconds)
        self.check()
        late = sorted(training - self._done)
        if late and not self.is_over:
            self.end()
            names = ", ".join(f"node {number} ({self._settings.posts[number]})" for number in late)
            raise Overdue(f"after {seconds:g} s (timeout) these had not returned, and were ended: {names}")

    def follow(self, is_over: Callable[[float], bool]) -> None:
        """Wait for the end of somebody who feeds: until it comes, all feeds are over, or a node has failed.

        ``is_over`` waits so many seconds at most, and says whether it has ended.
        """
        is_unwanted = False
        while not is_unwanted and not self.is_over and not self._is_failing():
            if is_over(1.0):
                break
            is_unwanted = any(self.feeding.is_over(queue) for queue in self._settings.queues)

    def wait_all(self) -> None:
        """Wait until every node has returned from its program. Raises what one has raised."""
        try:
            self._wait_over(None)
        except BaseException:
            self.end()
            raise
        self.check()

    def end(self) -> None:
        """End what still runs, and wait until it is gone. May be called twice."""
        self._is_unwanted = True
        self.feeding.fail("the cluster is over")
        if self._coordinator is not None:
            self._coordinator.abort("the cluster is over")
        self._wait_over(_LEAVE_SECONDS)

    def feed_card(self, current: Pass, timeout_seconds: float) -> FeedCard:
        """What tasks need that feed for this pass."""
        assert self._invitation is not None
        places = {number: (node["host"], node["ports"]["feed"]) for number, node in enumerate(self.info)}
        roles = {number: str(post) for number, post in enumerate(self._settings.posts)}
        certificate = self._sealed[0] if self._sealed else None
        door = replace(self._invitation, secret=self._secret, certificate=certificate)
        return FeedCard(self._invitation, door, places, roles, current.key, current.queue, timeout_seconds)

    # --- the launch ---

    def _run(self) -> None:
        spark, settings = self._spark, self._settings
        tasks = self._world - settings.on_driver
        is_kubernetes = (setting_of(spark, "spark.master") or "").startswith("k8s")
        card = NodeCard(self._payload, settings, cores_per_task(spark), not is_kubernetes)
        self._card = card
        base = Deadlines.of(lambda key: spark.conf.get(key, None))
        try:
            launch(
                spark.range(0, tasks, 1, tasks),
                serve,
                card,
                world=self._world,
                arrange=self._arrange,
                on_event=self._hear,
                on_wait=self._look,
                # A program says nothing on its way: only its door knows what would be too long.
                deadlines=replace(base, seat_timeout_seconds=math.inf, stall_timeout_seconds=math.inf),
                form=Form(
                    is_gang=settings.is_gang,
                    is_kept=settings.is_fed,
                    leaves_early=True,
                    reconnects=False,
                    first_rank=settings.on_driver,
                    address=settings.address,
                    ports=settings.ports,
                    on_visit=self.feeding.visitor,
                    on_open=self._open,
                    judge=self._judge,
                    is_wanted=lambda: not self._is_unwanted,
                    hint=_HINT,
                ),
            )
        except Aborted:
            pass
        except BaseException as error:  # noqa: BLE001 - raised by whoever calls next
            self.error = error
        finally:
            self._give_back_gpus(range(self._world))
            self.feeding.fail("the cluster is over" if self.error is None else str(self.error))
            with self._change:
                if self._coordinator is not None:
                    self._done = self._coordinator.done
                self.is_over = True
                self._change.notify_all()

    def _open(self, coordinator: Coordinator, invitation: Invitation) -> None:
        self._coordinator, self._invitation = coordinator, invitation
        if self._is_unwanted:
            coordinator.abort("the cluster is over")
        for number in range(self._settings.on_driver):
            threading.Thread(target=self._host, args=(number,), name=f"firesteel-node-{number}", daemon=True).start()

    def _host(self, number: int) -> None:
        """A node on the driver: its process is a child of this one."""
        assert self._invitation is not None
        try:
            with Seat(replace(self._invitation, is_kept=False), number) as seat:
                serve(seat, iter(()), self._card)
        except Aborted:
            pass
        except Exception as error:  # noqa: BLE001 - the seat has told the coordinator
            _log.debug("node %d on the driver failed: %s", number, error)

    def _arrange(self, reports: Reports) -> Assignments:
        settings = self._settings
        gpus = self._share_gpus(reports)
        if not settings.posts:
            self._enter(reports)
            return [
                {"spec": {}, "environment": self._own_environment(share) | dict.fromkeys(_UNGROUPED)} for share in gpus
            ]
        places = [place(report["host"], report["ports"]["port"]) for report in reports]
        spec = cluster_spec(settings.posts, places)
        first = next(report for report, post in zip(reports, settings.posts, strict=True) if post.trains)
        meeting = (first["host"], first["ports"]["meeting"])
        assignments = []
        for number, share in enumerate(gpus):
            environment = program_environment(number, settings.posts, spec, meeting, share)
            assignments.append({"spec": spec, "environment": self._own_environment(share) | environment})
        self._enter(reports)
        return assignments

    def _enter(self, reports: Reports) -> None:
        with self._change:
            self.info = [*self.info, *reports]
            self._change.notify_all()

    def _own_environment(self, gpus: Sequence[str]) -> dict[str, str | None]:
        # TensorFlow would take all cores of the host for each node.
        threads = {name: value or str(cores_per_task(self._spark)) for name, value in _THREADS.items()}
        return {**threads, "CUDA_VISIBLE_DEVICES": ",".join(gpus)}

    def _share_gpus(self, reports: Reports) -> list[tuple[str, ...]]:
        nodes = [
            NodeGpus(
                report["rank"],
                report["host"],
                tuple(report["given"]),
                tuple(report["found"]),
                _is_served(self._settings, report["rank"]),
            )
            for report in reports
        ]
        assert self._coordinator is not None
        self._give_back_gpus(self._coordinator.done)
        with self._gpus_lock:  # nodes of several clusters may be on one host
            held = {host: frozenset(gpus) for host, gpus in self._held_gpus.items()}
            shares = share_gpus(nodes, self._settings.num_gpus, held)
            for node, share in zip(nodes, shares, strict=True):
                if share and not node.given:
                    self._held_gpus.setdefault(node.host, set()).update(share)
                    self._own_gpus[node.node] = (node.host, share)
        return shares

    def _give_back_gpus(self, numbers: Iterable[int]) -> None:
        with self._gpus_lock:
            for number in numbers:
                host, gpus = self._own_gpus.pop(number, ("", ()))
                self._held_gpus.get(host, set()).difference_update(gpus)

    def _hear(self, rank: int, event: dict[str, Any], buffers: list[bytearray]) -> None:
        self.feeding.hear(rank, event)

    def _look(self, coordinator: Coordinator) -> None:
        done = coordinator.done
        with self._change:
            if done != self._done:
                self._done = done
                self._change.notify_all()

    def _judge(self, failure: Failure) -> Failure:
        """With what the node was. Its program's errors are its program's, also where they are ours."""
        role = str(self._settings.posts[failure.rank]) if self._settings.posts else "worker"
        return replace(failure, role=role, kind="user" if failure.kind == "plan" else failure.kind)

    # --- what others ask ---

    def _tell(self, node: int, message: dict[str, Any]) -> None:
        if self._coordinator is not None:
            self._coordinator.tell(node, message)

    def _is_failing(self) -> bool:
        return self._coordinator is not None and self._coordinator.failure is not None

    def _why_lost(self, node: int) -> str | None:
        """What became of a node that cannot be reached any more."""
        self.wait(lambda: node in self._done, _LOST_SECONDS)
        if node in self._done:
            return None
        failure = self._coordinator.failure if self._coordinator is not None else None
        if isinstance(failure, Failure):
            return str(failure.error())
        return str(failure or self.error or f"node {node} ({self._settings.posts[node]}) cannot be reached")

    def _count_tasks(self, stage: int) -> int | None:
        found = self._spark.sparkContext._jsc.sc().statusTracker().getStageInfo(stage)
        return int(found.get().numTasks()) if found.isDefined() else None

    def _wait_over(self, seconds: float | None) -> None:
        end = math.inf if seconds is None else time.monotonic() + seconds
        with self._change:
            while not self.is_over and time.monotonic() < end:
                self._change.wait(1.0)  # in slices, so that Ctrl-C gets through

    def _missing(self) -> Overdue:
        hosts = self._coordinator.hosts if self._coordinator is not None else {}
        came = ", ".join(f"node {number} from {host}" for number, host in sorted(hosts.items())) or "none"
        absent = ", ".join(str(number) for number in range(self._world) if number not in hosts)
        return Overdue(
            f"{len(hosts)} of {self._world} nodes reported within {self._settings.timeout_seconds:g} s "
            f"(reservation_timeout): {came}" + (f"; missing: {absent}" if absent else "")
        )
