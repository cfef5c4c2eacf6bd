"""Graph replicas that agree: 1, 2 and 3 of them, each with its rows, learn what a single session does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from firesteel.core import optimizers, registry
from sync.gang import Gang

tf1 = tf.compat.v1
bench: Any = registry.framework("tfgraph")
RNG = np.random.default_rng(1)
ROWS, STEPS, BATCH = 23, 20, 7
X = RNG.random((ROWS, 3)).astype(np.float32)
IDS = RNG.integers(0, 6, ROWS)
Y = RNG.random((ROWS, 1)).astype(np.float32)

OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda: tf1.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: tf1.train.MomentumOptimizer(0.1, 0.9),
    "adam": lambda: tf1.train.AdamOptimizer(0.01),
    "adagrad": lambda: tf1.train.AdagradOptimizer(0.1),
    "rmsprop": lambda: tf1.train.RMSPropOptimizer(0.01),
    "our sgd": lambda: optimizers.SGD(0.1, momentum=0.9, dampening=0.0),
    "our adam": lambda: optimizers.Adam(0.01),
    "our rmsprop": lambda: {"a": optimizers.RMSprop(0.01), "": optimizers.Adagrad(0.1)},
}


class Net:
    """Two layers, an embedding, and a moving average that training keeps."""

    def __init__(self) -> None:
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.x = tf1.placeholder(tf.float32, [None, 3], name="x")
            self.ids = tf1.placeholder(tf.int32, [None], name="ids")
            self.y = tf1.placeholder(tf.float32, [None, 1], name="y")
            w, v = tf1.get_variable("a/w", [3, 4]), tf1.get_variable("b/v", [4, 1])
            table = tf1.get_variable("b/table", [6, 4])
            hidden = tf.nn.tanh(tf.matmul(self.x, w)) + tf.nn.embedding_lookup(table, self.ids)
            moving = tf1.get_variable("moving", [4], initializer=tf1.zeros_initializer(), trainable=False)
            update = tf1.assign(moving, 0.9 * moving + 0.1 * tf.reduce_mean(hidden, 0))
            tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, update)
            self.loss = tf.reduce_mean(tf.square(tf.matmul(hidden, v) - self.y))

    def program(self, make: Any) -> Any:
        with self.graph.as_default():
            optimizer = make()
        return bench.capture(
            self.loss, inputs=[self.x, self.ids], labels=self.y, loss=self.loss, optimizer=optimizer, seed=3
        )


def batches() -> list[slice]:
    return [slice(k, min(k + BATCH, ROWS)) for _ in range(9) for k in range(0, ROWS, BATCH)][:STEPS]


def learn(group: Any, program: Any, sync_name: str, arrays: dict[str, Any], steps: list[slice]) -> Any:
    """What one rank does: its part of every step's rows, which may be none."""
    from firesteel.core import registry
    from firesteel.sync import make_sync

    replica: Any = registry.framework("tfgraph").replica(program, "cpu", 1)
    replica.start(program.state)
    sync = make_sync(sync_name)
    sync.join(replica, group)
    rows_seen = 0
    for rows in steps:
        count = rows.stop - rows.start
        low, high = (rows.start + count * r // group.size for r in (group.rank, group.rank + 1))
        rows_seen += high - low
        replica.backward({name: values[low:high] for name, values in arrays.items()}, (high - low) / count)
        sync.commit(replica)
        replica.schedule("batch")
    sync.settle(replica, rows_seen)
    state = sync.state(replica)
    return replica.values(), state["optimizer"]


def densified(gradient: Any, variable: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.math.unsorted_segment_sum(gradient.values, gradient.indices, variable.shape[0])
    return gradient


ARRAYS = {"x0": X, "x1": IDS, "y0": Y}


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """What one session, or one replica for our own optimizers, comes to; and the programs."""
    from firesteel.sync.solo import SoloGroup

    found = {}
    for name, make in OPTIMIZERS.items():
        net = Net()
        program = net.program(make)
        values, state = learn(SoloGroup(), program, "all-reduce", ARRAYS, batches())
        found[name] = (program, values, state)
        if name.startswith("our"):
            continue
        first = bench.replica(program).values()
        with net.graph.as_default(), tf1.Session() as session:
            optimizer = make()
            pairs = optimizer.compute_gradients(net.loss)
            # A look-up's gradient equals a dense one here; TensorFlow's momentum would pass over rows not looked up.
            train = optimizer.apply_gradients([(densified(gradient, v), v) for gradient, v in pairs])
            session.run(tf1.global_variables_initializer())
            for variable in tf1.trainable_variables():
                session.run(variable.initializer, {variable.initializer.inputs[1]: first[variable.op.name]})
            for rows in batches():
                session.run(train, {net.x: X[rows], net.ids: IDS[rows], net.y: Y[rows]})
            for variable in tf1.trainable_variables():
                np.testing.assert_allclose(values[variable.op.name], session.run(variable), atol=1e-5, err_msg=name)
    return found


@pytest.mark.parametrize("size", [2, 3])
def test_replicas_learn_what_one_session_does(alone: dict[str, Any], size: int) -> None:
    from safetensors.numpy import load

    with Gang(size) as gang:
        for name, (program, expected, state) in alone.items():
            for sync in ("all-reduce", "sharded"):
                results = gang.run(learn, program, sync, ARRAYS, batches())
                for values, optimizer in results:
                    for variable, value in expected.items():
                        tolerance = {"atol": 1e-5} if variable != "moving" else {"atol": 0.05}
                        np.testing.assert_allclose(
                            values[variable], value, **tolerance, err_msg=f"{name}, {sync}: {variable}"
                        )
                    assert load(optimizer).keys() == load(state).keys()
                    for slot, value in load(state).items():
                        np.testing.assert_allclose(load(optimizer)[slot], value, atol=1e-5, err_msg=f"{name}: {slot}")
                moving = [values["moving"] for values, _ in results]
                assert all(np.array_equal(each, moving[0]) for each in moving)  # settled: the same everywhere
