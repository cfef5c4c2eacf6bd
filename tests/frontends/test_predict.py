"""``predict``: every row keeps its place and gets what plain torch gives, whatever holds the rows."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pyspark import SparkContext
from pyspark.errors import PythonException
from pyspark.ml.linalg import DenseVector, Vectors, VectorUDT
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DoubleType,
    FloatType,
    LongType,
    StructField,
    StructType,
)
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from firesteel import Estimator, XShards
from firesteel.core.errors import PlanError, ReplicaFailed, SchemaError
from firesteel.data.frame import as_tensor_column
from firesteel.learn.pytorch.callbacks import Callback, MainCallback
from frontends.modules import Apply, Pair, linear

COUNT = 20
X = np.random.default_rng(5).random((COUNT, 3)).astype(np.float32)


def estimator(model: Any, **parts: Any) -> Any:
    return Estimator.from_torch(model=model, **parts)


def scattered(spark: SparkSession, rows: list[Any], sizes: list[int], schema: Any) -> DataFrame:
    """A DataFrame with partitions of exactly these sizes."""
    parts, begin = [], 0
    for size in sizes:
        parts.append(rows[begin : begin + size])
        begin += size
    assert begin == len(rows)
    rdd = spark.sparkContext.parallelize(range(len(parts)), len(parts)).flatMap(lambda index: parts[index])
    return spark.createDataFrame(rdd, schema)


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> DataFrame:
    """``id`` and ``x``, the rows of X, in partitions of no, one and many rows."""
    rows = [(index, row.tolist()) for index, row in enumerate(X)]
    return scattered(spark, rows, [0, 1, 11, 0, 7, 1, 0], "id long, x array<double>").cache()


def expected(model: nn.Module, x: np.ndarray = X) -> np.ndarray:
    with torch.no_grad():
        return model.eval()(torch.from_numpy(x)).numpy()


def column(df: DataFrame, name: str = "prediction") -> np.ndarray:
    """A column's values, with vectors as arrays."""
    return np.array([v.toArray() if isinstance(v, DenseVector) else v for (v,) in df.select(name).collect()])


# --- a DataFrame keeps all ---


def test_rows_keep_their_place_whatever_the_partitions_and_the_batch(
    spark: SparkSession, jobs: Callable[[], int]
) -> None:
    rows = [(index, [float(index)] * 5) for index in range(20)]
    df = scattered(spark, rows, [5, 0, 1, 9, 0, 4, 1], "id long, feature array<double>")
    assert df.rdd.getNumPartitions() == 7
    found = []
    for size in (1, 4, 64):
        result = estimator(Apply()).predict(df, batch_size=size, feature_cols="feature")
        before = jobs()
        assert result.columns == ["id", "feature", "prediction"]
        assert result.schema["prediction"].dataType == VectorUDT()
        assert jobs() == before  # the schema was known
        found.append(result.collect())
        assert [row["id"] for row in found[-1]] == list(range(20))
        assert all(row["prediction"] == DenseVector(row["feature"]) for row in found[-1])
    assert found[0] == found[1] == found[2]


def test_equals_plain_torch_and_says_the_same_twice(frame: DataFrame) -> None:
    model = nn.Sequential(linear(3, 4), nn.Tanh(), nn.Dropout(0.5), nn.BatchNorm1d(4), linear(4, 2))
    result = estimator(model).predict(frame, feature_cols=["x"], batch_size=3)
    assert model.training  # the user's own module is left as it was
    first, second = column(result), column(result)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(first, expected(model), atol=1e-6)


def test_is_lazy_and_streams(spark: SparkSession, jobs: Callable[[], int]) -> None:
    """A billion rows in one partition: looking at all of them, or holding them, would not end."""
    df = spark.range(0, 10**9, 1, 1).select(F.col("id"), F.array(F.col("id").cast("double")).alias("x"))
    before = jobs()
    result = estimator(Apply()).predict(df, feature_cols="x")
    assert jobs() <= before + 1  # one row, for the schema
    assert [row["prediction"][0] for row in result.limit(3).collect()] == [0.0, 1.0, 2.0]


