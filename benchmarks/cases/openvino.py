"""Rows per second of scoring a DataFrame with a small ResNet: OpenVINO beside torch, and beside a loop by hand."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import data
from benchmarks.bench import Bench, drain, seconds
from benchmarks.harness import Case, Figure, Goal

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["cases"]

_SHAPE, _BATCH = (3, 32, 32), 16
# Pinned, both tasks would share one core; and where the processor has bfloat16, OpenVINO would take that for floats,
# which are other numbers than torch's and ours.
_BY_HAND = {"INFERENCE_NUM_THREADS": 1, "ENABLE_CPU_PINNING": False, "EXECUTION_MODE_HINT": "ACCURACY"}
_TORCH, _LOOP, _OURS = "firesteel, torch", "a loop by hand, OpenVINO", "firesteel, OpenVINO"


def cases(bench: Bench) -> Iterator[Case]:
    """One case with two references: what the model costs in torch, and what OpenVINO costs without us."""
    import torch

    from firesteel import Estimator
    from firesteel.data.frame import as_tensor_column

    rows = bench.rows(30_000)
    width = int(np.prod(_SHAPE))
    frame = bench.spark.read.parquet(data.binary_parquet(bench.folder, rows, width)).drop("label")
    marked = as_tensor_column(frame, "features", "float32", _SHAPE)
    torch.manual_seed(1)
    by_torch = Estimator.from_torch(model=_resnet().eval())
    path = by_torch.to_openvino(str(bench.folder / "resnet.xml"), inputs=np.zeros((1, *_SHAPE), np.float32))
    by_openvino = Estimator.from_openvino(model_path=path)

    def score(estimator: Any) -> dict[str, float]:
        run = partial(estimator.predict, marked, feature_cols="features", batch_size=_BATCH)
        return _rates(rows / seconds(lambda: drain(run())))

    def loop() -> dict[str, float]:
        scored = frame.mapInArrow(partial(_score_by_hand, path), "features binary, prediction array<float>")
        return _rates(rows / seconds(lambda: drain(scored)))

    yield Case(
        title="Scoring with OpenVINO",
        about=f"{rows:,} images of 3×32×32 as binary tensors, from Parquet into a sink that drops them; a ResNet of "
        f"seven convolutions, batches of {_BATCH}, a thread for each of two tasks. The loop by hand compiles the model "
        f"in each task and calls it batch by batch.",
        figures={
            "torch": Figure("scoring a small ResNet, beside torch", "rows/s", _TORCH, {_OURS: Goal(least=1.5)}),
            "loop": Figure("scoring a small ResNet, beside a loop", "rows/s", _LOOP, {_OURS: Goal(least=0.9)}),
        },
        subjects={_TORCH: partial(score, by_torch), _LOOP: loop, _OURS: partial(score, by_openvino)},
    )


def _rates(rate: float) -> dict[str, float]:
    return {"torch": rate, "loop": rate}


def _score_by_hand(path: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import openvino as ov
    import pyarrow as pa

    request = ov.Core().compile_model(path, "CPU", _BY_HAND).create_infer_request()
    for rows in batches:
        cells = rows.column(0)
        images = np.frombuffer(b"".join(cells.to_pylist()), np.float32).reshape(-1, *_SHAPE)
        parts = [request.infer({0: images[at : at + _BATCH]})[0].copy() for at in range(0, len(images), _BATCH)]
        found = pa.array(list(np.concatenate(parts)), pa.list_(pa.float32()))
        yield pa.RecordBatch.from_arrays([cells, found], ["features", "prediction"])


def _resnet() -> Any:
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            self.first = nn.Sequential(
                nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
            )
            self.second = nn.Sequential(nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs))
            is_same = inputs == outputs and stride == 1
            self.short = nn.Identity() if is_same else nn.Conv2d(inputs, outputs, 1, stride)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.second(self.first(x)) + self.short(x))

    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1),
        Block(16, 16, 1),
        Block(16, 32, 2),
        Block(32, 64, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )
