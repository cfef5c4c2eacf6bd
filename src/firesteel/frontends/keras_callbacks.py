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

from firesteel.cluster.travel import pack, unpack
from firesteel.core.errors import PlanError, UnsupportedError
from firesteel.engine.callbacks import Callback, Runner
from firesteel.engine.kept import heavy, plain

__all__ = ["KerasCallbacks", "check_callbacks"]

_PLACES = ("filepath", "filename", "log_dir", "backup_dir")
_TRAIN_HOOKS = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")
_TEST_HOOKS = ("on_test_batch_begin", "on_test_batch_end")
_OURS = ("epoch", "batch_count", "num_samples", "train_loss", "last_train_loss", "val_num_samples")


def check_callbacks(callbacks: tuple[Any, ...]) -> list[Any]:
    """The callbacks, all of them Keras's own kind; else a sentence on what is wrong."""
    import keras

    for each in callbacks:
        if not isinstance(each, keras.callbacks.Callback):
            raise PlanError(f"callbacks must be keras.callbacks.Callback, not {type(each).__qualname__}")
        if isinstance(each, keras.callbacks.BackupAndRestore):
            raise UnsupportedError(
                "BackupAndRestore would not see the other replicas; pass model_dir to from_keras, and "
                "checkpoint_trigger and resume=True to fit"
            )
    return list(callbacks)


class KerasCallbacks(Callback):
    """A list of ``keras.callbacks.Callback`` as one of ours."""

    def __init__(self, callbacks: list[Any]) -> None:
        self._callbacks = callbacks
        # On the driver, where the files are that rows are to be added to.
        self._begun = {place: _text(each) for place, each in _loggers(callbacks) if each.append}
        self._packed: bytes | None = None
        self._is_by_batch = any(_has_hooks(each, _TRAIN_HOOKS) for each in callbacks)
        self._sees_tests = any(_has_hooks(each, _TEST_HOOKS) for each in callbacks)
        self._list: Any = None
        self._heavy: list[dict[str, Any]] = []
        self._added: dict[str, float] = {}
        self._folder: Any = None
        self._moved: list[tuple[Path, Path]] = []
        self._seen: dict[Path, tuple[int, int]] = {}
        self._step = 0
        self._step_tested = 0
        self._is_training = False

    def __getstate__(self) -> dict[str, Any]:
        # Opened by replica 0 once it runs, not where it arrives: that would import Keras before its backend is chosen.
        return {**self.__dict__, "_callbacks": [], "_packed": pack(self._callbacks, "callbacks")}

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
        """``on_train_batch_end``, with everybody's figures of the epoch so far."""
        if self._is_by_batch:
            logs = runner.figures()
            self._in_step(runner, lambda: self._list.on_train_batch_end(self._step, logs))
        self._step += 1

    def after_train_epoch(self, runner: Runner) -> None:
        """``on_epoch_end``, with everybody's figures."""
        logs = {name: value for name, value in runner.stats.items() if name not in _OURS}
        runner.follow(lambda: self._list.on_epoch_end(runner.epochs, logs))
        runner.stats |= {name: value for name, value in self._added.items() if name not in runner.stats}
        self._obey(runner)

    def before_val_epoch(self, runner: Runner) -> None:
        """``on_test_begin``."""
        self._step_tested = 0
        runner.follow(lambda: self._opened(runner).on_test_begin())

    def before_val_iter(self, runner: Runner) -> None:
        """``on_test_batch_begin``, on replica 0 alone: replicas may have different numbers of batches."""
        if runner.rank == 0:
            self._list.on_test_batch_begin(self._step_tested)

    def after_val_iter(self, runner: Runner) -> None:
        """``on_test_batch_end``, with replica 0's figures so far."""
        if runner.rank == 0:
            self._list.on_test_batch_end(self._step_tested, self._figures_here(runner))
            self._step_tested += 1

    def after_val_epoch(self, runner: Runner) -> None:
        """``on_test_end``."""
        logs = {name.removeprefix("val_"): value for name, value in runner.stats.items() if name not in _OURS}
        runner.follow(lambda: self._list.on_test_end(logs))
        self._close_if_alone()

    def before_pred_epoch(self, runner: Runner) -> None:
        """``on_predict_begin``, in each task."""
        self._step_tested = 0
        self._opened(runner).on_predict_begin()

    def before_pred_iter(self, runner: Runner) -> None:
        """``on_predict_batch_begin``."""
        self._list.on_predict_batch_begin(self._step_tested)

    def after_pred_iter(self, runner: Runner) -> None:
        """``on_predict_batch_end``."""
        self._list.on_predict_batch_end(self._step_tested)
        self._step_tested += 1

    def after_pred_epoch(self, runner: Runner) -> None:
        """``on_predict_end``."""
        self._list.on_predict_end()
        self._close_if_alone()

    def after_run(self, runner: Runner) -> None:
        """``on_train_end``."""
        runner.follow(lambda: self._list.on_train_end())
        self._obey(runner)
        if self._folder is not None:
            self._folder.cleanup()

    def state_dict(self) -> dict[str, Any]:
        """What the callbacks have learnt, where they run."""
        if self._list is None:
            return {}
        ours = self._folder.name
        states = []
        for callback, large in zip(self._callbacks, self._heavy, strict=True):
            state = plain(vars(callback), large)
            # A folder of this process is not the next one's.
            states.append({n: value for n, value in state.items() if not (isinstance(value, str) and ours in value)})
        return {"step": self._step, "added": self._added, "states": states, "tables": self._tables()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The reverse, once they have begun."""
        if not state:
            return
        self._step, self._added = state["step"], state["added"]
        for place, (callback, learnt) in enumerate(zip(self._callbacks, state["states"], strict=True)):
            vars(callback).update(learnt)
            if place in state["tables"]:
                _continue_table(callback, state["tables"][place])

    def _tables(self) -> dict[int, str]:
        """What CSV files hold so far: the next one begins with it."""
        ours = self._folder.name
        return {place: _text(callback) for place, callback in _loggers(self._callbacks) if ours in callback.filename}

    def _figures_here(self, runner: Runner) -> dict[str, float]:
        """Those of this process alone, where a callback may want to see them."""
        return dict(runner.model.get_metrics_result()) if self._sees_tests else {}

    def _begin(self, runner: Runner) -> None:
        self._is_training = True
        self._opened(runner).on_train_begin()

    def _close_if_alone(self) -> None:
        """After a scoring: files that callbacks wrote there stay there, and are gone with it."""
        if not self._is_training and self._folder is not None:
            self._folder.cleanup()
            self._list = self._folder = None

    def _opened(self, runner: Runner) -> Any:
        """Keras's list of the callbacks, made where it is needed first."""
        import keras

        if self._list is not None:
            return self._list
        if self._packed is not None:
            self._callbacks, self._packed = unpack(self._packed), None
        self._heavy = [heavy(each) for each in self._callbacks]
        self._redirect()
        runner.model.stop_training = False
        # What a callback adds to an epoch's figures (the learning rate) is part of the record, as in Keras.
        last = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: self._added.update(logs))
        self._list = keras.callbacks.CallbackList(
            [*self._callbacks, last], model=runner.model, epochs=runner.total_epochs
        )
        return self._list

    def _in_step(self, runner: Runner, act: Callable[[], None]) -> None:
        if self._is_by_batch:
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
                    if number in self._begun:
                        Path(callback.filename).write_text(self._begun[number], newline="")
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


