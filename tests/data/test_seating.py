"""Rows for rank 0 to keep in the driver's place, among the rank's own."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from firesteel.data.packed import pack
from firesteel.data.seating import split_guests


def test_no_guests_cost_nothing() -> None:
    rows = pa.record_batch({"__partition": [0, 0], "c0": [1.0, 2.0]})
    own, guests = split_guests(rows)
    assert own is rows
    assert list(guests) == []


def test_guests_are_told_from_rows() -> None:
    header, data = pack({"x0": np.arange(3.0), "y0": np.arange(3)})
    rows = pa.record_batch(
        {
            "__partition": [4, 7, 4],
            "c0": [1.0, None, 2.0],
            "__guest": [None, "validation", None],
            "header": [None, header, None],
            "data": pa.array([None, data, None], pa.binary()),
        }
    )
    own, guests = split_guests(rows)
    assert own.column("c0").to_pylist() == [1.0, 2.0]
    ((name, partition, batch),) = guests
    assert (name, partition) == ("validation", 7)
    np.testing.assert_array_equal(batch["x0"], np.arange(3.0))
    np.testing.assert_array_equal(batch["y0"], np.arange(3))
