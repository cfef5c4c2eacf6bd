"""Where a training leaves its scalars for TensorBoard, and how they are read again."""

from __future__ import annotations

from typing import Any, Self

from firesteel.core.errors import UnknownName
from firesteel.core.triggers import Progress, Trigger, as_trigger
from firesteel.engine.callbacks import Callback, Runner
from firesteel.engine.files import local_path
from firesteel.engine.summary import EventWriter, histogram_file, read_scalars

__all__ = ["ParameterHistograms", "TrainSummary", "ValidationSummary"]

_SCALARS = ("LearningRate", "Loss", "Throughput")


class _Summary:
    _part = ""

    def __init__(self, log_dir: str, app_name: str, bigdl_type: str = "float") -> None:
        self.folder = f"{local_path(str(log_dir)) or log_dir}/{app_name}/{self._part}"
        """The folder of event files."""

    # --- as the engine's recorder, while a training runs ---

    _writer: EventWriter | None = None

    def add(self, step: int, wall_time: float, values: dict[str, float]) -> None:
        """One point of each tag."""
        if self._writer is None:
            self._writer = EventWriter(self.folder)
        self._writer.add(step, wall_time, values)

    def flush(self) -> None:
        """Make everything so far readable."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """The training is over; the next one begins another file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _scalars(self) -> dict[str, list[tuple[int, float, float]]]:
        return read_scalars(self.folder)


class TrainSummary(_Summary):
    """Scalars of a training, in ``log_dir/app_name/train``: ``Loss``, ``Throughput`` and ``LearningRate``."""

    _part = "train"

    def __init__(self, log_dir: str, app_name: str, bigdl_type: str = "float") -> None:
        super().__init__(log_dir, app_name, bigdl_type)
        self.triggers: dict[str, Trigger] = {}
        """When to write which scalar, where that is not after every step."""
        self.parameters_trigger: Trigger | None = None
        """When to write histograms of the weights, if at all."""

    def read_scalar(self, tag: str) -> list[tuple[int, float, float]]:
        """``(step, value, wall time)`` of each entry, in order.

        Raises:
            UnknownName: a tag that a training does not write.
        """
        if tag not in _SCALARS:
            raise UnknownName("summary tag", tag, _SCALARS)
        return self._scalars().get(tag, [])

    def set_summary_trigger(self, name: str, trigger: Any) -> Self:
        """Write ``"Loss"``, ``"Throughput"``, ``"LearningRate"`` or ``"Parameters"`` (histograms) when this fires."""
        if name not in (*_SCALARS, "Parameters"):
            raise UnknownName("summary", name, (*_SCALARS, "Parameters"))
        if name == "Parameters":
            self.parameters_trigger = as_trigger(trigger)
        else:
            self.triggers[name] = as_trigger(trigger)
        return self


class ValidationSummary(_Summary):
    """Scalars of validations, in ``log_dir/app_name/validation``; the tags are the validation methods' names."""

    _part = "validation"

    def read_scalar(self, tag: str) -> list[tuple[int, float, float]]:
        """``(step, value, wall time)`` of each validation, in order.

        Raises:
            UnknownName: no validation method of this name has been written.
        """
        found = self._scalars()
        if tag not in found:
            raise UnknownName("summary tag", tag, found)
        return found[tag]


class ParameterHistograms(Callback):
    """Writes histograms of all weights when a trigger fires. Runs in every replica; replica 0 writes."""

    def __init__(self, trigger: Trigger, folder: str) -> None:
        self.trigger, self.folder = trigger, folder
        self.written = 0

    def after_train_iter(self, runner: Runner) -> None:
        """After an update."""
        self._write(runner, Progress(runner.epochs, runner.global_step, False))

    def after_train_epoch(self, runner: Runner) -> None:
        """After an epoch."""
        self._write(runner, Progress(runner.epochs + 1, runner.global_step, True))

    def _write(self, runner: Runner, progress: Progress) -> None:
        if runner.rank != 0 or progress.step == self.written or not self.trigger.fires(progress):
            return
        self.written = progress.step
        name, data = histogram_file(progress.step, runner.parameters())
        runner.ship(f"{self.folder}/{name}", data)
