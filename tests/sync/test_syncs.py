"""Whatever the sync, the optimizer and the model: two replicas with parts of a batch learn what one learns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from firesteel.core import registry
from firesteel.core.plan import Clipping
from firesteel.learn import optimizers
from firesteel.learn.optimizers import schedule
from firesteel.sync import make_sync
from firesteel.sync.solo import SoloGroup
from sync.gang import Gang

SYNCS = ("all-reduce", "sharded", "native")
# Rows of each step, and how many of them rank 0 has: uneven, nothing on one rank, nothing on the other.
STEPS = ((8, 5), (7, 7), (6, 0), (8, 1), (3, 2))


def batches() -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(1)
    found = []
    for rows, _ in STEPS:
        x = random.standard_normal((rows, 3)).astype(np.float32)
        found.append({"x0": x, "y0": (x @ [1.0, -2.0, 0.5] + 0.3).astype(np.float32)})
    return found


def learn(
    group: Any, sync_name: str, make: Callable[[], tuple[nn.Module, Any, dict[str, Any]]], extra: Any = None
) -> Any:
    """A short life of one replica: state dict, losses summed by rows, and the optimizer's merged state."""
    torch.manual_seed(group.rank)  # creators that ignore seeds: ranks start from different weights
    model, optimizer, parts = make()
    parts = {"loss": nn.MSELoss(), **parts}
    framework: Any = registry.framework("torch")
    replica = framework.replica(framework.capture(model, optimizer=optimizer, **parts), "cpu", 1)
    replica.start(None)
    sync = make_sync(sync_name)
    sync.join(replica, group)
    losses, rates, mine_since = [], [], 0
    for batch, (rows, first) in zip(batches(), STEPS, strict=True):
        begin, end = (0, rows) if group.size == 1 else (0, first) if group.rank == 0 else (first, rows)
        part = {name: values[begin:end] for name, values in batch.items()} | (extra(begin, end) if extra else {})
        rates.append(replica.learning_rate)
        loss = replica.backward(part, (end - begin) / rows)
        assert (loss is None) == (begin == end)
        sync.commit(replica)
        replica.schedule("batch")
        losses.append((loss or 0.0) * (end - begin) / rows)
        mine_since += end - begin
    sync.settle(replica, mine_since)
    state = framework.unpack_tree(sync.state(replica)["optimizer"])
    return {k: v.clone() for k, v in replica.model.state_dict().items()}, losses, state, rates


def check(gang: Gang, sync: str, make: Any, extra: Any = None, tolerance: float = 1e-5) -> Any:
    alone, losses, state, rates = learn(SoloGroup(), sync, make, extra)
    torch.manual_seed(0)
    before = make()[0].state_dict()
    ranks = gang.run(learn, sync, make, extra)
    assert any(not torch.allclose(alone[name], before[name], atol=1e-4) for name in alone), "nothing was learnt"
    for found, _, merged, found_rates in ranks:
        assert found_rates == rates
        for name, values in alone.items():
            np.testing.assert_allclose(found[name], values, atol=tolerance, rtol=tolerance, err_msg=name)
        _same_state(merged["optimizer"], state["optimizer"], tolerance)
    np.testing.assert_allclose(
        np.add(ranks[0][1], ranks[1][1]), losses, atol=max(1e-5, tolerance), rtol=max(1e-5, tolerance)
    )
    return alone


def _same_state(found: dict[str, Any], wanted: dict[str, Any], tolerance: float) -> None:
    assert found["state"].keys() == wanted["state"].keys()
    for number, values in wanted["state"].items():
        for key, value in values.items():
            if isinstance(value, torch.Tensor):
                assert found["state"][number][key].shape == value.shape
                torch.testing.assert_close(found["state"][number][key], value, atol=tolerance, rtol=tolerance)


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))


def with_adam(model: nn.Module, **parts: Any) -> Any:
    return model, torch.optim.Adam(model.parameters(), 0.05), parts


@pytest.mark.parametrize("sync", SYNCS)
def test_adam(gang: Gang, sync: str) -> None:
    check(gang, sync, lambda: with_adam(small()))


OWN = {
    "SGD": optimizers.SGD(0.1, momentum=0.9, weightdecay=0.01),
    "SGD decayed": optimizers.SGD(0.1, learningrate_decay=0.5),
    "SGD with factors": optimizers.SGD(0.1, learningrates=np.linspace(0.1, 2, 26).tolist()),
    "SGD Poly": optimizers.SGD(0.1, learningrate_schedule=schedule.Poly(0.5, 10)),
    "Adam warm": optimizers.Adam(0.05, learningrate_schedule=schedule.Warmup(0.01)),
    "ParallelAdam": optimizers.ParallelAdam(0.05),
    "Adagrad": optimizers.Adagrad(0.1),
    "Adadelta": optimizers.Adadelta(epsilon=1e-3),
    "Adamax": optimizers.Adamax(0.05),
    "RMSprop": optimizers.RMSprop(0.02),
    "Ftrl": optimizers.Ftrl(0.3),
    "LBFGS": optimizers.LBFGS(max_iter=3, learningrate=0.2),
}


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("sync", ["sharded", "native"])
def test_our_own_optimizers(gang: Gang, sync: str, name: str) -> None:
    method = OWN[name]
    check(gang, sync, lambda: (small(), method, {}), tolerance=2e-4 if name == "LBFGS" else 1e-5)


