"""MXNet models through the Estimator: what workers learn, whose rows count, what is left of their processes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from needs import need_mxnet

mx = need_mxnet()

from mxnet import gluon  # noqa: E402

from firesteel import XShards  # noqa: E402
from firesteel.core import registry  # noqa: E402
from firesteel.core.errors import PlanError, ReplicaFailed, UnknownName, UnsupportedError  # noqa: E402
from firesteel.learn.mxnet import Estimator, create_config  # noqa: E402
from firesteel.learn.pytorch.callbacks import Callback  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.usefixtures("spark")]

ROWS = np.array([[1.0], [2.0], [3.0], [4.0], [5.0]])


def net(config: dict[str, Any]) -> Any:
    made = gluon.nn.Dense(1, use_bias=False, in_units=1)
    made.initialize(mx.init.One())
    return made


def l2(config: dict[str, Any]) -> Any:
    return gluon.loss.L2Loss()


def estimator(workers: int = 2, config: dict[str, Any] | None = None, **parts: Any) -> Any:
    plain = {**create_config(optimizer_params={"learning_rate": 0.02}), **(config or {})}
    return Estimator.from_mxnet(
        config=plain, **{"model_creator": net, "loss_creator": l2, "num_workers": workers, **parts}
    )


def weight(est: Any) -> float:
    return float(est.get_model().weight.data().asnumpy()[0, 0])


def everybody(count: int, shuffle: bool = False) -> Any:
    """A creator that yields all rows on every worker."""

    def create(config: dict[str, Any], kv: Any) -> Any:
        return mx.io.NDArrayIter(ROWS[:count], np.zeros(count), batch_size=config["batch_size"], shuffle=shuffle)

    return create


def companions() -> list[psutil.Process]:
    """Processes below this one that have a role in a gang of MXNet's."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if "DMLC_ROLE" in process.environ():
                found.append(process)
        except psutil.Error:
            continue
    return found


# --- what workers learn ---


@pytest.mark.parametrize(
    ("kind", "workers", "servers"),
    [
        ("creator", 1, None),
        ("creator", 2, 1),
        ("creator", 3, 2),
        ("shards", 2, 2),
        ("frame", 3, 1),
        ("arrays", 2, None),
    ],
)
def test_every_gang_learns_what_one_does(spark: SparkSession, kind: str, workers: int, servers: int | None) -> None:
    x, y = ROWS[:4], np.zeros(4)
    options: dict[str, Any] = {}
    data: Any = everybody(4)
    if kind == "shards":
        data = XShards.partition({"x": x, "y": y}, 3)
    elif kind == "frame":
        data = spark.createDataFrame([([float(v[0])], 0.0) for v in x], "x array<float>, y float").repartition(3)
        options = {"feature_cols": "x", "label_cols": "y"}
    elif kind == "arrays":
        data = (x, y)
    est = estimator(workers, num_servers=servers)
    history = est.fit(data, epochs=2, batch_size=4, verbose=0, **options)
    assert weight(est) == pytest.approx(0.7225, abs=1e-6)
    assert [(each["epoch"], each["batch_count"], each["num_samples"]) for each in history] == [(1, 1, 4), (2, 1, 4)]
    assert [each["train_loss"] for each in history] == pytest.approx([3.75, 3.75 * 0.85**2])
    assert companions() == []


def test_rows_that_only_fill_a_batch_do_not_count() -> None:
    est = estimator(1)
    history = est.fit(everybody(5), batch_size=2, verbose=0)
    assert (history[0]["batch_count"], history[0]["num_samples"]) == (3, 5)
    assert weight(est) == pytest.approx(0.35625, abs=1e-6)


def test_a_creator_that_asks_who_it_is_has_its_own_rows() -> None:
    def create(config: dict[str, Any], kv: Any) -> Any:
        mine = ROWS[:3] if kv.rank == 0 else ROWS[3:5]
        assert kv.num_workers == 2
        return gluon.data.DataLoader(gluon.data.ArrayDataset(mine, np.zeros(len(mine))), config["batch_size"])

    est = estimator(2)
    history = est.fit(create, epochs=2, batch_size=2, verbose=0)
    assert [record["num_samples"] for record in history] == [5, 5]
    # Steps of rows (1, 4), (2, 5) and 3 alone.
    expected = 1.0
    for rows in [(1, 4), (2, 5), (3,)] * 2:
        expected -= 0.02 * expected * np.mean(np.square(rows))
    assert weight(est) == pytest.approx(expected, abs=1e-6)


