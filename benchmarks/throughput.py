"""Rows per second of fit and predict on one and two replicas, beside plain torch in this process.

All runs take turns (``--rounds``), and each figure is the best of its turns: on a machine with neighbours only the
ratios of one such run mean anything. Times include everything the caller waits for, but not the session's start.

make bench        make bench BENCH_ARGS="--rows 20000 --rounds 1"
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from firesteel import Estimator, init_context, stop_context

WIDTH, CLASSES, BATCH = 256, 10, 256


def make_model(config):
    from torch import nn

    return nn.Sequential(nn.Linear(WIDTH, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, CLASSES))


def make_optimizer(model, config):
    import torch

    return torch.optim.SGD(model.parameters(), lr=0.01)


def make_loss(config):
    from torch import nn

    return nn.CrossEntropyLoss()


def write(folder, features, labels, parts=4):
    for part, rows in enumerate(np.array_split(np.arange(len(features)), parts)):
        offsets = pa.array(np.arange(len(rows) + 1, dtype=np.int32) * WIDTH)
        column = pa.ListArray.from_arrays(offsets, pa.array(features[rows].ravel()))
        pq.write_table(pa.table({"features": column, "label": labels[rows]}), folder / f"{part}.parquet")


def plain_torch(features, labels, epochs):
    """Seconds of (training, scoring) in this process, from arrays in memory."""
    import torch

    model = make_model({})
    optimizer, loss = make_optimizer(model, {}), make_loss({})
    x, y = torch.from_numpy(features), torch.from_numpy(labels)
    start = time.perf_counter()
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(BATCH):
            optimizer.zero_grad()
            loss(model(x[rows]), y[rows]).backward()
            optimizer.step()
    trained = time.perf_counter()
    with torch.inference_mode():
        for rows in x.split(BATCH):
            model(rows)
    return trained - start, time.perf_counter() - trained


def firesteel(data, replicas, epochs):
    """Seconds of (fit, predict to a sink that drops the rows) on a DataFrame."""
    columns = {"feature_cols": ["features"], "label_cols": ["label"]}
    estimator = Estimator.from_torch(
        model=make_model, optimizer=make_optimizer, loss=make_loss, workers_per_node=replicas, seed=1
    )
    start = time.perf_counter()
    estimator.fit(data, epochs=epochs, batch_size=BATCH, verbose=0, **columns)
    trained = time.perf_counter()
    estimator.predict(data, feature_cols=["features"]).write.format("noop").mode("overwrite").save()
    return trained - start, time.perf_counter() - trained


def main():
    parser = argparse.ArgumentParser(description="Rows per second of fit and predict.")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()

    random = np.random.default_rng(0)
    features = random.standard_normal((options.rows, WIDTH), dtype=np.float32)
    labels = random.integers(0, CLASSES, options.rows)
    init_context("local", cores=2)
    spark = SparkSession.builder.getOrCreate()
    with tempfile.TemporaryDirectory(prefix="firesteel-bench-") as folder:
        write(Path(folder), features, labels)
        data = spark.read.parquet(folder)
        runs = {
            "plain torch, one process": lambda: plain_torch(features, labels, options.epochs),
            "firesteel, 1 replica": lambda: firesteel(data, 1, options.epochs),
            "firesteel, 2 replicas": lambda: firesteel(data, 2, options.epochs),
        }
        times = {name: [] for name in runs}
        for _ in range(options.rounds):
            for name, run in runs.items():
                times[name].append(run())
    stop_context()

    print(f"{options.rows:,} rows of {WIDTH} floats, {options.epochs} epochs, batches of {BATCH}")
    print(f"{'':28}{'fit s':>10}{'fit rows/s':>14}{'predict s':>12}{'predict rows/s':>16}")
    for name, pairs in times.items():
        fit, predict = (min(column) for column in zip(*pairs, strict=True))
        fit_rate, predict_rate = options.rows * options.epochs / fit, options.rows / predict
        print(f"{name:28}{fit:>10.2f}{fit_rate:>14,.0f}{predict:>12.2f}{predict_rate:>16,.0f}")


if __name__ == "__main__":
    main()
