"""Rows read where they lie in Spark's memory are the rows that Spark would have written."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firesteel.core.errors import ClusterError
from firesteel.data.raw import SETTING, Form, RawRows
from firesteel.data.reading import Reading
from firesteel.data.seating import Decoder, seat

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

INTEGERS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}


def integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


NUMBERS: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    **{name: integers(bits) for name, bits in INTEGERS.items()},
    "float": st.floats(width=32),
    "double": st.floats(),
}


@st.composite
def vectors(draw: st.DrawFn) -> Any:
    from pyspark.ml.linalg import Vectors

    values = draw(st.lists(st.floats(-1e9, 1e9), max_size=5))
    if draw(st.booleans()):
        return Vectors.dense(values)
    return Vectors.sparse(len(values), [(place, value) for place, value in enumerate(values) if value])


def cells(number: st.SearchStrategy[Any], depth: int) -> st.SearchStrategy[Any]:
    """Lists, or what is in them; nothing is certain not to be null."""
    for _ in range(depth):
        number = st.lists(st.none() | number, max_size=4)
    return st.none() | number


@st.composite
def tables(draw: st.DrawFn) -> tuple[str, list[tuple[Any, ...]]]:
    """A schema, and rows of it."""
    kinds: list[tuple[str, st.SearchStrategy[Any]]] = []
    for number in draw(st.lists(st.sampled_from(sorted(NUMBERS)), min_size=1, max_size=5)):
        depth = draw(st.integers(0, 3))
        kinds.append(("array<" * depth + number + ">" * depth, cells(NUMBERS[number], depth)))
    kinds += draw(st.lists(st.sampled_from([("string", st.none() | st.text()), ("binary", st.binary())]), max_size=2))
    kinds = draw(st.permutations(kinds))
    rows = draw(st.lists(st.tuples(*(values for _, values in kinds)), max_size=8))
    return ", ".join(f"v{place} {kind}" for place, (kind, _) in enumerate(kinds)), rows


def as_they_lie(df: DataFrame) -> pa.Table:
    """The rows as a task of ours reads them."""
    seated = seat(df, list(df.columns), Decoder(Reading(())), 1)
    assert seated.decoder.raw is not None
    found = seated.frame.toArrow()
    return pa.Table.from_batches([seated.decoder.raw.read(each) for each in found.combine_chunks().to_batches()])


def same(left: Any, right: Any) -> bool:
    if isinstance(left, dict):
        return isinstance(right, dict) and same(list(left.values()), list(right.values()))
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left):
        return math.isnan(right)
    return bool(left == right and type(left) is type(right))


def check(df: DataFrame) -> None:
    from pyspark.sql.functions import spark_partition_id

    written = df.select(spark_partition_id(), *df.columns).toArrow()
    if not written.num_rows:
        return
    found = as_they_lie(df)
    assert found.num_rows == written.num_rows
    for mine, theirs in zip(found.columns, written.columns, strict=True):
        assert same(mine.to_pylist(), theirs.to_pylist()), f"{mine.to_pylist()} is not {theirs.to_pylist()}"


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tables())
def test_numbers_and_lists_of_all_kinds(spark: SparkSession, table: tuple[str, list[tuple[Any, ...]]]) -> None:
    schema, rows = table
    check(spark.createDataFrame(rows, schema).coalesce(1))


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.none() | vectors(), max_size=8))
def test_vectors_dense_and_sparse(spark: SparkSession, found: list[Any]) -> None:
    from pyspark.ml.linalg import VectorUDT
    from pyspark.sql.types import IntegerType, StructType

    schema = StructType().add("i", IntegerType()).add("v", VectorUDT())
    if not found:
        return
    table = as_they_lie(spark.createDataFrame(list(enumerate(found)), schema).coalesce(1))
    # Spark itself cannot hand over a column with a vector that is null.
    wanted = [None if each is None else [plain(part) for part in VectorUDT().serialize(each)] for each in found]
    mine = [None if each is None else list(each.values()) for each in table.column(2).to_pylist()]
    assert mine == wanted


def plain(part: Any) -> Any:
    return part.tolist() if isinstance(part, np.ndarray) else list(part) if isinstance(part, (list, tuple)) else part


def test_rows_that_are_all_alike_and_more_fields_than_a_word_has_bits(spark: SparkSession) -> None:
    from pyspark.sql import functions as f

    scalars = [(f.col("id") * place).cast("float").alias(f"s{place}") for place in range(130)]
    array = f.transform(f.sequence(f.lit(1), f.lit(100)), lambda x: (x * f.col("id")).cast("float")).alias("a")
    nested = f.array_repeat(f.array(f.col("id").cast("double"), f.lit(2.0)), 3).alias("n")
    check(spark.range(0, 200, 1, 1).select(array, *scalars, nested, (f.col("id") > 7).alias("b")))


def test_a_part_of_a_batch(spark: SparkSession) -> None:
    """Arrow's slices begin somewhere in their memory."""
    df = spark.range(0, 10, 1, 1).selectExpr("cast(id AS float) AS x", "array(id, id + 1) AS y")
    seated = seat(df, ["x", "y"], Decoder(Reading(())), 1)
    (batch,) = seated.frame.toArrow().combine_chunks().to_batches()
    assert seated.decoder.raw is not None
    part = seated.decoder.raw.read(batch.slice(3, 4))
    assert part.column(1).to_pylist() == [3.0, 4.0, 5.0, 6.0]
    assert part.column(2).to_pylist() == [[3, 4], [4, 5], [5, 6], [6, 7]]


def test_they_come_written_out_where_that_is_wanted(spark: SparkSession) -> None:
    spark.conf.set(SETTING, "false")
    try:
        seated = seat(spark.range(0, 3, 1, 1), ["id"], Decoder(Reading(())), 1)
    finally:
        spark.conf.unset(SETTING)
    assert seated.decoder.raw is None
    assert [row.id for row in seated.frame.collect()] == [0, 1, 2]


@pytest.mark.parametrize(
    "cell",
    [b"123", np.array([0, 2**40], np.int64).tobytes(), np.array([0, 8 << 32, 2**50], np.int64).tobytes()],
    ids=["no whole words", "far away", "too many"],
)
def test_bytes_that_are_no_rows_are_refused(cell: bytes) -> None:
    rows = pa.record_batch({"row": pa.array([cell, cell], pa.binary())})
    with pytest.raises(ClusterError, match=r"do not lie in memory as they are known to .*rawRows"):
        RawRows((Form("float", 1),)).read(rows)
