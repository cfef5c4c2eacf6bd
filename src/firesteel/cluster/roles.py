"""Who a rank is, as values: seat, device, threads, role in a cluster, and the variables that programs read."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, repeat

from firesteel.core.errors import PlanError, UnknownName

__all__ = [
    "MASTERS",
    "TRAINING",
    "HorovodRanks",
    "ParameterServers",
    "Post",
    "Role",
    "cluster_spec",
    "crew",
    "place",
    "program_environment",
]

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_PEER_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

MASTERS = ("chief", "master")
"""The roles of which a cluster may have one, ahead of the workers."""
TRAINING = ("chief", "master", "worker")
"""The roles that train: they are fed, they are waited for, and they make up ``WORLD_SIZE``."""


@dataclass(frozen=True)
class Role:
    """One rank of a gang."""

    rank: int
    world: int
    threads: int = 1
    device: str = "cpu"
    visible_gpus: tuple[str, ...] | None = None

    def environment(self) -> dict[str, str]:
        """Variables for the rank's process."""
        return self.surroundings() | self.identity()

    def identity(self) -> dict[str, str]:
        """Who this one is."""
        return {"RANK": str(self.rank), "WORLD_SIZE": str(self.world)}

    def surroundings(self) -> dict[str, str]:
        """What libraries look at when they are loaded, and ranks of a host have in common.

        Without thread counts, two ranks on two cores may run 20 times slower.
        """
        variables = dict.fromkeys(_THREAD_VARIABLES, str(self.threads))
        variables["PYTHONUNBUFFERED"] = "1"
        # DDP is told to look for unused parameters, and would say in every replica that it found none.
        variables["TORCH_CPP_LOG_LEVEL"] = os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR")
        # TensorFlow says at its start what processor it found, in every replica.
        variables["TF_CPP_MIN_LOG_LEVEL"] = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2")
        if self.visible_gpus is not None:
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(self.visible_gpus)
        return variables


@dataclass(frozen=True)
class Post:
    """What a node of a cluster is: its role, and its number within the role."""

    role: str
    index: int

    @property
    def trains(self) -> bool:
        """Whether it is fed and waited for."""
        return self.role in TRAINING

    def __str__(self) -> str:
        return f"{self.role}:{self.index}"


def crew(world: int, num_ps: int = 0, master: str | None = None, *, has_evaluator: bool = False) -> tuple[Post, ...]:
    """The posts of ``world`` nodes, by node number: parameter servers, chief or master, evaluator, workers.

    Raises ``PlanError`` where that leaves nobody to train.
    """
    counted: tuple[tuple[str, object], ...] = (("num_executors", world), ("num_ps", num_ps))
    for name, value in counted:
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise PlanError(f"{name} must be a whole number that is not negative, not {value!r}")
    if master is not None and master not in MASTERS:
        raise UnknownName("master_node", master, MASTERS)
    special = [("ps", num_ps), (master or "chief", int(master is not None)), ("evaluator", int(has_evaluator))]
    total = sum(count for _, count in special)
    workers = world - total
    if workers < 0 or (workers == 0 and master is None):
        asked = " + ".join(f"{count} {role}" for role, count in special if count) or "none"
        nobody = "one node at least has to be a worker, a chief or a master"
        raise PlanError(f"num_executors={world} nodes for {asked} = {total} with a role of their own: {nobody}")
    roles = chain.from_iterable(repeat(role, count) for role, count in [*special, ("worker", workers)])
    counts: dict[str, int] = {}
    posts = []
    for role in roles:
        posts.append(Post(role, counts.get(role, 0)))
        counts[role] = posts[-1].index + 1
    return tuple(posts)


def place(host: str, port: int) -> str:
    """``host:port``, with the brackets that an IPv6 address needs."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def cluster_spec(posts: Sequence[Post], places: Sequence[str]) -> dict[str, list[str]]:
    """The addresses by role, in the order of nodes."""
    spec: dict[str, list[str]] = {}
    for post, where in zip(posts, places, strict=True):
        spec.setdefault(post.role, []).append(where)
    return spec


def program_environment(
    node: int, posts: Sequence[Post], spec: dict[str, list[str]], meeting: tuple[str, int], gpus: Sequence[str]
) -> dict[str, str | None]:
    """What a node's program finds in its environment; ``None`` means that it must not find that variable.

    Args:
        node: its number.
        posts: all nodes'.
        spec: all nodes' addresses by role.
        meeting: where those who train may meet: the first one's host, and a port there that is set aside.
        gpus: what it may use.
    """
    post = posts[node]
    config = {"cluster": spec, "task": {"type": post.role, "index": post.index}}
    variables: dict[str, str | None] = {"TF_CONFIG": json.dumps(config), "CUDA_VISIBLE_DEVICES": ",".join(gpus)}
    members = [number for number, each in enumerate(posts) if each.trains]
    if not post.trains:
        return variables | dict.fromkeys(_PEER_VARIABLES)
    values = (members.index(node), len(members), *meeting)
    return variables | dict(zip(_PEER_VARIABLES, map(str, values), strict=True))


@dataclass(frozen=True)
class ParameterServers:
    """Where MXNet's workers, servers and scheduler meet, and how many there are."""

    host: str
    port: int
    workers: int
    servers: int

    def environment(self, role: str, own_host: str) -> dict[str, str]:
        """Variables for a process of this role: ``scheduler``, ``server`` or ``worker``."""
        return {
            "DMLC_ROLE": role,
            "DMLC_PS_ROOT_URI": self.host,
            "DMLC_PS_ROOT_PORT": str(self.port),
            "DMLC_NUM_WORKER": str(self.workers),
            "DMLC_NUM_SERVER": str(self.servers),
            "DMLC_NODE_HOST": own_host,
        }


@dataclass(frozen=True)
class HorovodRanks:
    """Horovod's ranks: on which host each runs, and where they meet."""

    hosts: tuple[str, ...]
    meeting_host: str
    meeting_port: int

    def environment(self, rank: int, interface: str | None) -> dict[str, str]:
        """Variables for the process of this rank, which is reached through this network interface."""
        host = self.hosts[rank]
        local_rank = self.hosts[:rank].count(host)
        # Across: one rank of each host that has so many, in the order of hosts.
        across = [each for each in dict.fromkeys(self.hosts) if self.hosts.count(each) > local_rank]
        found = {
            "HOROVOD_RANK": rank,
            "HOROVOD_SIZE": len(self.hosts),
            "HOROVOD_LOCAL_RANK": local_rank,
            "HOROVOD_LOCAL_SIZE": self.hosts.count(host),
            "HOROVOD_CROSS_RANK": across.index(host),
            "HOROVOD_CROSS_SIZE": len(across),
            "HOROVOD_HOSTNAME": host,
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": self.meeting_host,
            "HOROVOD_GLOO_RENDEZVOUS_PORT": self.meeting_port,
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
        }
        if interface is not None:
            found["HOROVOD_GLOO_IFACE"] = interface
        return {name: str(value) for name, value in found.items()}
