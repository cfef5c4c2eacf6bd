"""A replica's resident set does not grow with its partition, nor does that of the task that feeds it or scores.

``make memory`` shows it with 200 MB and 2 GB of rows; the suite, in half the time, with 300 MB and 1 GB.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SIZES = [int(size) for size in os.environ.get("FIRESTEEL_MEMORY_MB", "300,1000").split(",")]
ALLOWED_MB = 150  # two record batches more, of 64 MB each: a partition of 100 MB has hardly one

SCRIPT = """
import json, os, resource, sys, time
import psutil
import torch
from pyspark.sql import SparkSession, functions
from torch import nn
from firesteel import Estimator, init_context
from firesteel.data.frame import as_tensor_column
from firesteel.learn.pytorch.callbacks import Callback

init_context("local", cores=2)
spark = SparkSession.builder.getOrCreate()
ROW_FLOATS = 2500  # 10 kB
FOLDER = os.environ["FOLDER"]

def rows(megabytes):
    x = functions.expr(f"cast(repeat('0000', {ROW_FLOATS}) as binary)")
    y = (functions.col("id") % 7).cast("float")
    df = spark.range(0, megabytes * 100, 1, 2).select(x.alias("x"), y.alias("y"))
    return as_tensor_column(df, "x", "float32", (ROW_FLOATS,))

class Peak(Callback):
    def after_run(self, runner):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        with open(f"{FOLDER}/peak-{runner.rank}", "w") as file:
            file.write(str(peak))

def tasks():
    peaks = []
    for process in psutil.Process().children(recursive=True):
        try:
            if "pyspark.daemon" in process.cmdline():
                lines = open(f"/proc/{process.pid}/status").read().splitlines()
                peaks += [int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM")]
        except (psutil.Error, OSError):
            continue
    return max(peaks)

model = nn.Linear(ROW_FLOATS, 1)
est = Estimator.from_torch(
    model=model, optimizer=torch.optim.SGD(model.parameters(), lr=1e-12), loss=nn.MSELoss(), workers_per_node=2
)
found = []
for megabytes in json.loads(sys.argv[1]):
    df = rows(megabytes)
    begin = time.time()
    # Steps enough to go through more rows than a replica may keep resident, in shuffled order.
    history = est.fit(df, batch_size=500, max_steps=40, feature_cols="x", label_cols="y", verbose=0, callbacks=[Peak()])
    child = max(int(open(f"{FOLDER}/peak-{rank}").read()) for rank in range(2))
    found.append({"megabytes": megabytes, "child": child, "fit task": tasks(), "fit seconds": time.time() - begin})
for megabytes, record in zip(json.loads(sys.argv[1]), found):
    begin = time.time()
    record["scored"] = est.predict(rows(megabytes), feature_cols="x").select("prediction").count()
    record |= {"predict task": tasks(), "predict seconds": time.time() - begin}
print("FOUND " + json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder: Path = tmp_path_factory.mktemp("memory")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(SIZES)],
        capture_output=True,
        text=True,
        timeout=290,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, "FOLDER": str(folder)},
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert lines, done.stderr[-4000:]
    records = json.loads(lines[0].removeprefix("FOUND "))
    for record in records:
        print(record)
    return records


@pytest.mark.parametrize("who", ["child", "fit task", "predict task"])
def test_peak_memory_does_not_grow_with_the_rows(found: list[dict[str, Any]], who: str) -> None:
    small, large = found
    assert large["megabytes"] > 3 * small["megabytes"]
    assert large[who] - small[who] < ALLOWED_MB


def test_all_rows_were_scored(found: list[dict[str, Any]]) -> None:
    assert [record["scored"] for record in found] == [100 * megabytes for megabytes in SIZES]
