"""Rows for the cases: random numbers, as arrays in memory and as Parquet files that Spark reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["CLASSES", "SCALARS", "array_parquet", "arrays", "binary_parquet", "scalar_parquet"]

CLASSES = 10
SCALARS = tuple(f"f{index}" for index in range(10))
_FILES = 4


def arrays(rows: int, width: int) -> tuple[Any, Any]:
    """Features (float32) and labels (int64); always the same ones."""
    random = np.random.default_rng(0)
    return random.standard_normal((rows, width), dtype=np.float32), random.integers(0, CLASSES, rows)


def array_parquet(folder: Path, rows: int, width: int) -> str:
    """Columns ``features`` (``array<float>``) and ``label``."""
    import pyarrow as pa

    def columns(features: Any, labels: Any) -> dict[str, Any]:
        offsets = pa.array(np.arange(len(features) + 1, dtype=np.int32) * width)
        return {"features": pa.ListArray.from_arrays(offsets, pa.array(features.ravel())), "label": labels}

    return _write(folder / f"array-{rows}x{width}", columns, rows, width)


def binary_parquet(folder: Path, rows: int, width: int) -> str:
    """Columns ``features`` (``binary``: the row's float32 as they lie in memory) and ``label``."""
    import pyarrow as pa

    def columns(features: Any, labels: Any) -> dict[str, Any]:
        kind = pa.binary(width * features.itemsize)
        fixed = pa.FixedSizeBinaryArray.from_buffers(kind, len(features), [None, pa.py_buffer(features)])
        return {"features": fixed.cast(pa.binary()), "label": labels}

    return _write(folder / f"binary-{rows}x{width}", columns, rows, width)


def scalar_parquet(folder: Path, rows: int) -> str:
    """Columns ``f0`` to ``f9`` (``float``) and ``label``."""

    def columns(features: Any, labels: Any) -> dict[str, Any]:
        return {name: features[:, index] for index, name in enumerate(SCALARS)} | {"label": labels}

    return _write(folder / f"scalars-{rows}", columns, rows, len(SCALARS))


def _write(folder: Path, columns: Any, rows: int, width: int) -> str:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not folder.exists():
        folder.mkdir(parents=True)
        features, labels = arrays(rows, width)
        for file, part in enumerate(_parts(rows)):
            # Random floats do not compress; trying to would only slow the reading down.
            table = pa.table(columns(np.ascontiguousarray(features[part]), labels[part]))
            pq.write_table(table, folder / f"{file}.parquet", compression="none", use_dictionary=False)
    return str(folder)


def _parts(rows: int) -> Iterator[slice]:
    for file in range(_FILES):
        yield slice(rows * file // _FILES, rows * (file + 1) // _FILES)
