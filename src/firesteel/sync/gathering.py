"""Bytes of any length from every rank, by the collectives that a library has."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from firesteel.core.ports import Group

__all__ = ["gather_bytes"]


def gather_bytes(group: Group, data: bytes) -> list[bytes]:
    """Every rank's bytes, on every rank: their lengths are summed, then the parts gathered."""
    lengths = np.zeros(group.size, dtype=np.int64)
    lengths[group.rank] = len(data)
    group.all_reduce(lengths)
    bounds = list(pairwise([0, *np.cumsum(lengths).tolist()]))
    begin, end = bounds[group.rank]
    whole = np.zeros(bounds[-1][1], dtype=np.uint8)
    whole[begin:end] = np.frombuffer(data, dtype=np.uint8)
    group.all_gather(whole, bounds)
    return [whole[begin:end].tobytes() for begin, end in bounds]
