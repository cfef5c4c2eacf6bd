"""Run one function on N Spark tasks at the same time, and hear from all of them.

Plain tasks, not barrier mode: each rank is one task of one ordinary stage. The coordinator makes them a gang.
"""

from __future__ import annotations

import logging
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from firesteel.cluster.coordinator import Assignments, Coordinator, Deadlines, OnEvent, OnFetch, Reports
from firesteel.cluster.failure import Failure
from firesteel.cluster.preflight import check_slots, cores_per_task, driver_address, package_versions
from firesteel.cluster.seat import Aborted, Invitation, Seat, UpstreamFailed
from firesteel.core.errors import ClusterError, NotEnoughSlots

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["TaskMain", "launch"]

_log = logging.getLogger(__name__)

TaskMain = Callable[[Seat, Iterator["pa.RecordBatch"], Any], None]
"""What each task does with its seat and its rows: an importable function; the last argument is the launch's card."""

_WAIT_SECONDS = 0.2
_JOB_ERROR_SECONDS = 5.0
_ROW_SCHEMA = "rank int"


def launch(
    frame: DataFrame,
    task_main: TaskMain,
    card: Any,
    *,
    world: int,
    arrange: Callable[[Reports], Assignments],
    on_event: OnEvent,
    on_fetch: OnFetch | None = None,
    on_wait: Callable[[Coordinator], None] | None = None,
    packages: Iterable[str] = (),
    deadlines: Deadlines | None = None,
) -> None:
    """Run ``task_main`` on every partition of ``frame``, one rank each, all together. Driver only.

    Returns when all ranks are done. Raises what ended the launch: a user's error as ``ReplicaFailed`` with the
    replica's traceback, Spark's own exception where the rows could not be computed, ``NotEnoughSlots``.
    On the way out, also by Ctrl-C, every task has left and every child is gone.

    Args:
        frame: has exactly ``world`` partitions; partition r is rank r.
        task_main: importable on the tasks.
        card: anything small that pickles; handed to ``task_main``.
        on_wait: called several times a second in the calling thread, for progress.
    """
    spark = frame.sparkSession
    packages = tuple(packages)
    deadlines = deadlines or Deadlines()
    secret = secrets.token_bytes(32)
    tag = f"firesteel-{secrets.token_hex(6)}"
    with (
        _slots_of(spark).held(world, check_slots(spark, world)),
        Coordinator(
            world,
            secret,
            driver_address(spark),
            arrange=arrange,
            on_event=on_event,
            on_fetch=on_fetch,
            versions=package_versions(packages),
            deadlines=deadlines,
        ) as coordinator,
    ):
        host, port = coordinator.address
        invitation = Invitation(
            host, port, secret, world, packages, tuple(path for path in sys.path if path), cores_per_task(spark)
        )
        job = _Job(spark, frame, partial(_occupy, task_main, card, invitation), tag)
        try:
            _attend(coordinator, job, on_wait)
        finally:
            coordinator.abort("the launch is over")
            coordinator.wait_until_left()
            job.end()
        failure = coordinator.failure
        if isinstance(failure, Failure):
            if failure.kind == "infrastructure" and job.error is not None:
                raise job.error
            raise failure.error()
        if failure is not None:
            raise failure
        if job.error is not None:
            raise job.error