def test_uneven_and_empty_partitions(sc: SparkContext) -> None:
    parts = [{"x": np.ones((n, 1)), "y": np.zeros(n)} for n in (5, 0, 2)]
    est = estimator(2)
    history = est.fit(XShards(sc.parallelize(parts, 3)), epochs=3, batch_size=3, verbose=0)
    assert [(record["num_samples"], record["batch_count"]) for record in history] == [(7, 3)] * 3


def test_metrics_over_all_rows(sc: SparkContext) -> None:
    # Scores of class 1 are x itself: labels 1 1 0 | 1 make rows 0, 1 and 3 right.
    def scores(config: dict[str, Any]) -> Any:
        made = gluon.nn.Dense(2, use_bias=False, in_units=1)
        made.initialize(mx.init.Constant(mx.nd.array([[0.0], [1.0]])))
        return made

    x = np.array([[1.0], [2.0], [3.0], [4.0]])
    y = np.array([1, 1, 0, 1])
    parts = [{"x": x[:3], "y": y[:3]}, {"x": x[3:], "y": y[3:]}]
    est = estimator(
        2,
        create_config(optimizer_params={"learning_rate": 0.0}),
        model_creator=scores,
        loss_creator=lambda config: gluon.loss.SoftmaxCrossEntropyLoss(),
        eval_metrics_creator=lambda config: mx.metric.Accuracy(),
        validation_metrics_creator=lambda config: ["acc", mx.metric.F1(average="micro")],
    )
    shards = XShards(sc.parallelize(parts, 2))
    (record,) = est.fit(shards, batch_size=4, validation_data=shards, verbose=0)
    assert record["accuracy"] == pytest.approx(0.75)
    assert record["val_accuracy"] == pytest.approx(0.75)
    assert record["val_f1"] == pytest.approx(6 / 7)
    assert record["epoch_time"] > 0
    found = est.evaluate(shards, batch_size=2)
    assert found == pytest.approx(
        {"num_samples": 4, "loss": record["val_loss"], "accuracy": 0.75, "f1": 6 / 7}, abs=1e-6
    )
    assert est.evaluate((x, y), num_steps=1, batch_size=2)["num_samples"] == 2
    with pytest.raises(PlanError, match="validation_metrics_creator"):
        estimator().fit(shards, validation_data=shards)


def test_two_inputs(sc: SparkContext) -> None:
    class Two(gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            with self.name_scope():
                self.left = gluon.nn.Dense(1, use_bias=False)
                self.right = gluon.nn.Dense(1, use_bias=False)

        def hybrid_forward(self, F: Any, a: Any, b: Any) -> Any:
            return self.left(a) + self.right(b)

    random = np.random.default_rng(0)
    data = {"x": {"a": random.random((6, 2)), "b": random.random((6, 3))}, "y": random.random((6, 1))}
    est = estimator(2, {"seed": 3, "optimizer_params": {"learning_rate": 0.5}}, model_creator=lambda config: Two())
    history = est.fit(XShards(sc.parallelize([data], 1)), epochs=3, batch_size=6, verbose=0)
    assert history[2]["train_loss"] < history[0]["train_loss"]
    assert est.get_model().right.weight.shape == (1, 3)
    found = est.predict([data["x"]["a"], data["x"]["b"]])
    expected = est.get_model()(*(mx.nd.array(values) for values in data["x"].values()))
    np.testing.assert_allclose(found, expected.asnumpy(), atol=1e-6)


def softmax(config: dict[str, Any]) -> Any:
    scores = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, name="scores")
    symbol = mx.sym.SoftmaxOutput(scores, name="softmax")
    return mx.mod.Module(symbol, data_names=["data"], label_names=["softmax_label"])


