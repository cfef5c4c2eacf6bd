"""``Estimator.from_bigdl`` and BigDL's own ``Optimizer``, as their users see them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from firesteel import Estimator, XShards
from firesteel.bigdl.feature.common import ChainedPreprocessing, ScalarToTensor, SeqToMultipleTensors, SeqToTensor
from firesteel.bigdl.nn import layer
from firesteel.bigdl.nn.criterion import (
    AbsCriterion,
    ClassNLLCriterion,
    CrossEntropyCriterion,
    MSECriterion,
    MultiCriterion,
    ParallelCriterion,
)
from firesteel.bigdl.nn.layer import (
    CAddTable,
    ConcatTable,
    Dropout,
    Identity,
    Input,
    JoinTable,
    L1Penalty,
    Linear,
    LogSoftMax,
    Model,
    ParallelTable,
    Reshape,
    Sequential,
    Tanh,
)
from firesteel.bigdl.optim.optimizer import MAE as MeanAbsoluteError
from firesteel.bigdl.optim.optimizer import (
    NDCG,
    SGD,
    Adam,
    EveryEpoch,
    HitRatio,
    L1Regularizer,
    L2Regularizer,
    Loss,
    MaxEpoch,
    MaxIteration,
    MaxScore,
    MinLoss,
    Optimizer,
    OptimMethod,
    Plateau,
    Poly,
    SequentialSchedule,
    SeveralIteration,
    Step,
    Top1Accuracy,
    Top5Accuracy,
    TrainSummary,
    TriggerOr,
    ValidationSummary,
    Warmup,
)
from firesteel.bigdl.util.common import JTensor, Sample
from firesteel.core.errors import CheckpointError, PlanError, SchemaError, UnknownName, UnsupportedError
from firesteel.learn.bigdl import Estimator as LearnEstimator
from firesteel.learn.metrics import MAE, Accuracy

pytestmark = pytest.mark.usefixtures("spark")

ROWS = [
    ((2.0, 1.0), (1.0, 2.0)),
    ((1.0, 2.0), (2.0, 1.0)),
    ((2.0, 1.0), (1.0, 2.0)),
    ((1.0, 2.0), (2.0, 1.0)),
]


def pairs(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(ROWS, "features array<double>, label array<double>").repartition(2)


def linear(inputs: int = 2, outputs: int = 1, bias: bool = True, **options: Any) -> Linear:
    """A layer whose weights are 1, 2, 3, … tenths."""
    layer = Linear(inputs, outputs, bias, **options)
    count = inputs * outputs
    weights = [np.arange(1, count + 1).reshape(outputs, inputs) / 10]
    layer.set_weights([*weights, np.zeros(outputs)] if bias else weights)
    return layer


def plane(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """x standard normal, and y = 2x₁ + 3x₂."""
    x = np.random.default_rng(seed).standard_normal((rows, 2)).astype(np.float32)
    return x, (x @ [2.0, 3.0]).astype(np.float32)


def samples(sc: SparkContext, x: np.ndarray, y: np.ndarray, partitions: int = 2) -> Any:
    return sc.parallelize([Sample.from_ndarray(*row) for row in zip(x, y, strict=True)], partitions)


# --- from_bigdl -------------------------------------------------------------------------------------------------------


def test_the_documents_snippet(spark: SparkSession, tmp_path: Path) -> None:
    """Orca's section 5, its imports aside."""
    pairs(spark).write.parquet(str(tmp_path / "data.parquet"))
    df = spark.read.parquet(str(tmp_path / "data.parquet"))
    linear_model = Sequential().add(Linear(2, 2))
    mse_criterion = MSECriterion()
    est = LearnEstimator.from_bigdl(model=linear_model, loss=mse_criterion, optimizer=Adam())
    est.fit(df, 1, batch_size=4)
    result_df = est.predict(df)
    assert result_df.schema["prediction"].dataType.simpleString() == "array<float>"
    rows = result_df.collect()
    expected = linear_model.forward(np.array([row.features for row in rows]))
    np.testing.assert_allclose([row.prediction for row in rows], expected, atol=1e-6)


