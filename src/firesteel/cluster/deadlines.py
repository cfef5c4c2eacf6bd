"""How long each wait may last, and the Spark setting that says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from firesteel.core.errors import ClusterError, PlanError

__all__ = ["Deadlines", "Overdue", "setting"]


class Overdue(ClusterError, TimeoutError):
    """A wait has lasted too long. The text names who was waited for, and what sets the limit."""


@dataclass(frozen=True)
class Deadlines:
    """How long each wait may last. Each has a Spark setting, whose name is in the error when it passes."""

    handshake_timeout_seconds: float = 10.0
    seat_timeout_seconds: float = 60.0
    heartbeat_timeout_seconds: float = 5.0
    reform_timeout_seconds: float = 60.0
    stall_timeout_seconds: float = 900.0
    collateral_grace_seconds: float = 3.0
    leave_timeout_seconds: float = 10.0
    keep_warm_seconds: float = 0.0
    """For a next fit, by a process that has the framework imported (``cluster.stem``); unless asked for, none."""

    @classmethod
    def of(cls, read: Callable[[str], str | None]) -> Deadlines:
        """As set: ``read`` gives the value of a Spark setting, or ``None``."""
        found = {each.name: read(setting(each.name)) for each in fields(cls)}
        given = {name: value for name, value in found.items() if value is not None}
        return cls(**{name: _seconds(name, value, getattr(cls, name)) for name, value in given.items()})


def setting(name: str) -> str:
    """The Spark setting of a deadline: ``seat_timeout_seconds`` is ``spark.firesteel.seatTimeoutSeconds``."""
    first, *rest = name.split("_")
    return "spark.firesteel." + first + "".join(word.capitalize() for word in rest)


def _seconds(name: str, value: str, default: float) -> float:
    """The value as a number; positive, unless not to wait at all is what is done anyway."""
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not (seconds > 0 or seconds == default):
        raise PlanError(f"{setting(name)} must be a positive number of seconds, not {value!r}")
    return seconds