def test_an_output_schema_needs_no_run(spark: SparkSession, jobs: Callable[[], int]) -> None:
    df = spark.range(0, 10**9, 1, 1).select(F.array(F.col("id").cast("double")).alias("x"))
    before = jobs()
    result = estimator(Apply()).predict(df, feature_cols="x", output_schema="score array<double>")
    assert jobs() == before
    assert result.schema["score"].dataType == ArrayType(DoubleType())
    assert result.limit(2).collect()[1]["score"] == [1.0]


def test_the_drivers_torch_is_left_as_it_was(frame: DataFrame) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        estimator(linear()).predict(frame, feature_cols="x")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_other_columns_pass_unchanged(spark: SparkSession) -> None:
    schema = (
        "x double, t timestamp, n timestamp_ntz, d date, m decimal(20,5), p map<string,int>, s struct<a:int,b:string>, "
        "words string, raw binary, deep array<struct<k:string,v:array<long>>>, y tinyint, gap interval day to second"
    )
    moment = datetime.datetime(2024, 2, 29, 23, 59, 59, 123456)
    full = [1.0, moment, moment, moment.date(), decimal.Decimal("123456789012345.12345"), {"a": 1, "b": None}]
    full += [(3, None), "ä", bytearray(b"\x00\xff"), [("k", [1, None])], 7, datetime.timedelta(days=1, microseconds=5)]
    df = spark.createDataFrame([full, [2.0, *[None] * 11]], schema)
    vectors = spark.createDataFrame([(1.0, Vectors.sparse(4, [1], [2.0])), (2.0, None)], ["x", "v"])
    df = df.join(vectors.hint("broadcast"), "x").withMetadata("words", {"note": "kept"})
    result = estimator(Apply()).predict(df, feature_cols="x")
    assert result.schema.fields[:-1] == df.schema.fields
    assert result.schema["words"].metadata == {"note": "kept"}
    assert result.drop("prediction").collect() == df.collect()


def test_names_with_dots_and_fields_of_structs(spark: SparkSession) -> None:
    df = spark.createDataFrame(
        [(1.0, 2.0, (3.0, [4.0])), (5.0, 6.0, (7.0, [8.0]))],
        "`a.b` double, c double, s struct<f:double,`g.h`:array<double>>",
    )
    df = df.select(F.col("`a.b`").alias("a.b", metadata={"note": "kept"}), "c", "s")
    result = estimator(Apply()).predict(df, feature_cols=["a.b", "s.f", "s.g.h"])
    assert result.columns == ["a.b", "c", "s", "prediction"]
    assert result.schema.fields[:-1] == df.schema.fields
    assert column(result).tolist() == [[1.0, 3.0, 4.0], [5.0, 7.0, 8.0]]


def test_columns_of_one_name_pass(spark: SparkSession) -> None:
    df = spark.createDataFrame([(1.0, 2, 3, (4.0,))], "x double, y int, z int, s struct<f:double>").toDF(
        "x", "y", "y", "s"
    )
    result = estimator(Apply()).predict(df, feature_cols=["x", "s.f"])
    assert result.columns == ["x", "y", "y", "s", "prediction"]
    assert tuple(result.first())[:3] == (1.0, 2, 3)
    assert column(result).tolist() == [[1.0, 4.0]]


# --- from columns to the model ---


def test_scalars_are_joined_in_the_order_given(spark: SparkSession) -> None:
    df = spark.createDataFrame([(1, 2.5, decimal.Decimal("3.25"), True)], "a int, b float, c decimal(6,2), d boolean")
    assert column(estimator(Apply()).predict(df, feature_cols=["c", "a", "b"])).tolist() == [[3.25, 1.0, 2.5]]
    result = estimator(Apply()).predict(df, feature_cols="d")
    assert result.schema["prediction"].dataType == BooleanType()
    assert result.first()["prediction"] is True


