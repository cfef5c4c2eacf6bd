"""OpenVINO models through the Estimator: every kind of data, the same numbers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pandas as pd
import pytest
from pyspark import SparkContext
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, FloatType, StructType

from firesteel import Estimator, XShards
from firesteel.core.errors import PlanError, SchemaError, UnsupportedError
from frontends import irs

X = np.random.default_rng(0).random((23, 3), dtype=np.float32)
Y = X @ irs.WEIGHT + irs.BIAS
P, Q = (np.random.default_rng(seed).random((6, 2), dtype=np.float32) for seed in (1, 2))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("irs")


@pytest.fixture(scope="module")
def affine(folder: Path) -> Any:
    return Estimator.from_openvino(model_path=irs.affine(folder / "affine.xml"))


@pytest.fixture(scope="module")
def two(folder: Path) -> Any:
    return Estimator.from_openvino(model_path=irs.two(folder / "two.xml"))


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("batch_size", [1, 4, 23, 64])
def test_arrays_whatever_the_batch(affine: Any, batch_size: int) -> None:
    found = affine.predict(X, batch_size=batch_size)
    assert found.shape == (23, 2)
    np.testing.assert_allclose(found, Y, atol=1e-5)


@pytest.mark.usefixtures("spark")
def test_no_rows_are_no_error(affine: Any) -> None:
    assert affine.predict(X[:0]).shape == (0, 2)


def test_shards_frames_and_pandas_agree(spark: SparkSession, affine: Any) -> None:
    cuts = [0, 4, 4, 16, 23]
    parts = [X[begin:end] for begin, end in pairwise(cuts)]
    shards = XShards(spark.sparkContext.parallelize([{"x": part, "tag": n} for n, part in enumerate(parts)], 4))
    scored = affine.predict(shards).collect()
    assert [(set(shard), shard["tag"]) for shard in scored] == [({"x", "tag", "prediction"}, n) for n in range(4)]
    assert [shard["prediction"].shape for shard in scored] == [(4, 2), (0, 2), (12, 2), (7, 2)]
    np.testing.assert_allclose(np.concatenate([shard["prediction"] for shard in scored]), Y, atol=1e-5)

    rows = [(n, row.tolist()) for n, row in enumerate(X)]
    df = spark.createDataFrame(rows, "id int, a array<float>").repartitionByRange(5, "id")
    found = affine.predict(df, feature_cols="a").collect()
    assert [row["id"] for row in found] == list(range(23))
    np.testing.assert_allclose([row["prediction"].toArray() for row in found], Y, atol=1e-5)
    joined = spark.createDataFrame([(*map(float, row),) for row in X], "a float, b float, c float").coalesce(1)
    scored = affine.predict(joined, feature_cols=["a", "b", "c"], output_cols="y").collect()
    np.testing.assert_allclose([row["y"].toArray() for row in scored], Y, atol=1e-5)

    frame = pd.DataFrame({"id": range(23), "a": list(X)})
    pieces = [frame[:9], frame[9:9], frame[9:]]
    scored = affine.predict(XShards(spark.sparkContext.parallelize(pieces, 3)), feature_cols=["a"]).collect()
    assert all(list(piece.columns) == ["id", "a", "prediction"] for piece in scored)
    whole = pd.concat(scored)
    assert list(whole["id"]) == list(range(23))
    np.testing.assert_allclose(np.stack(list(whole["prediction"])), Y, atol=1e-5)
    np.testing.assert_allclose(np.stack(list(affine.predict(frame, feature_cols="a")["prediction"])), Y, atol=1e-5)


def test_an_axis_more_counts_batches(spark: SparkSession, affine: Any) -> None:
    data = np.random.default_rng(3).random((20, 4, 3))
    expected = affine.predict(data.reshape(80, 3))
    found = affine.predict(data)
    assert found.shape == (20, 4, 2)
    np.testing.assert_allclose(found.reshape(80, 2), expected, atol=1e-6)
    shards = affine.predict(XShards.partition({"x": data}, 2)).collect()
    assert [set(shard) for shard in shards] == [{"x", "prediction"}] * 2
    assert [shard["prediction"].shape for shard in shards] == [(10, 4, 2)] * 2
    np.testing.assert_allclose(np.concatenate([shard["prediction"] for shard in shards]), found, atol=1e-6)
    df = spark.createDataFrame([(data[0].tolist(),)], "a array<array<float>>")
    scored = affine.predict(df, feature_cols="a")
    assert scored.schema["prediction"].dataType == ArrayType(ArrayType(FloatType()))
    np.testing.assert_allclose(scored.first()["prediction"], found[0], atol=1e-5)


def test_several_inputs_and_outputs(spark: SparkSession, two: Any) -> None:
    assert (two.inputs, two.outputs) == (["p", "q"], ["difference", "product"])
    difference, product = two.predict([P, Q])
    np.testing.assert_allclose(difference, P - Q, atol=1e-6)
    np.testing.assert_allclose(product, P * Q, atol=1e-6)
    turned = two.predict([P, Q], input_cols=["q", "p"])
    np.testing.assert_allclose(turned[0], Q - P, atol=1e-6)
    np.testing.assert_allclose(turned[1], product, atol=1e-6)
    with pytest.raises(PlanError, match="p, q"):
        two.predict([P, Q], input_cols=["a", "q"])
    with pytest.raises(PlanError, match="p, q"):
        two.predict([P, Q], input_cols="p")

    (shard,) = two.predict(XShards.partition({"x": [P, Q]}, 1)).collect()
    assert isinstance(shard["prediction"], list)
    np.testing.assert_allclose(shard["prediction"][0], difference, atol=1e-6)

    df = spark.createDataFrame(
        [(p.tolist(), q.tolist()) for p, q in zip(P, Q, strict=True)], "p array<float>, q array<float>"
    )
    df = df.coalesce(1)
    scored = two.predict(df, feature_cols=["p", "q"], output_cols=["d", "m"])
    assert scored.columns == ["p", "q", "d", "m"]
    np.testing.assert_allclose([row["d"].toArray() for row in scored.collect()], difference, atol=1e-6)
    scored = two.predict(df, feature_cols=["q", "p"], input_cols=["q", "p"])
    assert isinstance(scored.schema["prediction"].dataType, StructType)
    assert scored.schema["prediction"].dataType.names == ["difference", "product"]
    found = scored.select("prediction.product").collect()
    np.testing.assert_allclose([row["product"].toArray() for row in found], product, atol=1e-6)
    with pytest.raises(SchemaError, match="2"):
        two.predict(df, feature_cols=["p", "q"], output_cols=["d", "m", "x"])
    frame = two.predict(pd.DataFrame({"p": list(P), "q": list(Q)}), feature_cols=["p", "q"])
    np.testing.assert_allclose(frame["prediction"][2]["difference"], difference[2], atol=1e-6)


@pytest.mark.usefixtures("spark")
def test_types_and_fixed_batches(folder: Path, affine: Any) -> None:
    whole = np.arange(69).reshape(23, 3)
    expected = affine.predict(whole.astype(np.float32))
    for dtype in (np.float64, np.int64):
        np.testing.assert_array_equal(affine.predict(whole.astype(dtype)), expected)
    for make in (lambda path: irs.affine(path, 4), irs.stubborn):
        fixed = Estimator.from_openvino(model_path=make(folder / "fixed.xml"))
        np.testing.assert_allclose(fixed.predict(X, batch_size=7), affine.predict(X), atol=1e-6)


def test_lazy_with_a_schema_and_compiled_once(spark: SparkSession, affine: Any, jobs: Callable[[], int]) -> None:
    rows = [(n, row.tolist()) for n, row in enumerate(X)]
    df = spark.createDataFrame(rows, "id int, a array<float>").repartition(12)
    before = jobs()
    scored = affine.predict(df, feature_cols="a", batch_size=2)
    assert scored.columns == ["id", "a", "prediction"]
    assert isinstance(scored.schema["prediction"].dataType, VectorUDT)
    assert jobs() == before
    count_before = dict(compilations(spark))
    assert scored.count() == 23
    assert len(scored.select("prediction").collect()) == 23
    for pid, count in compilations(spark):
        assert count - count_before.get(pid, 0) <= 1


def compilations(spark: SparkSession) -> list[tuple[int, int]]:
    """How many models each Python worker has compiled until now."""

    def look(_: Iterator[int]) -> Iterator[tuple[int, int]]:
        from firesteel.frameworks.openvino.replica import compiled

        yield os.getpid(), compiled.cache_info().misses

    return spark.sparkContext.parallelize(range(12), 12).mapPartitions(look).distinct().collect()


def test_old_and_new_properties(spark: SparkSession, affine: Any) -> None:
    with pytest.warns(FutureWarning) as told:
        found = affine.predict(X, config={"CPU_THREADS_NUM": "1", "CPU_BIND_THREAD": "YES"})
    assert ["INFERENCE_NUM_THREADS" in str(each.message) for each in told] == [True, False]
    np.testing.assert_allclose(found, Y, atol=1e-5)
    import openvino.properties.hint as hints

    for config in ({"PERFORMANCE_HINT": "LATENCY"}, {hints.inference_precision: ov.Type.f32}):
        np.testing.assert_allclose(affine.predict(X, config=config), Y, atol=1e-5)
    with pytest.raises(PlanError, match="NO_SUCH"):
        affine.predict(X, config={"NO_SUCH": 1})


def test_it_only_predicts(affine: Any) -> None:
    for name in ("fit", "evaluate", "save", "set_tensorboard", "get_train_summary", "get_validation_summary"):
        with pytest.raises(UnsupportedError, match="OpenVINO models only predict"):
            getattr(affine, name)(X)
    with affine:
        assert affine.get_model().inputs[0].get_any_name() == "a"
    affine.shutdown()


def test_models_are_files_that_exist(tmp_path: Path, folder: Path) -> None:
    path = irs.affine(tmp_path / "m.xml")
    (tmp_path / "m.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"m\.bin"):
        Estimator.from_openvino(model_path=path)
    with pytest.raises(FileNotFoundError, match=r"none\.xml"):
        Estimator.from_openvino(model_path=str(tmp_path / "none.xml"))
    with pytest.raises(PlanError, match=r"\.xml or an \.onnx"):
        Estimator.from_openvino(model_path=str(tmp_path / "m.pb"))
    (tmp_path / "m.xml").write_text("no xml")
    (tmp_path / "m.bin").touch()
    with pytest.raises(PlanError, match=r"m\.xml is no model"):
        Estimator.from_openvino(model_path=path)
    est = Estimator.from_openvino(model_path=irs.affine(tmp_path / "other.xml"))
    est.load(irs.two(tmp_path / "two.xml"))
    assert est.inputs == ["p", "q"]


def test_wrong_data_is_said_before_a_job(spark: SparkSession, affine: Any, two: Any, jobs: Callable[[], int]) -> None:
    df = spark.createDataFrame([(1, [1.0], "s")], "id int, a array<float>, s string")
    before = jobs()
    for wrong in ("path", {"x": X}, (X,), lambda config: X):
        with pytest.raises(UnsupportedError, match=rf"{type(wrong).__name__}.*ndarray, a list.*XShards.*DataFrame"):
            affine.predict(wrong)
    with pytest.raises(PlanError, match="same size in first dimension"):
        two.predict([P, Q[:3]])
    with pytest.raises(SchemaError, match="takes 2 inputs"):
        two.predict([P])
    with pytest.raises(SchemaError, match=r"\(rows, 3\).*\(23, 4\)"):
        affine.predict(np.zeros((23, 4)))
    with pytest.raises(SchemaError, match=r"\(rows, 3\).*\(3\)"):
        affine.predict(np.zeros(3))
    for values in (np.array([["a", "b", "c"]]), np.array([[1, 2, None]])):
        with pytest.raises(SchemaError, match="dtype"):
            affine.predict(values)
    with pytest.raises(SchemaError, match="feature columns is None"):
        affine.predict(df)
    with pytest.raises(SchemaError, match="'no'"):
        affine.predict(df, feature_cols="no")
    with pytest.raises(SchemaError, match=r"'a'.*\(rows, 3\).*\(\?\)"):
        affine.predict(df, feature_cols="id")
    with pytest.raises(SchemaError, match="string"):
        affine.predict(df, feature_cols="s")
    with pytest.raises(PlanError, match="batch_size"):
        affine.predict(X, batch_size=0)
    with pytest.raises(PlanError, match="output_cols"):
        affine.predict(X, output_cols="y")
    assert jobs() == before


@pytest.mark.parametrize(
    ("shard", "words"),
    [
        ({"x": "text"}, "ndarrays.*str"),
        ({"x": 3}, "ndarrays.*int"),
        ({"x": {"a": X}}, "a dict with a"),
        ({"y": X, "z": X}, "'x'.*y, z"),
        ({"x": X[:, :2]}, r"\(rows, 3\).*\(23, 2\)"),
    ],
)
def test_wrong_shards_are_said_by_the_first_one(sc: SparkContext, affine: Any, shard: Any, words: str) -> None:
    with pytest.raises(SchemaError, match=words):
        affine.predict(XShards(sc.parallelize([shard], 1)))


EXECUTORS = """
import json, sys
import numpy as np
from pyspark.sql import SparkSession
from firesteel import Estimator, XShards, init_context, stop_context

