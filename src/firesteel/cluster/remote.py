"""The launch under Spark Connect: rank 0's task is the coordinator too, for nothing can reach the client.

The tasks run in barrier mode, and find rank 0's address by one allGather; from there on the protocol is the same as
with a coordinator on the driver. What would have been told to the driver is kept in a log, which comes back as the
job's rows when all is over.

Spark starts a barrier stage as a whole or not at all, and when one of its tasks is lost it runs the whole stage again
(three times at most): a gang that lost a task begins anew. A child that dies is replaced in place, as everywhere.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from firesteel.cluster.coordinator import Assignments, Coordinator, OnEvent, OnFetch, Reports
from firesteel.cluster.deadlines import Deadlines, setting
from firesteel.cluster.eventlog import LOG_SCHEMA, EventLog, replay
from firesteel.cluster.failure import Budget, Failure
from firesteel.cluster.launch import TaskMain, occupy
from firesteel.cluster.preflight import check_slots, cores_per_task, package_versions
from firesteel.cluster.seat import Invitation, Seat
from firesteel.cluster.tls import Certificate
from firesteel.cluster.tls import wanted as tls_wanted
from firesteel.core.errors import ClusterError, FiresteelError, NotEnoughSlots

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import BarrierTaskContext
    from pyspark.sql import DataFrame

__all__ = ["Chair", "NoTasks", "launch_remote"]

_WAIT_SECONDS = 0.2
_RECONNECT_SECONDS = 5.0
"""How long an empty seat waits: only a lost connection can come back to it, for Spark brings no single newcomer."""


class NoTasks(ClusterError):
    """Spark knows without a look that the frame has no rows, and makes no task of it."""


class Chair(Protocol):
    """What rank 0 does in the driver's place. Made on rank 0, in its task."""

    budget: Budget
    """Which losses the gang gets over."""

    def rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Rank 0's rows without those that are not for the rank but for the driver, which it keeps."""
        ...

    def arrange(self, reports: Reports) -> Assignments:
        """See ``Coordinator.arrange``; called once all ranks have read their rows."""
        ...

    @property
    def on_event(self) -> OnEvent:
        """See ``Coordinator``."""
        ...

    @property
    def on_fetch(self) -> OnFetch:
        """See ``Coordinator``."""
        ...

    def close(self) -> None:
        """The gang is gone."""
        ...


@dataclass(frozen=True)
class _Summons:
    """What all tasks need, whoever they are. Travels inside the closure."""

    task_main: TaskMain
    card: Any
    make_chair: Callable[[EventLog], Chair]
    directory: Callable[[], str]
    invitation: Invitation
    versions: dict[str, str]
    deadlines: Deadlines
    is_encrypted: bool


def launch_remote(
    frame: DataFrame,
    task_main: TaskMain,
    card: Any,
    make_chair: Callable[[EventLog], Chair],
    *,
    world: int,
    on_event: Callable[[dict[str, Any], list[bytearray]], None],
    directory: Callable[[], str] = tempfile.gettempdir,
    packages: Iterable[str] = (),
    deadlines: Deadlines | None = None,
    is_run_again: bool = True,
) -> None:
    """Run ``task_main`` on every partition of ``frame``, one rank each, all together. On the client of Spark Connect.

    Returns when all ranks are done. Raises what ended the launch, as ``cluster.launch`` does; and ``NoTasks``.

    Args:
        frame: has exactly ``world`` partitions; partition r is rank r.
        task_main: importable on the tasks.
        card: anything small that pickles; handed to ``task_main``.
        make_chair: importable on the tasks; what rank 0 does in the driver's place, given the log.
        world: how many ranks there are.
        on_event: takes what rank 0 has entered in the log, in that order, once all is over.
        directory: where rank 0 keeps the log meanwhile; called there, so importable on the tasks.
        packages: distributions whose versions must be the client's on every task.
        deadlines: as set in Spark's configuration unless given.
        is_run_again: whether Spark runs all ranks again, from the start, when a task is lost.
    """
    from pyspark import StorageLevel

    spark = frame.sparkSession
    packages = tuple(packages)
    deadlines = deadlines or Deadlines.of(lambda key: spark.conf.get(key, None))
    deadlines = replace(deadlines, reform_timeout_seconds=min(deadlines.reform_timeout_seconds, _RECONNECT_SECONDS))
    available = check_slots(spark, world)
    invitation = Invitation(
        "",
        0,
        secrets.token_bytes(32),
        world,
        packages,
        tuple(path for path in sys.path if path),
        cores_per_task(spark),
        deadlines.reform_timeout_seconds,
        keep_warm_seconds=deadlines.keep_warm_seconds,
    )
    is_encrypted = tls_wanted(lambda key: spark.conf.get(key, None))
    versions = package_versions(packages)
    summons = _Summons(task_main, card, make_chair, directory, invitation, versions, deadlines, is_encrypted)
    answers = frame.mapInArrow(partial(_take_part, summons), LOG_SCHEMA, barrier=True)
    verdict: list[dict[str, Any]] = []

    def take(event: dict[str, Any], buffers: list[bytearray]) -> None:
        if event["name"] == "end":
            verdict.append(event)
        else:
            on_event(event, buffers)

    try:
        # Spark runs a barrier stage again only where a shuffle follows. The log stays on the executors' disks, to be
        # fetched in pieces: the result of one task as large as a model ends a server with little memory. And whatever
        # happens then, it is not computed a second time.
        answers = answers.repartition("number") if is_run_again else answers
        log = answers.localCheckpoint(eager=True, storageLevel=StorageLevel.DISK_ONLY)
    except Exception as error:
        plain = _in_plain_words(error, world, available)
        if plain is error:
            raise
        raise plain from error
    replay(log, take)
    if not verdict:
        raise NoTasks("Spark's job ended without a word from replica 0")
    _raise_failure(verdict[-1])


