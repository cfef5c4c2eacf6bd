"""A training that can be killed: run as a program it trains until somebody ends it, in the middle of epoch 2."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch
from pyspark.sql import SparkSession
from torch import nn

from firesteel import Estimator
from firesteel.learn.pytorch.callbacks import Callback, Runner
from firesteel.learn.trigger import SeveralIteration

ROWS = 20
LAST_STEP = 4  # of 3 steps per epoch


class Counter(Callback):
    """Appends the rows of every step to a file; waits for its end at a given step."""

    def __init__(self, folder: Path, waits_after: int | None = None) -> None:
        self.folder, self.waits_after = str(folder), waits_after

    def before_train_iter(self, runner: Runner) -> None:
        if runner.global_step == self.waits_after:
            time.sleep(600)

    def after_train_iter(self, runner: Runner) -> None:
        with open(f"{self.folder}/{runner.num_workers}-{runner.rank}", "a") as file:
            file.writelines(f"{round(float(value))}\n" for value in runner.batch[0][:, 1])


def counted(folder: Path) -> list[int]:
    return sorted(int(line) for path in folder.iterdir() for line in path.read_text().split())


def estimator(model_dir: Path, replicas: int = 2) -> Any:
    torch.manual_seed(9)
    model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    return Estimator.from_torch(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), 0.05),
        scheduler_creator=lambda optimizer, config: torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.8),
        loss=nn.MSELoss(),
        workers_per_node=replicas,
        model_dir=str(model_dir),
        seed=21,
    )


def train(
    spark: SparkSession, est: Any, folder: Path, waits_after: int | None = None, partitions: int = 4, **options: Any
) -> Any:
    rows = [([number / ROWS, float(number)], float(number % 7)) for number in range(ROWS)]
    df = spark.createDataFrame(spark.sparkContext.parallelize(rows, partitions), "x array<double>, y double")
    folder.mkdir(exist_ok=True)
    options = {"batch_size": 8, "feature_cols": "x", "label_cols": "y", "verbose": 0, **options}
    return est.fit(df, callbacks=[Counter(folder, waits_after)], **options)


def main(folder: Path) -> None:
    from firesteel import init_context

    init_context("local", cores=2)
    spark = SparkSession.builder.getOrCreate()
    est = estimator(folder / "model")
    train(spark, est, folder / "rows", LAST_STEP, epochs=3, checkpoint_trigger=SeveralIteration(1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
