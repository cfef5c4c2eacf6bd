"""What a user's program needs travels with it; what cannot travel is named."""

from __future__ import annotations

import functools
import importlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from firesteel import Estimator
from firesteel.cluster.travel import pack, unpack
from firesteel.core.errors import PlanError

LOCK = threading.Lock()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def closure() -> Callable[..., Any]:
    guard = threading.Lock()
    return lambda config: guard


def nested_global() -> Callable[..., Any]:
    def creator(config: object) -> object:
        return [LOCK for _ in range(1)]  # a code object of its own before Python 3.12

    return creator


def attribute() -> nn.Module:
    net = Net()
    net.layer.guard = threading.Lock()
    return net


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (closure(), "closure variable 'guard'"),
        (nested_global(), "global variable 'LOCK'"),
        (attribute(), "attribute 'guard'"),
        ({"limits": {"guard": threading.Lock()}}, "['guard']"),
        ([1, threading.Lock()], "[1]"),
        (functools.partial(print, end=threading.Lock()), "its keywords, ['end']"),
        (functools.partial(closure()), "closure variable 'guard'"),
        (threading.Condition().wait, "its object"),
    ],
    ids=["closure", "global", "attribute of a layer", "dict", "list", "partial", "partial of a closure", "method"],
)
def test_what_cannot_travel_is_named(value: object, named: str) -> None:
    with pytest.raises(PlanError) as caught:
        pack(value, "the program")
    assert named in str(caught.value)
    assert "lock" in str(caught.value).lower()
    assert "firesteel" not in str(caught.value)


def test_deep_inside_and_in_circles() -> None:
    circle: dict[str, Any] = {}
    circle["self"] = circle
    at = circle
    for _ in range(15):
        at["in"] = {"up": circle}
        at = at["in"]
    at["guard"] = threading.Lock()
    with pytest.raises(PlanError, match="guard"):
        pack(circle, "the program")


def test_the_estimator_says_so_before_a_job(spark) -> None:
    net = Net()
    net.guard = threading.Lock()
    estimator = Estimator.from_torch(model=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1), loss=nn.MSELoss())
    jobs = spark.sparkContext.statusTracker()
    df = spark.createDataFrame([([1.0], 1.0)], "x array<double>, y double")
    before = jobs.getJobIdsForGroup(None)
    with pytest.raises(PlanError, match="attribute 'guard'"):
        estimator.fit(df, feature_cols="x", label_cols="y", verbose=0)
    assert jobs.getJobIdsForGroup(None) == before


# --- modules that only the driver has ---


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Makes an importable module beside nobody else's files."""

    def make(text: str) -> ModuleType:
        (tmp_path / "only_on_the_driver.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "only_on_the_driver", raising=False)
        return importlib.import_module("only_on_the_driver")

    return make


def elsewhere(data: bytes, expression: str, path: Path, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Unpack in a process that does not have the module, unless ``path`` leads to it."""
    (tmp_path / "data").write_bytes(data)
    text = (
        "import sys; from firesteel.cluster.travel import unpack; "
        f"value = unpack(open({str(tmp_path / 'data')!r}, 'rb').read()); print({expression})"
    )
    environment = {**os.environ, "PYTHONPATH": str(path)}
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, env=environment, check=False)


def test_a_class_of_the_users_own_module_travels_whole(module, tmp_path: Path) -> None:
    found = module(
        """
FACTOR = 7
def scale(x):
    return FACTOR * x
class Net:
    def run(self):
        return scale(6)
"""
    )
    done = elsewhere(pack(found.Net(), "it"), "value.run()", Path("/nowhere"), tmp_path)
    assert done.stdout == "42\n", done.stderr


def test_a_module_that_cannot_travel_whole_goes_by_name(module, tmp_path: Path) -> None:
    """A lock among a module's globals is no reason to refuse a class that uses it: where the module is, it is fine."""
    found = module(
        """
import threading
LOCK = threading.Lock()
class Net:
    def run(self):
        with LOCK:
            return 42
"""
    )
    data = pack(found.Net(), "it")
    assert elsewhere(data, "value.run()", tmp_path, tmp_path).stdout == "42\n"
    assert "only_on_the_driver" in elsewhere(data, "value.run()", Path("/nowhere"), tmp_path).stderr


def test_installed_packages_go_by_name() -> None:
    assert len(pack(nn.Linear, "it")) < 200


def test_nothing_stays_registered() -> None:
    import cloudpickle

    before = cloudpickle.list_registry_pickle_by_value()
    pack(Net(), "it")
    with pytest.raises(PlanError):
        pack(threading.Lock(), "it")
    assert cloudpickle.list_registry_pickle_by_value() == before


def test_round_trip() -> None:
    net = unpack(pack(Net(), "it"))
    assert net(torch.ones(2, 1)).shape == (2, 1)
