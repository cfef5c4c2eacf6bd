"""Who a rank is, as values: seat, device, threads, and the environment variables that frameworks read."""

from __future__ import annotations

import os
from dataclasses import dataclass

__all__ = ["Role"]

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
