"""Data that replicas make for themselves: creators and loaders of every sort."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, TensorDataset

from firesteel import Estimator
from firesteel.core.errors import PlanError, ReplicaFailed
from firesteel.learn.optimizers import SGD
from firesteel.learn.pytorch.callbacks import Callback, Runner

pytestmark = pytest.mark.usefixtures("spark")
X = (np.arange(22, dtype=np.float32) / 10)[:, None]
Y = 3 * X[:, 0] + 1


class Rows(Callback):
    """Each replica appends the rows it saw, step by step."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def after_train_iter(self, runner: Runner) -> None:
        rows = [round(10 * float(value)) for value in runner.batch[0][:, 0]]
        with open(f"{self.folder}/{runner.global_step}-{runner.rank}", "w") as file:
            file.write(" ".join(map(str, rows)))


def flat(parts: list[list[Any]]) -> list[Any]:
    return [item for part in parts for item in part]


def seen(folder: Path, steps: int, replicas: int = 2) -> list[list[list[int]]]:
    return [
        [[int(n) for n in (folder / f"{step}-{rank}").read_text().split()] for rank in range(replicas)]
        for step in range(1, steps + 1)
    ]


def estimator(**options: Any) -> Any:
    torch.manual_seed(3)
    options = {"optimizer": SGD(0.05), "loss": nn.MSELoss(), "seed": 5, "workers_per_node": 2, **options}
    return Estimator.from_torch(model=nn.Linear(1, 1), **options)


def by_hand(batch_size: int, epochs: int = 2) -> float:
    torch.manual_seed(3)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(epochs):
        for begin in range(0, len(X), batch_size):
            optimizer.zero_grad()
            x, y = torch.from_numpy(X[begin : begin + batch_size]), torch.from_numpy(Y[begin : begin + batch_size])
            nn.functional.mse_loss(model(x)[:, 0], y).backward()
            optimizer.step()
    return float(model.weight.item())


class Items(Dataset):
    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> Any:
        return X[index], Y[index]


class Endless(IterableDataset):
    def __iter__(self) -> Any:
        number = 0
        while True:
            yield X[number % 22], Y[number % 22]
            number += 1


def test_creators_of_every_sort_give_the_rows_in_their_order(tmp_path: Path) -> None:
    def creator(config: dict[str, Any], batch_size: int) -> Any:
        assert batch_size == 5
        assert config == {"kind": config["kind"], "more": 2, "from": "est"}
        tensors = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
        makers = {
            "loader": lambda: DataLoader(tensors, batch_size=batch_size),
            "dataset": lambda: Items(),
            "arrays": lambda: (X, Y),
            "iterable": lambda: [{"x": X[i : i + 5], "y": Y[i : i + 5]} for i in range(0, 22, 5)],
        }
        return makers[config["kind"]]()

    wanted = by_hand(5)
    for kind in ("loader", "dataset", "arrays", "iterable"):
        folder = tmp_path / kind
        folder.mkdir()
        est = estimator(config={"from": "est", "kind": "none"})
        history = est.fit(
            creator, epochs=2, batch_size=5, data_config={"kind": kind, "more": 2}, callbacks=[Rows(folder)], verbose=0
        )
        assert [(r["batch_count"], r["num_samples"]) for r in history] == [(5, 22), (5, 22)], kind
        assert est.get_model().weight.item() == pytest.approx(wanted, rel=1e-4), kind
        for number, (first, second) in enumerate(seen(folder, 10)):
            begin = 5 * (number % 5)
            assert first + second == list(range(begin, min(begin + 5, 22))), kind
            assert abs(len(first) - len(second)) <= 1, kind


