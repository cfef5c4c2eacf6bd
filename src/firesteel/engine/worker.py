"""One replica's life: the whole library's training loop.

Runs in a rank's child. The loop is three lines of ``Training.epoch``; around it stands what users want to see, keep and
stop. Whatever all replicas must do alike is decided from numbers that all have: steps, agreed losses, merged metrics.
"""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import psutil

from firesteel.cluster.child import Desk
from firesteel.core import registry
from firesteel.core.metrics import as_metrics
from firesteel.core.plan import Position
from firesteel.core.ports import Framework, Group
from firesteel.core.triggers import Progress
from firesteel.engine.callbacks import Callbacks, Runner
from firesteel.engine.feeds import Step, Steps, StreamSteps, spool_steps
from firesteel.engine.fold import Fold
from firesteel.engine.job import FitJob
from firesteel.engine.relay import pull
from firesteel.sync import make_sync

__all__ = ["main"]

_PROGRESS_SECONDS = 0.2


def main(desk: Desk) -> None:
    """Wake up while the task still spools, join the others, train, hand over the result."""
    job: FitJob = desk.program()
    framework = registry.framework(job.plan.program.framework)
    replica: Any = framework.replica(job.plan.program, desk.device, desk.threads)
    runner = Runner(rank=desk.rank, num_workers=desk.world, config=dict(job.config or {}))
    callbacks = Callbacks(job.plan.callbacks, runner)
    replica.main = callbacks.main
    replica.runner = runner if callbacks else None
    replica.start(job.plan.program.state)
    assignment = desk.assignment()
    group = join_group(desk)
    training = Training(desk, job, assignment, framework, replica, group, callbacks)
    training.run()
    group.close()


def join_group(desk: Desk) -> Group:
    """The collective group of this gang; a group of one needs no library."""
    if desk.world == 1:
        from firesteel.sync.solo import SoloGroup

        return SoloGroup()
    from firesteel.sync.gloo import GlooGroup

    return GlooGroup(desk.rank, desk.world, desk.board, _interface(desk.host))


