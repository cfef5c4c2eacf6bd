"""XShards: the cases of spec/shards.md, section 9, for what sections 1 to 4 have so far."""

from __future__ import annotations

import copy
import gc
import os
import subprocess
import sys
import tempfile
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest

from firesteel.core.errors import PlanError, SchemaError, UnsupportedError
from firesteel.data import structure
from firesteel.data.shards import SharedValue, SparkXShards, XShards
from firesteel.data.shards.context import task_slots

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


def shards_of(sc: SparkContext, shards: list[Any], partitions: int | None = None) -> XShards:
    return XShards(sc.parallelize(shards, len(shards) if partitions is None else partitions))


def sizes_by_partition(shards: XShards) -> list[list[int]]:
    return shards.rdd.mapPartitions(lambda found: [[len(shard) for shard in found]]).collect()


def persistent_rdds(sc: SparkContext) -> int:
    return int(sc._jsc.getPersistentRDDs().size())


# Making one (case 1)

TEN_ROWS: dict[str, Any] = {
    "array": np.arange(20, dtype="float32").reshape(10, 2),
    "big endian": np.arange(10, dtype=">i4"),
    "tuple": (np.arange(10), np.arange(30).reshape(10, 3)),
    "list": [np.arange(10), np.arange(10) > 4],
    "dict": {"x": np.ones((10, 2)), "y": np.arange(10)},
    "dict of tuples": {"x": (np.ones((10, 2)), np.zeros(10, dtype="int8")), "y": (np.arange(10),)},
}


