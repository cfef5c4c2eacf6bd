"""A driver of its own on real executor JVMs, which trains as it is told, line by line: see ``cluster`` in conftest.

Not a test. Requests and answers are JSON lines on standard input and output.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import torch
from pyspark.sql import DataFrame, SparkSession, functions
from torch import nn

from firesteel import Estimator, init_context, stop_context
from firesteel.core.errors import FiresteelError
from firesteel.core.triggers import SeveralIteration
from firesteel.learn.pytorch.callbacks import Callback
from firesteel.testing.faults import Fault, inject, replicas

ROWS, BATCH = 240, 16
STEPS = ROWS // BATCH


class Recorder(Callback):
    """Writes down which rows each step saw, in which form of the gang."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def after_train_iter(self, runner: Any) -> None:
        from firesteel.cluster.child import this_desk

        desk = this_desk()
        assert desk is not None
        ids = [round(float(value) * ROWS) for value in runner.batch[0][:, 0]]
        note = {"step": runner.global_step, "form": [runner.num_workers, desk.generation], "ids": ids}
        with open(os.path.join(self.folder, f"{runner.rank}-{os.getpid()}"), "a") as file:
            file.write(json.dumps({**note, "time": time.time()}) + "\n")


def rows_by_epoch(folder: str) -> list[list[int]]:
    """Rows that counted, epoch by epoch: those of the last time that a step was made."""
    notes = [json.loads(line) for path in Path(folder).iterdir() for line in path.read_text().splitlines()]
    last = {note["step"]: note["form"] for note in sorted(notes, key=lambda note: note["time"])}
    epochs: list[list[int]] = []
    for note in sorted(notes, key=lambda note: note["step"]):
        if note["form"] == last[note["step"]]:
            epoch = (note["step"] - 1) // STEPS
            epochs += [[] for _ in range(epoch + 1 - len(epochs))]
            epochs[epoch] += note["ids"]
    return [sorted(epoch) for epoch in epochs]


def make_model(config: dict[str, Any]) -> nn.Module:
    torch.manual_seed(1)
    if config.get("plain"):  # nothing in it depends on how rows are divided among replicas
        return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
    return nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 1))


def make_optimizer(model: nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def held_files() -> int:
    """Nameless files that Python workers still hold open."""
    count = 0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error, OSError):
            if "python" in process.name():
                links = [os.readlink(path) for path in glob.glob(f"/proc/{process.pid}/fd/*")]
                count += sum("(deleted)" in link and "/#" in link for link in links)
    return count


def helpers() -> int:
    """Processes of ours that still run: replicas, and what they were forked from."""
    count = 0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error, OSError):
            count += any(word.startswith("firesteel.cluster.") for word in process.cmdline())
    return count


def possessions() -> dict[str, Any]:
    """What a launch must not leave behind."""
    ports = [c.laddr.port for c in psutil.Process().net_connections(kind="tcp") if c.status == psutil.CONN_LISTEN]
    return {
        "ports": sorted(ports),
        "replicas": [process.pid for process in replicas()],
        "helpers": helpers(),
        "files": sorted(glob.glob(os.path.join(tempfile.gettempdir(), "firesteel*"))),
        "held": held_files(),
    }


def settle(before: dict[str, Any]) -> dict[str, Any]:
    """Possessions once they are as before, or after some seconds."""
    end = time.monotonic() + 5
    while (now := possessions()) != before and time.monotonic() < end:
        time.sleep(0.1)
    return now


def duplicates(spark: SparkSession) -> int:
    """How many task attempts Spark has started on speculation, in all."""
    context: Any = spark.sparkContext
    store = context._jsc.sc().statusStore()
    stages = store.stageList(None, False, False, context._gateway.new_array(context._jvm.double, 0), None)
    found = (
        store.speculationSummary(stages.apply(i).stageId(), stages.apply(i).attemptId()) for i in range(stages.size())
    )
    return sum(int(summary.get().numTasks()) for summary in found if summary.isDefined())


