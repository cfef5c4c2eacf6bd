"""Models of a framework that registered itself: the same engine, found by name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

from firesteel import Estimator
from firesteel.core import registry
from firesteel.core.errors import PlanError, UnknownName, UnsupportedError
from firesteel.learn.metrics import Accuracy

BENCH = Path(__file__).parents[2] / "examples" / "own_framework"
MODEL = {"inputs": 4, "classes": 3}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "softmax_bench-1.0.dist-info"
    place.mkdir()
    (place / "METADATA").write_text("Metadata-Version: 2.1\nName: softmax-bench\nVersion: 1.0\n")
    (place / "entry_points.txt").write_text("[firesteel.frameworks]\nsoftmax = softmax_bench:bench\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(BENCH), *sys.path])
    registry._entry_points.cache_clear()


def data() -> dict[str, Any]:
    random = np.random.default_rng(0)
    x = random.random((90, 4)).astype(np.float32)
    return {"x": x, "y": (x[:, 0] * 3).astype(np.int64)}


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("sync", ["all-reduce", "sharded"])
def test_two_replicas_learn_what_one_does(spark: SparkSession, tmp_path: Path, sync: str) -> None:
    trained = []
    for replicas in (1, 2):
        est = Estimator.from_framework(
            "softmax", MODEL, rate=0.3, seed=1, workers_per_node=replicas, sync=sync, metrics=[Accuracy()]
        )
        history = est.fit(data(), epochs=3, batch_size=16, validation_data=data())
        assert [record["num_samples"] for record in history] == [90] * 3
        trained.append(est)
    one, two = (est.get_model().values for est in trained)
    np.testing.assert_allclose(one, two, atol=1e-5)
    found = trained[1].evaluate(data())
    assert found["val_loss"] == pytest.approx(history[-1]["val_loss"], abs=1e-5)
    assert found["num_samples"] == 90
    own = trained[1].get_model().forward({"x0": data()["x"]})["prediction"]
    np.testing.assert_allclose(trained[1].predict(data()["x"]), own, atol=1e-6)
    kept = trained[1].save_checkpoint(str(tmp_path))
    again = Estimator.from_framework("softmax", MODEL, rate=0.3, workers_per_node=2, sync=sync)
    again.load_checkpoint(kept)
    again.fit(data(), epochs=1, batch_size=16)
    trained[1].fit(data(), epochs=1, batch_size=16)
    np.testing.assert_allclose(again.get_model().values, trained[1].get_model().values, atol=1e-6)


@pytest.mark.usefixtures("installed")
def test_what_cannot_be() -> None:
    with pytest.raises(UnknownName, match=r"softmx.*softmax"):
        Estimator.from_framework("softmx", MODEL)
    with pytest.raises(PlanError, match="does not take a list"):
        Estimator.from_framework("softmax", [1])
    est = Estimator.from_framework("softmax", MODEL)
    with pytest.raises(PlanError, match="nothing to save yet"):
        est.save_checkpoint("anywhere")
    with pytest.raises(UnsupportedError, match="class weights"):
        est.fit(data(), class_weight={0: 2.0})
