"""A TensorFlow graph between BigDL's layers, trained on Spark."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
pytest.importorskip("firesteel.frameworks.tfgraph", reason="needs the bench for TensorFlow graphs")

from firesteel.bigdl.nn.criterion import MSECriterion  # noqa: E402
from firesteel.bigdl.nn.layer import Linear, Sequential  # noqa: E402
from firesteel.bigdl.optim.optimizer import SGD, MaxEpoch, Optimizer  # noqa: E402
from firesteel.frontends.bigdl.tfnet import TFNet  # noqa: E402

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
