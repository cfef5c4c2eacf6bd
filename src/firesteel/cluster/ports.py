"""Ports that are set aside for a program before it runs, lists of ports as settings spell them, and interfaces."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence

import psutil

from firesteel.core.errors import ClusterError, PlanError

__all__ = ["interface_of", "listed_ports", "reserve"]

_RANGE = re.compile(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?")
_LAST_PORT = 65535


def listed_ports(value: str | None, name: str) -> tuple[int, ...]:
    """The ports of a setting, ``"8888"`` or ``"9997-9999"``; any free one, which is 0, where it is not set."""
    if not value:
        return (0,)
    match = _RANGE.fullmatch(value)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if not 0 <= first <= last <= _LAST_PORT:
        raise PlanError(f"{name} must be a port such as 8888 or a range such as 9997-9999, not {value!r}")
    return tuple(range(first, last + 1))


def reserve(ports: Sequence[int] = (0,), name: str = "") -> socket.socket:
    """A socket that is bound to the first free port of these, on all addresses, and does not listen.

    Nobody else gets the port until it is closed. ``name`` is the setting that the ports are from.
    """
    for port in ports:
        bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            bound.bind(("", port))
        except OSError as error:
            bound.close()
            refused = error
        else:
            return bound
    where = f" ({name})" if name else ""
    raise ClusterError(
        f"port {ports[0]}{f'-{ports[-1]}' if len(ports) > 1 else ''}{where} cannot be used: {refused.strerror}. "
        f"Nodes on one host need a port each: a range such as 9997-9999, or leave it unset"
    )


def interface_of(host: str) -> str | None:
    """The network interface of this machine that has this address, or this name's."""
    try:
        address = socket.gethostbyname(host)
    except OSError:
        return None
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.family == socket.AF_INET and each.address == address for each in addresses):
            return str(name)
    return None
