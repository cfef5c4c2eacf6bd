"""A failing replica is reported with its rank and its traceback, at once and once; nothing is left, one can go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession, functions
from torch import nn

from exchanges import over_the_network
from faults.conftest import Faulty, Scene, estimator, fit
from firesteel.cluster.child import this_desk
from firesteel.core.errors import PlanError, ReplicaFailed, SchemaError
from firesteel.learn.pytorch.callbacks import Callback
from firesteel.testing.faults import replicas

LIMIT = 5.0  # seconds from the raise in the replica to the raise on the driver


def raising(mark, error: BaseException):
    def fault() -> None:
        mark()
        raise error

    return fault


@pytest.mark.parametrize("backend", ["bigdl", "torch_distributed"])
def test_an_exception_in_forward(rows: DataFrame, scene: Scene, backend: str) -> None:
    model = Faulty(raising(scene.marker(), RuntimeError("boom")))
    est = estimator(model, backend)
    network = over_the_network(rows.sparkSession, backend == "torch_distributed")
    with network, pytest.raises(ReplicaFailed) as caught:
        fit(est, rows)
    assert scene.seconds_since() < LIMIT
    error = caught.value
    assert len(scene.marks) == 1  # not tried again
    assert (error.rank, error.step, error.kind) == (1, 3, "user")
    for part in ("boom", "replica 1", error.host, "step 3", "in forward", "raise error"):
        assert part in str(error)
    assert type(error.__cause__) is RuntimeError
    assert error.__cause__.args == ("boom",)
    assert replicas() == []
    assert rows.sparkSession.sparkContext.range(10).count() == 10

    model.fault = None  # the corrected model, in the same estimator
    history = fit(est, rows, epochs=2)
    assert history[-1]["num_samples"] == 200
    assert history[-1]["train_loss"] < history[0]["train_loss"]


def test_what_follows_an_error_is_as_if_it_had_not_been(rows: DataFrame, scene: Scene) -> None:
    broken, whole = Faulty(raising(scene.marker(), RuntimeError("boom"))), Faulty(None)
    est = estimator(broken)
    with pytest.raises(ReplicaFailed):
        fit(est, rows)
    broken.fault = None
    fit(est, rows)
    fit(estimator(whole), rows)
    for mine, other in zip(broken.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(mine, other)


def creator_that_raises(config: dict) -> nn.Module:
    if os.environ.get("RANK") == "1":
        raise ValueError("no such layer")
    return nn.Linear(1, 1)


def make_sgd(model: nn.Module, config: dict) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def bad_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    if os.environ.get("RANK") == "1":
        raise ArithmeticError("this loss is lost")
    return ((output.reshape(-1) - target.reshape(-1)) ** 2).mean()


class BadCallback(Callback):
    def after_train_iter(self, runner) -> None:
        if runner.rank == 1 and runner.global_step == 2:
            raise LookupError("nobody listens")


def bad_data(config: dict, batch_size: int):
    if os.environ.get("RANK") == "1":
        raise FileNotFoundError("no data here")
    return torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.ones(40, 1), torch.ones(40, 1)), batch_size=batch_size
    )


@dataclass
class Case:
    cause: type[Exception]
    text: str
    step: int | None = None
    model: Any = None
    parts: dict[str, Any] = field(default_factory=dict)
    data: Any = None
    options: dict[str, Any] = field(default_factory=dict)


ELSEWHERE = {
    "model creator": Case(ValueError, "no such layer", model=creator_that_raises, parts={"optimizer": make_sgd}),
    "loss": Case(ArithmeticError, "this loss is lost", parts={"loss": bad_loss}),
    "callback": Case(LookupError, "nobody listens", 2, options={"callbacks": [BadCallback()]}),
    "data creator": Case(FileNotFoundError, "no data here", data=bad_data),
}


@pytest.mark.parametrize("where", ELSEWHERE)
def test_an_exception_elsewhere_in_the_users_code(rows: DataFrame, where: str) -> None:
    case = ELSEWHERE[where]
    est = estimator(case.model or Faulty(None), **case.parts)
    with pytest.raises(ReplicaFailed, match=case.text) as caught:
        fit(est, case.data or rows, **case.options)
    assert caught.value.rank == 1
    assert isinstance(caught.value.__cause__, case.cause)
    assert case.step is None or caught.value.step == case.step


def test_an_early_error_does_not_wait_for_the_rows(spark: SparkSession, scene: Scene) -> None:
    """The child fails while its task still waits for rows: nobody waits for those any more, nor does Spark."""
    mark = scene.marker()

    def creator(config: dict) -> nn.Module:
        if "RANK" in os.environ:  # the driver makes one, too, to see what it takes
            mark()
            raise ValueError("no such layer")
        return nn.Linear(1, 1)

    @functions.udf("float")
    def slow(number):
        time.sleep(20)
        return float(number)

    df = spark.range(0, 10, 1, 2).select(
        functions.array(slow("id")).alias("x"), functions.col("id").cast("float").alias("y")
    )
    with pytest.raises(ReplicaFailed, match="no such layer"):
        fit(estimator(creator, optimizer=make_sgd, loss=nn.MSELoss()), df)
    assert time.time() - scene.marks[0] < LIMIT


def null_rows(spark: SparkSession) -> DataFrame:
    return spark.range(0, 100, 1, 2).select(
        functions.when(functions.col("id") != 70, functions.array(functions.col("id").cast("float"))).alias("x"),
        functions.col("id").cast("float").alias("y"),
    )


def ragged_rows(spark: SparkSession) -> DataFrame:
    short = functions.array(functions.lit(1.0), functions.lit(2.0))
    return spark.range(0, 100, 1, 2).select(
        functions.when(functions.col("id") != 70, short).otherwise(functions.array(functions.lit(1.0))).alias("x"),
        functions.col("id").cast("float").alias("y"),
    )


@pytest.mark.parametrize("make", [null_rows, ragged_rows])
def test_rows_that_do_not_fit_are_a_schema_error(spark: SparkSession, make) -> None:
    begin = time.monotonic()
    with pytest.raises(SchemaError) as caught:
        fit(estimator(Faulty(None)), make(spark))
    assert caught.value.column == "x"
    assert isinstance(caught.value, PlanError)
    assert time.monotonic() - begin < 15


@pytest.mark.parametrize("after", [0, 12_000])
def test_an_error_in_the_rows_own_computation_is_sparks(spark: SparkSession, after: int) -> None:
    """Spark breaks off a task's input between two record batches, and Arrow takes that for its end: were it not
    noticed, a replica would train on the 10,000 rows that came.
    """

    @functions.udf("float")
    def udf(number):
        if number == 20_000 + after:
            raise KeyError("no such feature")
        return float(number)

    df = spark.range(0, 40_000, 1, 2).select(
        functions.array(udf("id")).alias("x"), functions.col("id").cast("float").alias("y")
    )
    begin = time.monotonic()
    with pytest.raises(PythonException, match="no such feature") as caught:
        fit(estimator(Faulty(None)), df)
    assert "in udf" in str(caught.value)
    assert time.monotonic() - begin < 15


def killed(mark):
    def fault() -> None:
        mark()
        os.kill(os.getpid(), signal.SIGKILL)

    return fault


def left(mark):
    def fault() -> None:
        mark()
        os._exit(3)

    return fault


def task_killed(mark):
    def fault() -> None:
        mark()
        os.kill(this_desk().task, signal.SIGKILL)
        time.sleep(60)

    return fault


@pytest.mark.parametrize("backend", ["bigdl", "torch_distributed"])
@pytest.mark.parametrize(
    ("fault", "says"),
    [(killed, "SIGKILL"), (left, "status 3"), (task_killed, "connection")],
    ids=["kill", "exit", "task"],
)
def test_a_process_that_dies(rows: DataFrame, scene: Scene, fault, says: str, backend: str) -> None:
    network = over_the_network(rows.sparkSession, backend == "torch_distributed")
    with network, pytest.raises(ReplicaFailed, match=says) as caught:
        fit(estimator(Faulty(fault(scene.marker())), backend), rows, max_failures=0)
    assert scene.seconds_since() < LIMIT
    assert len(scene.marks) == 1
    assert (caught.value.rank, caught.value.kind) == (1, "infrastructure")


def test_processes_that_a_replica_started_end_with_it(rows: DataFrame, scene: Scene) -> None:
    """A loader's workers hold the replica's connection; left alone they would also keep the launch from ending."""
    mark = scene.marker()

    def fault() -> None:
        if os.fork() == 0:
            time.sleep(120)
            os._exit(0)
        mark()
        raise RuntimeError("boom")

    with pytest.raises(ReplicaFailed, match="boom"):
        fit(estimator(Faulty(fault)), rows)
    assert scene.seconds_since() < LIMIT
    assert replicas() == []


def test_what_a_replica_prints_is_on_the_drivers_screen_with_its_rank(rows: DataFrame, capfd) -> None:
    def say() -> None:
        print("hello from forward")
        print("and from stderr", file=sys.stderr)

    fit(estimator(Faulty(say)), rows, verbose=1)
    lines = capfd.readouterr().err.splitlines()
    assert "replica 1 | hello from forward" in lines
    assert "replica 1 | and from stderr" in lines


def test_launches_leave_no_thread_socket_or_file_behind(rows: DataFrame) -> None:
    def held() -> tuple[set[str], int]:
        threads = {thread.name for thread in threading.enumerate() if thread.name.startswith("firesteel")}
        return threads, len(os.listdir("/proc/self/fd"))

    others, _ = held()  # other tests' own
    fit(estimator(Faulty(None)), rows)
    before = held()
    for _ in range(2):
        fit(estimator(Faulty(None)), rows)
    threads, descriptors = held()
    assert threads == before[0] == others
    assert descriptors <= before[1] + 2  # py4j's, for a thread of its own


def test_sparks_python_workers_stay_clean(rows: DataFrame) -> None:
    """They are used again: what a replica loads, sets and opens must stay in its child."""

    def look(_) -> list[tuple[bool, bool, int]]:
        status = subprocess.run(
            ["ps", "-o", "stat=", "--ppid", str(os.getpid())], capture_output=True, text=True, check=False
        )
        zombies = [line for line in status.stdout.split() if line.startswith("Z")]
        names = [thread.name for thread in threading.enumerate() if thread.name.startswith("firesteel")]
        return [("torch" in sys.modules, "RANK" in os.environ, len(zombies) + len(names))]

    fit(estimator(Faulty(None)), rows)
    found = rows.sparkSession.sparkContext.parallelize(range(3), 3).mapPartitions(look).collect()
    assert set(found) == {(False, False, 0)}


def test_weights_come_back_only_from_a_fit_that_ended(rows: DataFrame, scene: Scene) -> None:
    model = Faulty(raising(scene.marker(), RuntimeError("boom")))
    before = [parameter.detach().numpy().copy() for parameter in model.parameters()]
    with pytest.raises(ReplicaFailed):
        fit(estimator(model), rows)
    for parameter, old in zip(model.parameters(), before, strict=True):
        np.testing.assert_array_equal(parameter.detach().numpy(), old)
