"""What a person sees of a training: a bar on a terminal or in a notebook, a few lines in a log, nothing when asked."""

from __future__ import annotations

import logging
import sys
import threading
import time
from typing import Any

__all__ = ["Display"]

_log = logging.getLogger("firesteel.replica")


class Display:
    """Driver only. Events may come from any thread; the bar itself moves in the caller's.

    Args:
        world: replicas.
        epochs: the number of the last epoch.
        first_epoch: epochs done before.
        verbose: 0 = nothing on the screen.
    """

    def __init__(self, world: int, epochs: int, first_epoch: int, verbose: int) -> None:
        self._world = world
        self._epochs = epochs
        self._verbose = verbose
        self._is_live = verbose > 0 and _is_interactive()
        self._lock = threading.Lock()
        self._bar: Any = None
        self._last: dict[str, Any] | None = None
        self._lines: list[str] = []
        self._began = time.perf_counter()
        self._record: dict[str, Any] = {}

    def line(self, rank: int, text: str) -> None:
        """A line that a replica printed."""
        _log.info("replica %d | %s", rank, text)
        if self._verbose:
            with self._lock:
                self._lines.append(f"replica {rank} | {text}")
            if not self._is_live:
                self._flush()

    def progress(self, event: dict[str, Any]) -> None:
        """Where rank 0 stands."""
        with self._lock:
            self._last = event

    def epoch(self, record: dict[str, Any]) -> None:
        """An epoch's record."""
        parts = [f"epoch {record['epoch']}/{max(self._epochs, record['epoch'])}"]
        parts += [f"{key} {value:.4g}" for key, value in record.items() if isinstance(value, float)]
        with self._lock:
            self._record = record
            self._last = None
            if self._verbose:
                self._lines.append(" · ".join(parts))
        if not self._is_live:
            self._flush()

    def refresh(self, seated: int, alive: int) -> None:
        """Draw what has changed."""
        self._flush()
        if not self._is_live:
            return
        with self._lock:
            event = self._last
        if event is None and self._bar is None and seated < self._world:
            return
        if event is None:
            return
        from tqdm.auto import tqdm

        if self._bar is None:
            self._bar = tqdm(unit="step", leave=False, dynamic_ncols=True, file=sys.stderr)
        bar = self._bar
        bar.total = event["steps"]
        bar.n = event["step"]
        bar.set_description(f"epoch {event['epoch']}/{max(self._epochs, event['epoch'])}", refresh=False)
        shown = {"rows/s": f"{event['rows_per_second']:,.0f}", "replicas": f"{alive}/{self._world}"}
        if event["loss"] is not None:
            shown = {"loss": f"{event['loss']:.4g}", **shown}
        if event["steps"]:
            left = (event["steps"] - event["step"]) + event["steps"] * max(0, self._epochs - event["epoch"])
            shown["all done in"] = tqdm.format_interval(left * event["seconds_per_step"])
        shown |= {k: f"{v:.4g}" for k, v in self._record.items() if k.startswith("val_") and isinstance(v, float)}
        bar.set_postfix(shown, refresh=False)
        bar.refresh()

    def end(self, steps: int, seconds: dict[str, float]) -> None:
        """One line: how long, and what the time went into."""
        total = sum(seconds.values())
        if self._verbose and steps and total > 0:
            share = {key: f"{100 * value / total:.0f} %" for key, value in seconds.items()}
            took = time.perf_counter() - self._began
            self._lines.append(
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
