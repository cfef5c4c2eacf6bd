"""What XShards of pandas frames do with all their rows, over several partitions."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pyspark import SparkContext

from firesteel.core.errors import PlanError, SchemaError
from firesteel.data.shards import XShards


@pytest.fixture(scope="module")
def frames(sc: SparkContext) -> Any:
    """``frames(frame, …)``: one shard and one partition for each."""

    def make(*given: Any, partitions: int | None = None) -> XShards:
        return XShards(sc.parallelize(given, partitions or len(given)))

    return make


@pytest.fixture(scope="module")
def sales(frames: Any) -> XShards:
    whole = pd.DataFrame({"k": list("ababa"), "v": range(1, 6), "w": [1, 1, 2, 2, 4]})
    shards: XShards = frames(whole.iloc[:2], whole.iloc[2:])
    return shards.cache()


def whole(shards: XShards) -> pd.DataFrame:
    return shards.concat_to_pdf().reset_index(drop=True)


def rows(shards: XShards, *by: str) -> list[list[Any]]:
    found = whole(shards)
    found = found.sort_values(list(by)) if by else found
    return [[None if pd.isna(cell) else cell for cell in row] for row in found.to_numpy().tolist()]


# partition_by


def test_equal_keys_share_a_partition_in_their_order(sales: XShards) -> None:
    found = sales.partition_by("k", 4)
    assert found.num_partitions() == 4
    assert sorted([list(frame["k"]), list(frame["v"])] for frame in found.collect()) == [
        [["a"] * 3, [1, 3, 5]],
        [["b"] * 2, [2, 4]],
    ]
    assert sales.partition_by("k").num_partitions() == 2


def test_equal_keys_meet_whatever_their_type(frames: Any) -> None:
    shards = frames(
        pd.DataFrame({"k": [1, 2], "c": pd.Categorical(["x", "y"])}),
        pd.DataFrame({"k": [2.0, np.nan], "c": ["y", "x"]}),
        pd.DataFrame({"k": pd.array([1, None], dtype="Int64"), "c": ["x", "x"]}),
    )
    by_number = shards.partition_by("k", 8).collect()
    assert sorted(len(frame) for frame in by_number) == [2, 2, 2]
    by_both = shards.partition_by(["k", "c"], 8).collect()
    assert sorted(len(frame) for frame in by_both) == [2, 2, 2]


def test_many_keys_are_spread_evenly(frames: Any) -> None:
    shards = frames(pd.DataFrame({"k": range(4000)}), pd.DataFrame({"k": range(4000)}))
    sizes = [len(frame) for frame in shards.partition_by("k", 4).collect()]
    assert sum(sizes) == 8000
    assert max(sizes) < 2 * min(sizes)


def test_partition_by_says_what_is_wrong(sales: XShards, frames: Any) -> None:
    with pytest.raises(SchemaError, match=r"partition column is not in.*'no'.*k, v, w"):
        sales.partition_by("no")
    for wrong in (3, [], None):
        with pytest.raises(PlanError, match="column name"):
            sales.partition_by(wrong)
    with pytest.raises(PlanError, match="Pandas DataFrame"):
        frames([1], [2]).partition_by("k")
    with pytest.raises(PlanError, match="num_partitions"):
        sales.partition_by("k", 0)


# unique, deduplicates, nulls


def test_unique_values_in_order_of_first_appearance(frames: Any) -> None:
    found = frames(pd.Series(["b", "a"]), pd.Series(["b", "c"])).unique()
    assert isinstance(found, np.ndarray)
    assert found.tolist() == ["b", "a", "c"]
    with pytest.raises(PlanError, match="Pandas Series"):
        frames(pd.DataFrame({"a": [1]})).unique()


def test_the_first_of_equal_rows_is_kept(frames: Any) -> None:
    found = frames(pd.DataFrame({"v": [1, 1, 2]}), pd.DataFrame({"v": [2, 3]})).deduplicates()
    assert [row for (row,) in rows(found)] == [1, 2, 3]
    kinds = {
        "c": pd.Categorical(["x", "y", "x"]),
        "t": pd.to_datetime(["2020", "2021", "2020"]),
        "n": [np.nan, 1, np.nan],
    }
    one = frames(pd.DataFrame(kinds), pd.DataFrame(kinds)).deduplicates()
    assert len(one) == 2
    assert whole(one).dtypes.astype(str).tolist() == ["category", "datetime64[ns]", "float64"]


def test_two_shards_of_one_partition_are_compared_too(frames: Any) -> None:
    given = [pd.DataFrame({"v": values}) for values in ([5, 1], [1, 7], [7, 5, 0])]
    assert [row for (row,) in rows(frames(*given, partitions=1).deduplicates())] == [5, 1, 7, 0]


def test_nulls_are_counted_and_dropped_over_all_shards(frames: Any) -> None:
    shards = frames(
        pd.DataFrame({"f1": [1, None], "f2": ["a", "b"], "f3": [1, 2]}),
        pd.DataFrame({"f1": [None, 4], "f2": [None, "d"], "f3": [3, 4]}),
    )
    assert shards.get_null_sum().to_dict("list") == {"col": ["f1", "f2", "f3"], "total": [2, 1, 0]}
    assert list(whole(shards.drop_missing_value())) == ["f3"]
    assert list(whole(shards.select(["f1", "f2"]).drop_missing_value())) == []
    assert rows(shards.drop_missing_value(axis="rows")) == [[1, "a", 1], [4, "d", 4]]
    with pytest.raises(PlanError, match="columns, rows"):
        shards.drop_missing_value(axis="both")


# group_by


def test_group_by_names_results_as_spark_does(sales: XShards) -> None:
    found = sales.group_by("k", {"v": "sum", "w": ["mean"]})
    assert list(whole(found)) == ["k", "sum(v)", "avg(w)"]
    assert rows(found, "k") == [["a", 9, pytest.approx(7 / 3)], ["b", 6, 1.5]]
    assert list(whole(sales.group_by("k"))) == ["k", "count(v)", "count(w)"]
    assert rows(sales.group_by(["k"], {"*": "count"}), "k") == [["a", 3], ["b", 2]]
    assert list(whole(sales.group_by("k", {"*": "count"}))) == ["k", "count(1)"]
    assert rows(sales.group_by(columns=[], agg={"v": "max"})) == [[5]]


NAMES = [
    "max",
    "min",
    "count",
    "sum",
    "avg",
    "mean",
    "sumDistinct",
    "stddev",
    "stddev_pop",
    "variance",
    "var_pop",
    "skewness",
    "kurtosis",
    "collect_list",
    "collect_set",
    "approx_count_distinct",
    "first",
    "last",
]


def test_every_aggregate_is_there(sales: XShards) -> None:
    found = whole(sales.group_by("k", {"w": NAMES})).set_index("k").loc["a"]
    expected = {"sumDistinct": "sum(DISTINCT w)", "mean": "avg(w)"}
    assert list(found.index) == [expected.get(name, f"{name}({'w'})") for name in NAMES]
    assert found["sum(DISTINCT w)"] == 7
    assert found["stddev(w)"] == pytest.approx(np.std([1, 2, 4], ddof=1))
    assert found["var_pop(w)"] == pytest.approx(np.var([1, 2, 4]))
    assert sorted(found["collect_list(w)"]) == [1, 2, 4]


def test_group_by_beside_the_rows_it_came_from(sales: XShards) -> None:
    found = sales.group_by("k", {"v": "sum"}, join=True)
    assert list(whole(found)) == ["k", "v", "w", "sum(v)"]
    assert whole(found)["v"].tolist() == [1, 2, 3, 4, 5]
    assert whole(found)["sum(v)"].tolist() == [9, 6, 9, 6, 9]


def test_group_by_says_what_is_wrong(sales: XShards) -> None:
    with pytest.raises(PlanError, match=r"median.*avg"):
        sales.group_by("k", "median")
    for wrong in ({"columns": "no"}, {"columns": "k", "agg": {"no": "sum"}}):
        with pytest.raises(SchemaError, match=r"no.*does not exist.*k, v, w"):
            sales.group_by(**wrong)
    with pytest.raises(PlanError, match="keys"):
        sales.group_by([], "count", join=True)
    with pytest.raises(PlanError, match="counted only"):
        sales.group_by("k", {"*": "sum"})


# merge


@pytest.fixture(scope="module")
def sides(frames: Any) -> tuple[XShards, XShards]:
    left = frames(pd.DataFrame({"a": [1, 2], "b": [10, 20]}), pd.DataFrame({"a": [3], "b": [30]}))
    right = frames(pd.DataFrame({"a": [2], "c": ["x"]}), pd.DataFrame({"a": [3, 5], "c": ["y", "z"]}))
    return left, right


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("inner", [[2, 20, "x"], [3, 30, "y"]]),
        ("left", [[1, 10, None], [2, 20, "x"], [3, 30, "y"]]),
        ("right", [[2, 20, "x"], [3, 30, "y"], [5, None, "z"]]),
        ("outer", [[1, 10, None], [2, 20, "x"], [3, 30, "y"], [5, None, "z"]]),
    ],
)
def test_merge_joins_as_pandas_does(sides: tuple[XShards, XShards], how: str, expected: list[Any]) -> None:
    found = sides[0].merge(sides[1], how=how)
    assert list(whole(found)) == ["a", "b", "c"]
    assert rows(found) == expected
    assert all(len(frame) for frame in found.collect())
    assert len(found.collect()) == found.num_partitions()
    assert not found.is_cached()
    assert rows(sides[0].merge(sides[1], how=how, on="a")) == expected


def test_merge_keeps_columns_of_one_name_apart_and_null_keys_together(frames: Any) -> None:
    left = frames(pd.DataFrame({"k": ["a", None], "v": [1, 2], "n": np.array([3, 4], dtype=np.int8)}))
    right = frames(pd.DataFrame({"k": [None, "a"], "v": [5, 6]}))
    found = whole(left.merge(right, on="k"))
    assert found.to_dict("list") == {"k": ["a", None], "v_x": [1, 2], "n": [3, 4], "v_y": [6, 5]}
    assert found["n"].dtype == np.int8


def test_merge_says_what_is_wrong(sides: tuple[XShards, XShards], frames: Any) -> None:
    left, right = sides
    with pytest.raises(PlanError, match=r"no common column.*a, b.*z"):
        left.merge(frames(pd.DataFrame({"z": [1]})))
    with pytest.raises(PlanError, match=r"cross.*inner, left, outer, right"):
        left.merge(right, how="cross")
    with pytest.raises(SchemaError, match="'c' does not exist"):
        left.merge(right, on="c")
    with pytest.raises(SchemaError, match="bigint on the left and string"):
        left.merge(frames(pd.DataFrame({"a": ["1"]})))
    with pytest.raises(PlanError, match="XShards"):
        left.merge(3)


# sorting, describing, sampling


def test_rows_are_sorted_over_all_shards(frames: Any, sales: XShards) -> None:
    assert whole(sales.sort_values("v", ascending=False))["v"].tolist() == [5, 4, 3, 2, 1]
    many = frames(*(pd.DataFrame({"v": part}) for part in np.array_split(np.random.default_rng(1).permutation(300), 3)))
    found = many.sort_values()
    assert found.num_partitions() == 3
    assert whole(found)["v"].tolist() == list(range(300))


def test_a_sort_is_stable_and_puts_nulls_last(frames: Any) -> None:
    given = pd.DataFrame({"k": ["b", None, "a", "b"], "v": np.array([1, 2, 3, 4], dtype=np.uint8)})
    shards = frames(given.iloc[:2], given.iloc[2:])
    assert rows(shards.sort_values("k")) == [["a", 3], ["b", 1], ["b", 4], [None, 2]]
    assert rows(shards.sort_values("k", ascending=False)) == [["b", 1], ["b", 4], ["a", 3], [None, 2]]
    assert rows(shards.sort_values(["k", "v"], ascending=[True, False])) == [["a", 3], ["b", 4], ["b", 1], [None, 2]]
    assert whole(shards.sort_values("k"))["v"].dtype == np.uint8
    with pytest.raises(SchemaError, match="does not exist"):
        shards.sort_values("no")


def test_a_sort_changes_no_setting(spark: Any, sales: XShards) -> None:
    before = dict(spark.conf.getAll)
    sales.sort_values("v").collect()
    assert dict(spark.conf.getAll) == before


def test_describe(frames: Any) -> None:
    shards = frames(pd.DataFrame({"v": [1, 2], "s": ["b", "a"]}), pd.DataFrame({"v": [3, 4, 5], "s": ["c", None, "d"]}))
    found = shards.describe()
    assert list(found) == ["summary", "v", "s"]
    assert found["summary"].tolist() == ["count", "mean", "stddev", "min", "max"]
    assert found["v"].tolist() == [5.0, 3.0, pytest.approx(1.581139, abs=1e-6), 1.0, 5.0]
    assert found["s"].tolist() == [4.0, None, None, "a", "d"]
    assert list(shards.describe("v")) == ["summary", "v"]
    with pytest.raises(SchemaError, match=r"'no'.*does not exist.*v, s"):
        shards.describe(["no"])


def test_extremes_ignore_nulls(frames: Any) -> None:
    shards = frames(
        pd.DataFrame({"v": [1, 2], "s": ["b", None], "e": [None, None], "c": pd.Categorical(["q", "p"])}),
        pd.DataFrame({"v": [5, 3], "s": [None, None], "e": [None, None], "c": pd.Categorical(["r", "r"])}),
    )
    assert (shards.max_values("v"), shards.min_values("v")) == (5, 1)
    assert (shards.max_values("s"), shards.min_values("e"), shards.max_values("c")) == ("b", None, "r")
    with pytest.raises(SchemaError, match=r"'no'.*does not exist"):
        shards.max_values("no")


def test_a_shard_of_nothing_but_nulls_has_the_others_types(frames: Any) -> None:
    texts = pd.DataFrame(
        {"s": ["x"], "t": pd.to_datetime(["2020"]), "b": [True], "i": [2**60 + 1], "d": [Decimal("1.5")]}
    )
    blank = pd.DataFrame({name: [np.nan] for name in texts})
    more = pd.DataFrame({"s": ["y"], "t": pd.to_datetime(["2021"]), "b": [False], "i": [3], "d": [Decimal("10.25")]})
    df = frames(texts, blank, more).to_spark_df()
    assert [kind for _, kind in df.dtypes] == ["string", "timestamp", "boolean", "bigint", "decimal(4,2)"]
    assert [row.i for row in df.collect()] == [2**60 + 1, None, 3]
    objects = pd.DataFrame({"i": pd.Series([2**60 + 1, None, 3], dtype=object)})
    assert [row.i for row in frames(objects).to_spark_df().collect()] == [2**60 + 1, None, 3]
    assert frames(blank, blank).to_spark_df().dtypes[0] == ("s", "double")


def test_categories_are_joined_whatever_they_are(frames: Any) -> None:
    shards = frames(pd.DataFrame({0: pd.Categorical(["a"])}), pd.DataFrame({0: pd.Categorical(["b"])}))
    assert list(shards.repartition(1).first()[0]) == ["a", "b"]
    mixed = frames(pd.DataFrame({"c": pd.Categorical(["a"])}), pd.DataFrame({"c": pd.Categorical([1])}))
    assert list(mixed.repartition(1).first()["c"]) == ["a", 1]


def test_samples(frames: Any) -> None:
    shards = frames(pd.DataFrame({"v": range(5)}), pd.DataFrame({"v": range(5, 10)}))
    found = shards.sample(0.4, random_state=3)
    assert len(found) == 4
    assert rows(found) == rows(shards.sample(frac=0.4, random_state=3))
    pd.testing.assert_frame_equal(found.concat_to_pdf(), shards.sample_to_pdf(0.4, random_state=3))
    assert len(shards.concat_to_pdf()) == 10


def test_only_frames_have_these(frames: Any) -> None:
    numbers = frames(np.arange(3), np.arange(2))
    for call in (
        lambda: numbers.deduplicates(),
        lambda: numbers.sort_values(),
        lambda: numbers.describe(),
        lambda: numbers.group_by("a"),
        lambda: numbers.merge(numbers),
        lambda: numbers.get_null_sum(),
        lambda: numbers.drop_missing_value(),
        lambda: numbers.sample(0.5),
        lambda: numbers.sample_to_pdf(0.5),
        lambda: numbers.max_values("a"),
    ):
        with pytest.raises(PlanError, match=r"Pandas DataFrame, found numpy.ndarray"):
            call()
