"""Where files are: a path as the user writes it, as a file system and the path on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from firesteel.core.errors import PlanError, missing_extra

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

__all__ = ["place_of"]


def place_of(path: str) -> tuple[FileSystem, str]:
    """The file system and the path on it: local, what pyarrow knows (``hdfs``, ``s3``, ``gs``), what fsspec knows."""
    from pyarrow import fs

    scheme, separator, rest = path.partition("://")
    if not separator and path.startswith("dbfs:/"):
        return fs.LocalFileSystem(), "/dbfs/" + path.removeprefix("dbfs:").lstrip("/")
    if not separator or scheme == "file":
        return fs.LocalFileSystem(), (rest if separator else path.removeprefix("file:"))
    try:
        return fs.FileSystem.from_uri(path)  # type: ignore[no-any-return]
    except (ValueError, NotImplementedError):
        pass  # a scheme that pyarrow has not, or was built without
    try:
        import fsspec  # type: ignore[import-untyped, unused-ignore]
    except ModuleNotFoundError as error:
        raise missing_extra("fsspec", "files") from error
    try:
        found, inner = fsspec.core.url_to_fs(path)
    except (ValueError, ImportError) as error:
        raise PlanError(f"the path {path!r} is on no file system that is known here: {error}") from error
    return fs.PyFileSystem(fs.FSSpecHandler(found)), str(inner)
