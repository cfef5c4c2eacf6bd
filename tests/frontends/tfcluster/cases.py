"""What must hold on real executors, run by ``spark-submit`` on a standalone cluster of two workers with one core each.

Prints one line of JSON with what it found.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

import psutil
from pyspark import SparkConf, SparkContext

from firesteel.core.errors import ReplicaFailed
from firesteel.tfcluster import InputMode, TFCluster

FOLDER = sys.argv[1]
FOUND: dict[str, Any] = {}


def path(*names: object) -> str:
    return os.path.join(FOLDER, *map(str, names))


def write(name: str, value: Any) -> None:
    with open(path(name), "w") as file:
        json.dump(value, file)


def read(name: str) -> Any:
    with open(path(name)) as file:
        return json.load(file)


def share_a_variable(args: Any, ctx: Any) -> None:
    """TensorFlow 1: a parameter server that joins, a worker that trains and exports."""
    import tensorflow.compat.v1 as tf

    tf.disable_eager_execution()
    spec, server = ctx.start_cluster_server()
    if ctx.job_name == "ps":
        server.join()
    worker = f"/job:worker/task:{ctx.task_index}"
    with tf.device(tf.train.replica_device_setter(cluster=spec, worker_device=worker)):
        scale = tf.get_variable("scale", initializer=1.0)
        grow = scale.assign_add(2.0)
        x = tf.placeholder(tf.float32, (None, 1), name="x")
        y = tf.multiply(x, scale)
    with tf.train.MonitoredTrainingSession(master=server.target, is_chief=True) as session:
        session.run(grow)
        ends = {"inputs": {"a": x}, "outputs": {"b": y}, "method_name": "tensorflow/serving/predict"}
        ctx.export_saved_model(session._tf_sess(), args["export"], "serve", {"serving_default": ends})
    write("variable", [scale.device, ctx.executor_id])


def mirrored(args: Any, ctx: Any) -> None:
    """TensorFlow 2: a strategy that reads ``TF_CONFIG``."""
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    rank = ctx.executor_id

    @tf.function
    def total() -> Any:
        return strategy.reduce("SUM", strategy.run(lambda: tf.constant(float(rank + 1))), axis=None)

    write(f"mirrored-{rank}", [float(total()), strategy.num_replicas_in_sync])


def gloo(args: Any, ctx: Any) -> None:
    """torch: the group that ``RANK`` and ``MASTER_ADDR`` describe."""
    import torch
    from torch import distributed

    distributed.init_process_group("gloo")
    value = torch.tensor([distributed.get_rank() + 1.0])
    distributed.all_reduce(value)
    write(f"gloo-{distributed.get_rank()}", [float(value), distributed.get_world_size()])
    distributed.destroy_process_group()


def square(args: Any, ctx: Any) -> None:
    feed = ctx.get_data_feed(train_mode=False)
    while not feed.should_stop():
        feed.batch_results([item[0] ** 2 for item in feed.next_batch(10)])


def collect(args: Any, ctx: Any) -> None:
    feed = ctx.get_data_feed()
    found: list[Any] = []
    while not feed.should_stop():
        found += feed.next_batch(8)
    write(f"collected-{ctx.executor_id}", found)


def dies_once(partition: int, items: Any) -> Any:
    """The second half of partition 1 is lost with its task, the first time."""
    for place, item in enumerate(items):
        if partition == 1 and place == 300 and not os.path.exists(path("died")):
            time.sleep(0.5)  # some of it is taken by now
            write("died", True)
            os._exit(1)
        yield item


def kill_an_executor(args: Any, ctx: Any) -> None:
    if ctx.executor_id == 1:
        write("killed", time.time())
        keeper = psutil.Process(os.getppid())
        os.kill(int(keeper.cmdline()[-1]), 9)  # it names its executor
    threading.Event().wait()


def main() -> None:
    sc = SparkContext(conf=SparkConf().setAppName("cases"))
    sc.setLogLevel("OFF")

    cluster = TFCluster.run(sc, share_a_variable, {"export": path("export")}, 2, 1)
    FOUND["hosts"] = len(cluster.cluster_info)
    began = time.monotonic()
    cluster.shutdown()
    FOUND["ps ended"] = time.monotonic() - began
    FOUND["variable"] = read("variable")

    for program, name in ((mirrored, "mirrored"), (gloo, "gloo")):
        TFCluster.run(sc, program, {}, 2, 0, master_node="chief").shutdown()
        FOUND[name] = [read(f"{name}-{number}") for number in (0, 1)]

    with TFCluster.run(sc, square, {}, 2, 0, input_mode=InputMode.SPARK) as cluster:
        numbers = cluster.inference(sc.parallelize([[number] for number in range(1000)], 10))
        FOUND["sum"] = numbers.sum()
        FOUND["in order"] = numbers.collect() == [number**2 for number in range(1000)]

    with TFCluster.run(sc, collect, {}, 2, 0, input_mode=InputMode.SPARK) as cluster:
        cluster.train(sc.parallelize(range(1200), 3).mapPartitionsWithIndex(dies_once))
    FOUND["died"] = read("died")
    FOUND["collected"] = sorted(read("collected-0") + read("collected-1")) == list(range(1200))

    try:
        TFCluster.run(sc, kill_an_executor, {}, 2, 0, input_mode=InputMode.SPARK).shutdown()
    except ReplicaFailed as error:
        FOUND["executor"] = [error.rank, error.kind, time.time() - read("killed")]
    FOUND["after"] = sc.range(10).count()
    print("FOUND" + json.dumps(FOUND))
    sc.stop()


if __name__ == "__main__":
    main()
