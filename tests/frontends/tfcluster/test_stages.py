"""``TFEstimator`` and ``TFModel`` as stages of Spark ML: what is merged, fed, served, saved and loaded."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.feature import SQLTransformer

from firesteel.core.errors import PlanError, SchemaError, UnknownName
from firesteel.tfcluster import (
    HasBatchSize,
    HasSteps,
    InputMode,
    Namespace,
    TFEstimator,
    TFModel,
    TFParams,
    pipeline,
)
from frontends.tfcluster.programs import regress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TESTS = Path(__file__).parents[2]


def test_a_namespace_from_anything() -> None:
    given = {"string": "a", "array": [1, 2], "n": 3}
    made = Namespace(given)
    assert (made.string, "array" in made, "extra" in made) == ("a", True, False)
    assert sorted(made) == ["array", "n", "string"]
    assert made == Namespace(made) == Namespace(argparse.Namespace(**given))
    assert made != Namespace({})
    assert repr(Namespace({"a": 1})) == "Namespace({'a': 1})"
    words = Namespace(["--foo", "1"])
    assert (words.argv, list(words), "--foo" in words, words == ["--foo", "1"]) == (
        ["--foo", "1"],
        ["--foo", "1"],
        True,
        True,
    )
    with pytest.raises(TypeError, match="not 5"):
        Namespace(5)


def test_params_are_merged_and_win() -> None:
    class Stage(TFParams, HasBatchSize, HasSteps):
        def __init__(self, args: Any) -> None:
            super().__init__()
            self.args = args

    merged = Stage(Namespace({"a": 1, "b": 2, "steps": 7})).setBatchSize(10).setSteps(100).merge_args_params()  # type: ignore[attr-defined]
    assert merged == Namespace({"a": 1, "b": 2, "batch_size": 10, "steps": 100})


def test_defaults_setters_and_getters() -> None:
    estimator: Any = TFEstimator(regress, {})
    wanted = {
        "InputMapping": {},
        "ClusterSize": 1,
        "NumPS": 0,
        "DriverPSNodes": False,
        "InputMode": InputMode.SPARK,
        "MasterNode": "chief",
        "Protocol": "grpc",
        "Readers": 1,
        "GraceSecs": 30,
        "Tensorboard": False,
        "ModelDir": None,
        "ExportDir": None,
        "TFRecordDir": None,
        "BatchSize": 100,
        "Epochs": 1,
        "Steps": 1000,
        "FeedTimeout": 600,
        "ReservationTimeout": 600,
    }
    assert {name: getattr(estimator, f"get{name}")() for name in wanted} == wanted
    changed = (
        estimator.setNumPS(2)
        .setDriverPSNodes(True)
        .setTFRecordDir("r")
        .setInputMode(InputMode.SPARK)
        .setMasterNode(None)
    )
    assert changed is estimator
    assert (estimator.getNumPS(), estimator.getTFRecordDir(), estimator.getMasterNode()) == (2, "r", None)
    model: Any = TFModel({})
    served = {"OutputMapping": {}, "SignatureDefKey": None, "TagSet": None, "BatchSize": 100, "ExportDir": None}
    assert {name: getattr(model, f"get{name}")() for name in served} == served
    assert "batch_size" in model.explainParams()
    assert pipeline.TFModel is TFModel
    for wrong in (lambda: estimator.setBatchSize("x"), lambda: model.setInputMapping({1: 2})):
        with pytest.raises(TypeError):
            wrong()


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    """Two features in [0, 1), and 3.14 a + 1.618 b."""
    features = np.random.default_rng(1).random((1000, 2))
    labels = features @ [3.14, 1.618]
    pairs = [(each.tolist(), float(label)) for each, label in zip(features, labels, strict=True)]
    return spark.createDataFrame(pairs, "features array<double>, label double").repartition(4)


def test_a_program_learns_exports_and_serves(spark: SparkSession, rows: DataFrame, tmp_path: Path) -> None:
    export = tmp_path / "export"
    estimator: Any = TFEstimator(regress, {"a": 1}, export_fn=note_arguments)
    estimator.setInputMapping({"label": "y_", "features": "x"}).setClusterSize(2).setBatchSize(1).setExportDir(
        str(export)
    )
    model = estimator.fit(rows)
    assert json.loads((tmp_path / "export.json").read_text()) == [1, 1, 1000]  # our own, and Params
    model.setInputMapping({"features": "features"}).setOutputMapping({"output_0": "prediction"})
    test = spark.createDataFrame([([1.0, 1.0], "kept")], "features array<double>, more string")
    served = model.transform(test)
    assert served.dtypes == [("features", "array<double>"), ("more", "string"), ("prediction", "array<float>")]
    found = served.first()
    assert found is not None
    assert (found.features, found.more) == ([1.0, 1.0], "kept")
    assert found.prediction[0] == pytest.approx(4.758, abs=0.005)

    estimator.write().save(str(tmp_path / "estimator"))
    again = TFEstimator.load(str(tmp_path / "estimator"))
    assert (again.train_fn, again.export_fn, again.args) == (regress, note_arguments, Namespace({"a": 1}))
    assert again.getInputMapping() == {"label": "y_", "features": "x"}
    PipelineModel(stages=[SQLTransformer(statement="select * from __THIS__"), model]).write().save(
        str(tmp_path / "saved")
    )
    shutil.rmtree(export)
    answer = elsewhere(tmp_path / "saved")
    assert answer == [[[1.0, 1.0], "kept", found.prediction]]


def note_arguments(args: Any) -> None:
    Path(f"{args.export_dir}.json").write_text(json.dumps([args.a, args.batch_size, args.steps]))


def elsewhere(path: Path) -> Any:
    """What a saved pipeline makes of the row (1, 1), in a process that has seen nothing of it."""
    program = f"""
