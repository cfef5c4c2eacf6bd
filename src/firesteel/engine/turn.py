"""Train partition by partition against a parameter server: a worker's half, in Spark's own Python worker.

A worker is one partition of one round. It has its own replica, and no peers; what it has pushed is counted at the
server, so that one started in its place goes on where it stood. Which rows make which push is a function of the seed,
the round, the partition and the iter.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from firesteel.cluster.failure import Failure
from firesteel.cluster.launch import whole_input
from firesteel.cluster.seat import UpstreamFailed
from firesteel.cluster.travel import unpack
from firesteel.core import registry
from firesteel.core.errors import PlanError, SchemaError, SyncError
from firesteel.core.plan import Turns
from firesteel.core.spec import Batch
from firesteel.data.spool import SpoolReader, SpoolWriter
from firesteel.engine.address import Address, dial
from firesteel.sync.server import Client

if TYPE_CHECKING:
    import pyarrow as pa

    from firesteel.data.seating import Decoder

__all__ = ["TurnCard", "slices", "take_turn"]

_log = logging.getLogger(__name__)

_WHOLE_BYTES = 256 << 20
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TurnCard:
    """What a worker needs. Travels inside the Spark closure."""

    payload: bytes
    servers: tuple[Address, ...]
    decoder: Decoder
    files: tuple[str, ...]
    round: int
    threads: int
    sys_path: tuple[str, ...] = field(default_factory=lambda: tuple(path for path in sys.path if path))


def take_turn(card: TurnCard, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The body of each Spark task: all iters of one partition."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    turn = _Turn(card, context.partitionId())
    try:
        turn.run(whole_input(batches))
    except UpstreamFailed as error:
        turn.tell_starved()
        raise (error.__cause__ or error) from None
    except SyncError:
        raise  # the server is gone, which the driver knows better; or just this connection, and Spark tries again
    except Exception as error:
        # Told to the driver, which raises it there. Were it raised here too, Spark would run it again.
        if not turn.report(error):
            raise
        _log.debug("partition %d failed: %s", turn.partition, error)
    finally:
        turn.close()
    yield from ()


class _Turn:
    """One worker."""

    def __init__(self, card: TurnCard, partition: int) -> None:
        self.partition = partition
        self._card = card
        self._pushes = 0
        self._is_pushing = self._is_pulling = False
        self._client: Client | None = None
        self._replica: Any = None

    def run(self, batches: Iterator[pa.RecordBatch]) -> None:
        """Keep the rows, then go over them."""
        sys.path.extend(path for path in self._card.sys_path if path not in sys.path)
        with SpoolWriter(self._card.files) as spool:
            for rows in batches:
                for batch in self._decoded(rows, spool):
                    spool.append(0, batch)
            if spool.signature is None:
                return  # an empty partition pushes nothing
            self._plan: Turns = unpack(self._card.payload)
            self._rows = SpoolReader(spool.descriptors, spool.signature, spool.blocks)
            self._count = sum(block.rows for block in spool.blocks)
            framework = registry.framework(self._plan.program.framework)
            self._replica = framework.replica(self._plan.program, "auto", self._card.threads)
            self._replica.start(None)
            self._enter().enter()
            self._tell_rows(spool.marks)
            self._train()

    def report(self, error: Exception) -> bool:
        """Tell the driver of an error; whether that could be done."""
        failure = Failure.of(error, rank=self.partition, host=socket.gethostname(), step=self._pushes or None)
        try:
            self._enter().tell({"name": "failed", "failure": failure.to_json()})
        except SyncError:
            return False
        return True

    def tell_starved(self) -> None:
        """Tell the driver that rows are missing; why, Spark says."""
        with contextlib.suppress(SyncError):
            self._enter().tell({"name": "starved", "partition": self.partition, "host": socket.gethostname()})

    def close(self) -> None:
        """Let go of the session and the connection."""
        if self._client is not None:
            self._client.close()
        if hasattr(self._replica, "close"):
            self._replica.close()

    def _enter(self) -> Client:
        if self._client is None:
            name = (self._card.round, self.partition)
            dials = [partial(dial, each) for each in self._card.servers]
            self._client = Client(dials, name, has_extras=True)
        return self._client

    # --- the loop ---

    def _train(self) -> None:
        plan, client, replica = self._plan, self._enter(), self._replica
        self._buffers = replica.weights(), replica.buffers()
        done, is_fresh = client.pushes, False
        for iteration in range(plan.iters):
            if self._pushes + self._per_iter <= done and not plan.reports:
                self._pushes += self._per_iter  # all of it was applied before
                continue
            if not is_fresh:
                self._end_push()
                client.pull(*self._buffers)
                self._load()
            is_fresh = False
            for place, rows in enumerate(slices(plan, self._count, (self._card.round, self.partition, iteration))):
                self._pushes += 1
                if self._pushes <= done:
                    continue
                replica.seed(plan.seed, self._card.round, self.partition, iteration, place)
                replica.backward(self._rows.take(rows), 1.0)
                is_fresh = self._pulls_after(iteration, place)
                self._push(is_pulling=is_fresh)
            if plan.reports:
                self._end_push()
                self._tell_loss(iteration)
        self._end_push()

    def _push(self, *, is_pulling: bool) -> None:
        """Push what the last backward left.

        Without a lock and beside others, the next batch does not wait for that: its weights are those that came of the
        push before this one. Others' pushes come between anyway, and neither the server nor the way there is waited
        for. Alone, every batch sees all before it, as in a loop without a server; so it does where batches move
        averages that the server keeps, of which half would be lost.
        """
        self._end_push()
        client, extras = self._enter(), self._replica.buffers()
        # A graph's gradients are new arrays in each backward: this push may be said again while the next one runs.
        into = self._buffers if is_pulling else None
        client.push(self._replica.gradients(), step=0, extras=extras, into=into, waits=False)
        self._is_pushing, self._is_pulling = True, is_pulling
        if self._plan.is_locked or client.is_alone or extras:
            self._end_push()

    def _end_push(self) -> None:
        if self._is_pushing:
            self._is_pushing = False
            self._enter().end_push()
            if self._is_pulling:
                self._load()

    def _pulls_after(self, iteration: int, place: int) -> bool:
        """Whether a pull follows this push at once: then both are one exchange."""
        plan = self._plan
        if place + 1 < self._per_iter:
            return plan.draws is None  # draws of one iter are made at the same weights
        return not plan.reports and iteration + 1 < plan.iters

    @property
    def _per_iter(self) -> int:
        plan = self._plan
        if plan.draws is not None:
            return plan.draws
        return 1 if plan.rows is None else -(-self._count // plan.rows)

    def _load(self) -> None:
        weights, extras = self._buffers
        self._replica.load_weights(weights)
        self._replica.load_buffers(extras)

    def _tell_loss(self, iteration: int) -> None:
        """The loss over all rows, at the weights that this worker now has."""
        total, mass = 0.0, 0.0
        for rows in self._pieces():
            found = self._replica.measure(self._rows.take(rows), {})
            assert found is not None
            total, mass = total + found[0], mass + found[1]
        event = {"name": "loss", "round": self._card.round, "partition": self.partition, "iteration": iteration}
        self._enter().tell({**event, "loss": total / mass})

    def _tell_rows(self, marks: list[list[int]]) -> None:
        """Which rows these are: where another worker stood with other ones, the driver knows."""
        client, mark = self._enter(), [self._count, *(mark for _, mark in marks)]
        event = {"name": "rows", "round": self._card.round, "partition": self.partition}
        client.tell({**event, "mark": mark, "pushes": client.pushes})

    def _pieces(self) -> Iterator[Rows]:
        """All rows: at once, or where they would not fit, so many at a time."""
        size = max(1, _WHOLE_BYTES // max(1, self._rows.signature.row_bytes))
        for begin in range(0, self._count, size):
            yield np.arange(begin, min(begin + size, self._count))

    # --- rows ---

    def _decoded(self, rows: pa.RecordBatch, spool: SpoolWriter) -> Iterator[Batch]:
        try:
            yield from (batch for _, batch in self._card.decoder.batches(rows))
        except SchemaError as error:
            number = sum(block.rows for block in spool.blocks) + _first_bad(self._card.decoder, rows)
            raise SchemaError(
                f"{error} (row {number} of partition {self.partition}, counted from 0)",
                column=error.column,
                expected=error.expected,
                found=error.found,
            ) from error


def slices(plan: Turns, count: int, place: tuple[int, int, int]) -> Iterator[Rows]:
    """The rows of each push of an iter, of a partition of ``count``; ``place``: round, partition and iter."""
    random = np.random.default_rng([plan.seed, *place])
    order = random.permutation(count) if plan.shuffle else np.arange(count)
    size = count if plan.rows is None else min(plan.rows, count)
    if plan.draws is not None:
        for _ in range(plan.draws):
            yield random.choice(count, size, replace=False)
    else:
        for begin in range(0, count, size):
            yield order[begin : begin + size]


def _first_bad(decoder: Decoder, rows: pa.RecordBatch) -> int:
    """The first row without which those before it can be read."""
    low, high = 0, rows.num_rows  # so many can be read, so many cannot
    while high - low > 1:
        middle = (low + high) // 2
        try:
            list(decoder.batches(rows.slice(0, middle)))
            low = middle
        except PlanError:
            high = middle
    return low
