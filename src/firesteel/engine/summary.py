"""TensorBoard event files, through tensorboard's own writer."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from firesteel.core.errors import missing_extra

__all__ = ["EventWriter", "event_file", "histogram_file", "read_scalars"]


class EventWriter:
    """Scalars into one folder. Driver only; a context manager."""

    def __init__(self, directory: str) -> None:
        try:
            from tensorboard.summary.writer import event_file_writer
        except ModuleNotFoundError as error:
            raise missing_extra("tensorboard", "tensorboard") from error
        _spare_tensorflow(event_file_writer)
        self._writer = event_file_writer.EventFileWriter(directory)

    def __enter__(self) -> EventWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def add(self, step: int, wall_time: float, values: dict[str, float]) -> None:
        """One point of each tag."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        points: list[Any] = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._writer.add_event(Event(step=step, wall_time=wall_time, summary=Summary(value=points)))

    def add_histograms(self, step: int, wall_time: float, values: Mapping[str, npt.NDArray[Any]]) -> None:
        """How the numbers of each array are spread."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.histogram_pb2 import HistogramProto
        from tensorboard.compat.proto.summary_pb2 import Summary

        points = []
        for tag, array in values.items():
            numbers = np.asarray(array, dtype=np.float64).ravel()
            counts, edges = np.histogram(numbers, bins=30)
            histogram = HistogramProto(
                min=float(numbers.min()),
                max=float(numbers.max()),
                num=numbers.size,
                sum=float(numbers.sum()),
                sum_squares=float(np.square(numbers).sum()),
                bucket_limit=edges[1:].tolist(),
                bucket=counts.tolist(),
            )
            points.append(Summary.Value(tag=tag, histo=histogram))
        self._writer.add_event(Event(step=step, wall_time=wall_time, summary=Summary(value=points)))

    def flush(self) -> None:
        """Make everything so far readable."""
        self._writer.flush()

    def close(self) -> None:
        """Flush and close."""
        self._writer.close()


def event_file(rows: Iterable[tuple[int, dict[str, float]]]) -> tuple[str, bytes]:
    """An event file's name and content, for a process that is not where the file belongs."""
    with _file() as (writer, found):
        for step, values in rows:
            writer.add(step, time.time(), values)
    return found[0]


def histogram_file(step: int, values: Mapping[str, npt.NDArray[Any]]) -> tuple[str, bytes]:
    """The same with histograms of arrays at one step."""
    with _file() as (writer, found):
        writer.add_histograms(step, time.time(), values)
    return found[0]


@contextlib.contextmanager
def _file() -> Iterator[tuple[EventWriter, list[tuple[str, bytes]]]]:
    found: list[tuple[str, bytes]] = []
    with tempfile.TemporaryDirectory() as folder:
        with EventWriter(folder) as writer:
            yield writer, found
        (name,) = os.listdir(folder)
        with open(os.path.join(folder, name), "rb") as file:
            found.append((name, file.read()))


def read_scalars(folder: str) -> dict[str, list[tuple[int, float, float]]]:
    """By tag: (step, value, wall time) of all event files in a folder, in the order of steps; nothing without files."""
    if not os.path.isdir(folder):
        return {}
    try:
        from tensorboard.backend.event_processing import event_file_loader
    except ModuleNotFoundError as error:
        raise missing_extra("tensorboard", "tensorboard") from error
    _spare_tensorflow(event_file_loader)
    found: dict[str, list[tuple[int, float, float]]] = {}
    for name in sorted(name for name in os.listdir(folder) if "tfevents" in name):
        for event in event_file_loader.LegacyEventFileLoader(os.path.join(folder, name)).Load():
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    found.setdefault(value.tag, []).append((event.step, value.simple_value, event.wall_time))
    return {tag: sorted(entries, key=lambda entry: entry[0]) for tag, entries in found.items()}


def _spare_tensorflow(module: ModuleType) -> None:
    """Let this module of tensorboard's do without TensorFlow where that is not loaded: to import it takes seconds."""
    if "tensorflow" not in sys.modules:
        vars(module)["tf"] = importlib.import_module("tensorboard.compat.tensorflow_stub")