context = init_context("local", cores=1, num_nodes=2, conf={"spark.ui.enabled": "false"})
context.setLogLevel("WARN")
spark = SparkSession.builder.getOrCreate()
est = Estimator.from_openvino(model_path=sys.argv[1])
x = np.random.default_rng(0).random((8, int(sys.argv[2])), dtype=np.float32)
rows = [(n, row.tolist()) for n, row in enumerate(x)]
df = spark.createDataFrame(rows, "id int, a array<float>").repartitionByRange(4, "id")
found = est.predict(df, feature_cols="a").collect()
shards = est.predict(XShards.partition({"x": x}, 2))
error = max(float(abs(row["prediction"].toArray() - 2 * x[row["id"]]).max()) for row in found)
parts = np.concatenate([shard["prediction"] for shard in shards.collect()])
print(json.dumps({"rows": len(found), "error": error, "shards": float(abs(parts - 2 * x).max())}))
stop_context()
"""


@pytest.mark.timeout(300)
def test_a_large_model_does_not_travel_with_each_task(tmp_path: Path) -> None:
    path = irs.wide(tmp_path / "wide.xml", 1700)
    assert os.path.getsize(tmp_path / "wide.bin") > 10_000_000
    environment = {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    done = subprocess.run(
        [sys.executable, "-c", EXECUTORS, path, "1700"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["rows"] == 8
    assert max(found["error"], found["shards"]) < 1e-5
    # Spark's own warning, above 1000 KiB a task. (The rows themselves are some 70 KB each.)
    assert "very large size" not in done.stderr, done.stderr[-4000:]
