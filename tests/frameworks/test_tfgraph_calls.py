"""A prepared call gives what ``session.run`` gives, errors included."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from firesteel.frameworks.tfgraph.calls import make_call


@pytest.fixture
def graph() -> Any:
    with tf.Graph().as_default():
        yield


@pytest.mark.parametrize("is_here", [False, True])
def test_values_types_and_structure_are_those_of_run(graph: Any, is_here: bool) -> None:
    x, word = tf.placeholder(tf.float32, [None, 2]), tf.placeholder(tf.string, [])
    count = tf.get_variable("count", initializer=0)
    fetches = [tf.reduce_sum(x), tf.assign_add(count, 1).op, x * 2, tf.strings.join([word, "!"]), tf.cast(x, tf.int32)]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        values = [[[1, 2], [3, 4]], "so"]  # lists, of another type: as run takes them
        found = make_call(session, fetches, [x, word], is_here=is_here)(*values)
        plain = session.run(fetches, {x: values[0], word: values[1]})
        assert session.run(count) == 2
        assert make_call(session, count)() == 2
        assert make_call(session, fetches[1])() is None
    for mine, theirs in zip(found, plain, strict=True):
        assert type(mine) is type(theirs)
        np.testing.assert_array_equal(mine, theirs)
    assert found[2].dtype == np.float32


def test_ops_run_in_the_callers_thread_if_told_so(graph: Any) -> None:
    where = tf.numpy_function(lambda: np.int64(threading.get_ident()), [], tf.int64)
    with tf.Session() as session:
        assert make_call(session, [where], is_here=True)() == [threading.get_ident()]
        assert make_call(session, [where])() != [threading.get_ident()]


def test_what_is_fed_may_be_fetched(graph: Any) -> None:
    x = tf.placeholder(tf.float32, [])
    with tf.Session() as session:
        assert make_call(session, [x, x + 1], [x])(3.0) == [3.0, 4.0]


def test_errors_say_what_run_says(graph: Any) -> None:
    x = tf.placeholder(tf.float32, [None, 2], name="x")
    checked = tf.linalg.inv(tf.reshape(x, [2, 2]), name="by_this_op")
    with tf.Session() as session:
        call = make_call(session, checked, [x])
        with pytest.raises(ValueError, match=r"Cannot feed value of shape \(1, 3\) for Tensor .*x:0"):
            call(np.zeros((1, 3)))
        with pytest.raises(tf.errors.InvalidArgumentError, match="not invertible") as caught:
            call(np.zeros((2, 2)))
        assert __file__ in str(caught.value)  # where the user's program made the op
