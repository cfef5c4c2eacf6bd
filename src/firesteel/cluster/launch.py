"""Run one function on N Spark tasks at the same time, and hear from all of them.

Plain tasks, not barrier mode: each rank is one task of one ordinary stage. The coordinator makes them a gang.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from firesteel.cluster.batches import in_small_batches
from firesteel.cluster.coordinator import Assignments, Coordinator, OnEvent, OnFetch, OnVisit, Reports
from firesteel.cluster.deadlines import Deadlines, setting
from firesteel.cluster.devices import task_gpus
from firesteel.cluster.failure import Budget, Failure
from firesteel.cluster.keeper import keep
from firesteel.cluster.preflight import (
    bind_address,
    check_slots,
    cores_per_task,
    driver_address,
    is_decommissioning,
    package_versions,
)
from firesteel.cluster.seat import Aborted, Invitation, Seat, UpstreamFailed
from firesteel.cluster.tls import Certificate, wanted
from firesteel.cluster.wire import Buffer
from firesteel.core.errors import ClusterError, NotEnoughSlots

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Form", "Job", "Lost", "TaskMain", "launch", "occupy", "place", "whole_input"]

_log = logging.getLogger(__name__)

TaskMain = Callable[[Seat, Iterator["pa.RecordBatch"], Any], None]
"""What each task does with its seat and its rows: an importable function; the last argument is the launch's card."""

_WAIT_SECONDS = 0.2
_LOOK_SECONDS = 1.0
_SETTLE_SECONDS = 1.0
_END_SECONDS = 5.0
_TOLD_MILLISECONDS = 2_000
_MOST_TASKS = 1_000
_ROW_SCHEMA = "rank int"


@dataclass(frozen=True)
class Form:
    """What is different where ranks are the nodes of a cluster, with a program of their own, and no gang of replicas.

    Args:
        is_gang: all ranks run at the same time and begin together; else as slots come.
        is_kept: ranks outlive their tasks (``cluster.keeper``), whose slots are free once all have begun.
        leaves_early: a rank that is done goes, and frees its slot.
        reconnects: a rank whose connection is lost may come back.
        first_rank: of the first task; the ranks before it are seated by the caller.
        address: of the coordinator, where it is not to be Spark's own.
        ports: of the coordinator.
        on_visit: see ``Coordinator``.
        on_open: called when ranks can take their seats, before any has.
        judge: may say more about a failure before it ends the launch.
        is_wanted: asked while other launches hold the slots; ``Aborted`` is raised when nobody waits for this one.
        hint: what to do about too few slots.
    """

    is_gang: bool = True
    is_kept: bool = False
    leaves_early: bool = False
    reconnects: bool = True
    first_rank: int = 0
    address: str | None = None
    ports: tuple[int, ...] = (0,)
    on_visit: OnVisit | None = None
    on_open: Callable[[Coordinator, Invitation], None] | None = None
    judge: Callable[[Failure], Failure] | None = None
    is_wanted: Callable[[], bool] | None = None
    hint: str | None = None


