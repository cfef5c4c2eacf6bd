"""The server's end: a replica of the program that applies pushed gradients with the program's own optimizer.

Each client has a connection and a thread of its own, and one request under way: a client that sends faster than the
server works waits, and memory does not grow. Updates are made one after the other. In ``locked`` mode a pull never sees
weights in the middle of one; in ``hogwild`` mode pulls do not wait, and may.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from firesteel.core.errors import SyncError
from firesteel.core.ports import State, Trainable
from firesteel.sync.server.clock import Clock
from firesteel.sync.server.layout import Layout
from firesteel.sync.server.lock import ReadersWriterLock
from firesteel.sync.server.memory import SharedBuffers, can_share

__all__ = ["Line", "ParameterServer", "Room", "Tell"]

_log = logging.getLogger(__name__)

Array = npt.NDArray[Any]
Room = Callable[[dict[str, Any], list[int]], Sequence[memoryview] | None]
"""Where the buffers of a message are to be received; raises to refuse them."""
Tell = Callable[[dict[str, Any]], None]

_MAX_STATE_BYTES = 64 << 30


class Line(Protocol):
    """A connection that carries messages and buffers, whole or not at all. ``cluster.wire.Link`` is one."""

    def send(self, message: dict[str, Any], buffers: Sequence[Any] = ()) -> None:
        """Send one message; ``OSError`` when the other end is gone."""
        ...

    def receive(self, room: Room | None = None) -> tuple[dict[str, Any], Sequence[Any]] | None:
        """The next message; ``None`` when the other end closed."""
        ...

    def fileno(self) -> int:
        """The connection's descriptor."""
        ...

    def close(self) -> None:
        """Close it."""
        ...


