"""``TFCluster.run`` to ``shutdown``: what nodes see, which roles they have, what is refused before anything starts."""

from __future__ import annotations

import json
import os
import pickle
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from firesteel import TFCluster as FromTheTop
from firesteel.core.errors import NotEnoughSlots, PlanError, UnknownName
from firesteel.tfcluster import InputMode, TFCluster, TFNode, TFParallel
from frontends.tfcluster.conftest import Notes

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


def look(args: Any, ctx: Any) -> None:
    """A program that writes down what it sees."""
    args["notes"].write(
        ctx.executor_id,
        {
            "role": [ctx.job_name, ctx.task_index],
            "worker_num": ctx.worker_num,
            "num_workers": ctx.num_workers,
            "spec": ctx.cluster_spec,
            "tf_config": json.loads(os.environ["TF_CONFIG"]),
            "group": [os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")],
            "gpus": os.environ["CUDA_VISIBLE_DEVICES"],
            "argv": sys.argv,
            "pid": os.getpid(),
            "fs": [ctx.defaultFS, ctx.working_dir],
            "path": ctx.absolute_path("foo/bar"),
            "socket": ctx.tmp_socket is None,
        },
    )
    if ctx.job_name in ("ps", "evaluator"):
        threading.Event().wait()  # as server.join() does


def add(args: Any, ctx: Any) -> None:
    import tensorflow as tf

    assert int(tf.constant(args["x"]) + tf.constant(args["y"])) == 3


def nothing(args: Any, ctx: Any) -> None:
    pass


def test_a_tensorflow_program_on_two_nodes_from_any_thread_and_with_a_session(
    sc: SparkContext, spark: SparkSession
) -> None:
    cluster = TFCluster.run(sc, add, {"x": 1, "y": 2}, 2, 0)
    cluster.shutdown(grace_secs=30)
    cluster.shutdown()  # does nothing
    found: list[TFCluster] = []
    thread = threading.Thread(target=lambda: found.append(TFCluster.run(spark, nothing, [], 2, 0)))
    thread.start()
    thread.join()
    with found[0]:
        pass


def test_roles_addresses_and_environment(sc: SparkContext, notes: Notes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["program.py", "driver's"])
    cluster = TFCluster.run(
        sc, look, {"notes": notes}, 5, 2, driver_ps_nodes=True, master_node="chief", eval_node=True
    )  # two on the driver: three slots are enough
    roles = [(node["executor_id"], node["job_name"], node["task_index"]) for node in cluster.cluster_info]
    assert roles == [(0, "ps", 0), (1, "ps", 1), (2, "chief", 0), (3, "evaluator", 0), (4, "worker", 0)]
    assert set(cluster.cluster_info[0]) == {
        "executor_id",
        "host",
        "job_name",
        "task_index",
        "port",
        "tb_pid",
        "tb_port",
    }
    began = time.monotonic()
    while len(notes.read()) < 5 and time.monotonic() - began < 60:
        time.sleep(0.05)
    began = time.monotonic()
    cluster.shutdown()  # ends parameter servers and evaluator, which never return
    assert time.monotonic() - began < 10
    seen = notes.read()
    spec = {
        role: [f"{node['host']}:{node['port']}" for node in cluster.cluster_info if node["job_name"] == role]
        for role in ("ps", "chief", "evaluator", "worker")
    }
    for number, (node, note) in enumerate(zip(cluster.cluster_info, seen, strict=True)):
        assert note["spec"] == spec == note["tf_config"]["cluster"]
        assert note["tf_config"]["task"] == {"type": node["job_name"], "index": node["task_index"]}
        assert (note["worker_num"], note["num_workers"]) == (number, 2)
        assert (note["argv"], note["gpus"], note["socket"]) == (["program.py"], "", True)
        assert note["fs"] == ["file://", os.getcwd()] == [cluster.defaultFS, cluster.working_dir]
        assert note["path"] == f"file://{os.getcwd()}/foo/bar"
    groups = [note["group"] for note in seen]
    assert groups[0] == groups[1] == groups[3] == [None] * 4
    assert [groups[2][:2], groups[4][:2]] == [["0", "2"], ["1", "2"]]
    assert groups[2][2:] == groups[4][2:]
    assert int(groups[2][3]) not in [node["port"] for node in cluster.cluster_info]  # a server may run beside the group
    assert len({note["pid"] for note in seen}) == 5
    assert cluster.cluster_meta["cluster_template"] == {"ps": [0, 1], "chief": [2], "evaluator": [3], "worker": [4]}
    assert "secret" not in repr(cluster.cluster_meta).lower()
    assert (cluster.num_executors, cluster.input_mode, cluster.sc) == (5, InputMode.TENSORFLOW, sc)


def test_words_are_argv_and_tf_config_is_there_without_a_chief(sc: SparkContext, notes: Notes) -> None:
    def program(argv: Any, ctx: Any) -> None:
        assert argv == ["--epochs", "2", "-x"]
        notes.write(ctx.executor_id, [sys.argv, json.loads(os.environ["TF_CONFIG"])["task"]])

    TFCluster.run(sc, program, ["--epochs", "2", "-x"], 1, 0).shutdown()
    assert notes.read() == [[[sys.argv[0], "--epochs", "2", "-x"], {"type": "worker", "index": 0}]]


def test_the_nodes_port(sc: SparkContext) -> None:
    def program(args: Any, ctx: Any) -> None:
        port = int(ctx.cluster_spec["worker"][0].rpartition(":")[2])
        with socket.socket() as server:
            if args.keeps:
                with pytest.raises(OSError, match="in use"):
                    server.bind(("", port))
                assert ctx.tmp_socket.getsockname()[1] == port
                TFNode.release_port(ctx)
            assert ctx.tmp_socket is None
            server.bind(("", port))

    for keeps in (False, True):
        TFCluster.run(sc, program, Namespace(keeps=keeps), 1, 0, release_port=not keeps).shutdown()


def test_foreign_bytes_at_the_control_port_change_nothing(sc: SparkContext, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("TFOS_SERVER_PORT", f"{port}-{port + 20}")
    monkeypatch.setenv("TFOS_SERVER_HOST", "127.0.0.1")

    def program(args: Any, ctx: Any) -> None:
        feed = ctx.get_data_feed(False)
        while not feed.should_stop():
            feed.batch_results(feed.next_batch(3))

    with TFCluster.run(sc, program, {}, 1, 0, input_mode=InputMode.SPARK) as cluster:
        host, found = cluster.cluster_meta["server_addr"]
        assert host == "127.0.0.1"
        assert port <= found <= port + 20

        class Bomb:
            def __reduce__(self) -> Any:
                return os._exit, (1,)

        for data in (pickle.dumps(Bomb()), b"GET / HTTP/1.0\r\n\r\n"):
            with socket.create_connection((host, found), 5) as stranger:
                stranger.sendall(data)
                stranger.settimeout(10)
                try:
                    while stranger.recv(100):
                        pass
                except ConnectionError:
                    pass
        assert cluster.inference(sc.range(5)).collect() == [0, 1, 2, 3, 4]


def test_tensorboard_answers_until_the_shutdown(sc: SparkContext, tmp_path: Path) -> None:
    cluster = TFCluster.run(sc, nothing, {}, 2, 0, tensorboard=True, log_dir=str(tmp_path), master_node="chief")
    url = cluster.tensorboard_url()
    assert url is not None
    assert [bool(node["tb_port"]) for node in cluster.cluster_info] == [False, True]  # beside worker:0
    with urllib.request.urlopen(url, timeout=30) as answer:
        assert answer.status == 200
    cluster.shutdown()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url, timeout=5)


def test_what_makes_no_sense_is_refused_before_anything_starts(sc: SparkContext, jobs: Any) -> None:
    before = jobs()
    lock = threading.Lock()

    def locked(args: Any, ctx: Any) -> None:
        lock.acquire()

    spark_input: dict[str, Any] = {"input_mode": InputMode.SPARK}
    wrong: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        ("2 ps = 2", (nothing, {}, 2, 2), {}),
        ("num_executors=0", (nothing, {}, 0, 0), {}),
        ("driver_ps_nodes", (nothing, {}, 2, 1), {"driver_ps_nodes": True, **spark_input}),
        ("eval_node", (nothing, {}, 2, 0), {"eval_node": True, **spark_input}),
        ("input_mode", (nothing, {}, 2, 0), {"input_mode": 7}),
        ("map_fun", ("nothing", {}, 2, 0), {}),
        ("map_fun, closure variable 'lock'", (locked, {}, 2, 0), {}),
        (r"tf_args, \['l'\]", (nothing, {"l": lock}, 2, 0), {}),
        ("num_gpus", (nothing, ["--num_gpus=x"], 2, 0), {}),
        ("reservation_timeout", (nothing, {}, 2, 0), {"reservation_timeout": 0}),
    ]
    for message, arguments, options in wrong:
        with pytest.raises(PlanError, match=message):
            TFCluster.run(sc, *arguments, **options)
    with pytest.raises(PlanError, match="SparkContext or a SparkSession"):
        TFCluster.run("local", nothing, {}, 1, 0)  # type: ignore[arg-type]
    began = time.monotonic()
    for run in (
        lambda: TFCluster.run(sc, nothing, {}, 4, 0),
        lambda: TFCluster.run(sc, nothing, {}, 4, 0, input_mode=InputMode.SPARK),
        lambda: TFParallel.run(sc, nothing, {}, 4),
    ):
        with pytest.raises(NotEnoughSlots, match=r"4 .* 3 tasks"):
            run()
    assert time.monotonic() - began < 5
    assert jobs() == before


