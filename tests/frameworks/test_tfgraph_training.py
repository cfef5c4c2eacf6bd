"""Graphs that learn: a replica's steps are those of a session with the same optimizer, and its parts add up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import torch

from firesteel.core import optimizers, registry
from firesteel.core.errors import CheckpointError, PlanError
from firesteel.core.plan import Clipping
from firesteel.core.schedules import Exponential, Plateau, Poly
from firesteel.testing import check_framework

tf1 = tf.compat.v1
bench: Any = registry.framework("tfgraph")
torch_bench: Any = registry.framework("torch")
RNG = np.random.default_rng(0)
X = RNG.random((12, 3)).astype(np.float32)
Y = RNG.random((12, 1)).astype(np.float32)
BATCH = {"x0": X, "y0": Y}


class Net:
    """Two layers and a loss, in a graph of its own; extra ops are added by ``more``."""

    def __init__(self, is_resource: bool = True, more: Callable[[Net], None] = lambda net: None) -> None:
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.x = tf1.placeholder(tf.float32, [None, 3], name="x")
            self.y = tf1.placeholder(tf.float32, [None, 1], name="y")
            self.w = tf1.get_variable("a/w", [3, 4], use_resource=is_resource)
            self.v = tf1.get_variable("b/v", [4, 1], use_resource=is_resource)
            self.hidden = tf.nn.tanh(tf.matmul(self.x, self.w))
            self.optimizer: Any = None
            more(self)
            self.out = tf.matmul(self.hidden, self.v)
            self.loss = tf.reduce_mean(tf.square(self.out - self.y))

    def capture(self, optimizer: Any = None, **parts: Any) -> Any:
        parts = {"inputs": self.x, "labels": self.y, "outputs": self.out, "loss": self.loss, "seed": 1, **parts}
        return bench.capture(self.loss, optimizer=optimizer or self.optimizer, **parts)


def start(program: Any) -> Any:
    replica = bench.replica(program)
    replica.seed(0)
    replica.start(program.state)
    return replica


def step(replica: Any, batch: Any = BATCH) -> float:
    loss = replica.backward(batch, 1.0)
    replica.gradients()
    replica.update(lambda: (replica.again(), replica.gradients()))
    replica.schedule("batch")
    return loss


TENSORFLOWS = {
    "sgd": lambda: tf1.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: tf1.train.MomentumOptimizer(0.1, 0.9),
    "adam": lambda: tf1.train.AdamOptimizer(0.01),
    "adagrad": lambda: tf1.train.AdagradOptimizer(0.1),
    "rmsprop": lambda: tf1.train.RMSPropOptimizer(0.01),
}


@pytest.mark.parametrize("is_resource", [True, False])
@pytest.mark.parametrize("name", TENSORFLOWS)
def test_tensorflows_optimizers_are_its_own(name: str, is_resource: bool) -> None:
    net = Net(is_resource)
    with net.graph.as_default():
        optimizer = TENSORFLOWS[name]()
    before = len(net.graph.get_operations())
    program = net.capture(optimizer)
    assert len(net.graph.get_operations()) == before
    assert optimizer.variables() == []
    check_framework(bench, program, BATCH)
    replica = start(program)
    first = replica.values()
    with net.graph.as_default(), tf1.Session() as session:
        train = TENSORFLOWS[name]().minimize(net.loss)
        session.run(tf1.global_variables_initializer())
        for variable in (net.w, net.v):
            session.run(variable.initializer, {variable.initializer.inputs[1]: first[variable.op.name]})
        for _ in range(20):
            session.run(train, {net.x: X, net.y: Y})
            step(replica)
        found = replica.values()
        for variable in (net.w, net.v):
            np.testing.assert_allclose(found[variable.op.name], session.run(variable), atol=1e-6)


METHODS = {
    "sgd": optimizers.SGD(0.1, learningrate_decay=0.5),
    "momentum": optimizers.SGD(0.1, momentum=0.9),
    "nesterov": optimizers.SGD(0.1, momentum=0.9, dampening=0.0, nesterov=True, weightdecay=0.1),
    "factors": optimizers.SGD(0.1, learningrates=np.linspace(0, 1, 16), weightdecays=np.linspace(1, 0, 16)),
    "adam": optimizers.Adam(0.01, learningrate_schedule=Exponential(3, 0.5)),
    "adagrad": optimizers.Adagrad(0.1, weightdecay=0.01),
    "rmsprop": optimizers.RMSprop(0.01),
    "adadelta": optimizers.Adadelta(),
    "adamax": optimizers.Adamax(),
    "ftrl": optimizers.Ftrl(0.1, l1_regularization_strength=0.01),
    "ftrl to 0": optimizers.Ftrl(0.1, l2_shrinkage_regularization_strength=0.1, learningrate_schedule=Poly(1, 5)),
}


@pytest.mark.parametrize("name", METHODS)
def test_our_optimizers_do_what_they_do_in_torch(name: str) -> None:
    method = METHODS[name]
    program = Net().capture(method)
    check_framework(bench, program, BATCH)
    replica = start(program)
    first = replica.values()
    w, v = (torch.nn.Parameter(torch.tensor(first[name])) for name in ("a/w", "b/v"))
    build = torch_bench_optimizers().build
    optimizer = build(method, [w, v])
    scheduler = torch_bench_optimizers().build_scheduler(method, optimizer)
    for _ in range(10):
        optimizer.zero_grad()
        ((torch.tanh(torch.tensor(X) @ w) @ v - torch.tensor(Y)) ** 2).mean().backward()
        assert replica.learning_rate == pytest.approx(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        step(replica)
    found = replica.values()
    assert not np.array_equal(found["a/w"], first["a/w"])
    np.testing.assert_allclose(found["a/w"], w.detach().numpy(), atol=2e-6)
    np.testing.assert_allclose(found["b/v"], v.detach().numpy(), atol=2e-6)


def torch_bench_optimizers() -> Any:
    from firesteel.frameworks.torch import optimizers as of_torch

    return of_torch


def test_lbfgs_goes_to_the_bottom_of_a_bowl_and_remembers() -> None:
    graph = tf.Graph()
    with graph.as_default():
        x = tf1.placeholder(tf.float32, [None, 3])
        w = tf1.get_variable("w", [3], initializer=tf1.constant_initializer([3.0, -2.0, 1.0]))
        loss = tf.reduce_mean(tf.reduce_sum(x * tf.square(w - [1.0, 2.0, 3.0]), 1))
    method = optimizers.LBFGS(max_iter=3)
    program = bench.capture(loss, inputs=x, loss=loss, optimizer=method)
    replica = start(program)
    for _ in range(2):
        step(replica, {"x0": X})
    other = start(program)
    other.load(replica.state())
    for _ in range(8):
        assert step(other, {"x0": X}) == step(replica, {"x0": X})
    np.testing.assert_allclose(replica.values()["w"], [1, 2, 3], atol=1e-3)
    assert replica.bounds(0, 2) is None


def test_the_graph_does_not_grow_and_no_rows_are_no_step() -> None:
    for optimizer in (tf1.train.AdamOptimizer(0.01), optimizers.Adam(0.01)):
        replica = start(Net().capture(optimizer))
        step(replica)
        count = len(replica.graph.get_operations())
        for _ in range(5):
            step(replica)
            replica.weights()
            replica.load_weights(replica.weights())
            replica.load_frozen(replica.frozen())
            replica.load_buffers(replica.buffers())
            replica.state()
            replica.measure(BATCH, {})
        assert len(replica.graph.get_operations()) == count
        assert replica.graph.finalized


def test_slices_of_ranks_are_merged_whatever_their_number() -> None:
    program = Net().capture(optimizers.Adam(0.01))
    alone = start(program)
    parts = [start(program) for _ in range(3)]
    for rank, part in enumerate(parts):
        part.take_slice(part.bounds(rank, 3))
    for _ in range(3):
        step(alone)
        for part in parts:
            step(part)
        for index, flat in enumerate(parts[0].weights()):
            for rank, part in enumerate(parts):
                begin, end = part.bounds(rank, 3)[index]
                flat[begin:end] = part.weights()[index][begin:end]
        whole = [flat.copy() for flat in parts[0].weights()]
        for part in parts:
            part.load_weights(whole)
    state = parts[1].state([part.optimizer_slice() for part in parts])
    expected = alone.state()
    from safetensors.numpy import load

    for kind in ("model", "optimizer"):
        one, other = load(expected[kind]), load(state[kind])
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_allclose(other[name], one[name], atol=1e-7)
    two = [start(program) for _ in range(2)]
    for rank, part in enumerate(two):
        part.load(state)
        part.take_slice(part.bounds(rank, 2))
        step(part)
    step(alone)
    for rank, part in enumerate(two):
        begin, end = part.bounds(rank, 2)[0]
        np.testing.assert_allclose(part.weights()[0][begin:end], alone.weights()[0][begin:end], atol=1e-6)


def test_clipping_acts_on_the_whole_gradient() -> None:
    graph = tf.Graph()
    with graph.as_default():
        x = tf1.placeholder(tf.float32, [None, 2])
        a, b = (tf1.get_variable(name, [], initializer=tf1.zeros_initializer()) for name in "ab")
        loss = tf.reduce_mean(x[:, 0] * a + x[:, 1] * b)
    batch = {"x0": np.array([[3.0, 4.0]])}
    for make in (lambda: tf1.train.GradientDescentOptimizer(1.0), lambda: optimizers.SGD(1.0)):
        for clipping, expected in ((Clipping.l2_norm(1.0), (-0.6, -0.8)), (Clipping.constant(-1, 3.5), (-3, -3.5))):
            replica = start(bench.capture(loss, inputs=x, loss=loss, optimizer=make(), clipping=clipping))
            step(replica, batch)
            assert tuple(replica.values().values()) == pytest.approx(expected)


def test_a_prefix_has_its_own_optimizer() -> None:
    methods = {"a/": optimizers.SGD(0.1), "": optimizers.SGD(0.0), "b/v": optimizers.Adam(0.1)}
    with pytest.raises(PlanError, match=r"'c'.*a/w, b/v"):
        Net().capture({"c": optimizers.SGD(), **methods})
    with pytest.raises(PlanError, match=r"'b/v'; variables are: a/w, b/v"):
        Net().capture({"a": optimizers.SGD()})
    with pytest.raises(PlanError, match="not str"):
        Net().capture({"": "adam"})
    frozen = start(Net().capture({"a": optimizers.SGD(0.1), "b": optimizers.SGD(0.0)}))
    both, alone = start(Net().capture(methods)), start(Net().capture(optimizers.SGD(0.1)))
    first = alone.values()
    for replica in (frozen, both, alone):
        step(replica)
    assert np.array_equal(frozen.values()["b/v"], first["b/v"])
    assert np.allclose(both.values()["a/w"], alone.values()["a/w"], atol=1e-7)
    moved = both.values()["b/v"] - first["b/v"]
    assert np.allclose(np.abs(moved), 0.1, atol=1e-4)
    other = start(Net().capture(methods))
    other.load(both.state())
    assert step(other) == step(both)
    assert np.array_equal(other.values()["b/v"], both.values()["b/v"])


def test_look_ups_have_dense_gradients() -> None:
    graph = tf.Graph()
    with graph.as_default():
        ids = tf1.placeholder(tf.int64, [None, 2])
        table = tf1.get_variable("table", [5, 2], initializer=tf1.ones_initializer())
        loss = tf.reduce_mean(tf.reduce_sum(tf.nn.embedding_lookup(table, ids), [1, 2]))
    replica = start(bench.capture(loss, inputs=ids, loss=loss, optimizer=optimizers.SGD(1.0)))
    step(replica, {"x0": np.array([[0, 0], [1, 3]])})
    assert replica.values()["table"][:, 0].tolist() == [0.0, 0.5, 1.0, 0.5, 1.0]


def dropout(net: Net) -> None:
    net.flag = tf1.placeholder(tf.bool, [], "is_training")
    net.hidden = tf.cond(net.flag, lambda: tf.nn.dropout(net.hidden, rate=0.5), lambda: net.hidden)
    net.hidden = tf.nn.dropout(net.hidden, rate=tf.where(net.flag, 0.5, 0.0))


def test_random_ops_follow_the_seed_also_inside_functions() -> None:
    net = Net(more=dropout)
    program = net.capture(optimizers.SGD(0.1), flags={net.flag: (True, False)})
    replica = start(program)

    def gradient(*numbers: int) -> Any:
        replica.seed(*numbers)
        replica.backward(BATCH, 1.0)
        return replica.gradients()[0].copy()

    one = gradient(7, 1, 0)
    assert np.array_equal(gradient(7, 1, 0), one)
    others = [gradient(7, 2, 0), gradient(7, 1, 1), gradient(8, 1, 0)]
    assert not any(np.allclose(other, one) for other in others)
    outputs = [replica.forward(BATCH)["prediction"] for _ in range(2)]
    assert np.array_equal(*outputs)  # the flag is off: nothing is dropped
    assert np.allclose(outputs[0], np.tanh(X @ replica.values()["a/w"]) @ replica.values()["b/v"], atol=1e-6)


def batch_norm(net: Net) -> None:
    moving = tf1.get_variable("moving", [4], initializer=tf1.zeros_initializer(), trainable=False)
    count = tf1.get_variable("count", [], tf.int64, tf1.zeros_initializer(), trainable=False)
    frozen = tf1.get_variable("frozen", [4], initializer=tf1.ones_initializer(), trainable=False)
    mean = tf.reduce_mean(net.hidden, 0)
    tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, tf1.assign(moving, 0.9 * moving + 0.1 * mean))
    other = tf1.placeholder(tf.float32, [], "another_model")
    tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, tf1.assign(moving, other * moving))
    net.updates = [tf1.assign_add(count, 1), tf1.assign(tf1.get_variable("copy", [3, 4], trainable=False), net.w)]
    net.hidden = (net.hidden - mean) * frozen


def test_update_ops_run_once_with_the_step_and_updates_after_it() -> None:
    net = Net(more=batch_norm)
    in_collection = net.graph.get_collection(tf1.GraphKeys.UPDATE_OPS)[0]
    for optimizer in (optimizers.SGD(0.1), tf1.train.GradientDescentOptimizer(0.1)):
        replica = start(net.capture(optimizer, updates=[*net.updates, in_collection]))
        hidden = np.tanh(X @ replica.values()["a/w"])
        step(replica)
        found = replica.values()
        np.testing.assert_allclose(found["moving"], 0.1 * hidden.mean(0), atol=1e-6)
        assert found["count"] == 1
        assert np.array_equal(found["copy"], found["a/w"])
        assert [len(each) for each in replica.buffers()] == [4, 12]  # what training changes, and is a real number
        step(replica, {name: values[:0] for name, values in BATCH.items()})
        again = replica.values()
        assert np.array_equal(again["moving"], found["moving"])
        assert again["count"] == 2


def test_a_training_op_with_marks_is_fed_agreed_gradients() -> None:
    net = Net()
    with net.graph.as_default():
        step_number = tf1.train.get_or_create_global_step()
        zoo = bench.zoo_optimizer(tf1.train.AdamOptimizer(0.01))
        train = zoo.minimize(net.loss, global_step=step_number)
        plain = tf1.train.GradientDescentOptimizer(0.1).minimize(net.loss)
    with pytest.raises(PlanError, match=r"ZooOptimizer\(your_optimizer\)\.minimize"):
        net.capture(train_op=plain)
    replica, twin = start(net.capture(train_op=train)), start(Net().capture(tf1.train.AdamOptimizer(0.01)))
    for _ in range(3):
        step(replica)
        step(twin)
    found = replica.values()
    np.testing.assert_allclose(found["a/w"], twin.values()["a/w"], atol=1e-7)
    assert found["global_step"] == 3
    assert "a/w/Adam" in found
    assert zoo.get_slot_names() == ["m", "v"]


def scheduled(net: Net) -> None:
    number = tf1.train.get_or_create_global_step()
    net.optimizer = tf1.train.MomentumOptimizer(tf1.train.exponential_decay(0.1, number, 1, 0.5), 0.9)

    @tf.custom_gradient
    def reversed_(value: Any) -> Any:
        return tf.identity(value), lambda upstream: -upstream

    net.hidden = reversed_(net.hidden)


def test_settings_that_are_tensors_and_gradients_of_the_users_own() -> None:
    replica = start(Net(more=scheduled).capture())
    plain = start(Net().capture(optimizers.SGD(0.1)))
    rates = []
    for _ in range(3):
        rates.append(replica.learning_rate)
        step(replica)
    assert rates == pytest.approx([0.1, 0.05, 0.025])
    plain.backward(BATCH, 1.0)
    flipped = plain.gradients()[0].copy()
    replica.load(start(Net(more=scheduled).capture()).state())
    replica.backward(BATCH, 1.0)
    signs = np.concatenate([-np.ones(12), np.ones(4)])
    np.testing.assert_allclose(replica.gradients()[0], flipped * signs, atol=1e-6)


def test_gradients_that_the_user_gives() -> None:
    net = Net()
    with net.graph.as_default():
        given = [tf.ones_like(net.v)]
    replica = start(net.capture(optimizers.SGD(1.0), variables=[net.v], gradients=given))
    first = replica.values()
    step(replica)
    assert np.allclose(replica.values()["b/v"], first["b/v"] - 1)
    assert np.array_equal(replica.values()["a/w"], first["a/w"])


def test_figures_are_means_over_rows() -> None:
    from firesteel.core.metrics import MAE

    net = Net()
    with net.graph.as_default():
        rows = tf.abs(net.out - net.y)
        measures = {"rows": rows, "scalar": tf.reduce_mean(rows), "mae": (net.out, net.y)}
    replica = start(net.capture(optimizers.SGD(), measures=measures))
    metrics = {"rows": bench.mean("rows"), "scalar": bench.mean("scalar"), "mae": MAE()}
    losses = [replica.measure({k: v[a:b] for k, v in BATCH.items()}, metrics) for a, b in ((0, 5), (5, 12))]
    error = np.abs(replica.forward(BATCH)["prediction"] - Y)
    assert [metric.compute() for metric in metrics.values()] == pytest.approx([error.mean()] * 3, rel=1e-5)
    assert sum(loss for loss, _ in losses) / sum(mass for _, mass in losses) == pytest.approx(
        (error**2).mean(), rel=1e-5
    )


def test_what_is_wrong_is_said() -> None:
    net = Net()
    with net.graph.as_default():
        squares = tf.square(net.out)
        nothing = tf.reduce_mean(net.x)
        unfed = net.loss * tf1.placeholder(tf.float32, [], "weight")
    method = optimizers.SGD()
    with pytest.raises(PlanError, match=r"must be a scalar"):
        net.capture(method, loss=squares)
    with pytest.raises(PlanError, match=r"no trainable variable.*a/w, b/v"):
        net.capture(method, loss=nothing)
    with pytest.raises(PlanError, match=r"loss.*'weight', which nothing feeds"):
        net.capture(method, loss=unfed)
    with pytest.raises(PlanError, match="not str"):
        net.capture("adam")
    with pytest.raises(PlanError, match="needs a loss"):
        net.capture(method, loss=None)
    with net.graph.as_default():
        flag = tf1.placeholder(tf.int64, [])
    with pytest.raises(PlanError, match=r"int64.*cannot be fed True"):
        net.capture(method, flags={flag: (True, False)})
    with pytest.raises(PlanError, match="7 factors for 16"):
        start(net.capture(optimizers.SGD(learningrates=[1.0] * 7)))
    with pytest.raises(PlanError, match="validation"):
        start(net.capture(optimizers.SGD(learningrate_schedule=Plateau("score")))).schedule("epoch", {})
    adam, sgd = start(net.capture(optimizers.Adam())), start(net.capture(tf1.train.AdamOptimizer()))
    with pytest.raises(CheckpointError, match="another optimizer"):
        sgd.load({"model": adam.state()["model"], "optimizer": adam.state()["optimizer"]})
    with pytest.raises(CheckpointError, match="TensorFlow's"):
        adam.load({"model": adam.state()["model"], "optimizer": sgd.state()["optimizer"]})
