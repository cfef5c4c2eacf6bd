"""What users hook into a training: callbacks and the runner they are given. They run in every replica.

The words and the order of the hooks are those of Orca's torch callbacks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from firesteel.core.errors import PlanError
from firesteel.engine import kept

__all__ = [
    "Callback",
    "Callbacks",
    "MainCallback",
    "MaxstepsCallback",
    "ModelCheckpoint",
    "Runner",
    "TensorBoardCallback",
    "TqdmCallback",
]


class Runner:
    """A training as a callback sees it.

    Attributes:
        model, optimizer, scheduler, criterion: the replica's own objects.
        batch, output, target, loss: of the current step, in this replica.
        epochs: epochs done before the current one.
        total_epochs: how many are asked for, in all.
        global_step: updates done.
        rank, num_workers, config: who this replica is, and the estimator's config.
        stop: set it to end all replicas after this step.
    """

    def __init__(self, *, rank: int, num_workers: int, config: dict[str, Any]) -> None:
        self.rank = rank
        self.num_workers = num_workers
        self.config = config
        self.model: Any = None
        self.optimizer: Any = None
        self.scheduler: Any = None
        self.criterion: Any = None
        self.batch: Any = None
        self.output: Any = None
        self.target: Any = None
        self.loss: Any = None
        self.epochs = 0
        self.total_epochs = 0
        self.global_step = 0
        self.stop = False
        self.stats: dict[str, Any] = {}
        """The last epoch's record, from ``after_train_epoch`` on; a validation's figures in ``after_val_epoch``."""
        self._kept: dict[str, Any] = {}
        self._state: Callable[[], dict[str, bytes]] | None = None
        self._figures: Callable[[], dict[str, Any]] | None = None
        self._pack: Callable[[dict[str, bytes], dict[str, Any]], bytes] | None = None
        self._ship: Callable[[str, bytes], None] | None = None
        self._mark: Callable[[], None] | None = None
        self._follow: Callable[[], None] | None = None
        self._parameters: Callable[[], dict[str, Any]] | None = None
        self._files: Callable[[int], dict[str, bytes]] | None = None

    def put(self, key: str, value: Any) -> None:
        """Keep a value for other callbacks; a key that is there already is a ``KeyError``."""
        if key in self._kept:
            raise KeyError(f"{key!r} is kept already; use update")
        self._kept[key] = value

    def update(self, key: str, value: Any) -> None:
        """Keep a value, whether or not the key is there."""
        self._kept[key] = value

    def get(self, key: str, default: Any = None) -> Any:
        """A kept value."""
        return self._kept.get(key, default)

    def remove(self, key: str) -> None:
        """Forget a kept value."""
        self._kept.pop(key, None)

    def file(self, *, weights_only: bool = False) -> bytes:
        """The training as one safetensors file. A collective: all replicas must call it."""
        assert self._state is not None
        assert self._pack is not None
        state = self._state()
        if weights_only:
            state = {"model": state["model"]}
        return self._pack(state, {"epoch": self.epochs, "step": self.global_step})

    def parameters(self) -> dict[str, Any]:
        """The weights of this replica as arrays, by name."""
        if self._parameters is not None:
            return dict(self._parameters())
        return {name: each.detach().cpu().numpy() for name, each in self.model.named_parameters()}

    def files(self, epoch: int) -> dict[str, bytes]:
        """The model as its own framework saves it after an epoch, by the end of each file's name."""
        assert self._files is not None
        return self._files(epoch)

    def figures(self) -> dict[str, Any]:
        """The epoch's figures so far, all replicas together, of a model that keeps them itself. A collective."""
        assert self._figures is not None
        return self._figures()

    def follow(self, act: Callable[[], None]) -> None:
        """Let ``act`` change the model on replica 0, and all others do the same. A collective."""
        if self._mark is None or self._follow is None:  # a task that scores has nobody beside it
            act()
            return
        self._mark()
        if self.rank == 0:
            act()
        self._follow()

    def ship(self, path: str, data: bytes) -> None:
        """Put a file on the driver's disk."""
        assert self._ship is not None
        self._ship(path, data)


