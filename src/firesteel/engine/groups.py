"""By which library the replicas of a gang exchange buffers, and what has to run beside them for it."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import socket
from typing import Any

from firesteel.cluster.child import Desk
from firesteel.cluster.companions import Companions
from firesteel.cluster.failure import Failure
from firesteel.cluster.ports import interface_of
from firesteel.cluster.roles import HorovodRanks, ParameterServers
from firesteel.core.imports import importing
from firesteel.core.plan import Exchange
from firesteel.core.ports import Group
from firesteel.sync.neighbours import meet

__all__ = ["import_library", "join_group", "meeting_place", "meets_first", "modules_of"]

_SERVER = "firesteel.sync.kvstore_server:main"


def meets_first(exchange: Exchange, world: int) -> bool:
    """Whether ranks meet before anything else; gloo may come later, which saves time."""
    # TensorFlow's collectives want to be there before its first tensor.
    return exchange.is_first or (world > 1 and exchange.library == "gloo" and not _has_gloo())


def modules_of(exchange: Exchange, world: int) -> tuple[str, ...]:
    """What a group of this many needs, and may be imported before it meets."""
    return ("firesteel.sync.gloo",) if world > 1 and exchange.library == "gloo" and _has_gloo() else ()


def import_library(exchange: Exchange, world: int) -> None:
    """Import that before the others are waited for: rows may still take as long to come."""
    with importing():
        for name in modules_of(exchange, world):
            importlib.import_module(name)


@contextlib.contextmanager
def join_group(desk: Desk, exchange: Exchange, assignment: dict[str, Any]) -> Any:
    """The group of this gang, while inside; a group of one needs no library. On leaving, so do all ranks together."""
    if exchange.library == "horovod":  # alone too: the user's code may ask it who it is
        from firesteel.sync.horovod import HorovodGroup

        joined = HorovodGroup(desk.rank, desk.world, _horovod(desk, assignment["meeting"]))
        yield joined
        joined.close()
    elif desk.world == 1:
        from firesteel.sync.solo import SoloGroup

        yield SoloGroup()
    elif exchange.library == "kvstore":
        yield from _through_kvstore(desk, exchange)
    elif not _has_gloo():
        from firesteel.sync.tensorflow import TensorFlowGroup

        yield from _beside(
            desk, exchange, TensorFlowGroup(desk.rank, desk.world, desk.board, desk.host, desk.generation)
        )
    else:
        from firesteel.sync.gloo import GlooGroup

        interface = interface_of(desk.host)
        yield from _beside(desk, exchange, GlooGroup(desk.rank, desk.world, desk.board, interface, desk.generation))


def _beside(desk: Desk, exchange: Exchange, library: Group) -> Any:
    """The library's group, or one in memory beside it where all ranks are on one machine."""
    group = meet(library, desk.board, f"memory/{desk.generation}") if exchange.in_memory else library
    yield group
    group.close()


def _through_kvstore(desk: Desk, exchange: Exchange) -> Any:
    """MXNet's store: the scheduler runs beside rank 0, server i beside rank i modulo the number of ranks."""
    from firesteel.sync.kvstore import KVStoreGroup

    with _root(desk) as (host, port):
        servers = exchange.servers or desk.world
        roles = ParameterServers(host, port, desk.world, servers)
        companions = Companions(lambda what: desk.give_up(_lost(desk, what)))
        try:
            if desk.rank == 0:
                companions.start("scheduler", _SERVER, roles.environment("scheduler", desk.host))
            for number in range(desk.rank, servers, desk.world):
                name = f"parameter server {number}"
                companions.start(name, _SERVER, roles.environment("server", desk.host))
            group = KVStoreGroup(desk.rank, desk.world, exchange.kind, roles.environment("worker", desk.host))
            yield group
            companions.leave()
            group.close()
        except BaseException:
            companions.end()  # nobody has told them to, and the driver waits to hear of this
            raise
        companions.close()


def _horovod(desk: Desk, meeting: list[Any]) -> dict[str, str]:
    """The variables by which Horovod knows itself; every rank's host is on the board."""
    key = f"horovod/{desk.generation}/"
    desk.board("set", f"{key}{desk.rank}", desk.host.encode())
    hosts = tuple((desk.board("get", f"{key}{rank}") or b"").decode() for rank in range(desk.world))
    return HorovodRanks(hosts, str(meeting[0]), int(meeting[1])).environment(desk.rank, interface_of(desk.host))


@contextlib.contextmanager
def meeting_place(exchange: Exchange, bind: str, host: str) -> Any:
    """Where the ranks of a fit meet, where a library needs such a place beside the board; else ``None``.

    Runs beside the coordinator, and ends with it. Call what it gives before each gang begins: the address.
    """
    if exchange.library != "horovod":
        yield None
        return
    from firesteel.sync.horovod import Rendezvous

    with Rendezvous(bind) as place:

        def prepare() -> list[Any]:
            place.clear()
            return [host, place.port]

        yield prepare


@contextlib.contextmanager
def _root(desk: Desk) -> Any:
    """An address that is nobody else's: rank 0 takes a port and keeps it, all others read it off the board."""
    key = f"kvstore/{desk.generation}"
    if desk.rank != 0:
        host, _, port = (desk.board("get", key) or b"").decode().rpartition(":")
        yield host, int(port)
        return
    # Bound, but not listened on: the scheduler, which asks for it in the same way, may still do that; nobody else is
    # given a port that is bound.
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((desk.host, 0))
        port = held.getsockname()[1]
        desk.board("set", key, f"{desk.host}:{port}".encode())
        yield desk.host, port


def _lost(desk: Desk, what: str) -> Failure:
    return Failure("companion", desk.rank, desk.host, what, step=desk.step)


def _has_gloo() -> bool:
    """Whether torch is installed, which brings gloo."""
    return importlib.util.find_spec("torch") is not None