def test_validation_save_and_load(spark: SparkSession, tmp_path: Path) -> None:
    df = pairs(spark)
    model = Sequential().add(Linear(2, 2).set_name("fc"))
    est = Estimator.from_bigdl(model=model, loss=MSECriterion(), optimizer=Adam(), metrics=MAE())
    before = model.get_weights()
    history = est.fit(df, epochs=5, batch_size=4, validation_data=df, validation_trigger=EveryEpoch(), verbose=0)
    assert [step for step, _, _ in est.get_validation_summary("Loss")] == [1, 2, 3, 4, 5]
    assert [step for step, _, _ in est.get_validation_summary("MAE")] == [1, 2, 3, 4, 5]
    assert set(history) == {"loss", "val_loss", "val_MAE"}
    assert len(history["loss"]) == len(history.epochs) == 5
    assert est.get_model() is model
    assert not np.allclose((model.get_weights() or [])[0], (before or [])[0])

    folder = str(tmp_path / "saved")
    est.save(folder)
    assert sorted(path.name for path in Path(folder).iterdir()) == ["model.json", "model.safetensors"]
    assert json.loads(Path(folder, "model.json").read_text())["layers"][0]["class"] == "Linear"
    other = Estimator.from_bigdl(model=Sequential())
    other.load(folder, optimizer=Adam(), loss=MSECriterion())
    mine, theirs = ([row.prediction for row in each.predict(df).collect()] for each in (est, other))
    assert mine == theirs
    with pytest.raises(FileExistsError):
        est.save(folder, overwrite=False)
    with pytest.raises(CheckpointError, match=r"model\.json"):
        other.load(str(tmp_path))

    # The optimizer's state comes along: both go on alike.
    again = Estimator.from_bigdl(model=Sequential().add(Linear(2, 2)), loss=MSECriterion(), optimizer=Adam())
    kept = again.get_model()
    again.load(folder)
    assert again.get_model() is kept
    for each in (est, again):
        each.fit(df, 2, batch_size=4, seed=3, verbose=0)
    for one, two in zip(model.get_weights() or (), kept.get_weights() or (), strict=True):
        np.testing.assert_array_equal(one, two)


def test_columns_are_joined_and_dealt_out(spark: SparkSession) -> None:
    rows = [(float(i), float(-i), [1.0 * i, 2.0, 3.0, 4.0], [2.0 * i, 1.0], 1.0 * i) for i in range(1, 7)]
    df = spark.createDataFrame(rows, "user double, age double, map array<double>, two array<double>, y double")
    est = Estimator.from_bigdl(model=linear(), loss=MSECriterion(), metrics=MAE())
    cols = {"feature_cols": ["user", "age"], "label_cols": ["y"]}
    est.fit(df, batch_size=3, verbose=0, **cols)
    found = est.evaluate(df, **cols)
    assert set(found) == {"Loss", "MAE"}
    predicted = est.predict(df, feature_cols=["user", "age"]).collect()
    x = np.array([[row.user, row.age] for row in predicted])
    np.testing.assert_allclose([row.prediction for row in predicted], est.get_model().forward(x), atol=1e-6)
    assert found["MAE"] == pytest.approx(np.abs(est.get_model().forward(x)[:, 0] - [row.y for row in predicted]).mean())

    # One number and a matrix, from columns of other widths.
    two_inputs = Sequential().add(ParallelTable().add(linear(1, 2)).add(Reshape([4]))).add(JoinTable(1, 1))
    for sizes in ([[1], [2, 2]], SeqToMultipleTensors([[1], [2, 2]])):
        est = Estimator.from_bigdl(model=two_inputs, feature_preprocessing=sizes)
        first = est.predict(df, feature_cols=["user", "map"]).collect()[0]
        np.testing.assert_allclose(first.prediction, [0.1 * first.user, 0.2 * first.user, *first.map], atol=1e-6)
    chained = ChainedPreprocessing([SeqToTensor(), SeqToTensor([1, 2])])
    est = Estimator.from_bigdl(model=Reshape([2]), feature_preprocessing=chained)
    assert est.predict(df, feature_cols="two").first().prediction == [2.0, 1.0]
    est = Estimator.from_bigdl(model=linear(1, 1), loss=MSECriterion(), feature_preprocessing=ScalarToTensor())
    est.fit(df, batch_size=6, feature_cols="user", label_cols="y", verbose=0)
    wrong = Estimator.from_bigdl(model=two_inputs, feature_preprocessing=[[1], [2, 3]])
    with pytest.raises(SchemaError, match="5 numbers"):
        wrong.predict(df, feature_cols=["user", "map"])
    with pytest.raises(PlanError, match="feature_preprocessing"):
        Estimator.from_bigdl(model=two_inputs, feature_preprocessing="[[1], [2, 2]]")
    with pytest.raises(SchemaError, match="'features'"):
        est.predict(df)