def test_arrays_matrices_vectors_and_tensors(spark: SparkSession) -> None:
    rows = [
        ([1, 2], [[1.0, 2.0], [3.0, 4.0]], Vectors.dense(1.0, 0.0), np.array([[1], [2]], np.float32).tobytes()),
        ([3, 4], [[5.0, 6.0], [7.0, 8.0]], Vectors.sparse(2, [1], [9.0]), np.array([[3], [4]], np.float32).tobytes()),
    ]
    schema = StructType(
        [
            StructField("ints", ArrayType(LongType())),
            StructField("matrix", ArrayType(ArrayType(DoubleType()))),
            StructField("vector", VectorUDT()),
        ]
    ).add("raw", "binary")
    df = as_tensor_column(spark.createDataFrame(rows, schema), "raw", "float32", [2, 1])
    for name, kind, values in (
        ("ints", VectorUDT(), [[1.0, 2.0], [3.0, 4.0]]),
        ("matrix", ArrayType(ArrayType(FloatType())), [[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]]),
        ("vector", VectorUDT(), [[1.0, 0.0], [0.0, 9.0]]),
        ("raw", ArrayType(ArrayType(FloatType())), [[[1.0], [2.0]], [[3.0], [4.0]]]),
    ):
        result = estimator(Apply()).predict(df, feature_cols=name)
        assert result.schema["prediction"].dataType == kind, name
        assert column(result).tolist() == values, name
        assert result.schema["raw"].metadata == df.schema["raw"].metadata


def test_two_columns_for_two_inputs(spark: SparkSession) -> None:
    df = spark.createDataFrame([([1.0, 2.0], [3.0, 4.0])], "a array<double>, b array<double>")
    assert column(estimator(Pair()).predict(df, feature_cols=["b", "a"])).tolist() == [[13.0, 24.0]]


