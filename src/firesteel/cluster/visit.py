"""A visit to the coordinator: a task without a seat asks the driver, and is answered."""

from __future__ import annotations

import threading
from typing import Any

from firesteel.cluster.seat import Invitation, connect
from firesteel.cluster.wire import Link, WireError
from firesteel.core.errors import ClusterError

__all__ = ["Visit"]


class Visit:
    """The task's end; a context manager. ``ask`` may be called from several threads, one at a time is answered."""

    def __init__(self, invitation: Invitation) -> None:
        try:
            self._link = Link(connect(invitation))
            self._link.send({"kind": "visit"})
        except (OSError, WireError) as error:
            raise ClusterError(f"the cluster's driver cannot be reached; it may be over: {error}") from error
        self._asking = threading.Lock()

    def __enter__(self) -> Visit:
        return self

    def __exit__(self, *exc: object) -> None:
        self._link.close()

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """The driver's answer. Raises ``ClusterError`` when it has gone."""
        with self._asking:
            try:
                self._link.send(question)
                received = self._link.receive()
            except (OSError, WireError) as error:
                raise ClusterError(f"the cluster's driver has gone: {error}") from error
        if received is None:
            raise ClusterError("the cluster is over: its driver has closed the connection")
        return received[0]