def assert_same(left: Any, right: Any) -> None:
    assert structure._outline(left) == structure._outline(right)
    for one, other in zip(structure.leaves(left), structure.leaves(right), strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("num_shards", [1, 3, 10])
@pytest.mark.parametrize("name", TEN_ROWS)
def test_partition_loses_nothing(sc: SparkContext, name: str, num_shards: int) -> None:
    data = TEN_ROWS[name]
    shards = XShards.partition(data, num_shards=num_shards)
    assert shards.num_partitions() == num_shards
    collected = shards.collect()
    assert len(collected) == num_shards
    assert_same(structure.join(collected), data)


def test_partition_as_in_the_spec(sc: SparkContext) -> None:
    assert [shard.tolist() for shard in XShards.partition(np.arange(10), num_shards=3).collect()] == [
        [0, 1, 2, 3],
        [4, 5, 6],
        [7, 8, 9],
    ]
    first, second = XShards.partition({"x": np.ones((6, 2)), "y": (np.zeros(6), np.arange(6))}, 2).collect()
    assert first["x"].shape == second["x"].shape == (3, 2)
    assert isinstance(first["y"], tuple)
    assert (first["y"][1].tolist(), second["y"][1].tolist()) == ([0, 1, 2], [3, 4, 5])


def test_partition_default_number(sc: SparkContext, monkeypatch: pytest.MonkeyPatch) -> None:
    assert task_slots(sc) == sc.defaultParallelism
    assert XShards.partition(np.arange(10)).num_partitions() == sc.defaultParallelism
    assert XShards.partition(np.arange(1)).num_partitions() == 1
    monkeypatch.setattr("firesteel.data.shards.xshards.task_slots", lambda _: 16)
    assert XShards.partition(np.arange(10)).num_partitions() == 10


@pytest.mark.parametrize(
    ("data", "num_shards", "words"),
    [
        (np.arange(10), 11, r"number of shards.*11.*10"),
        ((np.ones(6), np.ones(5)), 2, r"same size in first dimension.*6.*5"),
        (pd.DataFrame({"a": [1]}), 1, r"pandas.*DataFrame.*ndarray, tuple, list and dict"),
        ({"x": {1, 2}}, 1, r"found set .*ndarray, tuple, list and dict"),
        ([1, 2], 1, r"found int .*ndarray"),
        (np.arange(10), 0, r"positive int"),
        (np.arange(10), -1, r"positive int"),
        (np.arange(10), 2.0, r"positive int"),
        (np.arange(10), True, r"positive int"),
        (np.arange(0), None, r"no rows"),
        ({}, None, r"no rows"),
    ],
)
def test_partition_refuses(sc: SparkContext, data: Any, num_shards: Any, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        XShards.partition(data, num_shards)


def test_the_constructor_needs_an_rdd(sc: SparkContext) -> None:
    assert SparkXShards is XShards
    with pytest.raises(PlanError, match=r"RDD.*list"):
        XShards([1, 2])  # type: ignore[arg-type]


def test_connect_is_refused_by_every_constructor(
    sc: SparkContext, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    rdd = sc.parallelize([1])
    frame = spark.range(1)
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    for make in (
        lambda: XShards(rdd),
        lambda: XShards.partition(np.arange(3)),
        lambda: XShards.from_spark_df(frame),
        lambda: SharedValue(1),
    ):
        with pytest.raises(UnsupportedError, match=r"Spark Connect.*DataFrame works"):
            make()


def test_importing_is_light() -> None:
    code = "import sys, firesteel.data.shards; print(sorted({'pyspark', 'pandas', 'pyarrow'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# Caching (case 2)


def test_caching_table(sc: SparkContext) -> None:
    shards = XShards.partition(np.arange(4), 2)
    assert not shards.is_cached()
    assert shards.cache() is shards
    assert shards.is_cached()
    assert shards.cache() is shards
    assert shards.uncache() is shards
    assert not shards.is_cached()
    assert shards.compute() is shards
    assert shards.is_cached()
    assert shards.to_lazy() is shards
    assert shards.is_cached()
    shards.uncache()
    assert [shard.tolist() for shard in shards.collect()] == [[0, 1], [2, 3]]
    derived = shards.transform_shard(len)
    assert not derived.is_cached()


def test_persist_with_a_level(sc: SparkContext) -> None:
    from pyspark import StorageLevel

    shards = XShards.partition(np.arange(4), 2).persist(StorageLevel.DISK_ONLY)
    assert shards.rdd.getStorageLevel() == StorageLevel.DISK_ONLY
    assert shards.persist(StorageLevel.DISK_ONLY) is shards
    with pytest.raises(PlanError, match="uncache"):
        shards.persist(StorageLevel.MEMORY_ONLY)


def double_in_place(shard: Any) -> Any:
    shard *= 2
    return shard


@pytest.mark.parametrize("cached", [False, True])
def test_changes_in_place_do_not_leak(sc: SparkContext, cached: bool) -> None:
    shards = XShards.partition(np.arange(4), 2).transform_shard(lambda shard: shard + 1)
    if cached:
        shards.compute()
    for _ in range(2):
        assert [shard.tolist() for shard in shards.transform_shard(double_in_place).collect()] == [[2, 4], [6, 8]]
    assert [shard.tolist() for shard in shards.collect()] == [[1, 2], [3, 4]]


def test_one_object_that_is_two_shards_is_not_changed_twice(sc: SparkContext) -> None:
    """One batch of Spark's pickles keeps identity: the second shard was the first one, already doubled."""
    array = np.arange(3)
    shards = shards_of(sc, [array, array], 1)
    assert [shard.tolist() for shard in shards.transform_shard(double_in_place).collect()] == [[0, 2, 4], [0, 2, 4]]


def test_a_shared_value_is_not_changed_through_a_shard(sc: SparkContext) -> None:
    """Python workers live on: a change to a broadcast value would be there in the next job."""
    table = SharedValue(np.arange(3))
    shards = shards_of(sc, [0, 1], 1).transform_shard(lambda _, value: value.value, table)
    for _ in range(2):
        assert [shard.tolist() for shard in shards.transform_shard(double_in_place).collect()] == [[0, 2, 4]] * 2


def test_dropping_the_last_reference_frees_the_cache(sc: SparkContext) -> None:
    gc.collect()
    before = persistent_rdds(sc)
    shards = XShards.partition(np.arange(4), 2).compute()
    assert persistent_rdds(sc) == before + 1
    derived = shards.transform_shard(len)
    del shards
    gc.collect()
    assert persistent_rdds(sc) == before + 1, "the derived shards will read it"
    derived.compute()
    assert persistent_rdds(sc) == before + 1, "the derived shards are cached themselves, their source is not needed"
    del derived
    gc.collect()
    assert persistent_rdds(sc) == before


def test_a_cache_of_the_users_own_is_left_alone(sc: SparkContext) -> None:
    rdd = sc.parallelize([1, 2], 2).cache()
    shards = XShards(rdd)
    assert shards.is_cached()
    del shards
    gc.collect()
    assert rdd.is_cached
    rdd.unpersist()


# Length and keys (case 3)


def frames(*columns: Any, name: str = "a") -> list[pd.DataFrame]:
    return [pd.DataFrame({name: values}) for values in columns]


def test_len(sc: SparkContext) -> None:
    shards = shards_of(sc, frames([1, 2, 3], [4, 5, 6, 7]))
    assert len(shards) == 7
    assert len(shards["a"]) == 7
    assert len(shards_of(sc, [{"a": 1, "b": 2}, {"a": 3, "b": 4}])) == 4
    assert len(shards_of(sc, [1, 2])) == 2
    assert len(shards_of(sc, [], 2)) == 0


@pytest.mark.parametrize("shard", [pd.DataFrame({"a": [1]}), {"a": 1}])
def test_a_key_that_is_not_there(sc: SparkContext, shard: Any) -> None:
    shards = shards_of(sc, [shard, shard])
    missing = shards["no"]  # lazy: nothing is known yet
    with pytest.raises(Exception, match=r"Invalid key 'no'; there are: a"):
        len(missing)


@pytest.mark.parametrize("shard", [1, np.float32(1)])
def test_no_key_at_all(sc: SparkContext, shard: Any) -> None:
    with pytest.raises(Exception, match="No selection operation"):
        len(shards_of(sc, [shard, shard])["a"])


def test_shards_are_not_iterated_by_accident(sc: SparkContext) -> None:
    with pytest.raises(TypeError, match="not iterable"):
        iter(shards_of(sc, [1]))


# transform_shard (case 4) and looking


def times(frame: pd.DataFrame, column: str, factor: SharedValue) -> list[int]:
    return (frame[column] * factor.value).tolist()  # type: ignore[no-any-return]


def test_transform_with_arguments(sc: SparkContext) -> None:
    factor = SharedValue(-2)
    assert factor.value == -2
    shards = shards_of(sc, frames([1, 2], [3], name="v"))
    assert shards.transform_shard(times, "v", factor).collect() == [[-2, -4], [-6]]
    factor.unpersist()
    assert shards.transform_shard(times, "v", factor).collect() == [[-2, -4], [-6]]


def refuse_three(shard: int) -> int:
    if shard == 3:
        raise LookupError("three is not liked")
    return shard


def test_an_exception_has_its_own_traceback_and_the_partition(sc: SparkContext) -> None:
    shards = shards_of(sc, [1, 2, 3, 4]).transform_shard(refuse_three).transform_shard(float)
    with pytest.raises(Exception, match="three is not liked") as caught:
        shards.collect()
    text = str(caught.value)
    assert "in refuse_three" in text
    assert "LookupError: three is not liked" in text
    assert "partition 2 of an XShards" in text


def test_collect_first_take_head(sc: SparkContext) -> None:
    shards = shards_of(sc, [[1, 2, 3], [4], [5]])
    assert shards.collect() == [[1, 2, 3], [4], [5]]
    assert shards.first() == [1, 2, 3]
    assert shards.take(2) == [[1, 2, 3], [4]]
    assert shards.head(2) == [1, 2]
    assert shards_of(sc, frames(range(9), [1])).head()["a"].tolist() == [0, 1, 2, 3, 4]
    assert XShards.partition(np.arange(20), 2).head(3).tolist() == [0, 1, 2]
    with pytest.raises(PlanError, match=r"head.*dict"):
        shards_of(sc, [{"a": 1}]).head()


def test_without_shards(sc: SparkContext) -> None:
    nothing = shards_of(sc, [], 2)
    assert nothing.collect() == []
    assert nothing.get_schema() is None
    for look in (nothing.first, nothing.head, nothing.to_spark_df, partial(nothing.select, "a")):
        with pytest.raises(PlanError, match="no shards"):
            look()


def test_map_partitions_gives_the_number_and_an_iterator(sc: SparkContext) -> None:
    shards = shards_of(sc, [1, 2, 3, 4], 2)
    assert shards._map_partitions(lambda index, found: [(index, sum(found))]).collect() == [(0, 3), (1, 7)]


# split and zip (cases 5 and 6)


def test_split(sc: SparkContext) -> None:
    numbers, letters = shards_of(sc, [(1, "a"), (2, "b")]).split()
    assert numbers.collect() == [1, 2]
    assert letters.collect() == ["a", "b"]
    with pytest.raises(PlanError, match="different split length"):
        shards_of(sc, [(1, 2), (1, 2, 3)]).split()
    for shards in (shards_of(sc, frames([1], [2])), shards_of(sc, [(1,), (2,)]), shards_of(sc, [], 2)):
        assert shards.split() == [shards]


def test_zip(sc: SparkContext) -> None:
    shards = shards_of(sc, [1, 2])
    assert shards.zip(shards.transform_shard(lambda shard: shard * 2)).collect() == [(1, 2), (2, 4)]
    with pytest.raises(PlanError, match="should be a SparkXShards"):
        shards.zip(3)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=r"same number of partitions.*2.*1"):
        shards.zip(shards_of(sc, [1, 2], 1))
    with pytest.raises(PlanError, match="same number of elements in each partition"):
        shards.zip(shards_of(sc, [1, 2, 3], 2))


def test_zip_of_many_shards_in_a_partition(sc: SparkContext) -> None:
    """Spark's own batches differ on both sides: large shards go one by one, small ones together."""
    small = shards_of(sc, list(range(40)), 2)
    large = small.transform_shard(lambda number: np.full(20_000, number))
    pairs = large.zip(small).collect()
    assert [(int(array[0]), number) for array, number in pairs] == [(number, number) for number in range(40)]


# repartition (case 7)


def rich_frame(start: int, rows: int) -> pd.DataFrame:
    numbers = np.arange(start, start + rows, dtype="int32")
    return pd.DataFrame(
        {
            "i": numbers,
            "t": pd.to_datetime(numbers, unit="D"),
            "c": pd.Categorical([f"c{number % 3}" for number in numbers], categories=["c0", "c1", "c2"]),
        }
    )


@pytest.mark.parametrize(
    ("partitions", "sizes"), [(3, [[3], [2], [2]]), (10, [[1]] * 7 + [[]] * 3), (1, [[7]]), (2, [[4], [3]])]
)
def test_repartition_frames(sc: SparkContext, partitions: int, sizes: list[list[int]]) -> None:
    source = [rich_frame(0, 5), rich_frame(5, 2)]
    shards = shards_of(sc, source).repartition(partitions)
    assert shards.num_partitions() == partitions
    assert sizes_by_partition(shards) == sizes
    pd.testing.assert_frame_equal(pd.concat(shards.collect()), pd.concat(source))
    assert [str(dtype) for dtype in shards.first().dtypes] == ["int32", "datetime64[ns]", "category"]


@pytest.mark.parametrize("partitions", [3, 10, 1])
def test_repartition_lists_arrays_and_structures(sc: SparkContext, partitions: int) -> None:
    x = np.arange(14, dtype="float32").reshape(7, 2)
    y = np.arange(7)
    expected = [3, 2, 2] if partitions == 3 else [7] if partitions == 1 else [1] * 7

    lists = shards_of(sc, [[1, 2, 3, 4, 5], [6, 7]]).repartition(partitions)
    assert lists.num_partitions() == partitions
    assert [len(shard) for shard in lists.collect()] == expected
    assert [row for shard in lists.collect() for row in shard] == [1, 2, 3, 4, 5, 6, 7]

    series = shards_of(sc, [pd.Series(y[:5], name="s"), pd.Series(y[5:], name="s")]).repartition(partitions)
    assert [len(shard) for shard in series.collect()] == expected
    assert pd.concat(series.collect()).tolist() == y.tolist()

    for make in (
        lambda rows: x[rows],
        lambda rows: {"x": x[rows], "y": y[rows]},
        lambda rows: (x[rows], {"y": y[rows]}),
    ):
        shards = shards_of(sc, [make(slice(0, 5)), make(slice(5, 7))]).repartition(partitions)
        assert shards.num_partitions() == partitions
        assert [structure.rows(shard) for shard in shards.collect()] == expected
        assert_same(structure.join(shards.collect()), make(slice(None)))


def test_repartition_keeps_categories_that_differ(sc: SparkContext) -> None:
    source = [pd.DataFrame({"c": pd.Categorical(values)}) for values in (["a", "b"], ["b", "z"])]
    (joined,) = shards_of(sc, source).repartition(1).collect()
    assert joined["c"].dtype == pd.CategoricalDtype(["a", "b", "z"])
    assert joined["c"].tolist() == ["a", "b", "b", "z"]


def test_repartition_moves_other_shards_whole_and_in_order(sc: SparkContext) -> None:
    for source in ([1, 2, 3, 4, 5], ["ab", "c", "d", "e", "f"], [np.array(n) for n in range(5)], [[1], 2, {}, (), 3]):
        shards = shards_of(sc, copy.deepcopy(source), 2).repartition(3)
        assert shards.rdd.mapPartitions(lambda found: [len(list(found))]).collect() == [2, 2, 1]
        assert shards.collect() == source


def test_repartition_with_empty_shards_and_many_in_a_partition(sc: SparkContext) -> None:
    shards = shards_of(sc, [[], [1], [2, 3], [], [4, 5, 6]], 2).repartition(2)
    assert shards.collect() == [[1, 2, 3], [4, 5, 6]]
    (empty,) = shards_of(sc, [rich_frame(0, 0), rich_frame(0, 0)]).repartition(2).collect()
    assert list(empty.columns) == ["i", "t", "c"]
    assert shards_of(sc, [], 1).repartition(3).num_partitions() == 3
    with pytest.raises(PlanError, match="positive int"):
        shards.repartition(0)


# pandas only


def test_select(sc: SparkContext) -> None:
    shards = shards_of(sc, [pd.DataFrame({"a": [1], "b": [2], "c": [3]})] * 2)
    assert [list(shard.columns) for shard in shards.select(["c", "a"]).collect()] == [["c", "a"]] * 2
    assert [list(shard.columns) for shard in shards.select("b").collect()] == [["b"]] * 2
    with pytest.raises(SchemaError, match=r"'no' does not exist; there are: a, b, c"):
        shards.select(["a", "no"])
    with pytest.raises(PlanError, match="name or a list"):
        shards.select(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("operation", "arguments"),
    [
        ("select", ("a",)),
        ("assembleFeatureLabelCols", (["a"], ["b"])),
        ("to_spark_df", ()),
        ("concat_to_pdf", ()),
    ],
)
def test_pandas_only(sc: SparkContext, operation: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(PlanError, match=rf"{operation}.*Pandas DataFrame.*found dict"):
        getattr(shards_of(sc, [{"a": 1}, {"a": 2}]), operation)(*arguments)


def test_get_schema(sc: SparkContext) -> None:
    schema = shards_of(sc, [rich_frame(0, 2), rich_frame(2, 1)]).get_schema()
    assert schema is not None
    assert schema["columns"] == ["i", "t", "c"]
    pd.testing.assert_series_equal(schema["dtypes"], rich_frame(0, 2).dtypes)
    assert shards_of(sc, [1]).get_schema() is None


def test_concat_to_pdf(sc: SparkContext) -> None:
    shards = shards_of(sc, frames(range(5), range(5, 10)))
    joined = shards.concat_to_pdf()
    assert joined["a"].tolist() == list(range(10))
    assert joined.index.tolist() == [0, 1, 2, 3, 4] * 2
    assert shards.concat_to_pdf(axis=1).shape == (5, 2)


# Assemble and stack (case 15)


def test_assemble(sc: SparkContext) -> None:
    frame = pd.DataFrame({"f1": [1, 2, 3], "f2": [0.5, 1.5, 2.5], "y": [0, 1, 0]})
    shards = shards_of(sc, [frame, frame.iloc[:2]]).assembleFeatureLabelCols(["f1", "f2"], ["y"])
    first, second = shards.collect()
    assert (first["x"].shape, first["y"].shape, second["x"].shape) == ((3, 2), (3, 1), (2, 2))
    assert first["x"].tolist() == [[1, 0.5], [2, 1.5], [3, 2.5]]
    with pytest.raises(PlanError, match="labelCols as a list"):
        shards_of(sc, [frame]).assembleFeatureLabelCols(["f1"], "y")  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="does not exist"):
        shards_of(sc, [frame]).assembleFeatureLabelCols(["f1"], ["z"])


@pytest.mark.parametrize(("partitions", "dicts"), [(2, 2), (8, 6)])
def test_stack(sc: SparkContext, partitions: int, dicts: int) -> None:
    pairs = [(number, number + 1) for number in range(1, 12, 2)]
    stacked = shards_of(sc, pairs, partitions).stack_feature_labels().collect()
    assert len(stacked) == dicts
    assert all(shard["x"].dtype == shard["y"].dtype == np.float32 for shard in stacked)
    assert [(x, y) for shard in stacked for x, y in zip(shard["x"], shard["y"], strict=True)] == pairs


def test_stack_of_arrays_and_of_no_pairs(sc: SparkContext) -> None:
    (stacked,) = shards_of(sc, [(np.ones((2, 3)), [1, 2])] * 4, 1).stack_feature_labels().collect()
    assert (stacked["x"].shape, stacked["y"].shape) == ((4, 2, 3), (4, 2))
    with pytest.raises(PlanError, match=r"pairs, found int"):
        shards_of(sc, [1, 2]).stack_feature_labels()


# Spark DataFrames (case 16)


def seven_rows() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "i": [1, 2, 3, 4, 5, 6, 7],
            "d": [0.5, None, 2.5, 3.5, 4.5, 5.5, 6.5],
            "s": ["a", None, "c", "d", "é", "", "g"],
            "b": [True, False, True, True, False, True, False],
            "t": pd.to_datetime(["2020-01-01 00:00:01.123456", None, *["2021-06-01"] * 5], format="ISO8601"),
            "l": [[1.0, 2.0], [], None, [3.0], [4.0, 5.0], [], [6.0]],
        }
    )


