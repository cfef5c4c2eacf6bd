"""``DLEstimator`` and ``DLModel``: what is learnt, how it transforms, what Spark ML does with it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.ml.tuning import CrossValidator, CrossValidatorModel, ParamGridBuilder, TrainValidationSplit
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, DoubleType, FloatType
from torch import nn

from firesteel.core import registry
from firesteel.core.errors import CheckpointError, PlanError, ReplicaFailed, SchemaError, UnknownName, UnsupportedError
from firesteel.pipeline import DLEstimator, DLModel, load_model
from frontends.stages import Net, TwoByTwo, both, make_keras, make_net, squared

keras: Any = __import__("keras")

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras with NumPy 2.4

RNG = np.random.default_rng(3)
X = np.concatenate([RNG.normal(0, 1, (40, 3)), RNG.normal(3, 1, (40, 3))])
Y = np.repeat([0.0, 1.0], 40)


def torch_line(weight: float = 1.0) -> nn.Module:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, weight)
    return model


def keras_line(weight: float = 1.0) -> Any:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.set_weights([np.full((1, 1), weight)])
    return model


LINES: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "torch": (torch_line, {"loss": nn.MSELoss(), "optimizer": torch.optim.SGD}),
    "keras": (keras_line, {"loss": "mse", "optimizer": "sgd"}),
}


def weight_of(model: Any) -> float:
    return float(model.weight.item() if isinstance(model, nn.Module) else model.get_weights()[0][0, 0])


@pytest.fixture(scope="module")
def classes(spark: SparkSession) -> DataFrame:
    rows = [(i, Vectors.dense(x.tolist()), float(y)) for i, (x, y) in enumerate(zip(X, Y, strict=True))]
    df = spark.createDataFrame(rows, ["id", "features", "label"]).repartition(2).cache()
    df.count()
    return df


def in_partitions(spark: SparkSession, parts: list[list[Any]], schema: str) -> DataFrame:
    """A DataFrame with exactly these partitions."""
    rdd = spark.sparkContext.parallelize(range(len(parts)), len(parts))
    return spark.createDataFrame(rdd.flatMap(lambda place: parts[place]), schema)


@pytest.mark.parametrize("name", LINES)
def test_two_replicas_make_the_steps_of_one(spark: SparkSession, name: str) -> None:
    make, parts = LINES[name]
    given = make()
    df = in_partitions(spark, [[(0.0, 0.0), (0.0, 0.0)], [(1.0, 0.0), (1.0, 0.0)]], "features double, label double")
    estimator = DLEstimator(given, **parts, learningRate=0.5, batchSize=4, epochs=2, numReplicas=2)
    model = estimator.fit(df)
    # w ← w − 0.5 · mean(2·w·x²): half of it is left after each step.
    assert weight_of(model.model) == pytest.approx(0.25, abs=1e-6)
    assert weight_of(given) == 1.0, "the model passed in was changed"
    assert list(model.history) == ["loss"]
    assert model.history["loss"] == pytest.approx([0.5, 0.125])
    assert model.summary.objectiveHistory == model.history["loss"]


@pytest.mark.parametrize("name", LINES)
def test_uneven_partitions_make_no_difference(spark: SparkSession, name: str) -> None:
    make, parts = LINES[name]
    values = RNG.normal(size=10).tolist()
    rows = [(x, 3 * x) for x in values]
    df = in_partitions(spark, [rows[:7], [], rows[7:9], rows[9:]], "features double, label double")
    found = []
    for replicas in (1, 2):
        stage = DLEstimator(make(), **parts, learningRate=0.1, batchSize=10, epochs=3, numReplicas=replicas, seed=4)
        model = stage.fit(df)
        assert len(model.history["loss"]) == 3
        found.append(weight_of(model.model))
    assert found[0] == pytest.approx(found[1], abs=1e-5)


@pytest.mark.parametrize("sync", ["hogwild", "locked", "sharded"])
def test_other_syncs_learn_the_same_line(spark: SparkSession, sync: str) -> None:
    df = in_partitions(spark, [[(1.0, 3.0)] * 20, [(1.0, 3.0)] * 20], "features double, label double")
    stage = DLEstimator(
        torch_line(0.0),
        loss="MSELoss",
        optimizer="SGD",
        learningRate=0.1,
        batchSize=4,
        epochs=5,
        numReplicas=2,
        sync=sync,
    )
    model = stage.setStaleness(2).fit(df)
    assert weight_of(model.model) == pytest.approx(3.0, abs=0.01)
    assert model.history["loss"][-1] < model.history["loss"][0]


def new_process(code: str, tmp_path: Path) -> None:
    """Run code in a Python of its own, which has the tests' modules on its path."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(code))
    here = os.path.dirname(os.path.dirname(__file__))
    path = os.pathsep.join([here, *(p for p in sys.path if p)])
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]


