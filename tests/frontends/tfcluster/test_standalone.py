"""A real standalone cluster, started by our own command: two workers, one core each; and ResNet on it, three ways."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyspark
import pytest

from firesteel.cluster.java import require_java

ROOT = Path(__file__).parents[3]
RESNET = ROOT / "examples" / "resnet"
CASES = Path(__file__).with_name("cases.py")
SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
FLAGS = ["--use_synthetic_data", "--train_steps=2", "--resnet_size=8", "--batch_size=32", "--num_gpus=0"]
FLAGS += ["--train_epochs=1"]
TRAINED = re.compile(r"worker (\d) of (\d): weights (\w+) became (\w+)")

_started: dict[str, str] = {}


def environment(folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "JAVA_HOME": str(require_java().home),  # spark-submit looks for Java itself, before any code of ours runs
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "XDG_RUNTIME_DIR": str(folder),  # not the cluster of whoever runs the tests
        "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }


def firesteel(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "firesteel", "cluster", *words],
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A folder, and the master's URL."""
    folder = tmp_path_factory.mktemp("standalone")
    done = firesteel(folder, "start", "--workers", "2", "--cores", "1", "--memory", "1500m", "--port", "0")
    assert done.returncode == 0, done.stderr
    master = done.stdout.strip()
    yield folder, master
    about = json.loads((folder / "firesteel-cluster.json").read_text())
    stopped = firesteel(folder, "stop")
    assert (stopped.returncode, stopped.stdout) == (0, f"{master} stopped\n")
    living = [number for number, _ in about["processes"] if psutil.pid_exists(number)]
    assert all(psutil.Process(number).status() == psutil.STATUS_ZOMBIE for number in living)
    assert not Path(about["folder"]).exists()
    assert firesteel(folder, "stop").returncode == 1


def submit(folder: Path, master: str, *words: str, settings: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    options = [f"spark.executorEnv.PYTHONPATH={os.pathsep.join(sys.path)}", "spark.ui.enabled=false"]
    options += ["spark.executor.memory=1g", *settings]
    command = [str(SUBMIT), "--master", master, *(part for option in options for part in ("--conf", option)), *words]
    return subprocess.run(
        command, env=environment(folder), capture_output=True, text=True, timeout=280, cwd=folder, check=False
    )


def weights(text: str) -> dict[str, tuple[str, str]]:
    """Of each worker, hashes of its weights before and after."""
    return {number: (before, after) for number, _, before, after in TRAINED.findall(text)}


def test_the_command_knows_what_runs(cluster: tuple[Path, str]) -> None:
    folder, master = cluster
    assert firesteel(folder, "status").stdout.strip() == master
    again = firesteel(folder, "start", "--port", "0")
    assert again.returncode == 1
    assert f"a cluster runs already at {master}" in again.stderr


def test_cases_on_two_real_executors(cluster: tuple[Path, str]) -> None:
    folder, master = cluster
    done = submit(folder, master, str(CASES), str(folder))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
    found: dict[str, Any] = json.loads(done.stdout.partition("FOUND")[2])
    assert found["variable"] == ["/job:ps/task:0", 1]
    assert found["ps ended"] < 60
    assert sorted(path.name for path in (folder / "export").iterdir()) == ["saved_model.pb", "variables"]
    assert found["mirrored"] == [[3.0, 2]] * 2
    assert found["gloo"] == [[3.0, 2]] * 2
    assert (found["sum"], found["in order"]) == (332_833_500, True)
    assert (found["died"], found["collected"]) == (True, True)
    rank, kind, seconds = found["executor"]
    assert (rank, kind) == (1, "infrastructure")
    assert seconds < 15
    assert found["after"] == 10


def test_resnet_alone_and_in_two_shells(tmp_path: Path) -> None:
    script = [sys.executable, str(RESNET / "resnet_cifar_main.py"), *FLAGS]
    alone = subprocess.run(
        [*script, f"--model_dir={tmp_path}"],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert alone.returncode == 0, alone.stderr[-3000:]
    assert re.search(r"epoch 1/1: loss \d+\.\d+, accuracy 0\.\d+, 64 images", alone.stdout)
    assert re.search(r"test: loss \d+\.\d+, accuracy 0\.\d+, images 128", alone.stdout)
    assert (tmp_path / "resnet.keras").is_file()
    ((before, after),) = weights(alone.stdout).values()
    assert before != after
    both = _two_shells(tmp_path, script)
    found = weights("".join(both))
    assert found["0"] == found["1"]
    assert found["0"][0] == before != found["0"][1]
    _started["loss"] = _losses(both[0])


def _two_shells(folder: Path, script: list[str]) -> list[str]:
    sockets = [socket.socket() for _ in range(2)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    places = [f"localhost:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    shells = []
    for index in (0, 1):
        config = {"cluster": {"worker": places}, "task": {"type": "worker", "index": index}}
        shells.append(
            subprocess.Popen(
                [*script, "--ds=multi_worker_mirrored"],
                env={**environment(folder), "TF_CONFIG": json.dumps(config)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    texts = [shell.communicate(timeout=280)[0] for shell in shells]
    assert [shell.returncode for shell in shells] == [0, 0], "\n".join(texts)[-5000:]
    return texts


def _losses(text: str) -> str:
    return " ".join(re.findall(r"loss (\d+\.\d+)", text))


def test_resnet_on_spark(cluster: tuple[Path, str], tmp_path: Path) -> None:
    folder, master = cluster
    words = ["--py-files", str(RESNET / "resnet_cifar_dist.py"), str(RESNET / "resnet_cifar_spark.py")]
    words += ["--cluster_size", "2"]
    settings = ("spark.cores.max=2", "spark.task.cpus=1")
    done = submit(folder, master, *words, "--epochs", "1", *FLAGS, "--ds=multi_worker_mirrored", settings=settings)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-5000:]
    logs = "".join(path.read_text() for path in Path(_logs(folder)).glob("work-*/app-*/*/stderr"))
    found = weights(logs)
    assert found["0"] == found["1"]
    assert found["0"][0] != found["0"][1]
    if "loss" in _started:  # the same seed and data give the same losses
        here, there = ([float(value) for value in text.split()] for text in (_started["loss"], _losses(logs)))
        assert there == pytest.approx(here, abs=1e-4)
    wrong = submit(folder, master, *words, "--no_such_flag=1", settings=settings)
    assert wrong.returncode != 0
    assert "UnrecognizedFlagError: Unknown command line flag 'no_such_flag'" in wrong.stdout + wrong.stderr


def _logs(folder: Path) -> str:
    return str(json.loads((folder / "firesteel-cluster.json").read_text())["folder"])
