"""``save`` and ``load``: one safetensors file, nothing pickled, and everything goes on as if nothing had happened."""

from __future__ import annotations

import io
import json
import os
import pickletools
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyspark.sql import SparkSession
from safetensors.torch import load_file
from torch import nn

from firesteel import Estimator
from firesteel.core.errors import CheckpointError, UnsupportedError
from frontends.modules import Apply, linear

X = np.random.default_rng(2).random((24, 3)).astype(np.float32)
Y = X.sum(axis=1)


def net() -> nn.Module:
    return nn.Sequential(linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), linear(4, 1))


def with_instances() -> Any:
    model = net()
    return Estimator.from_torch(
        model=model, optimizer=torch.optim.Adam(model.parameters(), lr=0.05), loss=nn.MSELoss(), seed=1
    )


def with_creators() -> Any:
    return Estimator.from_torch(
        model=lambda config: net(),
        optimizer=lambda model, config: torch.optim.Adam(model.parameters(), lr=0.05),
        loss=nn.MSELoss(),
        scheduler_creator=lambda optimizer, config: torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.5),
        seed=1,
    )


def weights(est: Any) -> np.ndarray:
    return nn.utils.parameters_to_vector(est.get_model().parameters()).detach().numpy()


def train(est: Any, epochs: int) -> Any:
    return est.fit((X, Y), epochs=epochs, batch_size=8, verbose=0)


def predictions(est: Any) -> np.ndarray:
    with torch.no_grad():
        return est.get_model().eval()(torch.from_numpy(X)).numpy()


def pickles(data: bytes) -> list[str]:
    """Which parts of a file are pickles: itself, or members of the archive that it is."""
    if zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return [name for name in archive.namelist() if pickles(archive.read(name))]
    try:
        for _ in pickletools.genops(data):
            pass
    except (ValueError, IndexError, UnicodeDecodeError):
        return []
    return ["itself"]


@pytest.fixture(scope="module")
def trained(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """An estimator after two epochs, and the file that it was saved to."""
    est = with_creators()
    train(est, 2)
    path = tmp_path_factory.mktemp("saved") / "some folder" / "model.anything"
    est.save(str(path))
    return est, path


def test_one_file_at_that_path_without_pickle(trained: tuple[Any, Path]) -> None:
    est, path = trained
    assert os.listdir(path.parent) == ["model.anything"]  # nothing temporary is left
    assert pickles(path.read_bytes()) == []
    stored = load_file(path)
    for name, value in est.get_model().state_dict().items():
        assert torch.equal(stored[name], value)
    size = int.from_bytes(path.read_bytes()[:8], "little")
    header = json.loads(path.read_bytes()[8 : 8 + size])["__metadata__"]
    assert json.loads(header["firesteel"])["position"]["epoch"] == 2
    other = io.BytesIO()
    torch.save(est.get_model().state_dict(), other)
    assert pickles(other.getvalue())  # the test would see one


def test_load_in_a_new_process_without_spark(trained: tuple[Any, Path]) -> None:
    est, path = trained
    script = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
import numpy as np, torch
from torch import nn
from frontends.modules import linear
from firesteel import Estimator
est = Estimator.from_torch(model=lambda config: nn.Sequential(linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), linear(4, 1)))
est.load({str(path)!r})
x = np.random.default_rng(2).random((24, 3)).astype(np.float32)
with torch.no_grad():
    sys.stdout.write(est.get_model().eval()(torch.from_numpy(x)).numpy().tobytes().hex())
assert "py4j" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert bytes.fromhex(done.stdout) == predictions(est).tobytes()


@pytest.mark.parametrize("make", [with_instances, with_creators])
def test_training_goes_on_with_the_optimizers_state(spark: SparkSession, tmp_path: Path, make: Any) -> None:
    whole = make()
    records = train(whole, 2)
    first = make()
    train(first, 1)
    first.save(tmp_path / "half")
    second = make()
    second.load(tmp_path / "half")
    np.testing.assert_array_equal(predictions(second), predictions(first))
    went_on = train(second, 1)
    assert went_on[0]["epoch"] == 2
    assert went_on[0]["train_loss"] == pytest.approx(records[1]["train_loss"], abs=1e-6)
    np.testing.assert_allclose(weights(second), weights(whole), atol=1e-6)
    rates = [[entry[1] for entry in est.get_train_summary("LearningRate")] for est in (whole, first, second)]
    assert rates[1] + rates[2] == pytest.approx(rates[0])


def test_without_the_optimizers_state_it_would_not(trained: tuple[Any, Path], tmp_path: Path) -> None:
    """The test above can fail: weights alone lead elsewhere."""
    est, _ = trained
    torch.save(est.get_model().state_dict(), tmp_path / "weights")
    alone, whole = with_creators(), with_creators()
    alone.load(tmp_path / "weights")
    whole.load(trained[1])
    assert predictions(alone).tobytes() == predictions(whole).tobytes()
    train(alone, 1), train(whole, 1)
    assert not np.allclose(weights(alone), weights(whole), atol=1e-4)


