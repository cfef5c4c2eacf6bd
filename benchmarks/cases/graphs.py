"""A TensorFlow graph: rows per second of later epochs beside two processes with TensorFlow's own collectives."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

from benchmarks import data
from benchmarks.bench import REPLICAS, ROOT, Bench
from benchmarks.cases.training import save_arrays
from benchmarks.graphs import RATE, SIZES, mlp
from benchmarks.harness import Case, Figure, Goal
from benchmarks.subprocesses import PEERS, free_port, run_json, surroundings

__all__ = ["cases"]

_BATCH = 256
_BY_HAND, _OURS = "hand-written processes", "firesteel"


def cases(bench: Bench) -> Iterator[Case]:
    """Training."""
    rows, epochs = bench.rows(60_000), 3 if bench.is_quick else 6
    folder = save_arrays(bench.folder, rows)
    path = data.array_parquet(bench.folder, rows, SIZES[0])

    def firesteel() -> float:
        from firesteel import Estimator
        from firesteel.bigdl import SGD

        features, labels, loss = mlp()
        parts = {"inputs": features, "labels": labels, "loss": loss, "optimizer": SGD(RATE)}
        with Estimator.from_graph(**parts, workers_per_node=REPLICAS, seed=1) as trained:
            columns = {"feature_cols": "features", "label_cols": "label"}
            trained.fit(bench.spark.read.parquet(path), epochs=epochs, batch_size=_BATCH, verbose=0, **columns)
            times = [at for _, _, at in trained.get_train_summary("Loss")]
        steps = len(times) // epochs
        return rows * (epochs - 1) / (times[-1] - times[steps - 1])

    def by_hand() -> float:
        workers = [f"127.0.0.1:{free_port()}" for _ in range(REPLICAS)]
        run = [sys.executable, str(PEERS / "graph_loop.py")]
        run += ["--data", str(folder), "--epochs", str(epochs), "--batch", str(_BATCH)]

        def variables(rank: int) -> dict[str, str]:
            config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
            return {"TF_CONFIG": json.dumps(config), "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}

        others = [
            subprocess.Popen(run, cwd=ROOT, env=surroundings(variables(rank)), stdout=subprocess.DEVNULL)
            for rank in range(1, REPLICAS)
        ]
        try:
            ends = run_json(run, variables(0))["ends"]
        finally:
            for other in others:
                other.kill()
                other.wait()
        return rows * (epochs - 1) / (ends[-1] - ends[0])

    yield Case(
        title="Training a TensorFlow graph from a DataFrame",
        about=f"{rows:,} rows of {SIZES[0]} floats, an MLP of 235,000 weights written with placeholders, global "
        f"batches of {_BATCH}, SGD, {REPLICAS} replicas with a thread each; epochs 2 to {epochs}. The processes have "
        f"their rows in memory, a compiled step, and TensorFlow's collectives.",
        figures={"rate": Figure("graph, epochs 2 and later", "rows/s", _BY_HAND, {_OURS: Goal(least=0.9)})},
        subjects={_BY_HAND: lambda: {"rate": by_hand()}, _OURS: lambda: {"rate": firesteel()}},
        warmups=0,  # nothing of a run's start is counted, and the first epoch is none of the figure
    )