class Lost(ClusterError):
    """A launch ended for a loss that may be got over by another launch, from the newest state there is.

    Attributes:
        remaining: how many ranks to launch with.
        note, buffers: what a surviving rank kept; nothing when none survived.
    """

    def __init__(self, remaining: int, note: dict[str, Any] | None = None, buffers: Sequence[Buffer] = ()) -> None:
        super().__init__(f"the gang was lost; {remaining} replicas may go on")
        self.remaining = remaining
        self.note = note
        self.buffers = buffers


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
    budget: Budget | None = None,
    min_workers: int | None = None,
    form: Form | None = None,
) -> None:
    """Run ``task_main`` on every partition of ``frame``, one rank each, all together. Driver only.

    Returns when all ranks are done. Raises what ended the launch: a user's error as ``ReplicaFailed`` with the
    replica's traceback, Spark's own exception where the rows could not be computed, ``NotEnoughSlots``.
    On the way out, also by Ctrl-C, every task has left and every child is gone.

    Args:
        frame: has exactly ``world`` partitions; partition r is rank r.
        task_main: importable on the tasks.
        card: anything small that pickles; handed to ``task_main``.
        world: how many ranks there are.
        arrange: turns all ranks' reports into their assignments.
        on_event: takes what ranks tell the driver; called by one thread at a time.
        on_fetch: answers a rank's request for data that lives on the driver.
        on_wait: called several times a second in the calling thread, for progress.
        packages: distributions whose versions must be the driver's on every task.
        deadlines: as set in Spark's configuration unless given.
        budget: which losses of ranks are got over; none unless given.
        min_workers: with how many ranks it may go on when nobody takes a lost one's seat; default all.
        form: what is different where ranks are not one gang of replicas.

    Raises ``Lost`` too, where only another launch can go on.
    """
    spark = frame.sparkSession
    form = form or Form()
    tasks = world - form.first_rank
    packages = tuple(packages)
    deadlines = deadlines or Deadlines.of(lambda key: spark.conf.get(key, None))
    secret = secrets.token_bytes(32)
    certificate = Certificate() if wanted(lambda key: spark.conf.get(key, None)) else None
    address = form.address or driver_address(spark)
    with (
        _slots_of(spark).held(*_wanted_slots(spark, tasks, form), form.is_wanted) as held,
        Coordinator(
            world,
            secret,
            address,
            bind=form.address or bind_address(spark),
            arrange=arrange,
            on_event=on_event,
            on_fetch=on_fetch,
            versions=package_versions(packages),
            deadlines=deadlines,
            budget=budget,
            min_workers=min_workers,
            judge=partial(_judge, spark, form.judge),
            evict=partial(_evict, spark),
            certificate=certificate,
            on_visit=form.on_visit,
            is_gang=form.is_gang,
            ports=form.ports,
        ) as coordinator,
    ):
        host, port = coordinator.address
        invitation = Invitation(
            host,
            port,
            secret,
            world,
            packages,
            tuple(path for path in sys.path if path),
            cores_per_task(spark),
            deadlines.reform_timeout_seconds if form.reconnects else 0.0,
            certificate.text if certificate else None,
            form.first_rank,
            form.leaves_early,
            form.is_kept,
            deadlines.keep_warm_seconds,
        )
        if form.on_open is not None:
            form.on_open(coordinator, invitation)
        job = Job(frame, partial(keep if form.is_kept else occupy, task_main, card, invitation))
        try:
            _attend(coordinator, job, on_wait, form, held)
            if coordinator.is_short_handed:
                raise Lost(coordinator.seated, *coordinator.collect())
        finally:
            coordinator.abort("the launch is over")
            coordinator.wait_until_left()
            job.end(patient=coordinator.failure is None)
        failure = coordinator.failure
        if isinstance(failure, Failure):
            error = failure.error()
            if job.error is not None and error.__cause__ is None:
                error.__cause__ = job.error  # what Spark has to say about the dead process
            raise error
        if failure is not None:
            raise failure


def _wanted_slots(spark: SparkSession, tasks: int, form: Form) -> tuple[int, int]:
    """How many to hold, of how many. ``NotEnoughSlots`` where ranks that must run together cannot."""
    return (tasks, check_slots(spark, tasks, form.hint)) if form.is_gang else (0, 0)


def _attend(
    coordinator: Coordinator, job: Job, on_wait: Callable[[Coordinator], None] | None, form: Form, held: _Held
) -> None:
    """Wait for the end, whichever comes first: all done, a failure, Spark's own error, a deadline."""
    waiting = _SeatWait(coordinator, job)
    while not coordinator.wait(_WAIT_SECONDS):
        if on_wait is not None:
            on_wait(coordinator)
        if _is_past_its_tasks(coordinator, job, form):
            held.give_back()
        elif job.is_over and not coordinator.wait(_SETTLE_SECONDS):
            if coordinator.is_reforming and not coordinator.is_starved and job.gave_up:
                # Spark gave up on the lost task (or never tries twice, as in local[2]). It is about to end the others
                # too, but lets them live for a moment.
                raise Lost(coordinator.world, *coordinator.collect()) from job.error
            host, port = coordinator.address
            place(job, coordinator.starved)
            coordinator.fail(
                job.error
                or ClusterError(
                    f"Spark's job ended while {coordinator.seated} of {coordinator.world} replicas had been seated. "
                    f"Can the executors reach the driver at {host}:{port} (spark.driver.host)?"
                )
            )
        elif (missing := waiting.overdue()) is not None:
            coordinator.fail(missing)
    failure = coordinator.failure
    if not isinstance(failure, Failure):
        return
    if failure.kind == "infrastructure":  # Spark knows more about a task that died, and says so when the job ends
        job.join(_SETTLE_SECONDS)


def place(job: Job, starved: dict[int, str]) -> None:
    """Let Spark's error know whose rows it was about: whose task misses some, or, where none came to say so, failed."""
    if job.error is not None and (found := starved or job.failed_tasks()):
        job.error.rank, job.error.host = min(found.items())  # type: ignore[attr-defined]


def _is_past_its_tasks(coordinator: Coordinator, job: Job, form: Form) -> bool:
    """Whether the tasks have done all they had to, and what still runs does so without them."""
    if not job.is_over or job.error is not None:
        return False
    if form.is_kept:
        return coordinator.is_complete
    return form.first_rank > 0 and coordinator.done.issuperset(range(form.first_rank, coordinator.world))


