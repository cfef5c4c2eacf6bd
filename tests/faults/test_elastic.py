"""Executors that come and go, and tasks that Spark starts twice: neither disturbs a training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from faults.conftest import Cluster

CONF = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.maxExecutors": "2",
    "spark.dynamicAllocation.executorIdleTimeout": "3s",
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.task.duration.threshold": "1s",
}


@pytest.fixture(scope="module")
def elastic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two cores per executor, so that there is room for a task's duplicate."""
    found = Cluster(tmp_path_factory.mktemp("elastic"), cores=2, **CONF)
    yield found
    found.close()


def test_duplicates_wait_and_change_nothing(elastic: Cluster, undisturbed: dict[str, Any]) -> None:
    found = elastic.train({"kind": "delay", "rank": 1, "moment": "step", "step": 20, "seconds": 4.0})
    assert (found["error"], found["recoveries"], found["left"]) == (None, [], {})
    assert found["duplicates"] > 0
    assert found["rows"] == undisturbed["rows"]
    assert found["weights"] == undisturbed["weights"]


def test_a_loss_among_executors_that_come_and_go(elastic: Cluster, undisturbed: dict[str, Any]) -> None:
    found = elastic.train({"kind": "kill executor", "rank": 1, "moment": "step", "step": 20})
    assert (found["error"], found["left"]) == (None, {})
    assert len(found["recoveries"]) == 1
    assert found["rows"] == undisturbed["rows"]
    assert found["weights"] == undisturbed["weights"]
