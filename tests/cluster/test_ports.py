"""Ports set aside, and ports as settings spell them."""

from __future__ import annotations

import socket

import pytest

from firesteel.cluster.ports import interface_of, listed_ports, reserve
from firesteel.core.errors import ClusterError, PlanError


def test_ports_of_a_setting() -> None:
    assert listed_ports(None, "P") == (0,)
    assert listed_ports("8888", "P") == (8888,)
    assert listed_ports("9997-9999", "P") == (9997, 9998, 9999)
    for wrong in ("x", "9-8", "70000", "1-", "-1"):
        with pytest.raises(PlanError, match="P must be a port"):
            listed_ports(wrong, "P")


def test_a_reserved_port_is_nobody_elses_until_it_is_closed() -> None:
    with reserve() as held, socket.socket() as other:
        port = held.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        with reserve((port, 0)) as second:
            assert second.getsockname()[1] != port
        with pytest.raises(ClusterError, match=rf"port {port} \(P\).*in use.*a range"):
            reserve((port,), "P")
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))


def test_the_interface_of_an_address() -> None:
    assert interface_of("localhost") == interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.1") is None
