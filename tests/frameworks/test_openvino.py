"""The OpenVINO bench without Spark: shapes, batches, types, and what it compiles."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from firesteel.core.errors import PlanError, SchemaError
from firesteel.core.registry import framework
from firesteel.core.spec import batch_of
from firesteel.frameworks.openvino.replica import compiled, lead_axes
from firesteel.testing import check_framework
from frontends import irs

BENCH: Any = framework("openvino")
X = np.random.default_rng(0).random((23, 3), dtype=np.float32)
Y = X @ irs.WEIGHT + irs.BIAS


def file_of(path: str) -> Any:
    return BENCH.make_file(Path(path).read_bytes(), Path(path).with_suffix(".bin").read_bytes())


def replica(path: str, threads: int = 1, **parts: Any) -> Any:
    options = {"batch_size": 4, "places": [0], "outputs": ["prediction"], **parts}
    return BENCH.replica(BENCH.capture(file_of(path), **options), "cpu", threads)


def test_contract(tmp_path: Path) -> None:
    program = BENCH.capture(file_of(irs.affine(tmp_path / "m.xml")), batch_size=4, places=[0], outputs=["prediction"])
    check_framework(BENCH, program, batch_of(X))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("batch_size", [1, 4, 23, 64])
@pytest.mark.parametrize("make", [irs.affine, irs.stubborn, lambda path: irs.affine(path, 4)])
def test_any_rows_in_batches_of_any_size(tmp_path: Path, make: Any, batch_size: int, threads: int) -> None:
    # Two threads with two streams: several inferences are then in flight.
    config = {"NUM_STREAMS": threads}
    living = replica(make(tmp_path / "m.xml"), threads, batch_size=batch_size, config=config)
    assert living._requests == threads
    for rows in (23, 5, 4, 1):
        np.testing.assert_allclose(living.forward(batch_of(X[:rows]))["prediction"], Y[:rows], atol=1e-5)


def test_an_axis_more_counts_batches(tmp_path: Path) -> None:
    living = replica(irs.affine(tmp_path / "m.xml"), batch_size=3)
    found = living.forward(batch_of(X[:20].reshape(5, 4, 3)))["prediction"]
    np.testing.assert_allclose(found, Y[:20].reshape(5, 4, 2), atol=1e-5)
    assert living.forward(batch_of(np.zeros((5, 0, 3))))["prediction"].shape == (5, 0, 2)
    with pytest.raises(SchemaError, match=r"'a'.*\(rows, 3\).*\(2, 5, 4, 3\)"):
        living.forward(batch_of(np.zeros((2, 5, 4, 3))))


def test_shapes_against_inputs() -> None:
    port = BENCH.describe(ov.Model([ops.relu(p := irs.parameter("a", [-1, 3, -1]))], [p]))[0][0]
    assert port.shape == (None, 3, None)
    assert lead_axes((7, 3, 9), port) == 1
    assert lead_axes((7, 2, 3, 9), port) == 2
    assert lead_axes((None, None, None), port) == 1
    for wrong in [(7, 3), (7, 4, 9), (7, 2, 2, 3, 9), (7,)]:
        with pytest.raises(SchemaError, match=r"\(rows, 3, \?\)"):
            lead_axes(wrong, port)
    column = BENCH.describe(ov.Model([ops.relu(p := irs.parameter("a", [-1, 1]))], [p]))[0][0]
    assert lead_axes((7,), column) == 1  # numbers, where the model wants rows of length 1


def test_numbers_for_a_model_of_width_one(tmp_path: Path) -> None:
    a = irs.parameter("a", [-1, 1])
    path = irs.write(ov.Model([irs.named(ops.multiply(a, ops.constant(np.float32(2))), "y")], [a]), tmp_path / "m.xml")
    found = replica(path).forward(batch_of(np.arange(5.0)))["prediction"]
    np.testing.assert_array_equal(found, 2 * np.arange(5.0)[:, None])


def test_types_are_the_models(tmp_path: Path) -> None:
    a = irs.parameter("a", [-1, 2], ov.Type.bf16)
    path = irs.write(ov.Model([irs.named(ops.add(a, a), "y")], [a]), tmp_path / "m.xml")
    file = file_of(path)
    assert [port.dtype for ports in BENCH.describe(BENCH.read(file)) for port in ports] == ["float32", "float32"]
    found = replica(path).forward(batch_of(np.array([[1, 2], [3, 4]])))["prediction"]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, [[2, 4], [6, 8]])


def test_what_was_compiled_stays(tmp_path: Path) -> None:
    path = irs.affine(tmp_path / "m.xml")
    before = compiled.cache_info().misses
    for size in (4, 5, 4):
        replica(path, batch_size=size)
    assert compiled.cache_info().misses == before + 1
    replica(path, config={"NUM_STREAMS": 1})
    assert compiled.cache_info().misses == before + 2


def test_precision_does_not_depend_on_the_machine(tmp_path: Path) -> None:
    path = irs.affine(tmp_path / "m.xml")
    assert replica(path)._compiled.get_property("EXECUTION_MODE_HINT") == ov.properties.hint.ExecutionMode.ACCURACY
    asked = replica(path, config={"INFERENCE_PRECISION_HINT": "f32"})
    assert asked._compiled.get_property("INFERENCE_PRECISION_HINT") == ov.Type.f32


def test_what_cannot_be_read_is_said() -> None:
    with pytest.raises(PlanError, match=r"x\.xml is no model that OpenVINO can read"):
        BENCH.read(BENCH.make_file(b"<net/>", b""), "x.xml")
    with pytest.raises(PlanError, match="NO_SUCH"):
        BENCH.check_config({"NO_SUCH": 1})


def test_an_output_without_rows_is_refused(tmp_path: Path) -> None:
    a = irs.parameter("a", [-1, 3])
    total = ops.reduce_sum(a, ops.constant(np.array([0], np.int64)), True)
    path = irs.write(ov.Model([irs.named(total, "y")], [a]), tmp_path / "m.xml")
    with pytest.raises(SchemaError, match="one row of output for each row"):
        replica(path).forward(batch_of(X))


_CONVERTS = """
import os, torch
from firesteel.frameworks.openvino.convert import convert
program = torch.export.export(torch.nn.Linear(3, 2).eval(), (torch.zeros(2, 3),))
convert(program, input_names=["x"], output_names=["y"])
from openvino_telemetry import Telemetry
assert Telemetry().consent is False
assert "CI" not in os.environ and "NNCF_CI" not in os.environ
"""


def test_a_conversion_is_reported_to_nobody(tmp_path: Path) -> None:
    variables = {name: value for name, value in os.environ.items() if name not in ("CI", "NNCF_CI", "TF_BUILD")}
    done = subprocess.run(
        [sys.executable, "-c", _CONVERTS],
        env={**variables, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []
