"""Rows that ranks read from files: the rows, the order and the partitions that Spark would have sent."""

from __future__ import annotations

import errno
import os
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.functions import col, spark_partition_id

from firesteel.core.errors import ClusterError
from firesteel.data.parquet import FileRows, files_of
from firesteel.data.reading import make_reading
from firesteel.data.scan import SETTING, Scan
from firesteel.data.seating import Decoder, Seated, seat

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

ROWS = 120


def table(rows: int = ROWS) -> pa.Table:
    """Everything that is read from files, with nulls."""
    numbers = range(rows)
    columns = {
        "n": pa.array(numbers, pa.int64()),
        "f": pa.array([None if n % 7 == 3 else n / 3 for n in numbers], pa.float32()),
        "tiny": pa.array([n % 100 for n in numbers], pa.int8()),
        "is": pa.array([n % 3 == 0 for n in numbers]),
        "list": pa.array([[float(n), None] * (n % 4) for n in numbers], pa.list_(pa.float64())),
        "deep": pa.array([[[n, 1], []] for n in numbers], pa.list_(pa.list_(pa.int32()))),
        "text": pa.array([None if n % 5 == 0 else f"ö{n}" for n in numbers]),
        "bytes": pa.array([bytes([n]) * (n % 9) for n in numbers], pa.binary()),
    }
    return pa.table(columns)


def read(files: FileRows) -> list[list[list[Any]]]:
    """By partition, all rows."""
    partitions = []
    for number in range(len(files.partitions)):
        rows = [list(row.values()) for batch in files.read(number) for row in batch.to_pylist()]
        partitions.append(rows)
    return partitions


def by_spark(df: DataFrame) -> list[list[list[Any]]]:
    partitions: list[list[list[Any]]] = [[] for _ in range(df.rdd.getNumPartitions())]
    for where, *row in df.select(spark_partition_id(), "*").collect():
        partitions[where].append([bytes(each) if isinstance(each, bytearray) else each for each in row])
    return partitions


@pytest.fixture
def small_pieces(spark: SparkSession) -> Iterator[None]:
    """Spark cuts files of a few kilobytes."""
    chosen = {"spark.sql.files.maxPartitionBytes": 3000, "spark.sql.files.openCostInBytes": 10}
    for name, value in chosen.items():
        spark.conf.set(name, value)
    yield
    for name in chosen:
        spark.conf.unset(name)


