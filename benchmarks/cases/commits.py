"""What commit points cost: their part of a training's time, and the same training without them.

One percent is less than what two equal trainings differ by on a machine with neighbours. So what is judged is the time
that the first replica spent on them; the two rates stand beside it.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator

from benchmarks import data
from benchmarks.bench import REPLICAS, Bench, touch_memory
from benchmarks.harness import Case, Figure, Goal, Sample
from benchmarks.models import estimator, mlp

__all__ = ["cases"]

_WIDTH, _BATCH = 784, 256
_WITHOUT, _WITH = "without commit points", "with commit points"


def cases(bench: Bench) -> Iterator[Case]:
    """One case."""
    rows, epochs = bench.rows(60_000), 3 if bench.is_quick else 20
    path = data.array_parquet(bench.folder, rows, _WIDTH)

    def turn(max_failures: int) -> Sample:
        touch_memory()
        trained = estimator(mlp, _WIDTH, REPLICAS)
        columns = {"feature_cols": "features", "label_cols": "label", "max_failures": max_failures}
        history = trained.fit(bench.spark.read.parquet(path), epochs=epochs, batch_size=_BATCH, verbose=0, **columns)
        times = [at for _, _, at in trained.get_train_summary("Loss")]
        steps = len(times) // epochs
        # The middle one of the epochs: there are commits in each, and what the neighbours do is only in some.
        ends = times[steps - 1 :: steps]
        found = {"rate": rows / statistics.median(later - sooner for sooner, later in itertools.pairwise(ends))}
        if max_failures:
            found["share"] = history.seconds["commit"] / sum(history.seconds.values())
        return found

    yield Case(
        title="Commit points",
        about="The training above with `max_failures=3` (a commit point now and then) and `max_failures=0` (none); "
        f"{rows:,} rows, the median of epochs 2 to {epochs}.",
        figures={
            "share": Figure("commit points", "of the time", None, {_WITH: Goal(most=0.01, of_value=True)}, (_WITH,)),
            "rate": Figure("training", "rows/s", _WITHOUT),
        },
        subjects={_WITHOUT: lambda: turn(0), _WITH: lambda: turn(3)},
        warmups=0,
    )
