"""Executors that come and go, and tasks that Spark starts twice: neither disturbs a training."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from faults.conftest import Cluster, Standalone

CONF = {
    "spark.pyspark.python": sys.executable,
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.maxExecutors": "2",
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.task.duration.threshold": "1s",
}


@pytest.fixture(scope="module")
def elastic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A standalone cluster of two hosts, as Spark sees it: a duplicate is only ever started on another host."""
    standalone = Standalone(tmp_path_factory.mktemp("standalone"))
    found = Cluster(tmp_path_factory.mktemp("elastic"), **{"spark.master": standalone.master}, **CONF)
    yield found
    found.close()
    standalone.close()


def test_duplicates_wait_and_change_nothing(elastic: Cluster, undisturbed: dict[str, Any]) -> None:
    found = elastic.train({"kind": "delay", "rank": 1, "moment": "step", "step": 20, "seconds": 4.0})
    assert (found["error"], found["recoveries"], found["left"]) == (None, [], {})
    assert len(found["struck"]) == 1
    assert found["duplicates"] > 0
    assert found["rows"] == undisturbed["rows"]
    assert found["weights"] == undisturbed["weights"]


def test_a_loss_among_executors_that_come_and_go(elastic: Cluster, undisturbed: dict[str, Any]) -> None:
    found = elastic.train({"kind": "kill executor", "rank": 1, "moment": "step", "step": 20})
    assert (found["error"], found["left"]) == (None, {})
    assert len(found["struck"]) == 1
    assert 1 in found["recoveries"][0]["ranks"]
    assert found["rows"] == undisturbed["rows"]
    assert found["weights"] == undisturbed["weights"]
