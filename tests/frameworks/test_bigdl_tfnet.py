"""TFNet: a TensorFlow graph as a layer computes what the session does, both ways, and trains if it is told to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
pytest.importorskip("firesteel.frameworks.tfgraph", reason="needs the bench for TensorFlow graphs")

from firesteel.bigdl.nn.criterion import MSECriterion  # noqa: E402
from firesteel.bigdl.nn.layer import Linear, Model, Sequential  # noqa: E402
from firesteel.bigdl.optim.optimizer import SGD  # noqa: E402
from firesteel.core import registry  # noqa: E402
from firesteel.core.errors import PlanError, UnsupportedError  # noqa: E402
from firesteel.frontends.bigdl.tfnet import TFNet, export_tf  # noqa: E402

tf1 = tf.compat.v1
X = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
G = np.random.default_rng(1).standard_normal((5, 2)).astype(np.float32)


@pytest.fixture
def session() -> Iterator[Any]:
    """``tanh(x·w + b)``, with values of its own."""
    graph = tf.Graph()
    with graph.as_default(), tf1.Session(graph=graph) as made:
        x = tf1.placeholder(tf.float32, [None, 3], "x")
        w = tf1.get_variable("w", [3, 2], initializer=tf1.random_normal_initializer(seed=1))
        b = tf1.get_variable("b", [2], initializer=tf1.zeros_initializer())
        tf.identity(tf.tanh(x @ w + b), "y")
        made.run(tf1.global_variables_initializer())
        yield made


def ends(session: Any) -> tuple[Any, Any]:
    return session.graph.get_tensor_by_name("x:0"), session.graph.get_tensor_by_name("y:0")


def expected(session: Any) -> tuple[np.ndarray, list[np.ndarray]]:
    """Outputs, and the gradients of x, w and b for the incoming gradient ``G``."""
    x, y = ends(session)
    with session.graph.as_default():
        names = list(tf1.global_variables())
        gradients = tf.gradients(y, [x, *names], grad_ys=tf.constant(G))
    return session.run([y, gradients], {x: X})


def test_from_a_session(session: Any) -> None:
    before = len(session.graph.get_operations())
    net = TFNet.from_session(session, *ends(session), generate_backward=True)
    assert len(session.graph.get_operations()) == before
    output, (by_x, *by_weights) = expected(session)
    np.testing.assert_allclose(net.forward(X), output, atol=1e-6)
    np.testing.assert_allclose(net.backward(X, G), by_x, atol=1e-6)
    (entry,) = net.parameters().values()
    found = [value for key, value in entry.items() if key.startswith("grad")]
    for mine, theirs in zip(found, by_weights, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-6)
    net.update_parameters(0.1)
    assert not np.allclose(net.forward(X), output)  # the session is told of weights that changed
    with pytest.raises(PlanError, match=r"1 inputs \(x:0\), not 2"):
        net.forward([X, X])


def test_weights_are_kept_unless_told_to_train(session: Any) -> None:
    for is_trained in (False, True):
        net = TFNet.from_session(session, *ends(session), generate_backward=is_trained)
        model = Sequential().add(Linear(3, 3)).add(net).add(Linear(2, 1))
        before = model.get_weights() or []
        framework: Any = registry.framework("bigdl")
        program = framework.capture(model.to_torch(), optimizer=SGD(0.5), loss=MSECriterion().to_torch())
        replica = framework.replica(cloudpickle.loads(cloudpickle.dumps(program)), "cpu", 0)
        replica.start(None)
        replica.backward({"x0": X, "y0": np.ones(5, np.float32)}, 1.0)
        replica.update()
        after = replica.model.state_dict()
        moved = [not np.allclose(a, b) for a, b in zip(before, (v.numpy() for v in after.values()), strict=True)]
        assert moved == [True, True, is_trained, is_trained, True, True]


def test_files(session: Any, tmp_path: Path) -> None:
    output, (by_x, *_) = expected(session)
    export_tf(session, str(tmp_path / "export"), *ends(session))
    saved = tf1.saved_model.builder.SavedModelBuilder(str(tmp_path / "saved"))
    x, y = ends(session)
    with session.graph.as_default():
        signature = tf1.saved_model.predict_signature_def({"in": x}, {"out": y})
        saved.add_meta_graph_and_variables(session, ["serve"], {"serving_default": signature})
    saved.save()
    pb = str(tmp_path / "export" / "frozen_inference_graph.pb")
    nets = {
        "folder": TFNet.from_export_folder(str(tmp_path / "export")),
        "path": TFNet(str(tmp_path / "export")),
        "pb": TFNet(pb, "x", ["y:0"]),
        "saved model": TFNet.from_saved_model(str(tmp_path / "saved")),
        "tensors of it": TFNet.from_saved_model(str(tmp_path / "saved"), inputs="x:0", outputs="y:0"),
    }
    for name, net in nets.items():
        np.testing.assert_allclose(net.forward(X), output, atol=1e-6, err_msg=name)
        np.testing.assert_allclose(net.backward(X, G), by_x, atol=1e-6, err_msg=name)
        assert net.is_with_weights() == name.startswith(("saved", "tensors"))
    model = Sequential().add(nets["saved model"]).add(Linear(2, 1))
    model.saveModel(str(tmp_path / "model"))
    loaded = Model.loadModel(str(tmp_path / "model"))
    np.testing.assert_array_equal(loaded.forward(X), model.forward(X))
    with pytest.raises(PlanError, match="nowhere"):
        TFNet.from_export_folder(str(tmp_path / "nowhere"))
    with pytest.raises(PlanError, match="input_names"):
        TFNet(pb)


def test_scalars_whole_numbers_and_what_has_no_gradient() -> None:
    graph = tf.Graph()
    with graph.as_default(), tf1.Session(graph=graph) as session:
        x = tf1.placeholder(tf.float32, [], "x")
        plus = TFNet.from_session(session, x, x + 1)
        assert plus.forward(np.array(2.0)).shape == ()
        assert plus.forward(np.array(2.0)) == 3
        table = tf.constant([[1.0], [2.0], [3.0]])
        places = tf1.placeholder(tf.int32, [None], "places")
        scale = tf1.placeholder(tf.float32, [None], "scale")
        looked = tf.gather(table, places)[:, 0] * scale
        net = TFNet.from_session(session, [places, scale], looked)
        found = net.backward([np.array([0, 2]), np.array([5.0, 5.0])], np.ones(2))
        assert found[0].tolist() == [0, 0]
        assert found[1].tolist() == [1, 3]
        with pytest.raises(PlanError, match="places"):
            TFNet.from_session(session, [places, scale], looked, allow_non_differentiable_input=False)
        counted = TFNet.from_session(session, places, places + 1)
        assert counted.forward(np.array([1, 2])).tolist() == [2, 3]
        images = tf1.placeholder(tf.float32, [None, 2, 2, 3], "images")
        turned = TFNet.from_session(session, images, tf.raw_ops.AdjustHue(images=images, delta=0.1))
        with pytest.raises(UnsupportedError, match="AdjustHue"):
            turned.backward(np.ones((1, 2, 2, 3)), np.ones((1, 2, 2, 3)))
