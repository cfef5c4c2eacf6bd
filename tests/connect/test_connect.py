"""Spark Connect: scoring and training through a session that has no SparkContext.

One program in a process of its own (``client.py``), for a Connect session and a classic one do not share a process; the
tests look at what it saw.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    options = {"SPARK_LOCAL_IP": "127.0.0.1", "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("client.py"))],
        cwd=tmp_path_factory.mktemp("connect"),
        env=variables | options,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=280)
    except subprocess.TimeoutExpired as error:
        pytest.fail(f"the program did not end; what it said last:\n{(error.output or b'').decode()[-6000:]}")
    finally:
        process.kill()
        process.wait()
    lines = [line for line in output.splitlines() if line.startswith("SEEN ")]
    assert lines, output[-8000:]
    return {**json.loads(lines[0][5:]), "session": process.pid}


def test_predictions_are_the_frameworks_own(seen: dict[str, Any]) -> None:
    assert seen["rows"] == 300
    assert seen["predictions"] <= 1e-6
    assert seen["arrays"] <= 1e-6


def test_evaluate_is_exact(seen: dict[str, Any]) -> None:
    rows, off = seen["evaluate"]
    assert rows == 300
    assert off < 1e-5


def test_two_replicas_learn_what_one_does(seen: dict[str, Any]) -> None:
    assert seen["moved"] > 0.01
    assert seen["two_and_one"] < 1e-5


def test_two_replicas_learn_what_torch_does_alone(seen: dict[str, Any]) -> None:
    assert seen["two_and_torch"] < 1e-5


def test_history_and_validation(seen: dict[str, Any]) -> None:
    first, second = seen["history"]
    assert (first["epoch"], second["epoch"]) == (1, 2)
    assert second["num_samples"] == 300
    assert second["val_num_samples"] == seen["ones"]
    assert second["train_loss"] < first["train_loss"]
    assert 0 <= second["val_Accuracy"] <= 1


def test_the_users_error_comes_back_whole(seen: dict[str, Any]) -> None:
    error = seen["user"]
    assert (error["type"], error["rank"], error["step"], error["cause"]) == ("ReplicaFailed", 1, 3, "KeyError")
    assert 'raise KeyError("the user\'s own mistake")' in error["text"]
    assert "grpc" not in error["text"]


def test_a_plan_that_the_data_refute(seen: dict[str, Any]) -> None:
    for how in ("empty", "known_empty"):
        assert (seen[how]["type"], seen[how]["text"]) == ("PlanError", "the training data has no rows")


def test_too_few_slots_are_noticed_before_anything_runs(seen: dict[str, Any]) -> None:
    error = seen["slots"]
    assert (error["type"], error["asked"], error["available"]) == ("NotEnoughSlots", 3, 2)
    assert "training on" not in seen["said_before_slots"]


def test_what_needs_an_rdd_says_so(seen: dict[str, Any]) -> None:
    assert seen["stream"]["type"] == "UnsupportedError"
    assert "Spark Connect" in seen["stream"]["text"]


def test_a_gang_whose_coordinator_is_killed_begins_anew(seen: dict[str, Any]) -> None:
    assert seen["epochs_after_loss"] == 2
    assert seen["lost_and_not"] < 1e-6


def test_no_process_is_left(seen: dict[str, Any]) -> None:
    assert seen["left"] == []
    end = time.monotonic() + 10
    while (left := _of_session(seen["session"])) and time.monotonic() < end:
        time.sleep(0.1)
    assert left == []


def _of_session(leader: int) -> list[list[str]]:
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.cmdline())
        except (psutil.Error, ProcessLookupError):
            continue
    return found
