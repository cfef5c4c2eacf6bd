"""Cells that tasks read from files: the same that Spark would have sent."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.functions import col

from firesteel.core.errors import PlanError, SchemaError
from firesteel.data.scan import SETTING, Cells, Scan, scan_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 50


def cell(number: int) -> bytes:
    return bytes([number]) * (number % 7)


def write(path: Path, cells: list[bytes | None], group: int = 8, name: str = "c", kind: Any = None) -> str:
    table = pa.table({name: pa.array(cells, kind or pa.binary()), "n": range(len(cells))})
    pq.write_table(table, path, row_group_size=group)
    return path.as_uri()


def read(cells: Cells, paths: list[str], rows: list[int]) -> list[bytes | None]:
    pieces = list(cells.read(pa.array(paths, pa.string()), pa.array(rows, pa.int64())))
    assert all(piece.type == pa.binary() for piece in pieces)
    return [value for piece in pieces for value in piece.to_pylist()]


@given(
    requests=st.lists(st.lists(st.tuples(st.integers(0, 1), st.integers(0, ROWS - 1)), max_size=30), max_size=4),
    is_sorted=st.booleans(),
    at_once=st.integers(1, 20),
    group=st.integers(1, 60),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_rows_of_any_files_in_any_order(
    tmp_path: Path, requests: list[list[tuple[int, int]]], is_sorted: bool, at_once: int, group: int
) -> None:
    held = [[cell(n + 100 * file) for n in range(ROWS)] for file in range(2)]
    paths = [write(tmp_path / f"file {file}.parquet", held[file], group) for file in range(2)]
    assert "%20" in paths[0], "as Spark writes it"
    cells = Cells(Scan("c", True), at_once)
    for request in requests:
        places = sorted(request) if is_sorted else request
        found = read(cells, [paths[file] for file, _ in places], [row for _, row in places])
        assert found == [held[file][row] for file, row in places]


def test_cells_of_one_size_and_nulls(tmp_path: Path) -> None:
    path = write(tmp_path / "fixed.parquet", [b"abcd", None, b"efgh"], kind=pa.binary(4))
    assert read(Cells(Scan("c", True), 2), [path] * 3, [0, 1, 2]) == [b"abcd", None, b"efgh"]


def test_names_are_found_as_spark_finds_them(tmp_path: Path) -> None:
    path = write(tmp_path / "f.parquet", [b"x"], name="Wide")
    assert read(Cells(Scan("wide", False), 1), [path], [0]) == [b"x"]
    assert read(Cells(Scan("wide", True), 1), [path], [0]) == [None], "a file that is older than the column"
    both = tmp_path / "both.parquet"
    pq.write_table(pa.table({"Wide": [b"x"], "wide": [b"y"]}), both)
    with pytest.raises(SchemaError, match="Wide, wide"):
        read(Cells(Scan("wide", False), 1), [both.as_uri()], [0])


# --- which DataFrames are no more than files --------------------------------------------------------------------------


@pytest.fixture
def files(spark: SparkSession, tmp_path: Path) -> DataFrame:
    (tmp_path / "in" / "day=1").mkdir(parents=True)
    write(tmp_path / "in" / "day=1" / "a.parquet", [cell(n) for n in range(ROWS)])
    return spark.read.parquet(str(tmp_path / "in"))


def test_rows_of_files_selected_renamed_and_filtered(files: DataFrame) -> None:
    assert scan_of(files, 0) == Scan("c", False)
    renamed = files.alias("given").where("n > 3").select("n", col("given.c").alias("other")).where("n % 2 = 0")
    assert scan_of(renamed, 1) == Scan("c", False)
    found = renamed.select("other", *Scan("c", False).where()).collect()
    assert len(found) == 23
    paths, rows = [row[1] for row in found], [row[2] for row in found]
    assert read(Cells(Scan("c", False), 4), paths, rows) == [bytes(row[0]) for row in found]


def test_whatever_else_comes_through_spark(spark: SparkSession, files: DataFrame, tmp_path: Path) -> None:
    others = {
        "computed": files.selectExpr("concat(c, c) AS c"),
        "shuffled": files.repartition(2),
        "joined": files.join(files.select("n"), "n").select("c"),
        "limited": files.limit(3),
        "united": files.union(files),
        "not of files": spark.createDataFrame([(b"x",)], "c binary"),
        "with a column that hides Spark's": files.withColumn("_METADATA", files.n),
    }
    assert {name for name, frame in others.items() if scan_of(frame, frame.columns.index("c")) is not None} == set()
    assert scan_of(files, files.columns.index("day")) is None
    (tmp_path / "both" / "c=1").mkdir(parents=True)
    write(tmp_path / "both" / "c=1" / "a.parquet", [b"x"])
    both = spark.read.parquet(str(tmp_path / "both"))
    assert scan_of(both, both.columns.index("c")) is None, "Spark takes the folder's name"
    files.write.orc(str(tmp_path / "orc"))
    assert scan_of(spark.read.orc(str(tmp_path / "orc")), 0) is None


def test_cached_rows_stay_the_cached_ones(files: DataFrame) -> None:
    assert scan_of(files.select("c"), 0) is not None
    files.cache()
    try:
        assert scan_of(files.select("c"), 0) is None
    finally:
        files.unpersist()


def test_who_does_not_want_it_says_so(spark: SparkSession, files: DataFrame) -> None:
    spark.conf.set(SETTING, "false")
    try:
        assert scan_of(files, 0) is None
    finally:
        spark.conf.unset(SETTING)


def test_a_switch_that_is_neither_on_nor_off_is_refused(spark: SparkSession, files: DataFrame) -> None:
    try:
        spark.conf.set(SETTING, " TRUE ")
        assert scan_of(files, 0) is not None
        spark.conf.set(SETTING, "yes")
        with pytest.raises(PlanError, match=f"{SETTING} must be true or false, not 'yes'"):
            scan_of(files, 0)
    finally:
        spark.conf.unset(SETTING)


def test_places_are_numpy_ints_from_spark(files: DataFrame) -> None:
    where = files.select(*Scan("c", False).where()).toArrow()
    paths, rows = where.column(0).combine_chunks(), where.column(1).combine_chunks()
    pieces = list(Cells(Scan("c", False), 7).read(paths, rows))
    assert np.sum([len(piece) for piece in pieces]) == ROWS