@given(
    cuts=st.lists(st.floats(0, 1), max_size=6),
    group=st.integers(1, ROWS),
    compression=st.sampled_from(["none", "zstd"]),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_row_is_in_one_piece_however_a_file_is_cut(
    tmp_path: Path, cuts: list[float], group: int, compression: str
) -> None:
    whole, path = table(), tmp_path / "a file.parquet"
    pq.write_table(whole, path, row_group_size=group, compression=compression)
    size = path.stat().st_size
    edges = [0, *sorted(int(cut * size) for cut in cuts), size]
    pieces = tuple(((str(path), begin, end),) for begin, end in pairwise(edges))
    columns = tuple(Scan(name, True) for name in whole.column_names)
    files = FileRows(pieces, columns, tuple(whole.schema.types))
    assert [row for rows in read(files) for row in rows] == [list(row.values()) for row in whole.to_pylist()]


@pytest.mark.usefixtures("small_pieces")
def test_partitions_are_those_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    for file, group in enumerate((1, 10, 120)):
        pq.write_table(table(), tmp_path / f"a file {file}.parquet", row_group_size=group, compression="none")
    df = spark.read.parquet(str(tmp_path)).select(
        "text", col("n").alias("other"), "f", "tiny", "is", "list", "deep", "bytes"
    )
    files = files_of(df)
    assert files is not None
    found = read(files)
    assert len(found) > 5
    assert found == by_spark(df)


def test_a_folder_of_days_older_files_and_wider_types(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "day=1").mkdir()
    pq.write_table(pa.table({"X": pa.array([1, 2], pa.int32())}), tmp_path / "day=1" / "f.parquet")
    (tmp_path / "day=2").mkdir()
    pq.write_table(pa.table({"y": [1.5]}), tmp_path / "day=2" / "f.parquet")
    df = spark.read.schema("x bigint, y double, day int").parquet(str(tmp_path)).select("y", "x")
    files = files_of(df)
    assert files is not None
    rows = [row for partition in read(files) for row in partition]
    assert sorted(rows, key=str) == sorted([[None, 1], [None, 2], [1.5, None]], key=str)
    assert files_of(df.select("x").limit(3)) is None


def test_folders_names_go_before_the_files_own_column(spark: SparkSession, tmp_path: Path) -> None:
    for label in (0, 1):
        (tmp_path / f"y={label}").mkdir()
        made = pa.table({"x": np.ones(3, np.float32), "y": np.full(3, 100, np.int32)})
        pq.write_table(made, tmp_path / f"y={label}" / "f.parquet")
    df = spark.read.parquet(str(tmp_path))
    assert {row.y for row in df.collect()} == {0, 1}, "what Spark makes of it"
    assert files_of(df.select("y", "x")) is None
    assert files_of(df.select("x")) is not None


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        (pa.array([1.0] * 99), pa.array([2], pa.int32()), "double"),
        (pa.array(["a"] * 99), pa.array([b"\xff"]), "string"),
        (pa.array([1.0] * 99, pa.float32()), pa.array([np.float16(2)], pa.float16()), "float"),
    ],
    ids=["ints for doubles", "bytes for strings", "half floats"],
)
def test_one_file_of_another_type_sends_all_through_spark(
    spark: SparkSession, tmp_path: Path, first: pa.Array, second: pa.Array, kind: str
) -> None:
    pq.write_table(pa.table({"x": first}), tmp_path / "a.parquet")
    df = spark.read.schema(f"x {kind}").parquet(str(tmp_path))
    assert files_of(df) is not None
    pq.write_table(pa.table({"x": second}), tmp_path / "b.parquet")
    assert files_of(spark.read.schema(f"x {kind}").parquet(str(tmp_path))) is None


def test_schemas_that_take_long_to_read_are_left_to_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = []
    for name in ("a", "b"):
        pq.write_table(pa.table({"x": [1], "y": [2]}), tmp_path / name)
        pieces += [(str(tmp_path / name), 0, 5), (str(tmp_path / name), 5, 10**6)]
    files = FileRows((tuple(pieces),), (Scan("x", True),), (pa.int64(),))
    monkeypatch.setattr("firesteel.data.parquet._MOST_FIELDS", 4)
    assert files.is_readable(), "each file counts once"
    monkeypatch.setattr("firesteel.data.parquet._MOST_FIELDS", 3)
    assert not files.is_readable()


