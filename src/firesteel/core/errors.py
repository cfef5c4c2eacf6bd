"""Every error that Firesteel raises on purpose, as one tree.

FiresteelError
├── PlanError              the request makes no sense (also a ValueError)
│   ├── SchemaError        a column: which, what was expected, what was found
│   ├── UnsupportedError   a framework or door cannot do what was asked
│   ├── UnknownName        a name, its kind, and the names there are
│   └── RecordError        a TFRecord file: its path, the record's offset (data.tfrecord)
├── ClusterError
│   ├── NotEnoughSlots     replicas asked for, task slots available
│   ├── EnvironmentMismatch  a task's Python or packages differ from the driver's
│   └── ReplicaFailed      rank, host, step, and the replica's own traceback
├── SyncError              replicas could not agree: rank, step
└── CheckpointError        a checkpoint: its path, what is wrong with it

Each keeps its parts as attributes and survives pickling, for errors travel between processes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = [
    "CheckpointError",
    "ClusterError",
    "EnvironmentMismatch",
    "FiresteelError",
    "NotEnoughSlots",
    "PlanError",
    "ReplicaFailed",
    "SchemaError",
    "SyncError",
    "UnknownName",
    "UnsupportedError",
    "missing_extra",
]


def _rebuild(cls: type[FiresteelError], args: tuple[Any, ...], parts: dict[str, Any]) -> FiresteelError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(parts)
    return error


class FiresteelError(Exception):
    """The root: ``except FiresteelError`` catches everything that this library raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__.copy())


class PlanError(FiresteelError, ValueError):
    """The request makes no sense, whatever the cluster does. Raised before anything runs."""


class SchemaError(PlanError):
    """A column cannot be used as asked.

    Attributes:
        column: the column's name, or ``None`` when none was given.
        expected: what would have been right, in words.
        found: what is there, in words.
    """

    def __init__(
        self, message: str, *, column: str | None = None, expected: str | None = None, found: str | None = None
    ) -> None:
        super().__init__(message)
        self.column = column
        self.expected = expected
        self.found = found


class UnsupportedError(PlanError):
    """What was asked for makes sense, but not here. The message says what does work."""


class UnknownName(PlanError):
    """A name that nobody registered; the message lists those that exist."""

    def __init__(self, kind: str, name: object, known: Iterable[str]) -> None:
        self.kind = kind
        self.name = name
        self.known = tuple(sorted(known))
        super().__init__(f"unknown {kind} {name!r}; there are: {', '.join(self.known) or 'none'}")


class ClusterError(FiresteelError):
    """Something between the driver and its tasks went wrong.

    Attributes:
        is_lasting: whether another task would meet with the same: then none is tried, and the driver raises it so.
    """

    is_lasting = False

    def __init__(self, *args: object, is_lasting: bool = False) -> None:
        super().__init__(*args)
        if is_lasting:
            self.is_lasting = True


class NotEnoughSlots(ClusterError):
    """More replicas were asked for than Spark can run at the same time."""

    def __init__(self, asked: int, available: int, hint: str = "") -> None:
        self.asked = asked
        self.available = available
        text = f"{asked} replicas were asked for, but Spark can run {available} tasks at the same time"
        super().__init__(f"{text}. {hint}" if hint else f"{text}.")


class EnvironmentMismatch(ClusterError):
    """A task runs another Python or another version of a package than the driver."""

    def __init__(self, rank: int, package: str, on_driver: str, on_task: str) -> None:
        self.rank = rank
        self.package = package
        self.on_driver = on_driver
        self.on_task = on_task
        super().__init__(
            f"replica {rank} has {package} {on_task}, the driver has {on_driver}: "
            f"install the same version on all nodes, or ship one environment with spark.archives."
        )


class ReplicaFailed(ClusterError):
    """A replica failed. The text ends with that replica's own traceback.

    Attributes:
        rank: the replica's seat.
        host: where it ran.
        step: the step that it was in (from 1), or ``None`` before the first.
        traceback: the replica's traceback as text ("" when its process died without one).
        kind: ``"user"`` for an exception in the user's code, ``"infrastructure"`` for a dead process.
        role: what it was in a cluster of nodes (``"worker:1"``), else "".
    """

    def __init__(
        self,
        message: str,
        *,
        rank: int,
        host: str = "?",
        step: int | None = None,
        traceback: str = "",
        kind: str = "user",
        role: str = "",
    ) -> None:
        self.rank = rank
        self.host = host
        self.step = step
        self.traceback = traceback
        self.kind = kind
        self.role = role
        at = " before its first step" if kind == "user" else ""  # of a process that died nobody knows
        at = at if step is None else f" at step {step}"
        text = f"node {rank} ({role}) on {host} failed" if role else f"replica {rank} on {host} failed{at}"
        text = f"{text}: {message}"
        super().__init__(f"{text}\n\n{traceback.rstrip()}" if traceback else text)


class SyncError(FiresteelError):
    """Replicas could not exchange what they had to."""

    def __init__(self, message: str, *, rank: int | None = None, step: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank
        self.step = step


class CheckpointError(FiresteelError):
    """A checkpoint is missing, damaged, or of another model."""

    def __init__(self, message: str, *, path: str | None = None) -> None:
        super().__init__(message)
        self.path = path


def missing_extra(package: str, extra: str) -> ImportError:
    """The error for an optional dependency that is not installed, with the line that installs it."""
    return ImportError(f"this needs {package}, which is not installed: pip install 'firesteel[{extra}]'")