class ParameterServer:
    """One server, or one of several that each look after a slice (the client that loads them says which).

    Args:
        replica: the program alive in this process, started.
        is_locked: whether a pull excludes an update.
        staleness: see ``Clock``.
        tell: takes what clients tell the driver.
    """

    def __init__(
        self,
        replica: Trainable,
        *,
        is_locked: bool,
        staleness: int | None = None,
        tell: Tell | None = None,
    ) -> None:
        self._replica = replica
        self._lock = ReadersWriterLock()
        self._is_locked = is_locked
        self._clock = Clock(staleness)
        self._part = (0, 1)
        self._tell = tell
        self._layout: Layout | None = None
        self._gang = 0
        self._step = 0
        self._is_broken = ""
        self._loading = threading.Lock()

    @property
    def updates(self) -> int:
        """How many pushes were applied since the start, or since the last ``load``."""
        return self._clock.applied

    def open(self, tensors: Sequence[Sequence[Any]] = ()) -> None:
        """Make the replica ready for gradients; ``tensors`` are the names, dtypes and row shapes of its batches."""
        batch = {name: np.zeros((0, *shape), dtype) for name, dtype, shape in tensors}
        prepare = getattr(self._replica, "prepare", None)
        if prepare is not None and batch:
            prepare(batch)
        # Of no rows: then the gradients are there, and zero.
        self._replica.backward(batch or {"x0": np.zeros(0, np.float32)}, 0.0)
        bounds = None
        if self._part[1] > 1:
            bounds = self._replica.bounds(*self._part)
            if bounds is None:
                raise SyncError("this optimizer does not work on slices: it needs one server, not several")
            self._replica.take_slice(bounds)
        self._layout = Layout.of(self._replica.weights(), self._replica.gradients(), bounds)

    def serve(self, line: Line) -> None:
        """Answer one client until it leaves. Runs in a thread of its own; raises only what the connection raises."""
        client = _Client(line)
        try:
            while (received := line.receive(client.room)) is not None:
                try:
                    answer, buffers = self._answer(client, *received)
                except SyncError as error:
                    answer, buffers = {"error": str(error)}, ()
                line.send(answer, buffers)
        finally:
            if client.name is not None:
                self._clock.leave(client.name)

    def state(self) -> State:
        """The replica's whole state, between two updates."""
        with self._lock.reading():
            return self._replica.state()

    def close(self) -> None:
        """Let go of clients that wait."""
        self._clock.close()

    # --- one request ---

    def _answer(
        self, client: _Client, message: dict[str, Any], buffers: Sequence[Any]
    ) -> tuple[dict[str, Any], Sequence[Any]]:
        if self._is_broken:
            raise SyncError(self._is_broken)
        kind = message.get("kind")
        try:
            if kind == "push":
                return self._push(client, message, buffers)
            if kind == "pull":
                return self._pull(client)
            if kind == "enter":
                return self._enter(client, message)
            if kind == "load":
                return self._load(message, buffers)
            if kind == "state":
                return self._state(message)
            if kind == "schedule":
                with self._lock.writing():
                    self._replica.schedule(message["event"], message["figures"])
                return {}, ()
            if kind == "tell" and self._tell is not None:
                self._tell(message["event"])
                return {}, ()
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise SyncError(f"a request that nobody understands: {type(error).__name__} {error}") from error
        raise SyncError(f"a request of no kind that there is: {kind!r}")

    def _enter(self, client: _Client, message: dict[str, Any]) -> tuple[dict[str, Any], Sequence[Any]]:
        if self._layout is None:
            raise SyncError("the parameter server has no program yet")
        client.gang = int(message["gang"])
        self._check_gang(client)
        if client.name is not None:
            raise SyncError("a client that is here already")
        name = tuple(message["client"])
        client.layout = self._layout
        if message["extras"]:
            client.extra_bytes = [each.nbytes for each in self._replica.buffers()]
        applied = self._clock.enter(name)
        client.name = name
        about = {"layout": self._layout.to_json(), "applied": applied, "extras": client.extra_bytes}
        if message["shares"] and can_share(client.line.fileno()):
            client.line.send({"shares": True, **about})
            client.memory = SharedBuffers.take(self._layout, client.line.fileno())
            about = {}
        client.take_gradients = self._taker(client.pushed, self._layout)
        return {"shares": False, **about} if about else {}, ()

    def _taker(self, pushed: Sequence[Array], layout: Layout) -> Callable[[], None]:
        """How the replica gets at what a client pushes: where it lies, or where only a slice is pushed, copied."""
        use = self._replica.bind_gradients(layout.as_gradients(pushed)) if layout.is_whole else None
        if use is not None:
            return use

        def copy() -> None:
            for target, source in zip(layout.of_gradients(self._replica.gradients()), pushed, strict=True):
                np.copyto(target.view(np.uint8), source)

        return copy

    def _push(
        self, client: _Client, message: dict[str, Any], buffers: Sequence[Any]
    ) -> tuple[dict[str, Any], Sequence[Any]]:
        name, layout = client.name, client.layout
        if name is None or layout is None:
            raise SyncError("a push from somebody who did not say who it is")
        number, step = int(message["number"]), message["step"]
        with self._lock.writing():
            self._check_gang(client)  # it may have changed since this client came
            if self._clock.is_new(name, number):
                if not message["is_empty"]:
                    self._apply(client)
                    extras = buffers[len(buffers) - len(client.extra_bytes) :]
                    if extras:
                        self._replica.load_buffers([np.frombuffer(each, np.float64) for each in extras])
                self._advance(int(step))
                self._clock.advance(name, number)
        self._clock.wait(name)
        _, pulled = self._pull(client) if message["pulls"] else ({}, ())
        return {"alone": self._clock.is_alone}, pulled

    def _check_gang(self, client: _Client) -> None:
        if client.gang != self._gang:
            raise SyncError("a client of another gang than the one at work")

    def _apply(self, client: _Client) -> None:
        try:
            client.take_gradients()
            self._replica.update()
        except Exception as error:
            # Half an update is no state to go on from.
            self._is_broken = f"the parameter server could not apply a push: {type(error).__name__}: {error}"
            _log.exception("an update failed")
            raise SyncError(self._is_broken) from error

    def _advance(self, step: int) -> None:
        """A schedule of the learning rate follows the client that is farthest: one step of all is one of its."""
        while self._step < step:
            self._step += 1
            self._replica.schedule("batch")

    def _pull(self, client: _Client) -> tuple[dict[str, Any], Sequence[Any]]:
        if client.layout is None:
            raise SyncError("a pull from somebody who did not say who it is")
        with self._seeing():
            weights = client.layout.of_weights(self._replica.weights())
            extras = [each.tobytes() for each in self._replica.buffers()] if client.extra_bytes else []
            if client.memory is not None:
                client.memory.put_pull(weights)
                found: list[Any] = []
            elif self._is_locked:
                found = client.copied(weights)
            else:
                found = [_as_bytes(each) for each in weights]  # as they lie there while they are sent
        return {}, [*found, *extras]

    @contextlib.contextmanager
    def _seeing(self) -> Iterator[None]:
        if self._is_locked:
            with self._lock.reading():
                yield
        else:
            yield

    def _load(self, message: dict[str, Any], buffers: Sequence[Any]) -> tuple[dict[str, Any], Sequence[Any]]:
        """Begin (again) from a state; clients of an earlier beginning are no longer heard."""
        with self._loading, self._lock.writing():
            gang = int(message["gang"])
            if gang == self._gang and self._layout is not None:
                return {}, ()  # the same beginning, said twice
            state: State = {name: bytes(data) for name, data in zip(message["parts"], buffers, strict=True)}
            self._part = (int(message["part"][0]), int(message["part"][1]))
            if self._layout is None:
                prepare = getattr(self._replica, "prepare", None)
                if prepare is not None:
                    prepare({name: np.zeros((0, *shape), dtype) for name, dtype, shape in message["tensors"]})
                self._replica.load(state)
                self.open(message["tensors"])
            else:
                self._replica.load(state)
                if self._part[1] > 1:
                    self._replica.take_slice(list(self._layout.bounds))
            self._clock.forget()
            self._step, self._gang = int(message["step"]), gang
        return {}, ()

    def _state(self, message: dict[str, Any]) -> tuple[dict[str, Any], Sequence[Any]]:
        if message["is_slice"]:
            with self._lock.reading():
                return {"parts": ["slice"]}, [self._replica.optimizer_slice()]
        state = self.state()
        return {"parts": list(state)}, list(state.values())


