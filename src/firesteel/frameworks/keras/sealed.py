"""A value that travels as bytes and is opened where it is asked for, not where it arrives.

Whatever is packed in a Spark closure is opened before anybody can choose Keras's backend; a function that names
``keras`` would import it there and then.
"""

from __future__ import annotations

from typing import Any

import cloudpickle

__all__ = ["Sealed"]


class Sealed:
    """Holds a value; ``open`` gives it."""

    def __init__(self, value: Any) -> None:
        self._value = value
        self._data: bytes | None = None

    def open(self) -> Any:
        """The value. Bytes are only ever those that Spark delivered."""
        if self._data is not None:
            self._value, self._data = cloudpickle.loads(self._data), None
        return self._value

    def __reduce__(self) -> Any:
        return _received, (self._data or cloudpickle.dumps(self._value),)


def _received(data: bytes) -> Sealed:
    made = Sealed(None)
    made._data = data
    return made
