"""One replica's life: the whole library's training loop.

Runs in a rank's child. The loop is three lines of ``Training.step``; around it stands what users want to see, keep and
stop. Whatever all replicas must do alike is decided from numbers that all have: steps, agreed losses, merged metrics.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np

from firesteel.cluster.child import Desk
from firesteel.core import registry
from firesteel.core.errors import PlanError
from firesteel.core.metrics import as_metrics
from firesteel.core.moments import install, passing
from firesteel.core.plan import SERVER_SYNCS, Position
from firesteel.core.ports import Framework, Group, State, Sync
from firesteel.core.spec import describe, example_of, rows_of
from firesteel.core.triggers import Progress
from firesteel.data.packed import pack, unpack
from firesteel.engine.address import dial
from firesteel.engine.callbacks import Callbacks, Runner
from firesteel.engine.commits import Commits, join, split
from firesteel.engine.feeds import Step, open_training, open_validation
from firesteel.engine.fold import Fold
from firesteel.engine.groups import import_library, join_group, meets_first
from firesteel.engine.job import FitJob
from firesteel.engine.ledger import Ledger
from firesteel.engine.patience import Patience
from firesteel.sync import make_sync
from firesteel.sync.server import ServerSync

__all__ = ["main"]

_PROGRESS_SECONDS = 0.2


def main(desk: Desk) -> None:
    """Wake up while the task still spools, join the others, train, hand over the result."""
    job: FitJob = desk.program()
    install(job.probe)
    passing("wake", rank=desk.rank, generation=desk.generation)
    framework = registry.framework(job.plan.program.framework)
    with ExitStack() as company:

        def meet() -> tuple[dict[str, Any], Group]:
            assignment = desk.assignment()
            passing("join", rank=desk.rank, generation=desk.generation)
            return assignment, company.enter_context(join_group(desk, job.plan.exchange, assignment))

        met = meet() if meets_first(job.plan.exchange, desk.world) else None
        replica, callbacks = _wake(desk, job, framework)
        import_library(job.plan.exchange, desk.world)
        assignment, group = met or meet()
        Training(desk, job, assignment, framework, replica, group, callbacks).run()


def _wake(desk: Desk, job: FitJob, framework: Framework) -> tuple[Any, Callbacks]:
    """The replica, and those who watch it."""
    replica: Any = framework.replica(job.plan.program, desk.device, desk.threads)
    runner = Runner(rank=desk.rank, num_workers=desk.world, config=dict(job.config or {}))
    callbacks = Callbacks(job.plan.callbacks, runner)
    replica.main = callbacks.main
    replica.runner = runner if callbacks else None
    replica.seed(job.plan.seed)
    replica.start(job.plan.program.state)
    return replica, callbacks


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
        self.desk, self.plan = desk, job.plan
        self.replica, self.group, self.callbacks = replica, group, callbacks
        self.at = Position(**assignment["position"])
        self.data = open_training(job, desk, assignment, framework, group)
        self.validation = open_validation(job, desk, assignment, framework, group)
        self.steps: Iterator[Step] | None = None  # of the pass that is under way; a pass may span several epochs
        self.ledger = Ledger()
        self.patience = Patience(job.plan.early_stopping, self.at)
        self.rows_since_settled = 0
        self.last_loss = 0.0
        self.last_score: float | None = None
        self.validated: dict[str, Any] = {}  # the epoch's last validation
        self.inputs: list[list[Any]] = []  # what the model's inputs look like, once a batch has been seen
        self.is_stopped = False
        self.has_warned = False
        self.seconds = {"data": 0.0, "compute": 0.0, "agree": 0.0, "commit": 0.0}
        self.told = 0.0
        self.runner = callbacks.runner
        self.commits: Commits | None = None
        self.owned: tuple[list[bytes], list[int]] = ([], [])  # what each rank alone had, and its rows, at that commit
        self.tallies: list[list[Any]] = []  # what replicas had counted of the epoch, likewise
        self.learnt = b""  # what this rank's callbacks had, likewise
        self._restore(assignment.get("restore"), assignment.get("kept"))
        self.sync = self._make_sync(job)
        if job.plan.launch.max_failures or job.plan.launch.max_preemptions:
            self.commits = Commits(desk, assignment.get("kept"), self.at.step)
        self.committed = (time.perf_counter(), self.at.step)
        self._show_runner(framework)

    def _make_sync(self, job: FitJob) -> Sync:
        if job.plan.sync not in SERVER_SYNCS:
            return make_sync(job.plan.sync, job.plan.averaging_steps)
        dials = [partial(dial, address) for address in job.servers]
        return ServerSync(dials, self.data.sample, step=self.at.step)

    # --- the loop ---

    def run(self) -> None:
        """All epochs, then the result."""
        self._prepare()
        self.sync.join(self.replica, self.group)
        self._restore_own()
        self.callbacks.call("before_run")
        if self.at.epoch_step == 0:
            self._restore_callbacks()
        while not self._is_over():
            self.epoch()
            self._commit_if_due()
        if self.patience.restore(self.replica):
            self.sync.adopt(self.replica)
        self.callbacks.call("after_run")
        self._pass("result")
        self._hand_over("result")

    def epoch(self) -> None:
        """One epoch, or what is left of one; cut short where the run ends."""
        self._pass("epoch")
        self.runner.epochs = self.at.epoch
        self.callbacks.call("before_train_epoch")
        self._restore_callbacks()  # in the middle of an epoch, whose beginning they had seen
        self.epoch_began, self.epoch_first, self.epoch_rows = time.perf_counter(), self.at.step, 0
        if self.at.epoch_step == 0:
            self.validated = {}
        is_whole = False
        while not is_whole and not self._is_over():
            step = self._next_step()
            self.step(step)
            is_whole = step.is_last or self.at.epoch_step == self.plan.steps_per_epoch
            if not is_whole and not self._is_over():
                self._validate_if_due(is_epoch_end=False)
                self._keep_if_due(is_epoch_end=False)
                self._commit_if_due()
        self._end_epoch(is_whole)

    def step(self, step: Step) -> None:
        """One update, by all replicas together."""
        self.desk.beat(self.at.step + 1)
        self._pass("step")
        self.callbacks.call("before_train_iter")
        self.replica.seed(self.plan.seed, self.at.step, self.desk.rank)
        begin = time.perf_counter()
        step, share = self._weighed(step)
        loss = self.replica.backward(step.batch, share)
        rate = self.replica.learning_rate  # of the update to come; after a backward some know it without being asked
        middle = time.perf_counter()
        self.desk.beat(is_waiting=True)
        self._pass("agree")
        self.sync.commit(self.replica, has_rows=loss is not None)
        end = time.perf_counter()
        self.sync.schedule(self.replica, "batch")
        self.seconds["compute"] += middle - begin
        self.seconds["agree"] += end - middle
        self._count(step, loss, rate, end - begin)
        self.callbacks.after_update()
        self.is_stopped = self._agreed(self.runner.stop)
        self._pass("update")

    def _is_over(self) -> bool:
        if self.is_stopped:
            return True
        if self.plan.end_trigger is not None:
            return self.plan.end_trigger.fires(self._progress(is_epoch_end=self.at.epoch_step == 0))
        if self.plan.max_steps is not None:
            return self.at.step >= self.plan.max_steps
        return self.at.epoch >= self.plan.epochs

    def _next_step(self) -> Step:
        begin = time.perf_counter()
        is_fresh = self.steps is None
        self.steps = self.steps or self.data.run(self.at.data_pass, self.at.pass_step, self.at.lead)
        step = next(self.steps, None)
        if step is None and is_fresh and self.at.pass_step:  # a position in data that has become shorter since
            self.at = self.at.next_pass()
            self.steps = self.data.run(self.at.data_pass, 0)
            step = next(self.steps, None)
        if step is None:
            raise PlanError(
                f"pass {self.at.data_pass + 1} over the training data gave no rows. A creator must return something "
                f"that can be read again in every epoch: an iterator that is used up cannot"
            )
        if step.is_last:
            self.steps = None
        self.seconds["data"] += time.perf_counter() - begin
        return step

    def _count(self, step: Step, loss: float | None, rate: float, seconds: float) -> None:
        at = self.at
        passed = at.next_pass() if step.is_last else replace(at, pass_step=at.pass_step + 1)
        self.at = replace(passed, step=at.step + 1, epoch_step=at.epoch_step + 1)
        mine = rows_of(step.batch)
        self.inputs = self.inputs or describe(step.batch)
        self.rows_since_settled += mine
        self.epoch_rows += step.rows
        self.runner.global_step = self.at.step
        is_end = step.is_last or self.at.epoch_step == self.plan.steps_per_epoch
        self.ledger.add((loss or 0.0) * step.share * step.rows, mine, rate, seconds, at.epoch + is_end, is_end)
        if self.plan.watches_loss:
            self._agree_losses()
        if loss is not None and not math.isfinite(loss) and not self.has_warned:
            self.has_warned = True
            text = f"the loss is {loss} at step {self.at.step} on replica {self.desk.rank}"
            self.desk.tell({"name": "warning", "text": text})
        every = self.plan.progress_steps
        is_due = time.perf_counter() - self.told > _PROGRESS_SECONDS if every is None else self.at.step % every == 0
        if self.desk.rank == 0 and is_due:
            self._tell_progress(loss)

    def _end_epoch(self, is_whole: bool) -> None:
        """Agree on the record, validate, adjust, keep."""
        self._settle()
        self._agree_losses()
        if not is_whole:
            # Before the epoch is closed: for whoever goes on from here, its other steps are still to come.
            self._keep_if_due(is_epoch_end=False)
        done = self.at
        record: dict[str, Any] = {
            "epoch": done.epoch + 1,
            "batch_count": done.epoch_step,
            "num_samples": done.loss_rows,
            "train_loss": done.loss_sum / max(1, done.loss_rows),
            "last_train_loss": self.last_loss,
            **self._tallied(),
        }
        is_open = not is_whole and self.plan.end_trigger is not None
        if not is_open:
            self.at = replace(done, epoch=done.epoch + 1, epoch_step=0, loss_sum=0.0, loss_rows=0)
        self._validate_if_due(is_epoch_end=not is_open)
        record |= self.validated
        score = {} if self.last_score is None else {"score": self.last_score}
        self.sync.schedule(self.replica, "epoch", record | score)
        self.runner.stats = record
        self.callbacks.call("after_train_epoch")
        self.runner.epochs = self.at.epoch
        if self.desk.rank == 0:
            self.desk.tell({"name": "epoch", "record": record})
        is_patient = not self.patience.is_over(record, self.replica)
        self.at = replace(self.at, best=self.patience.best, waited=self.patience.waited)
        if is_whole:
            self._keep_if_due(is_epoch_end=True)
        self.is_stopped = self.is_stopped or self._agreed(self.runner.stop) or not is_patient

    # --- what replicas agree on ---

    def _weighed(self, step: Step) -> tuple[Step, Any]:
        """The step with this replica's share of it by mass, where the loss does not divide by rows; and all its shares.

        A loss may have parts that divide by several things: then there are as many masses, that by which the whole
        counts at last.
        """
        mass = self.replica.mass(step.batch)
        if mass is None:
            return step, step.share
        masses = np.array(mass, dtype=np.float64, ndmin=1)
        totals = masses.copy()
        self.group.all_reduce(totals)
        shares = np.divide(masses, totals, out=np.zeros_like(masses), where=totals != 0)
        share = float(shares[-1])
        return step._replace(share=share), shares if np.ndim(mass) else share

    def _agreed(self, flag: bool) -> bool:
        """Whether any replica says so. Without callbacks nobody can, and nothing is exchanged."""
        if not self.callbacks:
            return False
        flags = np.array([float(flag)])
        self.group.all_reduce(flags)
        return bool(flags[0] > 0)

    def _settle(self) -> None:
        self.sync.settle(self.replica, self.rows_since_settled)
        self.rows_since_settled = 0

    def _state(self) -> State:
        self._settle()
        return self.sync.state(self.replica)

    def _agree_losses(self) -> None:
        """Add up the ledger over all replicas, enter it in the epoch's account, tell the driver."""
        totals = self.ledger.agree(self.group)
        if totals is None:
            return
        self.last_loss = totals.losses[-1]
        at = self.at
        self.at = replace(at, loss_sum=at.loss_sum + totals.loss_sum, loss_rows=at.loss_rows + sum(totals.rows))
        if self.desk.rank == 0:
            self.desk.tell(totals.event(at.step))

    def _prepare(self) -> None:
        """Let a replica build what needs to see rows, if it is of that kind."""
        prepare = getattr(self.replica, "prepare", None)
        if prepare is None:
            return
        sample = self.data.sample()
        mine = [] if sample is None else [[n, v.dtype.str, list(v.shape[1:])] for n, v in sample.items()]
        # A rank whose own data has no rows is told by the others.
        found = next((f for f in map(json.loads, self.group.gather_bytes(json.dumps(mine).encode())) if f), None)
        if sample is not None or found is not None:
            prepare(example_of(found or [], 0) if sample is None else sample)
            self.runner.optimizer = self.replica.optimizer

    def _tallied(self, *, is_epoch_end: bool = True) -> dict[str, Any]:
        """An epoch's figures of a replica that keeps them itself, all replicas together."""
        tallies = self._tallies()
        if tallies is None:
            return {}
        read = self.replica.figures if is_epoch_end else self.replica.figures_so_far
        return dict(read([_untallied(each) for each in tallies]))

    def _tallies(self) -> list[bytes] | None:
        """What every rank's replica has counted in this epoch, where it is of that kind."""
        tally = getattr(self.replica, "tally", None)
        if tally is None:
            return None
        header, data = pack({f"{place:04d}": values for place, values in enumerate(tally())})
        note = header.encode()
        return self.group.gather_bytes(len(note).to_bytes(8, "little") + note + data)

    # --- what is seen and kept on the way ---

    def _progress(self, *, is_epoch_end: bool) -> Progress:
        has_moved = self.at.step > self.plan.position.step
        loss = self.last_loss if has_moved else None
        return Progress(self.at.epoch, self.at.step, is_epoch_end and has_moved, loss, self.last_score)

    def _validate_if_due(self, *, is_epoch_end: bool) -> None:
        plan = self.plan.validation
        if plan is None:
            return
        if plan.trigger is not None:
            is_due = plan.trigger.fires(self._progress(is_epoch_end=is_epoch_end))
        else:
            is_due = is_epoch_end and self.at.epoch % plan.every_epochs == 0
        if is_due:
            self._settle()
            self.validated = self._validate()

    def _validate(self) -> dict[str, Any]:
        """Every row of the validation set once; states merged over replicas."""
        assert self.validation is not None
        self.callbacks.call("before_val_epoch")
        fold = Fold.fresh(as_metrics(self.plan.metrics))
        if hasattr(self.replica, "adopt"):  # figures that only the model can read, also on a rank that has no row
            self.replica.adopt(fold.metrics)
        for step in self.validation.run(0, 0):
            self.desk.beat()
            self._pass("validate")
            self.callbacks.call("before_val_iter")
            fold.feed(self.replica, step.batch)
            self.callbacks.call("after_val_iter")
        whole = Fold.fresh(fold.metrics).merge(self.group.gather_bytes(fold.to_bytes()))
        scalars = {name: value for name, value in whole.figures().items() if isinstance(value, float)}
        self.last_score = next((value for name, value in scalars.items() if name != "loss"), whole.loss)
        if self.desk.rank == 0:
            values = scalars if whole.loss is None else {"Loss": whole.loss, **scalars}
            values = {"Loss" if name == "loss" else name: value for name, value in values.items()}
            self.desk.tell({"name": "validation", "step": self.at.step, "time": time.time(), "values": values})
        found: dict[str, Any] = {} if whole.loss is None else {"val_loss": whole.loss}
        found |= {"val_num_samples": whole.rows, **{f"val_{name}": value for name, value in scalars.items()}}
        self.runner.stats = found
        self.callbacks.call("after_val_epoch")
        return found

    def _keep_if_due(self, *, is_epoch_end: bool) -> None:
        trigger = self.plan.checkpoint_trigger
        if trigger is not None and trigger.fires(self._progress(is_epoch_end=is_epoch_end)):
            self._agree_losses()
            self._pass("checkpoint")
            self._hand_over("checkpoint")

    def _hand_over(self, name: str) -> None:
        """Send the whole state to the driver, from rank 0; every rank takes part in gathering it."""
        state = self._state()
        if self.desk.rank == 0:
            event: dict[str, Any] = {"name": name, "parts": list(state), "position": asdict(self.at)}
            event |= {"seconds": self.seconds, "inputs": self.inputs}
            self.desk.tell(event, list(state.values()))

    # --- what is there after a loss ---

    def _commit_if_due(self) -> None:
        """Keep the whole state beside this process. Changes nothing: a run is the same with and without."""
        if self.commits is None or self.at.step < self.commits.due or self._is_over():
            return
        began, first = self.committed
        begin = time.perf_counter()
        self._agree_losses()
        state = self.sync.state(self.replica)
        own = self.group.gather_bytes(self.sync.own(self.replica))
        rows = np.zeros(self.group.size, dtype=np.int64)
        rows[self.group.rank] = self.rows_since_settled
        self.group.all_reduce(rows)
        best, kinds = self.patience.pack()
        note = {
            "position": asdict(self.at),
            "best": kinds,
            "last_loss": self.last_loss,
            "last_score": self.last_score,
            "validated": self.validated,
            "rows": rows.tolist(),
        }
        parts = {f"state {name}": data for name, data in state.items()}
        parts |= {f"own {rank}": data for rank, data in enumerate(own)} | best
        parts |= {f"tally {rank}": data for rank, data in enumerate(self._tallies() or [])}
        if self.callbacks:
            learnt = self.group.gather_bytes(self.callbacks.to_bytes())
            parts |= {f"callbacks {rank}": data for rank, data in enumerate(learnt)}
        try:
            self.commits.write(self.at.step, self.at.epoch, join(note, dict(parts)))
            self._pass("commit")
            self.commits.leave_note()
        except OSError as error:
            # Not the end of the training: a loss would only cost more steps than it has to.
            text = f"replica {self.desk.rank} could not keep a commit point: {error.strerror}"
            self.desk.tell({"name": "warning", "text": text})
        end = time.perf_counter()
        cost = np.array([end - begin, (begin - began) / max(1, self.at.step - first)])
        self.group.all_reduce(cost)
        self.commits.plan(self.at.step, cost[0], cost[1])
        self.committed = (time.perf_counter(), self.at.step)
        self.seconds["commit"] += self.committed[0] - begin

    def _restore(self, origin: int | str | None, kept: dict[str, Any] | None) -> None:
        """Take over the newest state there is: a rank's, or the driver's. All replicas get it from one."""
        if origin is None:
            return
        self._pass("restore")
        root = 0 if origin == "driver" else int(origin)
        data = b""
        if self.group.rank == root:
            data = self._from_driver() if origin == "driver" else Commits(self.desk, kept, 0).read()
        size = np.array([len(data)], dtype=np.int64)
        self.group.broadcast(size, root)
        whole = np.frombuffer(bytearray(data or int(size[0])), dtype=np.uint8)
        self.group.broadcast(whole, root)
        note, parts = split(whole.data)
        self.replica.load({name[6:]: part for name, part in parts.items() if name.startswith("state ")})
        self.at = Position(**note["position"])
        self.last_loss, self.last_score = note.get("last_loss", 0.0), note.get("last_score")
        self.validated = note.get("validated", {})
        self.patience = Patience(self.plan.early_stopping, self.at)
        if note.get("best"):
            self.patience.unpack(parts, note["best"])
        rows = note.get("rows", [])
        self.owned = [parts[f"own {rank}"] for rank in range(len(rows))], rows
        tallies = [_untallied(parts[name]) for name in parts if name.startswith("tally ")]
        self.learnt = parts.get(f"callbacks {self.desk.rank}", b"")
        # The sums of all ranks go on in one of them.
        self.tallies = tallies if self.desk.rank == 0 else []
        if len(rows) == self.group.size:
            self.rows_since_settled = rows[self.group.rank]

    def _from_driver(self) -> bytes:
        about, _ = self.desk.fetch({"state": "size"})
        pieces = [self.desk.fetch({"state": place})[1][0] for place in range(0, about["bytes"], about["piece"])]
        return b"".join(pieces)

    def _restore_own(self) -> None:
        own, rows = self.owned
        self.sync.restore(self.replica, own, rows)
        self.owned = [], []
        if self.tallies:
            self.replica.load_tally(self.tallies)
            self.tallies = []

    def _restore_callbacks(self) -> None:
        if self.learnt:
            self.callbacks.load(self.learnt)
            self.learnt = b""

    def _pass(self, name: str) -> None:
        passing(name, rank=self.desk.rank, generation=self.desk.generation, epoch=self.at.epoch, step=self.at.step)

    def _tell_progress(self, loss: float | None) -> None:
        self.told = time.perf_counter()
        elapsed = self.told - self.epoch_began
        self.desk.tell(
            {
                "name": "progress",
                "epoch": self.at.epoch + 1,
                "step": self.at.epoch_step,
                "steps": self.plan.steps_per_epoch or self.data.steps,
                "loss": loss,
                "rows_per_second": self.epoch_rows / elapsed,
                "seconds_per_step": elapsed / (self.at.step - self.epoch_first),
            }
        )

    def _show_runner(self, framework: Any) -> None:
        runner, replica = self.runner, self.replica
        runner.model, runner.optimizer = replica.model, replica.optimizer
        runner.scheduler, runner.criterion = replica.scheduler, replica.loss_function
        runner.epochs, runner.global_step = self.at.epoch, self.at.step
        runner.total_epochs = self.plan.epochs
        runner._state = self._state
        runner._figures = partial(self._tallied, is_epoch_end=False)
        runner._pack = getattr(framework, "pack_file", None)
        runner._mark = getattr(replica, "mark", None)
        runner._parameters = getattr(replica, "parameters", None)
        runner._files = getattr(replica, "files", None)
        follow = getattr(replica, "follow", None)
        runner._follow = None if follow is None else lambda: follow(self.group)
        runner._ship = lambda path, data: self.desk.tell({"name": "file", "path": path}, [data])


def _untallied(whole: bytes) -> list[Any]:
    size = int.from_bytes(whole[:8], "little")
    return list(unpack(bytes(whole[8 : 8 + size]).decode(), whole[8 + size :]).values())
