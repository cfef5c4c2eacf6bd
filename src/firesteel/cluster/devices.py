"""Which devices a task's process computes on: what Spark gave the task, else what is free on the host, else the CPU."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from firesteel.core.errors import ClusterError

__all__ = ["NodeGpus", "free_gpus", "share_gpus", "task_device", "task_gpus"]

_SMI = "nvidia-smi"
_SMI_SECONDS = 30.0
_GPU = re.compile(r"^GPU (\d+):.*\(UUID: ([^)]+)\)", re.MULTILINE)


def task_gpus(context: Any) -> tuple[str, ...]:
    """Addresses of the GPUs that Spark reserved for this task (``spark.task.resource.gpu.amount``). Runs in a task."""
    resources = context.resources() if context is not None else {}
    return tuple(resources["gpu"].addresses) if "gpu" in resources else ()


def free_gpus() -> tuple[str, ...]:
    """Numbers of this host's GPUs on which nobody computes; none where there is no NVIDIA driver."""
    if shutil.which(_SMI) is None:
        return ()
    try:
        busy = set(_smi("--query-compute-apps=gpu_uuid", "--format=csv,noheader,nounits").split())
        found = _GPU.findall(_smi("--list-gpus"))
    except (OSError, subprocess.SubprocessError):
        return ()  # the tool without its driver: as good as no GPU
    return tuple(number for number, uuid in found if uuid not in busy)


def _smi(*arguments: str) -> str:
    done = subprocess.run([_SMI, *arguments], capture_output=True, text=True, check=True, timeout=_SMI_SECONDS)
    return done.stdout


@dataclass(frozen=True)
class NodeGpus:
    """What a node could compute on.

    Attributes:
        node: its number.
        host: nodes on one host share its devices.
        given: what Spark reserved for its task.
        found: what is free on its host, where it was looked for.
        is_served: whether it gets any at all; a parameter server does not.
    """

    node: int
    host: str
    given: tuple[str, ...] = ()
    found: tuple[str, ...] = ()
    is_served: bool = True


def share_gpus(
    nodes: Sequence[NodeGpus], asked: int | None, held: Mapping[str, frozenset[str]] | None = None
) -> list[tuple[str, ...]]:
    """The devices of each node: Spark's own word where it has one, else the host's, in the order of nodes.

    Args:
        nodes: all that are to be served now.
        asked: how many each wants; ``None`` is one, if there is one.
        held: by host, what others have already.

    Raises ``ClusterError`` where a node cannot have as many as were asked for.
    """
    left = {node.host: [gpu for gpu in node.found if gpu not in (held or {}).get(node.host, ())] for node in nodes}
    shares: list[tuple[str, ...]] = []
    for node in nodes:
        if not node.is_served or asked == 0:
            shares.append(())
            continue
        if node.given:
            share = node.given if asked is None else node.given[:asked]
        else:
            free = left[node.host]
            share = tuple(free[: asked or 1])
            del free[: len(share)]
        if asked is not None and len(share) < asked:
            source = "given to its task by Spark" if node.given else f"free on its host {node.host}"
            raise ClusterError(
                f"num_gpus={asked} was asked for, but node {node.node} has {len(share)} ({source}). "
                f"Set spark.task.resource.gpu.amount, start fewer nodes on a host, or lower num_gpus"
            )
        shares.append(share)
    return shares


def task_device(wanted: str = "auto") -> str:
    """What this task computes on: the first GPU that Spark gave it, as torch writes that, else ``"cpu"``.

    Who asks for ``"cuda"`` gets the host's first where Spark gave none; who asks for ``"cpu"`` gets that.
    """
    from pyspark import TaskContext

    gpus = [] if wanted == "cpu" else task_gpus(TaskContext.get())
    if gpus:
        return f"cuda:{gpus[0]}"
    return "cpu" if wanted == "auto" else wanted