def test_a_missing_node_is_named_after_the_reservation_timeout(sc: SparkContext) -> None:
    with TFCluster.run(sc, nothing_until_told, {}, 1, 0, input_mode=InputMode.SPARK):
        pass
    busy = threading.Event()

    def hold() -> None:
        sc.parallelize(range(2), 2).foreach(lambda _: time.sleep(6))
        busy.set()

    holder = threading.Thread(target=hold)
    holder.start()
    time.sleep(1.5)
    with pytest.raises(
        TimeoutError, match=r"1 of 3 nodes reported within 2 s \(reservation_timeout\): node \d from 127"
    ):
        TFCluster.run(sc, nothing, {}, 3, 0, reservation_timeout=2)
    holder.join()


def nothing_until_told(args: Any, ctx: Any) -> None:
    assert ctx.get_data_feed().next_batch(1) == []


def test_train_needs_spark_input_and_something_to_feed(sc: SparkContext) -> None:
    with TFCluster.run(sc, nothing, {}, 1, 0) as cluster, pytest.raises(PlanError, match=r"InputMode\.TENSORFLOW"):
        cluster.train(sc.range(3))
    with TFCluster.run(sc, nothing_until_told, {}, 1, 0, input_mode=InputMode.SPARK, queues=["more"]) as cluster:
        assert cluster.queues == ["input", "output", "error", "more"]
        for options, message in (({"num_epochs": -1}, "num_epochs"), ({"feed_timeout": 0}, "feed_timeout")):
            with pytest.raises(PlanError, match=message):
                cluster.train(sc.range(3), **options)  # type: ignore[arg-type]
        with pytest.raises(UnknownName, match="error, input, more, output"):
            cluster.train(sc.range(3), qname="other")
        for call in (cluster.train, cluster.inference):
            with pytest.raises(TypeError, match="takes an RDD or a DataFrame, not list"):
                call([1, 2])


