"""Who waits for a neighbour looks for a moment, and only where that has been worth it."""

from __future__ import annotations

import select
import socket
import time

from firesteel.core.lookout import Lookout


class Counted:
    """A poll object that counts how often it is asked."""

    def __init__(self, descriptor: int) -> None:
        self.count = 0
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    def poll(self, timeout: float) -> list[tuple[int, int]]:
        self.count += 1
        return self._poll.poll(timeout)


def test_what_is_there_is_seen_at_once_and_an_end_too() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        lookout = Lookout(ours.fileno())
        lookout._poll = counted = Counted(ours.fileno())  # type: ignore[assignment]
        theirs.send(b".")
        lookout.look()
        assert counted.count == 1
        assert ours.recv(1) == b"."
        lookout.learn()
        theirs.close()
        lookout.look()
        assert counted.count == 2
        assert ours.recv(1) == b""


def test_nobody_looks_for_answers_that_take_long_until_they_come_soon_again() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        lookout = Lookout(ours.fileno())
        lookout._poll = counted = Counted(ours.fileno())  # type: ignore[assignment]

        def turn(*, is_slow: bool) -> int:
            """An answer that comes long after it was looked for, or was there before; how often was looked."""
            before = counted.count
            if not is_slow:
                theirs.send(b".")
            lookout.look()
            if is_slow:
                time.sleep(0.005)
                theirs.send(b".")
            ours.recv(1)
            lookout.learn()
            return counted.count - before

        assert turn(is_slow=True) > 0, "nothing is known yet"
        for _ in range(5):
            turn(is_slow=True)
        assert turn(is_slow=False) == 0, "the last answers took long"
        for _ in range(50):
            turn(is_slow=False)
        assert turn(is_slow=False) == 1, "they come soon again"
