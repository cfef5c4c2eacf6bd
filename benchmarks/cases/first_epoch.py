"""Reading from Spark and the first epoch: beside Spark's own ceiling, and beside TorchDistributor's loader.

The first epoch is bound by the way from the JVM into Python, so the models have next to no work to do, and batches are
large. What is counted is the time past the fixed start, which is the same run on next to no rows, before and after (the
shorter one): for all subjects alike. Firesteel reads while its processes start, so that this rule hides some of its
reading: the rate with the start stands beside it. Where rows are those of Parquet files, as here, Firesteel's ranks
read the files; with that switched off their way is that of all other rows, through Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from benchmarks import data
from benchmarks.bench import REPLICAS, Bench, seconds
from benchmarks.harness import CannotRun, Case, Figure, Goal, Sample
from benchmarks.models import estimator, one, squares

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["cases"]

_WIDTH, _BATCH, _FEW_ROWS = 784, 4096, 1024
_OURS, _BY_SPARK = "firesteel, fit of one epoch", "firesteel, rows through Spark"


def cases(bench: Bench) -> Iterator[Case]:
    """Wide rows against bare mapInArrow, ten scalars against the loader."""
    yield _beside_map_in_arrow(bench)
    if not bench.is_quick:
        yield _beside_loader(bench)


def _beside_map_in_arrow(bench: Bench) -> Case:
    rows, theirs = bench.rows(480_000), "bare mapInArrow"
    whole = data.array_parquet(bench.folder, rows, _WIDTH)
    few = data.array_parquet(bench.folder, _FEW_ROWS, _WIDTH)
    columns = ["features", "label"]

    def fit(path: str) -> None:
        trained = estimator(one, _WIDTH, REPLICAS, loss=squares)
        frame = bench.spark.read.parquet(path)
        trained.fit(frame, epochs=1, batch_size=_BATCH, feature_cols="features", label_cols="label", verbose=0)

    def consume(path: str) -> None:
        _consume(bench.spark.read.parquet(path).select(*columns))

    return Case(
        title="First epoch, wide rows",
        about=f"{rows:,} rows of {_WIDTH} floats (array<float>) and a label from Parquet, a linear model with one "
        f"output, global batches of {_BATCH:,}. mapInArrow's function looks at nothing: what it reaches "
        f"is Spark's ceiling. Firesteel reads while its processes start, and that much of the reading is not past "
        f"the start.",
        figures={
            "rate": Figure(
                "past the fixed start", "rows/s", theirs, dict.fromkeys((_OURS, _BY_SPARK), Goal(least=0.8, aim=0.9))
            ),
            "whole": Figure("start included", "rows/s", theirs),
            "start": Figure("fixed start", "s"),
        },
        subjects={
            theirs: _rate(rows, consume, whole, few),
            _OURS: _rate(rows, fit, whole, few),
            _BY_SPARK: _rate(rows, _through_spark(bench, fit), whole, few),
        },
        warmups=0,
    )


def _beside_loader(bench: Bench) -> Case:
    rows, theirs = bench.rows(4_000_000), "TorchDistributor's DataFrame loader"
    whole, few = data.scalar_parquet(bench.folder, rows), data.scalar_parquet(bench.folder, _FEW_ROWS)

    def fit(path: str) -> None:
        trained = estimator(one, len(data.SCALARS), REPLICAS, loss=squares)
        columns = {"feature_cols": list(data.SCALARS), "label_cols": "label"}
        trained.fit(bench.spark.read.parquet(path), epochs=1, batch_size=_BATCH, verbose=0, **columns)

    def load(path: str) -> None:
        from pyspark.ml.torch.distributor import TorchDistributor

        frame = bench.spark.read.parquet(path).coalesce(REPLICAS)
        count = frame.count() // REPLICAS  # it must be told; Parquet's footers know, so this costs little
        distributor = TorchDistributor(num_processes=REPLICAS, local_mode=False, use_gpu=False)
        seen = distributor._train_on_dataframe(_train_by_loader(count, _BATCH // REPLICAS), frame)
        if seen != count:
            raise CannotRun(f"rank 0 saw {seen} of {count} rows")

    return Case(
        title="First epoch, ten scalar columns",
        about=f"{rows:,} rows of ten floats and a label from Parquet, a linear model with one output, global batches "
        f"of {_BATCH:,}. The loader is that of TorchDistributor._train_on_dataframe, in the training process itself.",
        figures={
            "rate": Figure("past the fixed start", "rows/s", theirs, {_OURS: Goal(least=5)}),
            "whole": Figure("start included", "rows/s", theirs),
            "start": Figure("fixed start", "s"),
        },
        subjects={
            theirs: _rate(rows, load, whole, few),
            _OURS: _rate(rows, fit, whole, few),
            _BY_SPARK: _rate(rows, _through_spark(bench, fit), whole, few),
        },
        warmups=0,
    )


def _through_spark(bench: Bench, run: Callable[[str], None]) -> Callable[[str], None]:
    def switched(path: str) -> None:
        bench.spark.conf.set("spark.firesteel.readFiles", "false")
        try:
            run(path)
        finally:
            bench.spark.conf.unset("spark.firesteel.readFiles")

    return switched


def _rate(rows: int, run: Callable[[str], None], whole: str, few: str) -> Callable[[], Sample]:
    run(few)  # what is slow only the first time must not be taken for the fixed start
    run(whole)

    def turn() -> Sample:
        before = seconds(lambda: run(few))
        took = seconds(lambda: run(whole))
        start = min(before, seconds(lambda: run(few)))  # whatever else the machine does makes one longer, never shorter
        found = {"whole": rows / took, "start": start}
        if took > start:  # else there are too few rows to show, on so busy a machine
            found["rate"] = (rows - _FEW_ROWS) / (took - start)
        return found

    return turn


def _consume(frame: DataFrame) -> None:
    def body(batches: Any) -> Any:
        import pyarrow as pa

        rows = sum(batch.num_rows for batch in batches)
        yield pa.RecordBatch.from_arrays([pa.array([rows], pa.int64())], ["rows"])

    frame.mapInArrow(body, "rows long").collect()


def _train_by_loader(count: int, batch: int) -> Any:
    """Travels by value: TorchDistributor's processes import nothing of ours."""

    def main() -> int:
        import atexit
        import os

        import torch
        import torch.distributed as dist
        from pyspark.ml.torch.distributor import _get_spark_partition_data_loader
        from torch import nn

        # In about one run of six gloo's threads abort in the interpreter's teardown, and torchrun then waits for
        # five minutes. That is not what is measured here: the process ends before it.
        atexit.register(os._exit, 0)
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(nn.Linear(10, 1))
        optimizer, loss = torch.optim.SGD(model.parameters(), lr=0.01), nn.MSELoss()
        seen = 0
        for *features, label in _get_spark_partition_data_loader(count, batch, num_workers=0):
            optimizer.zero_grad()
            loss(model(torch.stack(features, 1).float())[:, 0], label.float()).backward()
            optimizer.step()
            seen += len(label)
        dist.destroy_process_group()
        return seen

    return main