def test_to_spark_df_and_back(sc: SparkContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The machine's own temporary folder is everybody's: this test's driver gets one that it can count in.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    of_spark = set(os.listdir(sc._temp_dir))
    rows = seven_rows()
    shards = shards_of(sc, [rows.iloc[:5], rows.iloc[5:]])
    df = shards.to_spark_df()
    assert dict(df.dtypes) == {
        "i": "bigint",
        "d": "double",
        "s": "string",
        "b": "boolean",
        "t": "timestamp",
        "l": "array<double>",
    }
    back = XShards.from_spark_df(df)
    assert sizes_by_partition(back) == [[5], [2]]
    pd.testing.assert_frame_equal(back.concat_to_pdf().reset_index(drop=True), rows)
    assert all(isinstance(cell, list) for cell in back.concat_to_pdf()["l"].dropna())
    assert list(tmp_path.iterdir()) == []
    assert set(os.listdir(sc._temp_dir)) == of_spark


def test_timestamps_are_those_that_spark_shows(sc: SparkContext, spark: SparkSession) -> None:
    zone = str(spark.conf.get("spark.sql.session.timeZone"))
    frame = pd.DataFrame({"t": pd.to_datetime(["2020-07-01 12:30:00", "2020-01-01 00:00:00"])})
    try:
        spark.conf.set("spark.sql.session.timeZone", "America/Los_Angeles")
        df = shards_of(sc, [frame]).to_spark_df()
        assert [row[0] for row in df.selectExpr("cast(t as string)").collect()] == [
            "2020-07-01 12:30:00",
            "2020-01-01 00:00:00",
        ]
        pd.testing.assert_frame_equal(XShards.from_spark_df(df).concat_to_pdf(), frame)
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)