def _interface(address: str) -> str | None:
    """The network interface with this address: the one by which the driver was reached."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.family == socket.AF_INET and each.address == address for each in addresses):
            return name
    return None


class Training:
    """State of one replica's training, and its loop."""

    def __init__(
        self,
        desk: Desk,
        job: FitJob,
        assignment: dict[str, Any],
        framework: Framework,
        replica: Any,
        group: Group,
        callbacks: Callbacks,
    ) -> None:
        self.desk, self.job, self.plan = desk, job, job.plan
        self.replica, self.group, self.callbacks = replica, group, callbacks
        self.runner = callbacks.runner
        self.at: Position = job.plan.position
        self.sync = make_sync(job.plan.sync, job.plan.averaging_steps)
        self.data = self._open_data(assignment, framework)
        self.validation = self._open_validation(assignment, framework)
        self.ledger: list[tuple[float, float, float, float]] = []  # of this rank since the last agreement
        self.rows_since_settled = 0
        self.best: tuple[float, Any] | None = None
        self.waited = 0
        self.last_score: float | None = None
        self.seconds = {"data": 0.0, "compute": 0.0, "agree": 0.0}
        self.told = 0.0
        self.started = time.perf_counter()
        self.started_step = self.at.step
        self.warned = False

    # --- the loop ---

    def run(self) -> None:
        """All epochs, then the result."""
        self.sync.join(self.replica, self.group)
        self._show_runner()
        self.callbacks.call("before_run")
        is_stopped = self._is_finished()
        while not is_stopped:
            is_stopped = self.epoch()
        self._restore_best()
        self.callbacks.call("after_run")
        self._settle()
        self._hand_over("result")

    def epoch(self) -> bool:
        """One epoch, or what is left of one; whether to stop."""
        self.runner.epochs = self.at.epoch
        self.callbacks.call("before_train_epoch")
        self.epoch_started = time.perf_counter()
        stop, at_end = False, False
        for batch, share, rows in self._timed(self.data.run(self.at.data_pass, self.at.pass_step)):
            begin = time.perf_counter()
            self.callbacks.call("before_train_iter")
            self.replica.seed(self.plan.seed, self.at.step, self.desk.rank)
            rate = self.replica.learning_rate
            loss = self.replica.backward(batch, share)
            middle = time.perf_counter()
            self.sync.commit(self.replica)
            self._count(begin, middle, loss, share, rows, rate)
            self.callbacks.call("after_train_iter")
            stop = self._agreed(self.runner.stop)
            at_end = self.plan.steps_per_epoch == self.at.epoch_step
            last = self.data.steps is not None and self.at.pass_step == self.data.steps
            if at_end or last:
                break
            self._by_trigger(is_epoch_end=False)
            if stop or self.at.step == self.plan.max_steps:
                break
        else:
            last = True
        if self.at.epoch_step == 0:
            return True  # an endless wait for rows would help nobody
        return self._end_epoch(is_pass_over=last, is_cut=not (at_end or last)) or stop

    def _end_epoch(self, *, is_pass_over: bool, is_cut: bool) -> bool:
        """Agree on the record, validate, adjust, keep; whether to stop."""
        if is_pass_over:
            self.at = replace(self.at, data_pass=self.at.data_pass + 1, pass_step=0)
        self._settle()
        last_loss = self._agree_losses()
        number = self.at.epoch + 1
        record: dict[str, Any] = {
            "epoch": number,
            "batch_count": self.at.epoch_step,
            "num_samples": self.at.loss_rows,
            "train_loss": self.at.loss_sum / max(1, self.at.loss_rows),
            "last_train_loss": last_loss,
        }
        plan = self.plan.validation
        if plan is not None and plan.trigger is None and (number - self.plan.initial_epoch) % plan.every_epochs == 0:
            record |= self._validate()
        elif plan is not None and plan.trigger is not None and plan.trigger.fires(self._progress(is_epoch_end=True)):
            record |= self._validate()
        self.replica.schedule("epoch", record.get("val_loss", record["train_loss"]))
        self.runner.stats = record
        self.callbacks.call("after_train_epoch")
        self.at = replace(self.at, epoch=number, epoch_step=0, loss_sum=0.0, loss_rows=0)
        self.runner.epochs = number
        if self.desk.rank == 0:
            self.desk.tell({"name": "epoch", "record": record})
        trigger = self.plan.checkpoint_trigger
        if trigger is not None and trigger.fires(self._progress(is_epoch_end=not is_cut, epoch_done=True)):
            self._hand_over("checkpoint")
        return self._patience_is_over(record) or self._is_finished() or self._agreed(self.runner.stop)

    def _is_finished(self) -> bool:
        if self.plan.max_steps is not None:
            return self.at.step >= self.plan.max_steps
        return self.at.epoch >= self.plan.epochs

    # --- what happens in every step ---

    def _timed(self, steps: Iterator[Step]) -> Iterator[Step]:
        while True:
            begin = time.perf_counter()
            step = next(steps, None)
            self.seconds["data"] += time.perf_counter() - begin
            if step is None:
                return
            yield step

    def _count(self, begin: float, middle: float, loss: float | None, share: float, rows: int, rate: float) -> None:
        now = time.perf_counter()
        self.seconds["compute"] += middle - begin
        self.seconds["agree"] += now - middle
        self.at = replace(
            self.at, step=self.at.step + 1, pass_step=self.at.pass_step + 1, epoch_step=self.at.epoch_step + 1
        )
        mine = round(share * rows)
        self.rows_since_settled += mine
        self.ledger.append(((loss or 0.0) * mine, mine, rate, time.time()))
        self.replica.schedule("batch")
        self.runner.global_step = self.desk.step = self.at.step
        if self.callbacks.main is not None:
            self.callbacks.main.on_lr_adjust(self.runner)
        if loss is not None and not math.isfinite(loss) and not self.warned:
            self.warned = True
            self.desk.tell({"name": "warning", "text": f"the loss is {loss} at step {self.at.step} on replica {self.desk.rank}"})
        if self.desk.rank == 0 and now - self.told > _PROGRESS_SECONDS:
            self.told = now
            done = self.at.step - self.started_step
            self.desk.tell(
                {
                    "name": "progress",
                    "epoch": self.at.epoch + 1,
                    "step": self.at.epoch_step,
                    "steps": self.plan.steps_per_epoch or self.data.steps,
                    "loss": loss,
                    "rows_per_second": rows * self.at.epoch_step / (now - self.epoch_started),
                    "seconds_per_step": (now - self.started) / done,
                }
            )

    def _agreed(self, flag: bool) -> bool:
        """Whether any replica says so. Without callbacks nobody can, and nothing is exchanged."""
        if not self.callbacks:
            return False
        flags = np.array([float(flag)])
        self.group.all_reduce(flags)
        return bool(flags[0] > 0)

    def _by_trigger(self, *, is_epoch_end: bool) -> None:
        validation, checkpoint = self.plan.validation, self.plan.checkpoint_trigger
        progress = self._progress(is_epoch_end=is_epoch_end)
        if validation is not None and validation.trigger is not None and validation.trigger.fires(progress):
            self._settle()
            self._validate()
        if checkpoint is not None and checkpoint.fires(progress):
            self._settle()
            self._agree_losses()
            self._hand_over("checkpoint")

    def _progress(self, *, is_epoch_end: bool, epoch_done: bool = False) -> Progress:
        epoch = self.at.epoch + (is_epoch_end and not epoch_done)
        return Progress(epoch, self.at.step, is_epoch_end, None, self.last_score)

    # --- what replicas agree on ---

    def _settle(self) -> None:
        self.sync.settle(self.replica, self.rows_since_settled)
        self.rows_since_settled = 0

    def _agree_losses(self) -> float:
        """Sum the ledger over all replicas, tell the driver, add to the epoch's account; the last step's loss."""
        if not self.ledger:
            return self.at.loss_sum / max(1, self.at.loss_rows)
        sums = np.array([[loss, rows] for loss, rows, _, _ in self.ledger])
        self.group.all_reduce(sums)
        losses = sums[:, 0] / np.maximum(sums[:, 1], 1)
        if self.desk.rank == 0:
            first = self.at.step - len(self.ledger) + 1
            self.desk.tell(
                {
                    "name": "steps",
                    "first": first,
                    "losses": losses.tolist(),
                    "rows": sums[:, 1].tolist(),
                    "rates": [rate for _, _, rate, _ in self.ledger],
                    "times": [at for _, _, _, at in self.ledger],
                    "began": time.time() - (time.perf_counter() - self.epoch_started),
                }
            )
        self.ledger.clear()
        self.at = replace(
            self.at, loss_sum=self.at.loss_sum + float(sums[:, 0].sum()), loss_rows=self.at.loss_rows + int(sums[:, 1].sum())
        )
        return float(losses[-1])

    def _validate(self) -> dict[str, Any]:
        """Every row of the validation set once; states merged over replicas."""
        assert self.validation is not None
        assert self.plan.validation is not None
        self.callbacks.call("before_val_epoch")
        fold = Fold.fresh(as_metrics(self.plan.metrics))
        for number, (batch, _, _) in enumerate(self.validation.run(0, 0)):
            if self.job.validation_stream is not None and number == self.plan.validation.steps:
                break
            self.callbacks.call("before_val_iter")
            fold.feed(self.replica, batch)
            self.callbacks.call("after_val_iter")
        whole = Fold.fresh(fold.metrics).merge(self.group.gather_bytes(fold.to_bytes()))
        self.callbacks.call("after_val_epoch")
        figures = whole.figures()
        found = {"val_loss": whole.loss} if whole.loss is not None else {}
        scalars = {k: v for k, v in figures.items() if isinstance(v, float)}
        self.last_score = next(iter(scalars.values()), whole.loss)
        if self.desk.rank == 0:
            values = scalars | ({"Loss": whole.loss} if whole.loss is not None else {})
            self.desk.tell({"name": "validation", "step": self.at.step, "time": time.time(), "values": values})
        return {**found, "val_num_samples": whole.rows, **{f"val_{name}": value for name, value in scalars.items()}}

    # --- what is kept ---

    def _patience_is_over(self, record: dict[str, Any]) -> bool:
        rule = self.plan.early_stopping
        if rule is None or rule.monitor not in record:
            return False
        value = record[rule.monitor]
        if rule.is_better(value, None if self.best is None else self.best[0]):
            self.best = (value, self._copy_weights() if rule.restore_best_weights else None)
            self.waited = 0
            return False
        self.waited += 1
        return self.waited >= max(1, rule.patience)

    def _copy_weights(self) -> Any:
        return [array.copy() for array in self.replica.weights()], [array.copy() for array in self.replica.frozen()]

    def _restore_best(self) -> None:
        if self.best is None or self.best[1] is None:
            return
        weights, frozen = self.best[1]
        for mine, kept in zip(self.replica.weights(), weights, strict=True):
            mine[...] = kept
        self.replica.load_weights(weights)
        self.replica.load_frozen(frozen)

    def _hand_over(self, name: str) -> None:
        """Send the whole state to the driver, from rank 0; every rank takes part in gathering it."""
        state = self.sync.state(self.replica)
        if self.desk.rank == 0:
            parts = list(state)
            event = {"name": name, "parts": parts, "position": asdict(self.at), "seconds": self.seconds}
            self.desk.tell(event, [state[part] for part in parts])

    def _show_runner(self) -> None:
        runner = self.runner
        runner.model = self.replica.model
        runner.optimizer = self.replica.optimizer
        runner.scheduler = self.replica.scheduler
        runner.criterion = self.replica.loss_function
        runner.epochs, runner.global_step = self.at.epoch, self.at.step
        runner._state = lambda: self.sync.state(self.replica)
        runner._pack = registry.framework(self.plan.program.framework).pack_file  # type: ignore[attr-defined]
        runner._ship = lambda path, data: self.desk.tell({"name": "file", "path": path}, [data])

    # --- where the rows are ---

    def _open_data(self, assignment: dict[str, Any], framework: Framework) -> Steps:
        plan = self.plan
        if self.job.stream is not None:
            return StreamSteps(self.job.stream, framework, self.group, plan.seed)
        assert plan.batch_size is not None
        spool = None
        if self.job.is_relayed:
            spool, self._train_files = pull(self.desk, "train", assignment["tensors"], 0, assignment["counts"][0])
        return spool_steps(
            assignment, spool, self.desk.descriptors, batch_size=plan.batch_size, seed=plan.seed, shuffle=plan.shuffle
        )

    def _open_validation(self, assignment: dict[str, Any], framework: Framework) -> Steps | None:
        plan = self.plan.validation
        if plan is None:
            return None
        if self.job.validation_stream is not None:
            return StreamSteps(self.job.validation_stream, framework, self.group, self.plan.seed)
        about = assignment["validation"]
        rows = min(about["rows"], plan.steps * plan.batch_size) if plan.steps is not None else about["rows"]
        rank, world = self.desk.rank, self.desk.world
        begin, end = rows * rank // world, rows * (rank + 1) // world
        spool, self._validation_files = pull(self.desk, "validation", about["tensors"], begin, end)
        mine = {"tensors": about["tensors"], "counts": [end - begin], "holdings": [[0, 0, 0, 1]], "blocks": []}
        size = max(1, plan.batch_size // world)
        return spool_steps(mine, spool, {}, batch_size=size, seed=0, shuffle=False)
