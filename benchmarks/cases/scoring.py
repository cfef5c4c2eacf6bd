"""Rows per second of scoring a DataFrame, beside predict_batch_udf: array, scalar and binary tensor columns.

Of tensors, label and prediction are kept: who scores images does not write them out again. What that costs is shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks import data
from benchmarks.bench import Bench, drain, seconds
from benchmarks.harness import Case, Figure, Goal
from benchmarks.models import small

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["cases"]

_WIDTH, _BATCH = 784, 256
_THEIRS, _OURS = "predict_batch_udf", "firesteel"


def cases(bench: Bench) -> Iterator[Case]:
    """One case for each kind of column, with the same model where the width is the same."""
    rows = bench.rows(240_000)
    array = bench.spark.read.parquet(data.array_parquet(bench.folder, rows, _WIDTH)).drop("label")
    yield _case("an array<float> column", array, ["features"], _WIDTH, rows, 1.0)

    rows_of_scalars = bench.rows(1_000_000)
    scalars = bench.spark.read.parquet(data.scalar_parquet(bench.folder, rows_of_scalars)).drop("label")
    yield _case("ten scalar columns", scalars, list(data.SCALARS), len(data.SCALARS), rows_of_scalars, 1.0)

    from firesteel.data.frame import as_tensor_column

    binary = bench.spark.read.parquet(data.binary_parquet(bench.folder, rows, _WIDTH))
    marked = as_tensor_column(binary, "features", "float32", (_WIDTH,))
    yield _case("a binary tensor column", marked, ["features"], _WIDTH, rows, 2.0, ["label", "prediction"])
    yield _case("a binary tensor column, written out again", marked.drop("label"), ["features"], _WIDTH, rows)


def _case(
    kind: str,
    frame: DataFrame,
    columns: Sequence[str],
    width: int,
    rows: int,
    least: float | None = None,
    kept: Sequence[str] | None = None,
) -> Case:
    import torch

    torch.manual_seed(1)
    model = small({"width": width}).eval()
    goals = {} if least is None else {_OURS: Goal(least=least)}

    def firesteel() -> None:
        from firesteel import Estimator

        scored = Estimator.from_torch(model=model)
        drain(scored.predict(frame, batch_size=_BATCH, feature_cols=list(columns)).select(*kept or "*"))

    def by_udf() -> None:
        from pyspark.sql.functions import struct

        is_binary = dict(frame.dtypes)[columns[0]] == "binary"
        predict = _udf(model, width, shapes=[[width]] if len(columns) == 1 and not is_binary else None)
        # Several columns as one input: a struct is the fastest of the ways it offers.
        inputs = struct(*columns) if len(columns) > 1 else columns[0]
        drain(frame.withColumn("prediction", predict(inputs)).select(*kept or "*"))

    return Case(
        title=f"Scoring {kind}",
        about=f"{rows:,} rows from Parquet into a sink that drops them, "
        f"{' and '.join(kept) if kept else 'all input columns'} kept; {width} → 32 → 10, "
        f"batches of {_BATCH}, a thread for each of two tasks.",
        figures={"rate": Figure(f"scoring, {kind}", "rows/s", _THEIRS, goals)},
        subjects={
            _THEIRS: lambda: {"rate": rows / seconds(by_udf)},
            _OURS: lambda: {"rate": rows / seconds(firesteel)},
        },
    )


def _udf(model: Any, width: int, shapes: list[list[int]] | None) -> Any:
    from pyspark.ml.functions import predict_batch_udf
    from pyspark.sql.types import ArrayType, FloatType

    def make_predict_fn() -> Any:
        import numpy as np
        import torch

        torch.set_num_threads(1)

        def predict(inputs: Any) -> Any:
            if inputs.dtype == object:  # binary: it hands over bytes, and what they mean is the user's business
                inputs = np.frombuffer(b"".join(inputs.ravel()), np.float32).reshape(-1, width)
            with torch.inference_mode():
                return model(torch.from_numpy(np.array(inputs, np.float32))).numpy()

        return predict

    kind = ArrayType(FloatType())
    return predict_batch_udf(make_predict_fn, return_type=kind, batch_size=_BATCH, input_tensor_shapes=shapes)
