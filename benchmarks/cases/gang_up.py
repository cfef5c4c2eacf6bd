"""How long until two ranks run at the same time: nothing to do, a group to join, a trivial model to fit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from benchmarks.bench import REPLICAS, Bench, seconds
from benchmarks.harness import Case, Figure, Goal

if TYPE_CHECKING:
    from firesteel.cluster.child import Desk
    from firesteel.cluster.seat import Seat

__all__ = ["cases"]

_THEIRS, _OURS = "TorchDistributor", "firesteel"
_FITTED_ROWS, _BATCH = 64, 32


def cases(bench: Bench) -> Iterator[Case]:
    """Three launches of the same kind, each with a little more to do."""
    yield Case(
        title="Gang up",
        about=f"{REPLICAS} ranks, each in a process of its own, are started, do nothing, and are gone again.",
        figures={"time": Figure("no-op", "s", _THEIRS, {_OURS: Goal(most=0.25)})},
        subjects={
            _THEIRS: lambda: {"time": seconds(lambda: _distribute(_do_nothing()))},
            _OURS: lambda: {"time": seconds(lambda: _launch(bench, f"{__name__}:sit"))},
        },
    )
    if bench.is_quick:
        return
    yield Case(
        title="Gang up and meet",
        about="The same, and the ranks form a gloo group and agree on one number: both sides import torch.",
        figures={"time": Figure("join a group", "s", _THEIRS)},
        subjects={
            _THEIRS: lambda: {"time": seconds(lambda: _distribute(_meet_by_torchrun()))},
            _OURS: lambda: {"time": seconds(lambda: _launch(bench, f"{__name__}:meet"))},
        },
    )
    yield Case(
        title="Fit of a trivial model",
        about=f"Everything a caller waits for: {_FITTED_ROWS} rows, a model with one weight, one epoch. "
        f"TorchDistributor's side is a DDP loop over tensors that are there already.",
        figures={"time": Figure("fit", "s", _THEIRS)},
        subjects={
            _THEIRS: lambda: {"time": seconds(lambda: _distribute(_fit_by_torchrun(_FITTED_ROWS, _BATCH)))},
            _OURS: lambda: {"time": seconds(lambda: _fit(bench))},
        },
    )


# --- firesteel --------------------------------------------------------------------------------------------------------


def sit(desk: Desk) -> None:
    """A rank's process that does nothing."""
    desk.assignment()


def meet(desk: Desk) -> None:
    """A rank's process that joins its group and agrees on a number."""
    import numpy as np

    from firesteel.core.plan import Exchange
    from firesteel.engine.groups import join_group

    with join_group(desk, Exchange(), desk.assignment()) as group:
        group.all_reduce(np.ones(1))


def run_child(seat: Seat, batches: Any, main: str) -> None:
    """A rank's task: start its process, wait until all are there, let it run."""
    from firesteel.cluster.roles import Role
    from firesteel.cluster.travel import pack

    seat.prepare(main, pack(None, "nothing"), {}, Role(seat.rank, seat.world, 1, "cpu", None))
    for _ in batches:
        pass
    while not seat.work(seat.ready({})):
        pass  # the gang re-formed: once more


def _launch(bench: Bench, main: str) -> None:
    from firesteel.cluster.launch import launch

    launch(
        bench.spark.range(0, REPLICAS, 1, REPLICAS),
        run_child,
        main,
        world=REPLICAS,
        arrange=lambda reports: [{} for _ in reports],
        on_event=lambda rank, event, buffers: None,
    )


def _fit(bench: Bench) -> None:
    from torch import nn
    from torch.optim import SGD

    from firesteel import Estimator

    model = nn.Linear(1, 1)
    estimator = Estimator.from_torch(
        model=model,
        optimizer=SGD(model.parameters(), lr=0.1),
        loss=nn.MSELoss(),
        backend="torch_distributed",
        workers_per_node=REPLICAS,
    )
    data = bench.spark.range(0, _FITTED_ROWS, 1, REPLICAS).selectExpr("array(float(id)) as x", "array(0f) as y")
    estimator.fit(data, epochs=1, batch_size=_BATCH, feature_cols="x", label_cols="y", verbose=0)


# --- TorchDistributor: functions that travel by value, for its processes import nothing of ours -----------------------


def _distribute(main: Any) -> None:
    from pyspark.ml.torch.distributor import TorchDistributor

    TorchDistributor(num_processes=REPLICAS, local_mode=False, use_gpu=False).run(main)


def _do_nothing() -> Any:
    def main() -> None:
        pass

    return main


def _meet_by_torchrun() -> Any:
    def main() -> None:
        import atexit
        import os

        import torch
        import torch.distributed as dist

        atexit.register(os._exit, 0)  # see first_epoch._train_by_loader
        dist.init_process_group("gloo")
        dist.all_reduce(torch.ones(1))
        dist.destroy_process_group()

    return main


def _fit_by_torchrun(rows: int, batch: int) -> Any:
    def main() -> None:
        import atexit
        import os

        import torch
        import torch.distributed as dist
        from torch import nn

        atexit.register(os._exit, 0)  # see first_epoch._train_by_loader
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(nn.Linear(1, 1))
        optimizer, loss = torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss()
        x = torch.arange(rows, dtype=torch.float32)[dist.get_rank() :: dist.get_world_size(), None]
        for part in x.split(batch // dist.get_world_size()):
            optimizer.zero_grad()
            loss(model(part), part).backward()
            optimizer.step()
        dist.destroy_process_group()

    return main
