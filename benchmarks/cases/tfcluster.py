"""TFCluster beside TensorFlowOnSpark, the same program under both."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

from benchmarks import data
from benchmarks.bench import Bench
from benchmarks.environments import ENVIRONMENTS, python_of
from benchmarks.harness import Case, Figure, Goal, Sample
from benchmarks.subprocesses import PEERS, run_json

__all__ = ["cases"]

_WIDTH = 784
_OURS, _THEIRS = "firesteel", "tensorflowonspark 2.2.5"


def cases(bench: Bench) -> Iterator[Case]:
    """One case; every turn is a process with two executors of its own."""
    rows, few = bench.rows(200_000), bench.rows(10_000)
    paths = {count: data.array_parquet(bench.folder, count, _WIDTH) for count in (rows, few)}
    bench.stop_spark()
    environment = ENVIRONMENTS["tensorflowonspark"]

    def turn(python: str, library: str, count: int, variables: dict[str, str]) -> Sample:
        command = [python, str(PEERS / "tfcluster_peer.py"), "--library", library]
        command += ["--data", paths[count], "--rows", str(count)]
        found: Sample = run_json(command, variables, bench.folder)
        return found

    def theirs() -> Sample:
        python = python_of(environment, lambda line: print(line, flush=True))
        return turn(python, "tensorflowonspark", few, dict(environment.variables))

    subjects: dict[str, Callable[[], Sample]] = {
        _THEIRS: theirs,
        _OURS: lambda: turn(sys.executable, "firesteel", rows, {}),
    }
    yield Case(
        title="Programs on a cluster",
        about=f"Two executors of a core each. A program that does nothing, from run to shutdown; then rows of {_WIDTH} "
        f"floats, read by Spark from Parquet and fed to two programs that drop them: {rows:,} to ours, and {few:,} to "
        f"theirs, so that both take seconds.",
        figures={
            "rate": Figure("rows fed", "rows/s", _THEIRS, {_OURS: Goal(least=20.0)}),
            "empty": Figure("run to shutdown, nothing to do", "s", _THEIRS, {_OURS: Goal(most=0.5)}),
        },
        subjects=subjects,
        warmups=0,
    )
