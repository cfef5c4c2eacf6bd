"""A standalone Spark cluster on this machine, from the Spark that pip installed: no start scripts, no ``SPARK_HOME``.

What runs is written down in a file, so that another process can stop it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from firesteel.cluster.java import require_java
from firesteel.core.errors import ClusterError, PlanError
from firesteel.core.plan import positive

__all__ = ["DEFAULT_PORT", "Running", "running", "start", "stop"]

DEFAULT_PORT = 7077
_START_SECONDS = 120.0
_STOP_SECONDS = 30.0
_LOOK_SECONDS = 0.1
_LAST_CHARACTERS = 2000
_MEMORY = re.compile(r"\d+[kmgtKMGT]?")


@dataclass(frozen=True)
class Running:
    """A cluster that was started here.

    Attributes:
        master: its URL, for ``spark-submit --master``.
        workers: how many.
        processes: number and start time of each process, the master's first.
        folder: where its logs and the workers' folders are.
    """

    master: str
    workers: int
    processes: tuple[tuple[int, float], ...]
    folder: str

    def living(self) -> list[psutil.Process]:
        """Its processes that still run; a number that was given to another process does not count."""
        found = []
        for number, began in self.processes:
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(number)
                is_ours = abs(process.create_time() - began) < 1.0
                if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found


def running() -> Running | None:
    """The cluster that ``start`` has started, if it still runs."""
    try:
        about = json.loads(_note().read_text())
        found = Running(**{**about, "processes": tuple(tuple(each) for each in about["processes"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return found if found.living() else None


def start(
    workers: int = 2, cores: int = 1, memory: str = "2g", *, host: str = "127.0.0.1", port: int = DEFAULT_PORT
) -> Running:
    """Start a master and workers; returns when all workers have registered. One cluster at a time.

    Args:
        workers: how many worker processes; each runs executors of one application.
        cores: of each worker.
        memory: of each worker, such as ``"3g"``.
        host: the address to listen at; only this machine reaches the default one.
        port: the master's; 0 is any.
    """
    positive(workers, "workers")
    positive(cores, "cores")
    if not _MEMORY.fullmatch(memory):
        raise PlanError(f"memory must be a size such as 3g or 512m, not {memory!r}")
    there = running()
    if there is not None:
        raise ClusterError(f"a cluster runs already at {there.master}: firesteel cluster stop ends it")
    folder = Path(tempfile.mkdtemp(prefix="firesteel-cluster-"))
    processes: list[subprocess.Popen[bytes]] = []
    try:
        port = port or _free_port(host)
        master = f"spark://{host}:{port}"
        listening = ["--host", host, "--webui-port", "0"]
        processes.append(_spawn(folder, "master", "master.Master", [*listening, "--port", str(port)]))
        _await(folder / "master.log", "I have been elected leader", processes[0])
        for number in range(workers):
            options = [
                *listening,
                "--cores",
                str(cores),
                "--memory",
                memory,
                "--work-dir",
                str(folder / f"work-{number}"),
            ]
            processes.append(_spawn(folder, f"worker-{number}", "worker.Worker", [*options, master]))
        for number, process in enumerate(processes[1:]):
            _await(folder / f"worker-{number}.log", "Successfully registered with master", process)
        found = Running(
            master,
            workers,
            tuple((each.pid, psutil.Process(each.pid).create_time()) for each in processes),
            str(folder),
        )
        _note().parent.mkdir(parents=True, exist_ok=True)
        _note().write_text(json.dumps(asdict(found)))
    except BaseException:
        for process in processes:
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return found


def stop() -> Running | None:
    """Stop the cluster that runs, and wait until it is gone; what it was, ``None`` where there was none."""
    found = running()
    if found is not None:
        living = found.living()
        for process in living:
            with contextlib.suppress(psutil.Error):
                process.terminate()
        _, stubborn = psutil.wait_procs(living, _STOP_SECONDS)
        for process in stubborn:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(stubborn, _STOP_SECONDS)
        shutil.rmtree(found.folder, ignore_errors=True)
    _note().unlink(missing_ok=True)
    return found


def _note() -> Path:
    """Where the running cluster is written down; in a folder of this user's."""
    base = os.environ.get("XDG_RUNTIME_DIR") or os.path.join(tempfile.gettempdir(), f"firesteel-{os.getuid()}")
    return Path(base) / "firesteel-cluster.json"


def _spawn(folder: Path, name: str, kind: str, options: Sequence[str]) -> subprocess.Popen[bytes]:
    import pyspark

    home = os.environ.get("SPARK_HOME") or os.path.dirname(pyspark.__file__)
    command = [os.path.join(home, "bin", "spark-class"), f"org.apache.spark.deploy.{kind}", *options]
    environment = {
        **os.environ,
        "JAVA_HOME": str(require_java().home),
        "SPARK_NO_DAEMONIZE": "1",
        # Executors run this Python unless an application says otherwise.
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
    }
    with open(folder / f"{name}.log", "wb") as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
        )


def _await(log: Path, words: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until a process has written these words into its log."""
    end = time.monotonic() + _START_SECONDS
    while words not in (text := log.read_text(errors="replace")):
        if process.poll() is not None or time.monotonic() > end:
            how = "ended" if process.poll() is not None else f"did not answer within {_START_SECONDS:g} s"
            raise ClusterError(f"Spark's {log.stem} {how}; its log says: {text[-_LAST_CHARACTERS:].strip()}")
        time.sleep(_LOOK_SECONDS)  # nobody tells when a line is written


def _free_port(host: str) -> int:
    with socket.socket() as free:
        free.bind((host, 0))
        return int(free.getsockname()[1])