def _loggers(callbacks: list[Any]) -> list[tuple[int, Any]]:
    import keras

    return [(place, each) for place, each in enumerate(callbacks) if isinstance(each, keras.callbacks.CSVLogger)]


def _text(logger: Any) -> str:
    """What its file holds; nothing of one that is not there yet."""
    try:
        with open(logger.filename, newline="") as file:
            return file.read()
    except OSError:
        return ""


def _continue_table(logger: Any, text: str) -> None:
    """Let a logger that has begun its file go on behind these lines."""
    logger.csv_file.seek(0)
    logger.csv_file.truncate()
    logger.csv_file.write(text)
    logger.csv_file.flush()
    logger.append_header = not text


def _has_hooks(callback: Any, names: tuple[str, ...]) -> bool:
    """Whether a callback does something at one of these. Keras's own have them all, and few mean it."""
    import keras

    if isinstance(callback, keras.callbacks.LambdaCallback):
        return any(name in vars(callback) for name in names)
    if type(callback).__module__.startswith("keras."):
        by_batch = {"ModelCheckpoint": getattr(callback, "save_freq", "epoch") != "epoch", "TerminateOnNaN": True}
        return names == _TRAIN_HOOKS and by_batch.get(type(callback).__name__, False)
    return any(getattr(type(callback), name) is not getattr(keras.callbacks.Callback, name) for name in names)
