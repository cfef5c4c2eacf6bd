"""What asynchrony costs in accuracy: the same model at equal epochs, its replicas agreeing in different ways.

python -m benchmarks.convergence --data-dir path/to/mnist
"""

from __future__ import annotations

import argparse
import gzip
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

_SYNCS = ("allreduce", "hogwild", "locked", "SparkAsyncDL, hogwild", "SparkAsyncDL, locked")
_RATE, _BATCH, _REPLICAS = 0.1, 128, 2


def main() -> None:
    """The command line: a Markdown table, the median over seeds."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.convergence", description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True, help="folder with the four MNIST idx.gz files")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()

    from pyspark.sql import SparkSession

    from firesteel import init_context, stop_context

    # A start without imports: it is accuracy that is compared here.
    init_context("local", cores=2, memory="4g", conf={"spark.firesteel.keepWarmSeconds": "60"})
    spark = SparkSession.builder.getOrCreate()
    train, test = (_frame(spark, options.data_dir, part) for part in ("train", "t10k"))
    found: dict[str, list[tuple[float, float]]] = {sync: [] for sync in _SYNCS}
    for seed in range(options.seeds):
        for sync in _SYNCS:
            begin = time.perf_counter()
            stage = (_graph if "," in sync else _torch)(sync, options.epochs, seed)
            accuracy = _accuracy(stage, train, test)
            found[sync].append((accuracy, time.perf_counter() - begin))
            print(f"seed {seed}, {sync}: {accuracy:.2%} after {options.epochs} epochs", flush=True)
    stop_context()
    print("\n| replicas agree by | accuracy | lowest to highest | seconds |\n|---|--:|--:|--:|")
    for sync, runs in found.items():
        values = [accuracy for accuracy, _ in runs]
        seconds = statistics.median(took for _, took in runs)
        print(f"| {sync} | {statistics.median(values):.2%} | {min(values):.2%} to {max(values):.2%} | {seconds:.0f} |")


def _accuracy(stage: Any, train: Any, test: Any) -> float:
    scored = stage.fit(train).transform(test)
    return float(scored.selectExpr("avg(cast(prediction = label as double)) as accuracy").first().accuracy)


def _torch(sync: str, epochs: int, seed: int) -> Any:
    import torch
    from torch import nn

    from firesteel.pipeline import DLEstimator

    torch.manual_seed(seed)
    layers = nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    return DLEstimator(
        nn.Sequential(*layers),
        loss=nn.CrossEntropyLoss(),
        optimizer="SGD",
        learningRate=_RATE,
        batchSize=_BATCH,
        epochs=epochs,
        numReplicas=_REPLICAS,
        sync=sync,
        task="multiclass",
        fromLogits=True,
        seed=seed,
    )


def _graph(sync: str, epochs: int, seed: int) -> Any:
    from benchmarks.peers.async_peer import network
    from firesteel.pipeline import SparkAsyncDL, build_graph

    return SparkAsyncDL(
        inputCol="vector",
        labelCol="hot",
        tensorflowGraph=build_graph(network),
        tfInput="x:0",
        tfLabel="y:0",
        tfOutput="out:0",
        tfOptimizer="gradient_descent",
        tfLearningRate=_RATE,
        iters=epochs,
        miniBatchSize=_BATCH // _REPLICAS,
        partitions=_REPLICAS,
        acquireLock=sync.endswith("locked"),
        predictionCol="prediction",
        seed=seed,
    )


def _frame(spark: Any, folder: Path, part: str) -> Any:
    import pandas as pd
    from pyspark.ml.functions import array_to_vector
    from pyspark.sql.functions import array, col, lit

    images = _idx(folder / f"{part}-images-idx3-ubyte.gz").reshape(-1, 784).astype(np.float32) / 255
    labels = _idx(folder / f"{part}-labels-idx1-ubyte.gz").astype(np.int64)
    frame = spark.createDataFrame(pd.DataFrame({"features": list(images), "label": labels}))
    hot = array(*[(col("label") == lit(place)).cast("double") for place in range(10)])
    frame = frame.withColumn("vector", array_to_vector(col("features").cast("array<double>"))).withColumn(
        "hot", array_to_vector(hot)
    )
    frame = frame.repartition(_REPLICAS).cache()
    frame.count()
    return frame


def _idx(path: Path) -> Any:
    data = gzip.decompress(path.read_bytes())
    shape = np.frombuffer(data, ">i4", data[3], 4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(shape)


if __name__ == "__main__":
    main()
