"""Fit on the driver: seat the rows, launch the gang, listen, write what has to be on disk."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from firesteel.cluster.coordinator import Coordinator, Deadlines
from firesteel.cluster.failure import Budget
from firesteel.cluster.launch import Lost, launch
from firesteel.cluster.preflight import cores_per_task
from firesteel.cluster.progress import Display
from firesteel.cluster.travel import pack
from firesteel.core import moments, registry
from firesteel.core.errors import PlanError, SchemaError
from firesteel.core.plan import Fit, Position
from firesteel.data.reading import Reading
from firesteel.data.seating import Decoder, Seated, seat
from firesteel.data.sources import Frame, Local, Packed, Source, Streamed
from firesteel.engine.checkpoint import Checkpoint, CheckpointFolder
from firesteel.engine.files import write_bytes
from firesteel.engine.gather import gather
from firesteel.engine.history import History, Summaries
from firesteel.engine.job import FitJob, Stream, TaskCard, seat_and_train
from firesteel.engine.newest import Newest
from firesteel.engine.relay import Relay
from firesteel.engine.summary import EventWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Outcome", "Outputs", "fit"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outputs:
    """Where a fit leaves things: checkpoints, TensorBoard files, scalars in memory, the screen."""

    summaries: Summaries
    checkpoints: CheckpointFolder | None = None
    event_folder: str | None = None
    verbose: int = 1


@dataclass
class Outcome:
    """What a fit gives back."""

    history: History
    state: dict[str, bytes] | None
    position: Position
    seconds: dict[str, float] = field(default_factory=dict)


def fit(
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
    """Train as planned. Driver only; returns when every replica has ended.

    ``stream`` turns a streamed source into what travels to the replicas (the front end knows its configuration).
    """
    relay = Relay()
    probe = moments.installed()
    job = FitJob(plan, config=config, probe=probe)
    if isinstance(data, Local):
        relay.add("train", data.batch)
        job = replace(job, is_relayed=True)
    elif isinstance(data, Streamed):
        job = replace(job, stream=stream(data, plan.batch_size))
    files = None
    if isinstance(validation, Streamed):
        assert plan.validation is not None
        job = replace(job, validation_stream=stream(validation, plan.validation.batch_size))
    elif validation is not None:
        files = _offer_validation(relay, validation)
    payload = pack(job, "the program")
    newest = Newest(outputs.checkpoints)
    wanted = plan.launch
    budget = Budget(infrastructure=wanted.max_failures, preemption=wanted.max_preemptions)
    desk = _Listener(plan, outputs, budget)
    marks: dict[int, tuple[int, int]] = {}
    world = wanted.world
    try:
        with desk:
            while True:
                if isinstance(data, (Frame, Packed)):
                    seated, tensors = _seat(data, world)
                else:
                    seated, tensors = Seated(_no_rows(spark, world), 0, Decoder(Reading(()))), ()
                arrangement = _Arrangement(
                    world, seated.partitions, relay, job, validation is not None, newest, desk, marks
                )
                try:
                    launch(
                        seated.frame,
                        seat_and_train,
                        TaskCard(payload, seated.decoder, tensors, cores_per_task(spark), probe),
                        world=world,
                        arrange=arrangement.arrange,
                        on_event=desk.take,
                        on_fetch=lambda what: newest.answer(what) if "state" in what else relay.answer(what),
                        on_wait=desk.show,
                        packages=registry.framework(plan.program.framework).packages,
                        deadlines=deadlines,
                        budget=budget,
                        min_workers=None if wanted.min_workers is None else min(wanted.min_workers, world),
                    )
                    break
                except Lost as lost:
                    # Nobody, or too few, are left of that gang: another one goes on, where it must with fewer ranks.
                    world = lost.remaining
                    newest.leave(lost.note, lost.buffers)
    finally:
        if files is not None:
            files.__exit__(None, None, None)
    return desk.outcome()


def _seat(data: Frame | Packed, world: int) -> tuple[Seated, tuple[str, ...]]:
    if isinstance(data, Frame):
        seated = seat(data.df, data.reading.select(data.df), Decoder(data.reading), world)
        names = data.reading.names
    else:
        seated = seat(data.df, ["header", "data"], Decoder(None), world)
        names = data.names
    if seated.partitions == 0:
        raise PlanError("the training data has no rows")
    return seated, names


def _no_rows(spark: SparkSession, world: int) -> Any:
    return spark.range(0, world, 1, world)


def _offer_validation(relay: Relay, validation: Frame | Packed | Local) -> Any:
    if isinstance(validation, Local):
        relay.add("validation", validation.batch)
        return None
    batch, files = gather(validation)
    if batch is None:
        raise PlanError("the validation data has no rows")
    relay.add("validation", batch)
    return files


@dataclass
class _Arrangement:
    """From what all ranks hold to what each has to do."""

    world: int
    partitions: int
    relay: Relay
    job: FitJob
    has_validation: bool
    newest: Newest
    listener: _Listener
    marks: dict[int, tuple[int, int]]

    def arrange(self, reports: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """See ``Coordinator.arrange``."""
        common: dict[str, Any] = {"restore": self._origin(reports)}
        if self.has_validation and self.job.validation_stream is None:
            rows = self.relay.rows("validation")
            common["validation"] = {"tensors": self.relay.describe("validation"), "rows": rows}
        if self.job.stream is not None:
            return [common] * self.world
        if self.job.is_relayed:
            rows = self.relay.rows("train")
            if rows == 0:
                raise PlanError("the training data has no rows")
            common |= {"tensors": self.relay.describe("train"), "counts": [rows], "blocks": []}
            return [{**common, "holdings": [[0, 0, rank, self.world]]} for rank in range(self.world)]
        return self._from_spools(reports, common)

    def _origin(self, reports: list[dict[str, Any]]) -> int | str | None:
        """Whose state all go on from: the rank's with the newest commit, the driver's, or the plan's own start."""
        kept = [(report["kept"]["step"], -rank) for rank, report in enumerate(reports) if report["kept"]]
        here = self.newest.find() if self.listener.is_again else None
        if kept and (here is None or max(kept)[0] >= here["step"]):
            rank = -max(kept)[1]
            self.listener.rewind(reports[rank]["kept"])
            return rank
        if self.listener.is_again:
            start = self.job.plan.position
            self.listener.rewind(here or {"step": start.step, "epoch": start.epoch})
        return None if here is None else "driver"

    def _check_marks(self, reports: list[dict[str, Any]]) -> None:
        """Rows that are read again must be the same ones in the same order, or a position in them means nothing."""
        counts = {partition: rows for report in reports for partition, _, rows in report["blocks"]}
        found = {partition: (counts[partition], mark) for report in reports for partition, mark in report["marks"]}
        changed = [p for p, mark in found.items() if self.marks.get(p, mark) != mark]
        self.marks |= found
        if changed:
            self.listener.warn(
                f"partition {changed[0]} of the training data had other rows, or another order, when it was read again "
                f"after a loss: in this epoch some of its rows count twice and others not at all. "
                f"Training on a cached or stored DataFrame avoids that"
            )

    def _from_spools(self, reports: list[dict[str, Any]], common: dict[str, Any]) -> list[dict[str, Any]]:
        tensors = [report["tensors"] for report in reports if report["tensors"] is not None]
        if not tensors:
            raise PlanError("the training data has no rows")
        for other in tensors[1:]:
            for (name, dtype, shape), (_, other_dtype, other_shape) in zip(tensors[0], other, strict=True):
                if (dtype, shape) != (other_dtype, other_shape):
                    raise SchemaError(
                        f"rows of {name!r} have shape {tuple(shape)} in one partition "
                        f"and {tuple(other_shape)} in another",
                        column=name,
                    )
        self._check_marks(reports)
        counts = [0] * self.partitions
        holders: dict[int, list[int]] = {}
        for rank, report in enumerate(reports):
            for partition, _, rows in report["blocks"]:
                counts[partition] = rows
                if rank not in holders.setdefault(partition, []):
                    holders[partition].append(rank)
        _warn_of_skew([sum(counts[p] / len(r) for p, r in holders.items() if rank in r) for rank in range(self.world)])
        common |= {"tensors": tensors[0], "counts": counts}
        assignments = []
        for rank, report in enumerate(reports):
            first = {partition: begin for partition, begin, _ in reversed(report["blocks"])}
            holdings = [[p, begin, holders[p].index(rank), len(holders[p])] for p, begin in first.items()]
            assignments.append({**common, "blocks": report["blocks"], "holdings": holdings})
        return assignments


