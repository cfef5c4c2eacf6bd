"""Ctrl-C, or the driver's sudden death, in the middle of a fit: no process, port or file is left.

Each runs in a process of its own, with a Spark of its own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from processes import below, words

SCRIPT = """
import sys, time
import torch
from pyspark.sql import SparkSession, functions
from torch import nn
from firesteel import Estimator, init_context

folder, mode, scheduler = sys.argv[1:]
init_context("local", cores=3, conf={"spark.local.dir": folder + "/spark", "spark.scheduler.mode": scheduler})
spark = SparkSession.builder.getOrCreate()

class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, x):
        open(folder + "/begun", "w").close()
        time.sleep(0.05)
        return self.layer(x)

@functions.udf("float")
def stuck(number):
    open(folder + "/begun", "w").close()
    time.sleep(300)

value = stuck("id") if mode == "spooling" else functions.col("id").cast("float")
df = spark.range(0, 4000, 1, 2).select(functions.array(value).alias("x"), functions.col("id").cast("float").alias("y"))
model = Slow()
est = Estimator.from_torch(
    model=model, optimizer=torch.optim.SGD(model.parameters(), lr=1e-9), loss=nn.MSELoss(), workers_per_node=2
)
try:
    est.fit(df, epochs=100, batch_size=4, feature_cols="x", label_cols="y", verbose=0)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    if mode == "again":
        df = df.limit(8).repartition(2)
        est.fit(df, epochs=1, batch_size=4, feature_cols="x", label_cols="y", verbose=0)
        print("and again", flush=True)
    time.sleep(20)  # so that what is left of the fit can be looked at
"""


class Driver:
    def __init__(self, folder: Path, mode: str = "training", scheduler: str = "FIFO") -> None:
        self.folder = folder
        (folder / "tmp").mkdir()
        (folder / "spark").mkdir()
        environment = {
            **os.environ,
            "TMPDIR": str(folder / "tmp"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData",
        }
        with (folder / "stderr").open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-u", "-c", SCRIPT, str(folder), mode, scheduler],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        self.view = psutil.Process(self.process.pid)

    def wait_until_begun(self) -> None:
        """Until the user's code runs, and both replicas' processes."""
        end = time.monotonic() + 90
        while not (self.folder / "begun").exists() or len(self.replicas()) < 2:
            assert time.monotonic() < end, (self.folder / "stderr").read_text()
            assert self.process.poll() is None, (self.folder / "stderr").read_text()
            time.sleep(0.05)

    def ports(self) -> set[int]:
        """Ports on which the driver's own process listens; Spark's are its JVM's."""
        return {c.laddr.port for c in self.view.net_connections("tcp") if c.status == psutil.CONN_LISTEN}

    def family(self) -> list[psutil.Process]:
        return self.view.children(recursive=True)

    def replicas(self) -> list[psutil.Process]:
        return [process for process in self.family() if "firesteel.cluster.child" in words(process)]

    def helpers(self) -> list[psutil.Process]:
        """All processes of ours below the driver: replicas, and what they were forked from."""
        return below("firesteel.cluster.", self.family())

    def spools(self) -> list[str]:
        """Files without a name that somebody of the family holds: their rows go when the last of them does."""
        found = []
        for process in self.family():
            folder = f"/proc/{process.pid}/fd"
            with contextlib.suppress(OSError):
                found += [os.readlink(f"{folder}/{number}") for number in os.listdir(folder)]
        return [path for path in found if path.startswith(str(self.folder)) and path.endswith("(deleted)")]


def tasks(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [process for process in processes if "pyspark.daemon" in words(process)]


def files(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    started: list[Driver] = []

    def make(*args: str) -> Driver:
        started.append(Driver(tmp_path, *args))
        return started[-1]

    yield make
    for driver in started:
        if driver.process.poll() is None:
            for process in (*driver.family(), driver.view):
                with contextlib.suppress(psutil.Error):
                    process.kill()
        driver.process.wait()
        driver.process.stdout.close()


@pytest.mark.parametrize("mode", ["training", "spooling"])
def test_ctrl_c_ends_a_fit_and_leaves_nothing(start: Callable[..., Driver], mode: str) -> None:
    """While it trains, and while its tasks still wait for rows that are long in coming."""
    driver = start(mode)
    driver.wait_until_begun()
    ports = driver.ports()
    assert ports
    assert driver.spools()
    begin = time.monotonic()
    driver.process.send_signal(signal.SIGINT)
    assert driver.process.stdout.readline() == "interrupted\n", (driver.folder / "stderr").read_text()
    assert time.monotonic() - begin < 8
    while driver.helpers():  # one whose task Spark killed falls a moment after it
        assert time.monotonic() - begin < 8
    assert len(driver.ports()) < len(ports)  # the coordinator's
    for path in files(driver.folder / "tmp") | files(driver.folder / "spark"):
        assert "blockmgr" in path or "spark-" in path or "hsperf" in path or "artifacts" in path, path
    while driver.spools():  # of a task that waits for rows, until Spark ends it
        assert time.monotonic() - begin < 10


def test_one_can_go_on_after_ctrl_c(start: Callable[..., Driver]) -> None:
    driver = start("again", "FAIR")
    driver.wait_until_begun()
    driver.process.send_signal(signal.SIGINT)
    assert driver.process.stdout.readline() == "interrupted\n"
    assert driver.process.stdout.readline() == "and again\n", (driver.folder / "stderr").read_text()


def test_when_the_driver_dies_everything_does(start: Callable[..., Driver]) -> None:
    driver = start()
    driver.wait_until_begun()
    replicas, workers = driver.helpers(), tasks(driver.family())
    assert len(workers) >= 2
    driver.process.kill()
    begin = time.monotonic()
    while any(process.is_running() and process.status() != "zombie" for process in (*replicas, *workers)):
        assert time.monotonic() - begin < 15, [words(process) for process in (*replicas, *workers)]
        time.sleep(0.1)
