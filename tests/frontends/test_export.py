"""Trained models as ONNX and OpenVINO files: what they compute there is what they compute here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import openvino as ov
import pytest
import torch
from pyspark.sql import SparkSession
from torch import nn

from firesteel import Estimator
from firesteel.core.errors import PlanError, UnsupportedError

keras: Any = __import__("keras")

X = np.random.default_rng(0).random((9, 1, 8, 8), dtype=np.float32)


class Net(nn.Module):
    """Batch-norm and dropout, which differ between training and inference."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.drop, self.out = nn.Dropout(0.5), nn.Linear(4 * 36, 3)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.out(self.drop(torch.relu(self.norm(self.conv(image)))).flatten(1))


class Pair(nn.Module):
    def forward(self, left: torch.Tensor, right: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"sum": left + right, "gap": left - right}


def expected(model: nn.Module, *inputs: Any) -> Any:
    model.eval()
    with torch.no_grad():
        return model(*map(torch.from_numpy, inputs))


def run(path: str, feeds: Any) -> Any:
    return ov.compile_model(path, "CPU", {"EXECUTION_MODE_HINT": "ACCURACY"})(feeds)


def names(ports: Any) -> list[str]:
    return [port.get_any_name() for port in ports]


def test_a_fitted_torch_model_needs_to_be_told_nothing(spark: SparkSession, tmp_path: Path) -> None:
    model = Net()
    est = Estimator.from_torch(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), loss=nn.CrossEntropyLoss()
    )
    with pytest.raises(PlanError, match="inputs="):
        est.to_openvino(str(tmp_path / "early.xml"))
    est.fit((X, np.arange(9) % 3), epochs=1, batch_size=4, verbose=0)
    wanted = expected(model, X).numpy()
    model.train()
    path = est.to_openvino(str(tmp_path / "net"))
    assert path == str(tmp_path / "net.xml")
    assert model.training  # the user's own object stays as it was
    np.testing.assert_allclose(run(path, X)[0], wanted, atol=1e-5)
    scorer = Estimator.from_openvino(model_path=path)
    assert (scorer.inputs, scorer.outputs) == (["image"], ["output"])
    np.testing.assert_allclose(scorer.predict(X, batch_size=2), wanted, atol=1e-5)

    half = est.to_openvino(str(tmp_path / "half.xml"), fp16=True)
    assert (tmp_path / "half.bin").stat().st_size < 0.6 * (tmp_path / "net.bin").stat().st_size
    np.testing.assert_allclose(run(half, X)[0], wanted, atol=1e-2)
    with pytest.raises(FileExistsError):
        est.to_openvino(path, overwrite=False)

    file = est.to_onnx(str(tmp_path / "net.onnx"))
    onnx.checker.check_model(onnx.load(file))
    scorer.load(file)
    assert (scorer.inputs, scorer.outputs) == (["image"], ["output"])
    np.testing.assert_allclose(scorer.predict(X, batch_size=5), wanted, atol=1e-5)


def test_int8_by_calibration(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Net()
    est = Estimator.from_torch(model=model)
    path = est.to_openvino(str(tmp_path / "net.xml"), inputs=X[:1], int8=X)
    kinds = {
        output.get_element_type().to_string()
        for node in ov.Core().read_model(path).get_ops()
        for output in node.outputs()
    }
    assert "i8" in kinds
    wanted = expected(model, X).numpy()
    found = run(path, X)[0]
    assert 0 < abs(found - wanted).max() < 0.1 * abs(wanted).max()
    with pytest.raises(PlanError, match="rows to calibrate"):
        est.to_openvino(str(tmp_path / "net.xml"), inputs=X[:1], int8=X[:0])


@pytest.mark.parametrize("kind", ["onnx", "xml"])
def test_several_inputs_and_outputs_keep_their_names(tmp_path: Path, kind: str) -> None:
    left, right = np.ones((4, 2), np.float32), np.full((4, 2), 3, np.float32)
    est = Estimator.from_torch(model=Pair())
    export = est.to_onnx if kind == "onnx" else est.to_openvino
    path = export(str(tmp_path / f"pair.{kind}"), inputs=[left, right])
    model = ov.Core().read_model(path)
    assert names(model.inputs) == ["left", "right"]
    assert names(model.outputs) == ["sum", "gap"]
    found = run(path, [left, right])
    np.testing.assert_array_equal(found["gap"], left - right)
    assert model.inputs[0].partial_shape[0].is_dynamic
    named = export(str(tmp_path / f"named.{kind}"), inputs={"right": right, "left": left})
    assert names(ov.Core().read_model(named).inputs) == ["left", "right"]


def test_keras_models(tmp_path: Path) -> None:
    late, early = keras.Input((2,), name="z"), keras.Input((2,), name="a")
    outputs = {"late": keras.layers.Dense(3, "tanh")(late), "both": keras.layers.Add()([late, early])}
    model = keras.Model([late, early], outputs)
    model.compile("sgd", "mse")
    z, a = (np.random.default_rng(seed).random((5, 2), dtype=np.float32) for seed in (1, 2))
    wanted = model.predict([z, a], verbose=0)
    est = Estimator.from_keras(model)
    for path in (est.to_openvino(str(tmp_path / "m.xml")), est.to_onnx(str(tmp_path / "m.onnx"))):
        read = ov.Core().read_model(path)
        found = run(path, {"z": z, "a": a})
        assert sorted(names(read.outputs)) == ["both", "late"]
        for name in outputs:
            np.testing.assert_allclose(found[name], wanted[name], atol=1e-5)
    read = ov.Core().read_model(str(tmp_path / "m.xml"))
    assert (names(read.inputs), names(read.outputs)) == (["z", "a"], ["late", "both"])
    np.testing.assert_allclose(run(str(tmp_path / "m.xml"), [z, a])["late"], wanted["late"], atol=1e-5)


def test_onnx_with_its_weights_beside_it(spark: SparkSession, tmp_path: Path) -> None:
    model = Net()
    est = Estimator.from_torch(model=model)
    inner = onnx.load(est.to_onnx(str(tmp_path / "inner.onnx"), inputs=X))
    onnx.save(inner, str(tmp_path / "outer.onnx"), save_as_external_data=True, location="outer.data", size_threshold=0)
    assert (tmp_path / "outer.data").stat().st_size > 1000
    scorer = Estimator.from_openvino(model_path=str(tmp_path / "outer.onnx"))
    np.testing.assert_allclose(scorer.predict(X), expected(model, X).numpy(), atol=1e-5)


def test_what_cannot_be_exported_is_said(tmp_path: Path) -> None:
    class Choosy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 0 else -x

    est = Estimator.from_torch(model=Choosy())
    with pytest.raises(UnsupportedError, match="cannot export"):
        est.to_onnx(str(tmp_path / "m.onnx"), inputs=np.ones((2, 2), np.float32))
    with pytest.raises(PlanError, match="rows"):
        est.to_onnx(str(tmp_path / "m.onnx"), inputs="three")
    assert list(tmp_path.iterdir()) == []
