"""Plans: what a front end asks of the engine, as frozen values: printed, compared and tested without Spark."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from firesteel.core.errors import PlanError, UnknownName
from firesteel.core.program import Program
from firesteel.core.spec import TensorSpec
from firesteel.core.triggers import Trigger

__all__ = [
    "LIBRARIES",
    "SERVER_SYNCS",
    "SYNCS",
    "Clipping",
    "EarlyStopping",
    "Exchange",
    "Fit",
    "Launch",
    "Map",
    "Reduce",
    "Turns",
    "Validation",
    "positive",
]

SERVER_SYNCS = ("hogwild", "locked")
SYNCS = ("all-reduce", "asynchronous", "averaging", "native", "sharded", *SERVER_SYNCS)
LIBRARIES = {"gloo": (), "horovod": ("horovod",), "kvstore": ("mxnet",)}
"""By which replicas can exchange buffers, and the packages that each needs on every task."""


def positive(value: object, name: str, *, none: bool = False) -> int | None:
    """``value`` as a positive int (numpy's ints count); ``None`` passes where ``none``. Raises ``PlanError``."""
    if value is None and none:
        return None
    number = None if isinstance(value, bool) else getattr(value, "__index__", lambda: None)()
    if number is None or number <= 0:
        raise PlanError(f"{name} must be a positive int, not {value!r}")
    return int(number)


@dataclass(frozen=True)
class Clipping:
    """What is done to a step's gradient before the update: elements into a range, or the whole to a norm."""

    low: float | None = None
    high: float | None = None
    norm: float | None = None

    @classmethod
    def constant(cls, low: float, high: float) -> Clipping:
        """Each element into [low, high]."""
        if not low < high:
            raise PlanError(f"gradient clipping needs min < max, not {low!r} and {high!r}")
        return cls(low=float(low), high=float(high))

    @classmethod
    def l2_norm(cls, norm: float) -> Clipping:
        """The gradient over all parameters together, scaled down to this norm when it is longer."""
        if not norm > 0:
            raise PlanError(f"clip_norm must be positive, not {norm!r}")
        return cls(norm=float(norm))


@dataclass(frozen=True)
class EarlyStopping:
    """Stop when a monitored value has not improved for ``patience`` epochs.

    Args:
        monitor: a key of the epoch's record.
        mode: ``"min"``, ``"max"``, or ``"auto"``: max for names with "acc", "auc", "precision", "recall" or "f1".
        baseline: improvement counts only beyond this value.
        restore_best_weights: end with the weights of the best epoch.
    """

    monitor: str = "val_loss"
    patience: int = 0
    min_delta: float = 0.0
    mode: str = "auto"
    baseline: float | None = None
    restore_best_weights: bool = False

    def __post_init__(self) -> None:
        if self.mode not in ("auto", "min", "max"):
            raise UnknownName("mode of EarlyStopping", self.mode, ("auto", "min", "max"))
        if self.patience < 0:
            raise PlanError(f"patience must not be negative, not {self.patience!r}")

    @property
    def is_max(self) -> bool:
        """Whether larger is better."""
        if self.mode != "auto":
            return self.mode == "max"
        name = self.monitor.lower()
        return any(part in name for part in ("acc", "auc", "precision", "recall", "f1"))

    def is_better(self, value: float, best: float | None) -> bool:
        """Whether ``value`` improves on ``best`` (or on the baseline, before there is a best)."""
        reference = self.baseline if best is None else best
        if reference is None:
            return value == value  # anything but NaN
        return value > reference + self.min_delta if self.is_max else value < reference - self.min_delta


@dataclass(frozen=True)
class Launch:
    """Run a main function on ``world`` tasks at the same time.

    Args:
        world: how many.
        max_failures: how many losses of processes, connections or hosts are got over; a user's error is never.
        max_preemptions: how many losses to somebody who took the host away.
        min_workers: with how many ranks to go on when nobody takes a lost one's seat; default all.
        roles: what each rank is, where they are not all the same.
    """

    world: int
    max_failures: int = 3
    max_preemptions: int = 16
    min_workers: int | None = None
    roles: tuple[str, ...] = ()
    threads: int | None = None
    """Of each rank's process; default: its task's cores."""

    def __post_init__(self) -> None:
        for name in ("max_failures", "max_preemptions"):
            value = getattr(self, name)
            if value != 0 or isinstance(value, bool):
                positive(value, f"{name}, unless it is 0,")
        if self.min_workers is not None and not 1 <= (positive(self.min_workers, "min_workers") or 0) <= self.world:
            raise PlanError(f"min_workers must be between 1 and the {self.world} replicas there are")


@dataclass(frozen=True)
class Exchange:
    """By which library replicas exchange buffers.

    Args:
        library: one of ``LIBRARIES``.
        kind: which of its kinds, where it has some.
        servers: how many run beside the ranks, where it has some; default as many.
        in_memory: whether ranks of one machine rather exchange in memory that they share.
    """

    library: str = "gloo"
    kind: str = ""
    servers: int | None = None
    in_memory: bool = True

    def __post_init__(self) -> None:
        if self.library not in LIBRARIES:
            raise UnknownName("library to exchange by", self.library, LIBRARIES)

    @property
    def is_first(self) -> bool:
        """Whether ranks meet before the user's functions run, which may ask this library who they are."""
        return self.library == "horovod"

    @property
    def packages(self) -> tuple[str, ...]:
        """What must be the same on the driver and on every task."""
        return LIBRARIES[self.library]


@dataclass(frozen=True)
class Validation:
    """How a fit is validated on its way: after how many epochs or at which trigger, rows per batch, where it is cut."""

    batch_size: int
    every_epochs: int = 1
    trigger: Trigger | None = None
    steps: int | None = None
    rows_together: int = 1
    """Neighbouring rows that a metric needs in one replica: the rows are divided between groups of so many."""


@dataclass(frozen=True)
class Fit:
    """Train a program on ``world`` replicas. ``batch_size``: rows of a step over all; ``None``: the data's own.

    With an ``end_trigger`` neither ``epochs`` nor ``max_steps`` ends the training, but the trigger. It may end inside
    an epoch, which then stays open: whoever goes on from there completes it.
    """

    program: Program
    launch: Launch
    batch_size: int | None
    epochs: int
    sync: str = "sharded"
    averaging_steps: int = 1
    staleness: int | None = None
    """With a parameter server: how many steps a replica may be ahead of the slowest."""
    shuffle: bool = True
    seed: int = 0
    steps_per_epoch: int | None = None
    max_steps: int | None = None
    end_trigger: Trigger | None = None
    validation: Validation | None = None
    checkpoint_trigger: Trigger | None = None
    early_stopping: EarlyStopping | None = None
    callbacks: tuple[Any, ...] = ()
    metrics: Any = None
    device: str = "auto"
    auto_shard: bool = True
    exchange: Exchange = Exchange()
    pass_steps: int | None = None
    """Make each pass over the data so many steps long, by cutting or by beginning anew."""
    progress_steps: int | None = None
    """Report progress after every so many steps; default several times a second."""
    position: Position = field(default_factory=lambda: Position())
    is_resumed: bool = False
    """Rows of the position's pass that were seen must not be seen again, and no other left out."""

    def __post_init__(self) -> None:
        if self.sync not in SYNCS:
            raise UnknownName("sync", self.sync, SYNCS)

    @property
    def watches_loss(self) -> bool:
        """Whether a trigger asks for the loss of every update, so that replicas have to agree on it each time."""
        validation = None if self.validation is None else self.validation.trigger
        triggers = (self.checkpoint_trigger, self.end_trigger, validation)
        return any(trigger is not None and trigger.needs_loss for trigger in triggers)


@dataclass(frozen=True)
class Turns:
    """Train a program partition by partition, each on its own, against one parameter server.

    Partitions need not train at the same time. Each goes over its own rows ``iters`` times in a round; before every
    round but the first, rows are spread over the partitions anew.

    Args:
        program: graph, loss and optimizer.
        partitions: at most so many train; more are put together.
        iters: passes over a partition, in a round.
        rows: of a mini-batch in one partition; ``None``: the whole partition.
        draws: random mini-batches in an iter; ``None``: all mini-batches in turn.
        shuffle: a new order of the rows in each iter.
        rounds: how many.
        is_locked: whether a pull excludes an update.
        seed: of orders and draws.
        reports: whether the loss over a partition's rows is wanted after each iter.
        port: preferred port of the server.
        host: the address to bind to and to tell the workers; default the driver's.
    """

    program: Program
    partitions: int
    iters: int
    rows: int | None = None
    draws: int | None = None
    shuffle: bool = True
    rounds: int = 1
    is_locked: bool = False
    seed: int = 0
    reports: bool = False
    port: int = 0
    host: str | None = None

    def __post_init__(self) -> None:
        for name in ("partitions", "iters", "rounds"):
            positive(getattr(self, name), name)
        for name in ("rows", "draws"):
            positive(getattr(self, name), name, none=True)


@dataclass(frozen=True)
class Position:
    """Where a training stands: epochs and updates done, which pass over the data, how many of its steps are consumed.

    A pass and an epoch differ when ``steps_per_epoch`` cuts epochs short: the next one goes on in the same pass.

    Attributes:
        lead: rows of the pass that were consumed before its first step, as where it was begun with another batch size.
        made_of: what the order of its rows follows from (see ``engine.arrangement``), as JSON; empty where unknown.
    """

    epoch: int = 0
    step: int = 0
    data_pass: int = 0
    pass_step: int = 0
    lead: int = 0
    made_of: str = ""
    epoch_step: int = 0
    loss_sum: float = 0.0
    loss_rows: int = 0
    best: float | None = None
    """Early stopping's best value so far, and for how many epochs nothing was better."""
    waited: int = 0

    def next_pass(self) -> Position:
        """Where the next pass over the data begins."""
        return replace(self, data_pass=self.data_pass + 1, pass_step=0, lead=0)


@dataclass(frozen=True)
class Map:
    """Put each batch through a program and append its outputs as columns.

    Attributes:
        batch_size: rows of a call at most; 0: a whole partition.
        output_columns: their names, where they are not the outputs' own.
        finish: what is made of a batch's outputs (by name) before they become columns, as a value that can be called.
        each: what a call gets: any ``"batch"``, one ``"row"`` (of which a replica may compute many at a time), or a
            ``"block"``: a partition, or ``batch_size`` rows of it that follow each other.
        is_trimmed: only the outputs are kept, of which a block may give any number of rows.
        feeds: the program's input and the column that it is fed with, where they go by name.
        outputs: the outputs, where they are known.
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.
    """

    program: Program
    batch_size: int
    output_columns: tuple[str, ...] | None = None
    finish: Any = None
    each: str = "batch"
    is_trimmed: bool = False
    feeds: tuple[tuple[str, str], ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    device: str = "auto"


@dataclass(frozen=True)
class Reduce:
    """Fold all rows through a program: into a loss and metric states, or into a row like those it was made of.

    Attributes:
        batch_size: rows of a call at most; 0: as many as is best.
        metrics: what to measure, where ``each`` is ``"batch"``.
        steps: how many batches, where not all.
        each: what a call gets: a ``"batch"`` to measure, two ``"row"`` to make one of, or a ``"block"`` to make one of.
        keys: names of the columns whose equal values are folded together; none: all rows.
        outputs: the columns that are folded.
        is_algebraic: rows may be folded in parts, and those again; else all of a key come in one block.
    """

    program: Program
    batch_size: int
    metrics: Any = None
    steps: int | None = None
    each: str = "batch"
    keys: tuple[str, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    is_algebraic: bool = True
