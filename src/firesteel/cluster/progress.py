"""What a person sees of a training: a bar on a terminal or in a notebook, a few lines in a log, nothing when asked."""

from __future__ import annotations

import logging
import sys
import threading
import time
from typing import Any

__all__ = ["Display"]

_log = logging.getLogger("firesteel.replica")

_STATUS_FORMAT = "{desc} [{elapsed}]"
_STEPS_FORMAT = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} steps{postfix}"
_ENDLESS_FORMAT = "{desc}: {n_fmt} steps{postfix}"


class Display:
    """Driver only. Events may come from any thread; the screen changes in the caller's.

    Args:
        world: replicas.
        epochs: the number of the last epoch.
        verbose: 0 = nothing on the screen.
    """

    def __init__(self, world: int, epochs: int, verbose: int) -> None:
        self._world = world
        self._epochs = epochs
        self._verbose = verbose
        self._is_live = verbose > 0 and _is_interactive()
        self._lock = threading.Lock()
        self._bar: Any = None
        self._event: dict[str, Any] | None = None
        self._record: dict[str, Any] = {}
        self._lines: list[str] = []
        self._began = time.perf_counter()

    def line(self, rank: int, text: str) -> None:
        """A line that a replica printed."""
        _log.info("replica %d | %s", rank, text)
        self.say(f"replica {rank} | {text}")

    def progress(self, event: dict[str, Any]) -> None:
        """Where rank 0 stands."""
        with self._lock:
            self._event = event

    def epoch(self, record: dict[str, Any]) -> None:
        """An epoch's record."""
        with self._lock:
            self._record = record
        figures = [f"{key} {value:.4g}" for key, value in record.items() if isinstance(value, float)]
        self.say(" · ".join([f"epoch {record['epoch']}/{max(self._epochs, record['epoch'])}", *figures]))

    def refresh(self, seated: int, alive: int) -> None:
        """Draw what has changed. Called by the thread that owns the screen."""
        self._flush()
        if not self._is_live:
            return
        with self._lock:
            event, record = self._event, self._record
        if self._bar is None:
            from tqdm.auto import tqdm

            self._bar = tqdm(leave=False, dynamic_ncols=True, file=sys.stderr, bar_format=_STATUS_FORMAT)
        if event is None:
            rest = "reading rows" if seated == self._world else "waiting for slots"
            self._bar.set_description_str(f"{seated} of {self._world} replicas seated, {rest}")
            return
        self._bar.bar_format = _STEPS_FORMAT if event["steps"] else _ENDLESS_FORMAT
        self._bar.total = event["steps"]
        self._bar.n = event["step"]
        self._bar.set_description_str(f"epoch {event['epoch']}/{max(self._epochs, event['epoch'])}", refresh=False)
        self._bar.set_postfix(self._figures(event, record, alive))

    def end(self, steps: int, seconds: dict[str, float]) -> None:
        """One line: how long, and what the time went into."""
        total = sum(seconds.values())
        if steps and total > 0:
            share = {key: f"{100 * value / total:.0f} %" for key, value in seconds.items()}
            took = time.perf_counter() - self._began
            self.say(
                f"{steps} steps on {self._world} replicas in {took:.1f} s; of the replicas' time {share['compute']} "
                f"computing, {share['agree']} agreeing, {share['data']} waiting for data"
            )
        self._flush()

    def close(self) -> None:
        """Leave a clean screen."""
        self._flush()
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _figures(self, event: dict[str, Any], record: dict[str, Any], alive: int) -> dict[str, str]:
        from tqdm.auto import tqdm

        shown = {} if event["loss"] is None else {"loss": f"{event['loss']:.4g}"}
        found = {key: value for key, value in record.items() if key.startswith("val_") and isinstance(value, float)}
        shown |= {key: f"{value:.4g}" for key, value in found.items()}
        shown |= {"rows/s": f"{event['rows_per_second']:,.0f}", "replicas": f"{alive}/{self._world}"}
        if event["steps"]:
            left = event["steps"] - event["step"] + event["steps"] * max(0, self._epochs - event["epoch"])
            shown["left"] = tqdm.format_interval(left * event["seconds_per_step"])
        return shown

    def say(self, text: str) -> None:
        """A line above the bar."""
        if not self._verbose:
            return
        with self._lock:
            self._lines.append(text)
        if not self._is_live:
            self._flush()  # a log has no cursor to keep in place: whoever has something to say writes it

    def _flush(self) -> None:
        with self._lock:
            lines, self._lines = self._lines, []
        for text in lines:
            if self._is_live:
                from tqdm.auto import tqdm

                tqdm.write(text, file=sys.stderr)
            else:
                print(text, file=sys.stderr, flush=True)  # noqa: T201 - this is the screen


def _is_interactive() -> bool:
    """A terminal, or a notebook's kernel; logs and CI are neither."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules
