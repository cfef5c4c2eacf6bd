"""``backend="horovod"``: the same numbers through Horovod's collectives, and nothing left when a rank fails."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from pyspark.sql import DataFrame, SparkSession
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from needs import need_horovod
from processes import below

hvd = need_horovod()

from firesteel import Estimator  # noqa: E402
from firesteel.core.errors import PlanError, ReplicaFailed  # noqa: E402
from firesteel.learn.pytorch.callbacks import Callback  # noqa: E402

RANDOM = np.random.default_rng(0)
X = RANDOM.random((27, 4), dtype=np.float32)
Y = (X @ np.array([[1.0], [-2.0], [0.5], [3.0]], np.float32))[:, 0]
COLUMNS = {"feature_cols": "x", "label_cols": "y"}


def model_creator(config: dict[str, Any]) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.BatchNorm1d(6), nn.Linear(6, 1), nn.Flatten(0))


def plain_creator(config: dict[str, Any]) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1), nn.Flatten(0))


def loader(config: dict[str, Any], batch_size: int) -> DataLoader:
    """All rows on every rank, so that each has some of every step; the last step has three."""
    return DataLoader(TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)), batch_size=batch_size)


def optimizer_creator(model: nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=config["lr"])


def estimator(backend: str = "horovod", workers: int = 2, **parts: Any) -> Any:
    options = {"model": plain_creator, "optimizer": optimizer_creator, "loss": nn.MSELoss(), **parts}
    return Estimator.from_torch(config={"lr": 1e-2}, backend=backend, workers_per_node=workers, seed=3, **options)


def weights(est: Any) -> np.ndarray:
    return torch.nn.utils.parameters_to_vector(est.get_model().parameters()).detach().numpy()


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> DataFrame:
    """Three partitions, one of them empty."""
    rows = [(i, x.tolist(), float(y)) for i, (x, y) in enumerate(zip(X, Y, strict=True))]
    df = spark.createDataFrame(rows, "id int, x array<float>, y float")
    return df.repartitionByRange(3, (df.id > 4).cast("int")).cache()


class Witness(Callback):
    """Leaves who this rank is, and its weights, beside the driver."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def before_run(self, runner: Any) -> None:
        import horovod.torch as hvd

        hvd.init()  # once more
        assert (hvd.rank(), hvd.size()) == (runner.rank, runner.num_workers)
        name = f"{self._folder}/who-{hvd.rank()}-{hvd.size()}"
        runner.ship(name, str(runner.config.get("seen")).encode())

    def after_run(self, runner: Any) -> None:
        data = torch.nn.utils.parameters_to_vector(runner.model.parameters()).detach().numpy().tobytes()
        runner.ship(f"{self._folder}/weights-{runner.rank}", data)


def test_the_same_as_other_backends_and_as_one(frame: DataFrame, tmp_path: Path) -> None:
    found = {}
    for backend, workers in (("bigdl", 1), ("torch_distributed", 2), ("horovod", 2)):
        # Batch-norm's rows differ between replicas, unless it sees them all.
        est = estimator(backend, workers, model=model_creator, sync_batchnorm=True)
        callbacks = [Witness(str(tmp_path))] if backend == "horovod" else None
        history = est.fit(frame, epochs=2, batch_size=8, callbacks=callbacks, verbose=0, **COLUMNS)
        assert [(record["batch_count"], record["num_samples"]) for record in history] == [(4, 27)] * 2
        found[backend] = weights(est)
    np.testing.assert_allclose(found["horovod"], found["torch_distributed"], atol=1e-6)
    np.testing.assert_allclose(found["horovod"], found["bigdl"], atol=1e-5)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["weights-0", "weights-1", "who-0-2", "who-1-2"]
    assert (tmp_path / "weights-0").read_bytes() == (tmp_path / "weights-1").read_bytes()


def test_creators_know_their_rank(frame: DataFrame, tmp_path: Path) -> None:
    def create(config: dict[str, Any]) -> nn.Module:
        model = plain_creator(config)
        model.who = (hvd.rank(), hvd.size())  # on the driver, which looks at the model too, it is alone
        return model

    class Tell(Callback):
        def before_run(self, runner: Any) -> None:
            runner.ship(f"{tmp_path}/{runner.rank}", repr(runner.model.who).encode())

    est = estimator(model=create)
    est.fit(loader, epochs=1, batch_size=8, callbacks=[Tell()], verbose=0)
    assert {path.read_text() for path in tmp_path.iterdir()} == {"(0, 2)", "(1, 2)"}
    scored = est.predict(frame, feature_cols="x").collect()  # in Spark's own Python workers
    with torch.no_grad():
        expected = est.get_model().eval()(torch.from_numpy(X)).numpy()
    np.testing.assert_allclose([row["prediction"] for row in sorted(scored)], expected, atol=1e-6)


def gang() -> list[psutil.Process]:
    return below("firesteel.cluster.child")


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "firesteel-rendezvous"]


def test_a_rank_that_raises(frame: DataFrame) -> None:
    class Failing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.calls = nn.Linear(4, 1), 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            if hvd.is_initialized() and hvd.rank() == 1 and self.calls == 2:
                raise RuntimeError("boom")
            return self.layer(x)[:, 0]

    began = time.monotonic()
    with pytest.raises(ReplicaFailed, match="boom") as caught:
        estimator(model=lambda config: Failing()).fit(loader, epochs=1, batch_size=8, verbose=0)
    assert (caught.value.rank, caught.value.step) == (1, 2)
    assert time.monotonic() - began < 40
    assert (gang(), threads()) == ([], [])
    est = estimator()
    assert len(est.fit(frame, epochs=1, batch_size=8, verbose=0, **COLUMNS)) == 1
    assert (gang(), threads()) == ([], [])


def test_two_fits_at_the_same_time() -> None:
    found: list[Any] = []

    def train() -> None:
        est = estimator(workers=1)
        est.fit((X, Y), epochs=2, batch_size=8, shuffle=False, verbose=0)
        found.append(weights(est))

    both = [threading.Thread(target=train) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join(200)
    np.testing.assert_array_equal(*found)


def test_files_are_those_of_other_backends(tmp_path: Path) -> None:
    def run(backend: str, path: str | None = None) -> Any:
        est = estimator(backend)
        if path is not None:
            est.load(path)
        est.fit((X, Y), epochs=1, batch_size=8, shuffle=False, verbose=0)
        return est

    written = {name: run(name).save(str(tmp_path / name)) for name in ("horovod", "bigdl")}
    crossed = [weights(run("bigdl", written["horovod"])), weights(run("horovod", written["bigdl"]))]
    np.testing.assert_allclose(*crossed, atol=1e-5)


def test_a_wrapped_optimizer_is_refused(frame: DataFrame) -> None:
    def wrapped(model: nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
        import horovod.torch as hvd

        return hvd.DistributedOptimizer(optimizer_creator(model, config), model.named_parameters())

    with pytest.raises(PlanError, match="plain torch optimizer"):
        estimator(optimizer=wrapped).fit(frame, epochs=1, verbose=0, **COLUMNS)
    with pytest.raises(PlanError, match="torch_distributed"):
        estimator(sync="native")