def _warn_of_skew(rows: list[float]) -> None:
    if len(rows) > 1 and max(rows) > 4 * (sum(rows) / len(rows)) * 0.5 and min(rows) < 0.25 * max(rows):
        _log.warning(
            "replicas hold between %d and %d rows, and each step waits for the slowest: "
            "df.repartition(%d) would even that out",
            min(rows),
            max(rows),
            len(rows),
        )


class _Listener:
    """Takes the ranks' events: history, scalars, files, checkpoints, the screen. A context manager."""

    def __init__(self, plan: Fit, outputs: Outputs, budget: Budget) -> None:
        self._plan = plan
        self._budget = budget
        self._written: dict[str, int] = {}
        self._outputs = outputs
        self._history = History()
        self._state: dict[str, bytes] | None = None
        self._position = plan.position
        self._seconds: dict[str, float] = {}
        self._warning = ""
        self._has_warned = False
        self._display = Display(plan.launch.world, plan.epochs, outputs.verbose)
        self._writers: dict[str, EventWriter] = {}

    def __enter__(self) -> _Listener:
        if self._outputs.event_folder is not None:
            for name in ("train", "validation") if self._plan.validation else ("train",):
                self._writers[name] = EventWriter(f"{self._outputs.event_folder}/{name}")
        return self

    def __exit__(self, *exc: object) -> None:
        self._display.close()
        for writer in self._writers.values():
            writer.close()

    def show(self, coordinator: Coordinator) -> None:
        """Called in the caller's own thread, several times a second."""
        self._warn()
        self._display.refresh(coordinator.seated, coordinator.alive)

    def take(self, rank: int, event: dict[str, Any], buffers: list[bytearray]) -> None:
        """One event of one rank."""
        getattr(self, f"_on_{event['name']}")(rank, event, buffers)

    @property
    def is_again(self) -> bool:
        """Whether a gang was lost before the present one."""
        return bool(self._budget.incidents)

    def rewind(self, to: dict[str, Any]) -> None:
        """A gang goes on from this step: forget what came after it."""
        incident = self._budget.incidents[-1]
        incident.step = to["step"]
        self._outputs.summaries.rewind(to["step"])
        while self._history and self._history[-1]["epoch"] > to["epoch"]:
            self._history.pop()
        who = " and ".join(f"{rank}" for rank in sorted(incident.ranks))
        at = "" if incident.failure.step is None else f" in step {incident.failure.step}"
        text = incident.failure.message.partition("\n")[0]
        self._display.say(f"replica {who} was lost{at}: {text}. Going on from step {to['step']}")

    def outcome(self) -> Outcome:
        """Once the launch is over."""
        self._warn()
        self._history.recoveries = [incident.to_json() for incident in self._budget.incidents]
        self._display.end(self._position.step - self._plan.position.step, self._seconds)
        return Outcome(self._history, self._state, self._position, self._seconds)

    def _warn(self) -> None:
        """In the caller's thread, where filters and ``pytest.warns`` apply; once."""
        if self._warning and not self._has_warned:
            self._has_warned = True
            warnings.warn(self._warning, RuntimeWarning, stacklevel=4)

    def _on_line(self, rank: int, event: dict[str, Any], buffers: list[bytearray]) -> None:
        self._display.line(rank, event["text"])

    def warn(self, text: str) -> None:
        """Warn the user, the first time that there is something to warn of."""
        self._warning = self._warning or text

    def _on_warning(self, rank: int, event: dict[str, Any], buffers: list[bytearray]) -> None:
        self.warn(event["text"])

    def _on_progress(self, rank: int, event: dict[str, Any], buffers: list[bytearray]) -> None:
        self._display.progress(event)
        if self._budget.incidents and self._budget.incidents[-1].resumed is None:
            self._budget.incidents[-1].resumed = time.time()

    def _on_steps(self, rank: int, event: dict[str, Any], buffers: list[bytearray]) -> None:
        columns = (event[name] for name in ("losses", "rates", "rows", "seconds", "times"))
        rows = [
            (step, at, {"Loss": loss, "LearningRate": rate, "Throughput": count / max(seconds, 1e-9)})
            for step, (loss, rate, count, seconds, at) in enumerate(zip(*columns, strict=True), event["first"])
        ]
        self._outputs.summaries.add_train(rows)
        self._write("train", rows)

    def _on_validation(self, rank: int, event: dict[str, Any], buffers: list[bytearray]) -> None:
        row = (event["step"], event["time"], event["values"])
        self._outputs.summaries.add_validation([row])
        self._write("validation", [row])

    def _on_epoch(self, rank: int, event: dict[str, Any], buffers: list[bytearray]) -> None:
        self._history.append(event["record"])
        self._display.epoch(event["record"])

    def _on_file(self, rank: int, event: dict[str, Any], buffers: list[bytearray]) -> None:
        write_bytes(event["path"], bytes(buffers[0]))

    def _on_checkpoint(self, rank: int, event: dict[str, Any], buffers: list[bytearray]) -> None:
        state = dict(zip(event["parts"], map(bytes, buffers), strict=True))
        assert self._outputs.checkpoints is not None
        self._outputs.checkpoints.write(Checkpoint(state, Position(**event["position"]), self._plan.seed))

    def _on_result(self, rank: int, event: dict[str, Any], buffers: list[bytearray]) -> None:
        self._state = dict(zip(event["parts"], map(bytes, buffers), strict=True))
        self._position = Position(**event["position"])
        self._seconds = event["seconds"]

    def _write(self, name: str, rows: list[tuple[int, float, dict[str, float]]]) -> None:
        if name in self._writers:
            for row in rows:
                if row[0] > self._written.get(name, -1):  # else it is done again, after a loss
                    self._writers[name].add(*row)
                    self._written[name] = row[0]
            self._writers[name].flush()
