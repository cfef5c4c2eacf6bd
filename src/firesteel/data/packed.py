"""Many rows in one: a block of tensors as a JSON header and one run of bytes.

How ndarrays cross Spark without a Python object per row: XShards on their way into a training, local arrays on their
way to be scored, predictions on their way back.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from firesteel.core import errors
from firesteel.core.errors import PlanError
from firesteel.core.spec import Batch
from firesteel.data.ragged import Ragged

__all__ = ["BLOCK_BYTES", "PACKED_SCHEMA", "as_buffers", "cut", "pack", "pack_error", "unpack"]

BLOCK_BYTES = 8 << 20
PACKED_SCHEMA = "header string, data binary"


def pack(batch: Batch) -> tuple[str, bytes]:
    """Header and bytes. Objects may be bytes and strings, which come back as bytes."""
    header, buffers = as_buffers(batch)
    return header, b"".join(buffers)


def as_buffers(batch: Batch) -> tuple[str, list[memoryview]]:
    """Header and bytes, these as they lie in the arrays: not copied, but for arrays that are not contiguous."""
    arrays = {name: np.asarray(values, order="C") for name, values in batch.items()}
    header = [[name, array.dtype.str, list(array.shape)] for name, array in arrays.items()]
    buffers: list[memoryview] = []
    for name, array in arrays.items():
        if array.dtype == object:  # lengths, then the cells
            cells = Ragged.of_objects(array.reshape(-1), name)
            buffers.append(np.diff(cells.edges).view(np.uint8).data)
            array = cells.data
        buffers.append(array.reshape(-1).view(np.uint8).data)
    return json.dumps(header), buffers


def pack_error(error: PlanError | ValueError) -> tuple[str, bytes]:
    """Rows that turned out wrong, in the place of a block: Spark's own error would hide what ours says.

    A plain ``ValueError`` is the fault of one row, not of what was asked.
    """
    return json.dumps({"type": type(error).__name__, "text": str(error), "parts": vars(error)}, default=str), b""


def unpack(header: str, data: Any) -> Batch:
    """The reverse: read-only views of ``data`` (anything with a buffer). Raises what ``pack_error`` packed."""
    batch: Batch = {}
    offset = 0
    tensors = json.loads(header)
    if isinstance(tensors, dict):
        if tensors["type"] == ValueError.__name__:
            raise ValueError(tensors["text"])
        raise errors._rebuild(getattr(errors, tensors["type"], PlanError), (tensors["text"],), tensors["parts"])
    for name, dtype, shape in tensors:
        count = int(np.prod(shape, dtype=np.int64))
        if dtype == "|O":
            lengths = np.frombuffer(data, np.int64, count, offset)
            edges = (np.concatenate([[0], np.cumsum(lengths)]) + offset + lengths.nbytes).tolist()
            cells = np.empty(count, object)
            cells[:] = [bytes(memoryview(data)[begin:end]) for begin, end in pairwise(edges)]
            batch[name], offset = cells.reshape(shape), edges[-1]
            continue
        batch[name] = np.frombuffer(data, dtype, count, offset).reshape(shape)
        offset += batch[name].nbytes
    return batch


def cut(batch: Batch, block_bytes: int = BLOCK_BYTES, at_least: int = 1) -> Iterator[Batch]:
    """Pieces of about ``block_bytes``, and no fewer than ``at_least`` where there are rows for them."""
    rows = len(next(iter(batch.values())))
    row_bytes = max(1, sum(values.nbytes for values in batch.values()) // max(1, rows))
    step = max(1, min(block_bytes // row_bytes, -(-rows // at_least)))
    for begin in range(0, rows, step):
        yield {name: values[begin : begin + step] for name, values in batch.items()}