def _raise_failure(event: dict[str, Any]) -> None:
    if event["failure"] is None:
        return
    error = Failure.from_json(event["failure"]).error()
    # What rank 0 raised in the driver's place is raised as it was, not as a replica's failure.
    if event["is_own"] and isinstance(error.__cause__, FiresteelError):
        raise error.__cause__
    raise error


def _in_plain_words(error: Exception, world: int, available: int) -> Exception:
    """Spark's error for a launch, where it means something else to us; else itself."""
    text = str(error)
    if "SPARK-24819" in text or "barrier stage that requires more slots" in text:
        hint = "Lower workers_per_node, or give the Connect server more cores."
        return NotEnoughSlots(world, available if available < world else world - 1, hint)
    if "barrier task" in text:
        first = next((line for line in text.splitlines() if "exited unexpectedly" in line or "Lost" in line), "")
        reason = (first.partition("SparkException: ")[2] or first or text).partition("\n")[0].partition(". ")[0]
        return ClusterError(f"a replica's task was lost, and Spark does not run them again: {reason}")
    return error


# --- what follows runs in the tasks -----------------------------------------------------------------------------------


def _take_part(summons: _Summons, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The body of each Spark task."""
    from pyspark import BarrierTaskContext

    context = BarrierTaskContext.get()
    if context.partitionId() == 0:
        yield from _preside(summons, context, batches)
        return
    host, port, certificate = json.loads(_gather(summons, context, "")[0])
    invitation = replace(summons.invitation, host=host, port=port, certificate=certificate)
    yield from occupy(summons.task_main, summons.card, invitation, batches)
    # Where replica 0's task is dead, Spark is about to end this one and to run all of them again. Were this one to end
    # well in that very moment, Spark would run replica 0's alone.
    context.barrier()


def _gather(summons: _Summons, context: BarrierTaskContext, text: str) -> list[str]:
    """What every task has to say. A task that waits for others in vain ends, and Spark runs all of them again."""
    limit = min(summons.deadlines.seat_timeout_seconds, threading.TIMEOUT_MAX)
    patience = threading.Timer(limit, os.kill, (os.getpid(), signal.SIGKILL))
    patience.daemon = True
    patience.start()
    try:
        return list(context.allGather(text))
    finally:
        patience.cancel()


def _preside(
    summons: _Summons, context: BarrierTaskContext, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Rank 0's task: the coordinator and a rank like the others; then the log."""
    wanted = summons.invitation
    # Spark's own address of this executor: the one that the other executors reach it by.
    own = context.getTaskInfos()[0].address.rpartition(":")[0]
    certificate = Certificate() if summons.is_encrypted else None
    with EventLog(summons.directory()) as log:
        chair = summons.make_chair(log)
        try:
            with Coordinator(
                wanted.world,
                wanted.secret,
                own,
                arrange=chair.arrange,
                on_event=chair.on_event,
                on_fetch=chair.on_fetch,
                versions=summons.versions,
                deadlines=summons.deadlines,
                budget=chair.budget,
                certificate=certificate,
            ) as coordinator:
                host, port = coordinator.address
                text = certificate.text if certificate else None
                _gather(summons, context, json.dumps([host, port, text]))
                attendant = threading.Thread(target=_attend, args=(coordinator,), name="firesteel-attend", daemon=True)
                attendant.start()
                invitation = replace(wanted, host=host, port=port, certificate=text)
                yield from occupy(partial(_with_chair, chair, summons.task_main), summons.card, invitation, batches)
                attendant.join()
                coordinator.wait_until_left()
                failure = coordinator.failure
        finally:
            chair.close()
        is_own = failure is not None and not isinstance(failure, Failure)
        if isinstance(failure, Exception):
            failure = Failure.of(failure, rank=0, host=own)
        log.add({"name": "end", "is_own": is_own, "failure": None if failure is None else failure.to_json()})
        context.barrier()
        yield from log.rows()


def _attend(coordinator: Coordinator) -> None:
    limit = coordinator.deadlines.seat_timeout_seconds
    end = time.monotonic() + limit
    while not coordinator.wait(_WAIT_SECONDS):
        if not coordinator.is_complete and time.monotonic() > end:
            host, port = coordinator.address
            coordinator.fail(
                ClusterError(
                    f"{coordinator.seated} of {coordinator.world} replicas came to replica 0 within {limit:g} s "
                    f"({setting('seat_timeout_seconds')}). Can the executors reach each other, at {host}:{port}?"
                )
            )
    coordinator.abort("the launch is over")


def _with_chair(chair: Chair, task_main: TaskMain, seat: Seat, batches: Iterator[pa.RecordBatch], card: Any) -> None:
    task_main(seat, chair.rows(batches), card)
