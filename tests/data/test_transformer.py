"""Strings to ids and numbers to scale: fitted over all shards, applied to each."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from firesteel.core.errors import PlanError, SchemaError
from firesteel.data.shards import XShards
from firesteel.data.transformer import (
    MinMaxScaler,
    StandardScaler,
    StringIndex,
    StringIndexer,
    category_encode,
    encode_string,
    gen_string_idx,
)


@pytest.fixture(scope="module")
def frames(sc: SparkContext) -> Any:
    """``frames(frame, …)``: one shard and one partition for each."""
    return lambda *given: XShards(sc.parallelize(given, len(given)))


@pytest.fixture(scope="module")
def words(spark: SparkSession) -> DataFrame:
    rows = [(0, "b", "x,y"), (1, "a", "y"), (2, None, None), (3, "a", "z,x,x"), (4, "c", "")]
    return spark.createDataFrame(rows, "n long, w string, l string").repartition(3, "n").cache()


def whole(shards: XShards) -> pd.DataFrame:
    return shards.concat_to_pdf().reset_index(drop=True)


def cells(df: DataFrame, column: str) -> list[Any]:
    return [row[column] for row in df.collect()]


# StringIndexer


def test_strings_become_ids_in_their_order(frames: Any) -> None:
    shards = frames(pd.DataFrame({"n": [1, 2], "s": ["c", "a"]}), pd.DataFrame({"n": [3, 4], "s": ["b", "a"]}))
    indexer = StringIndexer("s")
    found = whole(indexer.fit_transform(shards))
    assert found.to_dict("list") == {"n": [1, 2, 3, 4], "s": [3, 1, 2, 1]}
    assert found["s"].dtype == np.int64
    assert indexer.to_dict() == {"a": 1, "b": 2, "c": 3}

    later = frames(pd.DataFrame({"s": ["b"]}), pd.DataFrame({"s": ["z"]}))
    again = StringIndexer.from_json(indexer.to_json())
    known, unknown = again.transform(later).collect()
    assert known["s"].tolist() == [2]
    assert known["s"].dtype == unknown["s"].dtype == np.float64
    assert unknown["s"].isna().tolist() == [True]
    zeros = whole(again.transform(later, handle_unknown="zero"))["s"]
    assert zeros.tolist() == [2, 0]
    assert zeros.dtype == np.int64


def test_several_columns_nulls_and_other_types(frames: Any) -> None:
    shards = frames(
        pd.DataFrame({"id": ["q", None], "k": [7, 5], "c": pd.Categorical(["v", "u"]), "e": [None, None]}),
        pd.DataFrame({"id": ["p", "q"], "k": [5, 7], "c": pd.Categorical(["w", "u"]), "e": [None, None]}),
    )
    indexer = StringIndexer().setInputCol(["id", "k", "c", "e"])
    found = whole(indexer.fit_transform(shards))
    assert found["id"].fillna(-1).tolist() == [2, -1, 1, 2]
    assert found["k"].tolist() == [2, 1, 1, 2]
    assert found["c"].tolist() == [2, 1, 3, 1]
    assert found["e"].isna().all()
    assert indexer.to_dict()["k"] == {"5": 1, "7": 2}


def test_an_indexer_says_what_is_wrong(frames: Any) -> None:
    shards = frames(pd.DataFrame({"s": ["a"], "f": [0.5]}))
    with pytest.raises(PlanError, match="fit_transform first"):
        StringIndexer("s").transform(shards)
    with pytest.raises(PlanError, match="set inputCol first"):
        StringIndexer().fit_transform(shards)
    with pytest.raises(SchemaError, match=r"'no' does not exist.*s, f"):
        StringIndexer("no").fit_transform(shards)
    with pytest.raises(SchemaError, match="'f' holds double, not strings"):
        StringIndexer("f").fit_transform(shards)
    with pytest.raises(PlanError, match="Pandas DataFrame, found list"):
        StringIndexer("s").fit_transform(frames([1]))
    for wrong in (3, [], ["a", "a"], [1]):
        with pytest.raises(PlanError, match="inputCol"):
            StringIndexer(wrong)
    with pytest.raises(PlanError, match="null, zero"):
        StringIndexer("s", handle_unknown="skip")
    with pytest.raises(PlanError, match=r"StringIndexer\.to_json wrote"):
        StringIndexer.from_json(MinMaxScaler().to_json())


# On DataFrames


def test_an_index_of_one_column(words: DataFrame) -> None:
    index = gen_string_idx(words, "w")
    assert isinstance(index, StringIndex)
    assert set(index.df.columns) == {"w", "id"}
    assert index.to_dict() == {"a": 1, "b": 2, "c": 3}
    assert gen_string_idx(words, "w", freq_limit=2).to_dict() == {"a": 1}
    assert StringIndex.from_json(index.to_json()).to_dict() == index.to_dict()
    assert index.broadcast() is index


def test_the_most_frequent_string_is_first(spark: SparkSession) -> None:
    df = spark.createDataFrame([("c",), ("b",), ("c",), ("a",), ("b",), ("c",)], "w string")
    assert gen_string_idx(df, "w", order_by_freq=True).to_dict() == {"c": 1, "b": 2, "a": 3}


def test_indexes_of_several_columns_are_counted_at_once(words: DataFrame, spark: SparkSession) -> None:
    first, both, split = (
        *gen_string_idx(words, ["w", {"src_cols": ["w", "l"], "col_name": "any"}], freq_limit={"w": 2}),
        gen_string_idx(words, "l", do_split=True, order_by_freq=True),
    )
    assert first.to_dict() == {"a": 1}
    assert both.to_dict() == {"": 1, "a": 2, "b": 3, "c": 4, "x,y": 5, "y": 6, "z,x,x": 7}
    assert split.to_dict() == {"x": 1, "y": 2, "": 3, "z": 4}
    cached = spark.sparkContext._jsc.getPersistentRDDs
    before = len(cached())
    del first, both, split
    gc.collect()
    assert len(cached()) < before


@pytest.mark.parametrize("broadcast", [True, False])
def test_encoding_keeps_rows_and_columns_in_order(words: DataFrame, broadcast: bool) -> None:
    df, index = category_encode(words, "w", broadcast=broadcast)
    assert df.columns == ["n", "w", "l"]
    assert df.schema["w"].dataType.simpleString() == "bigint"
    assert cells(df, "n") == cells(words, "n")
    assert dict(zip(cells(df, "n"), cells(df, "w"), strict=True)) == {0: 2, 1: 1, 2: None, 3: 1, 4: 3}
    again = encode_string(words, ["w", "l"], [index, {"y": 5}], broadcast=broadcast)
    assert dict(zip(cells(again, "n"), cells(again, "l"), strict=True)) == {0: None, 1: 5, 2: None, 3: None, 4: None}


@pytest.mark.parametrize("broadcast", [True, False])
def test_cells_of_several_strings(words: DataFrame, broadcast: bool) -> None:
    def encode(**options: Any) -> dict[int, Any]:
        df, _ = category_encode(words, "l", do_split=True, broadcast=broadcast, **options)
        assert df.columns == ["n", "w", "l"]
        assert cells(df, "n") == cells(words, "n")
        return dict(zip(cells(df, "n"), cells(df, "l"), strict=True))

    # '' 1, x 2, y 3, z 4; by frequency x 1, y 2, '' 3, z 4
    assert encode() == {0: [2, 3], 1: [3], 2: None, 3: [4, 2, 2], 4: [1]}
    if not broadcast:
        return
    assert encode(sort_for_array=True)[3] == [2, 2, 4]
    assert encode(order_by_freq=True, keep_most_frequent=True) == {0: 1, 1: 2, 2: None, 3: 1, 4: 3}
    assert encode(freq_limit=3)[0] == [1, None]


def test_a_separator_is_no_pattern(spark: SparkSession) -> None:
    df = spark.createDataFrame([("a|b",), ("b|.",)], "w string")
    assert gen_string_idx(df, "w", do_split=True, sep="|").to_dict() == {".": 1, "a": 2, "b": 3}


def test_dataframe_functions_say_what_is_wrong(words: DataFrame) -> None:
    with pytest.raises(SchemaError, match=r"'no' does not exist.*n, w, l"):
        gen_string_idx(words, "no")
    with pytest.raises(SchemaError, match="'n' holds bigint, not strings"):
        gen_string_idx(words, ["w", "n"])
    with pytest.raises(PlanError, match=r"freq_limit: 'l' is not among the columns: w"):
        gen_string_idx(words, "w", freq_limit={"l": 2})
    with pytest.raises(PlanError, match="src_cols"):
        gen_string_idx(words, [3])
    with pytest.raises(PlanError, match="for each of 2 columns, found 1"):
        encode_string(words, ["w", "l"], [{"a": 1}])
    with pytest.raises(SchemaError, match=r"'id' does not exist.*n, w, l"):
        StringIndex(words, "w")
    with pytest.raises(PlanError, match="dict of string to id"):
        StringIndex.from_dict({1: "a"}, "w")
    with pytest.raises(PlanError, match="Spark DataFrame"):
        gen_string_idx(pd.DataFrame({"w": ["a"]}), "w")


# Scalers

COLUMNS = ["v", "constant", "tenths", "large", "gaps", "nothing"]


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "v": [1, 2, 3, 4, 5],
            "constant": [7] * 5,
            "tenths": [0.1] * 5,
            "large": 1e9 + np.arange(5.0),
            "gaps": [1, None, 3, None, None],
            "nothing": [None] * 5,
            "s": list("abcde"),
        }
    )


@pytest.fixture(scope="module")
def shards(frames: Any, rows: pd.DataFrame) -> XShards:
    spread: XShards = frames(rows.iloc[:2], rows.iloc[2:])
    return spread.cache()


@pytest.fixture(scope="module")
def fitted(shards: XShards) -> dict[type, tuple[Any, pd.DataFrame]]:
    """Each scaler, fitted to all columns of both shards, and what it made of them."""
    scalers = (
        MinMaxScaler(-1, 3).setInputOutputCol(COLUMNS, "o"),
        StandardScaler(withMean=True, inputCol=COLUMNS, outputCol="o"),
    )
    return {type(scaler): (scaler, whole(scaler.fit_transform(shards))) for scaler in scalers}


def scaled(found: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(found["o"].tolist(), columns=COLUMNS)


def test_one_column_gives_numbers(shards: XShards) -> None:
    found = whole(MinMaxScaler(inputCol="v", outputCol="o").fit_transform(shards))
    assert list(found) == [*COLUMNS, "s", "o"]
    assert found["v"].tolist() == [1, 2, 3, 4, 5]
    assert found["o"].tolist() == [0, 0.25, 0.5, 0.75, 1]
    found = whole(StandardScaler(inputCol="v", outputCol="o").fit_transform(shards))
    assert found["o"].tolist() == pytest.approx([0.632456, 1.264911, 1.897367, 2.529822, 3.162278], abs=1e-6)


def test_min_max_of_several_columns(fitted: Any) -> None:
    found = scaled(fitted[MinMaxScaler][1])
    assert found["v"].tolist() == found["large"].tolist() == [-1, 0, 1, 2, 3]
    assert found["constant"].tolist() == found["tenths"].tolist() == [1] * 5
    assert found["gaps"].fillna(9).tolist() == [-1, 9, 3, 9, 9]
    assert found["nothing"].isna().all()


def test_standard_of_several_columns(fitted: Any, shards: XShards) -> None:
    scaler, made = fitted[StandardScaler]
    found = scaled(made)
    expected = pytest.approx([-1.264911, -0.632456, 0, 0.632456, 1.264911], abs=1e-6)
    assert found["v"].tolist() == expected
    assert found["large"].tolist() == expected
    assert found["constant"].tolist() == found["tenths"].tolist() == [0] * 5
    assert found["gaps"].fillna(9).tolist() == pytest.approx([-0.707107, 9, 0.707107, 9, 9], abs=1e-6)
    assert found["nothing"].isna().all()
    only_mean = StandardScaler.from_json(scaler.to_json().replace('"withStd": true', '"withStd": false'))
    assert scaled(whole(only_mean.transform(shards)))["v"].tolist() == [-2, -1, 0, 1, 2]


@pytest.mark.parametrize("make", [MinMaxScaler, StandardScaler])
def test_a_scaler_is_the_same_however_rows_are_spread(frames: Any, rows: pd.DataFrame, fitted: Any, make: Any) -> None:
    spread, expected = fitted[make]
    single = make.from_json(spread.to_json())
    assert repr(single) == repr(spread)
    assert single.to_json() == spread.to_json()
    pd.testing.assert_frame_equal(expected, whole(single.fit_transform(frames(rows))))
    assert single.to_json() == spread.to_json()


def test_scalers_say_what_is_wrong(shards: XShards) -> None:
    for make in (MinMaxScaler, StandardScaler):
        with pytest.raises(PlanError, match="fit_transform first"):
            make(inputCol="v", outputCol="o").transform(shards)
        with pytest.raises(PlanError, match="setInputOutputCol"):
            make().fit_transform(shards)
        with pytest.raises(PlanError, match="outputCol"):
            make(inputCol="v", outputCol="v")
        with pytest.raises(SchemaError, match=r"'no' does not exist.*v, constant"):
            make(inputCol=["v", "no"], outputCol="o").fit_transform(shards)
    with pytest.raises(SchemaError, match="'s' holds string, not numbers"):
        StandardScaler(inputCol="s", outputCol="o").fit_transform(shards)
    with pytest.raises(PlanError, match="min must be less than max"):
        MinMaxScaler(1, 1)
