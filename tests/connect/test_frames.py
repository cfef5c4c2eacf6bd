"""The frames and TFPark doors on DataFrames of Spark Connect: what is seen there is what a classic session gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PLUS_3 = [[x + 3.0, x] for x in map(float, range(10))]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    options = {"SPARK_LOCAL_IP": "127.0.0.1", "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("frames_client.py"))],
        cwd=tmp_path_factory.mktemp("frames"),
        env=variables | options,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("SEEN ")]
    assert lines, (done.stdout + done.stderr)[-8000:]
    found: dict[str, Any] = json.loads(lines[0][5:])
    return found


def test_the_documents_example(seen: dict[str, Any]) -> None:
    assert seen["document"] == [["z", "x", "y"], [[15, 3, 4], [7, 1, 2]]]
    assert seen["graph"] == PLUS_3


def test_maps(seen: dict[str, Any]) -> None:
    assert seen["blocks"] == seen["rows"] == PLUS_3
    assert seen["schema"] == [False, [-1]]
    assert seen["trim"] == [[2]]
    assert seen["large"] == [[0.0, 0.0], [2.0, 1.0], [4.0, 2.0]]


def test_shapes(seen: dict[str, Any]) -> None:
    assert seen["explain"] == [
        "root",
        " |-- y: array (nullable = false) double[10,2]",
        " |-- z: array (nullable = false) double[10,2]",
    ]


def test_reductions(seen: dict[str, Any]) -> None:
    assert seen["reduce"] == [[45.0, -45.0], [0.0, -9.0]]
    assert seen["pairs"] == 45.0
    assert seen["aggregate"] == [["key", "x"], [["0", 2.0], ["1", 4.0]]]
    assert seen["expression"] == [[False, "0", 2.0], [False, "1", 1.0], [True, "1", 3.0]]
    assert "rollup" in seen["rollup"]


def test_graphs_learn_from_columns(seen: dict[str, Any]) -> None:
    w, columns, outputs = seen["trained"]
    assert w == pytest.approx(2.0, abs=1e-3)
    assert columns == ["id", "x", "y", "out"]
    assert outputs == pytest.approx([w * (k % 3) for k in range(12)])
