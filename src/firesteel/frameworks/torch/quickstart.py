"""Torch's optimizers and DDP without torch's compiler, until somebody compiles.

Both import ``torch._dynamo`` only to tell it what not to trace: 1.3 s in every replica, at every start and after every
loss. A stand-in takes those calls. Whatever else is asked of it, by ``torch.compile`` or an import of one of its parts,
makes it step aside for the real module.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

__all__ = ["spare_the_compiler"]

_NAME = "torch._dynamo"
_lock = threading.RLock()


class _Part:
    """A part of the compiler, as far as DDP and ``init_process_group`` talk to it; all else is the real one's."""

    def __init__(self, owner: _StandIn, name: str, **answers: Any) -> None:
        self._owner, self._name = owner, name
        self.__dict__.update(answers)

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(self._owner.step_aside(), self._name), name)


class _StandIn(ModuleType):
    def __init__(self) -> None:
        super().__init__(_NAME)
        self.trace_rules = _Part(self, "trace_rules", clear_lru_cache=lambda: None)
        self.utils = _Part(self, "utils", get_optimize_ddp_mode=lambda: "ddp_optimizer")

    def graph_break(self, msg: str = "") -> None:
        """What tracing would stop at; nobody traces."""

    def disable(self, fn: Callable[..., Any], recursive: bool = True, **options: Any) -> Callable[..., Any]:
        """What tracing would leave alone. Looks again at each call, for by then somebody may trace."""

        def call(*args: Any, **kwargs: Any) -> Any:
            now: Any = sys.modules[_NAME]
            return (fn if now is self else now.disable(fn, recursive, **options))(*args, **kwargs)

        return call

    def step_aside(self) -> Any:
        """The real module, from now on in this one's place."""
        with _lock:
            if sys.modules.get(_NAME) is self:
                del sys.modules[_NAME]
            real = importlib.import_module(_NAME)
            torch._dynamo = real  # type: ignore[attr-defined]
            return real

    def __getattr__(self, name: str) -> Any:
        if name in ("__file__", "__wrapped__"):  # what inspection asks of any module
            raise AttributeError(name)
        return getattr(self.step_aside(), name)


def spare_the_compiler() -> None:
    """Put the stand-in where the compiler is not loaded yet."""
    with _lock:
        if _NAME not in sys.modules:
            sys.modules[_NAME] = _StandIn()