def test_the_users_model_and_optimizer_are_the_trained_ones(spark: SparkSession) -> None:
    model = linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters())
    est = Estimator.from_torch(model=model, optimizer=optimizer, loss=nn.MSELoss())
    before = model.weight.detach().clone()
    train(est, 1)
    assert est.get_model() is model
    assert not torch.equal(model.weight, before)
    assert optimizer.state[model.weight]["step"] == 3
    state = est.get_state_dict()
    assert state["epoch"] == 1
    assert torch.equal(state["models"][0]["weight"], model.weight)
    assert torch.equal(state["optimizers"][0]["state"][0]["exp_avg"], optimizer.state[model.weight]["exp_avg"])


def test_state_of_an_untrained_model() -> None:
    model = linear()
    state = Estimator.from_torch(model=model).get_state_dict()
    assert (state["epoch"], state["optimizers"]) == (0, [])
    assert torch.equal(state["models"][0]["weight"], model.weight)


@pytest.mark.parametrize("wrap", [lambda state: state, lambda state: {"state_dict": state, "epoch": 3}])
def test_a_state_dict_of_torch_save(tmp_path: Path, wrap: Any) -> None:
    torch.save(wrap(linear(seed=9).state_dict()), tmp_path / "weights.pt")
    model = linear()
    est = Estimator.from_torch(model=model)
    est.load(str(tmp_path / "weights.pt"))
    assert est.get_model() is model
    assert torch.equal(model.weight, linear(seed=9).weight)


def test_overwrite(tmp_path: Path) -> None:
    path = str(tmp_path / "model")
    Estimator.from_torch(model=linear(seed=1)).save(path)
    with pytest.raises(FileExistsError, match="model"):
        Estimator.from_torch(model=linear(seed=2)).save(path, overwrite=False)
    assert torch.equal(load_file(path)["weight"], linear(seed=1).weight)
    Estimator.from_torch(model=linear(seed=2)).save(f"file://{path}")
    assert torch.equal(load_file(path)["weight"], linear(seed=2).weight)


def test_entire_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="pickle"):
        Estimator.from_torch(model=linear()).save(str(tmp_path / "model"), entire=True)
    assert os.listdir(tmp_path) == []


class Trap:
    """Unpickling it leaves a trace."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (self.path, "w")


def test_a_file_that_would_run_code_is_refused(tmp_path: Path) -> None:
    torch.save({"weight": Trap(str(tmp_path / "sprung"))}, tmp_path / "trap")
    with pytest.raises(CheckpointError, match="trap"):
        Estimator.from_torch(model=linear()).load(str(tmp_path / "trap"))
    assert not (tmp_path / "sprung").exists()


def test_files_that_do_not_fit_change_nothing(tmp_path: Path) -> None:
    model = linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
    est = Estimator.from_torch(model=model, optimizer=optimizer)
    (tmp_path / "junk").write_bytes(b"no model at all")
    other = linear(3, 2, seed=7)
    rates = torch.optim.Adam([{"params": [other.weight]}, {"params": [other.bias]}], lr=0.1)
    Estimator.from_torch(model=other, optimizer=rates).save(tmp_path / "other optimizer")
    torch.save({"weight": other.weight, "bias": torch.zeros(5)}, tmp_path / "half fits")
    whole = tmp_path / "whole"
    est.save(whole)
    (tmp_path / "cut").write_bytes(whole.read_bytes()[:-3])
    for name in ("junk", "other optimizer", "half fits", "cut"):
        with pytest.raises(CheckpointError, match=name):
            est.load(str(tmp_path / name))
        assert torch.equal(model.weight, linear(3, 2).weight), name
        assert optimizer.param_groups[0]["lr"] == 0.5
    with pytest.raises(FileNotFoundError):
        est.load(str(tmp_path / "nowhere"))
    creator = Estimator.from_torch(model=lambda config: linear(3, 2))
    with pytest.raises(CheckpointError, match="half fits"):
        creator.load(str(tmp_path / "half fits"))
    assert torch.equal(creator.get_model().weight, linear(3, 2).weight)


def test_shared_and_special_tensors_survive(tmp_path: Path) -> None:
    def tied() -> nn.Module:
        model = nn.ModuleDict({"a": linear(3, 3), "b": linear(3, 3)})
        model["b"].weight = model["a"].weight
        model.register_buffer("count", torch.tensor(7))
        model.register_buffer("small", torch.tensor([1.5, 2.5], dtype=torch.bfloat16))
        model.register_buffer("turned", torch.arange(6).reshape(2, 3).T)
        return model

    first = tied()
    with torch.no_grad():
        first["a"].weight.fill_(4.0)
        first.turned.mul_(2)
    Estimator.from_torch(model=first).save(tmp_path / "model")
    second = tied()
    Estimator.from_torch(model=second).load(tmp_path / "model")
    assert second["b"].weight is second["a"].weight
    for name, value in first.state_dict().items():
        assert torch.equal(second.state_dict()[name], value), name
        assert second.state_dict()[name].dtype == value.dtype


def test_a_model_without_weights(tmp_path: Path) -> None:
    Estimator.from_torch(model=Apply()).save(tmp_path / "nothing")
    Estimator.from_torch(model=Apply()).load(tmp_path / "nothing")
