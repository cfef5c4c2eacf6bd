"""Faults on purpose: kill, raise, hang or starve one rank of a real training, at a moment that you name.

    with inject(Fault("kill child", rank=1, epoch=0, step=5)):
        history = estimator.fit(data, epochs=2)
    assert history.recoveries[0]["ranks"] == [1]

A fault strikes once: in the gang's first form (``generation=0``), unless told otherwise. Every process that is struck
leaves the time in ``struck()``, so that a test can say how long noticing took.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from firesteel.cluster.child import this_desk
from firesteel.core import moments
from firesteel.core.errors import PlanError, UnknownName

__all__ = ["KINDS", "Fault", "FaultInjected", "inject", "replicas"]

KINDS = {
    "kill child": "SIGKILL to the process that trains",
    "kill stem": "SIGKILL to the process that it was forked from",
    "kill worker": "SIGKILL to Spark's Python worker, the task",
    "kill all workers": "SIGKILL to the Python workers of all ranks: nobody survives",
    "kill executor": "SIGKILL to the executor's JVM",
    "terminate child": "SIGTERM to the process that trains: a preemption",
    "terminate worker": "SIGTERM to Spark's Python worker: a preemption",
    "exit": "the process ends by itself, with status 3 and no word",
    "segfault": "the process ends by SIGSEGV",
    "abort": "the process ends by SIGABRT, as a collective that lost its peers may end it",
    "raise": "an exception of the user's own code",
    "hang": "the process that trains stops moving for ever",
    "freeze worker": "SIGSTOP to Spark's Python worker: a host that hangs",
    "drop connection": "the task's connection to the driver is cut",
    "delay": "the rank is late by ``seconds``",
    "fill disk": "no file of this process may grow any more",
    "corrupt checkpoint": "the newest checkpoint in ``path`` is damaged",
}
"""What a fault can do."""


class FaultInjected(RuntimeError):
    """What ``Fault("raise", …)`` raises."""


@dataclass(frozen=True)
class Fault:
    """One fault.

    Args:
        kind: one of ``KINDS``.
        rank: whom it strikes.
        moment: one of ``firesteel.core.moments.MOMENTS``.
        epoch, step: how many must be done (both counted from the training's first); ``None`` = any.
        generation: in which form of the gang; 0 = the first.
        seconds: for ``"delay"``.
        path: for ``"corrupt checkpoint"``: the ``model_dir``.
    """

    kind: str
    rank: int = 0
    moment: str = "step"
    epoch: int | None = None
    step: int | None = None
    generation: int = 0
    seconds: float = 2.0
    path: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UnknownName("fault", self.kind, KINDS)
        if self.moment not in moments.MOMENTS:
            raise UnknownName("moment", self.moment, moments.MOMENTS)
        if self.kind == "corrupt checkpoint" and self.path is None:
            raise PlanError('Fault("corrupt checkpoint") needs path, the model_dir')

    def is_now(self, name: str, rank: int, generation: int, epoch: int, step: int) -> bool:
        """Whether this is its moment."""
        is_there = (name, rank, generation) == (self.moment, self.rank, self.generation)
        return is_there and self.epoch in (None, epoch) and self.step in (None, step)


class Injector:
    """The probe that carries faults into tasks and children. Only paths and values: it travels."""

    def __init__(self, faults: tuple[Fault, ...], folder: str) -> None:
        self.faults = faults
        self.folder = folder

    def __call__(self, name: str, *, rank: int, generation: int, epoch: int, step: int) -> None:
        if name == "join":
            Path(self.folder, f"worker of {rank}").write_text(str(_worker().pid))
        for number, fault in enumerate(self.faults):
            if fault.is_now(name, rank, generation, epoch, step) and self._is_first(number):
                if fault.kind == "kill all workers":
                    workers = [int(path.read_text()) for path in Path(self.folder).glob("worker of *")]
                    own = _worker().pid
                    for worker in sorted(workers, key=lambda pid: pid == own):  # our own last: we die with it
                        os.kill(worker, signal.SIGKILL)
                _strike(fault)

    def struck(self) -> list[dict[str, Any]]:
        """The faults that have struck so far, with their ``time``."""
        notes = [json.loads(path.read_text()) for path in sorted(Path(self.folder).glob("*.json"))]
        return sorted(notes, key=lambda note: note["time"])

    def _is_first(self, number: int) -> bool:
        """Note the time. A fault strikes once, though a moment may come again and again."""
        note = json.dumps({**asdict(self.faults[number]), "time": time.time(), "pid": os.getpid()})
        try:
            with open(os.path.join(self.folder, f"{number}.json"), "x") as file:
                file.write(note)
        except FileExistsError:
            return False
        return True


@contextlib.contextmanager
def inject(*faults: Fault) -> Iterator[Injector]:
    """Fits that are started inside meet these faults. On one machine: the folder of notes must be everybody's."""
    with tempfile.TemporaryDirectory(prefix="firesteel-faults-") as folder:
        injector = Injector(faults, folder)
        moments.install(injector)
        try:
            yield injector
        finally:
            moments.install(None)


def replicas() -> list[psutil.Process]:
    """The processes that train and descend from this one: none are left when a fit has ended, however it did."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # ended meanwhile
            if "firesteel.cluster.child" in process.cmdline():
                found.append(process)
    return found


def _strike(fault: Fault) -> None:
    child, worker = psutil.Process(), _worker()
    match fault.kind:
        case "corrupt checkpoint":
            assert fault.path is not None
            _damage_newest(fault.path)
        case "kill child":
            child.send_signal(signal.SIGKILL)
        case "kill stem":
            os.kill(os.getppid(), signal.SIGKILL)
        case "kill worker":
            worker.send_signal(signal.SIGKILL)
        case "kill executor":
            _executor_of(worker).send_signal(signal.SIGKILL)
        case "terminate child":
            child.send_signal(signal.SIGTERM)
        case "terminate worker":
            worker.send_signal(signal.SIGTERM)
        case "exit":
            os._exit(3)
        case "segfault":
            child.send_signal(signal.SIGSEGV)
        case "abort":
            os.abort()
        case "raise":
            raise FaultInjected(f"injected at {fault.moment}")
        case "hang":
            while True:
                time.sleep(3600)
        case "freeze worker":
            worker.send_signal(signal.SIGSTOP)
        case "drop connection":
            _drop_connection()
        case "delay":
            time.sleep(fault.seconds)
        case "fill disk":
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    if fault.kind.startswith(("kill", "terminate", "freeze")):
        time.sleep(30)  # signals to others arrive when they do; nothing more happens here until then


def _worker() -> psutil.Process:
    """Spark's Python worker, from inside it or from the process that trains for it."""
    desk = this_desk()
    return psutil.Process(None if desk is None else desk.task)


def _executor_of(worker: psutil.Process) -> psutil.Process:
    """The JVM above Spark's Python daemon."""
    for process in worker.parents():
        if "java" in process.name():
            return process
    raise PlanError(f"no JVM above process {worker.pid}")


def _drop_connection() -> None:
    desk = this_desk()
    if desk is None:
        raise PlanError("a connection can be dropped at the moments of a child only")
    desk.hang_up()


def _damage_newest(model_dir: str) -> None:
    newest = max(Path(model_dir).rglob("model.*"), key=lambda path: int(path.suffix[1:]))
    data = bytearray(newest.read_bytes())
    data[-1] ^= 0xFF
    newest.write_bytes(data)
