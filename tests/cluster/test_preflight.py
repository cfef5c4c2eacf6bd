"""What is known before anything starts: slots, addresses, versions."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from firesteel.cluster import preflight
from firesteel.core.errors import ClusterError, NotEnoughSlots


def session(master: str, concurrent: int = 0, **conf: str) -> Any:
    """A Spark session as far as preflight looks at one. ``concurrent`` is what Spark's scheduler says."""
    settings = {key.replace("_", "."): value for key, value in conf.items()}
    scala = SimpleNamespace(
        maxNumConcurrentTasks=lambda profile: concurrent,
        resourceProfileManager=lambda: SimpleNamespace(resourceProfileFromId=lambda number: "default"),
        getExecutorMemoryStatus=lambda: SimpleNamespace(size=lambda: 3),
    )
    context = SimpleNamespace(
        master=master,
        _conf=SimpleNamespace(get=lambda key, default=None: settings.get(key, default)),
        _jsc=SimpleNamespace(sc=lambda: scala),
    )
    return SimpleNamespace(sparkContext=context)


def test_slots_of_a_real_session(spark) -> None:
    assert preflight.slots(spark) == 3
    assert preflight.nodes(spark) == 1
    assert preflight.cores_per_task(spark) == 1
    assert preflight.driver_address(spark) == preflight.bind_address(spark) == "127.0.0.1"


def test_more_replicas_than_slots(spark) -> None:
    assert preflight.check_slots(spark, 3) == 3
    with pytest.raises(NotEnoughSlots) as caught:
        preflight.check_slots(spark, 4)
    assert (caught.value.asked, caught.value.available) == (4, 3)


@pytest.mark.parametrize(
    ("found", "slots"),
    [
        (session("local-cluster[2,1,1024]"), 2),
        (session("local-cluster[ 2 , 4 , 1024 ]", spark_task_cpus="2"), 4),
        (session("spark://m:7077", concurrent=6), 6),
        # Executors that were ordered and have not come yet: their ranks wait for a seat, not for a second try.
        (session("yarn", concurrent=1, spark_executor_instances="3", spark_executor_cores="2"), 6),
        (session("yarn", concurrent=1, spark_executor_instances="3", spark_executor_cores="4", spark_task_cpus="2"), 6),
        (session("local[4]", concurrent=2, spark_task_cpus="2"), 2),
    ],
)
def test_slots_by_master(found: Any, slots: int) -> None:
    assert preflight.slots(found) == slots


def test_dynamic_allocation_may_grow() -> None:
    spark = session("yarn", concurrent=1, spark_dynamicAllocation_enabled="true")
    assert preflight.check_slots(spark, 4) == 4


def test_nodes() -> None:
    assert preflight.nodes(session("local[*]")) == 1
    assert preflight.nodes(session("local-cluster[2,1,1024]")) == 2
    assert preflight.nodes(session("spark://m:7077")) == 2  # three block managers, one of them the driver's
    assert preflight.nodes(session("yarn", spark_executor_instances="5")) == 5


def test_addresses() -> None:
    spark = session("spark://m:7077", spark_driver_host="driver.example")
    assert preflight.driver_address(spark) == preflight.bind_address(spark) == "driver.example"
    behind = session("k8s://m", spark_driver_host="driver.example", spark_driver_bindAddress="10.1.2.3")
    assert (preflight.driver_address(behind), preflight.bind_address(behind)) == ("driver.example", "10.1.2.3")


def test_versions() -> None:
    found = preflight.package_versions(["torch", "no-such-package"])
    assert found["python"] == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert found["torch"][0].isdigit()
    assert found["no-such-package"] == "none"


class Remote:
    """A Spark Connect session as far as preflight looks at one."""

    __module__ = "pyspark.sql.connect.session"

    def __init__(self, **conf: str) -> None:
        settings = {key.replace("_", "."): value for key, value in conf.items()}
        self.conf = SimpleNamespace(get=lambda key, default=None: settings.get(key, default))


def test_a_connect_session_has_no_context() -> None:
    remote: Any = Remote(spark_master="local[2]")
    assert preflight.is_remote(remote)
    assert not preflight.is_remote(session("local[2]"))
    assert (preflight.slots(remote), preflight.nodes(remote), preflight.cores_per_task(remote)) == (2, 1, 1)
    preflight.use_own_python(remote)
    with pytest.raises(NotEnoughSlots):
        preflight.check_slots(remote, 3)
    cluster: Any = Remote(spark_master="yarn", spark_executor_instances="3", spark_default_parallelism="7")
    assert preflight.nodes(cluster) == 3
    assert preflight.check_slots(cluster, 12) == 12  # nobody can tell


def test_barrier_mode_and_dynamic_allocation() -> None:
    remote: Any = Remote(spark_master="yarn", spark_dynamicAllocation_enabled="true")
    with pytest.raises(ClusterError, match="dynamic allocation"):
        preflight.check_slots(remote, 2)
