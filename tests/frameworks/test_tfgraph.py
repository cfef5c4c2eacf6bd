"""Graphs as programs: whatever holds one, its replica computes what a session of TensorFlow's own would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from firesteel.core import registry
from firesteel.core.errors import CheckpointError, PlanError, SchemaError, UnknownName

tf1 = tf.compat.v1
bench: Any = registry.framework("tfgraph")
RNG = np.random.default_rng(5)
X = RNG.random((6, 3)).astype(np.float32)


def net(is_resource: bool = True) -> tuple[Any, Any, Any]:
    """A graph with an input, an output and two variables of its own kind each; not the default graph."""
    graph = tf.Graph()
    with graph.as_default():
        x = tf1.placeholder(tf.float32, [None, 3], name="x")
        w = tf1.get_variable("w", [3, 2], use_resource=is_resource)
        b = tf1.get_variable("b", [2], initializer=tf1.zeros_initializer(), use_resource=is_resource)
        y = tf.nn.sigmoid(tf.matmul(x, w) + b, name="y")
    return graph, x, y


def forward(program: Any, **batch: Any) -> Any:
    return bench.replica(program).forward(batch)


@pytest.mark.parametrize("is_resource", [True, False])
def test_tensors_with_a_sessions_values(is_resource: bool) -> None:
    graph, x, y = net(is_resource)
    with tf1.Session(graph=graph) as session:
        session.run([v.initializer for v in graph.get_collection("variables")])
        before = len(graph.get_operations())
        program = bench.capture(y, inputs=x, outputs={"score": y, "half": y / 2}, session=session)
        expected = session.run(y, {x: X})
        assert len(graph.get_operations()) == before + 1 + 1  # y / 2 and its constant: ours add none
    out = forward(program, x0=X)  # the session is closed
    assert np.allclose(out["score"], expected, atol=1e-6)
    assert np.allclose(out["half"], expected / 2, atol=1e-6)
    assert not any(b"pickle" in part for part in program.state.values())


def test_what_is_fed_is_cast_and_shaped() -> None:
    graph = tf.Graph()
    with graph.as_default():
        x = tf1.placeholder(tf.int32, [None, 2, 2], name="x")
        s = tf1.placeholder(tf.string, [None], name="s")
        y = tf.reduce_sum(x, [1, 2])
        z = tf.strings.to_number(s)
    program = bench.capture(graph, inputs={"a": x, "s": "s"}, outputs=[y, z])
    out = forward(program, a=np.arange(8.0).reshape(2, 4), s=np.array([b"123", "456"], object))
    assert out["_0"].tolist() == [6, 22]
    assert out["_1"].tolist() == [123.0, 456.0]
    with pytest.raises(SchemaError, match=r"'x:0'.*\(2, 2\).*\(3\)"):
        forward(program, a=np.ones((2, 3)), s=np.array([b"1", b"2"], object))
    with pytest.raises(SchemaError, match="strings"):
        forward(program, a=np.ones((2, 4)), s=np.ones(2))
    with pytest.raises(SchemaError, match=r"needs s.*has: a"):
        forward(program, a=np.ones((2, 4)))


def test_one_row_at_a_time_and_calls_of_a_fixed_size() -> None:
    graph = tf.Graph()
    with graph.as_default():
        row = tf1.placeholder(tf.float32, [3])
        fixed = tf1.placeholder(tf.float32, [4, 3])
        total, mean = tf.reduce_sum(row), tf.reduce_sum(fixed, 1)
    by_row = bench.capture(total, inputs=row, outputs=total, is_by_row=True)
    assert np.allclose(forward(by_row, x0=X)["prediction"], X.sum(1))
    filled = bench.capture(mean, inputs=fixed, outputs=mean, rows=4)
    assert np.allclose(forward(filled, x0=X)["prediction"], X.sum(1))


def test_variables_without_a_value() -> None:
    graph, x, y = net()
    with pytest.raises(PlanError, match=r"no value.*w, b"), tf1.Session(graph=graph) as session:
        bench.capture(y, inputs=x, outputs=y, session=session, initialize=False)
    one, two, other = (forward(bench.capture(y, inputs=x, outputs=y, seed=s), x0=X)["prediction"] for s in (1, 1, 2))
    assert np.array_equal(one, two)
    assert not np.allclose(one, other)


def test_a_text_of_a_graph() -> None:
    def build() -> Any:
        x = tf1.placeholder(tf.float32, [None, 3], name="x")
        y = tf1.placeholder(tf.float32, [None, 1], name="y")
        w = tf1.get_variable("w", [3, 1])
        out = tf.cond(tf.reduce_sum(x) > 0, lambda: tf.matmul(x, w), lambda: 0 * x[:, :1])
        tf.identity(out, name="out")
        tf1.losses.mean_squared_error(y, out)

    text = bench.build_graph(build)
    assert bench.build_graph(build) == text
    assert tf1.get_default_graph().get_operations() == []
    opened = bench.open_text(text)
    assert opened.graph.get_tensor_by_name(opened.loss).shape.rank == 0
    program = bench.capture(text, inputs={"f": "x:0"}, outputs={"p": "out:0"}, seed=3)
    assert forward(program, f=X)["p"].shape == (6, 1)
    with pytest.raises(UnknownName, match=r"'oot:0'.*out:0"):
        bench.capture(text, inputs={"f": "x:0"}, outputs="oot:0")
    with pytest.raises(PlanError, match="scalar"):
        bench.build_graph(lambda: tf1.placeholder(tf.float32, [None]))
    with pytest.raises(PlanError, match="Python functions"):
        bench.build_graph(lambda: tf.reduce_sum(tf.numpy_function(lambda: 1.0, [], tf.float32)))
    with pytest.raises(PlanError, match="build_graph"):
        bench.capture('{"nonsense": 1}', outputs="x:0")


def test_frozen_graphs_saved_models_and_functions(tmp_path: Path) -> None:
    graph, x, y = net()
    with tf1.Session(graph=graph) as session:
        session.run([v.initializer for v in graph.get_collection("variables")])
        expected = session.run(y, {x: X})
        frozen = tf1.graph_util.convert_variables_to_constants(session, graph.as_graph_def(), ["y"])
        with graph.as_default():
            tf1.saved_model.simple_save(session, str(tmp_path / "one"), {"in": x}, {"out": y})
    (tmp_path / "frozen.pb").write_bytes(frozen.SerializeToString())
    for model in (frozen, frozen.SerializeToString(), str(tmp_path / "frozen.pb")):
        found = forward(bench.capture(model, inputs={"v": "x"}, outputs={"p": "y"}), v=X)
        assert np.allclose(found["p"], expected, atol=1e-6)
    found = forward(bench.capture(str(tmp_path / "one")), **{"in": X})
    assert np.allclose(found["out"], expected, atol=1e-6)

    class Module(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = tf.Variable(2.0)

        @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32, "a")])
        def scaled(self, a: Any) -> Any:
            return {"twice": a * self.scale, "rows": tf.shape(a)[:1] * tf.ones_like(a[:, 0], tf.int32)}

    module = Module()
    module.scale.assign(3.0)
    found = forward(bench.capture(module.scaled), a=X)
    assert np.allclose(found["twice"], 3 * X)
    assert found["rows"].tolist() == [6] * 6
    tf.saved_model.save(module, str(tmp_path / "two"), module.scaled)
    found = forward(bench.capture(bench.open_saved_model(str(tmp_path / "two"), signature="serving_default")), a=X)
    assert np.allclose(found["twice"], 3 * X)
    with pytest.raises(UnknownName, match=r"'other'.*serving_default"):
        bench.open_saved_model(str(tmp_path / "two"), signature="other")
    with pytest.raises(PlanError, match=r"saved_model.pb"):
        bench.capture(str(tmp_path))


def test_tables_and_python_functions_beside_the_way() -> None:
    graph = tf.Graph()
    with graph.as_default():
        words = tf1.placeholder(tf.string, [None], name="words")
        table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a", "b"], [7, 8]), -1)
        found = table.lookup(words)
        tf.py_function(lambda v: v, [found], tf.int32)
    program = bench.capture(found, inputs=words, outputs=found)
    assert forward(program, x0=np.array(["b", "z"], object))["prediction"].tolist() == [8, -1]


def test_flags_are_fed() -> None:
    graph = tf.Graph()
    with graph.as_default():
        x = tf1.placeholder(tf.float32, [None])
        keep = tf1.placeholder(tf.int64, [], name="keep")
        y = x * tf.cast(keep, tf.float32)
    with pytest.raises(PlanError, match=r"'keep'.*nothing feeds"):
        bench.capture(y, inputs=x, outputs=y)
    program = bench.capture(y, inputs=x, outputs=y, flags={keep: 3})
    assert forward(program, x0=np.ones(2))["prediction"].tolist() == [3, 3]


def test_what_is_wrong_is_said() -> None:
    (_, x, y), (_, x2, _) = net(), net()
    with pytest.raises(PlanError, match="two graphs"):
        bench.capture([y, x2], inputs=x, outputs=y)
    with pytest.raises(PlanError, match="EagerTensor"):
        bench.capture(y, inputs=tf.constant(1.0), outputs=y)
    with pytest.raises(PlanError, match="serialized GraphDef"):
        bench.capture(b"nonsense", outputs="y")
    replica = bench.replica(bench.capture(y, inputs=x, outputs=y))
    from safetensors.numpy import save

    with pytest.raises(CheckpointError, match=r"lacks b.*besides: c"):
        replica.load({"model": save({"w": np.zeros((3, 2)), "c": np.zeros(1)})})
    assert bench.accepts(y)
    assert not bench.accepts(tf.constant(1.0))
    assert not bench.accepts(3)