import json
from firesteel import init_context
init_context("local", cores=1).setLogLevel("OFF")
from pyspark.ml import PipelineModel
from pyspark.sql import SparkSession
df = SparkSession.builder.getOrCreate().createDataFrame([([1.0, 1.0], "kept")], "features array<double>, more string")
print("FOUND" + json.dumps([list(row) for row in PipelineModel.load({str(path)!r}).transform(df).collect()]))
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.partition("FOUND")[2])


@pytest.fixture(scope="module")
def saved_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Outputs b and a, in an order of their own; an input of bytes; doubles; a scalar for each row."""
    tf: Any = __import__("tensorflow")
    folder = str(tmp_path_factory.mktemp("model") / "saved")

    class Two(tf.Module):  # type: ignore[misc]
        @tf.function(
            input_signature=[tf.TensorSpec((None, 2, 2), tf.float64, "x"), tf.TensorSpec((None,), tf.string, "s")]
        )
        def serve(self, x: Any, s: Any) -> Any:
            return {"b": tf.cast(tf.strings.length(s), tf.int32), "a": 2.0 * x, "text": tf.strings.upper(s)}

    module = Two()
    tf.saved_model.save(module, folder, signatures=module.serve)
    return folder


def served(folder: str) -> Any:
    return (
        TFModel({})
        .setExportDir(folder)
        .setInputMapping({"v": "x", "raw": "s"})
        .setOutputMapping({"b": "count", "a": "twice"})
    )  # type: ignore[attr-defined]


def test_each_output_goes_to_its_own_column(spark: SparkSession, saved_model: str, jobs: Any) -> None:
    exact = 0.1 + 1e-12  # more than 32 bits hold
    df = spark.createDataFrame(
        [([exact, 1.0, 2.0, 3.0], b"ab\xff", 1), ([4.0, 5.0, 6.0, 7.0], b"", 2)], "v array<double>, raw binary, k int"
    ).repartition(2)
    before = jobs()
    out = served(saved_model).setBatchSize(1).transform(df)
    assert jobs() == before  # the signature tells the types
    assert out.dtypes[3:] == [("twice", "array<array<double>>"), ("count", "int")]
    found = sorted(out.collect(), key=lambda row: row.k)
    assert [(row["k"], row["count"]) for row in found] == [(1, 3), (2, 0)]
    assert found[0].twice == [[2 * exact, 2.0], [4.0, 6.0]]
    text = served(saved_model).setOutputMapping({"text": "upper"}).transform(df.where("k = 2")).first()
    assert text is not None
    assert text.upper == ""


def test_what_cannot_be_served_is_refused_with_the_names_there_are(spark: SparkSession, saved_model: str) -> None:
    df = spark.createDataFrame([([1.0] * 4, b"a")], "v array<double>, raw binary")
    model = served(saved_model)
    wrong = [
        (model.copy().setOutputMapping({"b": "raw"}), SchemaError, "'raw' that is there already; there are: v, raw"),
        (model.copy().setOutputMapping({"c": "new"}), UnknownName, "'c'; there are: a, b, text"),
        (model.copy().setInputMapping({"v": "y", "raw": "s"}), UnknownName, "'y'; there are: s, x"),
        (model.copy().setInputMapping({"w": "x"}), SchemaError, "'w' that is not there; there are: v, raw"),
        (model.copy().setInputMapping({"v": "x"}), PlanError, "s"),
        (model.copy().setSignatureDefKey("other"), UnknownName, "serving_default"),
        (model.copy().setTagSet("train"), PlanError, "train"),
        (model.copy().setExportDir("/no/such/folder"), PlanError, "/no/such/folder"),
        (model.copy().setInputMapping({}), PlanError, "setInputMapping"),
        (TFModel({}).setInputMapping({"v": "x"}).setOutputMapping({"a": "b"}), PlanError, "setExportDir"),  # type: ignore[attr-defined]
    ]
    for stage, kind, message in wrong:
        with pytest.raises(kind, match=message):
            stage.transform(df)


def test_a_checkpoint_is_served_by_tensor_names(spark: SparkSession, tmp_path: Path) -> None:
    tf: Any = __import__("tensorflow").compat.v1
    graph = tf.Graph()
    with graph.as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, (None,), name="x")
        scale = tf.get_variable("scale", initializer=3.0, use_resource=False)
        tf.multiply(x, scale, name="y")
        session.run(tf.global_variables_initializer())
        tf.train.Saver().save(session, str(tmp_path / "model" / "ckpt"), global_step=5)
    model: Any = TFModel({}).setModelDir(str(tmp_path / "model")).setInputMapping({"v": "x"})  # type: ignore[attr-defined]
    df = spark.createDataFrame([(2.0,)], "v float")
    assert model.setOutputMapping({"y": "out"}).transform(df).first().out == 6.0
    model.write().save(str(tmp_path / "stage"))
    shutil.rmtree(tmp_path / "model")
    assert TFModel.load(str(tmp_path / "stage")).transform(df).first().out == 6.0
    loaded: Any = TFModel.load(str(tmp_path / "stage"))
    with pytest.raises(UnknownName, match="nope"):
        loaded.setOutputMapping({"nope": "out"}).transform(df)


def test_what_cannot_be_fitted_or_saved_is_refused(
    spark: SparkSession, rows: DataFrame, tmp_path: Path, jobs: Any
) -> None:
    before = jobs()
    wrong = [
        (TFEstimator(regress, {}).setInputMode(InputMode.TENSORFLOW), "InputMode.SPARK"),  # type: ignore[attr-defined]
        (
            TFEstimator(regress, {}).setInputMapping({"nope": "x"}),
            "'nope' that is not there; there are: features, label",
        ),  # type: ignore[attr-defined]
        (TFEstimator(regress, {}, export_fn=note_arguments), "setExportDir"),
        (TFEstimator(regress, {}).setClusterSize(0), "cluster_size"),  # type: ignore[attr-defined]
        (TFEstimator(regress, {}).setNumPS(1).setDriverPSNodes(True).setClusterSize(2), "driver_ps_nodes"),  # type: ignore[attr-defined]
    ]
    for stage, message in wrong:
        with pytest.raises(PlanError, match=message):
            stage.fit(rows)
    with pytest.raises(PlanError, match=r"train_fn .*lambda.* cannot be saved"):
        TFEstimator(lambda args, ctx: None, {}).write().save(str(tmp_path / "a"))
    assert jobs() == before
    with pytest.raises(PlanError, match="'odd'"):  # Spark writes the pipeline's own metadata first
        Pipeline(stages=[TFEstimator(regress, {"odd": object()})]).write().save(str(tmp_path / "b"))
