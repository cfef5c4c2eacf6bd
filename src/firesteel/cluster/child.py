"""The life of a rank's process: told what to run, runs it, says how it went, ends at once.

Started by ``cluster.seat``, by itself or through a ``cluster.stem``, with two inherited descriptors: the connection to
its task, and the packed program.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib
import itertools
import os
import queue
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from socket import socket
from typing import Any

from firesteel.cluster.failure import Failure
from firesteel.cluster.pulse import Pulse
from firesteel.cluster.travel import unpack
from firesteel.cluster.wire import Buffer, Link, WireError

__all__ = ["Desk", "die_with_parent", "main", "run", "this_desk"]

_ANSWER_TIMEOUT_SECONDS = 300.0
_PR_SET_PDEATHSIG = 1


class Desk:
    """What a rank's main function works at: who it is, its program, and the line to its task and driver."""

    def __init__(self, link: Link, start: dict[str, Any], program: int) -> None:
        self.rank = int(start["rank"])
        self.world = int(start["world"])
        self.host = str(start["host"])
        self.task = int(start["task"])
        """The process of its task, which may be its grandparent."""
        self.device = str(start["device"])
        self.threads = int(start["threads"])
        self.descriptors: dict[str, int] = start["descriptors"]
        self.generation = int(start["generation"])
        """The gang's; final once there is an assignment."""
        self.step: int | None = None
        """The step that this rank is in, for the report of a failure."""
        self._pulse = Pulse(int(start["pulse"]))
        self._link = link
        self._program = program
        self._numbers = itertools.count()
        self._answers: dict[int, queue.Queue[tuple[dict[str, Any], list[bytearray]]]] = {}
        self._begins: queue.Queue[tuple[int, dict[str, Any]]] = queue.Queue()
        self._messages: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._listen, name="firesteel-desk", daemon=True).start()

    def program(self) -> Any:
        """What the driver packed for this launch."""
        with os.fdopen(self._program, "rb") as file:
            return unpack(file.read())

    def assignment(self) -> dict[str, Any]:
        """Wait until all ranks are ready; what this one has to do."""
        self.generation, assignment = self._begins.get()
        return assignment

    def beat(self, step: int | None = None, *, is_waiting: bool = False) -> None:
        """A sign of life: in which step, and whether it waits for the others."""
        self.step = self.step if step is None else step
        self._pulse.beat(self.step or 0, is_waiting=is_waiting)

    def keep(self, note: dict[str, Any]) -> None:
        """Leave a note with the task, which outlives this process: where the newest commit is."""
        self._link.send({"kind": "keep", "note": note})

    def tell(self, event: dict[str, Any], buffers: Sequence[Buffer] = ()) -> None:
        """Send an event to the driver. Returns when it is on its way."""
        self._link.send({"kind": "event", "event": event}, buffers)

    def fetch(self, what: dict[str, Any]) -> tuple[dict[str, Any], list[bytearray]]:
        """Ask the driver for data that lives there."""
        return self._ask({"kind": "fetch", "what": what})

    def board(self, verb: str, key: str, value: bytes | None = None, amount: int = 0) -> bytes | None:
        """The gang's key-value board: ``set``, ``get`` (waits for the key), ``add``, ``check`` (``None`` if absent)."""
        message = {"kind": "board", "verb": verb, "key": key, "amount": amount}
        answer, buffers = self._ask(message, [] if value is None else [value])
        return bytes(buffers[0]) if answer["present"] else None

    def messages(self) -> Iterator[dict[str, Any]]:
        """What the driver has to say on its own account (``Coordinator.tell``), as it comes; without end."""
        while True:
            yield self._messages.get()

    def give_up(self, failure: Failure) -> None:
        """Report this and end the process, from any thread: the main one may wait for what will never come."""
        with contextlib.suppress(OSError):
            self._link.send({"kind": "failed", "failure": failure.to_json()})
        os._exit(1)

    def hang_up(self) -> None:
        """Cut the task's connection to the driver, for the sake of trying that out."""
        self._link.send({"kind": "hang up"})

    def _ask(self, message: dict[str, Any], buffers: Sequence[Buffer] = ()) -> tuple[dict[str, Any], list[bytearray]]:
        number = next(self._numbers)
        box: queue.Queue[tuple[dict[str, Any], list[bytearray]]] = queue.Queue()
        self._answers[number] = box
        self._link.send({**message, "id": number}, buffers)
        try:
            return box.get(timeout=_ANSWER_TIMEOUT_SECONDS)
        except queue.Empty:
            raise WireError(
                f"the driver did not answer within {_ANSWER_TIMEOUT_SECONDS:.0f} s (answer_timeout)"
            ) from None
        finally:
            del self._answers[number]

    def _listen(self) -> None:
        with contextlib.suppress(WireError, OSError):
            while (received := self._link.receive()) is not None:
                message, buffers = received
                if message["kind"] == "begin":
                    self._begins.put((int(message["generation"]), message["assignment"]))
                elif message["kind"] == "fetched" and message["id"] in self._answers:
                    self._answers[message["id"]].put((message["answer"], buffers))
                elif message["kind"] != "fetched":
                    self._messages.put(message)
        os._exit(1)  # the task is gone, and with it the only reason to be here


_desk: Desk | None = None


def this_desk() -> Desk | None:
    """The desk of this process, where it is a rank's."""
    return _desk


def main() -> None:
    """Entry point of ``python -m firesteel.cluster.child``."""
    run(int(sys.argv[1]), int(sys.argv[2]), {})


def run(control: int, program: int, renumbered: Mapping[int, int]) -> None:
    """Work at these two descriptors until the end of the process.

    Args:
        control: the connection to the task.
        program: the packed program.
        renumbered: by its number in the task, a descriptor's number here; where that is another one.
    """
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to handle; it tells us
    faulthandler.enable()
    link = Link(socket(fileno=control))
    received = link.receive()
    if received is None:
        os._exit(1)
    start = received[0]
    start["pulse"] = renumbered.get(start["pulse"], start["pulse"])
    start["descriptors"] = {name: renumbered.get(number, number) for name, number in start["descriptors"].items()}
    if os.getppid() != start["parent"]:
        os._exit(1)  # the parent died before we asked to die with it
    global _desk
    desk = _desk = Desk(link, start, program)
    status = 0
    try:
        module, _, function = start["main"].partition(":")
        getattr(importlib.import_module(module), function)(desk)
        link.send({"kind": "done"})
    except BaseException as error:  # noqa: BLE001 - whatever it was, the driver has to hear of it
        status = 1
        failure = Failure.of(error, rank=desk.rank, host=desk.host, step=desk.step)
        with contextlib.suppress(OSError):
            link.send({"kind": "failed", "failure": failure.to_json()})
    sys.stdout.flush()
    sys.stderr.flush()
    # Without the interpreter's teardown: gloo's threads abort there in about one run of six.
    os._exit(status)


def die_with_parent() -> None:
    """Let the kernel end this process when the thread that started it ends."""
    # Linux only; elsewhere the end of the control connection does the same, a moment later.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    # The module by its own name, which others import: there must be one desk, not one in each copy.
    importlib.import_module("firesteel.cluster.child").main()
