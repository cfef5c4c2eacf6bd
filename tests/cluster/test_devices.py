"""The table of GPUs: Spark's word first, then what is free on the host, never one that another node holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from firesteel.cluster.devices import NodeGpus, free_gpus, share_gpus, task_gpus
from firesteel.core.errors import ClusterError
from firesteel.tfcluster import gpu_info

SMI = """#!/bin/sh
case "$*" in
  *--list-gpus*) for i in 0 1 2 3; do echo "GPU $i: Some Card (UUID: GPU-$i)"; done;;
  *--query-compute-apps=gpu_uuid*) echo GPU-1;;
esac
"""


class Resource:
    def __init__(self, *addresses: str) -> None:
        self.addresses = list(addresses)


class Context:
    def __init__(self, **resources: Resource) -> None:
        self._resources = resources

    def resources(self) -> dict[str, Resource]:
        return self._resources


@pytest.fixture
def four_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with four GPUs, on the second of which somebody computes: what is asked is a program of NVIDIA's."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text(SMI)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


def test_what_spark_gave_is_taken_as_it_is() -> None:
    assert task_gpus(Context(gpu=Resource("0"))) == ("0",)
    assert task_gpus(Context()) == ()
    assert share_gpus([NodeGpus(0, "a", given=("0",))], None) == [("0",)]
    assert share_gpus([NodeGpus(0, "a", given=("0", "1"))], 1) == [("0",)]
    assert share_gpus([NodeGpus(0, "a", given=("0", "1"))], None) == [("0", "1")]


def test_nodes_of_one_host_share_what_is_free_there() -> None:
    found = ("0", "2", "3")
    nodes = [NodeGpus(0, "a", found=found, is_served=False), *(NodeGpus(n, "a", found=found) for n in (1, 2, 3))]
    assert share_gpus(nodes, None) == [(), ("0",), ("2",), ("3",)]
    elsewhere = NodeGpus(4, "b", found=("0",))
    assert share_gpus([nodes[1], elsewhere], 1, {"a": frozenset({"0"})}) == [("2",), ("0",)]


def test_who_asked_for_none_gets_none_and_who_asked_for_too_many_an_error() -> None:
    nodes = [NodeGpus(n, "a", found=("0", "1")) for n in range(3)]
    assert share_gpus(nodes, 0) == [(), (), ()]
    assert share_gpus(nodes, None) == [("0",), ("1",), ()]  # nobody insisted
    with pytest.raises(ClusterError, match=r"num_gpus=1 .* node 2 has 0 \(free on its host a\)"):
        share_gpus(nodes, 1)
    with pytest.raises(ClusterError, match=r"num_gpus=2 .* node 0 has 1 .*Spark"):
        share_gpus([NodeGpus(0, "a", given=("7",))], 2)


def test_free_gpus_are_those_on_which_nobody_computes(four_gpus: None) -> None:
    assert free_gpus() == ("0", "2", "3")
    assert gpu_info.is_gpu_available()
    assert gpu_info.get_gpus() == "0"
    assert gpu_info.get_gpus(1, 2) == "3"
    assert gpu_info.get_gpus(2, 0, gpu_info.AS_LIST) == ["0", "2"]
    with pytest.raises(ClusterError, match=r"2 GPUs were asked for .* 3 are free"):
        gpu_info.get_gpus(2, 1)


def test_a_host_without_the_tool_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert free_gpus() == ()
    assert not gpu_info.is_gpu_available()
