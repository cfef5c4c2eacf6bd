"""``SparkAsyncDL``: which rows make which push, that each counts once, and what comes of it."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DoubleType

from firesteel.cluster.wire import Link
from firesteel.core import registry
from firesteel.core.errors import CheckpointError, ClusterError, PlanError, SchemaError, UnknownName
from firesteel.core.plan import Turns
from firesteel.engine.turn import slices
from firesteel.engine.turns import _loss, _spread, _Watch
from firesteel.frontends.pipeline.graphs import training_program
from firesteel.pipeline import (
    HogwildSparkModel,
    PysparkPipelineWrapper,
    SparkAsyncDL,
    SparkAsyncDLModel,
    attach_tensorflow_model_to_pipeline,
    build_adadelta_config,
    build_adagrad_config,
    build_adam_config,
    build_graph,
    build_momentum_config,
    build_rmsprop_config,
    generate_config,
    load_tensorflow_model,
)
from firesteel.sync.server import Client, ParameterServer
from frontends import graphs
from frontends.graphs import tf
from processes import below

RNG = np.random.default_rng(8)
CLASSES = np.concatenate([RNG.normal(0, 1, (200, 10)), RNG.normal(2, 1, (200, 10))])
LABELS = np.repeat([0.0, 1.0], 200)


@pytest.fixture(scope="module")
def graph() -> str:
    return build_graph(graphs.line)


@pytest.fixture(scope="module")
def classes(spark: SparkSession) -> DataFrame:
    rows = [(Vectors.dense(x), float(y)) for x, y in zip(CLASSES, LABELS, strict=True)]
    return spark.createDataFrame(rows, ["features", "label"]).repartition(2, "features").cache()


def ones(spark: SparkSession, *counts: int) -> DataFrame:
    """Rows of 1.0 in partitions of these sizes."""
    rdd = spark.sparkContext.parallelize(range(len(counts)), len(counts))
    return spark.createDataFrame(rdd.flatMap(lambda place: [(1.0,)] * counts[place]), "x double")


def stage(graph: str, **params: Any) -> SparkAsyncDL:
    """Each push of this one moves w by -0.5 where all x are 1."""
    settings = {"inputCol": "x", "tfOutput": "out:0", "tfOptimizer": "gradient_descent", "tfLearningRate": 0.5}
    return SparkAsyncDL(tensorflowGraph=graph, **{**settings, **params})


def weight(model: Any) -> float:
    (found,) = model.getWeights()
    assert found.shape == ()
    return float(found)


# --- pushes -----------------------------------------------------------------------------------------------------------


def test_each_slice_is_a_push_in_both_modes(spark: SparkSession, graph: str) -> None:
    for lock in (False, True):
        model = stage(graph, miniBatchSize=30, iters=3, acquireLock=lock).fit(ones(spark, 100))
        assert weight(model) == -6.0  # ceil(100 / 30) · 3 · -0.5
    assert model.getInputCol() == "x"
    assert [row.predicted for row in model.transform(ones(spark, 1, 1)).collect()] == [-6.0, -6.0]


def seen(text: str) -> set[int]:
    return {int(found) for found in re.findall(r"partition (\d+), iteration \d+: loss", text)}


def test_partitions_empty_ones_and_a_loss_for_each(spark: SparkSession, graph: str, capsys: Any) -> None:
    model = stage(graph, miniBatchSize=-1, iters=4, acquireLock=True, verbose=1).fit(ones(spark, 9, 0, 5, 0, 1))
    assert weight(model) == -6.0  # 3 · 4
    lines = capsys.readouterr().out
    assert seen(lines) == {0, 2, 4}
    assert len(lines.strip().splitlines()) == 12


def test_rounds_ports_and_fits_side_by_side(spark: SparkSession, graph: str, capsys: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found: dict[str, Any] = {}

        def fit(name: str, params: dict[str, Any], counts: tuple[int, ...]) -> None:
            found[name] = weight(stage(graph, port=port, acquireLock=True, **params).fit(ones(spark, *counts)))

        few = {"partitions": 2, "miniBatchSize": 30, "iters": 3, "verbose": 1}
        rounds = {"partitions": 8, "miniBatchSize": -1, "iters": 2, "partitionShuffles": 3}
        work = {"few": (few, (20, 20, 20, 20, 10, 10)), "rounds": (rounds, (20, 20, 20))}
        threads = [threading.Thread(target=fit, args=(name, *args)) for name, args in work.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    # Six partitions of 100 rows as two; three partitions, though there might be eight, three times over.
    # (A mean over 30 ones is not 1 to the last bit.)
    assert found == pytest.approx({"few": -0.5 * 3 * 4, "rounds": -0.5 * 3 * 2 * 3}, rel=1e-6)
    assert seen(capsys.readouterr().out) == {0, 1}


def test_rows_are_spread_the_same_way_in_whatever_order_they_come(spark: SparkSession) -> None:
    def laid(order: int, seed: int = 1) -> list[tuple[int, ...]]:
        parts = [[(Vectors.dense([n, 1]), n % 7) for n in range(place, 90, 3)][::order] for place in range(3)]
        rdd = spark.sparkContext.parallelize(parts, 3).flatMap(lambda part: part)
        rows = _spread(spark.createDataFrame(rdd, ["x", "y"]), 4, seed)
        return [tuple(int(row.x[0]) for row in part) for part in rows.rdd.glom().collect()]

    first = laid(1)
    assert sorted(n for part in first for n in part) == list(range(90))
    assert max(map(len, first)) - min(map(len, first)) <= 3
    assert laid(-1) == first
    assert laid(1, 2) != first


def test_other_rows_after_a_loss_are_warned_of() -> None:
    told: list[dict[str, Any]] = []

    class Servers:
        def events(self) -> list[dict[str, Any]]:
            return told

        def check(self) -> None:
            pass

    watch = _Watch(Servers(), None)  # type: ignore[arg-type]
    about = {"name": "rows", "round": 0, "partition": 3}
    told = [{**about, "mark": [9, 1], "pushes": 0}, {**about, "mark": [9, 2], "pushes": 0}]
    watch.look()  # nothing was done with the first ones
    told = [{**about, "mark": [9, 2], "pushes": 5}, {**about, "round": 1, "mark": [9, 4], "pushes": 0}]
    watch.look()
    told = [{**about, "mark": [9, 3], "pushes": 5}]
    with pytest.warns(RuntimeWarning, match="partition 3 of the training data had other rows, or another order"):
        watch.look()


def test_a_loss_is_told_in_a_line_that_says_what_was_lost() -> None:
    text = (
        "An error occurred while calling o185.collectToPython.\n: org.apache.spark.SparkException: Job aborted due to "
        "stage failure: Task 1 in stage 5.0 failed 1 times, most recent failure: Lost task 1.0 in stage 5.0 (TID 9) "
        "(host-7 executor 2): org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)\n\tat org"
    )
    assert _loss(text) == (
        "Lost task 1.0 in stage 5.0 (TID 9) (host-7 executor 2): "
        "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)"
    )


def test_no_row_is_left_out_whatever_the_sizes() -> None:
    for count in (1, 2, 5, 128, 129, 300):
        for rows in (1, 3, 128, 500, None):
            plan = Turns(None, 1, 1, rows)  # type: ignore[arg-type]
            found = list(slices(plan, count, (0, 0, 0)))
            assert sorted(np.concatenate(found).tolist()) == list(range(count))
            assert len(found) == (1 if rows is None else -(-count // rows))
            drawn = list(slices(Turns(None, 1, 1, rows, draws=4), count, (0, 0, 0)))  # type: ignore[arg-type]
            assert [len(set(each.tolist())) for each in drawn] == [min(rows or count, count)] * 4
    first, second = (list(slices(Turns(None, 1, 1, 7), 20, (0, 0, place))) for place in (0, 1))  # type: ignore[arg-type]
    assert any((a != b).any() for a, b in zip(first, second, strict=True)), "the same order in every iter"
    still = list(slices(Turns(None, 1, 1, 7, shuffle=False), 20, (0, 0, 1)))  # type: ignore[arg-type]
    assert np.concatenate(still).tolist() == list(range(20))


def test_an_rdd_draws_and_a_callback_on_the_driver(spark: SparkSession, graph: str) -> None:
    heard: list[tuple[float, int, int]] = []
    lock = threading.Lock()  # which does not pickle

    def callback(loss: float, iteration: int, partition: int) -> None:
        with lock:
            heard.append((loss, iteration, partition))

    trainer = HogwildSparkModel(
        graph, 3, "x:0", optimizer=tf.train.GradientDescentOptimizer(0.5), mini_batch=2, mini_stochastic_iters=5,
        loss_callback=callback,
    )  # fmt: skip
    rows = spark.sparkContext.parallelize([[1.0], Vectors.dense([1.0]), np.ones(1), [1.0]], 1)
    (found,) = trainer.train(rows)
    assert found == -7.5  # 5 · 3
    assert [(iteration, partition) for _, iteration, partition in heard] == [(0, 0), (1, 0), (2, 0)]
    # The weights that it holds: those pulled before the pushes of the iter.
    assert [loss for loss, _, _ in heard] == [0.0, -2.5, -5.0]
    trainer.stop_server()
    assert trainer.determine_master(5001).endswith(":5001")

    def failing(loss: float, iteration: int, partition: int) -> None:
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        HogwildSparkModel(graph, 1000, "x:0", loss_callback=failing).train(rows)


# --- what goes wrong --------------------------------------------------------------------------------------------------


def server_ids() -> list[int]:
    return [child.pid for child in below("firesteel.engine.serving")]


def test_a_worker_that_is_killed_is_started_where_it_stood(spark: SparkSession, graph: str) -> None:
    before = set(spark.sparkContext.parallelize(range(3), 3).map(lambda _: os.getpid()).collect())
    killed: list[int] = []

    def kill(loss: float, iteration: int, partition: int) -> None:
        if iteration == 5 and not killed:
            for worker in workers():
                killed.append(worker)
                os.kill(worker, signal.SIGKILL)

    def workers() -> list[int]:
        found = below("pyspark.daemon")
        return [p.pid for p in found if p.ppid() in {each.pid for each in found}]

    assert before
    trainer = HogwildSparkModel(
        graph, 40, "x:0", optimizer=tf.train.GradientDescentOptimizer(0.5), mini_batch=25, acquire_lock=True,
        loss_callback=kill,
    )  # fmt: skip
    (found,) = trainer.train(spark.sparkContext.parallelize([[1.0]] * 100, 2))
    assert killed
    assert found == -0.5 * 2 * 2 * 40, "pushes were lost, or made twice"


def test_a_server_that_is_gone_ends_the_fit_at_once(spark: SparkSession, graph: str) -> None:
    times: list[float] = []

    def kill(loss: float, iteration: int, partition: int) -> None:
        for server in server_ids():
            os.kill(server, signal.SIGKILL)
            times.append(time.monotonic())

    trainer = HogwildSparkModel(graph, 100_000, "x:0", loss_callback=kill)
    with pytest.raises(ClusterError, match="the parameter server was killed by signal 9"):
        trainer.train(spark.sparkContext.parallelize([[1.0]] * 10, 2))
    assert time.monotonic() - times[0] < 15
    assert spark.sparkContext.range(10).count() == 10
    assert server_ids() == []


def test_rows_that_do_not_fit_are_named(spark: SparkSession, graph: str) -> None:
    wide = build_graph(graphs.classifier)
    rows = [(Vectors.dense([0.0] * 10), 1.0)] * 7 + [(Vectors.dense([0.0] * 9), 1.0)]
    df = spark.createDataFrame(rows, ["features", "label"]).coalesce(1)
    ends = {"inputCol": "features", "labelCol": "label", "tfLabel": "y:0", "tfOutput": "outer/Sigmoid:0"}
    with pytest.raises(SchemaError, match=r"column 'features'.*9.*\(row 7 of partition 0"):
        SparkAsyncDL(tensorflowGraph=wide, **ends).fit(df)
    empty = spark.createDataFrame([], "x double")
    with pytest.raises(ValueError, match="no rows"):
        stage(graph, iters=1).fit(empty)
    assert server_ids() == []


def test_what_makes_no_sense_is_said_before_a_job_starts(
    spark: SparkSession, graph: str, classes: DataFrame, jobs: Callable[[], int]
) -> None:
    df = ones(spark, 2)
    labelled = build_graph(graphs.classifier)

    def no_default() -> Any:
        x = tf.placeholder(tf.float32, [None, 1], name="x")
        keep = tf.placeholder(tf.float32, [], name="keep")
        return tf.reduce_mean(tf.multiply(x, tf.Variable(1.0)) * keep, name="out")

    names = "adadelta, adagrad, adagrad_da, adam, ftrl, gradient_descent, momentum, .*, rmsprop"
    unfed = build_graph(no_default)
    cases: list[tuple[type[Exception], str, Callable[[], Any]]] = [
        (UnknownName, f"unknown optimizer 'sgd'; there are: {names}", lambda: SparkAsyncDL(tfOptimizer="sgd")),
        (UnknownName, "unknown optimizer 'sgd'", lambda: SparkAsyncDL().set(SparkAsyncDL.tfOptimizer, "sgd")),
        (PlanError, "'gradient_descent' has no option 'beta'",
            lambda: stage(graph, optimizerOptions='{"beta": 1}').fit(df)),
        (UnknownName, "unknown tensor 'X:0'; there are: .*x:0", lambda: stage(graph, tfInput="X:0").fit(df)),
        (UnknownName, "unknown tensor 'outt:0'; there are: .*out:0", lambda: stage(graph, tfOutput="outt:0").fit(df)),
        (SchemaError, "no feature column 'z'.*: x", lambda: stage(graph, inputCol="z").fit(df)),
        (PlanError, "tfLabel='y:0' needs a labelCol", lambda: stage(labelled, tfLabel="y:0").fit(df)),
        (PlanError, "the placeholder 'y', which nothing feeds",
            lambda: stage(labelled, inputCol="features", tfOutput="outer/Sigmoid:0").fit(classes)),
        (PlanError, "dropout placeholder 'keep:0' has no default", lambda: stage(unfed, tfDropout="keep:0").fit(df)),
        (PlanError, "size is a positive number", lambda: stage(graph, miniBatchSize=0)),
        (PlanError, "iters must be at least 1", lambda: stage(graph, iters=0).fit(df)),
        (PlanError, "no graph: pass tensorflowGraph", lambda: SparkAsyncDL(inputCol="x").fit(df)),
        (PlanError, "no graph that build_graph made", lambda: stage("{not a graph").fit(df)),
        (UnknownName, "Param of SparkAsyncDL 'lr'", lambda: SparkAsyncDL(lr=1)),
        (PlanError, "not JSON", lambda: stage(graph, optimizerOptions="{").fit(df)),
        (PlanError, "host:port", lambda: HogwildSparkModel(graph, 1, "x:0", master_url="here")),
        (PlanError, "must return its loss", lambda: build_graph(lambda: None)),
    ]  # fmt: skip
    before = jobs()
    for error, words, act in cases:
        with pytest.raises(error, match=words):
            act()
    assert jobs() == before


# --- what is learnt ---------------------------------------------------------------------------------------------------


def test_a_classifier_is_learnt_and_read_by_an_evaluator(classes: DataFrame) -> None:
    text = build_graph(graphs.classifier)
    assert text == build_graph(graphs.classifier), "the same function gave another text"
    learner = SparkAsyncDL(
        inputCol="features", labelCol="label", tensorflowGraph=text, tfInput="x:0", tfLabel="y:0", tfOutput="class:0",
        tfOptimizer="adam", tfLearningRate=1e-9, optimizerOptions=build_adam_config(0.1, 0.85, 0.98, 1e-8), iters=35,
        partitions=2, predictionCol="prediction",
    )  # fmt: skip
    model = learner.fit(classes)
    out = model.transform(classes)
    assert out.schema["prediction"].dataType == DoubleType()
    assert MulticlassClassificationEvaluator(metricName="accuracy").evaluate(out) >= 0.95
    sparse = classes.rdd.map(lambda row: (Vectors.sparse(10, list(range(10)), row.features.toArray()), row.label))
    again = model.transform(sparse.toDF(["features", "label"]))
    assert [row.prediction for row in again.collect()] == [row.prediction for row in out.collect()]


OPTIMIZERS = {
    "adam": None,
    "rmsprop": build_rmsprop_config(0.1, 0.95, 0.1),
    "momentum": build_momentum_config(0.05, use_nesterov=True),
    "adadelta": build_adadelta_config(5.0),
    "adagrad": build_adagrad_config(0.1, 0.2),
    "gradient_descent": None,
    "adagrad_da": generate_config(learning_rate=0.5),
    "ftrl": None,
    "proximal_adagrad": None,
    "proximal_gradient_descent": None,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_lowers_the_loss(name: str) -> None:
    from firesteel.frontends.pipeline.optimizers import options_of

    bench: Any = registry.framework("tfgraph")
    optimizer = bench.optimizer(name, options_of(OPTIMIZERS[name], 0.1))
    program, _ = training_program(
        build_graph(graphs.classifier), inputs="x:0", label="y:0", output=None, optimizer=optimizer, seed=3
    )
    replica = bench.replica(program, "cpu", 1)
    replica.start(None)
    batch = {"x0": CLASSES.astype(np.float32), "y0": LABELS.astype(np.float32)}
    losses = []
    for _ in range(25):
        losses.append(replica.backward(batch, 1.0))
        replica.update()
    assert losses[-1] < 0.9 * losses[0]
    replica.close()


def test_two_thousand_steps_take_no_more_than_two_hundred() -> None:
    bench: Any = registry.framework("tfgraph")
    text = build_graph(lambda: graphs.regular(keeps=True))
    program, _ = training_program(
        text, inputs="x:0", label="y:0", output=None, optimizer=bench.optimizer("adam", {"learning_rate": 0.01}), seed=1
    )
    theirs, mine = (bench.replica(program, "cpu", 1) for _ in range(2))
    for replica in (theirs, mine):
        replica.start(None)
    server = ParameterServer(theirs, is_locked=True)
    server.open()
    ours, other = socket.socketpair()
    thread = threading.Thread(target=server.serve, args=(Link(other),))
    thread.start()
    client = Client([lambda: Link(ours)], (0, 0), has_extras=True)
    client.enter()
    weights, extras = mine.weights(), mine.buffers()
    batch = {"x0": RNG.normal(size=(20, 3)).astype(np.float32), "y0": np.zeros((20, 1), np.float32)}
    found = {}
    for step in range(1, 2001):
        mine.seed(step)
        mine.backward(batch, 1.0)
        client.push(mine.gradients(), step=0, extras=mine.buffers(), into=(weights, extras))
        mine.load_weights(weights)
        mine.load_buffers(extras)
        if step in (200, 2000):
            ops = [len(replica.graph.get_operations()) for replica in (theirs, mine)]
            found[step] = psutil.Process().memory_info().rss, ops
    client.close()
    thread.join()
    assert server.updates == 2000
    assert found[2000][1] == found[200][1]
    assert found[2000][0] < 1.1 * found[200][0]


def test_an_autoencoder_gives_vectors_of_its_bottleneck(spark: SparkSession) -> None:
    factors = RNG.normal(size=(200, 2))
    data = np.tanh(factors @ RNG.normal(size=(2, 6)))
    rows = [(Vectors.dense(x),) for x in data]
    df = spark.createDataFrame(rows, ["features"]).coalesce(1)
    ends = {"inputCol": "features", "tensorflowGraph": build_graph(graphs.autoencoder), "tfOutput": "bottleneck/Tanh:0"}
    fits = [SparkAsyncDL(**ends, tfLearningRate=0.05, iters=30, miniBatchSize=50, seed=s).fit(df) for s in (4, 4)]
    out = fits[0].transform(df)
    assert isinstance(out.schema["predicted"].dataType, VectorUDT)
    found = np.array([row.predicted.toArray() for row in out.collect()])
    assert found.shape == (200, 2)
    kernels = fits[0].getWeights()
    assert [each.shape for each in kernels] == [(6, 2), (2,), (2, 6), (6,)]
    error = np.mean((found @ kernels[2] + kernels[3] - data) ** 2)
    assert error < 0.5 * np.mean((data - data.mean(0)) ** 2)
    for one, other in zip(kernels, fits[1].getWeights(), strict=True):
        np.testing.assert_array_equal(one, other, err_msg="one partition and one seed gave other weights")


def test_averages_and_dropout_when_training_and_after(spark: SparkSession) -> None:
    x = RNG.normal(5.0, 1.0, (60, 3)).astype(np.float32)
    rows = [(Vectors.dense(row), float(row[0] - row[2])) for row in x.tolist()]
    df = spark.createDataFrame(rows, ["features", "label"]).coalesce(1)
    text = build_graph(lambda: graphs.regular(keeps=True))
    ends = {"inputCol": "features", "labelCol": "label", "tensorflowGraph": text, "tfLabel": "y:0", "tfOutput": "out:0"}
    learner = SparkAsyncDL(
        **ends, tfDropout="rate:0", toKeepDropout=True, iters=20, miniBatchSize=20, tfLearningRate=0.1
    )
    model = learner.fit(df)
    out = np.array([row.predicted for row in model.transform(df).collect()])
    kernel, bias = model.getWeights()
    mean = model._values["mean"]
    assert (mean > 4).all(), "the moving average did not come along"
    np.testing.assert_allclose(out, ((x - mean) @ kernel + bias)[:, 0], atol=1e-4)
    again = [row.predicted for row in model.transform(df).collect()]
    assert again == out.tolist(), "transform drops at random"
    # The other meaning of the placeholder, with weights given as text.
    dropped = SparkAsyncDLModel(
        inputCol="features", modelJson=build_graph(lambda: graphs.regular(keeps=False)),
        modelWeights="[[[1.0], [2.0], [3.0]], [0.5]]", tfOutput="out:0", tfDropout="rate:0",
    )  # fmt: skip
    found = [row.predicted for row in dropped.transform(df).collect()]
    np.testing.assert_allclose(found, x @ [1.0, 2.0, 3.0] + 0.5, rtol=1e-5)
    assert dropped.copy({dropped.toKeepDropout: True}).transform(df).first().predicted != found[0]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # PySpark leaves its thread pool open
def test_a_cross_validator_finds_the_better_rate(classes: DataFrame) -> None:
    learner = SparkAsyncDL(
        inputCol="features", labelCol="label", tensorflowGraph=build_graph(graphs.classifier), tfLabel="y:0",
        tfOutput="class:0", iters=4, miniBatchSize=40, predictionCol="prediction",
    )  # fmt: skip
    before = learner.explainParams()
    grid = ParamGridBuilder().addGrid(learner.tfLearningRate, [1e-6, 0.1]).build()
    tuner = CrossValidator(
        estimator=learner, estimatorParamMaps=grid, numFolds=3, parallelism=2, seed=1,
        evaluator=MulticlassClassificationEvaluator(metricName="accuracy"),
    )  # fmt: skip
    tuned = tuner.fit(classes)
    assert len(tuned.avgMetrics) == 2
    assert tuned.avgMetrics[1] > tuned.avgMetrics[0]
    assert tuned.avgMetrics[1] > 0.9
    assert learner.explainParams() == before
    assert learner.copy({learner.iters: 3}).getIters() == 3
    assert learner.getIters() == 4


# --- scoring and saving -----------------------------------------------------------------------------------------------


def test_large_whole_numbers_reach_a_tensor_of_whole_numbers(spark: SparkSession) -> None:
    """A float32 counts to 2^24; ids in vectors of doubles go beyond."""
    numbers = [2**24 + 1, 2**30 + 7, 3]
    df = spark.createDataFrame([(Vectors.dense([float(number)]),) for number in numbers], ["x"])
    model = SparkAsyncDLModel(inputCol="x", modelJson=build_graph(graphs.remainder), tfInput="ids:0", tfOutput="rest:0")
    found = [row.predicted for row in model.transform(df).collect()]
    assert found == [number % 1000 for number in numbers]


def test_types_are_known_before_anything_runs(spark: SparkSession, jobs: Callable[[], int]) -> None:
    text = build_graph(graphs.ends)
    df = spark.createDataFrame([(i, [float(i)] * 4) for i in range(5)], "id long, x array<double>").repartition(4)
    df = df.cache()
    df.count()
    wanted = {"one:0": DoubleType(), "class:0": DoubleType(), "flag:0": DoubleType(), "logits:0": VectorUDT()}
    wanted |= {"square:0": VectorUDT(), "unknown:0": VectorUDT()}
    for output, kind in wanted.items():
        model = SparkAsyncDLModel(inputCol="x", modelJson=text, tfOutput=output, batchSize=2)
        before = jobs()
        out = model.transform(df)
        nothing = model.transform(df.limit(0))
        assert out.schema["predicted"].dataType == kind, output
        assert out.columns == ["id", "x", "predicted"]
        assert nothing.schema == out.schema
        assert jobs() == before, f"{output}: a job ran"
        rows = {row.id: row.predicted for row in out.collect()}
        assert sorted(rows) == list(range(5))
        assert nothing.count() == 0
        if output == "square:0":
            assert rows[1].toArray().shape == (10,)
    with pytest.raises(PlanError, match="string"):
        SparkAsyncDLModel(inputCol="x", modelJson=text, tfOutput="words:0").transform(df)
    with pytest.raises(ValueError, match="'id' already"):
        SparkAsyncDLModel(inputCol="x", modelJson=text, tfOutput="one:0", predictionCol="id").transform(df)


def test_a_stage_survives_its_folder(spark: SparkSession, graph: str, tmp_path: Path) -> None:
    made = stage(graph, iters=7, optimizerOptions=generate_config(learning_rate=0.25), labelCol="y", seed=5)
    Pipeline(stages=[Pipeline(stages=[made])]).save(str(tmp_path / "stage"))
    (inner,) = Pipeline.load(str(tmp_path / "stage")).getStages()
    (found,) = inner.getStages()
    assert (found.uid, found.explainParams()) == (made.uid, made.explainParams())
    assert found.getAqcuireLock() is False
    assert found.getTensorflowGraph() == graph
    model = SparkAsyncDLModel(inputCol="x", modelJson=graph, modelWeights="[2.5]", tfOutput="out:0")
    model._values = {"w": np.float32(1.5).reshape(())}
    nested = PipelineModel([PipelineModel([model])])
    nested.write().overwrite().save(str(tmp_path / "model"))
    loaded = PysparkPipelineWrapper.unwrap(PipelineModel.load(str(tmp_path / "model")))
    (again,) = loaded.stages[0].stages
    assert (again.uid, again.getInputCol(), again.getModelWeights()) == (model.uid, "x", "[2.5]")
    df = ones(spark, 3)
    assert [row.predicted for row in loaded.transform(df).collect()] == [1.5] * 3
    with pytest.raises(TypeError, match="not SparkAsyncDLModel"):
        PysparkPipelineWrapper.unwrap(again)
    files = [path for path in (tmp_path / "model").rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"graph.json", "weights.safetensors"}
    assert not any(b"cloudpickle" in path.read_bytes() or b"\x80\x04" in path.read_bytes()[:2] for path in files)
    (place,) = (tmp_path / "model" / "stages").iterdir()
    (place,) = (place / "stages").iterdir()
    with pytest.raises(CheckpointError, match=r"holds a .*SparkAsyncDLModel, not a .*SparkAsyncDL:"):
        SparkAsyncDL.load(str(place))
    folder = str(tmp_path / "saved")
    again.saveTensorflow(folder)
    served = load_tensorflow_model(folder, "x", "x0", "prediction", "served")
    assert [row.served for row in served.transform(df).collect()] == [1.5] * 3


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras with NumPy 2.4
def test_models_from_elsewhere(spark: SparkSession, tmp_path: Path) -> None:
    with tf.Graph().as_default() as graph, tf.Session() as session:
        x = tf.placeholder(tf.float32, [None, 2], name="x")
        w = tf.Variable([[1.0], [10.0]], name="w")
        shift = tf.Variable(0.0, trainable=False, name="shift")
        tf.add(tf.matmul(x, w), shift, name="out")
        session.run(tf.global_variables_initializer())
        saver = tf.train.Saver()
        saver.save(session, str(tmp_path / "kept" / "model"), 100)
        session.run([tf.assign(w, [[2.0], [20.0]]), tf.assign(shift, 0.5)])
        saver.save(session, str(tmp_path / "kept" / "model"), 200)
        frozen = tf.graph_util.convert_variables_to_constants(session, graph.as_graph_def(), ["out"])
        (tmp_path / "frozen.pb").write_bytes(frozen.SerializeToString())
    keras = __import__("keras")
    model = keras.Sequential([keras.Input((2,), name="seen"), keras.layers.Dense(1, name="told")])
    model.set_weights([np.array([[2.0], [20.0]]), np.array([0.5])])
    model.save(tmp_path / "model.keras")
    df = spark.createDataFrame([(1.0, 1.0), (0.0, 2.0)], "a double, b double").coalesce(1)
    joined = PipelineModel([VectorAssembler(inputCols=["a", "b"], outputCol="features")])
    names = {"tfInput": "x:0", "tfOutput": "out:0"}
    first = attach_tensorflow_model_to_pipeline(str(tmp_path / "kept" / "model-100"), joined, "features", **names)
    assert [row.predicted for row in first.transform(df).collect()] == [11.0, 20.0]
    ends = {"model.keras": {"tfInput": "seen", "tfOutput": "told"}}  # by the names of layers
    for place in ("kept", "frozen.pb", "model.keras"):
        last = attach_tensorflow_model_to_pipeline(str(tmp_path / place), joined, "features", **ends.get(place, names))
        assert [row.predicted for row in last.transform(df).collect()] == [22.5, 40.5], place
    last.save(str(tmp_path / "stage"))
    again = PipelineModel.load(str(tmp_path / "stage")).transform(df)
    assert [row.predicted for row in again.collect()] == [22.5, 40.5]
    with pytest.raises(PlanError, match="no model at"):
        load_tensorflow_model(str(tmp_path / "nowhere"), "features", **names)