class _SeatWait:
    """How long nobody has taken a seat for want of slots: not while earlier stages of the job still compute."""

    def __init__(self, coordinator: Coordinator, job: Job) -> None:
        self._coordinator = coordinator
        self._job = job
        self._seated = 0
        self._since = self._looked = time.monotonic()

    def overdue(self) -> NotEnoughSlots | None:
        """The error, once ``seat_timeout_seconds`` have passed."""
        now, seated, world = time.monotonic(), self._coordinator.seated, self._coordinator.world
        if seated > self._seated:
            self._seated, self._since = seated, now
        elif seated < world and now - self._looked > _LOOK_SECONDS:
            self._looked = now
            # Earlier stages, or a task on its way to its seat.
            if self._job.running_tasks() > seated + self._coordinator.silenced:
                self._since = now
                self._coordinator.be_patient()
        limit = self._coordinator.deadlines.seat_timeout_seconds
        if self._coordinator.is_complete or now - self._since < limit:
            return None
        return NotEnoughSlots(
            world,
            seated,
            f"{seated} of {world} replicas were seated within {limit:g} s ({setting('seat_timeout_seconds')}): "
            f"other jobs may hold the slots.",
        )


class Job:
    """The Spark job of a launch, running in a thread of its own so that the caller can be interrupted."""

    def __init__(self, frame: DataFrame, body: Callable[..., Any]) -> None:
        from pyspark.util import InheritableThread

        self.error: Exception | None = None
        self.is_over = False
        self._context = frame.sparkSession.sparkContext
        self._frame = frame
        self._body = body
        self._tag = f"firesteel-{secrets.token_hex(6)}"
        self._is_cancelled = False
        self._thread = InheritableThread(target=self._run, daemon=True)
        self._thread.start()

    def join(self, seconds: float) -> None:
        """Wait for the job's end, at most so long."""
        self._thread.join(seconds)

    @property
    def gave_up(self) -> bool:
        """Whether Spark ended it for tasks that failed, and not because somebody cancelled it."""
        return "aborted due to stage failure" in str(self.error)

    def running_tasks(self) -> int:
        """How many tasks Spark runs for this job now."""
        return sum(int(stage.numActiveTasks()) for stage in self._stages())

    def failed_tasks(self) -> dict[int, str]:
        """Tasks that failed, by number, and their hosts, as far as Spark remembers.

        Spark's error does not name its task. A task is known to have failed once all that Spark has to tell has been
        told, which is a moment later.
        """
        from py4j.protocol import Py4JError

        spark = self._context._jsc.sc()
        failed = {}
        with contextlib.suppress(Py4JError):  # no API of Spark's that is promised
            spark.listenerBus().waitUntilEmpty(_TOLD_MILLISECONDS)
            for stage in self._stages():
                tasks = spark.statusStore().taskList(stage.stageId(), stage.currentAttemptId(), _MOST_TASKS)
                for task in (tasks.apply(place) for place in range(tasks.size())):
                    if task.status() == "FAILED":
                        failed[int(task.index())] = str(task.host())
        return failed

    def _stages(self) -> Iterator[Any]:
        status = self._context._jsc.sc().statusTracker()
        for number in status.getJobIdsForTag(self._tag):
            job = status.getJobInfo(number)
            for stage in job.get().stageIds() if job.isDefined() else ():
                found = status.getStageInfo(stage)
                if found.isDefined():
                    yield found.get()

    def end(self, *, patient: bool) -> None:
        """Cancel what still runs and wait for it. A task may wait for a row that is long in coming."""
        self._thread.join(_END_SECONDS if patient else _SETTLE_SECONDS)
        if not self.is_over:
            self._is_cancelled = True
            self._context.cancelJobsWithTag(self._tag)
            self._thread.join(_END_SECONDS)

    def _run(self) -> None:
        context = self._context
        context.addJobTag(self._tag)
        context.setInterruptOnCancel(True)  # else a task that waits for rows outlives its job by seconds
        try:
            in_small_batches(self._frame).mapInArrow(self._body, _ROW_SCHEMA).collect()
        except Exception as error:  # noqa: BLE001 - handed to the thread that waits
            if not self._is_cancelled:
                self.error = error
        finally:
            self.is_over = True
            context.removeJobTag(self._tag)


