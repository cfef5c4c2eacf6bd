"""Whether ten times the rows take ten times as long: fit and predict past their fixed start, which is shown."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator

from benchmarks import data
from benchmarks.bench import REPLICAS, Bench, drain, seconds
from benchmarks.harness import Case, Figure, Goal, Sample
from benchmarks.models import estimator, linear, small

__all__ = ["cases"]

_WIDTH, _BATCH, _FEW_ROWS, _FACTOR = 16, 1024, 1024, 10
_GOAL = Goal(least=_FACTOR * 0.85, most=_FACTOR * 1.15, of_value=True)


def cases(bench: Bench) -> Iterator[Case]:
    """One case with fit and predict as its subjects; they are not compared with each other."""
    # Of fewer the smaller run is lost in the noise of the start, and a fit reads while its processes start: what it has
    # read by then is not past the start.
    rows, times = bench.rows(4_000_000), 1 if bench.is_quick else 3
    sizes = _FEW_ROWS, rows, rows * _FACTOR
    paths = [data.array_parquet(bench.folder, size, _WIDTH) for size in sizes]

    def fit(path: str) -> None:
        trained = estimator(linear, _WIDTH, REPLICAS)
        columns = {"feature_cols": "features", "label_cols": "label"}
        trained.fit(bench.spark.read.parquet(path), epochs=1, batch_size=_BATCH, verbose=0, **columns)

    def predict(path: str) -> None:
        from firesteel import Estimator

        scored = Estimator.from_torch(model=small({"width": _WIDTH}))
        drain(scored.predict(bench.spark.read.parquet(path), batch_size=_BATCH, feature_cols="features"))

    for run in (fit, predict):
        for path in paths:  # what is slow only the first time, as code that Java has yet to compile, is no work
            run(path)
    yield Case(
        title="Cost grows as the work does",
        about=f"{rows:,} and {rows * _FACTOR:,} rows of {_WIDTH} floats from Parquet, and {_FEW_ROWS:,} for the fixed "
        f"start, which is taken off: one epoch of a linear model, and predict into a sink that drops the rows.",
        figures={
            "growth": Figure(f"time × for rows × {_FACTOR}", "×", None, {"fit": _GOAL, "predict": _GOAL}),
            "start": Figure("fixed start", "s"),
            "more": Figure(f"{rows * _FACTOR:,} rows, past the start", "s"),
        },
        subjects={"fit": _turn(fit, paths, sizes, times), "predict": _turn(predict, paths, sizes, times)},
        warmups=0,
    )


def _turn(run: Callable[[str], None], paths: list[str], sizes: tuple[int, ...], times: int) -> Callable[[], Sample]:
    def turn() -> Sample:
        # The shorter ones more than once: what they differ by is not much longer than what they vary by.
        start, less_seconds, more_seconds = (
            statistics.median(seconds(lambda path=path: run(path)) for _ in range(count))
            for path, count in zip(paths, (times, times, 1), strict=True)
        )
        # The start's few rows are work, too; per row beyond them, so that a small scale shows the same figure.
        few, less, more = sizes
        less_per_row, more_per_row = (less_seconds - start) / (less - few), (more_seconds - start) / (more - few)
        found = {"start": start}
        if more_per_row > 0:
            found["more"] = more_seconds - start
            if less_per_row > 0:
                found["growth"] = _FACTOR * more_per_row / less_per_row
        return found

    return turn
