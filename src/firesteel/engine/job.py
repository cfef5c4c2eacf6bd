"""What the driver hands to each rank for a fit, and how a rank's task carries it out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from firesteel.cluster.devices import task_gpus
from firesteel.cluster.roles import Role
from firesteel.cluster.seat import Seat
from firesteel.core import registry
from firesteel.core.moments import Probe, install, passing
from firesteel.core.plan import Fit
from firesteel.data.image.column import Images
from firesteel.data.spool import SpoolWriter
from firesteel.engine.address import Address
from firesteel.engine.commits import CommitFiles
from firesteel.engine.groups import modules_of

if TYPE_CHECKING:
    import pyarrow as pa

    from firesteel.data.seating import Decoder  # it loads Arrow, which a child never needs

__all__ = ["FitJob", "Stream", "TaskCard", "imports_ahead", "seat_and_train"]


@dataclass(frozen=True)
class Stream:
    """Rows that every replica makes for itself: a loader, or a creator ``(config, batch_size)``."""

    source: Any
    is_creator: bool
    config: dict[str, Any]
    batch_size: int | None
    auto_shard: bool | None = True
    """Whether creators yield all rows, to be divided by us, or each replica's own; ``None``: the framework can tell."""


@dataclass(frozen=True)
class FitJob:
    """The child's half. Exactly one of rows in the spool, rows on the driver (``"train"``), or a stream."""

    plan: Fit
    stream: Stream | None = None
    is_relayed: bool = False
    validation_stream: Stream | None = None
    config: dict[str, Any] | None = None
    probe: Probe | None = None
    images: dict[str, Images] = field(default_factory=dict)
    """Tensors that lie in the spool as encoded images."""
    servers: tuple[Address, ...] = ()
    """Where the plan's parameter servers listen."""


@dataclass(frozen=True)
class TaskCard:
    """The task's half: the packed ``FitJob``, and how its rows are read."""

    payload: bytes
    decoder: Decoder
    files: tuple[str, ...]
    """What the spool consists of; nothing where the rows are elsewhere."""
    threads: int
    probe: Probe | None = None
    device: str = "auto"
    ahead: tuple[str, ...] = ()
    """What may be imported once for all of a seat's processes."""


def imports_ahead(plan: Fit) -> tuple[str, ...]:
    """See ``TaskCard.ahead``. Driver only."""
    if plan.exchange.library != "gloo":
        return ()  # the others' libraries have threads from their import on
    found = registry.imports_of(plan.program)
    return ("firesteel.engine.worker", *found, *modules_of(plan.exchange, plan.launch.world)) if found else ()


def seat_and_train(seat: Seat, batches: Iterator[pa.RecordBatch], card: TaskCard) -> None:
    """A rank's task: spool the rows while the child wakes up, report what came, let the child train."""
    from pyspark import TaskContext

    gpus = task_gpus(TaskContext.get())
    device = "cuda" if gpus and card.device == "auto" else card.device
    role = Role(seat.rank, seat.world, card.threads, device, gpus or None)
    install(card.probe)
    passing("seated", rank=seat.rank, generation=seat.generation)
    with SpoolWriter(card.files) as spool, CommitFiles() as commits:
        seat.give = lambda: commits.read(seat.kept)
        descriptors = spool.descriptors | commits.descriptors
        seat.prepare("firesteel.engine.worker:main", card.payload, descriptors, role, card.ahead, has_scratch=True)
        for rows in batches:
            for partition, batch in card.decoder.batches(rows) if card.files else ():
                seat.check()
                passing("spool", rank=seat.rank, generation=seat.generation)
                spool.append(partition, batch)
        signature = spool.signature
        report = {
            "blocks": [[block.partition, block.begin, block.rows] for block in spool.blocks],
            "marks": spool.marks,
            "tensors": None if signature is None else [[t.name, t.dtype, list(t.shape)] for t in signature],
        }
        passing("ready", rank=seat.rank, generation=seat.generation)
        while not seat.work(seat.ready(report)):
            pass  # the gang has re-formed: the rows are still here, and the newest commit
