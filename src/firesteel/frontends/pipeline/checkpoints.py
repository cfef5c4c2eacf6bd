"""Checkpoints of a stage's fits: one folder for each fit, so that folds and trials do not take each other's.

A fit that was interrupted left a folder without a mark of its end; the next fit with the same Params goes on from it.
One that ended leaves its mark, and only a longer training goes on from there.
"""

from __future__ import annotations

import hashlib
import json
import threading
from types import TracebackType
from typing import Any

from firesteel.core.triggers import EveryEpoch
from firesteel.engine.files import exists, local_path, read_bytes, write_bytes

__all__ = ["CheckpointRun"]

_busy: set[str] = set()
_choosing = threading.Lock()
_MARK = "ended.json"


class CheckpointRun:
    """One fit's folder; a context manager. Driver only.

    Args:
        root: the user's folder; empty for no checkpoints.
        mark: what makes one fit another one.
        epochs: how many epochs are wanted in all.
        resume: whether to go on where an earlier fit stopped.
    """

    def __init__(self, root: str, mark: dict[str, Any], epochs: int, resume: bool) -> None:
        self._root = root.rstrip("/")
        self._digest = hashlib.sha256(json.dumps(mark, sort_keys=True, default=str).encode()).hexdigest()[:12]
        self._epochs = epochs
        self._resume = resume
        self._folder: str | None = None
        self._before: dict[str, list[float]] = {}
        self._found: dict[str, list[float]] = {}

    def __enter__(self) -> CheckpointRun:
        if self._root:
            with _choosing:
                self._folder = self._choose()
                _busy.add(self._folder)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._folder is None:
            return
        if error is None:
            text = json.dumps({"epochs": self._epochs, "history": self._found})
            write_bytes(f"{self._folder}/{_MARK}", text.encode())
        with _choosing:
            _busy.discard(self._folder)

    def fit(self, estimator: Any, data: Any, options: dict[str, Any]) -> Any:
        """Train, with checkpoints where a folder was named; what ``estimator.fit`` returns."""
        if self._folder is None:
            return estimator.fit(data, epochs=self._epochs, **options)
        estimator._model_dir = local_path(self._folder) or self._folder
        return estimator.fit(data, epochs=self._epochs, checkpoint_trigger=EveryEpoch(), resume=True, **options)

    def joined(self, history: dict[str, list[float]]) -> dict[str, list[float]]:
        """The history of the fit that was gone on from, and this one's."""
        names = [*self._before, *(name for name in history if name not in self._before)]
        self._found = {name: [*self._before.get(name, []), *history.get(name, [])] for name in names}
        return self._found

    def _choose(self) -> str:
        """The folder of the newest fit with the same mark, where it can be gone on from; else a new one."""
        number = 1
        last: str | None = None
        while exists(folder := f"{self._root}/{self._digest}-{number}") or folder in _busy:
            last = folder if folder not in _busy else None
            number += 1
        if last is None or not self._resume:
            return folder
        if not exists(f"{last}/{_MARK}"):
            return last
        ended = json.loads(read_bytes(f"{last}/{_MARK}"))
        if ended["epochs"] >= self._epochs:
            return folder
        self._before = ended["history"]
        return last
