"""Rows per second of training once the rows are there: epochs 2 and later, beside a DDP loop written by hand."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks import data
from benchmarks.bench import REPLICAS, Bench
from benchmarks.harness import Case, Figure, Goal
from benchmarks.models import estimator, mlp
from benchmarks.subprocesses import PEERS, free_port, run_json

__all__ = ["cases", "save_arrays"]

_WIDTH, _BATCH = 784, 256
_THEIRS, _OURS = "hand-written DDP", "firesteel, torch_distributed"


def cases(bench: Bench) -> Iterator[Case]:
    """One case; the estimator's two ways to agree both take part."""
    rows, epochs = bench.rows(60_000), 3 if bench.is_quick else 6
    folder = save_arrays(bench.folder, rows)
    path = data.array_parquet(bench.folder, rows, _WIDTH)

    def firesteel(backend: str) -> float:
        trained = estimator(mlp, _WIDTH, REPLICAS, backend)
        columns = {"feature_cols": "features", "label_cols": "label"}
        trained.fit(bench.spark.read.parquet(path), epochs=epochs, batch_size=_BATCH, verbose=0, **columns)
        times = [at for _, _, at in trained.get_train_summary("Loss")]
        steps = len(times) // epochs
        return rows * (epochs - 1) / (times[-1] - times[steps - 1])

    def by_hand() -> float:
        run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(REPLICAS)]
        run += ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
        run += [str(PEERS / "ddp.py"), "--data", str(folder), "--epochs", str(epochs), "--batch", str(_BATCH)]
        ends = run_json(run, {"OMP_NUM_THREADS": "1"})["ends"]
        return rows * (epochs - 1) / (ends[-1] - ends[0])

    subjects = {
        _THEIRS: lambda: {"rate": by_hand()},
        _OURS: lambda: {"rate": firesteel("torch_distributed")},
    }
    if not bench.is_quick:
        subjects["firesteel, bigdl"] = lambda: {"rate": firesteel("bigdl")}
    yield Case(
        title="Training from a DataFrame",
        about=f"{rows:,} rows of {_WIDTH} floats, an MLP of 235,000 weights, global batches of {_BATCH}, SGD, "
        f"{REPLICAS} replicas with a thread each; epochs 2 to {epochs}. The DDP loop has its rows in memory.",
        figures={"rate": Figure("epochs 2 and later", "rows/s", _THEIRS, {_OURS: Goal(least=0.95, aim=0.99)})},
        subjects=subjects,
        warmups=0,  # nothing of a run's start is counted, and the first epoch is none of the figure
    )


def save_arrays(scratch: Path, rows: int) -> Path:
    """The same rows as arrays on disk, for a loop that has them in memory."""
    folder = scratch / f"arrays-{rows}"
    if folder.exists():
        return folder
    folder.mkdir()
    features, labels = data.arrays(rows, _WIDTH)
    np.save(folder / "features.npy", features)
    np.save(folder / "labels.npy", labels)
    return folder
