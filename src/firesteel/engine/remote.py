"""Fit under Spark Connect: the same fit, with rank 0 in the driver's place and the client as its reader.

On rank 0 stands what the driver would do while the gang works: arrange, hand out rows, enter events in the log. On the
client the log is read out to the listener of ``engine.fit`` when all is over.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from firesteel.cluster.coordinator import Assignments, OnEvent, OnFetch, Reports
from firesteel.cluster.deadlines import Deadlines
from firesteel.cluster.eventlog import EventLog
from firesteel.cluster.failure import Budget, Failure, Incident
from firesteel.cluster.parcel import Parcel
from firesteel.cluster.preflight import cores_per_task
from firesteel.cluster.progress import Display
from firesteel.cluster.remote import NoTasks, launch_remote
from firesteel.cluster.travel import pack
from firesteel.core import registry
from firesteel.core.errors import PlanError, UnsupportedError
from firesteel.core.plan import Fit, Launch
from firesteel.core.spec import Batch
from firesteel.data.packed import as_buffers, unpack
from firesteel.data.reading import Reading
from firesteel.data.seating import Decoder, seat_by_shuffle, split_guests
from firesteel.data.sources import Frame, Local, Packed, Source, Streamed
from firesteel.data.spool import SpoolReader, SpoolWriter, files_for, spool_directory
from firesteel.engine.arrangement import Arrangement
from firesteel.engine.fit import make_job
from firesteel.engine.gather import packed
from firesteel.engine.job import FitJob, Stream, TaskCard, imports_ahead, seat_and_train
from firesteel.engine.listener import Listener, Outcome, Outputs
from firesteel.engine.newest import Newest
from firesteel.engine.relay import Relay

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from firesteel.cluster.seat import Seat

__all__ = ["fit_remote"]

_log = logging.getLogger(__name__)

_IDLE = (
    "{0} of {1} replicas have no rows to train on: under Spark Connect each takes whole partitions of the DataFrame, "
    "and there are too few; df.repartition({1}) would even that out"
)


def fit_remote(
    spark: SparkSession,
    plan: Fit,
    data: Source,
    validation: Source | None,
    outputs: Outputs,
    *,
    stream: Callable[[Streamed, int | None], Stream],
    config: dict[str, Any],
    deadlines: Deadlines | None = None,
) -> Outcome:
    """``engine.fit.fit`` through a Spark Connect session. Client only; returns when every replica has ended.

    Nothing is heard of the training on its way: history, files and checkpoints are there when it is over.
    """
    if plan.exchange.library == "horovod":
        raise UnsupportedError(
            "Horovod's ranks meet on the driver, which no task reaches under Spark Connect; "
            'backend="torch_distributed" works there, and learns the same'
        )
    world = plan.launch.world
    job = make_job(plan, data, validation, stream, config)
    given = {"train": data, "validation": validation}
    local = {name: _Arrays.of(spark, each.batch) for name, each in given.items() if isinstance(each, Local)}
    guests = {"validation": packed(validation)} if isinstance(validation, (Frame, Packed)) else {}
    rows, decoder, tensors = _rows(data)
    budget = Budget(infrastructure=plan.launch.max_failures, preemption=plan.launch.max_preemptions)
    keep = None if outputs.checkpoints is None else outputs.checkpoints.keep
    # Rank 0's task arranges the work of replicas without being one: it needs no model and no framework.
    outline = replace(job, plan=_without_program(job.plan), config=None, probe=None)
    outline = replace(
        outline, stream=_without_source(job.stream), validation_stream=_without_source(job.validation_stream)
    )
    threads = plan.launch.threads or cores_per_task(spark)
    card = TaskCard(b"", decoder, tensors, threads, job.probe, plan.device, imports_ahead(plan))
    _announce(plan, outputs.verbose)
    with Listener(plan, outputs, budget) as desk:
        try:
            launch_remote(
                seat_by_shuffle(spark, rows, guests, world),
                _train,
                _Ticket(Parcel.of(spark, [pack(job, "the program")]), card),
                partial(_FitChair, outline, plan.launch, local, validation is not None, keep),
                world=world,
                on_event=partial(_take, desk, budget),
                directory=spool_directory,
                packages=(*registry.framework(plan.program.framework).packages, *plan.exchange.packages),
                deadlines=deadlines,
                is_run_again=plan.launch.max_failures > 0,
            )
        except NoTasks:
            raise PlanError("the training data has no rows") from None
    return desk.outcome()


def _announce(plan: Fit, verbose: int) -> None:
    """A screen that stays empty for hours needs a word beforehand."""
    display = Display(plan.launch.world, plan.epochs, verbose)
    display.say(
        f"training on {plan.launch.world} replicas; under Spark Connect their epochs are shown when all are done"
    )
    display.close()


def _rows(data: Source) -> tuple[tuple[Any, list[Any]] | None, Decoder, tuple[str, ...]]:
    if isinstance(data, Frame):
        return (data.df, data.reading.select(data.df)), Decoder(data.reading), data.reading.files
    if isinstance(data, Packed):
        return (data.df, ["header", "data"]), Decoder(None), data.names
    return None, Decoder(Reading(())), ()


def _without_program(plan: Fit) -> Fit:
    program = replace(plan.program, content=None, state=None)
    return replace(plan, program=program, callbacks=(), metrics=None, checkpoint_trigger=None, validation=None)


def _without_source(stream: Stream | None) -> Stream | None:
    return None if stream is None else replace(stream, source=None, config={})


def _take(desk: Listener, budget: Budget, entry: dict[str, Any], buffers: list[bytearray]) -> None:
    """One entry of the log, on the client."""
    if entry["name"] == "event":
        desk.take(entry["rank"], entry["event"], buffers)
        return
    if entry["name"] == "warning":
        desk.warn(entry["text"])
        return
    if entry["name"] == "notice":
        _log.warning("%s", entry["text"])
        return
    budget.incidents[:] = map(_incident, entry["incidents"])
    if entry["name"] == "rewind":
        desk.rewind(entry["to"])


def _incident(entry: dict[str, Any]) -> Incident:
    return Incident(**{**entry, "failure": Failure.from_json(entry["failure"]), "ranks": set(entry["ranks"])})


# --- what travels -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Arrays:
    """Arrays of the client on their way to rank 0."""

    header: str
    parcel: Parcel

    @classmethod
    def of(cls, spark: SparkSession, batch: Batch) -> _Arrays:
        header, buffers = as_buffers(batch)
        return cls(header, Parcel.of(spark, buffers))

    def batch(self) -> Batch:
        """Them, mapped. Runs in a task."""
        return unpack(self.header, self.parcel.view())


@dataclass(frozen=True)
class _Ticket:
    """A task card whose payload is too large to travel inside it."""

    payload: Parcel
    card: TaskCard


def _train(seat: Seat, batches: Iterator[pa.RecordBatch], ticket: _Ticket) -> None:
    seat_and_train(seat, batches, replace(ticket.card, payload=ticket.payload.read()))


# --- rank 0 -----------------------------------------------------------------------------------------------------------


class _FitChair:
    """The driver's part of a fit, on rank 0 (see ``cluster.remote.Chair``). Also the listener of its arrangement."""

    def __init__(
        self,
        job: FitJob,
        launch: Launch,
        local: Mapping[str, _Arrays],
        has_validation: bool,
        keep: int | None,
        log: EventLog,
    ) -> None:
        self.budget = Budget(infrastructure=launch.max_failures, preemption=launch.max_preemptions)
        self._job, self._world, self._has_validation, self._keep, self._log = (
            job,
            launch.world,
            has_validation,
            keep,
            log,
        )
        self._relay = Relay()
        for name, arrays in local.items():
            self._relay.add(name, arrays.batch())
        self._guests: dict[str, SpoolWriter] = {}
        self._files = ExitStack()
        self._marks: dict[int, tuple[int, int]] = {}
        self._checkpoints: list[int] = []

    def rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rank's rows; the guests' go to the relay."""
        for rows in batches:
            own, guests = split_guests(rows)
            for name, partition, batch in guests:
                if name not in self._guests:
                    self._guests[name] = self._files.enter_context(SpoolWriter(files_for(batch)))
                self._guests[name].append(partition, batch)
            if own.num_rows:
                yield own
        for name, writer in self._guests.items():
            self._relay.add(name, _in_order(writer, self._files))

    def arrange(self, reports: Reports) -> Assignments:
        """As the driver would, from what the ranks hold."""
        if self._has_validation and self._job.validation_stream is None and not self._relay.has("validation"):
            raise PlanError("the validation data has no rows")
        found = [partition for report in reports for partition, _, _ in report["blocks"]]
        idle = sum(not report["blocks"] for report in reports)
        if found and idle:
            self._log.add({"name": "notice", "text": _IDLE.format(idle, self._world)})
        return Arrangement(
            self._world,
            max(found, default=-1) + 1,
            self._relay,
            self._job,
            self._has_validation,
            Newest(None),
            self,
            self._marks,
        ).arrange(reports)

    @property
    def on_event(self) -> OnEvent:
        """Into the log, but for what is of interest only while it happens."""
        return self._enter

    @property
    def on_fetch(self) -> OnFetch:
        """Rows."""
        return self._relay.answer

    def close(self) -> None:
        """The last word on losses, and no file left."""
        if self.budget.incidents:
            self._log.add({"name": "incidents", "incidents": self._incidents()})
        self._files.close()

    @property
    def is_again(self) -> bool:
        """See ``Listener``."""
        return bool(self.budget.incidents)

    def rewind(self, to: dict[str, Any]) -> None:
        """See ``Listener``."""
        self.budget.incidents[-1].step = to["step"]
        self._log.add({"name": "rewind", "to": to, "incidents": self._incidents()})

    def warn(self, text: str) -> None:
        """See ``Listener``."""
        self._log.add({"name": "warning", "text": text})

    def _incidents(self) -> list[dict[str, Any]]:
        return [{**asdict(each), "ranks": sorted(each.ranks)} for each in self.budget.incidents]

    def _enter(self, rank: int, event: dict[str, Any], buffers: list[bytearray]) -> None:
        if event["name"] == "progress":
            if self.budget.incidents and self.budget.incidents[-1].resumed is None:
                self.budget.incidents[-1].resumed = time.time()
            return
        number = self._log.add({"name": "event", "rank": rank, "event": event}, buffers)
        if event["name"] == "checkpoint":
            self._checkpoints.append(number)
            if self._keep is not None and len(self._checkpoints) > self._keep:
                self._log.drop(self._checkpoints.pop(0))


def _in_order(writer: SpoolWriter, files: ExitStack) -> Batch:
    """A guest's rows in the order of its partitions, whichever way they came."""
    assert writer.signature is not None
    arrays = SpoolReader(writer.descriptors, writer.signature, writer.blocks).arrays()
    ordered = sorted(writer.blocks, key=lambda block: block.partition)
    if list(writer.blocks) == ordered:
        return arrays
    again = files.enter_context(SpoolWriter(tuple(writer.descriptors)))
    for block in ordered:
        again.append(0, {name: values[block.begin : block.begin + block.rows] for name, values in arrays.items()})
    assert again.signature is not None
    return SpoolReader(again.descriptors, again.signature, again.blocks).arrays()
