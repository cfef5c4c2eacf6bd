"""A process that keeps a rank's seat after its Spark task has ended, so that the slot is free for whoever feeds it.

It is no child of the task's: Spark's Python worker may end at any time after the task. It lives exactly as long as its
connection to the coordinator, and no longer than the executor that it was started on.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import select
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import psutil

from firesteel.cluster.devices import task_gpus
from firesteel.cluster.seat import Aborted, Invitation, Seat, search_path
from firesteel.cluster.travel import pack, unpack
from firesteel.core.errors import ClusterError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["keep", "main"]

_log = logging.getLogger(__name__)

_BEGUN, _OVER = b"begun", b"over"
_LOOK_SECONDS = 1.0


def keep(
    task_main: Any, card: Any, invitation: Invitation, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The body of a Spark task whose seat is a keeper's: starts it, and ends once all ranks have begun."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    rank = invitation.first_rank + context.partitionId()
    recipe = (task_main, card, invitation, rank, context.taskAttemptId(), task_gpus(context))
    ours, theirs = os.pipe()
    try:
        with tempfile.TemporaryFile() as file:
            # It came inside the Spark closure, and goes on through a file without a name.
            file.write(pack(recipe, "the node"))
            file.seek(0)
            words = [str(number) for number in (file.fileno(), theirs, _executor() or 0)]
            starter = subprocess.Popen(
                [sys.executable, "-u", "-m", "firesteel.cluster.keeper", *words],
                stdin=subprocess.DEVNULL,
                stdout=2,
                pass_fds=(file.fileno(), theirs),
                start_new_session=True,  # PySpark's daemon ends its process group when it goes
                env={**os.environ, "PYTHONPATH": os.pathsep.join(search_path(invitation))},
            )
            os.close(theirs)
            theirs = -1
        starter.wait()
        with os.fdopen(ours, "rb", closefd=False) as stream:
            word = stream.read()
    finally:
        for descriptor in (ours, theirs):
            if descriptor >= 0:
                os.close(descriptor)
    if word not in (_BEGUN, _OVER):
        text = word.decode(errors="replace") or "it said nothing; the executor's stderr may say more"
        raise ClusterError(f"the process that keeps node {rank} could not start: {text}")
    yield from ()


def main() -> None:
    """Entry point of ``python -m firesteel.cluster.keeper``."""
    recipe, pipe, executor = (int(word) for word in sys.argv[1:])
    if os.fork():
        os._exit(0)  # the keeper itself is nobody's child
    word = _Word(pipe)
    try:
        with os.fdopen(recipe, "rb") as file:
            task_main, card, invitation, rank, task, gpus = unpack(file.read())
        _serve(task_main, card, invitation, rank, task, gpus, word, executor)
    except Aborted as aborted:
        _log.debug("the keeper leaves: %s", aborted)
        word.say(_OVER)
    except BaseException:  # whoever waits for it has to hear why
        word.say(traceback.format_exc().encode())
        raise
    sys.stderr.flush()
    os._exit(0)


def _serve(
    task_main: Any,
    card: Any,
    invitation: Invitation,
    rank: int,
    task: int,
    gpus: tuple[str, ...],
    word: _Word,
    executor: int,
) -> None:
    with Seat(invitation, rank, task) as seat:
        seat.gpus = gpus
        seat.on_begun = lambda: word.say(_BEGUN)
        if executor:
            threading.Thread(target=_end_with, args=(executor, seat), name="firesteel-executor", daemon=True).start()
        try:
            task_main(seat, iter(()), card)
        except Aborted:
            raise
        except Exception:
            word.say(_OVER)  # the driver hears of it from the seat
            raise


class _Word:
    """What the keeper has to say to the task that started it: one word, the first."""

    def __init__(self, pipe: int) -> None:
        self._pipe: int | None = pipe

    def say(self, word: bytes) -> None:
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            with contextlib.suppress(OSError):  # the task has gone
                os.write(pipe, word)
            os.close(pipe)


def _executor() -> int | None:
    """The number of the JVM that this task runs in."""
    with contextlib.suppress(psutil.Error):
        for parent in psutil.Process().parents():
            if parent.name().startswith("java"):
                return int(parent.pid)
    return None


def _end_with(executor: int, seat: Seat) -> None:
    """Leave when the executor has gone."""
    try:
        process = psutil.Process(executor)
        if hasattr(os, "pidfd_open"):
            descriptor = os.pidfd_open(executor)
            if process.is_running():  # the number is still the executor's
                select.select([descriptor], [], [])
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            threading.Event().wait(_LOOK_SECONDS)
    except (psutil.Error, OSError):
        pass  # gone already
    seat.leave("the executor has gone")


if __name__ == "__main__":
    # The module by its own name, which others import.
    importlib.import_module("firesteel.cluster.keeper").main()
