"""Every kind of data that the Keras door takes, and every row of it once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

from firesteel import Estimator, XShards
from firesteel.core.errors import PlanError, SchemaError, UnsupportedError
from firesteel.data.tf import Dataset

keras: Any = __import__("keras")
tf: Any = __import__("tensorflow")

ROWS = 22
X = np.random.default_rng(2).random((ROWS, 3), dtype=np.float32)
Y = X @ np.array([[1.0], [2.0], [3.0]], np.float32)


def make(inputs: Any = None) -> Any:
    dense = keras.layers.Dense(1, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((3,)), dense] if inputs is None else [dense])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def batches() -> Any:
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)


class Sequence(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, place: int) -> Any:
        return X[place * 8 : place * 8 + 8], Y[place * 8 : place * 8 + 8]


def creator(config: dict[str, Any], batch_size: int) -> Any:
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(batch_size)


def creator_of_batches(config: dict[str, Any], batch_size: int) -> Iterator[Any]:
    return [(X[i : i + batch_size], Y[i : i + batch_size]) for i in range(0, ROWS, batch_size)]  # type: ignore[return-value]


KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "batches of tf.data": (batches, {}),
    "rows of tf.data": (lambda: batches().unbatch(), {"batch_size": 8}),
    "a creator of tf.data": (lambda: creator, {"batch_size": 8}),
    "a PyDataset": (lambda: Sequence(), {}),
    "a creator of a PyDataset": (lambda: lambda config, batch_size: Sequence(), {"batch_size": 8}),
    "a creator of arrays": (lambda: lambda config, batch_size: (X, Y), {"batch_size": 8}),
    "a creator of batches": (lambda: creator_of_batches, {"batch_size": 8}),
    "arrays": (lambda: (X, Y), {"batch_size": 8, "shuffle": False}),
}


@pytest.fixture(scope="module")
def expected(spark: SparkSession) -> Any:
    model = make()
    history = model.fit(batches(), epochs=2, shuffle=False, verbose=0)
    return model, history.history["loss"]


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_trains_as_keras_does_on_the_same_batches(kind: str, expected: Any) -> None:
    data, options = KINDS[kind]
    model = make()
    history = Estimator.from_keras(model, workers_per_node=2).fit(data(), epochs=2, verbose=0, **options)
    for mine, theirs in zip(model.get_weights(), expected[0].get_weights(), strict=True):
        assert np.allclose(mine, theirs, atol=1e-5)
    assert history["loss"] == pytest.approx(expected[1], rel=1e-4)


def test_scoring_and_evaluating_them(expected: Any) -> None:
    model = expected[0]
    est = Estimator.from_keras(model, workers_per_node=2)
    outputs, figures = model.predict(X, verbose=0), model.evaluate(X, Y, return_dict=True, verbose=0)
    rows = Dataset.from_tensor_slices(XShards.partition({"x": X, "y": Y}, 3)).map(lambda row: (row["x"], row["y"]))
    for data in (batches(), batches().unbatch(), creator, Sequence(), rows):
        assert est.evaluate(data, verbose=0) == pytest.approx(figures, rel=1e-5)
    for data in (batches().map(lambda x, y: x), lambda config, batch_size: creator(config, batch_size)):
        found = np.concatenate([shard["prediction"] for shard in est.predict(data).collect()])
        assert np.allclose(found, outputs, atol=1e-6)


def test_a_shuffle_without_a_seed_still_shows_every_row_once(spark: SparkSession) -> None:
    """One step of all rows: the loss is theirs only if no row is seen twice."""
    data = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(ROWS).batch(11)
    model = make()
    model.optimizer.learning_rate = 0.0
    history = Estimator.from_keras(model, workers_per_node=2).fit(data, epochs=3, verbose=0)
    assert history["loss"] == pytest.approx([float(np.mean(Y**2))] * 3, rel=1e-5)


def test_steps_may_be_cut_and_are_asked_for_only_where_data_never_ends(spark: SparkSession) -> None:
    est = Estimator.from_keras(make(), workers_per_node=2)
    with pytest.raises(PlanError, match="no end"):
        est.fit(batches().repeat(), epochs=1)
    est.fit(batches().repeat(), epochs=2, steps_per_epoch=2, verbose=0)
    assert int(est.get_model().optimizer.iterations) == 4


def test_what_is_wrong_with_data_is_said(spark: SparkSession) -> None:
    est = Estimator.from_keras(make())
    with pytest.raises(PlanError, match="batch_size"):
        est.fit(batches(), epochs=1, batch_size=4)
    calls = tf.data.Dataset.from_generator(lambda: iter([1.0]), output_signature=tf.TensorSpec((), tf.float32))
    with pytest.raises(PlanError, match=r"from_generator.*creator"):
        est.fit(calls, epochs=1)
    with pytest.raises(UnsupportedError, match=r"tf\.data\.Dataset"):
        est.fit(object(), epochs=1)


def test_several_inputs_and_outputs_by_name_and_by_place(spark: SparkSession) -> None:
    first, second = keras.Input((2,), name="first"), keras.Input((1,), name="second")
    joined = keras.layers.Concatenate()([first, second])
    outputs = {
        "score": keras.layers.Dense(1, name="score")(joined),
        "parts": keras.layers.Dense(2, activation="softmax", name="parts")(joined),
    }
    model = keras.Model([first, second], outputs)
    model.compile(
        "sgd", {"score": "mse", "parts": "sparse_categorical_crossentropy"}, loss_weights={"score": 0.5, "parts": 2}
    )
    labels = (Y[:, 0] > 3).astype(np.int64)
    rows = [(x[:2].tolist(), float(x[2]), float(y[0]), int(c)) for x, y, c in zip(X, Y, labels, strict=True)]
    df = spark.createDataFrame(rows, "first array<float>, second float, y float, c long").repartition(3)
    est = Estimator.from_keras(model, workers_per_node=2)
    columns = {"feature_cols": ["second", "first"], "label_cols": ["y", "c"]}  # by name: the order does not matter
    expected = model.evaluate([X[:, :2], X[:, 2:]], {"score": Y, "parts": labels}, return_dict=True, verbose=0)
    assert est.evaluate(df, batch_size=5, verbose=0, **columns) == pytest.approx(expected, rel=1e-4)
    before = model.get_weights()
    est.fit(df, epochs=1, batch_size=ROWS, verbose=0, **columns)
    after = model.get_weights()
    model.set_weights(before)
    model.train_on_batch([X[:, :2], X[:, 2:]], {"score": Y, "parts": labels})
    for mine, theirs in zip(after, model.get_weights(), strict=True):
        assert np.allclose(mine, theirs, atol=1e-5)
    scored = est.predict(df, feature_cols=["first", "second"])
    assert scored.select("prediction.score").count() == ROWS
    assert est.predict(df, feature_cols=["first", "second"], output_cols=["a", "b"]).columns[-2:] == ["a", "b"]
    found = est.predict([X[:, :2], X[:, 2:]])
    assert np.allclose(found["parts"], model.predict([X[:, :2], X[:, 2:]], verbose=0)["parts"], atol=1e-2)


def test_layers_that_were_adapted_to_data_and_inputs_that_are_strings(spark: SparkSession) -> None:
    words = ["spark", "keras", "spark keras", "steel", "fire steel", "tinder"]
    numbers = np.random.default_rng(5).normal(50, 9, (len(words), 3)).astype(np.float32)
    vectorize = keras.layers.TextVectorization(max_tokens=20, output_sequence_length=2)
    normalize = keras.layers.Normalization()
    vectorize.adapt(np.array(words))
    normalize.adapt(numbers)
    keras.utils.set_random_seed(3)
    text, more = keras.Input((1,), name="text", dtype="string"), keras.Input((3,), name="more")
    embedded = keras.layers.Flatten()(keras.layers.Embedding(20, 2)(vectorize(text)))
    model = keras.Model([text, more], keras.layers.Dense(1)(keras.layers.Concatenate()([embedded, normalize(more)])))
    model.compile(keras.optimizers.SGD(0.05), "mse")
    plain = keras.models.clone_model(model)
    plain.get_layer(vectorize.name).set_vocabulary(vectorize.get_vocabulary(include_special_tokens=False))
    plain.set_weights(model.get_weights())
    plain.get_layer(normalize.name).finalize_state()
    plain.compile(keras.optimizers.SGD(0.05), "mse")
    rows = [(word, row.tolist(), float(place)) for place, (word, row) in enumerate(zip(words, numbers, strict=True))]
    frame = spark.createDataFrame(rows, "text string, more array<float>, y float").repartition(2)
    columns = {"feature_cols": ["text", "more"], "label_cols": ["y"]}

    estimator = Estimator.from_keras(keras_model=model, workers_per_node=2, seed=1)
    inputs, targets = [tf.constant([[word] for word in words]), numbers], np.arange(6, dtype=np.float32)[:, None]
    estimator.fit(frame, epochs=2, batch_size=6, verbose=0, **columns)
    plain.fit(inputs, targets, epochs=2, batch_size=6, verbose=0)
    for found, expected in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)
    scored = estimator.predict(frame, feature_cols=["text", "more"]).orderBy("y").collect()
    own = plain.predict(inputs, verbose=0)
    np.testing.assert_allclose([row.prediction.toArray() for row in scored], own, atol=1e-5)
    local = estimator.predict({"text": np.array(words, object), "more": numbers})
    np.testing.assert_allclose(local, own, atol=1e-5)

    with pytest.raises(SchemaError, match="'b' holds strings, but the model takes numbers"):
        estimator.fit(frame.selectExpr("text AS a", "text AS b", "y"), feature_cols=["a", "b"], label_cols=["y"])
    with pytest.raises(SchemaError, match="'text' is of type string"):
        Estimator.from_keras(keras_model=make()).fit(frame, feature_cols=["text"], label_cols=["y"])
