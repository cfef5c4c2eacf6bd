"""A gang's key-value board, by which the members of a group find each other. One for each generation."""

from __future__ import annotations

from typing import Any

from firesteel.cluster.wire import Link

__all__ = ["Board", "Reply"]

Reply = tuple[Link, dict[str, Any], bytes]
"""To whom, the message, and the value."""


class Board:
    """Keys, values, and who waits for which key. The caller keeps threads apart."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._waiting: dict[str, list[tuple[Link, int]]] = {}

    def ask(self, link: Link, message: dict[str, Any], buffers: list[bytearray]) -> list[Reply]:
        """What to answer to whom: ``set``, ``add``, ``check`` are answered at once, ``get`` once the key is there."""
        key, verb = message["key"], message["verb"]
        if verb == "set":
            self._values[key] = bytes(buffers[0])
        elif verb == "add":
            self._values[key] = str(int(self._values.get(key, b"0")) + int(message["amount"])).encode()
        value = self._values.get(key)
        if verb == "get" and value is None:
            self._waiting.setdefault(key, []).append((link, message["id"]))
            return []
        asked = [(link, message["id"])]
        if value is not None:
            asked += self._waiting.pop(key, [])
        return [
            (who, {"kind": "fetched", "id": number, "answer": {"present": value is not None}}, value or b"")
            for who, number in asked
        ]