def classes(rows: int, first: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(2).standard_normal((rows, 4)).astype(np.float32)
    return x, x[:, :3].argmax(1) + first


def test_replicas_learn_what_one_does() -> None:
    """Labels from 1, one skipped, weights of classes, a mixture of criterions: each divides by its own mass."""
    x, y = classes(26, 1)
    y[::5] = -1
    target = np.random.default_rng(1).standard_normal((26, 3)).astype(np.float32)

    def train(world: int) -> tuple[list[np.ndarray], Any, dict[str, Any]]:
        body = Sequential().add(linear(4, 3)).add(L1Penalty(0.01, True))
        heads = ConcatTable().add(Sequential().add(linear(3, 3)).add(LogSoftMax())).add(Tanh())
        model = Sequential().add(body).add(heads)
        loss = ParallelCriterion().add(ClassNLLCriterion(np.array([1.0, 2.0, 0.5]))).add(AbsCriterion(), 0.3)
        est = Estimator.from_bigdl(model=model, loss=loss, optimizer=SGD(0.5, momentum=0.9), workers_per_node=world)
        data = (x, [y, target])
        history = est.fit(data, epochs=2, batch_size=7, shuffle=False, validation_data=data, verbose=0)
        return model.get_weights() or [], history, est.evaluate(data)

    alone, alone_history, alone_found = train(1)
    several, several_history, several_found = train(3)
    for one, other in zip(alone, several, strict=True):
        np.testing.assert_allclose(other, one, atol=1e-5)
    for key in ("loss", "val_loss"):
        np.testing.assert_allclose(several_history[key], alone_history[key], rtol=1e-5)
    assert several_found["Loss"] == pytest.approx(alone_found["Loss"], rel=1e-5)
    assert alone_found["Loss"] == pytest.approx(alone_history["val_loss"][-1], rel=1e-5)


def test_shards_and_labels_from_zero_or_one(sc: SparkContext) -> None:
    x, y = classes(40, 1)
    blocks = [{"x": x[part], "y": y[part]} for part in np.array_split(np.arange(40), 3)]
    shards = XShards(sc.parallelize(blocks, 3))
    model = Sequential().add(Linear(4, 3)).add(LogSoftMax())
    metrics = [Top1Accuracy(), Accuracy(zero_based_label=False), Loss()]
    est = Estimator.from_bigdl(
        model=model, loss=ClassNLLCriterion(), optimizer=Adam(0.05), metrics=metrics, workers_per_node=2, seed=1
    )
    est.fit(shards, epochs=8, batch_size=8, verbose=0)
    found = est.evaluate(shards)
    right = (model.predict_class(x) == y).mean()
    assert right > 0.7
    assert found["Top1Accuracy"] == pytest.approx(right)
    assert found["Top1Accuracy_1"] == pytest.approx(right)
    assert found["Loss"] == pytest.approx(ClassNLLCriterion().forward(model.evaluate().forward(x), y), rel=1e-5)
    zero = Estimator.from_bigdl(model=model, metrics=Accuracy())
    assert zero.evaluate((x, y - 1)) == {"Top1Accuracy": pytest.approx(right)}
    predicted = np.concatenate([shard["prediction"] for shard in est.predict(shards).collect()])
    np.testing.assert_allclose(predicted, model.forward(x), atol=1e-6)
    np.testing.assert_allclose(est.predict(x), predicted, atol=1e-6)


def test_torch_modules_and_losses_are_taken_too(spark: SparkSession, tmp_path: Path) -> None:
    df = pairs(spark)
    torch.manual_seed(0)
    module = torch.nn.Linear(2, 2)
    est = Estimator.from_bigdl(model=module, loss=torch.nn.MSELoss(), optimizer=SGD(0.1))
    before = module.weight.detach().clone()
    est.fit(df, batch_size=4, verbose=0)
    assert est.get_model() is module
    assert not torch.equal(module.weight, before)
    est.save(str(tmp_path / "m"))
    fresh = torch.nn.Linear(2, 2)
    Estimator.from_bigdl(model=fresh).load(str(tmp_path / "m"))
    assert torch.equal(fresh.weight, module.weight)
    with pytest.raises(UnsupportedError, match="torch module"):
        Estimator.from_bigdl(model=Sequential()).load(str(tmp_path / "m"))


def test_row_weights_and_class_weights() -> None:
    x, y = np.ones((2, 1), np.float32), np.zeros(2, np.float32)
    model = Linear(1, 1, False)
    model.set_weights(np.array([[1.0]]))
    est = Estimator.from_bigdl(model=model, loss=MSECriterion(), optimizer=SGD(0.1), workers_per_node=2)
    est.fit((x, y, np.array([1.0, 3.0])), batch_size=2, verbose=0)
    assert (model.get_weights() or [])[0].item() == pytest.approx(0.6)
    model = Linear(1, 2, False)
    model.set_weights(np.zeros((2, 1)))
    est = Estimator.from_bigdl(model=model, loss=CrossEntropyCriterion(), optimizer=SGD(1.0), workers_per_node=2)
    data = (x, np.array([1, 2]))
    found = est.fit(data, batch_size=2, class_weight={1: 1, 2: 3}, validation_data=data, verbose=0)
    assert found["val_loss"][-1] == pytest.approx(est.evaluate(data)["Loss"], rel=1e-6)
    np.testing.assert_allclose((model.get_weights() or [])[0], [[-0.5], [0.5]], atol=1e-6)


def test_wrong_words(spark: SparkSession, jobs: Any) -> None:
    df = pairs(spark)
    count = jobs()
    with pytest.raises(PlanError, match="needs a model"):
        Estimator.from_bigdl(model=None)
    with pytest.raises(PlanError, match="did you mean Linear"):
        Estimator.from_bigdl(model=Linear)
    with pytest.raises(PlanError, match="needs a loss"):
        Estimator.from_bigdl(model=linear()).fit(df)
    with pytest.raises(PlanError, match="loss or metrics"):
        Estimator.from_bigdl(model=linear()).evaluate(df)
    with pytest.raises(PlanError, match="loss must be"):
        Estimator.from_bigdl(model=linear(), loss="mse")
    with pytest.raises(PlanError, match="optimizer"):
        Estimator.from_bigdl(model=linear(), optimizer="sgd")
    with pytest.raises(PlanError, match="not a metric"):
        Estimator.from_bigdl(model=linear(), metrics="mae")
    with pytest.raises(PlanError, match="positive int"):
        Estimator.from_bigdl(model=linear(), loss=MSECriterion()).fit(df, batch_size=0)
    with pytest.raises(SchemaError, match="there is no feature column 'x'"):
        Estimator.from_bigdl(model=linear(), loss=MSECriterion()).fit(df, feature_cols="x")
    plateau = SGD(leaningrate_schedule=Plateau("score"))
    with pytest.raises(PlanError, match="validation_data"):
        Estimator.from_bigdl(model=linear(), loss=MSECriterion(), optimizer=plateau).fit(df)
    with pytest.raises(UnknownName, match="'c'"):
        Estimator.from_bigdl(model=Sequential().add(linear().set_name("a")), optimizer={"c": SGD()})
    assert jobs() == count


# --- what enters a step -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("replicas", [1, 3])
def test_regularizers_count_once(replicas: int) -> None:
    first = Linear(1, 1, False, L2Regularizer(0.1))
    second = Linear(1, 1, False, L1Regularizer(0.1))
    for each in (first, second):
        each.set_weights(np.array([[2.0]]))
    model = ConcatTable().add(first).add(second)
    loss = ParallelCriterion(True).add(MSECriterion()).add(MSECriterion())
    est = Estimator.from_bigdl(model=model, loss=loss, optimizer=SGD(1.0), workers_per_node=replicas)
    history = est.fit((np.zeros((6, 1)), np.zeros(6)), batch_size=6, verbose=0)
    np.testing.assert_allclose([w.item() for w in model.get_weights() or ()], [1.8, 1.9], atol=1e-6)
    assert history["loss"] == [0.0]  # the criterion's alone


def test_a_method_for_each_layer() -> None:
    x, y = plane(12)
    first, second = linear(2, 2).set_name("a"), linear(2, 1).set_name("b")
    model = Sequential().add(first).add(Tanh()).add(second)
    start = model.get_weights() or []

    def train(optimizer: Any, world: int) -> list[np.ndarray]:
        model.set_weights(start)
        est = Estimator.from_bigdl(model=model, loss=MSECriterion(), optimizer=optimizer, workers_per_node=world)
        est.fit((x, y), epochs=2, batch_size=4, shuffle=False, verbose=0)
        return model.get_weights() or []

    moving = SGD(0.1, leaningrate_schedule=Step(1, 0.5))
    moved = train({"a": moving, "b": SGD(0.0)}, 2)
    assert not np.allclose(moved[0], start[0])
    np.testing.assert_array_equal(moved[2], start[2])
    # Freezing is another way to keep a layer; what is frozen needs no method.
    model.freeze(["b"])
    for one, other in zip(train({"a": moving}, 1), moved, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    model.unfreeze()
    with pytest.raises(PlanError, match="'b'"):
        train({"a": SGD(0.1)}, 1)
    with pytest.raises(PlanError, match="too"):
        train({"a": SGD(0.1), "b": SGD(0.1), model.name(): SGD(0.1)}, 1)


# --- Optimizer --------------------------------------------------------------------------------------------------------


def test_optimizer_finds_the_plane(sc: SparkContext, tmp_path: Path) -> None:
    rdd = samples(sc, *plane(100))
    model = Sequential().add(Linear(2, 1))
    summary = TrainSummary(str(tmp_path), "plane")
    optimizer = Optimizer(model, rdd, MSECriterion(), MaxEpoch(30), 7, SGD(0.1), replicas=2)
    optimizer.set_train_summary(summary)
    assert optimizer.optimize() is model
    np.testing.assert_allclose((model.get_weights() or [])[0], [[2, 3]], atol=0.05)
    losses = summary.read_scalar("Loss")
    assert [step for step, _, _ in losses] == list(range(1, 451))
    assert losses[-1][1] < 1e-3
    with pytest.raises(UnknownName, match="Throughput"):
        summary.read_scalar("loss")
    assert optimizer.optimize() is model  # the end is reached already: nothing runs
    assert len(summary.read_scalar("Loss")) == 450
    optimizer.set_end_when(MaxEpoch(31)).optimize()
    assert len(summary.read_scalar("Loss")) == 465


def test_ends_and_schedules(tmp_path: Path) -> None:
    data = plane(40)

    def run(name: str, end: Any, method: Any) -> list[tuple[int, float, float]]:
        summary = TrainSummary(str(tmp_path), name)
        optimizer = Optimizer.create(linear(), data, MSECriterion(), end, 4, method).set_train_summary(summary)
        optimizer.optimize()
        return summary.read_scalar("LearningRate")

    warm = SequentialSchedule(5).add(Warmup(0.1), 2).add(Poly(1, 6), 10)
    entries = run("updates", MaxIteration(20), SGD(0.1, leaningrate_schedule=warm))
    assert [step for step, _, _ in entries] == list(range(1, 21))
    np.testing.assert_allclose([rate for _, rate, _ in entries[:8]], [0.1, 0.2, 0.3, 0.15, 0.1, 0.05, 0, 0], atol=1e-6)
    assert len(run("loss", TriggerOr(MinLoss(1e3), MaxEpoch(50)), SGD(0.01))) == 1


def test_validation_checkpoints_and_summaries(sc: SparkContext, tmp_path: Path) -> None:
    x, y = classes(40, 1)
    rdd = samples(sc, x, y)
    model = Sequential().add(Linear(4, 3).set_name("fc")).add(LogSoftMax())
    train, validation = TrainSummary(str(tmp_path), "app"), ValidationSummary(str(tmp_path), "app")
    train.set_summary_trigger("Loss", EveryEpoch()).set_summary_trigger("Parameters", SeveralIteration(5))
    optimizer = Optimizer(model, rdd, ClassNLLCriterion(), MaxScore(0.7), 8, Adam(0.05), replicas=2, seed=3)
    optimizer.set_validation(16, rdd, EveryEpoch(), [Top1Accuracy(), Top5Accuracy(), Loss()])
    optimizer.set_train_summary(train).set_val_summary(validation)
    optimizer.set_checkpoint(EveryEpoch(), str(tmp_path / "kept")).set_gradclip_l2norm(5.0)
    optimizer.optimize()
    scores = validation.read_scalar("Top1Accuracy")
    assert scores[-1][1] > 0.7
    assert all(score <= 0.7 for _, score, _ in scores[:-1])
    assert [step for step, _, _ in train.read_scalar("Loss")] == [step for step, _, _ in scores]
    assert len(train.read_scalar("Throughput")) == scores[-1][0]
    assert [value for _, value, _ in validation.read_scalar("Top5Accuracy")] == [1.0] * len(scores)
    with pytest.raises(UnknownName, match="Top1Accuracy"):
        validation.read_scalar("MAE")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(f"{tmp_path}/app/train", {"histograms": 0}).Reload()
    assert len(events.Tags()["histograms"]) == 2
    assert events.Histograms(events.Tags()["histograms"][0])[0].step == 5
    assert Estimator.latest_checkpoint(str(tmp_path / "kept")).endswith(f"model.{scores[-1][0]}")
    other = Sequential().add(Linear(4, 3)).add(LogSoftMax())
    Optimizer(other, rdd, ClassNLLCriterion(), MaxEpoch(1), 8, Adam(0.05)).load_checkpoint(str(tmp_path / "kept"))
    np.testing.assert_array_equal(other.forward(x), model.forward(x))

    found = model.evaluate(rdd, 16, [Top1Accuracy(), Loss(), MeanAbsoluteError()][:2])
    assert [(each.method, each.total_num) for each in found] == [("Top1Accuracy", 40), ("Loss", 40)]
    local = model.evaluate((x, y), 16, [Top1Accuracy(), Loss()])
    for one, other_one in zip(found, local, strict=True):
        assert one.result == pytest.approx(other_one.result, rel=1e-5)
    assert found[0].result == pytest.approx(scores[-1][1])
    predicted = model.predict(rdd)
    np.testing.assert_allclose(np.stack(predicted.collect()), model.predict(x), atol=1e-6)
    assert model.predict_class(rdd).collect() == model.predict_class(x).tolist()


def test_a_graph_with_two_inputs_learns(sc: SparkContext) -> None:
    x, y = plane(60)
    a, b = Input(), Input()
    model = Model([a, b], CAddTable()([Linear(1, 1, False).set_name("a")(a), Linear(1, 1, False).set_name("b")(b)]))
    model.set_weights([np.zeros((1, 1)), np.zeros((1, 1))])  # a lucky start has little to learn
    rdd = sc.parallelize(
        [Sample.from_ndarray([row[:1], row[1:]], np.array([label])) for row, label in zip(x, y, strict=True)], 3
    )
    method = SGD(0.1, momentum=0.5, dampening=0.0)
    optimizer = Optimizer(model, rdd, MSECriterion(), MaxEpoch(15), 10, method, replicas=2)
    held_out = {"X_val": [x[:, :1], x[:, 1:]], "Y_val": y}
    optimizer.set_validation(batch_size=10, trigger=EveryEpoch(), val_method=MeanAbsoluteError(), **held_out)
    optimizer.optimize()
    np.testing.assert_allclose([w.item() for w in model.get_weights() or ()], [2, 3], atol=0.05)
    summary = optimizer._estimator.get_validation_summary("MAE")
    assert summary[-1][1] < 0.1 < summary[0][1]


def test_an_optim_method_is_saved_with_its_state(tmp_path: Path) -> None:
    x, y = plane(24)
    path = str(tmp_path / "adam")

    def train(model: Any, method: Any, end: Any) -> None:
        Optimizer.create(model, (x, y), MSECriterion(), end, 24, method).optimize()

    method = Adam(0.1, learningrate_decay=0.5)
    once = linear()
    train(once, method, MaxIteration(6))
    twice = linear()
    train(twice, method, MaxIteration(3))  # a value: it does not go on where the other training stopped
    method.save(path)
    with pytest.raises(FileExistsError):
        method.save(path)
    method.save(path, overWrite=True)
    loaded = OptimMethod.load(path)
    assert loaded == method
    train(twice, loaded, MaxIteration(3))
    for one, other in zip(once.get_weights() or (), twice.get_weights() or (), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    SGD(0.3).save(path, True)
    assert OptimMethod.load(path) == SGD(0.3)
    Path(path).write_text("no")
    with pytest.raises(CheckpointError, match="not an optim method"):
        OptimMethod.load(path)


def test_users_are_not_cut_apart(spark: SparkSession, sc: SparkContext) -> None:
    """Two users of five rows, in different partitions and with batches that end anywhere, average."""
    scores = np.array([0.9, 0.1, 0.8, 0.3, 0.2, 0.9, 0.1, 0.2, 0.3, 0.4], np.float32)
    labels = np.array([0, 0, 1, 0, 0, 0, 1, 0, 0, 0], np.float32)
    rdd = samples(sc, scores[:, np.newaxis], labels)
    methods = [HitRatio(2, 4), HitRatio(1, 4), NDCG(2, 4)]
    for data in (rdd, (scores[:, np.newaxis], labels)):
        found = {each.method: each.result for each in Identity().evaluate(data, 3, methods)}
        assert found == {"HitRate@2": 0.5, "HitRate@1": 0.0, "NDCG": pytest.approx(0.630930 / 2, abs=1e-6)}
    # The rows of a validation are divided between replicas at users' borders.
    model = Sequential().add(linear(1, 1))
    est = Estimator.from_bigdl(model=model, loss=MSECriterion(), metrics=HitRatio(2, 4), workers_per_node=3)
    x, y = scores[:, np.newaxis], labels
    est.fit((x, y), batch_size=10, validation_data=(x, y), verbose=0)
    assert est.get_validation_summary("HitRate@2")[0][1] == 0.5


def test_optimizers_wrong_words(sc: SparkContext, tmp_path: Path) -> None:
    data = plane(4)
    with pytest.raises(PlanError, match="RDD of Sample"):
        Optimizer(linear(), 3, MSECriterion(), MaxEpoch(1), 4)
    with pytest.raises(PlanError, match="trigger"):
        Optimizer(linear(), data, MSECriterion(), 5, 4)
    optimizer = Optimizer.create(linear(), data, MSECriterion())
    with pytest.raises(PlanError, match="needs a trigger"):
        optimizer.set_validation(4, *data)
    with pytest.raises(PlanError, match="TrainSummary"):
        optimizer.set_train_summary(ValidationSummary(str(tmp_path), "x"))  # type: ignore[arg-type]
    with pytest.raises(UnknownName, match="Parameters"):
        TrainSummary(str(tmp_path), "x").set_summary_trigger("Gradients", EveryEpoch())
    with pytest.raises(PlanError, match="min < max"):
        optimizer.set_gradclip_const(1.0, -1.0)
    with pytest.raises(UnsupportedError, match="sparse"):
        JTensor.sparse(np.zeros(1), np.zeros(1), np.zeros(1))
    array = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(JTensor.from_ndarray(array).to_ndarray(), array)  # type: ignore[union-attr]
    sample = Sample.from_ndarray([array, np.array([2**40])], 3)
    assert sample.label.to_ndarray() == 3
    assert np.asarray(sample.features[1]).tolist() == [2**40]
    assert Dropout().predict_local(array).tolist() == array.tolist()
    assert MultiCriterion().add(MSECriterion()).forward(array, array) == 0


def test_view_keeps_a_batch_of_one_row() -> None:
    assert layer.View([2, 3]).forward(np.zeros((1, 6))).shape == (1, 2, 3)
    assert layer.View([2, 3]).forward(np.zeros((2, 6))).shape == (2, 2, 3)
    assert layer.View([4]).predict(np.zeros((5, 2, 2)), batch_size=4).shape == (5, 4)


@pytest.mark.parametrize("make", [lambda: layer.Squeeze(None), lambda: layer.RnnCell(2, 3, None)])
def test_a_setting_that_is_none_is_saved(make: Any, tmp_path: Path) -> None:
    cell = make()
    model = layer.Sequential().add(layer.Recurrent().add(cell) if isinstance(cell, layer.RnnCell) else cell)
    model.saveModel(str(tmp_path / "m"))
    rows = np.random.default_rng(1).random((2, 4, 2))
    np.testing.assert_array_equal(layer.Model.loadModel(str(tmp_path / "m")).forward(rows), model.forward(rows))
