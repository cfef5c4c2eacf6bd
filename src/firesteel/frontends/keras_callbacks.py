"""Keras's own callbacks in a training of several replicas: they act on replica 0, and all follow.

Files that they write lie in a folder of replica 0's until an epoch is over; then they are put where the user wanted
them, on the driver's disk.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from firesteel.engine.callbacks import Callback, Runner

__all__ = ["KerasCallbacks"]

_PLACES = ("filepath", "filename", "log_dir", "backup_dir")
_OURS = ("epoch", "batch_count", "num_samples", "train_loss", "last_train_loss", "val_num_samples")


class KerasCallbacks(Callback):
    """A list of ``keras.callbacks.Callback`` as one of ours."""

    def __init__(self, callbacks: list[Any], params: dict[str, Any]) -> None:
        self._callbacks = callbacks
        self._params = params
        self._list: Any = None
        self._folder: Any = None
        self._moved: list[tuple[Path, Path]] = []
        self._seen: dict[Path, tuple[int, int]] = {}
        self._step = 0

    def before_run(self, runner: Runner) -> None:
        """``on_train_begin``."""
        runner.follow(partial(self._begin, runner))

    def before_train_epoch(self, runner: Runner) -> None:
        """``on_epoch_begin``."""
        self._step = 0
        runner.follow(lambda: self._list.on_epoch_begin(runner.epochs))

    def before_train_iter(self, runner: Runner) -> None:
        """``on_train_batch_begin``, where a callback has it."""
        self._in_step(runner, lambda: self._list.on_train_batch_begin(self._step))

    def after_train_iter(self, runner: Runner) -> None:
        """``on_train_batch_end``, with replica 0's figures so far."""

        def act() -> None:
            logs = {name: float(value) for name, value in runner.model.get_metrics_result().items()}
            self._list.on_train_batch_end(self._step, logs)

        self._in_step(runner, act)
        self._step += 1

    def after_train_epoch(self, runner: Runner) -> None:
        """``on_epoch_end``, with everybody's figures."""
        logs = {name: value for name, value in runner.stats.items() if name not in _OURS}
        runner.follow(lambda: self._list.on_epoch_end(runner.epochs, logs))
        self._obey(runner)

    def before_val_epoch(self, runner: Runner) -> None:
        """``on_test_begin``."""
        runner.follow(lambda: self._list.on_test_begin())

    def after_val_epoch(self, runner: Runner) -> None:
        """``on_test_end``."""
        logs = {name.removeprefix("val_"): value for name, value in runner.stats.items() if name not in _OURS}
        runner.follow(lambda: self._list.on_test_end(logs))

    def after_run(self, runner: Runner) -> None:
        """``on_train_end``."""
        runner.follow(lambda: self._list.on_train_end())
        self._obey(runner)
        if self._folder is not None:
            self._folder.cleanup()

    def _begin(self, runner: Runner) -> None:
        import keras

        self._redirect()
        runner.model.stop_training = False
        self._list = keras.callbacks.CallbackList(self._callbacks, model=runner.model, **self._params)
        self._list.on_train_begin()

    def _in_step(self, runner: Runner, act: Callable[[], None]) -> None:
        if any(_has_batch_hooks(each) for each in self._callbacks):
            runner.follow(act)
            self._stop(runner)

    def _obey(self, runner: Runner) -> None:
        self._stop(runner)
        if runner.rank == 0:
            for path, data in self._changed():
                runner.ship(str(path), data)

    def _stop(self, runner: Runner) -> None:
        if runner.rank == 0 and getattr(runner.model, "stop_training", False):
            runner.stop = True

    def _redirect(self) -> None:
        """Let callbacks write into a folder of ours."""
        self._folder = tempfile.TemporaryDirectory(prefix="firesteel-keras-")
        for number, callback in enumerate(self._callbacks):
            for name in _PLACES:
                wanted = getattr(callback, name, None)
                if isinstance(wanted, (str, os.PathLike)) and "://" not in str(wanted):
                    ours = Path(self._folder.name) / str(number)
                    is_folder = name in ("log_dir", "backup_dir")
                    setattr(callback, name, str(ours if is_folder else ours / Path(wanted).name))
                    ours.mkdir(exist_ok=True)
                    self._moved.append((ours, Path(wanted) if is_folder else Path(wanted).parent))

    def _changed(self) -> list[tuple[Path, bytes]]:
        found = []
        for ours, theirs in self._moved:
            for path in sorted(ours.rglob("*")):
                if path.is_file():
                    about = path.stat()
                    mark = (about.st_mtime_ns, about.st_size)
                    if self._seen.get(path) != mark:
                        self._seen[path] = mark
                        found.append((theirs / path.relative_to(ours), path.read_bytes()))
        return found


def _has_batch_hooks(callback: Any) -> bool:
    import keras

    names = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")
    base = keras.callbacks.Callback
    if isinstance(callback, keras.callbacks.LambdaCallback):
        return "on_train_batch_begin" in vars(callback) or "on_train_batch_end" in vars(callback)
    if type(callback).__module__.startswith("keras."):
        wants = {"ModelCheckpoint": getattr(callback, "save_freq", "epoch") != "epoch", "TerminateOnNaN": True}
        return wants.get(type(callback).__name__, False)
    return any(getattr(type(callback), name) is not getattr(base, name) for name in names)
