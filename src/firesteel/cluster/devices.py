"""Which device a task's replica computes on: what Spark gave the task, else the CPU."""

from __future__ import annotations

from typing import Any

__all__ = ["task_gpus"]


def task_gpus(context: Any) -> tuple[str, ...]:
    """Addresses of the GPUs that Spark reserved for this task (``spark.task.resource.gpu.amount``). Runs in a task."""
    resources = context.resources() if context is not None else {}
    return tuple(resources["gpu"].addresses) if "gpu" in resources else ()