def test_wide_tensors_of_files_are_read_there_and_the_same(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also filtered ones, two in a row, in pieces of other sizes than batches; and Spark does not send them."""
    rows, width = 700, 300
    values = np.random.default_rng(2).random((2, rows, width)).astype(np.float32)
    table = pa.table({"id": range(rows), **{n: [r.tobytes() for r in v] for n, v in zip("ab", values, strict=True)}})
    pq.write_table(table, tmp_path / "of 700.parquet", row_group_size=190)
    df = spark.read.parquet(str(tmp_path)).where("id % 5 != 2")
    for name in "ab":
        df = as_tensor_column(df, name, "float32", [width])
    kept = [number for number in range(rows) if number % 5 != 2]
    result = estimator(Pair()).predict(df, feature_cols=["b", "a"], batch_size=32)
    assert result.columns == ["id", "a", "b", "prediction"]
    assert [row.id for row in result.select("id").collect()] == kept
    np.testing.assert_allclose(column(result), (values[1] + 10 * values[0])[kept], rtol=1e-6)
    capfd.readouterr()
    result.select("prediction").explain()
    plan = capfd.readouterr().out
    assert "row_index" in plan
    assert "ReadSchema: struct<id:bigint,_tmp" in plan, "wide columns that nobody keeps are not read by Spark"
    spark.conf.set("spark.firesteel.readFiles", "false")
    try:
        assert (column(estimator(Pair()).predict(df, feature_cols=["b", "a"], batch_size=32)) == column(result)).all()
    finally:
        spark.conf.unset("spark.firesteel.readFiles")


def test_a_cell_of_another_size_in_a_file_is_one_sentence(spark: SparkSession, tmp_path: Path) -> None:
    cells = [bytes(1200), bytes(1200), bytes(1196)]
    pq.write_table(pa.table({"x": cells}), tmp_path / "f.parquet")
    df = as_tensor_column(spark.read.parquet(str(tmp_path)), "x", "float32", [300])
    with pytest.raises(PythonException, match=r"'x'.*1196"):
        estimator(Apply()).predict(df, feature_cols="x").collect()


# --- from the model to columns ---


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (lambda x: x.sum(dim=1), FloatType()),
        (lambda x: x.double().sum(dim=1), DoubleType()),
        (lambda x: x[:, :1], VectorUDT()),
        (lambda x: x * 2, VectorUDT()),
        (lambda x: x[:, None].repeat(1, 2, 1), ArrayType(ArrayType(FloatType()))),
        (lambda x: (x[:, 0] * 100).int(), LongType()),
        (lambda x: x[:, 0] > 0.5, BooleanType()),
        (lambda x: (x > 0.5).long(), VectorUDT()),
        (lambda x: x[:, :1].bfloat16(), VectorUDT()),
    ],
    ids=["()", "() of float64", "(1,)", "(3,)", "(2, 3)", "int", "bool", "ints", "bfloat16"],
)
def test_an_outputs_shape_and_dtype_make_its_type(frame: DataFrame, function: Any, kind: Any) -> None:
    result = estimator(Apply(function)).predict(frame, feature_cols="x", batch_size=4)
    assert result.schema["prediction"].dataType == kind
    wanted = function(torch.from_numpy(X))
    np.testing.assert_allclose(column(result), wanted.float() if wanted.dtype == torch.bfloat16 else wanted, rtol=1e-6)


def named(x: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"score": x.sum(dim=1), "cls": x.argmax(dim=1)}


def test_named_outputs_are_fields_or_columns(frame: DataFrame) -> None:
    result = estimator(Apply(named)).predict(frame, feature_cols="x", batch_size=4)
    assert result.columns == ["id", "x", "prediction"]
    np.testing.assert_allclose(column(result, "prediction.score"), X.sum(axis=1), rtol=1e-6)
    np.testing.assert_array_equal(column(result, "prediction.cls"), X.argmax(axis=1))
    result = estimator(Apply(named)).predict(frame, feature_cols="x", output_cols=["score", "cls"])
    assert result.columns == ["id", "x", "score", "cls"]
    np.testing.assert_array_equal(column(result, "cls"), X.argmax(axis=1))


def test_unnamed_outputs_are_numbered(frame: DataFrame) -> None:
    model = Apply(lambda x: (x, {"sum": x.sum(dim=1), "first": x[:, :2]}))
    result = estimator(model).predict(frame, feature_cols="x")
    np.testing.assert_allclose(column(result, "prediction._0"), X, rtol=1e-6)
    np.testing.assert_allclose(column(result, "prediction._1.first"), X[:, :2], rtol=1e-6)
    result = estimator(model).predict(frame, feature_cols="x", output_cols=["same", "more"])
    np.testing.assert_allclose(column(result, "more.sum"), X.sum(axis=1), rtol=1e-6)


def test_a_dict_of_one_output(frame: DataFrame) -> None:
    model = Apply(lambda x: {"score": x.sum(dim=1)})
    np.testing.assert_allclose(
        column(estimator(model).predict(frame, feature_cols="x"), "prediction.score"), X.sum(axis=1), rtol=1e-6
    )
    result = estimator(model).predict(frame, feature_cols="x", output_cols="mine")
    assert result.schema["mine"].dataType == FloatType()
    np.testing.assert_allclose(column(result, "mine"), X.sum(axis=1), rtol=1e-6)


def test_names_for_outputs_must_fit(frame: DataFrame, jobs: Callable[[], int]) -> None:
    with pytest.raises(SchemaError, match=r"3 names.*2 outputs"):
        estimator(Apply(named)).predict(frame, feature_cols="x", output_cols=["a", "b", "c"])
    before = jobs()
    with pytest.raises(SchemaError, match="'id'"):
        estimator(Apply()).predict(frame, feature_cols="x", output_cols="id")
    with pytest.raises(SchemaError, match="'ID'"):  # Spark would not tell them apart
        estimator(Apply()).predict(frame, feature_cols="x", output_cols="ID")
    with pytest.raises(SchemaError, match="twice"):
        estimator(Apply(named)).predict(frame, feature_cols="x", output_cols=["a", "a"])
    taken = frame.withColumnRenamed("id", "prediction")
    with pytest.raises(SchemaError, match="'prediction'"):
        estimator(Apply()).predict(taken, feature_cols="x")
    assert jobs() == before
    result = estimator(Apply()).predict(taken, feature_cols="x", output_cols="again")
    assert [row["prediction"] for row in result.collect()] == list(range(COUNT))


@pytest.mark.parametrize(
    "schema",
    [
        "score double, cls int",
        StructType([StructField("score", DoubleType()), StructField("cls", LongType())]),
        "prediction struct<score: double, cls: bigint>",
    ],
    ids=["DDL", "StructType", "struct"],
)
def test_a_given_schema_is_kept_to(frame: DataFrame, schema: Any) -> None:
    result = estimator(Apply(named)).predict(frame, feature_cols="x", output_schema=schema)
    if "prediction" in result.columns:
        result = result.select("prediction.*")
    assert [field.dataType.simpleString() for field in result.select("score").schema] == ["double"]
    np.testing.assert_allclose(column(result, "score"), X.sum(axis=1), rtol=1e-6)
    np.testing.assert_array_equal(column(result, "cls"), X.argmax(axis=1))


def test_a_given_type_is_that_of_the_prediction(frame: DataFrame) -> None:
    result = estimator(Apply()).predict(frame, feature_cols="x", output_schema="array<double>")
    np.testing.assert_allclose(column(result), X, rtol=1e-6)
    vector = StructType([StructField("v", VectorUDT())])
    np.testing.assert_allclose(
        column(estimator(Apply()).predict(frame, feature_cols="x", output_schema=vector), "v"), X
    )


@pytest.mark.parametrize(("schema", "words"), [(3, "DDL"), ("not a schema at all", "not a schema at all")])
def test_a_schema_that_is_none(frame: DataFrame, schema: Any, words: str) -> None:
    with pytest.raises(SchemaError, match=words):
        estimator(Apply()).predict(frame, feature_cols="x", output_schema=schema)


def test_a_given_schema_that_does_not_fit_is_told(frame: DataFrame) -> None:
    result = estimator(Apply(named)).predict(frame, feature_cols="x", output_schema="a double, b double, c double")
    with pytest.raises(Exception, match=r"3 columns.*2 outputs"):
        result.collect()


def test_an_output_must_have_a_row_for_each_row(frame: DataFrame) -> None:
    with pytest.raises(SchemaError, match="one row of output for each row"):
        estimator(Apply(lambda x: x.mean())).predict(frame, feature_cols="x")
    with pytest.raises(SchemaError, match="one row of output for each row"):
        estimator(Apply(lambda x: x.T.contiguous())).predict(X)


def test_an_empty_dataframe(spark: SparkSession) -> None:
    empty = spark.createDataFrame([], "a double, b double, x array<double>")
    result = estimator(Apply()).predict(empty, feature_cols=["a", "b"])
    assert result.schema["prediction"].dataType == VectorUDT()
    assert result.collect() == []
    with pytest.raises(PlanError, match="output_schema"):
        estimator(Apply()).predict(empty, feature_cols="x")
    assert estimator(Apply()).predict(empty, feature_cols="x", output_schema="array<float>").collect() == []


# --- the other kinds ---


@pytest.fixture(scope="module")
def wanted() -> np.ndarray:
    return expected(linear(3, 2))


def pandas_frame() -> pd.DataFrame:
    return pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2]}, index=range(100, 100 + COUNT))


def test_arrays(spark: SparkSession, wanted: np.ndarray) -> None:
    for replicas in (1, 3):
        est = estimator(linear(3, 2), workers_per_node=replicas)
        for data in (X, X.astype(np.float64), {"x": X}, {"x": X, "y": X}):
            found = est.predict(data, batch_size=7)
            assert isinstance(found, np.ndarray)
            np.testing.assert_allclose(found, wanted, atol=1e-6)
    np.testing.assert_allclose(est.predict(X, batch_size=4, steps=2), wanted[:8], atol=1e-6)


def test_several_arrays_in_and_out(spark: SparkSession) -> None:
    np.testing.assert_allclose(estimator(Pair()).predict([X, X]), 11 * X, rtol=1e-6)
    np.testing.assert_allclose(estimator(Pair()).predict({"right": X, "left": 2 * X}), 12 * X, rtol=1e-6)
    found = estimator(Apply(named)).predict(X, batch_size=3)
    assert list(found) == ["score", "cls"]
    np.testing.assert_array_equal(found["cls"], X.argmax(axis=1))
    found = estimator(Apply(lambda x: (x, x.sum(dim=1)))).predict(X)
    assert isinstance(found, list)
    np.testing.assert_allclose(found[1], X.sum(axis=1), rtol=1e-6)


def test_no_rows_give_no_rows(spark: SparkSession) -> None:
    assert estimator(Apply(lambda x: x[:, :2])).predict(X[:0]).shape == (0, 2)
    found = estimator(Apply()).predict(pandas_frame()[:0], feature_cols=["a", "b"])
    assert list(found.columns) == ["a", "b", "c", "prediction"]
    assert len(found) == 0


def test_pandas(spark: SparkSession, wanted: np.ndarray) -> None:
    data = pandas_frame()
    found = estimator(linear(3, 2)).predict(data, feature_cols=["a", "b", "c"], batch_size=7)
    assert list(found.columns) == ["a", "b", "c", "prediction"]
    assert found.index.equals(data.index)
    assert list(data.columns) == ["a", "b", "c"]  # the user's own is left as it was
    np.testing.assert_allclose(np.stack(found["prediction"]), wanted, atol=1e-6)
    found = estimator(Apply(named)).predict(data, feature_cols=["a", "b", "c"], output_cols=["score", "cls"])
    assert found["cls"].tolist() == X.argmax(axis=1).tolist()
    found = estimator(Apply(named)).predict(data, feature_cols=["a", "b", "c"])
    assert found["prediction"].iloc[3]["cls"] == X[3].argmax()
    cut = estimator(linear(3, 2)).predict(data, feature_cols=["a", "b", "c"], batch_size=4, steps=2)
    assert cut.index.tolist() == list(range(100, 108))


def test_pandas_cells_that_are_arrays(spark: SparkSession) -> None:
    data = pd.DataFrame(
        {"v": [[1.0, 2.0], [3.0, 4.0]], "m": [np.eye(2), 2 * np.eye(2)], "u": np.array([1, 2], np.uint8)}
    )
    found = estimator(Apply()).predict(data, feature_cols="m")
    np.testing.assert_array_equal(found["prediction"][1], 2 * np.eye(2))
    assert np.stack(estimator(Apply()).predict(data, feature_cols="v")["prediction"]).tolist() == data["v"].tolist()
    assert estimator(Apply()).predict(data, feature_cols="u")["prediction"].tolist() == [1, 2]


def test_pandas_names_must_fit(spark: SparkSession, jobs: Callable[[], int]) -> None:
    est, data = estimator(Apply(named)), pandas_frame()
    shards = XShards(spark.sparkContext.parallelize([data], 1))
    for each in (data, shards):
        with pytest.raises(SchemaError, match=r"3 names.*2 outputs"):
            est.predict(each, feature_cols=["a", "b"], output_cols=["p", "q", "r"])
        with pytest.raises(SchemaError, match="'c'"):
            est.predict(each, feature_cols=["a", "b"], output_cols=["c", "q"])
        with pytest.raises(SchemaError, match=r"feature columns is None.*prediction"):
            est.predict(each)
        with pytest.raises(SchemaError, match=r"'nowhere'.*a, b, c"):
            est.predict(each, feature_cols=["nowhere"])


@pytest.fixture(scope="module")
def pieces() -> list[np.ndarray]:
    return [X[:1], X[1:9], X[9:9], X[9:]]


def test_shards_of_arrays(
    sc: SparkContext, pieces: list[np.ndarray], wanted: np.ndarray, jobs: Callable[[], int]
) -> None:
    kinds: dict[str, tuple[list[Any], set[str]]] = {
        "dict": ([{"x": x, "name": "kept"} for x in pieces], {"x", "name", "prediction"}),
        "tuple": ([(x, x[:, 0]) for x in pieces], {"x", "prediction"}),
        "ndarray": (pieces, {"x", "prediction"}),
    }
    for kind, (shards, keys) in kinds.items():
        before = jobs()
        result = estimator(linear(3, 2)).predict(XShards(sc.parallelize(shards, 3)), batch_size=3)
        assert isinstance(result, XShards)
        assert jobs() <= before + 1, kind  # one shard was looked at
        found = result.collect()
        assert all(set(shard) == keys for shard in found), kind
        np.testing.assert_array_equal(np.concatenate([shard["x"] for shard in found]), X)
        np.testing.assert_allclose(np.concatenate([shard["prediction"] for shard in found]), wanted, atol=1e-6)


def test_shards_of_several_inputs_and_outputs(sc: SparkContext, pieces: list[np.ndarray]) -> None:
    shards = XShards(sc.parallelize([{"x": [x, x]} for x in pieces], 2))
    found = estimator(Pair()).predict(shards).collect()
    np.testing.assert_allclose(np.concatenate([shard["prediction"] for shard in found]), 11 * X, rtol=1e-6)
    shards = XShards(sc.parallelize(pieces, 2))
    found = estimator(Apply(named)).predict(shards).collect()
    assert found[1]["prediction"]["cls"].tolist() == X[1:9].argmax(axis=1).tolist()
    found = estimator(Apply(lambda x: (x, x))).predict(shards).collect()
    assert isinstance(found[1]["prediction"], list)


def test_shards_of_pandas(sc: SparkContext, wanted: np.ndarray) -> None:
    data = pandas_frame()
    shards = XShards(sc.parallelize([data[:9], data[9:9], data[9:]], 2))
    found = estimator(linear(3, 2)).predict(shards, feature_cols=["a", "b", "c"]).concat_to_pdf()
    assert list(found.columns) == ["a", "b", "c", "prediction"]
    np.testing.assert_allclose(np.stack(found["prediction"]), wanted, atol=1e-6)
    named_too = estimator(Apply(named)).predict(shards, feature_cols=["a", "b", "c"], output_cols=["score", "cls"])
    assert named_too.concat_to_pdf()["cls"].tolist() == X.argmax(axis=1).tolist()


def test_shards_without_a_shard(sc: SparkContext) -> None:
    with pytest.raises(PlanError, match="no shard"):
        estimator(linear()).predict(XShards(sc.parallelize([], 2)))


def test_shards_of_something_else(sc: SparkContext) -> None:
    with pytest.raises(SchemaError, match=r"'x'.*features"):
        estimator(linear()).predict(XShards(sc.parallelize([{"features": X}], 1)))
    with pytest.raises(PlanError, match="str"):
        estimator(linear()).predict(XShards(sc.parallelize(["a"], 1)))


def test_loaders_and_creators(spark: SparkSession, wanted: np.ndarray, jobs: Callable[[], int]) -> None:
    tensor = torch.from_numpy(X)

    def creator(config: dict[str, Any], batch_size: int) -> DataLoader:
        assert config == {"scale": 1.0, "more": 2}
        assert batch_size == 6
        return DataLoader(TensorDataset(tensor * config["scale"], tensor), batch_size=batch_size)

    est = estimator(linear(3, 2), config={"scale": 3.0}, workers_per_node=2)
    before = jobs()
    results = [
        est.predict(DataLoader(TensorDataset(tensor, tensor[:, 0]), batch_size=6)),
        est.predict(creator, batch_size=6, data_config={"scale": 1.0, "more": 2}),
        est.predict(lambda config, batch_size: (X, X), batch_size=6),
        est.predict(lambda config, batch_size: TensorDataset(tensor), batch_size=6),
        est.predict(lambda config, batch_size: iter([X[:6], X[6:12], X[12:18], X[18:]])),
    ]
    assert jobs() == before
    for number, result in enumerate(results):
        assert isinstance(result, XShards)
        found = result.collect()
        assert [list(shard) for shard in found] == [["prediction"]] * 4, number
        np.testing.assert_allclose(np.concatenate([shard["prediction"] for shard in found]), wanted, atol=1e-6)
    cut = est.predict(DataLoader(TensorDataset(tensor, tensor[:, 0]), batch_size=6), steps=2)
    assert sum(len(shard["prediction"]) for shard in cut.collect()) == 12
    with pytest.raises(PlanError, match="batch_size"):
        est.predict(DataLoader(TensorDataset(tensor), batch_size=6), batch_size=6)


def test_a_loader_for_two_inputs(spark: SparkSession) -> None:
    tensor = torch.from_numpy(X)
    loader = DataLoader(TensorDataset(tensor, tensor), batch_size=8)
    found = estimator(Pair()).predict(loader).collect()
    np.testing.assert_allclose(np.concatenate([shard["prediction"] for shard in found]), 11 * X, rtol=1e-6)


def test_a_creator_of_the_model_needs_no_training(frame: DataFrame) -> None:
    est = Estimator.from_torch(model=lambda config: linear(3, config["outputs"]), config={"outputs": 2}, seed=4)
    np.testing.assert_allclose(column(est.predict(frame, feature_cols="x")), expected(est.get_model()), atol=1e-6)


# --- the user's own code ---


class Explode(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if (x > 0.9).any():
            raise RuntimeError("boom in forward")
        return x


def test_an_exception_in_forward_comes_with_its_traceback(spark: SparkSession, frame: DataFrame) -> None:
    with pytest.raises(ReplicaFailed, match="boom in forward") as caught:
        estimator(Explode()).predict(X)
    assert "in forward" in caught.value.traceback
    assert isinstance(caught.value.__cause__, RuntimeError)
    big = frame.withColumn("x", F.transform("x", lambda value: value + 1))
    with pytest.raises(ReplicaFailed, match="boom in forward"):  # met by the one row for the schema
        estimator(Explode()).predict(big, feature_cols="x")
    with pytest.raises(Exception, match="boom in forward"):
        estimator(Explode()).predict(frame, feature_cols="x", output_schema="array<float>").collect()
    assert spark.range(10).count() == 10


class Twice(MainCallback):
    def on_pred_forward(self, runner: Any) -> None:
        (x,) = runner.batch
        runner.output = 2 * x


class Noting(Callback):
    """Writes which hooks were called, one letter each."""

    def __init__(self, path: str) -> None:
        self.path = path

    def note(self, letter: str) -> None:
        with open(self.path, "a") as file:
            file.write(letter)

    def before_pred_epoch(self, runner: Any) -> None:
        self.note("(")

    def after_pred_epoch(self, runner: Any) -> None:
        self.note(")")

    def before_pred_iter(self, runner: Any) -> None:
        self.note("<")

    def after_pred_iter(self, runner: Any) -> None:
        assert runner.output.shape == (len(runner.output), 3)
        self.note(">")


def test_callbacks_run_where_rows_are_scored(spark: SparkSession, tmp_path: Any) -> None:
    np.testing.assert_allclose(estimator(Apply()).predict(X, callbacks=[Twice()]), 2 * X, rtol=1e-6)
    path = str(tmp_path / "notes")
    estimator(Apply()).predict(X, batch_size=7, callbacks=[Noting(path)])
    with open(path) as file:
        assert file.read() == "(<><><>)"


class ByName(nn.Module):
    """Two inputs, known by their names."""

    def forward(self, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
        return high.sum(dim=1) - low.sum(dim=1)


def test_a_map_column_is_a_dict_of_inputs(spark: SparkSession) -> None:
    rows = [(i, {"high": [float(i), 1.0], "low": [1.0, float(i % 3)]}) for i in range(6)]
    df = spark.createDataFrame(rows, "id int, both map<string, array<double>>").repartition(3)
    scored = Estimator.from_torch(model=ByName()).predict(df, feature_cols="both").orderBy("id").collect()
    assert [row["prediction"] for row in scored] == [i + 1.0 - 1.0 - i % 3 for i in range(6)]
    assert scored[4]["both"] == rows[4][1]
