"""What commit points cost: the same training with and without them, once the rows are there."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks import data
from benchmarks.bench import REPLICAS, Bench
from benchmarks.harness import Case, Figure, Goal
from benchmarks.models import estimator, mlp

__all__ = ["cases"]

_WIDTH, _BATCH = 784, 256
_WITHOUT, _WITH = "without commit points", "with commit points"


def cases(bench: Bench) -> Iterator[Case]:
    """One case."""
    rows, epochs = bench.rows(60_000), 3 if bench.is_quick else 20
    path = data.array_parquet(bench.folder, rows, _WIDTH)

    def rate(max_failures: int) -> float:
        trained = estimator(mlp, _WIDTH, REPLICAS)
        columns = {"feature_cols": "features", "label_cols": "label", "max_failures": max_failures}
        trained.fit(bench.spark.read.parquet(path), epochs=epochs, batch_size=_BATCH, verbose=0, **columns)
        times = [at for _, _, at in trained.get_train_summary("Loss")]
        steps = len(times) // epochs
        return rows * (epochs - 1) / (times[-1] - times[steps - 1])

    yield Case(
        title="Commit points",
        about="The training above with `max_failures=3` (a commit point now and then) and `max_failures=0` (none); "
        f"{rows:,} rows, epochs 2 to {epochs}.",
        figures={"rate": Figure("commit points", "rows/s", _WITHOUT, {_WITH: Goal(least=0.99)})},
        subjects={_WITHOUT: lambda: {"rate": rate(0)}, _WITH: lambda: {"rate": rate(3)}},
        warmups=0,
    )
