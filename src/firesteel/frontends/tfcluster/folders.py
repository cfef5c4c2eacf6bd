"""A model's folder, wherever Spark can read it: as a local one, and as files in memory."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urlparse

from firesteel.core.errors import PlanError

__all__ = ["local_folder", "read_folder", "write_folder"]


@contextlib.contextmanager
def local_folder(spark: Any, path: str) -> Iterator[str]:
    """The folder itself where it is on this machine, else a copy for as long as it is needed. Driver only."""
    parts = urlparse(path)
    if parts.scheme in ("", "file"):
        folder = unquote(parts.path) if parts.scheme else path
        if not os.path.isdir(folder):
            raise PlanError(f"there is no folder {path!r} to read a model from")
        yield folder
        return
    place = spark._jvm.org.apache.hadoop.fs.Path(path)
    system = place.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    if not system.exists(place):
        raise PlanError(f"there is no folder {path!r} to read a model from")
    with tempfile.TemporaryDirectory(prefix="firesteel-") as above:
        folder = os.path.join(above, "model")
        system.copyToLocalFile(False, place, spark._jvm.org.apache.hadoop.fs.Path(f"file://{folder}"), True)
        yield folder


def read_folder(folder: str) -> dict[str, bytes]:
    """All files below a folder, by their relative names with slashes."""
    found = {}
    for above, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(above, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, folder).replace(os.sep, "/")] = file.read()
    return found


def write_folder(folder: str, files: Mapping[str, bytes]) -> None:
    """The reverse of ``read_folder``."""
    for name, data in files.items():
        path = os.path.join(folder, *name.split("/"))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)