def train(spark: SparkSession, df: DataFrame, asked: dict[str, Any]) -> dict[str, Any]:
    for key, value in asked.get("conf", {}).items():
        spark.conf.set(key, value)
    before = possessions()
    with tempfile.TemporaryDirectory() as notes, tempfile.TemporaryDirectory() as model_dir:
        faults = [Fault(**fault, path=model_dir) for fault in asked["faults"]]
        est = Estimator.from_torch(
            model=make_model,
            optimizer=make_optimizer,
            loss=nn.MSELoss(),
            workers_per_node=1,
            seed=7,
            model_dir=model_dir,
            **asked.get("estimator", {}),
        )
        options: dict[str, Any] = {"epochs": 3, "callbacks": [Recorder(notes)], **asked.get("fit", {})}
        if every := options.pop("checkpoint_every", None):
            options["checkpoint_trigger"] = SeveralIteration(every)
        if options.pop("validate", False):
            options["validation_data"] = df.where("id < 40")
        if options.pop("shuffled", False):
            df = df.repartition(5, "id").sortWithinPartitions("id")
        if options.pop("from_files", False):
            # Always the same ones: Spark takes files of one size in the order in which the folder lists them.
            if not os.path.exists(asked["files"]):
                df.write.parquet(asked["files"])
            df = spark.read.parquet(asked["files"])
        columns = {"feature_cols": "x", "label_cols": "y", "verbose": 0, "batch_size": BATCH}
        answer: dict[str, Any] = {"error": None, "recoveries": []}
        begin = time.time()
        with inject(*faults) as injector:
            try:
                history = est.fit(df, **columns, **options)
                answer |= {"history": history.epochs, "recoveries": history.recoveries}
                summary = est.get_train_summary("Loss")
                answer["steps"] = [step for step, _, _ in summary]
                state = est.get_model().state_dict()
                data = b"".join(value.numpy().tobytes() for value in state.values())
                answer["weights"] = hashlib.sha256(data).hexdigest()
                answer["values"] = torch.cat([v.double().reshape(-1) for v in state.values()]).tolist()
            except FiresteelError as error:
                answer["error"] = {"type": type(error).__name__, "text": str(error), "time": time.time()}
                answer["error"] |= {key: value for key, value in vars(error).items() if key in ("rank", "step", "kind")}
            answer["struck"] = injector.struck()
        answer["seconds"] = time.time() - begin
        answer["duplicates"] = duplicates(spark)
        answer["rows"] = rows_by_epoch(notes)
    for key in asked.get("conf", {}):
        spark.conf.unset(key)
    after = settle(before)
    answer["left"] = {key: [before[key], after[key]] for key in before if before[key] != after[key]}
    return answer


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever else is printed goes elsewhere
    conf = {"spark.ui.enabled": "false", **json.loads(sys.argv[1])}
    mode: dict[str, Any] = {"cluster_mode": "local", "cores": 1, "num_nodes": 2, "memory": "1g"}
    if master := conf.pop("spark.master", None):
        mode = {"cluster_mode": "standalone", "master": master, "cores": 2, "num_nodes": 2, "memory": "1g"}
    context = init_context(**mode, conf=conf)
    context.setLogLevel("OFF")
    spark = SparkSession.builder.getOrCreate()
    df = spark.range(0, ROWS, 1, 5).select(
        "id",
        functions.array((functions.col("id") / ROWS).cast("float"), functions.cos("id").cast("float")).alias("x"),
        functions.sin("id").cast("float").alias("y"),
    )
    with tempfile.TemporaryDirectory() as folder:
        for line in sys.stdin:
            asked = {**json.loads(line), "files": os.path.join(folder, "rows.parquet")}
            answers.write(json.dumps(train(spark, df, asked)) + "\n")
    stop_context()


if __name__ == "__main__":
    main()
