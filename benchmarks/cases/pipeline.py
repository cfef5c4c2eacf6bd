"""A fit of SparkAsyncDL beside elephas with its parameter server, and sparkflow: the whole fit, as its user waits."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from benchmarks import data
from benchmarks.bench import REPLICAS, Bench
from benchmarks.cases.training import save_arrays
from benchmarks.environments import ENVIRONMENTS, python_of
from benchmarks.harness import Case, Figure, Goal, Sample
from benchmarks.subprocesses import PEERS, run_json

__all__ = ["cases"]

_WIDTH, _EPOCHS = 784, 20  # as in the document's example
_BATCH = 128  # what SparkAsyncDL takes when it is not told, as the document's example does not
_OURS, _HTTP, _SOCKET = "SparkAsyncDL", "elephas 7.3, http (its default)", "elephas 7.3, sockets"
_SPARKFLOW, _FEW_ROWS, _FEW_EPOCHS = "sparkflow 0.7", 8_192, 2


def cases(bench: Bench) -> Iterator[Case]:
    """The same rows and model, two partitions, a push and a pull for every batch; each turn is a process."""
    bench.stop_spark()
    rows = bench.rows(60_000)
    folder = save_arrays(bench.folder, rows)
    data.array_parquet(folder, rows, _WIDTH)
    yield _case(rows, _BATCH, folder)


def _case(rows: int, batch: int, folder: Path) -> Case:
    def ours() -> Sample:
        return _turn(sys.executable, "async_peer", folder / f"array-{rows}x{_WIDTH}", batch)

    def elephas(server: str) -> Sample:
        environment = ENVIRONMENTS["elephas"]
        python = python_of(environment, lambda line: print(line, flush=True))
        # Its workers find nothing of the project.
        return _turn(python, "elephas_async_peer", folder, batch, "--server", server, PYTHONPATH=str(PEERS))

    def sparkflow() -> Sample:
        environment = ENVIRONMENTS["sparkflow"]
        python = python_of(environment, lambda line: print(line, flush=True))
        path = os.pathsep.join(map(str, (PEERS, PEERS / "tf1_names")))
        few = ("--rows", str(min(rows, _FEW_ROWS)))
        about = {**dict(environment.variables), "PYTHONPATH": path}
        data = folder / f"array-{rows}x{_WIDTH}"
        return _turn(python, "sparkflow_async_peer", data, batch, *few, epochs=_FEW_EPOCHS, **about)

    subjects: dict[str, Callable[[], Sample]] = {
        _SPARKFLOW: sparkflow,
        _HTTP: partial(elephas, "http"),
        _SOCKET: partial(elephas, "socket"),
        _OURS: ours,
    }
    return Case(
        title=f"Asynchronous training of a Spark ML stage, batches of {batch}",
        about=f"{rows:,} rows of {_WIDTH} floats in {REPLICAS} partitions, {_WIDTH} → 256 → 256 → 10, Adam, batches of "
        f"{batch}, {_EPOCHS} passes, gradients or differences pushed to the server after every batch. The second fit "
        f"of a process, whole. elephas takes arrays of the driver, SparkAsyncDL a DataFrame of vectors from Parquet. "
        f"sparkflow gets slower with every batch: it is given {_FEW_ROWS:,} rows and {_FEW_EPOCHS} passes, and the "
        f"time of a fit of two batches is taken off.",
        figures={
            "of_sparkflow": Figure("asynchronous fit", "rows/s", _SPARKFLOW, {_OURS: Goal(least=3.0)}),
            "rate": Figure("asynchronous fit", "rows/s", _HTTP, {_OURS: Goal(least=3.0)}),
            "of_socket": Figure("asynchronous fit", "rows/s", _SOCKET, {}),
        },
        subjects=subjects,
        warmups=0,  # the first fit of each process is not counted
    )


def _turn(
    python: str, name: str, path: Path, batch: int, *more: str, epochs: int = _EPOCHS, **variables: str
) -> Sample:
    command = [python, str(PEERS / f"{name}.py"), "--data", str(path), "--batch", str(batch), "--epochs", str(epochs)]
    found = run_json([*command, *more], {"OMP_NUM_THREADS": "1", **variables}, path.parent)
    return dict.fromkeys(("rate", "of_socket", "of_sparkflow"), float(found["rate"]))