def test_independent_runs_in_turn(sc: SparkContext, notes: Notes) -> None:
    def program(args: Any, ctx: Any) -> None:
        assert not {"TF_CONFIG", "RANK", "WORLD_SIZE"} & set(os.environ)
        notes.write(ctx.worker_num, [ctx.num_workers, ctx.absolute_path("/a"), args["x"]])

    TFParallel.run(sc, program, {"x": 5}, 4, use_barrier=False)
    assert notes.read() == [[4, "file:///a", 5]] * 4


def test_the_name_at_the_top_is_the_same() -> None:
    assert FromTheTop is TFCluster
    assert TFCluster.InputMode is InputMode
    assert (InputMode.TENSORFLOW, InputMode.SPARK) == (0, 1)


class Places:
    def __init__(self, file_system: str) -> None:
        self.defaultFS, self.working_dir = file_system, "/home/me"


@pytest.mark.parametrize(
    ("path", "on_file", "on_hdfs", "on_viewfs"),
    [
        ("hdfs://foo/bar", "hdfs://foo/bar", "hdfs://foo/bar", "hdfs://foo/bar"),
        ("viewfs://foo/bar", "viewfs://foo/bar", "viewfs://foo/bar", "viewfs://foo/bar"),
        ("file://foo/bar", "file://foo/bar", "file://foo/bar", "file://foo/bar"),
        ("gs://b/x", "gs://b/x", "gs://b/x", "gs://b/x"),
        ("/foo/bar", "file:///foo/bar", "hdfs:///foo/bar", "viewfs:///foo/bar"),
        ("foo/bar", "file:///home/me/foo/bar", "hdfs:///user/me/foo/bar", "viewfs:///user/me/foo/bar"),
    ],
)
def test_paths(
    path: str, on_file: str, on_hdfs: str, on_viewfs: str, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "me")
    found = [TFNode.hdfs_path(Places(each), path) for each in ("file://", "hdfs://", "viewfs://")]
    assert found == [on_file, on_hdfs, on_viewfs]
    if path == "foo/bar":
        assert TFNode.hdfs_path(Places("s3a://bucket"), path) == "s3a://bucket/foo/bar"
        assert "s3a://bucket" in caplog.text
