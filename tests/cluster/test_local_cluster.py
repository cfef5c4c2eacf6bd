"""Executors that are processes of their own, each with its own Python workers: what works on threads works here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = """
import json, os, sys, time
import numpy as np
import psutil
import torch
from pyspark.sql import functions
from torch import nn
from firesteel import Estimator, init_context, stop_context
from firesteel.cluster.child import this_desk

context = init_context("local", cores=1, num_nodes=2, conf={"spark.ui.enabled": "false"})
context.setLogLevel("OFF")
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
found = {"master": context.master}
MARKS = sys.argv[1]

class Net(nn.Module):
    def __init__(self, fault=None):
        super().__init__()
        torch.manual_seed(1)
        self.layer = nn.Linear(2, 1)
        self.calls, self.fault = 0, fault

    def forward(self, x):
        self.calls += 1
        if self.fault and os.environ.get("RANK") == "1" and self.calls == 3:
            open(MARKS, "a").write(f"{time.time()}\\n")
            if self.fault == "boom":
                raise RuntimeError("boom")
            os.kill(os.getpid() if self.fault == "child" else this_desk().task, 9)
            time.sleep(60)
        return self.layer(x)

random = np.random.default_rng(0)
x = random.random((90, 2)).astype(np.float32)
y = (x @ np.array([[1.0], [-2.0]], np.float32))[:, 0]
rows = [(i, a.tolist(), float(b)) for i, (a, b) in enumerate(zip(x, y))]
df = spark.createDataFrame(rows, "id int, x array<float>, y float").repartition(5, "id").cache()

def make(fault=None):
    model = Net(fault)
    est = Estimator.from_torch(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.2), loss=nn.MSELoss(),
        workers_per_node=1, seed=3,
    )
    return est, model

def fit(est, data=df, **options):
    return est.fit(data, epochs=3, batch_size=16, feature_cols="x", label_cols="y", verbose=0, **options)

est, model = make()
found["replicas"] = est.num_workers
history = fit(est, validation_data=df.where("id < 30"))
found["samples"] = [record["num_samples"] for record in history]
found["val_samples"] = [record["val_num_samples"] for record in history]
with torch.no_grad():
    by_hand = float(((model(torch.from_numpy(x))[:, 0] - torch.from_numpy(y)) ** 2).mean())
    by_hand_30 = float(((model(torch.from_numpy(x[:30]))[:, 0] - torch.from_numpy(y[:30])) ** 2).mean())
    predicted = model(torch.from_numpy(x))[:, 0].numpy()
found["val_loss"] = [history[-1]["val_loss"], by_hand_30]
found["evaluate"] = [est.evaluate(df, feature_cols="x", label_cols="y", verbose=0)["val_loss"], by_hand]
scored = {row["id"]: row["prediction"][0] for row in est.predict(df, feature_cols="x").collect()}
found["predict"] = float(max(abs(scored[i] - predicted[i]) for i in range(90)))
found["losses"] = [record["train_loss"] for record in history]

for fault in ("boom", "child", "task"):
    est, model = make(fault=fault)
    try:
        fit(est, max_failures=0)
        found[fault] = "no error"
    except Exception as error:
        at = [float(line) for line in open(MARKS).read().split()]
        found[fault] = {
            "type": type(error).__name__, "text": str(error), "cause": type(error.__cause__).__name__,
            "rank": getattr(error, "rank", None), "kind": getattr(error, "kind", None), "seconds": time.time() - at[-1],
            "times": len(at),
        }
    open(MARKS, "w").close()
    found[fault + " left"] = [p.pid for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"]
                              and "firesteel.cluster.child" in p.info["cmdline"] and psutil.Process() in p.parents()]
    found[fault + " count"] = context.range(10).count()

@functions.udf("float")
def udf(number):
    if number == 70:
        raise KeyError("no such feature")
    return float(number)

begin = time.time()
try:
    fit(make()[0], df.select(functions.array(udf("id"), udf("id")).alias("x"), "y"))
    found["udf"] = "no error"
except Exception as error:
    found["udf"] = {"type": type(error).__name__, "text": str(error), "seconds": time.time() - begin}

# A shuffle brings an executor's own rows first: the same partition comes in another order on the other one.
from firesteel.engine.turns import _spread
source = spark.range(0, 400, 1, 8).select("id", functions.spark_partition_id().alias("source"))
spread = _spread(source, 4, 1).select(functions.spark_partition_id(), "source").collect()
found["spread"] = [[source for place, source in spread if place == target] for target in range(4)]

est, model = make()
found["after"] = fit(est)[-1]["num_samples"]
stop_context()
print("FOUND " + json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one run on ``local-cluster[2,1,…]`` found."""
    folder: Path = tmp_path_factory.mktemp("local_cluster")
    (folder / "program.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(folder / "program.py"), str(folder / "marks")],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=folder,
        env={**os.environ, "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"},
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert lines, done.stderr[-4000:]
    return json.loads(lines[0].removeprefix("FOUND "))


def test_a_fit_with_validation(found: dict[str, Any]) -> None:
    assert found["master"].startswith("local-cluster[2,1")
    assert found["replicas"] == 2
    assert found["samples"] == [90, 90, 90]
    assert found["val_samples"] == [30, 30, 30]
    assert found["losses"][2] < found["losses"][0]
    assert found["val_loss"][0] == pytest.approx(found["val_loss"][1], rel=1e-5)


def test_evaluate_and_predict(found: dict[str, Any]) -> None:
    assert found["evaluate"][0] == pytest.approx(found["evaluate"][1], rel=1e-5)
    assert found["predict"] < 1e-6


def test_a_users_error_is_raised_once(found: dict[str, Any]) -> None:
    error = found["boom"]
    assert (error["type"], error["cause"], error["rank"], error["kind"]) == ("ReplicaFailed", "RuntimeError", 1, "user")
    assert error["times"] == 1
    assert error["seconds"] < 5
    assert "in forward" in error["text"]


@pytest.mark.parametrize(("fault", "says"), [("child", "SIGKILL"), ("task", "connection")])
def test_a_dead_process(found: dict[str, Any], fault: str, says: str) -> None:
    """Spark tries a dead task again: that attempt must find nothing to do."""
    error = found[fault]
    assert (error["type"], error["rank"], error["kind"], error["times"]) == ("ReplicaFailed", 1, "infrastructure", 1)
    assert says in error["text"]
    assert error["seconds"] < 5


def test_an_error_in_the_rows_own_computation(found: dict[str, Any]) -> None:
    """Spark tries the task again here; it must fail for the same reason, or nobody would learn why."""
    error = found["udf"]
    assert error["type"] == "PythonException"
    assert "no such feature" in error["text"]
    assert error["seconds"] < 30


def test_rows_that_are_spread_lie_the_same_way_on_every_executor(found: dict[str, Any]) -> None:
    assert [len(rows) for rows in found["spread"]] == pytest.approx([100] * 4, abs=8)
    assert found["spread"] == [sorted(rows) for rows in found["spread"]]


def test_nothing_is_left_and_one_can_go_on(found: dict[str, Any]) -> None:
    for fault in ("boom", "child", "task"):
        assert found[fault + " left"] == []
        assert found[fault + " count"] == 10
    assert found["after"] == 90
