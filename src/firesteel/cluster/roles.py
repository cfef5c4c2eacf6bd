"""Who a rank is, as values: seat, device, threads, and the environment variables that frameworks read."""

from __future__ import annotations

import os
from dataclasses import dataclass

__all__ = ["HorovodRanks", "ParameterServers", "Role"]

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass(frozen=True)
class Role:
    """One rank of a gang."""

    rank: int
    world: int
    threads: int = 1
    device: str = "cpu"
    visible_gpus: tuple[str, ...] | None = None

    def environment(self) -> dict[str, str]:
        """Variables for the rank's process. Without thread counts, two ranks on two cores may run 20 times slower."""
        variables = dict.fromkeys(_THREAD_VARIABLES, str(self.threads))
        variables |= {"RANK": str(self.rank), "WORLD_SIZE": str(self.world), "PYTHONUNBUFFERED": "1"}
        # DDP is told to look for unused parameters, and would say in every replica that it found none.
        variables["TORCH_CPP_LOG_LEVEL"] = os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR")
        if self.visible_gpus is not None:
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(self.visible_gpus)
        return variables


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
