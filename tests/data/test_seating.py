"""Which rank gets which partitions; and rows for rank 0 to keep in the driver's place, among the rank's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.core.errors import PlanError
from firesteel.data.packed import pack
from firesteel.data.reading import Reading
from firesteel.data.seating import Decoder, deal, seat, split_guests

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@given(st.integers(1, 40), st.integers(1, 12))
def test_every_partition_is_dealt_once_and_evenly(partitions: int, world: int) -> None:
    hands = deal(partitions, world)
    assert sorted(partition for hand in hands for partition in hand) == list(range(partitions))
    assert [len(hand) for hand in hands] == [
        (rank + 1) * partitions // world - rank * partitions // world for rank in range(world)
    ], "as many as a coalesce gives to each rank"


def test_neighbours_go_to_different_ranks() -> None:
    assert deal(8, 2) == [[0, 3, 4, 7], [1, 2, 5, 6]]


def test_files_of_one_large_row_group_do_not_all_go_to_one_rank(spark: SparkSession, tmp_path: Path) -> None:
    """Spark cuts each into pieces, the first of which has all rows, and puts the large pieces first."""
    import pyarrow.parquet as pq
    from pyspark.sql.functions import spark_partition_id

    for file in range(4):
        table = pa.table({"id": np.arange(file * 1000, (file + 1) * 1000), "x": np.random.default_rng(0).random(1000)})
        pq.write_table(table, tmp_path / f"{file}.parquet", compression="none", use_dictionary=False)
    size = max(path.stat().st_size for path in tmp_path.glob("*.parquet"))
    settings = {
        "spark.sql.files.maxPartitionBytes": size * 5 // 8,
        "spark.sql.files.openCostInBytes": size,
        "spark.firesteel.readFiles": "false",
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        frame = spark.read.parquet(str(tmp_path))
        seated = seat(frame, ["id"], Decoder(Reading(())), 2)
        raw = seated.decoder.raw
        assert raw is not None
        batches = seated.frame.withColumn("rank", spark_partition_id()).toArrow().to_batches()
        held: list[list[int]] = [[], []]
        for batch in batches:
            held[batch.column("rank")[0].as_py()] += raw.read(batch.select([0])).column(1).to_pylist()
    finally:
        for name in settings:
            spark.conf.unset(name)
    assert seated.partitions == 8
    assert [len(rows) for rows in held] == [2000, 2000]
    assert sorted(held[0] + held[1]) == list(range(4000))


@pytest.mark.parametrize("name", ["spark.firesteel.readFiles", "spark.firesteel.rawRows"])
def test_a_switch_that_is_neither_on_nor_off_is_refused(spark: SparkSession, name: str) -> None:
    spark.conf.set(name, "yes")
    try:
        with pytest.raises(PlanError, match=f"{name} must be true or false, not 'yes'"):
            seat(spark.range(3), ["id"], Decoder(Reading(())), 2)
        spark.conf.set(name, " TRUE ")
        assert seat(spark.range(3), ["id"], Decoder(Reading(())), 2).decoder.raw is not None
    finally:
        spark.conf.unset(name)


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
