"""TensorBoard event files, through tensorboard's own writer."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable
from typing import Any

from firesteel.core.errors import missing_extra

__all__ = ["EventWriter", "event_file"]


class EventWriter:
    """Scalars into one folder. Driver only; a context manager."""

    def __init__(self, directory: str) -> None:
        try:
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ModuleNotFoundError as error:
            raise missing_extra("tensorboard", "tensorboard") from error
        self._writer = EventFileWriter(directory)

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

    def flush(self) -> None:
        """Make everything so far readable."""
        self._writer.flush()

    def close(self) -> None:
        """Flush and close."""
        self._writer.close()


def event_file(rows: Iterable[tuple[int, dict[str, float]]]) -> tuple[str, bytes]:
    """An event file's name and content, for a process that is not where the file belongs."""
    with tempfile.TemporaryDirectory() as folder:
        with EventWriter(folder) as writer:
            for step, values in rows:
                writer.add(step, time.time(), values)
        (name,) = os.listdir(folder)
        with open(os.path.join(folder, name), "rb") as file:
            return name, file.read()
