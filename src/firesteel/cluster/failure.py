"""A failure as a value: made where it happens, sent as JSON, raised again on the driver.

Three kinds are told apart. ``plan``: the request was wrong, which only the data could show (a ragged array). ``user``:
an exception in the user's own code. ``infrastructure``: a process or a connection is gone.
"""

from __future__ import annotations

import builtins
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
            message=f"{type(error).__name__}: {error}",
            step=step,
            traceback="".join(traceback.format_exception(error)),
            type_module=type(error).__module__,
            type_name=type(error).__qualname__,
            args=tuple(arg for arg in error.args if _is_json(arg)) if all(map(_is_json, error.args)) else (str(error),),
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
        """The exception to raise on the driver: a plan's error as it was, else ``ReplicaFailed`` with the original as cause."""
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
        name = self.type_name
        found = getattr(builtins, name, None) or getattr(errors, name, None)
        if found is None and self.type_module and "<" not in name:
            try:
                found = importlib.import_module(self.type_module)
                for part in name.split("."):
                    found = getattr(found, part)
            except (ImportError, AttributeError):
                return None
        if not (isinstance(found, type) and issubclass(found, BaseException)):
            return None
        if issubclass(found, FiresteelError):
            return errors._rebuild(found, self.args, self.parts)
        try:
            return found(*self.args)
        except Exception:  # noqa: BLE001 - a class with a constructor of its own; the text has everything
            return None


def _is_json(value: object) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True
