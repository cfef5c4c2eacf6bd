"""The plugs: what the engine asks of a framework, a replica, a group and a sync.

A framework that only scores has no ``Trainable``: what it cannot do is missing, not raising.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy.typing as npt

from firesteel.core.metrics import Metric
from firesteel.core.program import Program
from firesteel.core.spec import Batch

__all__ = ["Board", "Framework", "Group", "Replica", "State", "Sync", "Trainable"]

Array = npt.NDArray[Any]

State = dict[str, bytes]
"""A replica's state by part ("model", "optimizer"): each a safetensors file with JSON in its header."""

Board = Callable[..., bytes | None]
"""A gang's key-value board (``cluster.child.Desk.board``), by which a group's members find each other."""


@runtime_checkable
class Replica(Protocol):
    """A program living in a process. Enough to score."""

    def forward(self, batch: Batch) -> dict[str, Array]:
        """Outputs for these rows, in inference mode, named; one output is called ``prediction``."""
        ...

    def measure(self, batch: Batch, metrics: Mapping[str, Metric]) -> tuple[Any, Any] | None:
        """Feed the metrics with these rows; the sum of their losses and its divisor, ``None`` without a loss.

        Both are arrays where the loss has parts that divide by several things.
        """
        ...

    def load(self, state: State) -> None:
        """Take over weights, and the optimizer's state where there is one."""
        ...


class Trainable(Replica, Protocol):
    """A replica that learns. Gradients stay inside until a sync asks for them."""

    model: Any
    """What callbacks are shown as ``runner.model``; likewise the next three."""
    optimizer: Any
    scheduler: Any
    loss_function: Any

    def start(self, state: State | None) -> None:
        """Make optimizer and schedule, ready for the first update; from ``state`` if given."""
        ...

    def backward(self, batch: Batch, share: Any) -> float | None:
        """Gradients of the loss on these rows times ``share``, the rows' part of the whole step.

        Where ``mass`` gives several numbers, there are as many shares.

        Returns the mean loss of these rows; ``None`` when there are none (gradients are zero then).
        """
        ...

    def mass(self, batch: Batch) -> Any:
        """What the loss's mean over these rows divides by, where that is not their number: a sum of class weights.

        A batch without rows then has the mass 0. Whether it is ``None`` depends on the program alone. An array, where
        the loss has parts that divide by several things: one number each, and the rows at last.
        """
        ...

    def again(self) -> None:
        """Run the last backward once more, for the weights as they are now."""
        ...

    def gradients(self) -> list[Array]:
        """Flat buffers to be summed over all ranks in place."""
        ...

    def bind_gradients(self, buffers: Sequence[Array]) -> Callable[[], None] | None:
        """A function after which ``update`` reads its gradients from these buffers, made like ``gradients``'.

        Then nobody copies what another process has laid down there. ``backward`` may write there too. ``None`` where
        gradients cannot be moved.
        """
        ...

    def bind_weights(self, buffers: Sequence[Array]) -> bool:
        """Keep the weights in these buffers from now on, made like those of ``weights``: who writes there has set them.

        False where they cannot be moved.
        """
        ...

    def update(self, again: Callable[[], None] | None = None) -> None:
        """Apply the summed gradients with the program's own optimizer.

        ``again`` recomputes and sums the gradients for the current weights, for optimizers that ask more than once.
        """
        ...

    def go_native(self, *, is_nearby: bool) -> bool:
        """From now on the framework itself agrees on gradients during ``backward``. False where it cannot or need not.

        ``is_nearby``: the group is one in memory, which is faster than a library where gradients lie there anyway.
        """
        ...

    def frozen(self) -> list[Array]:
        """State that no gradient reaches, as raw bytes."""
        ...

    def load_frozen(self, values: Sequence[Array]) -> None:
        """Take over what ``frozen`` gave."""
        ...

    def seed(self, *numbers: int) -> None:
        """Make random layers a function of these numbers."""
        ...

    def bounds(self, rank: int, size: int) -> list[tuple[int, int]] | None:
        """This rank's slice of each flat buffer; ``None`` when the optimizer cannot work on slices."""
        ...

    def take_slice(self, bounds: Sequence[tuple[int, int]]) -> None:
        """From now on ``update`` changes only these slices of the weights."""
        ...

    def weights(self) -> list[Array]:
        """All trainable weights as flat buffers."""
        ...

    def load_weights(self, weights: Sequence[Array]) -> None:
        """Take over what ``weights`` gave."""
        ...

    def buffers(self) -> list[Array]:
        """State outside the gradient (batch-norm means) as float arrays, copied."""
        ...

    def load_buffers(self, buffers: Sequence[Array]) -> None:
        """Take over what ``buffers`` gave."""
        ...

    def optimizer_slice(self) -> bytes:
        """The optimizer's state for this rank's slice, to be merged by ``state``."""
        ...

    def state(self, slices: Sequence[bytes] | None = None) -> State:
        """Everything needed to go on elsewhere; ``slices`` are all ranks' ``optimizer_slice`` where it is cut up."""
        ...

    @property
    def learning_rate(self) -> float:
        """The rate of the next update (of the first parameter group)."""
        ...

    def schedule(self, event: str, figures: Mapping[str, float] | None = None) -> None:
        """Advance the learning-rate schedule after a ``"batch"`` or an ``"epoch"``.

        An epoch's ``figures``: ``train_loss``; after a validation ``val_loss`` and ``score``, its first figure.
        """
        ...


