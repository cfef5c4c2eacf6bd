"""The MXNet bench without Spark: the contract, metrics that add up, iterators, states."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from needs import need_mxnet

mx = need_mxnet()

from mxnet import gluon  # noqa: E402

from firesteel.core.errors import CheckpointError, PlanError, UnknownName, UnsupportedError  # noqa: E402
from firesteel.core.registry import framework  # noqa: E402
from firesteel.core.spec import batch_of  # noqa: E402
from firesteel.frameworks.mxnet.figures import make_metric, read_states, values_of, write_states  # noqa: E402
from firesteel.testing import check_framework  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # MXNet is of 2022
BENCH: Any = framework("mxnet")
RANDOM = np.random.default_rng(0)
X = RANDOM.random((7, 3), dtype=np.float32)
Y = RANDOM.random((7, 1), dtype=np.float32)
CLASSES = np.array([0, 1, 2, 1, 0, 2, 2])
SETTINGS = {
    "sgd": {"optimizer": "sgd", "optimizer_params": {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01}},
    "adam": {"optimizer": "adam", "optimizer_params": {"learning_rate": 0.1}},
}


def net(config: dict[str, Any]) -> Any:
    model = gluon.nn.HybridSequential()
    model.add(gluon.nn.Dense(4, activation="tanh"), gluon.nn.BatchNorm(), gluon.nn.Dense(1))
    return model


def plain_net(config: dict[str, Any]) -> Any:
    model = gluon.nn.Sequential()
    model.add(gluon.nn.Dense(4, activation="tanh"), gluon.nn.Dense(1))
    return model


def module(config: dict[str, Any]) -> Any:
    hidden = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=8, name="hidden")
    scores = mx.sym.FullyConnected(mx.sym.Activation(hidden, act_type="tanh"), num_hidden=3, name="scores")
    return mx.mod.Module(
        mx.sym.SoftmaxOutput(scores, name="softmax"), data_names=["data"], label_names=["softmax_label"]
    )


def capture(model: Any = plain_net, settings: str = "sgd", **parts: Any) -> Any:
    loss = {} if model is module else {"loss_creator": lambda config: gluon.loss.L2Loss()}
    return BENCH.capture(model, config={**SETTINGS[settings], "log_interval": 1}, seed=1, **loss, **parts)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("style", ["gluon", "module"])
def test_the_contract(style: str, settings: str) -> None:
    batch = batch_of(X, CLASSES) if style == "module" else batch_of(X, Y)
    check_framework(BENCH, capture(module if style == "module" else plain_net, settings), batch)


def test_a_step_is_what_gluons_own_trainer_makes() -> None:
    replica = BENCH.replica(capture(net))
    replica.start(None)
    replica.prepare(batch_of(X, Y))
    own = net({})
    own.initialize()
    own(mx.nd.array(X))
    for mine, theirs in zip(own.collect_params().values(), replica.model.collect_params().values(), strict=True):
        mine.set_data(theirs.data())
    trainer = gluon.Trainer(own.collect_params(), **SETTINGS["sgd"])
    for _ in range(3):
        with mx.autograd.record():
            loss = gluon.loss.L2Loss()(own(mx.nd.array(X)), mx.nd.array(Y))
        loss.backward()
        trainer.step(len(X))
        assert replica.backward(batch_of(X, Y), 1.0) == pytest.approx(float(loss.mean().asscalar()), rel=1e-5)
        replica.update()
    for mine, theirs in zip(own.collect_params().values(), replica.model.collect_params().values(), strict=True):
        np.testing.assert_allclose(mine.data().asnumpy(), theirs.data().asnumpy(), atol=1e-6)


def test_a_step_is_what_modules_own_update_makes() -> None:
    replica = BENCH.replica(capture(module))
    replica.start(None)
    replica.prepare(batch_of(X, CLASSES))
    own = module({})
    own.bind([("data", (7, 3))], [("softmax_label", (7,))])
    own.init_params()
    own.set_params(*replica.model.get_params())
    options = {**SETTINGS["sgd"]["optimizer_params"], "rescale_grad": 1 / 7}
    own.init_optimizer(kvstore=None, optimizer="sgd", optimizer_params=options)
    for _ in range(3):
        own.forward_backward(mx.io.DataBatch([mx.nd.array(X)], [mx.nd.array(CLASSES)]))
        own.update()
        replica.backward(batch_of(X, CLASSES), 1.0)
        replica.update()
    found = {name: value.asnumpy() for name, value, _ in replica._style.trained}
    for name, value in own.get_params()[0].items():
        np.testing.assert_allclose(found[name], value.asnumpy(), atol=1e-6)
    # In between somebody validates, with another number of rows and without labels.
    assert replica.forward(batch_of(X[:2]))["prediction"].shape == (2, 3)
    replica.backward(batch_of(X, CLASSES), 1.0)


def test_a_frozen_weight_and_one_that_is_not_used() -> None:
    class Odd(gluon.Block):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.frozen, self.unused = (gluon.nn.Dense(1, in_units=3) for _ in range(3))
            self.frozen.collect_params().setattr("grad_req", "null")

        def forward(self, x: Any) -> Any:
            return self.used(x) + self.frozen(x)

    replica = BENCH.replica(capture(lambda config: Odd()))
    replica.start(None)
    replica.prepare(batch_of(X, Y))
    before = {
        name: parameter.data().asnumpy() for name, parameter in replica.model._collect_params_with_prefix().items()
    }
    replica.backward(batch_of(X, Y), 1.0)
    assert [len(flat) for flat in replica.gradients()] == [8]
    assert not np.any(replica.gradients()[0][4:])
    replica.update()
    after = {
        name: parameter.data().asnumpy() for name, parameter in replica.model._collect_params_with_prefix().items()
    }
    assert not np.allclose(before["used.weight"], after["used.weight"])
    np.testing.assert_array_equal(before["frozen.weight"], after["frozen.weight"])


def test_two_inputs_in_the_order_of_their_keys() -> None:
    class Two(gluon.HybridBlock):
        def hybrid_forward(self, F: Any, a: Any, b: Any) -> Any:
            return a - b, F.broadcast_mul(a, b)

    assert BENCH.input_range(Two()) == (2, 2)
    replica = BENCH.replica(capture(lambda config: Two()))
    found = replica.forward(batch_of({"a": X, "b": 2 * X}))
    np.testing.assert_allclose(found["_0"], -X)
    assert list(found) == ["_0", "_1"]


def test_numpy_style_blocks() -> None:
    program = capture(plain_net)
    with mx.util.np_shape(True), mx.util.np_array(True):
        replica = BENCH.replica(program)
        replica.start(None)
        first = replica.backward(batch_of(X, Y), 1.0)
        for _ in range(5):
            replica.update()
            last = replica.backward(batch_of(X, Y), 1.0)
        assert last < first
        assert replica.forward(batch_of(X))["prediction"].shape == (7, 1)


LABELS = [np.array([1, 0, 1]), np.array([1, 1]), np.array([0, 0, 1, 1])]
SCORES = [RANDOM.random((len(labels), 2)) for labels in LABELS]
METRICS = {
    "acc": lambda config: "acc",
    "names": lambda config: ["acc", "ce", mx.metric.Perplexity(None)],
    "f1": lambda config: mx.metric.F1(average="micro"),
    "mcc": lambda config: mx.metric.MCC(average="micro"),
    "pcc": lambda config: mx.metric.PCC(),
    "own": lambda config: mx.metric.np(
        lambda label, pred: (float((label == pred.argmax(1)).sum()), len(label)), "right"
    ),
}


@pytest.mark.parametrize("name", METRICS)
def test_merged_metrics_are_those_of_all_rows(name: str) -> None:
    def fed(parts: Any) -> Any:
        metric = make_metric(METRICS[name], {})
        for labels, scores in parts:
            metric.update([mx.nd.array(labels)], [mx.nd.array(scores)])
        return metric

    pairs = list(zip(LABELS, SCORES, strict=True))
    whole, first, second = fed(pairs), fed(pairs[:2]), fed(pairs[2:])
    merged = make_metric(METRICS[name], {})
    write_states(merged, [read_states(first), read_states(second)])
    assert values_of(merged) == pytest.approx(values_of(whole))
    figures = [BENCH.figures(METRICS[name], {}) for _ in range(3)]
    for figure, parts in zip(figures, (pairs[:2], pairs[2:]), strict=False):
        for labels, scores in parts:
            figure.measure([mx.nd.array(labels)], [mx.nd.array(scores)])
        other = figure.fresh()
        other.load_state(figure.state())
        figures[2].merge(other)
    assert figures[2].compute() == pytest.approx(values_of(whole))


def test_a_metric_that_keeps_anything_else_is_refused_when_there_is_something_to_merge() -> None:
    def creator(config: dict[str, Any]) -> Any:
        return mx.metric.PearsonCorrelation(average="micro")

    figures = [BENCH.figures(creator, {}) for _ in range(2)]
    for figure in figures:
        figure.measure([mx.nd.array([1, 2, 4])], [mx.nd.array([1, 3, 3])])
    alone = figures[0].fresh()
    alone.load_state(figures[0].state())
    assert alone.compute() == pytest.approx(figures[0].compute())
    figures[0].merge(figures[1])
    with pytest.raises(UnsupportedError, match="'pearsonr'"):
        figures[0].compute()


def make_stream(creator: Any, batch_size: int = 4, rank: int = 0, size: int = 2, auto_shard: Any = None) -> Any:
    stream = SimpleNamespace(source=creator, config={"a": 1}, batch_size=batch_size, auto_shard=auto_shard)
    return BENCH.create(stream, rank, size)


def rows(made: Any, epoch: int = 0, batch_size: int = 4) -> list[list[float]]:
    return [batch["x0"].reshape(-1).tolist() for batch in BENCH.stream(made, batch_size, 3, epoch)]


def test_who_asks_who_it_is_has_rows_of_its_own() -> None:
    def everybody(config: dict[str, Any], kv: Any) -> Any:
        assert kv.type == "dist_sync"
        assert config == {"a": 1, "batch_size": 2}
        return mx.io.NDArrayIter(np.arange(7.0), np.arange(7.0), batch_size=config["batch_size"])

    def own(config: dict[str, Any], kv: Any) -> Any:
        return [(np.arange(7.0)[kv.rank :: kv.num_workers], np.zeros(4 - kv.rank))]

    assert not BENCH.take_shard(make_stream(everybody), 0, 2)
    assert rows(make_stream(everybody)) == [[0, 1, 2, 3], [4, 5, 6]]  # whole batches, and no row that only fills up
    assert BENCH.take_shard(make_stream(own), 0, 2)
    assert rows(make_stream(own, rank=1)) == [[1, 3, 5]]
    assert BENCH.take_shard(make_stream(everybody, auto_shard=False), 0, 2)
    assert not BENCH.take_shard(make_stream(own, auto_shard=True), 0, 2)


@pytest.mark.parametrize("kind", ["iterator", "loader"])
def test_a_shuffled_order_is_a_function_of_seed_and_epoch(kind: str) -> None:
    def creator(config: dict[str, Any], kv: Any) -> Any:
        if kind == "iterator":
            return mx.io.NDArrayIter(np.arange(9.0), np.arange(9.0), batch_size=2, shuffle=True)
        return gluon.data.DataLoader(
            gluon.data.ArrayDataset(np.arange(9.0), np.arange(9.0)), batch_size=2, shuffle=True
        )

    np.random.seed(5)
    one = make_stream(creator)
    np.random.seed(5)
    other = make_stream(creator, rank=1)
    first, second = rows(one, 0), rows(one, 1)
    assert rows(one, -1)[0] == first[0]  # the look that tells the shapes, before all epochs
    before = np.random.get_state()[1].tolist()
    assert rows(other, 1) == second  # without having read the epoch before
    assert np.random.get_state()[1].tolist() == before
    assert first != second
    for found in (first, second):
        assert sorted(value for batch in found for value in batch) == list(range(9))


def test_what_can_be_read_once_is_kept() -> None:
    made = make_stream(lambda config, kv: ((np.full(3, n), np.zeros(3)) for n in range(2)))
    assert rows(made) == rows(made, 1) == [[0, 0, 0, 1], [1, 1]]
    with pytest.raises(UnsupportedError, match="int"):
        rows(make_stream(lambda config, kv: 3))


def test_files(tmp_path: Any) -> None:
    replica = BENCH.replica(capture(net, "adam"))
    replica.start(None)
    replica.backward(batch_of(X, Y), 1.0)
    replica.update()
    data = BENCH.pack_file(replica.state(), {"position": 3})
    state, facts = BENCH.unpack_file(data)
    assert facts == {"position": 3}
    assert b"pickle" not in data
    size = int.from_bytes(data[:8], "little")
    assert "0.weight" in json.loads(data[8 : 8 + size])
    other = BENCH.replica(capture(net, "adam"))
    other.start(None)
    other.load(state)
    for each in (replica, other):
        each.backward(batch_of(X, Y), 1.0)
        each.update()
    np.testing.assert_array_equal(replica.weights()[0], other.weights()[0])

    other.model.save_parameters(str(tmp_path / "places.params"))
    other.model.collect_params().save(str(tmp_path / "names.params"))
    other.model.hybridize()
    other.forward(batch_of(X))
    other.model.export(str(tmp_path / "export"))
    for name in ("places.params", "names.params", "export-0000.params"):
        fresh = BENCH.replica(capture(net))
        fresh.load(BENCH.read_params((tmp_path / name).read_bytes(), name, fresh.model))
        np.testing.assert_array_equal(
            fresh.forward(batch_of(X))["prediction"], other.forward(batch_of(X))["prediction"]
        )
    with pytest.raises(CheckpointError, match=r"x\.bin"):
        BENCH.read_params(b"something else", "x.bin", other.model)
    with pytest.raises(CheckpointError, match="another model"):
        BENCH.replica(capture(plain_net)).load(state)


def test_what_does_not_fit_is_said() -> None:
    for wrong, words in ({"optimizer": "no"}, "adam"), ({"optimizer": 3}, "adam"):
        with pytest.raises(UnknownName, match=words):
            BENCH.capture(net, config={**SETTINGS["sgd"], **wrong})
    with pytest.raises(PlanError, match="leave optimizer_params out"):
        BENCH.capture(net, config={"optimizer": mx.optimizer.SGD(), "optimizer_params": {"learning_rate": 1}})
    with pytest.raises(PlanError, match="do not fit"):
        BENCH.capture(net, config={"optimizer": "sgd", "optimizer_params": {"no": 1}})
    with pytest.raises(PlanError, match="int"):
        BENCH.replica(capture(lambda config: 3))
