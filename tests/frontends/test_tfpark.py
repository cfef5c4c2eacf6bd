"""TFPark's door, case by case: what is learnt in numbers that can be worked out, and what a dataset's tensors are."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from pyspark import SparkContext
from pyspark.ml.linalg import Vectors
from pyspark.sql import SparkSession

from firesteel import TFDataset, TFOptimizer, TFPredictor
from firesteel.bigdl import (
    SGD,
    Adam,
    EveryEpoch,
    Exponential,
    MaxEpoch,
    MaxIteration,
    MaxScore,
    MinLoss,
    SeveralIteration,
    Top1Accuracy,
    TrainSummary,
    TriggerOr,
    ValidationSummary,
)
from firesteel.core.errors import CheckpointError, PlanError, ReplicaFailed, SchemaError, UnknownName
from firesteel.data.tfrecord import make_example, write_records
from firesteel.tfpark import ZooOptimizer

tf1 = tf.compat.v1


class Line:
    """``w · x`` and a loss of it on a dataset of x, or of (x, y); everything in a graph of its own."""

    def __init__(
        self, dataset: TFDataset, start: float = 0.0, loss: Callable[[Any, Any], Any] = lambda w, x: w * x
    ) -> None:
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.x = dataset.tensors[0]
            self.w = tf1.get_variable("w", [], initializer=tf1.constant_initializer(start))
            self.loss = tf.reduce_mean(loss(self.w, self.x))
        self.optimizer: Any = None

    def train(self, method: Any, end: Any = None, **options: Any) -> float:
        if self.optimizer is None:
            with self.graph.as_default():
                self.optimizer = TFOptimizer(self.loss, method, **options)
        self.optimizer.optimize(MaxEpoch(1) if end is None else end)
        return self.value

    @property
    def value(self) -> float:
        return float(self.optimizer.sess.run(self.w))


def rows(sc: SparkContext, values: list[float], partitions: int = 2, **options: Any) -> TFDataset:
    """A dataset of numbers, in the flat form."""
    rdd = sc.parallelize([[np.array(value)] for value in values], partitions)
    return TFDataset.from_rdd(rdd, names=["x"], shapes=[[]], types=[tf.float32], **options)


def in_partitions(sc: SparkContext, parts: list[list[Any]]) -> Any:
    return sc.parallelize(range(len(parts)), len(parts)).flatMap(lambda place: parts[place])


# --- what is learnt ---


def test_replicas_descend_together(sc: SparkContext) -> None:
    rdd = sc.parallelize([(np.float32(x), np.float32(0)) for x in (0, 0, 1, 1)], 2)
    dataset = TFDataset.from_rdd(rdd, features=(tf.float32, []), labels=(tf.float32, []), batch_size=4)
    line = Line(dataset, 1.0)
    with line.graph.as_default():
        x, y = dataset.tensors
        assert (x.name, y.name) == ("input0:0", "input0_1:0")
        line.loss = tf.reduce_mean(tf.square(line.w * x - y))
    before = len(line.graph.get_operations()), len(line.graph.get_collection("variables"))
    assert line.train(SGD(0.5), replicas=2) == pytest.approx(0.5)
    assert line.train(None) == pytest.approx(0.5)  # MaxEpoch(1) again: nothing is left to do
    assert line.train(None, MaxEpoch(2)) == pytest.approx(0.25)
    assert (len(line.graph.get_operations()), len(line.graph.get_collection("variables"))) == before


@pytest.mark.parametrize("replicas", [1, 3])
def test_rows_count_and_not_replicas(sc: SparkContext, replicas: int) -> None:
    line = Line(rows(sc, [1, 1, 2], batch_size=3))
    assert line.train(SGD(1.0), replicas=replicas) == pytest.approx(-4 / 3)


def test_a_short_last_batch_is_a_step(sc: SparkContext) -> None:
    line = Line(rows(sc, [1.0] * 5, batch_size=3), 1.0, lambda w, x: tf.square(w * x))
    assert line.train(SGD(0.25), replicas=2) == pytest.approx(0.25)


def test_uneven_and_empty_partitions_and_fewer_than_replicas(sc: SparkContext) -> None:
    values = [[float(v)] for v in range(10)]
    found = []
    for parts, replicas in (([values], 1), ([values[:7], [], values[7:9], values[9:]], 2), ([values], 3)):
        dataset = TFDataset.from_rdd(in_partitions(sc, parts), names=["x"], shapes=[[]], batch_size=10)
        line = Line(dataset, 0.5, lambda w, x: tf.square(w * x - 1))
        found.append(line.train(SGD(0.01), MaxEpoch(3), replicas=replicas))
    assert found == pytest.approx([found[0]] * 3, abs=1e-6)


def test_batches_summaries_and_schedules(sc: SparkContext, tmp_path: Path) -> None:
    line = Line(rows(sc, [1.0] * 16, batch_size=8))
    with line.graph.as_default():
        line.optimizer = TFOptimizer(line.loss, SGD(0.1, leaningrate_schedule=Exponential(1, 0.1)))
    summary = TrainSummary(str(tmp_path), "line")
    summary.set_summary_trigger("Throughput", SeveralIteration(2)).set_summary_trigger("Parameters", EveryEpoch())
    line.optimizer.set_train_summary(summary)
    assert line.train(None) == pytest.approx(-0.11)
    assert [step for step, _, _ in summary.read_scalar("Loss")] == [1, 2]
    assert [value for _, value, _ in summary.read_scalar("Loss")] == pytest.approx([0.0, -0.1])
    assert [value for _, value, _ in summary.read_scalar("LearningRate")] == pytest.approx([0.1, 0.01])
    assert [step for step, _, _ in summary.read_scalar("Throughput")] == [2]
    with pytest.raises(UnknownName, match=r"'Nonsense'.*Loss"):
        summary.read_scalar("Nonsense")
    assert len(list((tmp_path / "line" / "train").iterdir())) == 2  # scalars, and a file of histograms
    assert [step for step, _, _ in line.optimizer.get_train_summary("Loss")] == [1, 2]


def test_tf_data_with_a_table_a_flag_and_python_elsewhere(spark: SparkSession) -> None:
    graph = tf.Graph()
    with graph.as_default():
        table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a", "b"], [0.0, 1.0]), -1.0)
        words = tf.data.Dataset.from_tensor_slices((np.arange(102.0, dtype=np.float32), ["b"] * 102))
        data = words.map(lambda x, word: {"x": x * table.lookup(word), "is_on": tf.equal(word, "b")})
        dataset = TFDataset.from_tf_data_dataset(data, batch_size=102)
        tensors = dataset.tensors
        assert sorted(tensors) == ["is_on", "x"]  # the structure of an element
        w = tf1.get_variable("w", [], initializer=tf1.zeros_initializer())
        loss = tf.reduce_mean(w * tensors["x"] * tf.cast(tensors["is_on"], tf.float32))
        tf.py_function(lambda v: v, [loss], tf.float32)
        optimizer = TFOptimizer(loss, SGD(1.0), replicas=2)
        optimizer.optimize()
        assert float(optimizer.sess.run(w)) == pytest.approx(-50.5)
        with pytest.raises(PlanError, match=r"\.batch inside"):
            TFDataset.from_tf_data_dataset(data.batch(3), batch_size=102)
        with pytest.raises(PlanError, match=r"\.repeat inside"):
            TFDataset.from_tf_data_dataset(data.repeat(), batch_size=102)
        calling = words.map(lambda x, word: tf.numpy_function(lambda v: v, [x], tf.float32))
        with pytest.raises(PlanError, match="pass a function"):
            TFDataset.from_tf_data_dataset(calling, batch_size=102)
    numbers = TFDataset.from_tf_data_dataset(made_with_python, batch_size=16)
    line = Line(numbers)
    summary_steps = line.train(SGD(0.0), replicas=2), len(line.optimizer.get_train_summary("Loss"))
    assert summary_steps == (0.0, 7)
    scored = TFDataset.from_tf_data_dataset(made_with_python, batch_per_thread=20)
    with tf.Graph().as_default(), tf1.Session() as session:
        predictor = TFPredictor(session, [scored.tensors[0] * 2])
    assert np.allclose(predictor.predict().collect(), 2 * np.arange(102))


def made_with_python() -> Any:
    numbers = tf.data.Dataset.from_tensor_slices(np.arange(102.0, dtype=np.float32))

    def same(x: Any) -> Any:
        found = tf.numpy_function(lambda v: v, [x], tf.float32)
        found.set_shape([])
        return (found,)

    return numbers.map(same)


def test_checkpoints_and_going_on(sc: SparkContext, tmp_path: Path) -> None:
    values = [float(v) / 10 for v in range(20)]

    def line() -> Line:
        made = Line(rows(sc, values, batch_size=4, sequential_order=True), 0.5, lambda w, x: tf.square(w * x - 1))
        with made.graph.as_default():
            made.optimizer = TFOptimizer(made.loss, Adam(0.1), model_dir=str(tmp_path / "kept"), replicas=2)
        return made

    whole = line()
    once = whole.train(None)
    twice = whole.train(None, MaxEpoch(2))
    names = sorted(path.name for path in (tmp_path / "kept").glob("*/*"))
    assert names == ["model.10", "model.5", "optimMethod-TFParkTraining.10", "optimMethod-TFParkTraining.5"]
    other = line()
    other.optimizer.load_checkpoint(str(tmp_path / "kept"), 5)
    assert other.value == once
    assert other.train(None) == once
    assert other.train(None, MaxEpoch(2)) == pytest.approx(twice, abs=1e-6)
    with tf.Graph().as_default():
        dataset = rows(sc, values, batch_size=4)
        v = tf1.get_variable("another", [])
        stranger = TFOptimizer(tf.reduce_mean(v * dataset.tensors[0]), Adam(0.1))
    with pytest.raises(CheckpointError, match=r"missing are another; too many are w"):
        stranger.load_checkpoint(str(tmp_path / "kept"))
    cut = line()
    cut.optimizer.model_dir = str(tmp_path / "cut")
    cut.optimizer.optimize(MaxIteration(5), checkpoint_trigger=SeveralIteration(2))
    assert sorted(path.name for path in (tmp_path / "cut").glob("*/model.*")) == ["model.2", "model.4"]
    assert len(cut.optimizer.get_train_summary("Loss")) == 5
    # A Saver finds nothing but the user's variables, and saves the trained ones.
    with cut.graph.as_default():
        tf1.train.Saver().save(cut.optimizer.sess, str(tmp_path / "saved"))
    assert [name for name, _ in tf.train.list_variables(str(tmp_path / "saved"))] == ["w"]


def test_prefixes_flags_clipping_and_validation(sc: SparkContext, tmp_path: Path) -> None:
    """Everything at once, through the constructor and through ``from_loss``."""
    x = np.arange(24, dtype=np.float32).reshape(12, 2) / 10
    y = (x.sum(1) > 2).astype(np.int32)
    found = []
    for way in ("constructor", "from_loss"):
        with tf.Graph().as_default():
            dataset = TFDataset.from_ndarrays((x, y), batch_size=5, val_tensors=(x, y), sequential_order=True)
            features, labels = dataset.tensors
            assert (features.name, labels.name) == ("input_0:0", "input_1:0")
            flag = tf1.placeholder(tf.int64, [], "flag")
            is_on = tf1.placeholder(tf.bool, [], "is_on")
            a = tf1.get_variable("deep/a", [2, 3], initializer=tf1.constant_initializer(0.3))
            b = tf1.get_variable("deep/b", [3, 2], initializer=tf1.constant_initializer([[0.1, -0.2]] * 3))
            c = tf1.get_variable("flat", [2], initializer=tf1.ones_initializer())
            logits = tf.matmul(tf.matmul(features, a), b) + c * tf.cast(flag, tf.float32)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
            seen = tf.cast(flag, tf.float32) * tf.where(is_on, 1.0, 10.0)
            options: dict[str, Any] = {
                "val_outputs": [logits],
                "val_labels": [labels],
                "val_method": [Top1Accuracy()],
                "metrics": {"seen": seen},
                "clip_norm": 0.1,
                "replicas": 2,
                "tensor_with_value": {flag: (1, 3), is_on: (True, False)},
            }
            methods = {"deep": SGD(0.5), "deep/b": Adam(0.1), "flat": SGD(0.0)}
            make = TFOptimizer if way == "constructor" else TFOptimizer.from_loss
            optimizer = make(loss, methods, **options)
            train, held = TrainSummary(str(tmp_path), way), ValidationSummary(str(tmp_path), way)
            optimizer.set_train_summary(train)
            optimizer.set_val_summary(held)
            optimizer.optimize(MaxEpoch(2))
            values = optimizer.sess.run([a, b, c])
            scored = optimizer.sess.run(logits, {features: x, flag: 3})
            accuracy = float((scored.argmax(1) == y).mean())
        assert [step for step, _, _ in held.read_scalar("Top1Accuracy")] == [3, 6]
        assert held.read_scalar("Top1Accuracy")[-1][1] == pytest.approx(accuracy)
        assert [value for _, value, _ in held.read_scalar("seen")] == [30.0, 30.0]
        losses = [value for _, value, _ in train.read_scalar("Loss")]
        assert np.array_equal(values[2], [1, 1])  # a rate of 0 does not move it by a bit
        assert np.abs(values[1] - [[0.1, -0.2]] * 3).max() > 0.05
        found.append([*(value.ravel() for value in values), losses])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_look_ups_and_an_end_by_score(sc: SparkContext) -> None:
    words = np.arange(40, dtype=np.int32) % 7
    found = []
    for replicas in (1, 2):
        with tf.Graph().as_default():
            data = words, words * 1.0
            dataset = TFDataset.from_ndarrays(data, batch_size=10, val_tensors=data, sequential_order=True)
            word, number = dataset.tensors
            table = tf1.get_variable("table", [7, 3], initializer=tf1.constant_initializer(0.3))
            loss = tf.reduce_mean(tf.square(tf.reduce_sum(tf.nn.embedding_lookup(table, word), 1) - number))
            optimizer = TFOptimizer(loss, Adam(0.05), metrics={"mean": tf.reduce_mean(number)}, replicas=replicas)
            optimizer.optimize(TriggerOr(MinLoss(2.0), MaxScore(0.0)))  # the mean is above 0 after the first epoch
            assert [step for step, _, _ in optimizer.get_train_summary("Loss")] == [1, 2, 3, 4]
            assert optimizer.get_validation_summary("mean")[0][1] == pytest.approx(words.mean())
            found.append(optimizer.sess.run(table))
    np.testing.assert_allclose(found[0], found[1], atol=1e-6)
    assert np.abs(found[0] - 0.3).max() > 0.05


def test_a_training_op_of_the_users(sc: SparkContext) -> None:
    with tf.Graph().as_default():
        dataset = rows(sc, [1.0, 2.0, 3.0], batch_size=3)
        w = tf1.get_variable("w", [], initializer=tf1.ones_initializer())
        loss = tf.reduce_mean(w * dataset.tensors[0])
        train_op = ZooOptimizer(tf1.train.MomentumOptimizer(0.1, 0.9)).minimize(loss)
        optimizer = TFOptimizer.from_train_op(train_op, loss, replicas=2)
        optimizer.optimize(MaxEpoch(2))
        assert optimizer.sess.run(w) == pytest.approx(1 - 0.2 - 0.38)
        (slot,) = [v for v in tf1.global_variables() if "Momentum" in v.name]
        assert optimizer.sess.run(slot) == pytest.approx(3.8)


def test_records_of_bytes_are_parsed_in_the_graph(sc: SparkContext, tmp_path: Path) -> None:
    for folder, count in (("train", 9), ("held", 4)):
        for part in range(2):
            examples = [make_example({"x": [float(v)]}) for v in range(part, count, 2)]
            write_records(str(tmp_path / folder / f"{part}.tfrecord"), examples)
    with tf.Graph().as_default():
        dataset = TFDataset.from_tfrecord_file(
            sc, str(tmp_path / "train"), batch_size=4, validation_file_path=str(tmp_path / "held")
        )
        (record,) = dataset.tensors
        assert record.dtype == tf.string
        parsed = tf.io.parse_example(record, {"x": tf.io.FixedLenFeature([], tf.float32)})["x"]
        w = tf1.get_variable("w", [], initializer=tf1.zeros_initializer())
        loss = tf.reduce_mean(tf.square(w * parsed - 2 * parsed))
        optimizer = TFOptimizer(loss, SGD(0.01), metrics={"mean": tf.reduce_mean(parsed)}, replicas=2)
        optimizer.set_tensorboard(str(tmp_path / "board"), "app")
        optimizer.optimize(MaxEpoch(3))
    assert [step for step, _, _ in optimizer.get_validation_summary("mean")] == [3, 6, 9]
    assert optimizer.get_validation_summary("mean")[0][1] == pytest.approx(1.5)
    assert float(optimizer.sess.run(w)) == pytest.approx(2.0, abs=0.3)
    assert list((tmp_path / "board" / "app" / "validation").iterdir())


def test_a_wrong_row_fails_at_once_and_nothing_is_left(sc: SparkContext) -> None:
    from processes import left  # not above: tasks import this file, and have no such module

    parts = [[[np.ones(3)]] * 4, [[np.ones(3)], [np.ones(2)]]]
    dataset = TFDataset.from_rdd(in_partitions(sc, parts), names=["rows"], shapes=[[3]], batch_size=4)
    with tf.Graph().as_default():
        w = tf1.get_variable("w", [3], initializer=tf1.ones_initializer())
        loss = tf.reduce_mean(dataset.tensors[0] * w)
        optimizer = TFOptimizer(loss, SGD(1.0), replicas=2)
        begin = time.monotonic()
        with pytest.raises(ReplicaFailed, match=r"'rows'.*\(2,\).*\(3,\)") as caught:
            optimizer.optimize()
        assert time.monotonic() - begin < 120
        assert "Traceback" in caught.value.traceback
        assert np.array_equal(optimizer.sess.run(w), [1, 1, 1])
        good = TFDataset.from_rdd(in_partitions(sc, [parts[0], []]), names=["rows"], shapes=[[3]], batch_size=4)
        again = TFOptimizer(loss, SGD(1.0), sess=optimizer.sess, dataset=good, inputs=dataset.tensors, replicas=2)
        again.optimize()
        assert again.sess.run(w) == pytest.approx([2 / 3] * 3)
    deadline = time.monotonic() + 30
    while left() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert left() == []


# --- datasets and their tensors ---


def test_tensors_of_every_form(sc: SparkContext, spark: SparkSession) -> None:
    rdd = sc.parallelize([(np.zeros(10), 1)], 1)
    pair = {"features": (tf.float32, [10]), "labels": (tf.int32, [])}
    with tf.Graph().as_default():
        bare = TFDataset.from_rdd(rdd, **pair)
        assert [tensor.shape.as_list() for tensor in bare.tensors] == [[10], []]
        assert not bare.has_batch
        flat = TFDataset.from_rdd(rdd, names=["a", "b"], shapes=[[10], []], types=[tf.float32, tf.int64])
        assert [(t.name, t.shape.as_list()) for t in flat.tensors] == [("a:0", [None, 10]), ("b:0", [None])]
        assert flat.tensors is flat.tensors
        assert flat.input_names == ["a", "b"]
        assert flat.output_shapes == [[None, 10], [None]]
        listed = TFDataset.from_rdd(rdd, features=[(tf.float32, [10]), (tf.float32, [10])], batch_per_thread=4)
        assert [tensor.name for tensor in listed.tensors[0]] == ["list_input_0:0", "list_input_1:0"]
        named = TFDataset.from_rdd(rdd, features={"u": (tf.string, [])}, labels=(tf.int32, [None]), batch_size=4)
        assert named.feature_tensors["u"].dtype == tf.string
        assert named.label_tensors.shape.as_list() == [None, None]
        fixed = TFDataset.from_rdd(rdd, **pair, batch_per_thread=4, hard_code_batch_size=True)
        assert fixed.tensors[0].shape.as_list() == [4, 10]
        arrays = TFDataset.from_ndarrays({"a": np.zeros((3, 2)), "b": np.zeros(3, np.int64)}, batch_size=2)
        assert arrays.tensors["a"].dtype == tf.float32
        assert arrays.tensors["b"].dtype == tf.int64
        df = _every_column(spark)
        dataset = TFDataset.from_dataframe(
            df, ["bo", "i", "l", "f", "d", "ar", "nn", "s", "by", "ve"], ["l"], batch_size=2
        )
        kinds = [(tensor.name, tensor.dtype.name, tensor.shape.rank) for tensor in dataset.tensors[0]]
    assert kinds == [
        ("bo:0", "bool", 1),
        ("i:0", "int32", 1),
        ("l:0", "int64", 1),
        ("f:0", "float32", 1),
        ("d:0", "float64", 1),
        ("ar:0", "float32", 2),
        ("nn:0", "int32", 3),
        ("s:0", "string", 1),
        ("by:0", "string", 1),
        ("ve:0", "float32", 2),
    ]


def _every_column(spark: SparkSession) -> Any:
    rows = [
        (i, True, i, i, i / 2, i / 4, [float(i), 1.0], [[i, 2]], f"s{i}", bytes([i]),
         Vectors.sparse(2, [0], [float(i)]) if i % 2 else Vectors.dense([float(i), 0.0]))
        for i in range(4)
    ]  # fmt: skip
    schema = "id int, bo boolean, i int, l long, f float, d double, ar array<double>, nn array<array<int>>, s string"
    schema += ", by binary"
    plain = spark.createDataFrame([row[:-1] for row in rows], schema)
    vectors = spark.createDataFrame([(row[0], row[-1]) for row in rows], ["id", "ve"])
    return plain.join(vectors, "id").orderBy("id").coalesce(1)


def test_what_is_wrong_with_a_dataset_is_said(sc: SparkContext, spark: SparkSession, jobs: Callable[[], int]) -> None:
    rdd = sc.parallelize([[np.zeros(2)]], 1)
    flat = {"names": ["x"], "shapes": [[2]]}
    before = jobs()
    with pytest.raises(PlanError, match=r"batch_size.*batch_per_thread"):
        TFDataset.from_rdd(rdd, **flat, batch_size=4, batch_per_thread=4)
    with pytest.raises(PlanError, match="shape"):
        TFDataset.from_rdd(rdd, features=(tf.float32, None))
    with pytest.raises(PlanError, match="features="):
        TFDataset.from_rdd(rdd, names=["x"])
    with pytest.raises(PlanError, match=r"DISK_n.*'TAPE'"):
        TFDataset.from_rdd(rdd, **flat, memory_type="TAPE")
    with pytest.raises(PlanError, match="positive int"):
        TFDataset.from_rdd(rdd, **flat, batch_size=0)
    with pytest.raises(PlanError, match="3, 4"):
        TFDataset.from_ndarrays((np.zeros(3), np.zeros(4)), batch_size=1)
    with pytest.raises(PlanError, match=r"val_tensors.*input_0.*\(3,\)"):
        TFDataset.from_ndarrays((np.zeros((2, 2)),), batch_size=1, val_tensors=(np.zeros((2, 3)),))
    with pytest.raises(SchemaError, match=r"'no'.*id"):
        TFDataset.from_dataframe(spark.range(3), ["no"])
    with pytest.raises(SchemaError, match=r"'d'.*date"):
        TFDataset.from_dataframe(spark.sql("select current_date() as d"), ["d"])
    other = spark.sql("select 1 as id")
    with pytest.raises(SchemaError, match=r"'id' is of another type"):
        TFDataset.from_dataframe(spark.range(3), ["id"], validation_df=other, batch_size=1)
    with pytest.raises(PlanError, match="tf1"):
        TFDataset.from_rdd(rdd, **flat).tensors  # noqa: B018 - eager execution is on here
    with tf.Graph().as_default(), tf1.Session() as session:
        training = TFDataset.from_rdd(rdd, **flat, batch_size=4)
        scoring = TFDataset.from_rdd(rdd, **flat, batch_per_thread=4)
        w = tf1.get_variable("w", [2], initializer=tf1.zeros_initializer())
        with pytest.raises(PlanError, match="labels="):
            training.label_tensors  # noqa: B018
        with pytest.raises(PlanError, match="batch_per_thread"):
            TFPredictor(session, [training.tensors[0] * w])
        with pytest.raises(PlanError, match="no value"):
            TFPredictor(session, [scoring.tensors[0] * w])
        with pytest.raises(PlanError, match="batch_size"):
            TFOptimizer(tf.reduce_mean(scoring.tensors[0] * w), SGD())
        loss = tf.reduce_mean(training.tensors[0] * w)
        with pytest.raises(PlanError, match="scalar"):
            TFOptimizer(training.tensors[0] * w, SGD())
        with pytest.raises(PlanError, match="no tensor of a TFDataset"):
            TFOptimizer(tf.reduce_mean(w), SGD())
        with pytest.raises(PlanError, match="two datasets"):
            TFOptimizer(tf.reduce_mean(training.tensors[0] * w) + tf.reduce_mean(scoring.tensors[0]), SGD())
        with pytest.raises(PlanError, match="from_train_op"):
            TFOptimizer(loss, tf1.train.AdamOptimizer())
        with pytest.raises(PlanError, match="'p', which nothing feeds"):
            TFOptimizer(loss * tf1.placeholder(tf.float32, [], "p"), SGD())
        with pytest.raises(PlanError, match="clip_value"):
            TFOptimizer(loss, SGD(), clip_value=0)
        with pytest.raises(PlanError, match=r"'v'.*: w"):
            TFOptimizer(loss, {"v": SGD()})
        with pytest.raises(PlanError, match="val_split"):
            TFOptimizer(loss, SGD(), val_outputs=loss, val_labels=loss, val_method=Top1Accuracy())
        with pytest.raises(PlanError, match="pair"):
            TFOptimizer(loss, SGD(), tensor_with_value={loss: 1})
    assert jobs() == before


def test_fixed_sizes_and_a_graph_for_elsewhere(sc: SparkContext, tmp_path: Path) -> None:
    with tf.Graph().as_default(), tf1.Session() as session:
        dataset = rows(sc, [1.0] * 9, batch_size=4, hard_code_batch_size=True)
        assert dataset.tensors[0].shape.as_list() == [4]  # one replica is this context's default
        w = tf1.get_variable("w", [], initializer=tf1.ones_initializer())
        loss = tf.reduce_mean(w * dataset.tensors[0])
        with pytest.raises(PlanError, match=r"9 rows.*4"):
            TFOptimizer(loss, SGD()).optimize()
        session.run(w.initializer)
        TFOptimizer.export_training_model(str(tmp_path), loss, session, inputs=dataset.tensors, metrics={"m": loss})
    meta = json.loads((tmp_path / "training_meta.json").read_text())
    assert meta["inputs"] == ["x:0"]
    assert (tmp_path / "model.meta").exists()


# --- prediction ---


def test_predictions_come_row_by_row_lazily(sc: SparkContext, jobs: Callable[[], int]) -> None:
    data = np.random.default_rng(0).random((1003, 3)).astype(np.float32)
    edges = [0, 200, 200, 350, 600, 750, 751, 1003]
    parts = [[[row] for row in data[low:high]] for low, high in pairwise(edges)]
    dataset = TFDataset.from_rdd(in_partitions(sc, parts), names=["x"], shapes=[[3]], batch_per_thread=20)
    with tf.Graph().as_default():
        (x,) = dataset.tensors
        w = tf1.get_variable("w", [3, 2])
        outputs = [tf.matmul(x, w), tf.reduce_sum(x, 1)]
        with tf1.Session() as session:
            session.run(w.initializer)
            expected = session.run(outputs, {x: data})
            before = jobs()
            predictor, alone = TFPredictor(session, outputs), TFPredictor.from_outputs(session, [outputs[0]])
            bad = TFPredictor(session, [tf.reduce_sum(x, 0)])
    both = predictor.predict()
    assert jobs() == before
    assert both.getNumPartitions() == 7
    assert len(both.take(1)[0]) == 2
    found = both.collect()
    assert np.allclose([row[0] for row in found], expected[0], atol=1e-6)
    assert np.allclose([row[1] for row in found], expected[1], atol=1e-6)
    rows = alone.predict()
    assert isinstance(rows.first(), np.ndarray)
    assert np.allclose(np.stack(rows.collect()), expected[0], atol=1e-6)
    with pytest.raises(Exception, match="Sum"):
        bad.predict().collect()


def test_columns_to_columns(spark: SparkSession, jobs: Callable[[], int]) -> None:
    df = _every_column(spark).cache()
    df.count()
    with tf.Graph().as_default():
        dataset = TFDataset.from_dataframe(df, ["ve", "ar", "i", "s"], batch_per_thread=3)
        vector, array, number, text = dataset.tensors[0]
        total = tf.identity(tf.reduce_sum(vector, 1) + tf.reduce_sum(array, 1), name="scope/total")
        with tf1.Session() as session:
            predictor = TFPredictor(session, [total, array * 2, tf.add(number, 1, name="next"), text])
    before = jobs()
    frame = predictor.predict_dataframe(["total", "twice", "next", "text"])
    assert jobs() == before
    assert frame.columns == [*df.columns, "total", "twice", "next", "text"]
    kinds = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    assert [kinds[name] for name in frame.columns[-4:]] == ["float", "array<float>", "int", "binary"]
    found = frame.collect()
    assert [row["id"] for row in found] == [0, 1, 2, 3]
    assert [row["total"] for row in found] == [1.0, 3.0, 5.0, 7.0]  # dense and sparse rows alike
    assert found[2]["twice"] == [4.0, 2.0]
    assert [row["next"] for row in found] == [1, 2, 3, 4]
    assert bytes(found[3]["text"]) == b"s3"
    with pytest.raises(SchemaError, match="3 names"):
        predictor.predict_dataframe(["a", "b", "c"])


def test_strings_one_row_at_a_time_and_fixed_sizes(sc: SparkContext) -> None:
    strings = sc.parallelize(["123", "456"], 1)
    with tf.Graph().as_default():
        dataset = TFDataset.from_string_rdd(strings)
        assert dataset.tensors[0].shape.rank == 0
        fixed = TFDataset.from_bytes_rdd(strings, batch_per_thread=4, hard_code_batch_size=True)
        assert fixed.tensors[0].shape.as_list() == [4]
        with tf1.Session() as session:
            one = TFPredictor(session, [tf.strings.to_number(dataset.tensors[0])])
            four = TFPredictor(session, [tf.strings.to_number(fixed.tensors[0])])
    assert [float(value) for value in one.predict().collect()] == [123.0, 456.0]
    assert [float(value) for value in four.predict().collect()] == [123.0, 456.0]


def test_sets_of_images(sc: SparkContext, spark: SparkSession) -> None:
    from io import BytesIO

    from PIL import Image

    pictures = np.random.default_rng(0).integers(0, 255, (5, 4, 6, 3)).astype(np.uint8)
    encoded = []
    for picture in pictures:
        file = BytesIO()
        Image.fromarray(picture).save(file, "png")
        encoded.append(file.getvalue())
    frame = spark.createDataFrame(
        [(f"u{i}", data, i) for i, data in enumerate(encoded)], "uri string, image binary, label int"
    )
    from firesteel import XShards

    sets = [
        sc.parallelize(list(zip(pictures, range(5), strict=True)), 2),
        XShards.partition({"x": pictures, "y": np.arange(5)}, 2),
        frame,
    ]
    for given in sets:
        with tf.Graph().as_default(), tf1.Session() as session:
            dataset = TFDataset.from_image_set(given, (tf.uint8, [4, 6, 3]), (tf.int32, []), batch_per_thread=2)
            image, label = dataset.tensors
            total = tf.reduce_sum(tf.cast(image, tf.int64), [1, 2, 3]) + tf.cast(label, tf.int64)
            found = TFPredictor(session, [total]).predict().collect()
        expected = (pictures.astype(np.int64).sum((1, 2, 3)) + np.arange(5)).tolist()
        if given is frame:
            assert [uri for uri, _ in found] == [f"u{i}" for i in range(5)]
            found = [value for _, value in found]
        assert [int(value) for value in found] == expected
    with tf.Graph().as_default(), tf1.Session() as session:
        texts = TFDataset.from_text_set(
            sc.parallelize([np.array([1, 2]), np.array([3, 4])], 1), (tf.int64, [2]), batch_per_thread=2
        )
        found = TFPredictor(session, [texts.tensors[0] * 2]).predict().collect()
        stated = TFDataset.from_feature_set(spark.range(3), (tf.float32, []), batch_per_thread=2)
        numbers = TFPredictor(session, [stated.tensors[0] + 1]).predict().collect()
    assert np.array_equal(found, [[2, 4], [6, 8]])
    assert [float(value) for value in numbers] == [1.0, 2.0, 3.0]
