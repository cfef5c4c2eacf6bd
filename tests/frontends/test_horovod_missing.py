"""Without Horovod: what to do about it, and nothing else is affected."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from torch import nn

from firesteel import Estimator
from firesteel.cluster.roles import HorovodRanks
from firesteel.core.errors import PlanError

ROOT = Path(__file__).parents[2]


def test_the_recipe_is_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "horovod", None)
    monkeypatch.setitem(sys.modules, "horovod.torch", None)
    with pytest.raises(PlanError) as caught:
        Estimator.from_torch(model=nn.Linear(1, 1), backend="horovod")
    for word in ("0.28.1", "c++17", "scripts/build-horovod"):
        assert word in str(caught.value)
    assert (ROOT / "scripts" / "build-horovod").is_file()
    for backend in ("bigdl", "torch_distributed"):
        Estimator.from_torch(model=nn.Linear(1, 1), backend=backend)


def test_ranks_as_horovod_counts_them() -> None:
    ranks = HorovodRanks(("a", "b", "a"), "driver", 7)
    found = [ranks.environment(rank, "eth0") for rank in range(3)]
    assert [(each["HOROVOD_RANK"], each["HOROVOD_SIZE"]) for each in found] == [("0", "3"), ("1", "3"), ("2", "3")]
    assert [(each["HOROVOD_LOCAL_RANK"], each["HOROVOD_LOCAL_SIZE"]) for each in found] == [
        ("0", "2"),
        ("0", "1"),
        ("1", "2"),
    ]
    assert [(each["HOROVOD_CROSS_RANK"], each["HOROVOD_CROSS_SIZE"]) for each in found] == [
        ("0", "2"),
        ("1", "2"),
        ("0", "1"),
    ]
    assert found[0]["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "driver"
    assert found[0]["HOROVOD_CONTROLLER"] == found[0]["HOROVOD_CPU_OPERATIONS"] == "gloo"
    assert "HOROVOD_GLOO_IFACE" not in ranks.environment(0, None)