def _attend(coordinator: Coordinator, job: _Job, on_wait: Callable[[Coordinator], None] | None) -> None:
    """Wait for the end, whichever comes first: all done, a failure, Spark's own error, a deadline."""
    while not coordinator.wait(_WAIT_SECONDS):
        if on_wait is not None:
            on_wait(coordinator)
        limit = coordinator.deadlines.seat_timeout_seconds
        if coordinator.waited_for_seats > limit:
            coordinator.fail(
                NotEnoughSlots(
                    coordinator.world,
                    coordinator.seated,
                    f"Only so many replicas were seated within {limit:.0f} s (seat_timeout_seconds): other jobs may hold the slots.",
                )
            )
        if job.is_over and not coordinator.wait(1.0):
            error = ClusterError(
                f"Spark's job ended while {coordinator.seated} of {coordinator.world} replicas had been seated"
            )
            coordinator.fail(error if job.error is None else _as_failure(job.error))
    if isinstance(coordinator.failure, Failure) and coordinator.failure.kind == "infrastructure":
        # A task that dies because its rows cannot be computed looks like a dead process; Spark knows better.
        end = time.monotonic() + _JOB_ERROR_SECONDS
        while not job.is_over and job.has_failed_task() is False and time.monotonic() < end:
            job.join(_WAIT_SECONDS)
        job.join(_WAIT_SECONDS)


def _as_failure(error: BaseException) -> Failure:
    return Failure("infrastructure", -1, "?", str(error))


class _Job:
    """The Spark job of a launch, running in a thread of its own so that the caller can be interrupted."""

    def __init__(self, spark: SparkSession, frame: DataFrame, body: Callable[..., Any], tag: str) -> None:
        from pyspark.util import InheritableThread

        self.error: BaseException | None = None
        self.is_over = False
        self._spark = spark
        self._frame = frame
        self._body = body
        self._tag = tag
        self._is_cancelled = False
        self._thread = InheritableThread(target=self._run, daemon=True)
        self._thread.start()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def has_failed_task(self) -> bool:
        return self.is_over

    def end(self) -> None:
        """Cancel what still runs and wait for it."""
        if not self.is_over:
            self._thread.join(1.0)
        if not self.is_over:
            self._is_cancelled = True
            self._spark.sparkContext.cancelJobsWithTag(self._tag)
            self._thread.join(_JOB_ERROR_SECONDS)

    def _run(self) -> None:
        context = self._spark.sparkContext
        context.addJobTag(self._tag)
        try:
            self._frame.mapInArrow(self._body, _ROW_SCHEMA).collect()
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
            if not self._is_cancelled:
                self.error = error
        finally:
            self.is_over = True
            context.removeJobTag(self._tag)


def _occupy(
    task_main: TaskMain, card: Any, invitation: Invitation, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The body of each Spark task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    try:
        with Seat(invitation, context.partitionId(), context.attemptNumber()) as seat:
            task_main(seat, _rows(batches), card)
    except Aborted:
        pass
    except UpstreamFailed as error:
        raise (error.__cause__ or error) from None
    except Exception as error:  # noqa: BLE001
        # The seat has told the driver, which raises it there. Were it raised here too, Spark would run it again.
        _log.debug("rank %d failed: %s", context.partitionId(), error)
    yield from ()


def _rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            return
        except Exception as error:
            raise UpstreamFailed(str(error)) from error
        yield batch


class _Slots:
    """Task slots that launches of this process hold, so that two gangs never starve each other with half their seats."""

    def __init__(self) -> None:
        self._held = 0
        self._change = threading.Condition()

    def held(self, count: int, total: int) -> _Held:
        return _Held(self, count, total)

    def take(self, count: int, total: int) -> None:
        with self._change:
            while self._held > 0 and self._held + count > total:
                self._change.wait(_WAIT_SECONDS)  # in slices, so that Ctrl-C gets through
            self._held += count

    def give_back(self, count: int) -> None:
        with self._change:
            self._held -= count
            self._change.notify_all()


class _Held:
    def __init__(self, slots: _Slots, count: int, total: int) -> None:
        self._slots, self._count, self._total = slots, count, total

    def __enter__(self) -> None:
        self._slots.take(self._count, self._total)

    def __exit__(self, *exc: object) -> None:
        self._slots.give_back(self._count)


_slots_by_application: dict[str, _Slots] = {}
_slots_lock = threading.Lock()


def _slots_of(spark: SparkSession) -> _Slots:
    with _slots_lock:
        return _slots_by_application.setdefault(spark.sparkContext.applicationId, _Slots())
