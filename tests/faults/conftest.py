"""What the fault tests share: rows, an estimator around any module, and what must not be left behind."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from pyspark.sql import DataFrame, SparkSession, functions
from torch import nn

from firesteel import Estimator
from firesteel.cluster.java import require_java
from firesteel.testing.faults import replicas


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    """200 rows (x: one float, y = 2 x) in 2 partitions: with batches of 20 an epoch has 10 steps."""
    return spark.range(0, 200, 1, 2).select(
        functions.array((functions.col("id") / 200).cast("float")).alias("x"),
        (functions.col("id") / 100).cast("float").alias("y"),
    )


class Faulty(nn.Module):
    """A linear layer in which ``fault()`` is called on rank 1 at the third step."""

    def __init__(self, fault: Callable[[], None] | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(1, 1)
        self.fault = fault
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.fault is not None and os.environ.get("RANK") == "1" and self.calls == 3:
            self.fault()
        return self.layer(x)


def estimator(model: Any, backend: str = "bigdl", **parts: Any) -> Any:
    options = {
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1) if isinstance(model, nn.Module) else None,
        "loss": nn.MSELoss(),
        "workers_per_node": 2,
        "seed": 5,
        **parts,
    }
    return Estimator.from_torch(model=model, backend=backend, **options)


def fit(est: Any, data: Any, **options: Any) -> Any:
    columns = {"feature_cols": "x", "label_cols": "y"} if isinstance(data, DataFrame) else {}
    return est.fit(data, **{"epochs": 1, "batch_size": 20, "verbose": 0, **columns, **options})


class Scene:
    """Times a fault: ``mark()`` inside the replica, ``seconds_since()`` on the driver."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "mark"

    def marker(self) -> Callable[[], None]:
        path = str(self.file)

        def mark() -> None:
            with open(path, "a") as file:
                file.write(f"{time.time()}\n")

        return mark

    @property
    def marks(self) -> list[float]:
        return [float(line) for line in self.file.read_text().split()] if self.file.exists() else []

    def seconds_since(self) -> float:
        return time.time() - self.marks[-1]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """After every test: no replica's process, and the SparkContext works."""
    yield
    assert replicas() == []
    if "spark" in request.fixturenames:
        context = request.getfixturevalue("spark").sparkContext
        assert context.range(10).count() == 10


class Cluster:
    """A driver on ``local-cluster[2,1,1024]`` in a process of its own; see ``cluster_driver``."""

    def __init__(self, folder: Path, **conf: str) -> None:
        self._log = folder / "stderr"
        self._stderr = self._log.open("w")
        program = Path(__file__).with_name("cluster_driver.py")
        self._process = subprocess.Popen(
            [sys.executable, str(program), json.dumps(conf)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            env={
                **os.environ,
                "TMPDIR": str(folder),  # so that what is left there is its own
                "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            },
        )

    def train(self, *faults: dict[str, Any], conf: Any = None, estimator: Any = None, **options: Any) -> dict[str, Any]:
        asked = {"faults": faults, "fit": options, "conf": conf or {}, "estimator": estimator or {}}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the driver ended with status {self._process.wait()}: {self._log.read_text()[-3000:]}"
        return dict(json.loads(line))

    def close(self) -> None:
        self._process.stdin.close()  # type: ignore[union-attr]
        self._process.wait(60)
        self._process.stdout.close()  # type: ignore[union-attr]
        self._stderr.close()


class Standalone:
    """Spark's own master and two workers on two addresses of this machine: to Spark they are two hosts."""

    def __init__(self, folder: Path) -> None:
        import pyspark

        self._folder = folder
        self._spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._logs: list[Any] = []
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.master = f"spark://127.0.0.1:{port}"
        self._start("master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
        for host in ("127.0.0.1", "127.0.0.2"):
            options = ["--host", host, "--cores", "2", "--memory", "2g", "--webui-port", "0"]
            self._start("worker.Worker", *options, "--work-dir", str(folder), self.master)

    def _start(self, name: str, *options: str) -> None:
        log = (self._folder / f"{name}-{len(self._processes)}.log").open("w")
        self._logs.append(log)
        command = [str(self._spark_class), f"org.apache.spark.deploy.{name}", *options]
        environment = {**os.environ, "JAVA_HOME": str(require_java().home), "SPARK_NO_DAEMONIZE": "1"}
        self._processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment))

    def close(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait(30)
        for log in self._logs:
            log.close()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    found = Cluster(tmp_path_factory.mktemp("cluster"))
    yield found
    found.close()


@pytest.fixture(scope="session")
def undisturbed(cluster: Cluster) -> dict[str, Any]:
    """The same training when nothing happens."""
    return cluster.train()
