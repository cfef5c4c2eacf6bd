"""``gpu_info``: the GPUs of this host."""

from __future__ import annotations

import shutil

from firesteel.cluster.devices import free_gpus
from firesteel.core.errors import ClusterError, UnknownName
from firesteel.core.plan import positive

__all__ = ["AS_LIST", "AS_STRING", "get_gpus", "is_gpu_available"]

AS_STRING = "string"
AS_LIST = "list"


def is_gpu_available() -> bool:
    """Whether this host has a GPU on which nobody computes."""
    return shutil.which("nvidia-smi") is not None and bool(free_gpus())


def get_gpus(num_gpu: int = 1, worker_index: int = -1, format: str = AS_STRING) -> str | list[str]:
    """Numbers of free GPUs of this host.

    Args:
        num_gpu: how many.
        worker_index: which share of them: 0 is the first ``num_gpu``, 1 the next; -1 is the first.
        format: ``AS_STRING``, with commas between them, or ``AS_LIST``.

    Raises ``ClusterError`` with asked and available where there are too few.
    """
    if format not in (AS_STRING, AS_LIST):
        raise UnknownName("format", format, (AS_STRING, AS_LIST))
    count = positive(num_gpu, "num_gpu") or 1
    free = free_gpus()
    begin = max(0, worker_index) * count
    found = list(free[begin : begin + count])
    if len(found) < count:
        raise ClusterError(
            f"{count} GPUs were asked for (share {max(0, worker_index)}), and {len(free)} are free on this host"
        )
    return ",".join(found) if format == AS_STRING else found
