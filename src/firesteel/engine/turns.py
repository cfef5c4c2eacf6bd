"""Train partition by partition against a parameter server: the driver's half. See ``core.plan.Turns``."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from firesteel.cluster.failure import Failure
from firesteel.cluster.launch import Job, place
from firesteel.cluster.preflight import cores_per_task
from firesteel.cluster.travel import pack
from firesteel.core.errors import PlanError
from firesteel.core.plan import Turns
from firesteel.data.seating import Decoder, gather
from firesteel.data.sources import Frame, Packed
from firesteel.engine.servers import Servers, check_reachable
from firesteel.engine.serving import ServerJob
from firesteel.engine.turn import TurnCard, take_turn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["OnLoss", "train_in_turns"]

_log = logging.getLogger(__name__)

OnLoss = Callable[[float, int, int], None]
"""Takes a loss, the number of the iter (from 0) and of the partition. Called on the driver."""

_LOOK_SECONDS = 0.05
_RESTARTS = 3
# What Spark says where a process is gone, and not where one raised.
_LOST = ("exited unexpectedly", "ExecutorLostFailure", "Python worker failed to connect back", "crashed")
_ROWS, _PLACE = "__partition", "__place"


def train_in_turns(
    spark: SparkSession, plan: Turns, data: Frame | Packed, on_loss: OnLoss | None = None
) -> dict[str, bytes]:
    """Train as planned; the program's state at the end. Driver only.

    Raises:
        PlanError: the data has no rows, or rows that do not fit.
        ReplicaFailed: with the worker's traceback, when a worker's code raised.
        ClusterError: the server is gone.
    """
    check_reachable(spark, "asynchronous training")
    job = ServerJob(plan.program, plan.is_locked, None, plan.seed, is_own_start=True)
    payload = pack(plan, "the program")
    with Servers(spark, job, port=plan.port, host=plan.host) as servers:
        watch = _Watch(servers, on_loss)
        rows, reading, files = _selected(data)
        frame, count, decoder = gather(rows, reading, plan.partitions)
        for number in range(plan.rounds):
            if number:
                spread = _spread(rows, max(1, min(count, plan.partitions)), plan.seed + number)
                frame, _, decoder = gather(spread, reading, plan.partitions)
            card = TurnCard(payload, servers.addresses, decoder, files, number, cores_per_task(spark))
            _run(frame, card, watch)
        state, updates = servers.state()
        watch.look()
    if updates == 0:
        raise PlanError("the training data has no rows")
    return state


def _run(frame: DataFrame, card: TurnCard, watch: _Watch) -> None:
    """One round; again where processes were lost, and each partition goes on where it stood."""
    for restarts in range(_RESTARTS + 1):
        job = Job(frame, partial(take_turn, card))
        try:
            while not job.is_over:
                watch.look()
                job.join(_LOOK_SECONDS)
        finally:
            job.end(patient=False)
        watch.look()
        if job.error is None:
            return
        watch.drain()  # what a worker said before it ended says more than Spark does
        if restarts == _RESTARTS or not any(word in str(job.error) for word in _LOST):
            place(job, watch.starved)
            raise job.error
        watch.starved.clear()
        _log.warning("a worker was lost; its partition goes on where it stood: %s", _loss(str(job.error)))


def _loss(text: str) -> str:
    """The task that was lost, where it ran and how it ended: one line of all that Spark says."""
    line = next(line for line in text.splitlines() if any(word in line for word in _LOST))
    return line.rpartition("most recent failure: ")[2].strip(": ")


class _Watch:
    """What workers tell, as it comes."""

    def __init__(self, servers: Servers, on_loss: OnLoss | None) -> None:
        self._servers = servers
        self._on_loss = on_loss
        self._heard: dict[tuple[int, int], int] = {}
        self._marks: dict[tuple[int, int], list[int]] = {}
        self.starved: dict[int, str] = {}
        """Partitions whose rows could not be computed, and where that was tried."""

    def look(self) -> None:
        """Take what has come; raise what ended a worker or the server."""
        for event in self._servers.events():
            self._take(event)
        self._servers.check()

    def drain(self) -> None:
        """The same, once all that was said until now has come."""
        with contextlib.suppress(Exception):
            self._servers.state()
        self.look()

    def _take(self, event: dict[str, Any]) -> None:
        if event["name"] == "failed":
            raise Failure.from_json(event["failure"]).error()
        if event["name"] == "starved":
            self.starved[event["partition"]] = event["host"]
        if event["name"] == "rows":
            self._check_marks(event)
        if event["name"] == "loss" and self._on_loss is not None:
            key, iteration = (event["round"], event["partition"]), event["iteration"]
            if iteration > self._heard.get(key, -1):  # a worker that was started again says some of it twice
                self._heard[key] = iteration
                self._on_loss(event["loss"], iteration, event["partition"])

    def _check_marks(self, event: dict[str, Any]) -> None:
        """Rows that are read again must come in the same order, or where a partition stood means nothing."""
        key, mark = (event["round"], event["partition"]), event["mark"]
        if event["pushes"] and self._marks.get(key, mark) != mark:
            warnings.warn(
                f"partition {event['partition']} of the training data had other rows, or another order, when it was "
                f"read again after a loss: in this iter some of its rows count twice and others not at all. "
                f"Training on a cached or stored DataFrame avoids that",
                RuntimeWarning,
                stacklevel=2,
            )
        self._marks[key] = mark


def _selected(data: Frame | Packed) -> tuple[DataFrame, Decoder, tuple[str, ...]]:
    """The columns that are read, after one for the partition that a row came from."""
    if isinstance(data, Frame):
        return data.df.select(_nothing(), *data.reading.select(data.df)), Decoder(data.reading), data.reading.files
    return data.df.select(_nothing(), "header", "data"), Decoder(None), data.names


def _nothing() -> Any:
    from pyspark.sql.functions import lit

    return lit(0).alias(_ROWS)  # a worker's rows are one block, wherever they came from


def _spread(rows: DataFrame, partitions: int, seed: int) -> DataFrame:
    """The rows in other partitions than before, the same number in each, give or take one from every old one.

    Which row comes where in which partition depends on the rows of the old partitions alone. The order in which a
    shuffle brings rows is another one each time that it is read, and a worker that is started again must find the same.
    """
    from pyspark.sql import functions as f

    names = rows.columns
    # Not rand(), which draws row by row as they come: by what is in a row they lie the same way whenever they are read.
    mixed = rows.sortWithinPartitions(f.xxhash64(f.lit(seed), *names)).withColumn(
        _PLACE, f.monotonically_increasing_id()
    )
    if hasattr(rows, "repartitionById"):
        target = f.pmod(f.col(_PLACE) + f.spark_partition_id() + f.lit(seed), f.lit(partitions)).cast("int")
        spread = mixed.repartitionById(partitions, target)
    else:
        spread = mixed.repartition(partitions)  # before Spark 4.1: even, but the same in every round
    return spread.sortWithinPartitions(_PLACE).select(*names)