class TemporaryFiles(Callback):
    """Each replica writes down where its temporary files lie, and which there are."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def after_train_iter(self, runner: Runner) -> None:
        place = tempfile.gettempdir()
        with open(f"{self.folder}/{runner.rank}", "a") as file:
            file.write("".join(f"{place}/{name}\n" for name in os.listdir(place)))


def test_a_loaders_own_processes_leave_no_files(tmp_path: Path) -> None:
    def creator(config: dict[str, Any], batch_size: int) -> Any:
        return DataLoader(Items(), batch_size=batch_size, num_workers=1)

    estimator().fit(creator, epochs=1, batch_size=4, callbacks=[TemporaryFiles(tmp_path)], verbose=0)
    for rank in range(2):
        places = (tmp_path / str(rank)).read_text().splitlines()
        assert any("/pymp-" in place for place in places)
        assert not any(map(os.path.exists, places))


def test_loaders(tmp_path: Path) -> None:
    tensors = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    est = estimator()
    history = est.fit(DataLoader(tensors, batch_size=4), epochs=2, verbose=0)
    assert [record["batch_count"] for record in history] == [6, 6]
    assert est.get_model().weight.item() == pytest.approx(by_hand(4), rel=1e-4)
    with pytest.raises(PlanError, match="global batches"):
        est.fit(DataLoader(tensors, batch_size=4), batch_size=8)

    # Shuffled: the same order on all replicas, another one in the next epoch, the same for the same seed.
    orders = []
    for run in range(2):
        folder = tmp_path / f"shuffled{run}"
        folder.mkdir()
        estimator().fit(DataLoader(tensors, batch_size=4, shuffle=True), epochs=2, callbacks=[Rows(folder)], verbose=0)
        orders.append([flat(step) for step in seen(folder, 12)])
    epochs = [flat(orders[0][:6]), flat(orders[0][6:])]
    assert [sorted(epoch) for epoch in epochs] == [list(range(22))] * 2
    assert epochs[0] != epochs[1]
    assert epochs[0] != list(range(22))
    assert orders[0] == orders[1]

    # With a sampler that shards: each replica has its rows, though the loader was made where nobody has a rank.
    folder = tmp_path / "sharded"
    folder.mkdir()
    sampler = DistributedSampler(tensors, num_replicas=1, rank=0, shuffle=False)
    history = estimator().fit(DataLoader(tensors, batch_size=4, sampler=sampler), callbacks=[Rows(folder)], verbose=0)
    assert [(r["batch_count"], r["num_samples"]) for r in history] == [(3, 22)]
    assert seen(folder, 3)[0] == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_creators_that_shard_for_themselves(tmp_path: Path) -> None:
    def creator(config: dict[str, Any], batch_size: int) -> Any:
        assert config["num_shards"] == 2
        assert batch_size == [3, 2][config["rank"]]
        if config["rank"] == 1:
            return [(X[:2], Y[:2])]
        return [(X[i : i + 3], Y[i : i + 3]) for i in range(2, 22, 3)]

    history = estimator().fit(creator, epochs=2, batch_size=5, auto_shard=False, callbacks=[Rows(tmp_path)], verbose=0)
    assert [(r["batch_count"], r["num_samples"]) for r in history] == [(7, 22), (7, 22)]
    steps = seen(tmp_path, 14)
    assert steps[0] == steps[7] == [[2, 3, 4], [0, 1]]
    assert steps[1] == [[5, 6, 7], []]  # joined with nothing
    assert sum(len(flat(step)) for step in steps) == 44

    def one_sided(config: dict[str, Any], batch_size: int) -> Any:
        return [(X[:3], Y[:3])] if config["rank"] == 0 else []

    history = estimator().fit(one_sided, epochs=2, batch_size=5, auto_shard=False, verbose=0)
    assert [(r["batch_count"], r["num_samples"]) for r in history] == [(1, 3), (1, 3)]


def test_endless_data_and_validation_creators(tmp_path: Path) -> None:
    def creator(config: dict[str, Any], batch_size: int) -> Any:
        return DataLoader(Endless(), batch_size=batch_size)

    def held_out(config: dict[str, Any], batch_size: int) -> Any:
        return DataLoader(Items(), batch_size=batch_size)

    est = estimator()
    options = {"batch_size": 4, "steps_per_epoch": 3, "callbacks": [Rows(tmp_path)], "verbose": 0}
    history = est.fit(creator, epochs=2, validation_data=held_out, validation_steps=2, **options)
    assert [(r["batch_count"], r["val_num_samples"]) for r in history] == [(3, 8), (3, 8)]
    (record,) = est.fit(creator, validation_data=DataLoader(Items(), batch_size=6), **options)
    assert (record["epoch"], record["val_num_samples"]) == (3, 22)
    rows = [row for step in seen(tmp_path, 9) for row in flat(step)]
    assert rows == [number % 22 for number in range(36)]  # a second fit goes on where the first stopped, too


def test_random_creators_draw_the_same_everywhere_and_errors_come_home() -> None:
    def creator(config: dict[str, Any], batch_size: int) -> Any:
        x = torch.randn(6, 1)
        noise = np.random.random(6).astype(np.float32)
        return x, x[:, 0] + torch.from_numpy(noise)

    def twice(replicas: int) -> Any:
        est = estimator(workers_per_node=replicas)
        est.fit(creator, epochs=2, batch_size=3, verbose=0)
        return est.get_model().weight.item()

    assert twice(2) == pytest.approx(twice(1), rel=1e-5)

    def broken(config: dict[str, Any], batch_size: int) -> Any:
        raise FileNotFoundError("no such data")

    with pytest.raises(ReplicaFailed, match="no such data") as caught:
        estimator().fit(broken, batch_size=3, verbose=0)
    assert isinstance(caught.value.__cause__, FileNotFoundError)