@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("clipping", [Clipping.l2_norm(0.1), Clipping.constant(-0.01, 0.02)])
def test_gradients_are_clipped_after_they_were_summed(gang: Gang, sync: str, clipping: Clipping) -> None:
    check(gang, sync, lambda: (small(), optimizers.SGD(0.5), {"clipping": clipping}))


class Odd(nn.Module):
    """Tied weights, a frozen parameter, one that gets no gradient, one without dimensions, two dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.frozen = nn.Parameter(torch.randn(3), requires_grad=False)
        self.unused = nn.Parameter(torch.randn(4))
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.wide = nn.Parameter(torch.randn(3, dtype=torch.float64))
        self.register_buffer("counter", torch.arange(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.second(torch.tanh(self.first(x * self.frozen))) * self.scale
        return (h.double() @ self.wide).float()


@pytest.mark.parametrize("sync", SYNCS)
def test_odd_parameters(gang: Gang, sync: str) -> None:
    def make() -> Any:
        model = Odd()
        left_out = [p for name, p in model.named_parameters() if name != "second.bias"]
        groups = [{"params": left_out[:1]}, {"params": left_out[1:], "lr": 0.02, "weight_decay": 0.1}]
        return model, torch.optim.AdamW(groups, 0.05), {}

    found = check(gang, sync, make)
    torch.manual_seed(0)
    before = Odd().state_dict()
    for name in ("frozen", "unused", "second.bias", "counter"):
        torch.testing.assert_close(found[name], before[name], msg=f"{name} moved, for all that nothing should move it")


@pytest.mark.parametrize("sync", SYNCS)
def test_a_summing_loss_sums_over_replicas(gang: Gang, sync: str) -> None:
    check(gang, sync, lambda: (small(), optimizers.SGD(0.01), {"loss": nn.MSELoss(reduction="sum")}))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_row_weights(gang: Gang, reduction: str) -> None:
    def extra(begin: int, end: int) -> dict[str, np.ndarray]:
        return {"w": np.arange(begin, end, dtype=np.float32) % 3}

    check(gang, "native", lambda: (small(), optimizers.SGD(0.01), {"loss": nn.MSELoss(reduction=reduction)}), extra)


@pytest.mark.parametrize("sync", SYNCS)
def test_a_double_model(gang: Gang, sync: str) -> None:
    found = check(gang, sync, lambda: with_adam(small().double()), tolerance=1e-12)
    assert all(values.dtype == torch.float64 for values in found.values())


@pytest.mark.parametrize("sync", SYNCS)
def test_synced_batch_norm_sees_the_whole_step(gang: Gang, sync: str) -> None:
    def make() -> Any:
        layers = [nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2), nn.BatchNorm1d(2, affine=False)]
        # Not Adam: a bias before a batch-norm has no gradient but noise, which Adam blows up to full steps.
        return nn.Sequential(*layers, nn.Linear(2, 1)), optimizers.SGD(0.1), {"sync_batchnorm": True}

    check(gang, sync, make, tolerance=1e-4)


def test_buffers_are_averaged_by_rows(gang: Gang) -> None:
    def work(group: Any) -> tuple[list[float], int]:
        framework: Any = registry.framework("torch")
        model = nn.Sequential(nn.BatchNorm1d(1, momentum=1.0), nn.Linear(1, 1))
        program = framework.capture(model, optimizer=torch.optim.SGD(model.parameters(), 0.0), loss=nn.MSELoss())
        replica = framework.replica(program, "cpu", 1)
        replica.start(None)
        sync = make_sync("sharded")
        sync.join(replica, group)
        rows = 2 if group.rank == 0 else 6
        value = 1.0 if group.rank == 0 else 5.0
        replica.backward({"x0": np.full((rows, 1), value, np.float32), "y0": np.zeros(rows, np.float32)}, rows / 8)
        sync.commit(replica)
        sync.settle(replica, rows)
        sync.settle(replica, 0)  # nothing since: stays
        return model[0].running_mean.tolist(), int(model[0].num_batches_tracked)

    assert gang.run(work) == [([4.0], 1)] * 2


def test_averaging_is_exact_for_plain_descent_and_learns_with_adam(gang: Gang) -> None:
    plain = lambda: (small(), optimizers.SGD(0.1), {})  # noqa: E731
    alone, *_ = learn(SoloGroup(), "all-reduce", plain)
    for found, *_ in gang.run(learn, "averaging", plain):
        for name, values in alone.items():
            torch.testing.assert_close(found[name], values, atol=1e-5, rtol=1e-5)
    (first, *_), (second, *_) = gang.run(learn, "averaging", lambda: with_adam(small()))
    for name, values in first.items():
        torch.testing.assert_close(second[name], values, atol=0, rtol=0)