class Callback:
    """Override what you need. Train, val and pred hooks call the general ones unless overridden.

    After the loss of a process, attributes that are data (numbers, text, arrays, lists and dicts of these) go on from
    where the training does; the others are what ``before_run`` and ``before_train_epoch``, which are called again, make
    of them. A callback that has ``state_dict()`` and ``load_state_dict(state)`` says itself what goes on.
    """

    def before_run(self, runner: Runner) -> None:
        """Before the first epoch."""

    def after_run(self, runner: Runner) -> None:
        """After the last epoch."""

    def before_epoch(self, runner: Runner) -> None:
        """Before each epoch."""

    def after_epoch(self, runner: Runner) -> None:
        """After each epoch."""

    def before_iter(self, runner: Runner) -> None:
        """Before each step."""

    def after_iter(self, runner: Runner) -> None:
        """After each step."""

    def before_train_epoch(self, runner: Runner) -> None:
        """Before each training epoch."""
        self.before_epoch(runner)

    def after_train_epoch(self, runner: Runner) -> None:
        """After each training epoch, with its record in ``runner.stats``."""
        self.after_epoch(runner)

    def before_train_iter(self, runner: Runner) -> None:
        """Before each training step."""
        self.before_iter(runner)

    def after_train_iter(self, runner: Runner) -> None:
        """After each training step."""
        self.after_iter(runner)

    def before_val_epoch(self, runner: Runner) -> None:
        """Before each validation."""
        self.before_epoch(runner)

    def after_val_epoch(self, runner: Runner) -> None:
        """After each validation."""
        self.after_epoch(runner)

    def before_val_iter(self, runner: Runner) -> None:
        """Before each batch of a validation."""
        self.before_iter(runner)

    def after_val_iter(self, runner: Runner) -> None:
        """After each batch of a validation."""
        self.after_iter(runner)

    def before_pred_epoch(self, runner: Runner) -> None:
        """Before a prediction."""
        self.before_epoch(runner)

    def after_pred_epoch(self, runner: Runner) -> None:
        """After a prediction."""
        self.after_epoch(runner)

    def before_pred_iter(self, runner: Runner) -> None:
        """Before each batch of a prediction."""
        self.before_iter(runner)

    def after_pred_iter(self, runner: Runner) -> None:
        """After each batch of a prediction."""
        self.after_iter(runner)

    def every_n_epoch(self, runner: Runner, n: int) -> bool:
        """Whether the epoch that is ending is an n-th one."""
        return n > 0 and (runner.epochs + 1) % n == 0

    def every_n_iter(self, runner: Runner, n: int) -> bool:
        """Whether the updates done are a multiple of n."""
        return n > 0 and runner.global_step % n == 0


class MainCallback(Callback):
    """Says how a batch becomes output, target and loss. At most one; backward, reduction and update stay ours."""

    def on_train_forward(self, runner: Runner) -> None:
        """Set ``runner.output``, ``.target`` and ``.loss`` (a mean over the batch's rows)."""
        self._forward(runner)

    def on_val_forward(self, runner: Runner) -> None:
        """The same while validating."""
        self._forward(runner)

    def on_pred_forward(self, runner: Runner) -> None:
        """Set ``runner.output``; ``runner.batch`` has the features alone."""
        runner.output = runner.model(*runner.batch)

    def on_lr_adjust(self, runner: Runner) -> None:
        """Override to advance ``runner.scheduler`` yourself, after each step."""

    def _forward(self, runner: Runner) -> None:
        *features, target = runner.batch
        runner.output = runner.model(*features)
        runner.target = target
        runner.loss = None
        if runner.criterion is not None:
            runner.loss = runner.criterion(runner.output, target)


class Callbacks:
    """A list of callbacks as one; empty lists cost nothing per step."""

    def __init__(self, callbacks: tuple[Any, ...], runner: Runner) -> None:
        self.runner = runner
        self._callbacks = callbacks
        self.main = find_main(callbacks)
        self._heavy = [kept.heavy(callback) for callback in callbacks]

    def __bool__(self) -> bool:
        return bool(self._callbacks)

    def call(self, hook: str) -> None:
        """Call this hook of every callback, in their order."""
        for callback in self._callbacks:
            getattr(callback, hook)(self.runner)

    def to_bytes(self) -> bytes:
        """What they have learnt so far, for a commit point."""
        return kept.to_bytes([kept.plain(self.runner._kept), *map(kept.state_of, self._callbacks, self._heavy)])

    def load(self, data: bytes) -> None:
        """Let them go on from there."""
        shared, *states = kept.from_bytes(data)
        self.runner._kept |= shared
        for callback, state in zip(self._callbacks, states, strict=True):
            kept.load(callback, state)

    def after_update(self) -> None:
        """What follows every update: the main callback's own schedule, then ``after_train_iter``."""
        if self.main is not None:
            self.main.on_lr_adjust(self.runner)
        self.call("after_train_iter")