class Hidden(nn.Module):
    """Local to the test's process, as far as another one can tell."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.scale = torch.tensor([2.0, 1.0])

    def forward(self, x: Any) -> Any:
        return self.layer(x) * self.scale


Hidden.__module__ = "__main__"


def test_transform_and_a_new_process_give_the_frameworks_own_numbers(
    spark: SparkSession, classes: DataFrame, tmp_path: Path, jobs: Callable[[], int]
) -> None:
    torch.manual_seed(1)
    in_order = classes.orderBy("id").coalesce(1).cache()  # bits depend on which rows make a call together
    in_order.count()
    stages: dict[str, tuple[Any, dict[str, Any]]] = {
        "object": (nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2)), {}),
        "path": ("frontends.stages:make_net", {"config": {"width": 6}}),
        "graph": (Hidden(), {}),
        "keras": (make_keras({"width": 4}), {}),
    }
    for name, (model, options) in stages.items():
        wrapped = DLModel(model, **options, inferenceBatchSize=7)
        before = jobs()
        out = wrapped.transform(in_order)
        assert out.columns == ["id", "features", "label", "prediction"]
        assert isinstance(out.schema["prediction"].dataType, VectorUDT)
        assert jobs() - before <= 1, "more than a look at one row"
        rows = sorted(out.collect(), key=lambda row: row.id)
        found = np.array([row.prediction.toArray() for row in rows])
        own = wrapped.model
        with torch.inference_mode():
            values = X.astype(np.float32)
            wanted = (
                own.eval()(torch.from_numpy(values)).numpy()
                if isinstance(own, nn.Module)
                else own.predict(values, verbose=0)
            )
        np.testing.assert_allclose(found, wanted, atol=1e-5, err_msg=name)
        folder = tmp_path / name
        PipelineModel([wrapped.copy()]).write().overwrite().save(str(folder))
        np.save(tmp_path / f"{name}.npy", found)
        stored = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.suffix != ".keras")
        assert b"sklearn" not in stored
        assert not any(path.suffix in (".pkl", ".pt") for path in folder.rglob("*"))
    new_process(
        f"""
        import numpy as np
        from pyspark.ml import PipelineModel
        from pyspark.ml.linalg import Vectors
        from firesteel import init_context, stop_context
        from pyspark.sql import SparkSession

        init_context("local", cores=2)
        spark = SparkSession.builder.getOrCreate()
        x = np.array({X.tolist()})
        df = spark.createDataFrame([(i, Vectors.dense(r.tolist())) for i, r in enumerate(x)], ["id", "features"])
        df = df.orderBy("id").coalesce(1)
        for name in {list(stages)!r}:
            model = PipelineModel.load({str(tmp_path)!r} + "/" + name)
            rows = sorted(model.transform(df).collect(), key=lambda row: row.id)
            found = np.array([row.prediction.toArray() for row in rows])
            assert np.array_equal(found, np.load({str(tmp_path)!r} + "/" + name + ".npy")), name
        stop_context()
        """,
        tmp_path,
    )
    judge = DLModel(Hidden(), task="multiclass", fromLogits=True, device="cpu")
    with pytest.raises(PlanError, match="has not been fitted or transformed with"):
        judge.save(str(tmp_path / "judge"))
    wanted = [row.prediction for row in judge.transform(in_order).collect()]  # columns known without a look at a row
    judge.save(str(tmp_path / "judge"))
    assert [row.prediction for row in DLModel.load(str(tmp_path / "judge")).transform(in_order).collect()] == wanted
    graph = PipelineModel.load(str(tmp_path / "graph")).stages[0]
    with pytest.raises(UnsupportedError, match="saved as a graph"):
        graph.model  # noqa: B018
    (place,) = (tmp_path / "graph" / "stages").iterdir()
    given = DLModel.load(str(place), model=lambda config: Hidden())
    assert isinstance(given.model, Hidden)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # it is what we are to read
def test_models_of_other_formats_become_stages_in_one_call(
    spark: SparkSession, classes: DataFrame, tmp_path: Path
) -> None:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).eval()
    example = torch.zeros(2, 3)
    rows = {0: torch.export.Dim("rows")}
    torch.export.save(torch.export.export(model, (example,), dynamic_shapes=(rows,)), tmp_path / "model.pt2")
    torch.jit.save(torch.jit.trace(model, example), tmp_path / "model.pt")
    bench: Any = registry.framework("torch")
    (tmp_path / "model.onnx").write_bytes(bench.to_onnx(model, {"x0": example.numpy()}))
    own = make_keras({"width": 4})
    own.save(tmp_path / "model.keras")
    values = X.astype(np.float32)
    wanted = {".keras": own.predict(values, verbose=0)}
    for ending in (".pt2", ".pt", ".onnx", ".keras"):
        shapes = [(3,)] if ending == ".pt" else None  # TorchScript does not say it
        stage = load_model(str(tmp_path / f"model{ending}"), shapes=shapes, predictionCol="out")
        PipelineModel([stage]).write().overwrite().save(str(tmp_path / "stage"))
        for each in (stage, PipelineModel.load(str(tmp_path / "stage"))):
            out = each.transform(classes)
            found = np.array([row.out.toArray() for row in sorted(out.collect(), key=lambda row: row.id)])
            right = wanted.get(ending, model(torch.from_numpy(values)).detach().numpy())
            np.testing.assert_allclose(found, right, atol=1e-5, err_msg=ending)
    with pytest.raises(UnsupportedError, match="only predicts"):
        DLEstimator(load_model(str(tmp_path / "model.onnx")).model, loss=nn.MSELoss()).fit(classes)
    with pytest.raises(UnknownName, match=r"'\.h5'; there are: \.keras, \.onnx"):
        load_model("model.h5")
    with pytest.raises(PlanError, match="no model at"):
        load_model(str(tmp_path / "nowhere.onnx"))
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    with pytest.raises(PlanError, match="is no TorchScript"):
        load_model(str(tmp_path / "weights.pt"), shapes=[(3,)])
    with pytest.raises(PlanError, match="pass shapes="):
        load_model(str(tmp_path / "model.pt"))


def test_tasks_and_their_columns(spark: SparkSession) -> None:
    df = spark.createDataFrame([(0, [0.0, 2.0, -1.0]), (1, [3.0, 0.0, 1.0])], "id long, features array<double>")
    same = nn.Identity()
    logits = np.array([[0.0, 2.0, -1.0], [3.0, 0.0, 1.0]])
    softmax = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    many = DLModel(same, task="multiclass", fromLogits=True, rawPredictionCol="raw", probabilityCol="p").transform(df)
    assert many.columns == ["id", "features", "raw", "p", "prediction"]
    rows = sorted(many.collect(), key=lambda row: row.id)
    assert [row.prediction for row in rows] == [1.0, 0.0]
    np.testing.assert_allclose([row.p.toArray() for row in rows], softmax, atol=1e-6)
    np.testing.assert_allclose([row.raw.toArray() for row in rows], logits)
    one = spark.createDataFrame([(0, [0.2]), (1, [0.6]), (2, [0.4])], "id long, features array<double>")
    two = DLModel(same, task="binary", threshold=0.4, probabilityCol="p").transform(one)
    rows = sorted(two.collect(), key=lambda row: row.id)
    assert [row.prediction for row in rows] == [0.0, 1.0, 1.0]
    np.testing.assert_allclose([row.p.toArray() for row in rows], [[0.8, 0.2], [0.4, 0.6], [0.6, 0.4]], atol=1e-6)
    number = DLModel(same).transform(one)
    assert number.schema["prediction"].dataType == DoubleType()
    array = DLModel(nn.Unflatten(1, (3, 1)), outputType="array").transform(df)
    assert array.schema["prediction"].dataType == ArrayType(ArrayType(FloatType(), False), False)
    assert array.orderBy("id").first().prediction == [[0.0], [2.0], [-1.0]]
    wanted = {"raw": PlanError, "binary": PlanError}
    for task, error in wanted.items():
        with pytest.raises(error):
            DLModel(same, task=task, outputType="array", probabilityCol="p").transform(df)
    with pytest.raises(SchemaError, match="'id' already"):
        DLModel(same, predictionCol="id").transform(df)
    with pytest.raises(SchemaError, match=r"no feature column 'nothing'.*id, features"):
        DLModel(same, featuresCol="nothing").transform(df)


def test_two_inputs_and_two_outputs(spark: SparkSession) -> None:
    rows = [([1.0, float(i % 3)], float(i % 2), float(i % 3), [float(i % 2), 0.0, 1.0 * (i % 2)]) for i in range(24)]
    df = spark.createDataFrame(rows, "a array<double>, b double, y double, z array<double>").coalesce(1)
    model = keras.Model(
        inputs := [keras.Input((2,)), keras.Input((1,))],
        [keras.layers.Dense(1, use_bias=False)(inputs[0]), keras.layers.Dense(3, use_bias=False)(inputs[1])],
    )
    stages = {
        "torch": DLEstimator(TwoByTwo(), loss=both, optimizer="Adam"),
        "keras": DLEstimator(model, loss=["mse", "mse"]),
    }
    for name, stage in stages.items():
        stage.setParams(
            inputCols=["a", "b"], labelCols=["y", "z"], outputCols=["p", "q"], learningRate=0.1, batchSize=4, epochs=20
        )
        out = stage.fit(df).transform(df)
        assert isinstance(out.schema["p"].dataType, DoubleType)
        assert isinstance(out.schema["q"].dataType, VectorUDT)
        for row in out.collect():
            assert row.p == pytest.approx(row.y, abs=0.2), name
            np.testing.assert_allclose(row.q.toArray(), row.z, atol=0.2, err_msg=name)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # PySpark leaves its thread pool open
def test_a_pipeline_is_tuned_by_a_cross_validator(spark: SparkSession, tmp_path: Path) -> None:
    rows = [(*map(float, x), float(y)) for x, y in zip(X, Y, strict=True)]
    df = spark.createDataFrame(rows, ["a", "b", "c", "label"]).repartition(2, "a").cache()
    stage = DLEstimator(
        make_net, config={"width": 16}, loss=nn.CrossEntropyLoss(), optimizer="Adam",
        batchSize=16, epochs=5, task="multiclass", fromLogits=True, probabilityCol="probability", seed=2,
    )  # fmt: skip
    pipeline = Pipeline(stages=[VectorAssembler(inputCols=["a", "b", "c"], outputCol="features"), stage])
    grid = ParamGridBuilder().addGrid(stage.learningRate, [1e-6, 0.05]).build()
    accuracy = MulticlassClassificationEvaluator(metricName="accuracy")
    tuner = CrossValidator(
        estimator=pipeline, estimatorParamMaps=grid, evaluator=accuracy, numFolds=2, seed=1, parallelism=2
    )
    tuned = tuner.fit(df)
    assert len(tuned.avgMetrics) == 2
    assert tuned.avgMetrics[1] > max(0.9, tuned.avgMetrics[0])
    assert tuned.bestModel.stages[1].getOrDefault("task") == "multiclass"
    assert stage.getLearningRate() is None
    assert stage.copy({stage.epochs: 9}).getEpochs() == 9
    assert stage.getEpochs() == 5
    scored = tuned.transform(df)
    assert accuracy.evaluate(scored) > 0.9
    assert accuracy.copy({accuracy.metricName: "logLoss"}).evaluate(scored) < 0.4
    tuned.write().overwrite().save(str(tmp_path / "tuned"))
    again = CrossValidatorModel.load(str(tmp_path / "tuned"))
    assert again.avgMetrics == tuned.avgMetrics
    assert [r.prediction for r in again.transform(df).collect()] == [r.prediction for r in scored.collect()]
    pipeline.save(str(tmp_path / "untrained"))
    loaded = Pipeline.load(str(tmp_path / "untrained")).getStages()[1]
    assert loaded.uid == stage.uid
    assert loaded.explainParams() == stage.explainParams()
    assert isinstance(loaded._parts["loss"], nn.CrossEntropyLoss)
    split = TrainValidationSplit(
        estimator=Pipeline(stages=[pipeline.getStages()[0], loaded]),
        estimatorParamMaps=[{loaded.learningRate: 0.05}], evaluator=accuracy, seed=1,
    )  # fmt: skip
    assert split.fit(df).validationMetrics[0] > 0.9


def test_rows_are_held_out_and_training_stops_early(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.createDataFrame(
        [(1.0, float(i), i % 5 == 0) for i in range(100)], "features double, label double, held boolean"
    )
    stage = DLEstimator(torch_line(0.0), loss=squared, optimizer="SGD", learningRate=0.1, batchSize=80, metrics=["mae"])
    model = stage.copy({stage.validationFraction: 0.2, stage.epochs: 2}).fit(df)
    assert set(model.history) == {"loss", "val_loss", "mae", "val_mae"}
    # With 80 rows there is one step of all of them to an epoch, and its gradient is −2 · mean of the labels.
    held = df.filter("held")
    marked = stage.copy({stage.validationIndicatorCol: "held", stage.epochs: 1}).fit(df)
    mean = df.filter("not held").agg({"label": "avg"}).first()[0]
    assert weight_of(marked.model) == pytest.approx(0.2 * mean, rel=1e-4)
    wanted = np.mean([(0.2 * mean - row.label) ** 2 for row in held.collect()])
    assert marked.history["val_loss"] == pytest.approx([wanted], rel=1e-3)
    # Labels of the held out rows go another way: the more is learnt, the worse it gets.
    away = df.selectExpr("features", "if(held, -100.0, 100.0D) label", "held")
    params = {stage.validationIndicatorCol: "held", stage.epochs: 20, stage.learningRate: 0.01}
    params[stage.earlyStoppingPatience] = 1
    stopped = stage.copy(params).fit(away)
    assert len(stopped.history["loss"]) == 2
    assert weight_of(stopped.model) == pytest.approx(2.0, abs=1e-4), "not the best epoch's weights"


def test_an_interrupted_fit_goes_on_from_its_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.createDataFrame([(1.0, 5.0)] * 4, "features double, label double").coalesce(1)
    options = {"learningRate": 0.1, "batchSize": 4, "seed": 1, "optimizer": "SGD", "loss": nn.MSELoss()}
    straight = DLEstimator(torch_line(0.0), **options, epochs=4).fit(df)
    flag = tmp_path / "flag"

    def failing(output: Any, target: Any) -> Any:
        if output.mean() > 1.5 and not flag.exists():  # in the third epoch, the first time
            flag.touch()
            raise RuntimeError("interrupted")
        return nn.functional.mse_loss(output, target)

    stage = DLEstimator(torch_line(0.0), **{**options, "loss": failing}, epochs=4, checkpointDir=str(tmp_path / "kept"))
    with pytest.raises(ReplicaFailed, match="interrupted") as caught:
        stage.fit(df)
    assert (caught.value.rank, caught.value.kind) == (0, "user")
    assert "in failing" in caught.value.traceback
    went_on = stage.fit(df)
    assert weight_of(went_on.model) == pytest.approx(weight_of(straight.model), abs=1e-6)
    assert len(went_on.history["loss"]) == 2, "the first two epochs were done again"
    longer = stage.copy({stage.epochs: 6}).fit(df)
    assert len(longer.history["loss"]) == 4
    assert weight_of(longer.model) > weight_of(straight.model)
    afresh = stage.fit(df)  # the same once more is another fit
    assert weight_of(afresh.model) == pytest.approx(weight_of(straight.model), abs=1e-6)
    assert len(afresh.history["loss"]) == 4


def test_what_makes_no_sense_is_said_before_a_job_starts(
    spark: SparkSession, classes: DataFrame, jobs: Callable[[], int], tmp_path: Path
) -> None:
    def dl(model: Any = None, **options: Any) -> DLEstimator:
        return DLEstimator(model or Net(2), **{"loss": nn.CrossEntropyLoss(), "optimizer": "Adam", **options})

    def fit(**options: Any) -> Any:
        return dl(**options).fit(classes)

    nowhere = str(tmp_path / "x")
    cases: list[tuple[type[Exception], str, Callable[[], Any]]] = [
        (UnknownName, "unknown Param of DLEstimator 'batchsize'; there are: .*batchSize", lambda: dl(batchsize=3)),
        (UnknownName, "unknown sync 'ring'; there are: allreduce, hogwild, locked, sharded", lambda: dl(sync="ring")),
        (UnknownName, "unknown task", lambda: dl(task="regression")),
        (UnknownName, "unknown loss 'Squared'", lambda: fit(loss="Squared")),
        (UnknownName, "unknown optimizer 'adam2'", lambda: fit(optimizer="adam2")),
        (UnknownName, "unknown metric 'f2'", lambda: fit(metrics=["f2"])),
        (PlanError, "needs a loss", lambda: fit(loss=None)),
        (SchemaError, "no label column 'y'.*id, features, label", lambda: fit(labelCol="y")),
        (PlanError, "batchSize must be at least 1", lambda: fit(batchSize=0)),
        (PlanError, "not by both", lambda: fit(validationFraction=0.1, validationIndicatorCol="v")),
        (PlanError, "watches 'val_loss'", lambda: fit(earlyStoppingPatience=1)),
        (PlanError, "neither a torch module nor", lambda: fit(model=lambda config: 3)),
        (PlanError, "package.module:function", lambda: dl("make_net")),
        (PlanError, "JSON values", lambda: dl(make_net, config={"width": object()})),
        (PlanError, "move it into a module", lambda: dl(lambda config: Net(2)).save(nowhere)),
        (PlanError, "optimizer.*move it into a module", lambda: dl(optimizer=lambda p: None).save(nowhere)),
        (TypeError, "batchSize", lambda: dl(batchSize="many")),
    ]
    before = jobs()
    for error, words, act in cases:
        with pytest.raises(error, match=words):
            act()
    assert jobs() == before
    assert not (tmp_path / "x").exists()
    DLModel(Net(2)).save(str(tmp_path / "model"))
    with pytest.raises(
        CheckpointError, match=r"holds a firesteel\.pipeline\.DLModel, not a firesteel\.pipeline\.DLEstimator"
    ):
        DLEstimator.load(str(tmp_path / "model"))
    with pytest.raises(CheckpointError, match="no saved stage"):
        DLModel.load(str(tmp_path / "nowhere"))
    (tmp_path / "model" / "weights.safetensors").write_bytes(b"x")
    for crc in (tmp_path / "model").glob(".*.crc"):
        crc.unlink()
    with pytest.raises(CheckpointError, match=r"damaged: weights\.safetensors"):
        DLModel.load(str(tmp_path / "model"))
    with pytest.raises(Exception, match="already exists"):
        DLModel(Net(2)).save(str(tmp_path / "model"))
    DLModel(Net(2)).write().overwrite().save(str(tmp_path / "model"))
    text = next((tmp_path / "model" / "metadata").glob("part-*"))
    text.write_text(text.read_text().replace('"format":1', '"format":99'))
    next((tmp_path / "model" / "metadata").glob(".part-*")).unlink()
    with pytest.raises(CheckpointError, match="newer version"):
        DLModel.load(str(tmp_path / "model"))


def test_a_keras_loss_of_ones_own_is_trained_by_and_not_needed_to_load(spark: SparkSession, tmp_path: Path) -> None:
    def own(y: Any, found: Any) -> Any:
        return keras.ops.mean(keras.ops.square(y - found))

    df = spark.createDataFrame([(Vectors.dense([1.0]), 2.0)] * 8, ["features", "label"])
    compiled = keras_line()
    compiled.compile("sgd", own)
    for stage in (DLEstimator(keras_line(), loss=own, optimizer="sgd"), DLEstimator(compiled)):
        model = stage.fit(df)
        path = str(tmp_path / stage.uid)
        model.write().save(path)
        loaded = DLModel.load(path).transform(df).first()
        assert loaded.prediction == model.transform(df).first().prediction
        assert loaded.prediction != 1.0  # it has learnt
