"""A fit of SparkAsyncDL beside elephas with its parameter server: the whole fit, as its user waits for it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import data
from benchmarks.bench import REPLICAS, Bench
from benchmarks.cases.training import save_arrays
from benchmarks.environments import ENVIRONMENTS, python_of
from benchmarks.harness import Case, Figure, Goal, Sample
from benchmarks.subprocesses import PEERS, run_json

__all__ = ["cases"]

_WIDTH, _EPOCHS = 784, 10
# What SparkAsyncDL takes when it is not told, and what its document's example says.
_BATCHES = (128, 300)
_OURS, _ELEPHAS = "SparkAsyncDL", "elephas 7.3, hogwild"


def cases(bench: Bench) -> Iterator[Case]:
    """One case: the same rows and model, two partitions, a push and a pull for every batch; each turn a process."""
    bench.stop_spark()
    rows = bench.rows(60_000)
    folder = save_arrays(bench.folder, rows)
    data.array_parquet(folder, rows, _WIDTH)
    parquet = folder / f"array-{rows}x{_WIDTH}"

    def ours() -> Sample:
        return _turn(sys.executable, "async_peer", parquet)

    def elephas() -> Sample:
        environment = ENVIRONMENTS["elephas"]
        python = python_of(environment, lambda line: print(line, flush=True))
        # Its workers find nothing of the project.
        return _turn(python, "elephas_async_peer", folder, {"PYTHONPATH": str(PEERS)})

    subjects: dict[str, Callable[[], Sample]] = {_ELEPHAS: elephas, _OURS: ours}
    yield Case(
        title="Asynchronous training of a Spark ML stage",
        about=f"{rows:,} rows of {_WIDTH} floats in {REPLICAS} partitions, {_WIDTH} → 256 → 256 → 10, Adam, batches of "
        f"{_BATCH}, {_EPOCHS} passes, gradients or differences pushed to the server after every batch. The second fit "
        f"of a process, whole. elephas takes arrays of the driver, SparkAsyncDL a DataFrame of vectors from Parquet.",
        figures={
            "rate": Figure("asynchronous fit", "rows/s", _ELEPHAS, {_OURS: Goal(least=3.0)}),
        },
        subjects=subjects,
        warmups=0,  # the first fit of each process is not counted
    )


def _turn(python: str, name: str, path: Path, variables: dict[str, str] | None = None) -> Sample:
    command = [python, str(PEERS / f"{name}.py"), "--data", str(path), "--batch", str(_BATCH), "--epochs", str(_EPOCHS)]
    found = run_json(command, {"OMP_NUM_THREADS": "1", **(variables or {})}, path.parent)
    return {"rate": float(found["rate"])}