def test_two_frames_in_one_partition_and_many_batches(sc: SparkContext) -> None:
    source = frames(range(25_000), [], range(25_000, 25_003))
    df = shards_of(sc, [source[0], source[1].astype("int64"), source[2]], 1).to_spark_df()
    assert df.rdd.getNumPartitions() == 1
    assert [row[0] for row in df.collect()] == list(range(25_003))


def test_nulls_alone_take_the_type_of_the_other_shards(sc: SparkContext) -> None:
    source = [
        pd.DataFrame({"s": [None, None], "i": [1, 2], "l": [[], None]}),
        pd.DataFrame({"s": ["x", None], "i": [3, None], "l": [[1], None]}),
    ]
    df = shards_of(sc, source).to_spark_df()
    assert dict(df.dtypes) == {"s": "string", "i": "double", "l": "array<bigint>"}
    assert [tuple(row) for row in df.collect()] == [
        (None, 1.0, []),
        (None, 2.0, None),
        ("x", 3.0, [1]),
        (None, None, None),
    ]


def test_less_usual_columns(sc: SparkContext) -> None:
    frame = pd.DataFrame(
        {
            0: np.array([1, 2], dtype="uint8"),
            "h": np.array([1.5, 2.5], dtype="float16"),
            "c": pd.Categorical(["u", None]),
            "m": [np.ones((2, 2)), np.zeros((2, 2))],
            "n": pd.array([1, None], dtype="Int64"),
            "z": pd.to_datetime(["2020-01-01", None]).tz_localize("UTC"),
            "e": [b"x", None],
            "q": [Decimal("1.5"), None],
            "r": [{"k": 1}, {"k": 2}],
            "v": [None, None],
        },
        index=["p", "q"],
    )
    df = shards_of(sc, [frame]).to_spark_df()
    types = dict(df.dtypes)
    assert types["0"] == "smallint"
    assert types["m"] == "array<array<double>>"
    assert types["r"] == "struct<k:bigint>"
    back = XShards.from_spark_df(df).first()
    assert back["0"].tolist() == [1, 2]
    assert back["h"].tolist() == [1.5, 2.5]
    assert back["c"].tolist() == ["u", None]
    assert back["m"].tolist() == [[[1.0, 1.0], [1.0, 1.0]], [[0.0, 0.0], [0.0, 0.0]]]
    assert back["r"].tolist() == [{"k": 1}, {"k": 2}]
    assert back["e"].tolist() == [b"x", None]
    assert back["v"].tolist() == [None, None]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (pd.DataFrame({"a": [1], "b": [2]}), r"other columns: a and a, b"),
        (pd.DataFrame({"b": [2]}), r"other columns: a and b"),
        (pd.DataFrame({"a": ["x"]}), r"'a' has other types: int64 and string"),
        (pd.DataFrame({"a": [1, "x"]}), r"'a' of dtype object"),
        (pd.DataFrame({"a": [1j]}), r"'a'"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), r"two columns of one name"),
        ([1], r"found a shard of type list"),
    ],
)
def test_to_spark_df_refuses(sc: SparkContext, other: Any, words: str) -> None:
    with pytest.raises(SchemaError, match=words):
        shards_of(sc, [pd.DataFrame({"a": [1]}), other]).to_spark_df()


