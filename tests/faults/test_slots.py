"""Too few slots: said with both numbers, in seconds. Enough for two: both train, and neither disturbs the other."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession

from faults.conftest import Faulty, estimator, fit
from firesteel.core.errors import NotEnoughSlots, PlanError


def test_more_replicas_than_slots(rows: DataFrame) -> None:
    begin = time.monotonic()
    status = rows.sparkSession.sparkContext.statusTracker()
    with pytest.raises(NotEnoughSlots, match=r"4 replicas.* 3 tasks") as caught:
        fit(estimator(Faulty(None), workers_per_node=4), rows)
    assert time.monotonic() - begin < 15
    assert (caught.value.asked, caught.value.available) == (4, 3)
    assert len(status.getActiveJobsIds()) == 0


@pytest.fixture
def impatient(spark: SparkSession) -> Iterator[None]:
    spark.conf.set("spark.firesteel.seatTimeoutSeconds", "5")
    yield
    spark.conf.unset("spark.firesteel.seatTimeoutSeconds")


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("taken", "seated"), [(2, 1), (3, 0)])
def test_slots_that_another_job_holds(rows: DataFrame, taken: int, seated: int) -> None:
    """Also when not one replica found a seat; a job that waits for its turn does not look like one that computes."""
    context = rows.sparkSession.sparkContext

    def sleep(numbers):
        time.sleep(60)
        return numbers

    def hold() -> None:
        context.addJobTag("other")
        context.setInterruptOnCancel(True)
        with pytest.raises(Exception, match="cancelled"):
            context.parallelize(range(taken), taken).mapPartitions(sleep).collect()

    from pyspark.util import InheritableThread

    other = InheritableThread(target=hold)
    other.start()
    status = context.statusTracker()
    while not any(status.getStageInfo(stage).numActiveTasks == taken for stage in status.getActiveStageIds()):
        time.sleep(0.1)
    begin = time.monotonic()
    try:
        with pytest.raises(NotEnoughSlots, match=f"{seated} of 2 replicas were seated") as caught:
            fit(estimator(Faulty(None)), rows)
        assert "spark.firesteel.seatTimeoutSeconds" in str(caught.value)
        assert time.monotonic() - begin < 30
    finally:
        context.cancelJobsWithTag("other")
        other.join(10)


def test_a_deadline_that_is_no_number(rows: DataFrame) -> None:
    rows.sparkSession.conf.set("spark.firesteel.heartbeatTimeoutSeconds", "often")
    try:
        with pytest.raises(PlanError, match="heartbeatTimeoutSeconds"):
            fit(estimator(Faulty(None)), rows)
    finally:
        rows.sparkSession.conf.unset("spark.firesteel.heartbeatTimeoutSeconds")


def trained(
    rows: DataFrame, seed: int, model: Faulty | None = None, pool: str | None = None
) -> tuple[np.ndarray, list[float]]:
    if pool is not None:
        rows.sparkSession.sparkContext.setLocalProperty("spark.scheduler.pool", pool)
    model = model or Faulty(None)
    history = fit(estimator(model, seed=seed), rows, epochs=2)
    weights = np.concatenate([parameter.detach().numpy().ravel() for parameter in model.parameters()])
    return weights, [record["train_loss"] for record in history]


def test_two_fits_at_once_learn_what_each_does_alone(rows: DataFrame) -> None:
    """Two replicas each on three slots: had each gang half its seats, neither would ever begin."""
    alone = [trained(rows, seed) for seed in (1, 2)]
    assert not np.allclose(alone[0][1], alone[1][1], rtol=1e-6)
    barrier = threading.Barrier(2)
    models = {seed: Faulty(None) for seed in (1, 2)}  # here, for torch's generator is one for all threads

    def together(seed: int) -> tuple[np.ndarray, list[float]]:
        barrier.wait()
        return trained(rows, seed, models[seed], pool=f"pool {seed}")  # under FAIR scheduling each would have its own

    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(together, (1, 2)))
    for (weights, losses), (other_weights, other_losses) in zip(found, alone, strict=True):
        np.testing.assert_allclose(weights, other_weights, atol=1e-6)
        np.testing.assert_allclose(losses, other_losses, rtol=1e-6)
