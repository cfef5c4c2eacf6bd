"""The client's end: pushes gradients, pulls weights, and comes back when the connection was lost.

A push has a number. When its answer is lost, the same push is said again with the same number, and the server, which
has counted, applies it once. What cannot be delivered in time is an error: nothing is dropped.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from firesteel.core.errors import FiresteelError, SyncError
from firesteel.core.ports import Trainable
from firesteel.sync.server.layout import Layout
from firesteel.sync.server.memory import SharedBuffers, can_share
from firesteel.sync.server.serving import Line

__all__ = ["Client", "Dial"]

Array = npt.NDArray[Any]
Dial = Callable[[], Line]
"""Makes a new connection to one server; ``OSError`` where there is none."""

_PATIENCE_SECONDS = 10.0
_PAUSE_SECONDS = 0.1

_Found = TypeVar("_Found")


class Client:
    """One client of all servers of a program.

    Args:
        dials: how each server is reached, in the order of their slices.
        name: who this is: numbers of pushes are kept by it, also when the process is another one.
        has_extras: whether the state outside the gradient (batch-norm's means) is the server's too.
        replica: whose gradients are pushed and whose weights are pulled: where memory is shared with the server, they
            are kept there. It does nothing else while a push or a pull is under way.
        patience_seconds: how long to try to reach a server.
    """

    def __init__(
        self,
        dials: Sequence[Dial],
        name: Sequence[int],
        *,
        has_extras: bool = False,
        replica: Trainable | None = None,
        patience_seconds: float = _PATIENCE_SECONDS,
    ) -> None:
        self._ends = [
            _End(dial, list(name), replica, has_extras=has_extras and place == 0, patience_seconds=patience_seconds)
            for place, dial in enumerate(dials)
        ]
        self.pushes = 0
        """How many this client has made, or another process in its place before."""

    @property
    def is_sliced(self) -> bool:
        """Whether there are several servers."""
        return len(self._ends) > 1

    def load(self, state: dict[str, bytes], tensors: Sequence[Sequence[Any]], gang: int, step: int) -> None:
        """Make this the servers' state."""
        about = {"kind": "load", "parts": list(state), "tensors": list(tensors), "gang": gang, "step": step}
        for place, end in enumerate(self._ends):
            end.ask({**about, "part": [place, len(self._ends)]}, list(state.values()))

    def enter(self, gang: int = 0) -> None:
        """Begin to work; ``pushes`` then says how many were applied before."""
        for end in self._ends:
            end.enter(gang)
        self.pushes = min(end.applied for end in self._ends)

    def pull(self, weights: Sequence[Array], extras: Sequence[Array] = ()) -> None:
        """Receive the weights into these buffers."""
        for end in self._ends:
            end.pull(weights, extras)

    def push(
        self,
        gradients: Sequence[Array] | None,
        *,
        step: int,
        extras: Sequence[Array] = (),
        into: tuple[Sequence[Array], Sequence[Array]] | None = None,
        waits: bool = True,
    ) -> None:
        """Push gradients, or ``None`` for a step without rows; ``into``: pull weights and extras at the same time.

        Without ``waits``, whoever pushes goes on until ``end_push``, and leaves these arrays as they are.
        """
        self.pushes += 1
        # First to all, then from all: servers work side by side.
        for end in self._ends:
            end.begin_push(self.pushes, gradients, extras, step, into)
        if waits:
            self.end_push()

    def end_push(self) -> None:
        """Wait until the last push was applied, and for what was pulled with it."""
        for end in self._ends:
            end.end_push()

    @property
    def is_alone(self) -> bool:
        """Whether nobody else was at work when the last push was applied."""
        return all(end.is_alone for end in self._ends)

    def tell(self, event: dict[str, Any]) -> None:
        """Tell the driver."""
        self._ends[0].ask({"kind": "tell", "event": event})

    def schedule(self, event: str, figures: dict[str, Any]) -> None:
        """Advance the schedules of the learning rate."""
        for end in self._ends:
            end.ask({"kind": "schedule", "event": event, "figures": figures})

    def state(self) -> dict[str, bytes]:
        """The state of the one server there is."""
        return self._ends[0].state(is_slice=False)

    def slices(self) -> list[bytes]:
        """The optimizer's state of each of several servers."""
        return [end.state(is_slice=True)["slice"] for end in self._ends]

    def close(self) -> None:
        """Leave."""
        for end in self._ends:
            end.close()


class _End:
    """The connection to one server."""

    def __init__(
        self, dial: Dial, name: list[int], replica: Trainable | None, *, has_extras: bool, patience_seconds: float
    ) -> None:
        self.applied = 0
        self.is_alone = True
        self._dial = dial
        self._name = name
        self._replica = replica
        self._has_extras = has_extras
        self._patience_seconds = patience_seconds
        self._line: Line | None = None
        self._layout: Layout | None = None
        self._memory: SharedBuffers | None = None
        self._gang: int | None = None
        self._request: Callable[[Line], None] | None = None
        self._room: list[memoryview] = []
        self._into: tuple[Sequence[Array], Sequence[Array]] | None = None

    def ask(self, message: dict[str, Any], buffers: Sequence[Any] = ()) -> tuple[dict[str, Any], Sequence[Any]]:
        """One request and its answer."""
        if self._request is not None:
            self.end_push()  # whose answer comes first

        def once(line: Line) -> tuple[dict[str, Any], Sequence[Any]]:
            line.send(message, buffers)
            return _answer(line)

        return self._try(once)

    def enter(self, gang: int) -> None:
        """Say who this is."""
        self._gang = gang
        self._hang_up()
        self._try(lambda line: None)

    def pull(self, weights: Sequence[Array], extras: Sequence[Array]) -> None:
        """Receive weights."""

        def once(line: Line) -> None:
            line.send({"kind": "pull"})
            self._receive(line, weights, extras)

        self._try(once)

    def begin_push(
        self,
        number: int,
        gradients: Sequence[Array] | None,
        extras: Sequence[Array],
        step: int,
        into: tuple[Sequence[Array], Sequence[Array]] | None,
    ) -> None:
        """Send a push, and do not wait for the answer."""
        if number <= self.applied:
            # An earlier process of this name got so far with this server, and not with another one.
            gradients = None

        def request(line: Line) -> None:
            message = {"kind": "push", "number": number, "step": step, "is_empty": gradients is None}
            buffers: list[Any] = []
            if gradients is not None:
                assert self._layout is not None
                runs = self._layout.of_gradients(gradients)
                if self._memory is not None:
                    self._memory.put_push(runs)
                else:
                    buffers = [_as_bytes(run) for run in runs]
                buffers += [_as_bytes(each) for each in extras] if self._has_extras else []
            line.send({**message, "pulls": into is not None}, buffers)

        self._request, self._into = request, into
        with contextlib.suppress(OSError, FiresteelError):  # what is wrong is found when the answer is awaited
            if self._line is not None:
                request(self._line)
                return
        self._hang_up()

    def end_push(self) -> None:
        """Wait until the push was applied; say it again where the answer was lost."""
        request, into = self._request, self._into
        if request is None:
            return  # the answer has been waited for
        self._request = self._into = None
        is_said = self._line is not None

        def once(line: Line) -> None:
            nonlocal is_said
            if not is_said:
                request(line)
            is_said = False
            answer = _answer(line)[0] if into is None else self._receive(line, *into)
            self.is_alone = answer.get("alone", True)

        self._try(once)

    def state(self, *, is_slice: bool) -> dict[str, bytes]:
        """The server's state, or its slice of the optimizer's."""
        answer, buffers = self.ask({"kind": "state", "is_slice": is_slice})
        return {name: bytes(data) for name, data in zip(answer["parts"], buffers, strict=True)}

    def close(self) -> None:
        """Close the connection."""
        self._hang_up()

    def _receive(self, line: Line, weights: Sequence[Array], extras: Sequence[Array]) -> dict[str, Any]:
        assert self._layout is not None
        runs = self._layout.of_weights(weights)
        targets = [] if self._memory is not None else [_as_bytes(run) for run in runs]
        targets += [_as_bytes(each) for each in extras] if self._has_extras else []

        def room(message: dict[str, Any], lengths: list[int]) -> Sequence[memoryview] | None:
            if "error" in message:
                return None
            if lengths != [each.nbytes for each in targets]:
                raise SyncError("the parameter server sent weights of another size than this replica's")
            return targets

        received = line.receive(room)
        if received is None:
            raise ConnectionError("the parameter server closed the connection")
        _raise_error(received[0])
        if self._memory is not None:
            self._memory.pull_into(runs)
        return received[0]

    def _try(self, once: Callable[[Line], _Found]) -> _Found:
        """Do something with the connection; where that is lost, with another one, as long as patience lasts."""
        end = time.monotonic() + self._patience_seconds
        while True:
            try:
                if self._line is None:
                    self._connect()
                assert self._line is not None
                return once(self._line)
            except SyncError:  # the server's own word, or ours: to ask again would not help
                self._hang_up()
                raise
            except (OSError, FiresteelError) as error:
                self._hang_up()
                if time.monotonic() > end:
                    raise SyncError(f"the parameter server cannot be reached: {error}") from error
                time.sleep(_PAUSE_SECONDS)

    def _connect(self) -> None:
        line = self._line = self._dial()
        if self._gang is None:
            return
        about = {"kind": "enter", "client": self._name, "gang": self._gang}
        line.send({**about, "extras": self._has_extras, "shares": can_share(line.fileno())})
        answer, _ = _answer(line)
        self._layout = Layout.from_json(answer["layout"])
        self.applied = answer["applied"]
        if answer["shares"]:
            self._memory = SharedBuffers.make(self._layout, line.fileno())
            _answer(line)
            self._settle(self._layout, self._memory)

    def _settle(self, layout: Layout, memory: SharedBuffers) -> None:
        """The next backward writes where the server reads, and its weights are where the server writes.

        What lies elsewhere by then is copied.
        """
        if self._replica is not None and layout.is_whole:
            use = self._replica.bind_gradients(layout.as_gradients(memory.push))
            if use is not None:
                use()
            self._replica.bind_weights(layout.as_weights(memory.pull))

    def _hang_up(self) -> None:
        if self._line is not None:
            self._line.close()
        self._line, self._memory = None, None


def _answer(line: Line) -> tuple[dict[str, Any], Sequence[Any]]:
    received = line.receive()
    if received is None:
        raise ConnectionError("the parameter server closed the connection")
    _raise_error(received[0])
    return received


def _raise_error(message: dict[str, Any]) -> None:
    if "error" in message:
        raise SyncError(message["error"])


def _as_bytes(array: Array) -> memoryview:
    return array.view(np.uint8).data