def test_from_spark_df_options(sc: SparkContext, spark: SparkSession) -> None:
    df = spark.range(10, numPartitions=2).selectExpr("id", "id * 2 as v")
    by_size = XShards.from_spark_df(df, shard_size=2)
    assert sizes_by_partition(by_size) == [[2, 2, 1], [2, 2, 1]]
    assert by_size.concat_to_pdf()["v"].tolist() == list(range(0, 20, 2))
    indexed = XShards.from_spark_df(df, index_col="id", squeeze=True).first()
    assert isinstance(indexed, pd.Series)
    assert indexed.to_dict() == {number: 2 * number for number in range(5)}
    assert [str(kind) for kind in XShards.from_spark_df(df, dtype="float32").first().dtypes] == ["float32"] * 2
    mixed = XShards.from_spark_df(df, dtype={"id": "int8", 1: "float64"}).first()
    assert [str(kind) for kind in mixed.dtypes] == ["int8", "float64"]
    with pytest.raises(PlanError, match="not in current dataframe"):
        XShards.from_spark_df(df, dtype={"no": "int8"})
    with pytest.raises(PlanError, match="'no' does not exist"):
        XShards.from_spark_df(df, index_col="no")
    with pytest.raises(PlanError, match="positive int"):
        XShards.from_spark_df(df, shard_size=0)
    with pytest.raises(PlanError, match="Spark DataFrame"):
        XShards.from_spark_df(pd.DataFrame())


