"""Paths as programs of a cluster write them: relative to Spark's default file system, or to the driver's folder."""

from __future__ import annotations

import getpass
import logging
from typing import Any, Protocol

__all__ = ["Places", "default_file_system", "hdfs_path"]

_log = logging.getLogger(__name__)

_SCHEMES = (
    "abfs",
    "abfss",
    "adl",
    "dbfs",
    "file",
    "gs",
    "hdfs",
    "oss",
    "s3",
    "s3a",
    "s3n",
    "swift",
    "viewfs",
    "wasb",
    "wasbs",
)
_LOCAL = "file://"
_WITH_HOMES = ("hdfs://", "viewfs://")


class Places(Protocol):
    """What a path is relative to."""

    defaultFS: str  # noqa: N815 - the document's name
    working_dir: str


def default_file_system(context: Any) -> str:
    """Spark's default file system, with no slash at its end. Driver only."""
    found = str(context._jsc.hadoopConfiguration().get("fs.defaultFS"))
    return _LOCAL if found.rstrip("/") == "file:" else found.rstrip("/")


def hdfs_path(ctx: Places, path: str) -> str:
    """``path`` with its file system: as it is where it names one, else on Spark's default one.

    A relative path is below the driver's working directory (``file://``) or the user's home (``hdfs://``, ``viewfs://``).
    """
    if any(path.startswith(f"{scheme}://") for scheme in _SCHEMES):
        return path
    if path.startswith("/"):
        return f"{ctx.defaultFS}{path}"
    if ctx.defaultFS.startswith(_WITH_HOMES):
        return f"{ctx.defaultFS}/user/{getpass.getuser()}/{path}"
    if ctx.defaultFS.startswith(_LOCAL):
        return f"{ctx.defaultFS}{ctx.working_dir}/{path}"
    _log.warning("the relative path %s is taken to be below the default file system %s", path, ctx.defaultFS)
    return f"{ctx.defaultFS}/{path}"
