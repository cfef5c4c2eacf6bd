"""TensorFlow graphs through the Estimator: what replicas learn, and what a session of TensorFlow's own would say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from pyspark.sql import DataFrame, SparkSession

from firesteel import Estimator, XShards
from firesteel.core.errors import CheckpointError, PlanError, SchemaError, UnknownName, UnsupportedError
from firesteel.learn import metrics as figures
from firesteel.learn import optimizers

tf1 = tf.compat.v1
ROWS = 50
RNG = np.random.default_rng(4)
X = RNG.random((ROWS, 4), dtype=np.float32)
Y = (X.sum(axis=1) > 2).astype(np.int64)
COLUMNS = {"feature_cols": "x", "label_cols": "y"}


class Net:
    """A classifier with dropout that a flag turns on, in a graph of its own."""

    def __init__(self, has_dropout: bool = False) -> None:
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.x = tf1.placeholder(tf.float32, [None, 4], name="x")
            self.y = tf1.placeholder(tf.int32, [None], name="y")
            w, v = tf1.get_variable("w", [4, 6]), tf1.get_variable("v", [6, 2])
            hidden = tf.nn.tanh(tf.matmul(self.x, w))
            self.flag = tf1.placeholder_with_default(False, [], "is_training")
            if has_dropout:
                hidden = tf.nn.dropout(hidden, rate=tf.where(self.flag, 0.5, 0.0))
            self.logits = tf.matmul(hidden, v)
            self.loss = tf1.losses.sparse_softmax_cross_entropy(self.y, self.logits)
            self.right = tf.cast(tf.equal(tf.argmax(self.logits, 1, tf.int32), self.y), tf.float32)
            self.accuracy = tf.reduce_mean(self.right)

    def estimator(self, optimizer: Any = None, workers: int = 2, **parts: Any) -> Any:
        with self.graph.as_default():
            optimizer = optimizer() if callable(optimizer) else optimizer
        parts = {"outputs": self.logits, "metrics": {"acc": self.accuracy}, "seed": 7, **parts}
        return Estimator.from_graph(
            inputs=self.x, labels=self.y, loss=self.loss, optimizer=optimizer, workers_per_node=workers, **parts
        )


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> DataFrame:
    rows = [(i, [float(v) for v in x], int(y)) for i, (x, y) in enumerate(zip(X, Y, strict=True))]
    df = spark.createDataFrame(rows, "id long, x array<float>, y long")
    # Uneven, one of them empty.
    return df.repartitionByRange(4, (df.id > 3).cast("int") + (df.id > 20).cast("int")).cache()


def test_two_replicas_learn_what_a_session_does(spark: SparkSession) -> None:
    """20 steps in the order of the rows, 7 to a batch. (All optimizers, and 3 replicas: tests/frameworks.)"""
    net = Net()
    est = Net().estimator(lambda: tf1.train.AdamOptimizer(0.01))
    start = est._framework.sessions.read_session(est.sess)
    with net.graph.as_default(), tf1.Session() as session:
        train = tf1.train.AdamOptimizer(0.01).minimize(net.loss)
        session.run(tf1.global_variables_initializer())
        for variable in tf1.trainable_variables():
            session.run(variable.initializer, {variable.initializer.inputs[1]: start[variable.op.name]})
        for rows in [slice(k, k + 7) for _ in range(3) for k in range(0, ROWS, 7)][:20]:
            session.run(train, {net.x: X[rows], net.y: Y[rows]})
        expected = {v.op.name: session.run(v) for v in tf1.trainable_variables()}
    est.fit((X, Y), max_steps=20, batch_size=7, shuffle=False, verbose=0)
    found = est._framework.sessions.read_session(est.sess)
    for variable, value in expected.items():
        np.testing.assert_allclose(found[variable], value, atol=1e-5, err_msg=variable)


def test_fit_evaluate_predict(frame: DataFrame, tmp_path: Path) -> None:
    net = Net()
    before = len(net.graph.get_operations()), len(net.graph.get_collection("variables"))
    est = net.estimator(optimizers.Adam(0.02), model_dir=str(tmp_path))
    history = est.fit(
        frame, epochs=3, batch_size=12, validation_data=(X, Y), checkpoint_trigger="everyepoch", verbose=0, **COLUMNS
    )
    assert (len(net.graph.get_operations()), len(net.graph.get_collection("variables"))) == before
    assert list(history) == ["loss", "acc", "val_loss", "val_acc"]
    assert len(history["val_acc"]) == 3
    assert history["loss"][2] < history["loss"][0]
    loss, accuracy, logits = est.sess.run([net.loss, net.accuracy, net.logits], {net.x: X, net.y: Y})
    assert history["val_acc"][2] == pytest.approx(accuracy)
    assert est.get_train_summary("Loss")[-1][0] == 15
    assert [step for step, _, _ in est.get_validation_summary("acc")] == [5, 10, 15]
    assert sorted(path.name for path in tmp_path.glob("*/model.*")) == ["model.10", "model.15", "model.5"]
    found = est.evaluate(frame, batch_size=7, verbose=0, **COLUMNS)
    assert found == pytest.approx({"loss": loss, "acc": accuracy}, rel=1e-5)
    more = est.evaluate((X, Y), validation_metrics={"rows": net.right, "top": figures.Accuracy()}, verbose=0)
    assert more == pytest.approx({"loss": loss, "rows": accuracy, "top": accuracy}, rel=1e-5)
    scored = est.predict(frame, feature_cols="x")
    assert scored.columns == ["id", "x", "y", "prediction"]
    rows = scored.collect()
    assert np.allclose([r["prediction"].toArray() for r in rows], logits[[r["id"] for r in rows]], atol=1e-5)
    assert np.allclose(est.predict(X), logits, atol=1e-5)
    shards = est.predict(XShards.partition({"x": X}, 3)).collect()
    assert np.allclose(np.concatenate([shard["prediction"] for shard in shards]), logits, atol=1e-5)
    table = est.predict(pd.DataFrame({"x": list(X)}), feature_cols="x")
    assert np.allclose(np.stack(table["prediction"]), logits, atol=1e-5)
    with pytest.raises(UnsupportedError, match="sess"):
        est.get_model()


def test_datasets_of_rows_and_of_batches(spark: SparkSession) -> None:
    weights = []
    for number in range(3):
        est = Net().estimator(lambda: tf1.train.GradientDescentOptimizer(0.5))
        if number == 0:
            est.fit((X, Y), epochs=2, batch_size=12, shuffle=False, verbose=0)
        elif number == 1:
            est.fit(tf.data.Dataset.from_tensor_slices((X, Y)), epochs=2, batch_size=12, verbose=0)
        else:
            with tf.Graph().as_default():  # made the old way: in a graph
                data = tf.data.Dataset.from_tensor_slices((X, Y.astype(np.int32))).batch(12)
            est.fit(data, epochs=2, verbose=0)
        weights.append(est._framework.sessions.read_session(est.sess)["w"])
    assert np.allclose(weights[0], weights[1], atol=1e-6)
    assert np.allclose(weights[0], weights[2], atol=1e-6)
    batches = tf.data.Dataset.from_tensor_slices((X, Y)).batch(9)
    with pytest.raises(PlanError, match="global batches"):
        est.fit(batches, batch_size=9)
    assert est.evaluate(batches, verbose=0) == pytest.approx(est.evaluate((X, Y), verbose=0), rel=1e-5)
    found = np.concatenate([s["prediction"] for s in est.predict(tf.data.Dataset.from_tensor_slices(X)).collect()])
    assert np.allclose(found, est.predict(X), atol=1e-6)
    with pytest.raises(PlanError, match="1 inputs and 1 labels"):
        est.fit(tf.data.Dataset.from_tensor_slices(X))
    calling = tf.data.Dataset.from_tensor_slices((X, Y)).map(
        lambda x, y: (tf.ensure_shape(tf.numpy_function(lambda v: v, [x], tf.float32), [4]), y)
    )
    with pytest.raises(PlanError, match="pass a function"):
        est.fit(calling, batch_size=8)


def test_saving_and_going_on(frame: DataFrame, tmp_path: Path) -> None:
    options = {"batch_size": 12, "verbose": 0, **COLUMNS}
    net = Net()
    est = net.estimator(lambda: tf1.train.AdamOptimizer(0.02))
    est.fit(frame, epochs=2, **options)
    path = est.save(str(tmp_path / "saved" / "model"))
    est.save_checkpoint(str(tmp_path / "kept"))
    est.fit(frame, epochs=1, **options)
    whole = est.sess.run(net.logits, {net.x: X})
    with tf.Graph().as_default(), tf1.Session() as session:  # TensorFlow's own Saver reads it
        tf1.train.import_meta_graph(path + ".meta").restore(session, path)
        again = session.run(net.logits.name, {"x:0": X})
    states: list[Any] = []
    for load in (lambda e: e.load_checkpoint(str(tmp_path / "kept")), lambda e: e.load(path)):
        other_net = Net()
        other = other_net.estimator(lambda: tf1.train.AdamOptimizer(0.02))
        load(other)
        assert np.array_equal(other.sess.run(other_net.logits, {other_net.x: X}), again)
        states.append(other._whole_state())
    assert states[0] == states[1]
    other.fit(frame, epochs=1, **options)
    np.testing.assert_allclose(other.sess.run(other_net.logits, {other_net.x: X}), whole, atol=1e-5)
    with pytest.raises(CheckpointError, match="nowhere"):
        est.load(str(tmp_path / "nowhere"))
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and b"cpickle" in p.read_bytes().lower()]


def test_flags_dropout_and_seeds(frame: DataFrame) -> None:
    found = []
    for seed in (3, 3):
        net = Net(has_dropout=True)
        est = net.estimator(lambda: tf1.train.GradientDescentOptimizer(0.1), seed=seed)
        history = est.fit(frame, epochs=2, batch_size=12, feed_dict={net.flag: (True, False)}, verbose=0, **COLUMNS)
        found.append((history["loss"], est.predict(X)))
        assert np.array_equal(est.predict(X), found[-1][1])
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-6)
    assert np.allclose(found[0][1], found[1][1], atol=1e-6)


def test_clipping_and_updates(spark: SparkSession) -> None:
    def moved(**parts: Any) -> Any:
        graph = tf.Graph()
        with graph.as_default():
            x, y = tf1.placeholder(tf.float32, [None, 2]), tf1.placeholder(tf.float32, [None])
            w = tf1.get_variable("w", [2, 1], initializer=tf1.zeros_initializer())
            count = tf1.get_variable("count", [], tf.int32, tf1.zeros_initializer(), trainable=False)
            loss = tf.reduce_mean(tf.matmul(x, w)) + 0 * tf.reduce_sum(y)
            updates = [tf1.assign_add(count, 1)]
        est = Estimator.from_graph(
            inputs=[x], labels=y, loss=loss, optimizer=optimizers.SGD(1.0), updates=updates, workers_per_node=2, **parts
        )
        est.fit((np.array([[3.0, 4.0]] * 2), np.zeros(2)), epochs=1, batch_size=2, verbose=0)
        values = est._framework.sessions.read_session(est.sess)
        assert values["count"] == 1
        return values["w"].ravel()

    assert moved(clip_norm=1.0) == pytest.approx([-0.6, -0.8])
    assert np.abs(moved(clip_value=(-1e-8, 1e-8))).max() < 1e-7


def test_strings_and_wide_numbers(spark: SparkSession) -> None:
    graph = tf.Graph()
    with graph.as_default():
        text = tf1.placeholder(tf.string, [None])
        wide = tf1.placeholder(tf.float64, [None])
        label = tf1.placeholder(tf.float32, [None, 1])
        w = tf1.get_variable("w", [], initializer=tf1.zeros_initializer())
        number = tf.strings.to_number(text)
        loss = tf.reduce_mean(tf.square(w * number - label[:, 0]))
        total = tf.cast(number, tf.float64) + wide
    est = Estimator.from_graph(
        inputs=[text, wide], labels=label, outputs=total, loss=loss, optimizer=optimizers.SGD(0.1), workers_per_node=2
    )
    df = spark.createDataFrame([("1", 0.1 + 2.0**-40, 2.0)] * 5, "t string, d double, y float").repartition(3)
    columns = {"feature_cols": ["t", "d"], "label_cols": "y"}
    est.fit(df, epochs=30, batch_size=5, validation_data=df, verbose=0, **columns)
    assert est._framework.sessions.read_session(est.sess)["w"] == pytest.approx(2.0, abs=0.05)
    assert est.predict(df, feature_cols=["t", "d"]).first()["prediction"] == 1.1 + 2.0**-40
    assert est.evaluate(df, verbose=0, **columns)["loss"] < 0.01
    found = est.predict([np.array(["5", b"6"], object), np.array([1.0, 2.0])])
    assert found.tolist() == [6.0, 8.0]


def test_what_is_wrong_is_said(frame: DataFrame, spark: SparkSession) -> None:
    net, other = Net(), Net()
    method = optimizers.SGD()
    cases: list[tuple[str, dict[str, Any]]] = [
        ("two graphs", {"labels": other.y}),
        ("must be a scalar", {"loss": net.right}),
        ("'y', which nothing feeds", {"labels": []}),
        ("not str", {"optimizer": "adam"}),
        ("not by both", {"clip_norm": 1.0, "clip_value": 1.0}),
        ("clip_value must be", {"clip_value": 0}),
        ("need names", {"metrics": [net.accuracy]}),
        ("is not a metric", {"metrics": {"a": "accuracy"}}),
        ("needs inputs", {"inputs": None}),
    ]
    for text, parts in cases:
        given = {
            "inputs": net.x,
            "labels": net.y,
            "outputs": net.logits,
            "loss": net.loss,
            "optimizer": method,
            **parts,
        }
        with pytest.raises(PlanError, match=text):
            Estimator.from_graph(**given)
    with pytest.raises(UnknownName, match=r"'horovod'.*bigdl"):
        net.estimator(method, backend="horovod")
    for name in ("labels", "loss", "optimizer"):
        kept = {"inputs": net.x, "labels": net.y, "loss": net.loss, "optimizer": method}
        kept |= {"labels": None, "loss": None} if name == "labels" else {name: None}
        with pytest.raises(PlanError, match=f"{name} should not be None in training"):
            Estimator.from_graph(**kept).fit(frame, **COLUMNS)
    est = net.estimator(method)
    with pytest.raises(SchemaError, match="feature columns is None in training"):
        est.fit(frame)
    with pytest.raises(SchemaError, match="'no'"):
        est.fit(frame, feature_cols="no", label_cols="y")
    with pytest.raises(SchemaError, match="takes 1 labels, but there are 2"):
        est.fit(frame, feature_cols="x", label_cols=["y", "id"])
    with pytest.raises(UnsupportedError, match="class_weight"):
        est.fit(frame, class_weight={0: 1.0}, **COLUMNS)
    with pytest.raises(UnsupportedError, match="sample_weight_col"):
        est.fit(frame, sample_weight_col="y", **COLUMNS)
    with pytest.raises(PlanError, match="Callback"):
        est.fit(frame, callbacks=[3], **COLUMNS)
    with pytest.raises(PlanError, match="labels"):
        Estimator.from_graph(inputs=net.x, outputs=net.logits, metrics={"acc": net.accuracy}).evaluate(X)
    before = est.predict(X)
    with pytest.raises(SchemaError, match=r"'x:0'.*\(4\).*\(3\)"):
        est.fit((X[:, :3], Y), batch_size=8, verbose=0)
    cut = frame.selectExpr("slice(x, 1, 3) as x", "y")
    with pytest.raises(SchemaError, match=r"'x:0'.*\(4\).*\(3\)"):
        est.fit(cut, batch_size=8, verbose=0, **COLUMNS)
    assert np.array_equal(est.predict(X), before)
    est.shutdown()
    est.shutdown()