def occupy(
    task_main: TaskMain, card: Any, invitation: Invitation, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The body of each Spark task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    try:
        rank = invitation.first_rank + context.partitionId()
        with Seat(invitation, rank, context.taskAttemptId()) as seat, _last_will(seat):
            seat.gpus = task_gpus(context)
            task_main(seat, whole_input(batches), card)
    except Aborted as aborted:
        _log.debug("rank %d leaves: %s", context.partitionId(), aborted)
    except UpstreamFailed as error:
        raise (error.__cause__ or error) from None
    except Exception as error:
        # The seat has told the driver, which raises it there. Were it raised here too, Spark would run it again:
        # just what a disk that is full calls for, perhaps elsewhere, and nothing else does.
        if Failure.of(error, rank=context.partitionId(), host="").kind == "infrastructure":
            raise
        _log.debug("rank %d failed: %s", context.partitionId(), error)
    yield from ()


@contextlib.contextmanager
def _last_will(seat: Seat) -> Iterator[None]:
    """While inside, a SIGTERM (a host that is taken away) is told to the driver before it has its way."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def tell_and_die(number: int, frame: object) -> None:
        failure = Failure("preemption", seat.rank, seat.host, "its task was told to end (SIGTERM)")
        teller = threading.Thread(target=seat.report, args=(failure,), daemon=True)  # the link may be in use right here
        teller.start()
        teller.join(_SETTLE_SECONDS)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    before = signal.signal(signal.SIGTERM, tell_and_die)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _judge(spark: SparkSession, more: Callable[[Failure], Failure] | None, failure: Failure) -> Failure:
    """A loss on a host that Spark is taking away is nobody's fault."""
    failure = failure if more is None else more(failure)
    if failure.kind == "infrastructure" and is_decommissioning(spark):
        return replace(failure, kind="preemption")
    return failure


def _evict(spark: SparkSession, task: int) -> None:
    """Let Spark end a task attempt and start another one, which does not count as a failure."""
    try:
        spark.sparkContext._jsc.sc().killTaskAttempt(task, True, "firesteel: it is silent")
    except Exception as error:  # noqa: BLE001 - it may have ended meanwhile; then Spark knows what to do
        _log.warning("task %d could not be ended: %s", task, error)


def whole_input(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A task's rows; ``UpstreamFailed`` where Spark could not compute all of them."""
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            break
        except Exception as error:
            raise UpstreamFailed(str(error)) from error
        yield batch
    if _is_input_cut():
        raise UpstreamFailed("Spark could not compute all rows of this task")


def _is_input_cut() -> bool:
    """Whether Spark broke off the input of this task's Python, which has read all record batches there are.

    When the rows' own computation fails (a user's UDF), Spark shuts the stream down between two record batches, and
    Arrow takes that for its end: a replica would train on some of its rows. What tells the two apart is that after a
    whole stream Spark has more to say. The stream is a local variable of PySpark's worker; with a future PySpark where
    it is not found, only Spark's own report of the failure is left.
    """
    frame = inspect.currentframe()
    while frame is not None:
        stream: Any = frame.f_locals.get("infile") if frame.f_code.co_name == "main" else None
        if hasattr(stream, "peek"):
            return not stream.peek(1)
        frame = frame.f_back
    return False


class _Slots:
    """Task slots that launches of this process hold: two gangs with half their seats each would starve each other."""

    def __init__(self) -> None:
        self._held = 0
        self._change = threading.Condition()

    def held(self, count: int, total: int, is_wanted: Callable[[], bool] | None = None) -> _Held:
        return _Held(self, count, total, is_wanted)

    def take(self, count: int, total: int, is_wanted: Callable[[], bool] | None) -> None:
        with self._change:
            while self._held > 0 and self._held + count > total:
                self._change.wait(_WAIT_SECONDS)  # in slices, so that Ctrl-C gets through
                if is_wanted is not None and not is_wanted():
                    raise Aborted("nobody waits for this launch any more")
            self._held += count

    def give_back(self, count: int) -> None:
        with self._change:
            self._held -= count
            self._change.notify_all()


class _Held:
    def __init__(self, slots: _Slots, count: int, total: int, is_wanted: Callable[[], bool] | None) -> None:
        self._slots, self._count, self._total, self._is_wanted = slots, count, total, is_wanted

    def __enter__(self) -> _Held:
        self._slots.take(self._count, self._total, self._is_wanted)
        return self

    def __exit__(self, *exc: object) -> None:
        self.give_back()

    def give_back(self) -> None:
        """Before the end, where the tasks are over already. May be called twice."""
        count, self._count = self._count, 0
        if count:
            self._slots.give_back(count)


_slots_by_application: dict[str, _Slots] = {}
_slots_lock = threading.Lock()


def _slots_of(spark: SparkSession) -> _Slots:
    with _slots_lock:
        return _slots_by_application.setdefault(spark.sparkContext.applicationId, _Slots())
