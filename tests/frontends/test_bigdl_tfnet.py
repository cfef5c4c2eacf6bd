"""A TensorFlow graph between BigDL's layers, trained on Spark."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
pytest.importorskip("firesteel.frameworks.tfgraph", reason="needs the bench for TensorFlow graphs")

from firesteel.bigdl.nn.criterion import MSECriterion  # noqa: E402
from firesteel.bigdl.nn.layer import Linear, Sequential  # noqa: E402
from firesteel.bigdl.optim.optimizer import SGD, MaxEpoch, Optimizer, Top1Accuracy  # noqa: E402
from firesteel.core.errors import PlanError  # noqa: E402
from firesteel.tfpark import TFDataset, TFNet  # noqa: E402

pytestmark = pytest.mark.usefixtures("spark")


def test_layers_around_a_graph_learn() -> None:
    x = np.random.default_rng(0).standard_normal((40, 3)).astype(np.float32)
    y = (x @ [1.0, 2.0, 3.0]).astype(np.float32)
    graph, tf1 = tf.Graph(), tf.compat.v1
    with graph.as_default(), tf1.Session(graph=graph) as session:
        given = tf1.placeholder(tf.float32, [None, 3], "x")
        output = tf.tanh(given @ tf1.get_variable("w", [3, 2]))
        session.run(tf1.global_variables_initializer())
        nets = [TFNet.from_session(session, given, output, generate_backward=each) for each in (False, True)]

    def train(net: Any, replicas: int) -> list[bool]:
        """Which of the weights moved: of the first layer, the graph, the last layer."""
        model = Sequential().add(Linear(3, 3)).add(net).add(Linear(2, 1))
        before = model.get_weights() or []
        data = (x, y)
        Optimizer.create(model, data, MSECriterion(), MaxEpoch(2), 10, SGD(0.1), replicas=replicas, seed=1).optimize()
        return [not np.allclose(one, other) for one, other in zip(before, model.get_weights() or (), strict=True)]

    assert train(nets[0], 2) == [True, True, False, True, True]
    assert train(nets[1], 1) == [True] * 5
    rows = nets[1].predict(x, batch_per_thread=8)
    np.testing.assert_allclose(np.stack(rows.collect()), nets[1].forward(x), atol=1e-6)
    with pytest.raises(TypeError, match="int"):
        nets[1].predict(3)
    _datasets(nets[0], x)


def _datasets(net: Any, x: Any) -> None:
    """Rows of a TFDataset go through the graph itself, and classes are counted from 1, as at this door."""
    expected = net.forward(x)
    dataset = TFDataset.from_ndarrays((x,), batch_per_thread=7)
    np.testing.assert_allclose(np.stack(net.predict(dataset).collect()), expected, atol=1e-6)
    np.testing.assert_allclose(net.predict(dataset, distributed=False), expected, atol=1e-6)
    labels = expected.argmax(1) + 1.0
    labels[:10] = 3 - labels[:10]
    (found,) = net.evaluate(TFDataset.from_ndarrays((x, labels), batch_per_thread=7), 7, [Top1Accuracy()])
    assert (found.result, found.total_num) == (pytest.approx(0.75), 40)
    with pytest.raises(PlanError, match="batch_per_thread"):
        net.predict(TFDataset.from_ndarrays((x,), batch_size=7))


def test_strings_have_no_torch_and_go_through(sc: Any) -> None:
    tf1 = tf.compat.v1
    strings = sc.parallelize(["123", "456"], 1)
    with tf.Graph().as_default(), tf1.Session() as session:
        text = tf1.placeholder(tf.string, [None])
        net = TFNet.from_session(session, [text], [tf.strings.to_number(text)])
        row = TFDataset.from_string_rdd(strings)
        alone = TFNet.from_session(session, row.tensors, [tf.strings.to_number(row.tensors[0])])
    assert net.forward(np.array(["1", "2.5"])).tolist() == [1, 2.5]
    assert net.backward(np.array(["1", "2.5"]), np.ones(2)).tolist() == [0, 0]
    for each, dataset in ((net, TFDataset.from_string_rdd(strings, batch_per_thread=1)), (alone, row)):
        assert [float(value) for value in each.predict(dataset).collect()] == [123.0, 456.0]
