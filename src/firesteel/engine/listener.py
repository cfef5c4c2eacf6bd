"""The driver's ear: takes the ranks' events, and leaves history, scalars, files, checkpoints and the screen."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from firesteel.cluster.coordinator import Coordinator
from firesteel.cluster.failure import Budget
from firesteel.cluster.progress import Display
from firesteel.core.plan import Fit, Position
from firesteel.core.triggers import Progress, Trigger
from firesteel.engine.checkpoint import Checkpoint, CheckpointFolder
from firesteel.engine.files import write_bytes
from firesteel.engine.history import History, Summaries
from firesteel.engine.summary import EventWriter

__all__ = ["Listener", "Outcome", "Outputs", "Recorder"]


class Recorder(Protocol):
    """Who writes scalars down: TensorBoard's files, or a summary of the user's. Used by one fit at a time.

    A recorder of steps may have ``triggers`` by tag: it is given only what they let through.
    """

    def add(self, step: int, wall_time: float, values: dict[str, float]) -> None:
        """One point of each tag."""
        ...

    def flush(self) -> None:
        """Make everything so far readable."""
        ...

    def close(self) -> None:
        """The fit is over."""
        ...


@dataclass(frozen=True)
class Outputs:
    """Where a fit leaves things: checkpoints, TensorBoard files, scalars in memory, the screen.

    ``recorders`` write ``"train"`` and ``"validation"`` in the place of files in ``event_folder``.
    """

    summaries: Summaries
    checkpoints: CheckpointFolder | None = None
    event_folder: str | None = None
    verbose: int = 1
    recorders: Mapping[str, Recorder] = field(default_factory=dict)
    on_epoch: Callable[[dict[str, Any]], None] | None = None
    """Takes each epoch's record as it comes; what it raises ends the fit."""


@dataclass
class Outcome:
    """What a fit gives back."""

    history: History
    state: dict[str, bytes] | None
    position: Position
    inputs: list[list[Any]] = field(default_factory=list)
    """What the model's inputs look like (``core.spec.describe``)."""


class Listener:
    """Takes the ranks' events: history, scalars, files, checkpoints, the screen. A context manager."""

    def __init__(self, plan: Fit, outputs: Outputs, budget: Budget) -> None:
        self._plan = plan
        self._budget = budget
        self._written: dict[str, int] = {}
        self._outputs = outputs
        self._history = History()
        self._state: dict[str, bytes] | None = None
        self._position = plan.position
        self._inputs: list[list[Any]] = []
        self._warning = ""
        self._has_warned = False
        self._display = Display(plan.launch.world, plan.epochs, outputs.verbose)
        self._writers: dict[str, Recorder] = {}

    def __enter__(self) -> Listener:
        self._writers = dict(self._outputs.recorders)
        for name in ("train", "validation") if self._plan.validation else ("train",):
            if self._outputs.event_folder is not None and name not in self._writers:
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
        incident.reach(to["step"])
        self._outputs.summaries.rewind(to["step"])
        while self._history and self._history[-1]["epoch"] > to["epoch"]:
            self._history.pop()
        who = " and ".join(f"{rank}" for rank in sorted(incident.ranks))
        at = "" if incident.lost_at is None else f" in step {incident.lost_at}"
        text = incident.failure.message.partition("\n")[0]
        self._display.say(f"replica {who} was lost{at}: {text}. Going on from step {to['step']}")

    def outcome(self) -> Outcome:
        """Once the launch is over."""
        self._warn()
        self._history.recoveries = [incident.to_json() for incident in self._budget.incidents]
        self._display.end(self._position.step - self._plan.position.step, self._history.seconds)
        return Outcome(self._history, self._state, self._position, self._inputs)

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
        triggers = getattr(self._writers.get("train"), "triggers", None)
        if triggers:
            about = zip(rows, event["epochs"], event["ends"], strict=True)
            rows = [(step, at, _let_through(triggers, step, values, *ends)) for (step, at, values), *ends in about]
        self._write("train", rows)

    def _on_validation(self, rank: int, event: dict[str, Any], buffers: list[bytearray]) -> None:
        row = (event["step"], event["time"], event["values"])
        self._outputs.summaries.add_validation([row])
        self._write("validation", [row])

    def _on_epoch(self, rank: int, event: dict[str, Any], buffers: list[bytearray]) -> None:
        self._history.append(event["record"])
        self._display.epoch(event["record"])
        if self._outputs.on_epoch is not None:
            self._outputs.on_epoch(event["record"])

    def _on_file(self, rank: int, event: dict[str, Any], buffers: list[bytearray]) -> None:
        write_bytes(event["path"], bytes(buffers[0]))

    def _on_checkpoint(self, rank: int, event: dict[str, Any], buffers: list[bytearray]) -> None:
        state = dict(zip(event["parts"], map(bytes, buffers), strict=True))
        assert self._outputs.checkpoints is not None
        self._outputs.checkpoints.write(Checkpoint(state, Position(**event["position"]), self._plan.seed))

    def _on_result(self, rank: int, event: dict[str, Any], buffers: list[bytearray]) -> None:
        self._state = dict(zip(event["parts"], map(bytes, buffers), strict=True))
        self._position = Position(**event["position"])
        self._history.seconds = event["seconds"]
        self._inputs = event["inputs"]

    def _write(self, name: str, rows: list[tuple[int, float, dict[str, float]]]) -> None:
        if name in self._writers:
            for row in rows:
                if row[2] and row[0] > self._written.get(name, -1):  # else it is done again, after a loss
                    self._writers[name].add(*row)
                    self._written[name] = row[0]
            self._writers[name].flush()


def _let_through(
    triggers: Mapping[str, Trigger], step: int, values: dict[str, float], epochs: int, is_epoch_end: bool
) -> dict[str, float]:
    """The scalars of a step whose triggers fire; those that have none always."""
    progress = Progress(epochs, step, is_epoch_end, values["Loss"])
    return {tag: value for tag, value in values.items() if tag not in triggers or triggers[tag].fires(progress)}
