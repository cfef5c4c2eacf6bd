"""Which device a task's replica computes on: what Spark gave the task, else the CPU."""

from __future__ import annotations

from typing import Any

__all__ = ["task_device", "task_gpus"]


def task_gpus(context: Any) -> tuple[str, ...]:
    """Addresses of the GPUs that Spark reserved for this task (``spark.task.resource.gpu.amount``). Runs in a task."""
    resources = context.resources() if context is not None else {}
    return tuple(resources["gpu"].addresses) if "gpu" in resources else ()


def task_device() -> str:
    """What this task computes on: the first GPU that Spark gave it, as torch writes that, else ``"cpu"``."""
    from pyspark import TaskContext

    gpus = task_gpus(TaskContext.get())
    return f"cuda:{gpus[0]}" if gpus else "cpu"
