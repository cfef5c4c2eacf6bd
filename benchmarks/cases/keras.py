"""Keras: rows per second of later epochs beside a loop written by hand, and of scoring beside predict_batch_udf."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from benchmarks import data
from benchmarks.bench import REPLICAS, Bench, drain, seconds
from benchmarks.cases.training import save_arrays
from benchmarks.harness import Case, Figure, Goal
from benchmarks.keras_models import mlp, small
from benchmarks.subprocesses import PEERS, free_port, run_json

__all__ = ["cases"]

_WIDTH, _BATCH = 784, 256
_BY_HAND, _UDF, _OURS = "hand-written loop", "predict_batch_udf", "firesteel"


def cases(bench: Bench) -> Iterator[Case]:
    """Training, then scoring."""
    yield _training(bench)
    yield _scoring(bench)


def _training(bench: Bench) -> Case:
    rows, epochs = bench.rows(60_000), 3 if bench.is_quick else 6
    folder = save_arrays(bench.folder, rows)
    path = data.array_parquet(bench.folder, rows, _WIDTH)

    def firesteel() -> float:
        from firesteel import Estimator

        trained = Estimator.from_keras(mlp(), workers_per_node=REPLICAS, seed=1)
        columns = {"feature_cols": "features", "label_cols": "label"}
        trained.fit(bench.spark.read.parquet(path), epochs=epochs, batch_size=_BATCH, verbose=0, **columns)
        times = [at for _, _, at in trained.get_train_summary("Loss")]
        steps = len(times) // epochs
        return rows * (epochs - 1) / (times[-1] - times[steps - 1])

    def by_hand() -> float:
        run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(REPLICAS)]
        run += ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
        run += [str(PEERS / "keras_loop.py"), "--data", str(folder), "--epochs", str(epochs), "--batch", str(_BATCH)]
        ends = run_json(run, {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"})["ends"]
        return rows * (epochs - 1) / (ends[-1] - ends[0])

    return Case(
        title="Training a Keras model from a DataFrame",
        about=f"{rows:,} rows of {_WIDTH} floats, an MLP of 235,000 weights on TensorFlow, global batches of {_BATCH}, "
        f"SGD, {REPLICAS} replicas with a thread each; epochs 2 to {epochs}. The loop has its rows in memory, compiled "
        f"steps, and the same collective (gloo).",
        figures={"rate": Figure("Keras, epochs 2 and later", "rows/s", _BY_HAND, {_OURS: Goal(least=0.9, aim=0.95)})},
        subjects={_BY_HAND: lambda: {"rate": by_hand()}, _OURS: lambda: {"rate": firesteel()}},
        warmups=0,  # nothing of a run's start is counted, and the first epoch is none of the figure
    )


def _scoring(bench: Bench) -> Case:
    rows = bench.rows(240_000)
    frame = bench.spark.read.parquet(data.array_parquet(bench.folder, rows, _WIDTH)).drop("label")
    model = small()
    weights = model.get_weights()

    def firesteel() -> None:
        from firesteel import Estimator

        drain(Estimator.from_keras(model).predict(frame, batch_size=_BATCH, feature_cols="features"))

    def by_udf() -> None:
        drain(frame.withColumn("prediction", _udf(weights)("features")))

    return Case(
        title="Scoring an array<float> column with a Keras model",
        about=f"{rows:,} rows from Parquet into a sink that drops them, all input columns kept; {_WIDTH} → 32 → 10, "
        f"batches of {_BATCH}, a thread for each of two tasks.",
        figures={"rate": Figure("Keras, scoring", "rows/s", _UDF, {_OURS: Goal(least=1.0)})},
        subjects={
            _UDF: lambda: {"rate": rows / seconds(by_udf)},
            _OURS: lambda: {"rate": rows / seconds(firesteel)},
        },
    )


def _udf(weights: list[Any]) -> Any:
    from pyspark.ml.functions import predict_batch_udf
    from pyspark.sql.types import ArrayType, FloatType

    def make_predict_fn() -> Any:
        import numpy as np
        import tensorflow as tf

        if not tf.config.threading.get_intra_op_parallelism_threads():
            tf.config.threading.set_intra_op_parallelism_threads(1)
            tf.config.threading.set_inter_op_parallelism_threads(1)
        model = small()
        model.set_weights(weights)
        run = tf.function(model, reduce_retracing=True)

        def predict(inputs: Any) -> Any:
            return run(tf.constant(np.asarray(inputs, np.float32))).numpy()

        return predict

    kind = ArrayType(FloatType())
    return predict_batch_udf(make_predict_fn, return_type=kind, batch_size=_BATCH, input_tensor_shapes=[[_WIDTH]])
