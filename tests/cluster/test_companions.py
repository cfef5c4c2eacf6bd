"""Processes beside a rank: told of when they are lost, ended when they stay, gone when their rank is."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import time

import psutil

from firesteel.cluster.companions import Companions
from firesteel.cluster.roles import ParameterServers
from processes import below


def children() -> list[psutil.Process]:
    return below("firesteel.cluster.companions")


def test_a_lost_one_is_told_and_those_that_stay_are_ended() -> None:
    lost: queue.Queue[str] = queue.Queue()
    companions = Companions(lost.put)
    for number in range(2):
        companions.start(f"server {number}", "signal:pause", {"DMLC_ROLE": "server"})
    first, second = sorted(children(), key=lambda each: each.pid)
    assert first.environ()["DMLC_ROLE"] == "server"
    first.kill()
    assert lost.get(timeout=10) == "the server 0 that ran beside it was killed by signal 9"
    companions.end()
    assert not second.is_running()
    assert lost.empty()  # nobody is told of what was wanted


def test_they_are_waited_for() -> None:
    lost: queue.Queue[str] = queue.Queue()
    companions = Companions(lost.put)
    companions.start("server", "platform:python_version", {})
    companions.leave()
    companions.close()
    assert children() == []
    assert lost.empty()


PARENT = """
import os, sys, time
from firesteel.cluster.companions import Companions
Companions(print).start("server", "signal:pause", {})
time.sleep(1)
print("ready", flush=True)
time.sleep(60)
"""


def test_they_end_with_their_rank() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        (companion,) = psutil.Process(parent.pid).children()
        os.kill(parent.pid, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while companion.is_running() and companion.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_the_variables_of_each_role() -> None:
    servers = ParameterServers("10.0.0.1", 9000, workers=2, servers=3)
    expected = {
        "DMLC_ROLE": "server",
        "DMLC_PS_ROOT_URI": "10.0.0.1",
        "DMLC_PS_ROOT_PORT": "9000",
        "DMLC_NUM_WORKER": "2",
        "DMLC_NUM_SERVER": "3",
        "DMLC_NODE_HOST": "10.0.0.2",
    }
    assert servers.environment("server", "10.0.0.2") == expected
    assert servers.environment("worker", "10.0.0.3") == {
        **expected,
        "DMLC_ROLE": "worker",
        "DMLC_NODE_HOST": "10.0.0.3",
    }
