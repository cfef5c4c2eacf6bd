"""Fit on the driver: seat the rows, launch the gang, listen, write what has to be on disk."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from firesteel.cluster.coordinator import Coordinator
from firesteel.cluster.deadlines import Deadlines
from firesteel.cluster.failure import Budget
from firesteel.cluster.launch import Lost, launch
from firesteel.cluster.preflight import bind_address, check_slots, cores_per_task, driver_address, is_remote
from firesteel.cluster.travel import pack
from firesteel.core import moments, registry
from firesteel.core.errors import PlanError, SchemaError
from firesteel.core.plan import SERVER_SYNCS, Fit
from firesteel.core.switches import switch
from firesteel.data.reading import Reading
from firesteel.data.seating import Decoder, Seated, seat
from firesteel.data.sources import Frame, Local, Packed, Source, Streamed
from firesteel.engine.arrangement import Arrangement
from firesteel.engine.gather import gather
from firesteel.engine.groups import meeting_place
from firesteel.engine.job import FitJob, Stream, TaskCard, imports_ahead, seat_and_train
from firesteel.engine.listener import Listener, Outcome, Outputs
from firesteel.engine.newest import Newest
from firesteel.engine.relay import Relay
from firesteel.engine.servers import Servers, check_reachable
from firesteel.engine.serving import ServerJob

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["fit", "make_job"]

_SHARED_MEMORY = "spark.firesteel.sharedMemory"


def fit(
    spark: SparkSession,
    plan: Fit,
    data: Source,
    validation: Source | None,
    outputs: Outputs,
    *,
    stream: Callable[[Streamed, int | None], Stream],
    config: dict[str, Any],
    deadlines: Deadlines | None = None,
) -> Outcome:
    """Train as planned. Driver only; returns when every replica has ended.

    ``stream`` turns a streamed source into what travels to the replicas (the front end knows its configuration).
    """
    if plan.sync in SERVER_SYNCS:
        check_reachable(spark, f"sync={plan.sync!r}")
    in_memory = switch(lambda name: spark.conf.get(name, None), _SHARED_MEMORY, plan.exchange.in_memory)
    plan = replace(plan, exchange=replace(plan.exchange, in_memory=in_memory))
    # Before a server starts, rows are computed for a validation, or a training is announced.
    check_slots(spark, plan.launch.world)
    with _in_columns(data):
        if is_remote(spark):
            from firesteel.engine.remote import fit_remote  # which only Spark Connect needs

            return fit_remote(spark, plan, data, validation, outputs, stream=stream, config=config, deadlines=deadlines)
        if plan.sync in SERVER_SYNCS:
            with Servers(spark, _server_job(plan), may_cut=_may_cut(plan)) as servers:
                return _fit(spark, plan, data, validation, outputs, stream, config, deadlines, servers)
        return _fit(spark, plan, data, validation, outputs, stream, config, deadlines, None)


@contextlib.contextmanager
def _in_columns(data: Source) -> Iterator[None]:
    """Let an error about a tensor name the user's columns."""
    try:
        yield
    except SchemaError as error:
        raise (data.reading.in_columns(error) if isinstance(data, Frame) else error) from error.__cause__


