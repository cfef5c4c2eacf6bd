"""A failure as a value: made where it happens, sent as JSON, raised again on the driver.

Its kinds: ``plan``, the request was wrong, which only the data could show (a ragged array, a broken file); ``user``, an
exception in the user's own code; ``infrastructure``, a process or a connection is gone; ``preemption``, somebody took
it away (SIGTERM, a decommissioned executor); ``upstream``, Spark could not compute the rows, and will say why;
``collateral``, a replica lost its peers, of whom one has more to tell; ``companion``, a process that a rank started
beside its own is gone.

Only the second and third are tried again, each kind on a budget of its own.
"""

from __future__ import annotations

import importlib
import json
import re
import time
import traceback
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from firesteel.core import errors
from firesteel.core.errors import ClusterError, FiresteelError, PlanError, ReplicaFailed, SyncError

__all__ = ["Budget", "Failure", "Incident", "with_lines"]

# What TensorFlow says when it is loaded, whatever it is told to be silent about.
_START_UP = re.compile(
    r"WARNING: All log messages before absl::InitializeLog|I0000 00:00:|\d{4}-\d\d-\d\d [\d:.]+: I |"
    r"To enable the following instructions"
)


@dataclass(frozen=True)
class Failure:
    """What happened to one rank."""

    kind: str
    rank: int
    host: str
    message: str
    step: int | None = None
    traceback: str = ""
    type_module: str = ""
    type_name: str = ""
    args: tuple[Any, ...] = ()
    parts: dict[str, Any] = field(default_factory=dict)
    role: str = ""
    """What the rank was in a cluster of nodes."""

    @classmethod
    def of(cls, error: BaseException, *, rank: int, host: str, step: int | None = None) -> Failure:
        """The failure that ``error``, just caught, means."""
        kind = "user"
        if isinstance(error, PlanError) or (isinstance(error, ClusterError) and error.is_lasting):
            kind = "plan"
        elif isinstance(error, SyncError):
            kind = "collateral"
        elif isinstance(error, ClusterError):
            kind = "infrastructure"
        return cls(
            kind=kind,
            rank=rank,
            host=host,
            message=f"{type(error).__name__}: {_text(error)}",
            step=step,
            traceback="".join(traceback.format_exception(error)),
            type_module=type(error).__module__,
            type_name=type(error).__qualname__,
            args=error.args if all(map(_is_json, error.args)) else (_text(error),),
            parts={k: v for k, v in vars(error).items() if _is_json(v)} if isinstance(error, FiresteelError) else {},
        )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Failure:
        """The reverse of ``to_json``."""
        return cls(**{**value, "args": tuple(value["args"])})

    def error(self) -> FiresteelError:
        """What the driver raises: a plan's error as it was, else ``ReplicaFailed`` with the original as its cause."""
        original = self._original()
        if self.kind == "plan" and isinstance(original, FiresteelError):
            return original
        error = ReplicaFailed(
            self.message,
            rank=self.rank,
            host=self.host,
            step=self.step,
            traceback=self.traceback,
            kind=self.kind,
            role=self.role,
        )
        error.__cause__ = original
        return error

    def _original(self) -> BaseException | None:
        # Only classes that the driver can import anyway are built, from plain values: nothing is unpickled.
        try:
            found: Any = importlib.import_module(self.type_module)
            for part in self.type_name.split("."):
                found = getattr(found, part)
            if not issubclass(found, BaseException):
                return None
            if issubclass(found, FiresteelError):
                return errors._rebuild(found, self.args, self.parts)
            return found(*self.args)  # type: ignore[no-any-return]
        except Exception:  # noqa: BLE001 - a local class, a module that only replicas have, a constructor of its own
            return None  # the text has everything


@dataclass
class Incident:
    """A loss that a gang got over: who, why, when it was noticed, and how it went on."""

    failure: Failure
    generation: int
    ranks: set[int]
    noticed: float = field(default_factory=time.time)
    resumed: float | None = None
    """When the first step after it was done."""
    step: int | None = None
    """Updates done in the state that the gang went on from."""
    reached: int = 0
    """The newest step that anybody of the gang is known to have been in."""

    def reach(self, step: int) -> None:
        """Somebody of the gang was in this step."""
        self.reached = max(self.reached, step)

    @property
    def lost_at(self) -> int | None:
        """The step that the lost rank was in; where its end left nobody to say so, the gang's newest that is known."""
        return self.failure.step or self.reached or None

    def to_json(self) -> dict[str, Any]:
        """For the history: plain values."""
        return {
            "generation": self.generation,
            "kind": self.failure.kind,
            "ranks": sorted(self.ranks),
            "host": self.failure.host,
            "message": self.failure.message,
            "lost_at_step": self.lost_at,
            "resumed_from_step": self.step,
            "noticed": self.noticed,
            "resumed": self.resumed,
        }


class Budget:
    """How many losses of each kind a fit gets over. It outlives a launch, for a gang may be launched again.

    Ranks that are lost together (a host with several of them) are one incident; a rank that is lost a second time
    is another one, however soon.
    """

    def __init__(self, *, infrastructure: int = 0, preemption: int = 0, together_seconds: float = 3.0) -> None:
        self.incidents: list[Incident] = []
        self._left = {"infrastructure": infrastructure, "preemption": preemption}
        self._together_seconds = together_seconds

    @property
    def is_open(self) -> bool:
        """Whether there is anything left of it."""
        return any(self._left.values())

    def spend(self, failure: Failure, generation: int, *, is_forming: bool = False) -> bool:
        """Whether this failure may be got over; it is entered if so. ``is_forming``: the gang has not begun again."""
        last = self.incidents[-1] if self.incidents else None
        is_recent = is_forming and last is not None and time.time() - last.noticed < self._together_seconds
        if last is not None and is_recent and failure.rank not in last.ranks and failure.kind in self._left:
            last.ranks.add(failure.rank)
            return True
        if self._left.get(failure.kind, 0) <= 0:
            return False
        self._left[failure.kind] -= 1
        self.incidents.append(Incident(failure, generation, {failure.rank}))
        return True


def with_lines(text: str, lines: Iterable[str]) -> str:
    """How a process ended, and the last lines that it printed, but for those that frameworks print at every start."""
    told = "\n".join(line for line in lines if not _START_UP.match(line))
    return f"{text}\nIts last lines:\n{told}" if told else text


def _text(error: BaseException) -> str:
    """``str(error)``, whatever its class makes of that."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a user's __str__
        return "(its text could not be made)"


def _is_json(value: object) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True