class Framework(Protocol):
    """A workshop: how programs of one framework are captured on the driver and brought to life in a process."""

    name: str
    packages: tuple[str, ...]

    def accepts(self, model: object) -> bool:
        """Whether this is a model of this framework."""
        ...

    def capture(self, model: object, **parts: Any) -> Program:
        """The program that model and parts make; ``PlanError`` where they do not fit. Driver only."""
        ...

    def replica(self, program: Program, device: str, threads: int) -> Replica:
        """Bring a program to life in this process, with its state where it has one."""
        ...

    def ahead(self, program: Program) -> tuple[str, ...]:
        """What a process may import before it is forked into replicas: "module", or "module:function", which is called.

        Nothing that starts a thread; where importing alone does that, nothing at all.
        """
        ...

    def stream(self, source: object, batch_size: int | None, seed: int, epoch: int) -> Iterator[Batch]:
        """Batches from a loader, a dataset or what a creator returned, in its own order."""
        ...

    def take_shard(self, source: object, rank: int, size: int) -> bool:
        """Let a loader or dataset yield this rank's rows alone, from now on. False where it cannot: then we divide."""
        ...


class Group(Protocol):
    """Processes that exchange buffers: by a library's collectives, or in memory that they share."""

    rank: int
    size: int

    def all_reduce(self, array: Array) -> None:
        """Sum over all ranks, in place."""
        ...

    def all_gather(self, array: Array, bounds: Sequence[tuple[int, int]]) -> None:
        """Rank r's part ``bounds[r]`` of ``array`` reaches all ranks, in place."""
        ...

    def broadcast(self, array: Array, root: int = 0) -> None:
        """``root``'s array reaches all ranks, in place."""
        ...

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """Every rank's bytes, on every rank, in rank order."""
        ...

    def close(self) -> None:
        """Leave the group."""
        ...


class Sync(Protocol):
    """How replicas agree."""

    def join(self, replica: Trainable, group: Group) -> None:
        """Start from rank 0's weights."""
        ...

    def commit(self, replica: Trainable, *, has_rows: bool = True) -> None:
        """After a backward, perhaps of no rows: agree and update."""
        ...

    def settle(self, replica: Trainable, rows: int) -> None:
        """Make all replicas equal, state outside the gradient averaged by ``rows``: before a validation or a save."""
        ...

    def state(self, replica: Trainable) -> State:
        """The whole state, on every rank; all ranks must call it."""
        ...

    def schedule(self, replica: Trainable, event: str, figures: Mapping[str, float] | None = None) -> None:
        """Advance the learning-rate schedule wherever updates are made; see ``Trainable.schedule``."""
        ...

    def adopt(self, replica: Trainable) -> None:
        """Something else than an update changed the weights, alike on all replicas: these are the ones that count."""
        ...

    def own(self, replica: Trainable) -> bytes:
        """What this rank alone has, where replicas differ between two times of settling. Changes nothing."""
        ...

    def restore(self, replica: Trainable, own: Sequence[bytes], rows: Sequence[int]) -> None:
        """After ``join``: take back what ``own`` gave, of all ranks of that time; ``rows``: see ``settle``.

        A gang of another size takes what settling would have made of it.
        """
        ...
