"""A failure as a value: made where it happens, sent as JSON, raised again on the driver.

Its kinds: ``plan``, the request was wrong, which only the data could show (a ragged array); ``user``, an exception
in the user's own code; ``infrastructure``, a process or a connection is gone; ``upstream``, Spark could not compute the
rows, and will say why; ``collateral``, a replica lost its peers, of whom one has more to tell.
"""

from __future__ import annotations

import importlib
import json
import traceback
from dataclasses import asdict, dataclass, field
from typing import Any

from firesteel.core import errors
from firesteel.core.errors import ClusterError, FiresteelError, PlanError, ReplicaFailed, SyncError

__all__ = ["Failure"]


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

    @classmethod
    def of(cls, error: BaseException, *, rank: int, host: str, step: int | None = None) -> Failure:
        """The failure that ``error``, just caught, means."""
        kind = "user"
        if isinstance(error, PlanError):
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
        if self.kind == "plan" and isinstance(original, PlanError):
            return original
        error = ReplicaFailed(
            self.message, rank=self.rank, host=self.host, step=self.step, traceback=self.traceback, kind=self.kind
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
