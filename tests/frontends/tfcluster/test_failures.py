"""Whatever goes wrong in a node is raised on the driver within seconds, with its traceback; nothing is left."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from firesteel.core.errors import ClusterError, ReplicaFailed
from firesteel.tfcluster import InputMode, TFCluster, TFParallel

if TYPE_CHECKING:
    from pyspark import SparkContext


class Boom(Exception):
    pass


def fail(args: Any, ctx: Any) -> None:
    """Fail at the moment that is asked for, and note when."""

    def boom() -> None:
        print("the last line", flush=True)
        Path(args["mark"]).write_text(str(time.time()))
        if args["how"] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if args["how"] == "exit":
            sys.exit(3)
        raise ValueError("boom")

    is_me = ctx.executor_id == args["node"]
    if args["when"] == "early" and is_me:
        boom()
    if ctx.job_name == "ps":
        threading.Event().wait()
    if args["when"] in ("early", "later"):
        if is_me:
            time.sleep(1)
            boom()
        threading.Event().wait()
    feed = ctx.get_data_feed(args["when"] != "inference")
    while not feed.should_stop():
        batch = feed.next_batch(10)
        if args["when"] == "feeding" and is_me and batch:
            boom()
        if args["when"] == "inference":
            if is_me:
                boom()
            feed.batch_results(batch)
    if args["when"] == "after" and is_me:
        time.sleep(1)
        boom()


@pytest.mark.parametrize(
    ("when", "how", "servers"),
    [
        ("early", "raise", 0),
        ("early", "raise", 1),  # in a parameter server
        ("later", "kill", 0),
        ("later", "exit", 0),
        ("feeding", "raise", 0),
        ("inference", "raise", 0),
        ("after", "raise", 0),
    ],
)
def test_a_failure_at_any_moment(sc: SparkContext, tmp_path: Path, when: str, how: str, servers: int) -> None:
    mark = tmp_path / "mark"
    node = 0 if servers else 1
    args = {"when": when, "how": how, "mark": str(mark), "node": node}
    mode = InputMode.TENSORFLOW if when in ("early", "later") else InputMode.SPARK

    def work() -> None:
        cluster = TFCluster.run(sc, fail, args, 2, servers, input_mode=mode)
        if when in ("feeding", "after"):
            cluster.train(sc.range(10_000 if when == "feeding" else 100, numSlices=4))
        if when == "inference":
            cluster.inference(sc.range(1000, numSlices=4)).map(lambda value: value + 1).sum()
        cluster.shutdown(grace_secs=0)

    with pytest.raises(ReplicaFailed) as found:
        work()
    assert time.time() - float(mark.read_text()) < 15
    error = found.value
    assert (error.rank, error.host) == (node, "127.0.0.1")
    assert f"node {node} ({'ps:0' if servers else 'worker:1'})" in str(error)
    assert "the last line" in str(error)
    if how == "raise":
        assert isinstance(error.__cause__, ValueError)
        assert 'raise ValueError("boom")' in error.traceback
    assert {"raise": "boom", "kill": "SIGKILL", "exit": "SystemExit: 3"}[how] in str(error)


def test_a_failure_is_raised_once_more_by_shutdown_and_not_by_a_second_one(sc: SparkContext, tmp_path: Path) -> None:
    args = {"when": "feeding", "how": "raise", "mark": str(tmp_path / "mark"), "node": 0}
    cluster = TFCluster.run(sc, fail, args, 1, 0, input_mode=InputMode.SPARK)
    for call in (lambda: cluster.train(sc.range(100)), lambda: cluster.train(sc.range(100)), cluster.shutdown):
        with pytest.raises(ReplicaFailed, match="boom"):
            call()
    cluster.shutdown()


def test_a_block_that_raises_ends_the_nodes_at_once(sc: SparkContext) -> None:
    began = time.monotonic()
    with pytest.raises(Boom), TFCluster.run(sc, lambda args, ctx: threading.Event().wait(), {}, 2, 0):
        raise Boom
    assert time.monotonic() - began < 15


def test_parallel_runs_end_with_the_first_failure(sc: SparkContext) -> None:
    def program(args: Any, ctx: Any) -> None:
        if ctx.worker_num == 1:
            raise ValueError("boom")
        threading.Event().wait()

    with pytest.raises(ReplicaFailed, match="boom") as found:
        TFParallel.run(sc, program, {}, 2)
    assert found.value.rank == 1
    with pytest.raises(ClusterError, match=r"num_gpus=1 was asked for, but node 0 has 0"):
        TFParallel.run(sc, program, {"num_gpus": 1}, 2)


def test_our_own_errors_in_a_program_are_the_programs(sc: SparkContext) -> None:
    def program(args: Any, ctx: Any) -> None:
        ctx.get_data_feed()

    with pytest.raises(ReplicaFailed, match=r"InputMode\.TENSORFLOW"):
        TFCluster.run(sc, program, {}, 1, 0).shutdown()