def test_whatever_else_comes_through_spark(spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(table(), tmp_path / "f.parquet")
    files = spark.read.parquet(str(tmp_path))
    assert files_of(files.select("n", "f")) is not None
    others = {
        "filtered": files.where("n > 3"),
        "computed": files.selectExpr("n + 1 AS n"),
        "shuffled": files.repartition(2),
        "united": files.union(files),
        "sampled": files.sample(0.5),
        "not of files": spark.range(3),
        "nothing": files.select(),
        "a date": files.selectExpr("n", "current_date() AS d"),
        "may be missing": spark.read.option("ignoreMissingFiles", "true").parquet(str(tmp_path)),
        "other types than Spark was told": spark.read.schema("text int").parquet(str(tmp_path)),
    }
    assert [name for name, frame in others.items() if files_of(frame) is not None] == []
    for name, value in {SETTING: "false", "spark.sql.files.ignoreCorruptFiles": "true"}.items():
        spark.conf.set(name, value)
        try:
            assert files_of(files.select("n")) is None
        finally:
            spark.conf.unset(name)


def test_a_file_that_is_gone_is_one_sentence(tmp_path: Path) -> None:
    gone = (str(tmp_path / "gone.parquet"), 0, 10)
    with pytest.raises(ClusterError, match=r"gone\.parquet could not be read: .*No such file.*readFiles"):
        list(FileRows(((gone,),), (), ()).read(0))


@pytest.mark.parametrize(("number", "is_lasting"), [(errno.EIO, False), (errno.ENOENT, True)])
def test_a_disk_that_fails_may_be_one_hosts_alone(
    monkeypatch: pytest.MonkeyPatch, number: int, is_lasting: bool
) -> None:
    def fail(path: str) -> Any:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("firesteel.data.parquet._opened", fail)
    with pytest.raises(ClusterError, match="f could not be read") as caught:
        list(FileRows(((("f", 0, 10),),), (), ()).read(0))
    assert caught.value.is_lasting == is_lasting


def test_a_file_that_is_cut_off_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "cut.parquet"
    pq.write_table(table(), path)
    piece = (str(path), 0, path.stat().st_size)
    with path.open("r+b") as file:
        file.truncate(50)
    with pytest.raises(ClusterError, match=r"cut\.parquet could not be read") as caught:
        list(FileRows(((piece,),), (Scan("n", True),), (pa.int64(),)).read(0))
    assert caught.value.is_lasting


def test_a_file_of_another_type_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "odd.parquet"
    pq.write_table(pa.table({"x": ["1"]}), path)
    piece = (str(path), 0, path.stat().st_size)
    files = FileRows(((piece,),), (Scan("x", True),), (pa.int32(),))
    assert not files.is_readable()
    with pytest.raises(ClusterError, match=r"odd\.parquet could not be read: column 'x' is of type string there"):
        list(files.read(0))


@pytest.mark.parametrize("written", ["large_string", "dictionary", "fixed list", "uint8", "fixed bytes"])
def test_what_other_writers_write(spark: SparkSession, tmp_path: Path, written: str) -> None:
    columns = {
        "large_string": pa.array(["a", "b", None], pa.large_string()),
        "dictionary": pa.array(["a", "b", "a"]).dictionary_encode(),
        "fixed list": pa.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], pa.list_(pa.float32(), 2)),
        "uint8": pa.array([0, 200, 255], pa.uint8()),
        "fixed bytes": pa.array([b"ab", b"cd", None], pa.binary(2)),
    }
    pq.write_table(pa.table({"x": columns[written]}), tmp_path / "f.parquet")
    df = spark.read.parquet(str(tmp_path))
    files = files_of(df)
    assert files is not None
    assert read(files) == by_spark(df)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("world", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("groups", [1, 3, 40])
def test_ranks_get_the_rows_that_spark_would_have_sent(
    spark: SparkSession, tmp_path: Path, world: int, groups: int
) -> None:
    rows = 400
    made = pa.table({"x": np.arange(rows, dtype=np.float32), "y": np.arange(rows)})
    pq.write_table(made, tmp_path / "f.parquet", row_group_size=-(-rows // groups), compression="none")
    df = spark.read.parquet(str(tmp_path))
    by_files = seated(df, world)
    assert by_files.decoder.files is not None
    spark.conf.set(SETTING, "false")
    try:
        through_spark = seated(df, world)
    finally:
        spark.conf.unset(SETTING)
    assert through_spark.decoder.files is None
    assert by_files.partitions == through_spark.partitions
    assert held(by_files) == held(through_spark)


def seated(df: DataFrame, world: int) -> Seated:
    reading = make_reading(df.schema, ["x"], ["y"])
    return seat(df, reading.select(df), Decoder(reading), world)


def held(found: Seated) -> list[list[tuple[int, float, int]]]:
    """By rank: partition, feature and label of each row, in order."""
    decoder = found.decoder

    def body(batches: Any) -> Any:
        for rows in batches:
            for partition, batch in decoder.batches(rows):
                numbers = [partition] * len(batch["y0"])
                yield pa.RecordBatch.from_arrays(
                    [pa.array(numbers, pa.int32()), pa.array(batch["x0"].ravel()), pa.array(batch["y0"])],
                    ["p", "x", "y"],
                )

    frame = found.frame.mapInArrow(body, "p int, x float, y long").select(spark_partition_id().alias("rank"), "*")
    ranks: list[list[tuple[int, float, int]]] = [[] for _ in range(found.frame.rdd.getNumPartitions())]
    for rank, *row in frame.collect():
        ranks[rank].append(tuple(row))
    return ranks