def test_from_spark_df_gives_no_shard_for_an_empty_partition(sc: SparkContext, spark: SparkSession) -> None:
    assert len(XShards.from_spark_df(spark.range(4, numPartitions=4).where("id = 2")).collect()) == 1
    assert XShards.from_spark_df(spark.range(0)).collect() == []


def test_vectors_become_lists_of_floats(sc: SparkContext, spark: SparkSession) -> None:
    from pyspark.ml.linalg import Vectors

    rows = [(1, Vectors.dense([1.0, 2.0])), (2, Vectors.sparse(2, {1: 3.0})), (3, None)]
    df = spark.createDataFrame(rows, ["id", "a.b"])
    frame = XShards.from_spark_df(df.coalesce(1)).first()
    assert list(frame.columns) == ["id", "a.b"]
    assert frame["a.b"].tolist() == [[1.0, 2.0], [0.0, 3.0], None]


def test_from_spark_df_with_two_columns_of_one_name(sc: SparkContext, spark: SparkSession) -> None:
    df = spark.range(2, numPartitions=1)
    frame = XShards.from_spark_df(df.join(df.selectExpr("id as other"), df.id == 0).toDF("a", "a")).concat_to_pdf()
    assert list(frame.columns) == ["a", "a"]


def change_every_way(frame: pd.DataFrame) -> list[Any]:
    frame["v"] *= 2
    frame.loc[0, "w"] = -1
    frame["v"].to_numpy()[0] = 100
    return [frame["v"].tolist(), frame["w"].tolist()]


def test_frames_from_spark_can_be_changed_in_place(sc: SparkContext, spark: SparkSession) -> None:
    df = spark.range(3, numPartitions=1).selectExpr("cast(id as double) v", "id w", "map('k', id) m")
    shards = XShards.from_spark_df(df)
    assert shards.transform_shard(change_every_way).collect() == [[[100.0, 2.0, 4.0], [-1, 1, 2]]]
    assert shards.first()["m"].tolist() == [{"k": 0}, {"k": 1}, {"k": 2}]