def find_main(callbacks: tuple[Any, ...]) -> MainCallback | None:
    """The one ``MainCallback``, if there is one."""
    mains = [callback for callback in callbacks if isinstance(callback, MainCallback)]
    if len(mains) > 1:
        raise PlanError(f"there may be one MainCallback, not {len(mains)}")
    return mains[0] if mains else None


class ModelCheckpoint(Callback):
    """Saves the training as it goes on, from replica 0, to the driver's disk.

    Args:
        filepath: where; ``{epoch}`` and ``{iter}`` become ``epoch=3`` and ``iter=40``, and ``.ckpt`` is added.
            ``last.ckpt`` in the same folder is written at the end.
        save_weights_only: leave the optimizer's state out.
        by_epoch: whether ``interval`` counts epochs or updates.
        interval: how often; -1 = only at the end.
    """

    def __init__(
        self, filepath: str = "", save_weights_only: bool = False, by_epoch: bool = True, interval: int = -1
    ) -> None:
        self.filepath = filepath
        self.save_weights_only = save_weights_only
        self.by_epoch = by_epoch
        self.interval = interval

    def after_train_epoch(self, runner: Runner) -> None:
        """Save when an interval of epochs is over."""
        if self.by_epoch and self.every_n_epoch(runner, self.interval):
            self._save(runner, self._name(runner.epochs + 1, runner.global_step))

    def after_train_iter(self, runner: Runner) -> None:
        """Save when an interval of updates is over."""
        if not self.by_epoch and self.every_n_iter(runner, self.interval):
            self._save(runner, self._name(runner.epochs + 1, runner.global_step))

    def after_run(self, runner: Runner) -> None:
        """Save the end."""
        self._save(runner, os.path.join(os.path.dirname(self.filepath), "last.ckpt"))

    def _name(self, epoch: int, step: int) -> str:
        name = self.filepath.replace("{epoch}", f"epoch={epoch}").replace("{iter}", f"iter={step}")
        return name if name.endswith(".ckpt") else f"{name}.ckpt"

    def _save(self, runner: Runner, path: str) -> None:
        data = runner.file(weights_only=self.save_weights_only)
        if runner.rank == 0:
            runner.ship(path, data)


class TensorBoardCallback(Callback):
    """Scalars for TensorBoard, from replica 0, written on the driver.

    Args:
        log_dir: where; default ``runs`` in the working directory.
        freq: ``"epoch"``, ``"batch"``, or every so many updates.
    """

    def __init__(self, log_dir: str | None = None, freq: str | int = "epoch", **kwargs: Any) -> None:
        if freq not in ("epoch", "batch") and not (isinstance(freq, int) and freq > 0):
            raise PlanError(f'freq must be "epoch", "batch" or a positive int, not {freq!r}')
        self.log_dir = log_dir or "runs"
        self.freq = freq
        self.options = kwargs
        self._rows: list[tuple[int, dict[str, float]]] = []

    def after_train_iter(self, runner: Runner) -> None:
        """Note the step's loss."""
        every = 1 if self.freq == "batch" else self.freq
        if isinstance(every, int) and runner.global_step % every == 0 and runner.loss is not None:
            self._rows.append((runner.global_step, {"train_loss": float(runner.loss)}))

    def after_train_epoch(self, runner: Runner) -> None:
        """Note the epoch's record."""
        if self.freq == "epoch":
            numbers = {key: value for key, value in runner.stats.items() if isinstance(value, float)}
            self._rows.append((runner.global_step, numbers))

    def after_run(self, runner: Runner) -> None:
        """Write everything."""
        if runner.rank == 0:
            from firesteel.engine.summary import event_file

            name, data = event_file(self._rows)
            runner.ship(os.path.join(self.log_dir, name), data)


class TqdmCallback(Callback):
    """A progress bar in replica 0's own log; the driver shows one without it."""

    def before_train_epoch(self, runner: Runner) -> None:
        """Start a bar."""
        if runner.rank == 0:
            from tqdm import tqdm

            self._bar = tqdm(desc=f"epoch {runner.epochs + 1}", unit="step", file=sys.stderr, mininterval=1.0)

    def after_train_iter(self, runner: Runner) -> None:
        """Move it."""
        if runner.rank == 0:
            self._bar.update()

    def after_train_epoch(self, runner: Runner) -> None:
        """End it."""
        if runner.rank == 0:
            self._bar.close()


class MaxstepsCallback(Callback):
    """Ends the training after so many updates."""

    def __init__(self, max_step: int = 100) -> None:
        self.max_step = max_step

    def after_train_iter(self, runner: Runner) -> None:
        """Stop when they are done."""
        if runner.global_step >= self.max_step:
            runner.stop = True
