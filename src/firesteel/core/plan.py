"""Plans: what a front end asks of the engine, as frozen values: printed, compared and tested without Spark."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from firesteel.core.errors import PlanError, UnknownName
from firesteel.core.program import Program
from firesteel.core.triggers import Trigger

__all__ = [
    "LIBRARIES",
    "SYNCS",
    "Clipping",
    "EarlyStopping",
    "Exchange",
    "Fit",
    "Launch",
    "Map",
    "Reduce",
    "Validation",
    "positive",
]

SYNCS = ("all-reduce", "asynchronous", "averaging", "native", "sharded")
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
    """

    world: int
    max_failures: int = 3
    max_preemptions: int = 16
    min_workers: int | None = None
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
    """

    library: str = "gloo"
    kind: str = ""
    servers: int | None = None

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


@dataclass(frozen=True)
class Fit:
    """Train a program on ``world`` replicas. ``batch_size``: rows of a step over all; ``None``: the data's own."""

    program: Program
    launch: Launch
    batch_size: int | None
    epochs: int
    sync: str = "sharded"
    averaging_steps: int = 1
    shuffle: bool = True
    seed: int = 0
    steps_per_epoch: int | None = None
    max_steps: int | None = None
    validation: Validation | None = None
    checkpoint_trigger: Trigger | None = None
    early_stopping: EarlyStopping | None = None
    callbacks: tuple[Any, ...] = ()
    metrics: Any = None
    auto_shard: bool = True
    exchange: Exchange = Exchange()
    pass_steps: int | None = None
    """Make each pass over the data so many steps long, by cutting or by beginning anew."""
    progress_steps: int | None = None
    """Report progress after every so many steps; default several times a second."""
    position: Position = field(default_factory=lambda: Position())

    def __post_init__(self) -> None:
        if self.sync not in SYNCS:
            raise UnknownName("sync", self.sync, SYNCS)

    @property
    def watches_loss(self) -> bool:
        """Whether a trigger asks for the loss of every update, so that replicas have to agree on it each time."""
        triggers = (self.checkpoint_trigger, None if self.validation is None else self.validation.trigger)
        return any(trigger is not None and trigger.needs_loss for trigger in triggers)


@dataclass(frozen=True)
class Position:
    """Where a training stands: epochs and updates done, which pass over the data, how many of its steps are consumed.

    A pass and an epoch differ when ``steps_per_epoch`` cuts epochs short: the next one goes on in the same pass.
    """

    epoch: int = 0
    step: int = 0
    data_pass: int = 0
    pass_step: int = 0
    epoch_step: int = 0
    loss_sum: float = 0.0
    loss_rows: int = 0
    best: float | None = None
    """Early stopping's best value so far, and for how many epochs nothing was better."""
    waited: int = 0


@dataclass(frozen=True)
class Map:
    """Put each batch through a program and append its outputs as columns."""

    program: Program
    batch_size: int
    output_columns: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Reduce:
    """Fold all rows through a program into a loss and metric states."""

    program: Program
    batch_size: int
    metrics: Any = None
    steps: int | None = None