class _Client:
    """One connection: who it is, and its buffers, made once."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self.name: tuple[Any, ...] | None = None
        self.gang = 0
        self.layout: Layout | None = None
        self.memory: SharedBuffers | None = None
        self.extra_bytes: list[int] = []
        """Lengths of the state outside the gradient, where this client sends and gets it."""
        self.take_gradients: Callable[[], None] = _nothing
        """Before an update: lets the replica read what this client has pushed."""
        self._received: list[memoryview] = []
        self._sent: list[Array] = []

    def room(self, message: dict[str, Any], lengths: list[int]) -> Sequence[memoryview] | None:
        """See ``Room``: a push is received where the last one was, and nothing of another size is let in."""
        if message.get("kind") == "load" and sum(lengths) <= _MAX_STATE_BYTES:
            return None
        if not lengths:
            return None
        if message.get("kind") != "push" or self.layout is None:
            raise SyncError("a message with buffers that has no use for them")
        wanted = [] if self.memory is not None else self.layout.push_bytes
        if lengths != [*wanted, *self.extra_bytes]:
            raise SyncError("a push of another size than the program's gradients")
        return self._places()

    @property
    def pushed(self) -> list[Array]:
        """Where this client's pushes come to lie, as bytes."""
        assert self.layout is not None
        if self.memory is not None:
            return self.memory.push
        return [np.frombuffer(each, np.uint8) for each in self._places()[: len(self.layout.push_bytes)]]

    def _places(self) -> list[memoryview]:
        """Of all buffers that this client sends."""
        assert self.layout is not None
        if not self._received:
            sent = [] if self.memory is not None else self.layout.push_bytes
            self._received = [memoryview(bytearray(size)) for size in (*sent, *self.extra_bytes)]
        return self._received

    def copied(self, weights: Sequence[Array]) -> list[Any]:
        """The weights as they are now, in buffers of this connection."""
        if not self._sent:
            self._sent = [np.empty_like(each) for each in weights]
        for mine, each in zip(self._sent, weights, strict=True):
            np.copyto(mine, each)
        return [_as_bytes(each) for each in self._sent]


def _nothing() -> None:
    """Of a client that has not entered."""


def _as_bytes(array: Array) -> memoryview:
    return np.ascontiguousarray(array).view(np.uint8).data