def _fit(
    spark: SparkSession,
    plan: Fit,
    data: Source,
    validation: Source | None,
    outputs: Outputs,
    stream: Callable[[Streamed, int | None], Stream],
    config: dict[str, Any],
    deadlines: Deadlines | None,
    servers: Servers | None,
) -> Outcome:
    relay = Relay()
    job = make_job(plan, data, validation, stream, config)
    if servers is not None:
        job = replace(job, servers=servers.addresses)
    if isinstance(data, Local):
        relay.add("train", data.batch)
    files = None
    if validation is not None and not isinstance(validation, Streamed):
        files = _offer_validation(relay, validation)
    payload = pack(job, "the program")
    newest = Newest(outputs.checkpoints)
    wanted = plan.launch
    budget = Budget(infrastructure=wanted.max_failures, preemption=wanted.max_preemptions)
    desk = Listener(plan, outputs, budget)
    marks: dict[int, tuple[int, int]] = {}
    world = wanted.world
    try:
        with desk, meeting_place(plan.exchange, bind_address(spark), driver_address(spark)) as meeting:
            while True:
                if isinstance(data, (Frame, Packed)):
                    seated, tensors = _seat(data, world)
                else:
                    seated, tensors = Seated(_no_rows(spark, world), 0, Decoder(Reading(()))), ()
                arrangement = Arrangement(
                    world, seated.partitions, relay, job, validation is not None, newest, desk, marks, meeting
                )
                try:
                    launch(
                        seated.frame,
                        seat_and_train,
                        TaskCard(
                            payload,
                            seated.decoder,
                            tensors,
                            wanted.threads or cores_per_task(spark),
                            job.probe,
                            plan.device,
                            imports_ahead(plan),
                        ),
                        world=world,
                        arrange=arrangement.arrange,
                        on_event=desk.take,
                        on_fetch=lambda what: newest.answer(what) if "state" in what else relay.answer(what),
                        on_wait=partial(_look, desk, servers),
                        packages=(*registry.framework(plan.program.framework).packages, *plan.exchange.packages),
                        deadlines=deadlines,
                        budget=budget,
                        min_workers=None if wanted.min_workers is None else min(wanted.min_workers, world),
                    )
                    break
                except Lost as lost:
                    # Nobody, or too few, are left of that gang: another one goes on, where it must with fewer ranks.
                    world = lost.remaining
                    newest.leave(lost.note, lost.buffers)
    finally:
        if files is not None:
            files.__exit__(None, None, None)
    return desk.outcome()


def _look(desk: Listener, servers: Servers | None, coordinator: Coordinator) -> None:
    """Several times a second, in the caller's own thread."""
    desk.show(coordinator)
    if servers is not None:
        servers.check()


def _server_job(plan: Fit) -> ServerJob:
    is_locked = plan.sync == "locked"
    return ServerJob(plan.program, is_locked, plan.staleness, plan.seed, is_own_start=False)


def _may_cut(plan: Fit) -> bool:
    """Whether several servers may share the weights: the norm to clip by is that of the whole gradient."""
    clipping = getattr(plan.program.content, "clipping", None)
    return clipping is None or clipping.norm is None


def make_job(
    plan: Fit,
    data: Source,
    validation: Source | None,
    stream: Callable[[Streamed, int | None], Stream],
    config: dict[str, Any],
) -> FitJob:
    """The replicas' half of a fit, for these kinds of data."""
    validation_stream = None
    if isinstance(validation, Streamed):
        assert plan.validation is not None
        validation_stream = stream(validation, plan.validation.batch_size)
    return FitJob(
        plan,
        stream=stream(data, plan.batch_size) if isinstance(data, Streamed) else None,
        is_relayed=isinstance(data, Local),
        images=data.reading.images if isinstance(data, Frame) else {},
        validation_stream=validation_stream,
        config=config,
        probe=moments.installed(),
    )


def _seat(data: Frame | Packed, world: int) -> tuple[Seated, tuple[str, ...]]:
    if isinstance(data, Frame):
        seated = seat(data.df, data.reading.select(data.df), Decoder(data.reading), world)
        names = data.reading.files
    else:
        seated = seat(data.df, ["header", "data"], Decoder(None), world)
        names = data.files
    if seated.partitions == 0:
        raise PlanError("the training data has no rows")
    return seated, names


def _no_rows(spark: SparkSession, world: int) -> Any:
    return spark.range(0, world, 1, world)


def _offer_validation(relay: Relay, validation: Frame | Packed | Local) -> Any:
    if isinstance(validation, Local):
        relay.add("validation", validation.batch)
        return None
    batch, files = gather(validation)
    if batch is None:
        raise PlanError("the validation data has no rows")
    relay.add("validation", batch)
    return files
