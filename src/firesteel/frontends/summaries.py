"""``TrainSummary`` and ``ValidationSummary``: scalars of a training as TensorBoard files, written and read."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from firesteel.core.errors import PlanError, UnknownName, missing_extra
from firesteel.core.triggers import Progress, Trigger, as_trigger
from firesteel.engine.callbacks import Callback, Runner
from firesteel.engine.files import local_path
from firesteel.engine.summary import EventWriter, histogram_file

__all__ = ["TrainSummary", "ValidationSummary"]

_TRAIN_TAGS = ("LearningRate", "Loss", "Throughput")


class _Summary:
    """A folder of TensorBoard events, written by one training after the other."""

    _kind: str

    def __init__(self, log_dir: str, app_name: str) -> None:
        self.log_dir, self.app_name = str(log_dir), str(app_name)
        self.folder = os.path.join(local_path(self.log_dir) or self.log_dir, self.app_name, self._kind)
        self._writer: EventWriter | None = None

    def read_scalar(self, tag: str) -> list[tuple[int, float, float]]:
        """``(step, value, wall time)`` of every point with this tag; ``UnknownName`` where there is no such tag."""
        points = _points(self.folder)
        if tag not in points:
            raise UnknownName("summary tag", tag, points or self._tags())
        return points[tag]

    # What the engine calls: see ``engine.listener.Recorder``.

    def add(self, step: int, wall_time: float, values: dict[str, float]) -> None:
        """One point of each tag."""
        self._open().add(step, wall_time, values)

    def end_epoch(self) -> None:
        """The last point was an epoch's last."""

    def flush(self) -> None:
        """Make everything so far readable."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """The training is over; another one opens another file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _open(self) -> EventWriter:
        if self._writer is None:
            self._writer = EventWriter(self.folder)
        return self._writer

    def _tags(self) -> Iterable[str]:
        return ()


class TrainSummary(_Summary):
    """Scalars of every update in ``log_dir/app_name/train``.

    Tags are ``Loss``, ``Throughput`` (rows per second) and ``LearningRate``.

    Args:
        log_dir: where.
        app_name: a folder in it.
    """

    _kind = "train"

    def __init__(self, log_dir: str, app_name: str) -> None:
        super().__init__(log_dir, app_name)
        self._triggers: dict[str, Trigger] = {}
        self._epochs = 0
        self._last: tuple[int, float, dict[str, float]] | None = None  # what no trigger wanted of the last point

    def set_summary_trigger(self, name: str, trigger: Any) -> TrainSummary:
        """Write ``name`` only when the trigger fires; ``"Parameters"``, histograms of all weights, is never else."""
        known = (*_TRAIN_TAGS, "Parameters")
        if name not in known:
            raise UnknownName("summary", name, known)
        self._triggers[name] = as_trigger(trigger)
        return self

    def end_epoch(self) -> None:
        """What waits for an epoch's end is written now."""
        self._epochs += 1
        if self._last is not None:
            step, wall_time, values = self._last
            wanted = self._wanted(values, Progress(self._epochs, step, True, values.get("Loss")))
            self._last = None
            if wanted:
                self._open().add(step, wall_time, wanted)

    def callbacks(self) -> tuple[Callback, ...]:
        """What a training has to carry along, for what only replicas know."""
        trigger = self._triggers.get("Parameters")
        return () if trigger is None else (_Histograms(self.folder, trigger),)

    def add(self, step: int, wall_time: float, values: dict[str, float]) -> None:
        """One point of each tag whose trigger wants it."""
        wanted = self._wanted(values, Progress(self._epochs, step, False, values.get("Loss")))
        self._last = (step, wall_time, {tag: value for tag, value in values.items() if tag not in wanted})
        if wanted:
            self._open().add(step, wall_time, wanted)

    def _wanted(self, values: dict[str, float], progress: Progress) -> dict[str, float]:
        return {tag: v for tag, v in values.items() if tag not in self._triggers or self._triggers[tag].fires(progress)}

    def _tags(self) -> Iterable[str]:
        return _TRAIN_TAGS


class ValidationSummary(_Summary):
    """Results of every validation in ``log_dir/app_name/validation``, under the names of methods and metrics.

    Args:
        log_dir: where.
        app_name: a folder in it.
    """

    _kind = "validation"


class _Histograms(Callback):
    """Histograms of all weights, from replica 0, into a file on the driver."""

    def __init__(self, folder: str, trigger: Trigger) -> None:
        self._folder, self._trigger = folder, trigger

    def after_train_iter(self, runner: Runner) -> None:
        """Whether it is time, inside an epoch."""
        self._write_if_due(runner, is_epoch_end=False)

    def after_train_epoch(self, runner: Runner) -> None:
        """Whether it is time, at an epoch's end."""
        if not self._trigger.fires(Progress(runner.epochs + 1, runner.global_step, False)):
            self._write_if_due(runner, is_epoch_end=True)

    def _write_if_due(self, runner: Runner, *, is_epoch_end: bool) -> None:
        progress = Progress(runner.epochs + is_epoch_end, runner.global_step, is_epoch_end)
        if self._trigger.fires(progress):
            weights = runner.weights()  # a collective
            if runner.rank == 0:
                name, data = histogram_file(runner.global_step, weights)
                runner.ship(os.path.join(self._folder, name), data)


def _points(folder: str) -> dict[str, list[tuple[int, float, float]]]:
    """All scalars in a folder's event files, in the order in which they were written."""
    try:
        from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
    except ModuleNotFoundError as error:
        raise missing_extra("tensorboard", "tensorboard") from error
    found: dict[str, list[tuple[int, float, float]]] = {}
    if not os.path.isdir(folder):
        return found
    for name in sorted(os.listdir(folder)):
        if "tfevents" not in name:
            continue
        for event in LegacyEventFileLoader(os.path.join(folder, name)).Load():
            for value in event.summary.value:
                if value.WhichOneof("value") == "simple_value":
                    point = (int(event.step), float(value.simple_value), float(event.wall_time))
                    found.setdefault(value.tag, []).append(point)
    return {tag: sorted(points, key=lambda point: point[2]) for tag, points in found.items()}


def check_summary(value: Any, kind: type[_Summary], what: str) -> None:
    """Raise ``PlanError`` where this is no such summary."""
    if not isinstance(value, kind):
        raise PlanError(f"{what} takes a {kind.__name__}, not {type(value).__qualname__}")
