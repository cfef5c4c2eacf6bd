"""Graphs and TensorFlow functions over columns: a row's graph for all rows in one call of the session."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf2
import tensorflow.compat.v1 as tf

from firesteel.core import registry
from firesteel.core.columns import Port
from firesteel.core.errors import PlanError

X = np.arange(6.0)
Y = np.arange(12.0).reshape(6, 2)


def bench() -> Any:
    return registry.framework("tfgraph")


def alive(model: Any, given: dict[str, Any], **parts: Any) -> Any:
    """``given``: name → the shape of a float64 input."""
    program = bench().capture_columns(model, **parts)
    bound = bench().bind(program, {name: Port(name, "float64", shape) for name, shape in given.items()})
    return bench().replica(bound.program, "cpu", 0)


def calls_of(replica: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the session's calls from now on, whichever way they go."""
    found: list[int] = []

    def counted(run: Any) -> Any:
        return lambda *args, **options: found.append(1) or run(*args, **options)

    monkeypatch.setattr(replica.session, "run", counted(replica.session.run))
    for name in ("_unrolled", "_looped"):
        call = getattr(replica, name)
        if hasattr(call, "_run"):
            monkeypatch.setattr(call, "_run", counted(call._run))
    return found


def test_rows_take_one_call_and_no_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    with tf.Graph().as_default():
        x, y = tf.placeholder(tf.float64, [], name="x"), tf.placeholder(tf.float64, [2], name="y")
        table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(tf.constant([0, 1], tf.int64), tf.constant([5.0, 6.0], tf.float64)),
            tf.constant(-1.0, tf.float64),
        )
        weights = tf.get_variable("w", initializer=tf.constant([[1.0, 2.0], [3.0, 4.0]], tf.float64))
        fetches = [
            tf.identity(tf.linalg.matvec(weights, y) + x, name="a"),
            tf.identity(tf.cond(x > 2, lambda: x * 2, lambda: -x), name="b"),
            tf.identity(table.lookup(tf.cast(x, tf.int64)), name="c"),
            tf.identity(x, name="same"),
        ]
        replica = alive(fetches, {"x": (), "y": (2,)})
    found = replica.rows({"x": X, "y": Y})
    np.testing.assert_allclose(found["a"], Y @ np.array([[1.0, 3.0], [2.0, 4.0]]) + X[:, None])
    assert found["b"].tolist() == [-0.0, -1.0, -2.0, 6.0, 8.0, 10.0]
    assert found["c"].tolist() == [5.0, 6.0, -1.0, -1.0, -1.0, -1.0]
    assert found["same"].tolist() == X.tolist()
    assert not replica._is_looped
    calls = calls_of(replica, monkeypatch)
    replica.rows({"x": np.tile(X, 1000), "y": np.tile(Y, (1000, 1))})
    assert len(calls) == 1


def test_what_cannot_be_unrolled_loops_inside_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float64, [], name="x")
        replica = alive(tf.range(tf.cast(x, tf.int32), name="upto"), {"x": ()})
    found = replica.rows({"x": X})["upto"]
    assert [part.tolist() for part in found] == [list(range(k)) for k in range(6)]
    assert replica._is_looped
    calls = calls_of(replica, monkeypatch)
    assert replica.rows({"x": np.full(500, 2.0)})["upto"].shape == (500, 2)
    assert len(calls) == 1


def test_a_functions_own_functions_are_unrolled_too() -> None:
    module = tf2.Module()
    module.scale = tf2.Variable(3.0, dtype=tf2.float64)

    @tf2.function
    def inner(x: Any) -> Any:
        return x * module.scale

    @tf2.function
    def z(x: Any, shift: float = 1.0) -> Any:
        return {"b": inner(x) + shift, "a": tf2.while_loop(lambda k, s: k < 2, lambda k, s: (k + 1, s + x), (0, x))[1]}

    replica = alive(z, {"x": ()})
    found = replica.rows({"x": X})
    assert list(found) == ["b", "a"]
    np.testing.assert_allclose(found["b"], X * 3 + 1)
    np.testing.assert_allclose(found["a"], X * 3)
    assert not replica._is_looped


def test_two_variables_of_a_function_are_two() -> None:
    """Handles without a name of their own were one variable: a layer's bias took its kernel's place."""
    import keras

    layer = keras.layers.Dense(3)
    layer.build((None, 2))
    layer.bias.assign([1.0, 2.0, 3.0])
    program = bench().capture_columns(layer)
    bound = bench().bind(program, {"inputs": Port("inputs", "float32", (None, 2))})
    found = bench().replica(bound.program, "cpu", 0).forward({"inputs": Y.astype("float32")})
    np.testing.assert_allclose(found["output"], np.asarray(layer(Y.astype("float32"))), rtol=1e-5)


def test_a_trace_and_a_signature_say_what_they_take() -> None:
    @tf2.function(
        input_signature=[tf2.TensorSpec([None, 2], tf2.float32, name="other"), tf2.TensorSpec(None, tf2.string)]
    )
    def z(y: Any, s: Any) -> Any:
        return tf2.strings.length(s)

    expected = (Port("y", "float32", (None, 2)), Port("s", "string", None))
    for model in (z, z.get_concrete_function()):
        program = bench().capture_columns(model)
        assert bench().inputs(program) == expected
        given = {"y": Port("y", "float32", (None, 2)), "s": Port("s", "string", (None,))}
        assert bench().bind(program, given).outputs == (Port("z", "int32", (None,)),)


def test_placeholders_with_a_default_can_be_left_out() -> None:
    with tf.Graph().as_default():
        rate = tf.placeholder_with_default(tf.constant(2.0, tf.float64), [], name="rate")
        fetch = tf.multiply(tf.placeholder(tf.float64, [None], name="x"), rate, name="z")
        assert [port.is_needed for port in bench().inputs(bench().capture_columns(fetch))] == [False, True]
        assert alive(fetch, {"x": (None,)}).forward({"x": X})["z"].tolist() == (X * 2).tolist()


def test_declared_outputs_must_agree_with_the_graph() -> None:
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float64, [None], name="x")
        program = bench().capture_columns([tf.as_string(x, name="s"), tf.add(x, 1, name="z")])
        given = {"x": Port("x", "float64", (None,))}
        made = bench().bind(program, given, [Port("s", "string", (None,)), Port("z", "float64", (None,))])
        assert [port.dtype for port in made.outputs] == ["string", "float64"]
        for said, words in (
            ([Port("s", "string", (None,))], "declares s, but the program's outputs are s, z"),
            ([Port("s", "int32", (None,)), Port("z", "float64", (None,))], "int32 of output 's'"),
            ([Port("s", "string", (None, 2)), Port("z", "float64", (None,))], r"\[\?,2\] of output 's'"),
        ):
            with pytest.raises(PlanError, match=words):
                bench().bind(program, given, said)