def test_a_symbolic_module(spark: SparkSession, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    x = random.random((20, 3)).astype(np.float32)
    y = (x[:, 0] > x[:, 1]).astype(int)
    found = []
    for workers in (1, 2):
        est = estimator(
            workers,
            create_config("sgd", {"learning_rate": 1.0, "momentum": 0.5}, 1, 1, {"model": f"{tmp_path}/m"}),
            model_creator=softmax,
            loss_creator=None,
            eval_metrics_creator=lambda config: "acc",
            validation_metrics_creator=lambda config: "acc",
        )
        history = est.fit((x, y), epochs=6, batch_size=7, shuffle=False, verbose=0)
        assert "train_loss" not in history[0]
        assert history[-1]["accuracy"] > max(0.8, history[0]["accuracy"])
        values = est.get_model().get_params()[0]
        found.append({name: value.asnumpy() for name, value in values.items()})
    for name, value in found[0].items():
        np.testing.assert_allclose(found[1][name], value, atol=1e-5)
    assert {path.name for path in tmp_path.iterdir()} == {"m-symbol.json", *(f"m-{n:04d}.params" for n in range(1, 7))}
    again = mx.mod.Module.load(f"{tmp_path}/m", 6, label_names=None)
    again.bind([("data", (20, 3))], for_training=False)
    scored = again.predict(mx.io.NDArrayIter(x, batch_size=20)).asnumpy()
    df = spark.createDataFrame([(n, row.tolist()) for n, row in enumerate(x)], "id int, x array<float>").repartition(3)
    rows = est.predict(df, feature_cols="x").orderBy("id").collect()
    np.testing.assert_allclose([row["prediction"].toArray() for row in rows], scored, atol=1e-5)
    assert est.evaluate((x, y))["accuracy"] == pytest.approx(float((scored.argmax(1) == y).mean()))


def test_an_asynchronous_store() -> None:
    est = estimator(2, {"kvstore": "dist_async"})
    history = est.fit((np.ones((40, 1)), np.zeros(40)), epochs=2, batch_size=4, verbose=0)
    assert [record["num_samples"] for record in history] == [40, 40]
    assert abs(weight(est)) < 0.8  # in one process it would be 0.668
    assert companions() == []


def test_epochs_of_a_wanted_length() -> None:
    est = estimator(2, {"batch_size": 2})
    with pytest.warns(UserWarning, match="exactly once"):
        history = est.fit(everybody(5), epochs=2, train_resize_batch_num=4, verbose=0)
    assert [record["batch_count"] for record in history] == [4, 4]
    assert [record["num_samples"] for record in history] == [7, 7]
    with pytest.warns(UserWarning, match="wins"):
        history = est.fit(everybody(5), batch_size=5, verbose=0)
    assert history[0]["batch_count"] == 1


# --- what goes wrong ---


def test_a_creator_that_raises_is_told_and_nothing_is_left() -> None:
    def create(config: dict[str, Any]) -> Any:
        if os.environ["RANK"] == "1":
            raise RuntimeError("no model today")
        return net(config)

    est = estimator(2, model_creator=lambda config: create(config) if "RANK" in os.environ else net(config))
    begin = time.monotonic()
    with pytest.raises(ReplicaFailed, match="no model today") as caught:
        est.fit(everybody(4), verbose=0)
    assert caught.value.rank == 1
    assert time.monotonic() - begin < 30
    assert companions() == []
    est = estimator(2)
    est.fit(everybody(4), batch_size=4, verbose=0)
    assert weight(est) == pytest.approx(0.85, abs=1e-6)


class Slow(Callback):
    def after_train_iter(self, runner: Any) -> None:
        time.sleep(0.2)


def test_a_server_that_is_killed_is_told_and_nothing_is_left() -> None:
    est = estimator(2)
    killed: list[float] = []

    def kill() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            servers = [each for each in companions() if each.environ()["DMLC_ROLE"] == "server"]
            if len(servers) == 2:
                time.sleep(3)
                servers[0].kill()
                killed.append(time.monotonic())
                return
            time.sleep(0.1)

    thread = threading.Thread(target=kill)
    thread.start()
    with pytest.raises(ReplicaFailed, match=r"parameter server \d that ran beside it was killed by signal 9"):
        est.fit(everybody(4), epochs=200, batch_size=4, callbacks=Slow(), verbose=0)
    assert time.monotonic() - killed[0] < 10
    thread.join()
    assert companions() == []
    est.fit(everybody(4), batch_size=4, verbose=0)
    assert weight(est) == pytest.approx(0.85, abs=1e-6)


class Suicide(Callback):
    """Worker 1 kills itself in step 6, once."""

    def __init__(self, mark: str) -> None:
        self._mark = mark

    def after_train_iter(self, runner: Any) -> None:
        if runner.rank == 1 and runner.global_step == 6 and not os.path.exists(self._mark):
            open(self._mark, "w").close()
            os.kill(os.getpid(), 9)


def test_a_worker_that_is_killed_is_replaced(tmp_path: Path) -> None:
    alone, gang = estimator(1, {"seed": 5}), estimator(2, {"seed": 5})
    alone.fit((ROWS, np.zeros(5)), epochs=4, batch_size=2, verbose=0)
    history = gang.fit((ROWS, np.zeros(5)), epochs=4, batch_size=2, callbacks=Suicide(str(tmp_path / "m")), verbose=0)
    assert [record["num_samples"] for record in history] == [5] * 4
    assert len(history.recoveries) == 1
    assert weight(gang) == pytest.approx(weight(alone), abs=1e-6)
    assert companions() == []


def listening() -> set[int]:
    found = set()
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            if "java" not in process.name():
                open_ports = process.net_connections("tcp")
                found |= {each.laddr.port for each in open_ports if each.status == psutil.CONN_LISTEN}
    return found


def test_nothing_stays_behind() -> None:
    before = listening()
    estimator(2).fit(everybody(4), batch_size=4, verbose=0)
    assert not [name for name in os.environ if name.startswith("DMLC_")]
    assert companions() == []
    assert listening() <= before


PLAIN = "import numpy, firesteel; assert not hasattr(numpy, 'PZERO') or numpy.__version__ < '2'"
ORDER = "from firesteel.learn.mxnet import Estimator, create_config; import mxnet; mxnet.nd.ones(2).asnumpy()"


@pytest.mark.parametrize("code", [PLAIN, ORDER])
def test_numpy_is_touched_where_mxnet_is_used(code: str) -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


# --- files ---


GO_ON = """
import sys
import numpy as np
from firesteel.learn.mxnet import Estimator, create_config
import mxnet as mx
from mxnet import gluon

def net(config):
    made = gluon.nn.Dense(1, use_bias=False, in_units=1)
    made.initialize(mx.init.One())
    return made

est = Estimator.from_mxnet(
    config=create_config("adam", {"learning_rate": 0.1}, seed=1),
    model_creator=net,
    loss_creator=lambda config: gluon.loss.L2Loss(),
)
est.load(sys.argv[1])
x = np.array([[1.0], [2.0], [3.0], [4.0], [5.0]])
np.save(sys.argv[2], est.predict(x))
est.fit((x, np.zeros(5)), batch_size=2, verbose=0)
np.save(sys.argv[3], est.get_model().weight.data().asnumpy())
"""


def test_saved_loaded_and_gone_on_with(tmp_path: Path) -> None:
    config = create_config("adam", {"learning_rate": 0.1}, seed=1)
    whole, half = estimator(2, config), estimator(2, config)
    whole.fit((ROWS, np.zeros(5)), epochs=2, batch_size=2, verbose=0)
    half.fit((ROWS, np.zeros(5)), epochs=1, batch_size=2, verbose=0)
    path = half.save(str(tmp_path / "model.safetensors"))
    names = [str(tmp_path / name) for name in ("predicted.npy", "weight.npy")]
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", GO_ON, path, *names],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    np.testing.assert_array_equal(np.load(names[0]), half.predict(ROWS))
    assert float(np.load(names[1])[0, 0]) == pytest.approx(weight(whole), abs=1e-6)
    with pytest.raises(FileExistsError):
        half.save(path, overwrite=False)
    half.get_model().save_parameters(str(tmp_path / "own.params"))
    other = estimator()
    other.load(str(tmp_path / "own.params"))
    assert weight(other) == weight(half)
    with pytest.raises(PlanError, match="nothing to save"):
        estimator().save(path)


# --- words ---


def test_create_config() -> None:
    plain = {"optimizer": "sgd", "optimizer_params": {"learning_rate": 0.01}, "log_interval": 10}
    assert create_config() == plain
    assert create_config(seed=0) == {**plain, "seed": 0}
    assert create_config(extra_config={"a": 1}) == {**plain, "a": 1}
    with pytest.raises(PlanError, match="extra_config"):
        create_config(extra_config=3)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="'optimizer'"):
        Estimator.from_mxnet(config={"optimizer_params": {}, "log_interval": 1}, model_creator=net)


def test_wrong_words_are_said_at_once() -> None:
    with pytest.raises(UnknownName, match="dist_sync"):
        estimator(config={"kvstore": "local"})
    with pytest.raises(UnknownName, match="adam"):
        estimator(config={"optimizer": "no"})
    with pytest.raises(PlanError, match="num_workers"):
        estimator(0)
    with pytest.raises(PlanError, match="model_creator"):
        estimator(model_creator=3)
    with pytest.raises(PlanError, match="loss_creator"):
        estimator(loss_creator=None).fit(everybody(4))
    with pytest.raises(UnsupportedError, match="clip_gradient"):
        estimator().set_l2_norm_gradient_clipping(1.0)
    with pytest.raises(UnsupportedError, match="creator"):
        estimator().fit("rows")
    est = estimator()
    est.shutdown()
    est.shutdown()


def test_without_the_package_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError("No module named 'mxnet'", name="mxnet")

    monkeypatch.setattr(registry, "framework", missing)
    with pytest.raises(PlanError, match=r"pip install --no-deps mxnet==1\.9\.1"):
        estimator()
