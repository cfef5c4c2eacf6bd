"""Other libraries that train on Spark or beside it, each as its own users would run it, in its own environment."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from benchmarks import data
from benchmarks.bench import REPLICAS, Bench
from benchmarks.environments import ENVIRONMENTS, python_of
from benchmarks.harness import Case, Figure, Sample
from benchmarks.subprocesses import PEERS, run_json

__all__ = ["cases"]

_WIDTH, _BATCH, _MORE_EPOCHS = 100, 256, 4
_OURS = "firesteel"
_NAMES = {
    "orca": "Orca 2.4, backend=spark",
    "elephas": "elephas 7.3, synchronous",
    "sparktorch": "sparktorch 0.2, synchronous",
    "ray": "Ray Train with Ray Data",
}


def cases(bench: Bench) -> Iterator[Case]:
    """One case: the same rows, a model of the same size, two workers, a session of its own for every turn."""
    bench.stop_spark()
    rows = bench.rows(50_000)
    folder = _save(bench.folder / f"peers-{rows}", rows)
    subjects: dict[str, Callable[[], Sample]] = {_OURS: lambda: _turn(sys.executable, "firesteel", folder, {})}
    for name, title in _NAMES.items():
        subjects[title] = _peer(name, folder)
    yield Case(
        title="Other libraries",
        about=f"{rows:,} rows of {_WIDTH} floats from Parquet, {_WIDTH} → 64 → 10, SGD, {REPLICAS} workers with a "
        f"thread each, {_BATCH // REPLICAS} rows a step and worker. Each turn is a process with its own session: "
        f"a cold fit of one epoch, whose time is shown, another, and one of {1 + _MORE_EPOCHS}; by how much the last "
        f"two differ, that is what {_MORE_EPOCHS} epochs take. Not all learn the same: elephas averages weights once "
        f"per fit, and sparktorch draws its batches from each partition at random.",
        figures={
            "rate": Figure("later epochs", "rows/s", _OURS),
            "first": Figure("fit of one epoch", "s", _OURS),
        },
        subjects=subjects,
        warmups=0,  # every turn is cold, for everybody
    )


def _peer(name: str, folder: Path) -> Callable[[], Sample]:
    environment = ENVIRONMENTS[name]

    def turn() -> Sample:
        python = python_of(environment, lambda line: print(line, flush=True))
        # Its workers find turn.py, and nothing of the project.
        return _turn(python, name, folder, {"PYTHONPATH": str(PEERS), **dict(environment.variables)})

    return turn


def _turn(python: str, name: str, folder: Path, variables: dict[str, str]) -> Sample:
    command = [python, str(PEERS / f"{name}_peer.py"), "--data", str(folder), "--batch", str(_BATCH)]
    command += ["--more-epochs", str(_MORE_EPOCHS)]
    found = run_json(command, {"OMP_NUM_THREADS": "1", **variables}, folder)
    return {figure: found[figure] for figure in ("rate", "first") if figure in found}


def _save(folder: Path, rows: int) -> Path:
    folder.mkdir()
    features, labels = data.arrays(rows, _WIDTH)
    np.save(folder / "features.npy", features)
    np.save(folder / "labels.npy", labels)
    data.array_parquet(folder, rows, _WIDTH)
    (folder / f"array-{rows}x{_WIDTH}").rename(folder / "parquet")
    return folder
