"""Bytes on their way to the tasks: inside the Spark closure, or beside it where that is too narrow.

A classic closure may be as large as it likes. Under Spark Connect it is a part of the query plan, which is sent anew
with every look at the DataFrame, must stay below 128 MB, and is copied several times in the server's memory (100 MB end
a server of 1 GB). There large parcels go as artifacts: files that Spark itself hands to this session's tasks.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import tempfile
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from firesteel.cluster.preflight import is_remote
from firesteel.cluster.wire import Buffer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Parcel"]

_INLINE_BYTES = 1 << 20

_sent: set[tuple[str, str]] = set()
_sending = threading.Lock()


class Parcel:
    """Made on the driver or client with ``of``, read in a task with ``read`` or ``view``. Pickles as what travels."""

    def __init__(self, digest: str, data: bytes | None, *, is_inline: bool) -> None:
        self.digest = digest
        """SHA-256 of the bytes."""
        self._data = data
        self._is_inline = is_inline

    @classmethod
    def of(cls, spark: SparkSession, pieces: Sequence[Buffer]) -> Parcel:
        """A parcel of these runs of bytes, one after the other. Uploads them where they are too many for a closure."""
        views = [memoryview(piece) for piece in pieces]
        hasher = hashlib.sha256()
        for view in views:
            hasher.update(view)
        digest = hasher.hexdigest()
        if not is_remote(spark) or sum(view.nbytes for view in views) <= _INLINE_BYTES:
            return cls(digest, views[0].tobytes() if len(views) == 1 else b"".join(views), is_inline=True)
        _upload(spark, digest, views)
        own = views[0].obj if len(views) == 1 else None
        return cls(digest, own if isinstance(own, bytes) else None, is_inline=False)

    def read(self) -> bytes:
        """All of it, in a task; also where it was made, if that was from one piece of ``bytes``."""
        if self._data is not None:
            return self._data
        with open(self._path(), "rb") as file:
            return file.read()

    def view(self) -> memoryview:
        """All of it, in a task, without reading it before it is used."""
        if self._data is not None:
            return memoryview(self._data)
        with open(self._path(), "rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def _path(self) -> str:
        from pyspark import SparkFiles

        return SparkFiles.get(_name(self.digest))

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (self.digest, self._data if self._is_inline else None)


def _arrived(digest: str, data: bytes | None) -> Parcel:
    return Parcel(digest, data, is_inline=data is not None)


def _name(digest: str) -> str:
    return f"firesteel-{digest}"


def _upload(spark: SparkSession, digest: str, views: Sequence[memoryview]) -> None:
    """Once for each session: an artifact stays as long as that, and its name says what is in it."""
    key = (str(getattr(spark, "session_id", id(spark))), digest)
    with _sending:
        if key in _sent:
            return
        with tempfile.TemporaryDirectory(prefix="firesteel-") as folder:
            path = os.path.join(folder, _name(digest))
            with open(path, "wb") as file:
                for view in views:
                    file.write(view)
            spark.addArtifacts(path, file=True)
        _sent.add(key)
