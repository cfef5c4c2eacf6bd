"""Files by path or URL, written whole or not at all."""

from __future__ import annotations

import os
import posixpath
import secrets
from typing import Any

__all__ = ["exists", "is_file", "local_path", "names_in", "read_bytes", "remove", "write_bytes"]


def local_path(path: str | os.PathLike[str]) -> str | None:
    """The path on this machine that ``path`` names (``file://`` and ``dbfs:/`` too); ``None``: another file system."""
    text = os.fspath(path)
    if text.startswith("file://"):
        return text[len("file://") :]
    if text.startswith("file:"):
        return text[len("file:") :]
    if text.startswith("dbfs:/"):
        return "/dbfs/" + text[len("dbfs:/") :].lstrip("/")
    return None if "://" in text else text


def _remote(path: str) -> tuple[Any, str]:
    from pyarrow import fs

    system, inner = fs.FileSystem.from_uri(path)
    return system, inner


def exists(path: str) -> bool:
    """Whether there is a file or folder."""
    local = local_path(path)
    if local is not None:
        return os.path.exists(local)
    from pyarrow import fs

    system, inner = _remote(path)
    return bool(system.get_file_info(inner).type != fs.FileType.NotFound)


def is_file(path: str) -> bool:
    """Whether there is a file."""
    local = local_path(path)
    if local is not None:
        return os.path.isfile(local)
    from pyarrow import fs

    system, inner = _remote(path)
    return bool(system.get_file_info(inner).type == fs.FileType.File)


def names_in(path: str) -> list[str]:
    """What is in a folder, by name; nothing where there is no folder."""
    local = local_path(path)
    if local is not None:
        return os.listdir(local) if os.path.isdir(local) else []
    from pyarrow import fs

    system, inner = _remote(path)
    if system.get_file_info(inner).type != fs.FileType.Directory:
        return []
    return [posixpath.basename(each.path) for each in system.get_file_info(fs.FileSelector(inner))]


def remove(path: str) -> None:
    """Delete a file."""
    local = local_path(path)
    if local is not None:
        os.remove(local)
    else:
        system, inner = _remote(path)
        system.delete_file(inner)


def read_bytes(path: str) -> bytes:
    """A file's content; ``FileNotFoundError`` as usual."""
    local = local_path(path)
    if local is not None:
        with open(local, "rb") as file:
            return file.read()
    system, inner = _remote(path)
    with system.open_input_stream(inner) as stream:
        return bytes(stream.read())


def write_bytes(path: str, data: bytes, *, overwrite: bool = True) -> None:
    """Write under a temporary name and rename: a reader finds the old file or the new one, never half of it."""
    if not overwrite and exists(path):
        raise FileExistsError(f"{path} exists already; pass overwrite=True to replace it")
    name = f".{posixpath.basename(path)}.{secrets.token_hex(4)}.part"
    local = local_path(path)
    if local is not None:
        folder = os.path.dirname(local) or "."
        os.makedirs(folder, exist_ok=True)
        part = os.path.join(folder, name)
        try:
            with open(part, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, local)
        except BaseException:
            if os.path.exists(part):
                os.remove(part)
            raise
        return
    system, inner = _remote(path)
    system.create_dir(posixpath.dirname(inner), recursive=True)
    part = posixpath.join(posixpath.dirname(inner), name)
    with system.open_output_stream(part) as stream:
        stream.write(data)
    system.move(part, inner)
