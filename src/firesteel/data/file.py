"""Files wherever they lie: local paths, and ``hdfs://``, ``s3://``, ``dbfs:/`` and others through fsspec.

Local paths (also ``file://…``, and ``dbfs:/…`` where Databricks has mounted it) need no further package. Everything
here works on the driver and in tasks alike.
"""

from __future__ import annotations

import glob as globs
import os
import re
import shutil
from collections.abc import Iterable
from io import BytesIO
from typing import IO, TYPE_CHECKING, Any, Protocol

import numpy as np

from firesteel.core.errors import PlanError, UnsupportedError, missing_extra

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = [
    "exists",
    "get_remote_dir_to_local",
    "get_remote_file_to_local",
    "get_remote_files_with_prefix_to_local",
    "is_file",
    "listdir",
    "load_numpy",
    "makedirs",
    "open_image",
    "open_text",
    "put_local_dir_to_remote",
    "put_local_dir_tree_to_remote",
    "put_local_file_to_remote",
    "put_local_files_with_prefix_to_remote",
    "rmdir",
    "write_text",
]

Path = str | os.PathLike[str]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
_DBFS_MOUNT = "/dbfs"


# Reading


def open_text(path: Path) -> list[str]:
    """The lines of a UTF-8 text file, without their ends."""
    data = read_bytes(path).decode("utf-8")
    lines = data.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return lines if lines[-1] else lines[:-1]


def open_image(path: Path) -> Image:
    """A Pillow image. The file is read and closed; pixels are decoded when they are first asked for."""
    return decode_image(read_bytes(path), path)


def load_numpy(path: Path) -> Any:
    """The array of a ``.npy`` file, or the mapping of a ``.npz`` file. Pickled objects are refused.

    Raises:
        ValueError: the file holds Python objects, which only unpickling could read.
    """
    files, place = files_of(path)
    with files.open(place, "rb") as stream:
        is_zip = stream.read(2) == b"PK"
        stream.seek(0)
        # The mapping reads its arrays when asked, so it gets bytes of its own and no file stays open.
        return np.load(BytesIO(stream.read()) if is_zip else stream, allow_pickle=False)


def exists(path: Path) -> bool:
    """Whether there is a file or folder."""
    files, place = files_of(path)
    return files.exists(place)


def is_file(path: Path) -> bool:
    """Whether there is a file (not a folder)."""
    files, place = files_of(path)
    return files.is_file(place)


def listdir(path: Path) -> list[str]:
    """The names in a folder, sorted."""
    files, place = files_of(path)
    return files.names(place)


# Writing


def makedirs(path: Path) -> None:
    """Make a folder, and those above it. One that is there already is left alone."""
    files, place = files_of(path)
    files.make_folder(place)


def rmdir(path: Path) -> None:
    """Remove a folder with everything in it."""
    files, place = files_of(path)
    if not files.exists(place):
        raise FileNotFoundError(f"cannot remove {path}: no such folder")
    if files.is_file(place):
        raise NotADirectoryError(f"cannot remove {path}: it is a file")
    files.remove_tree(place)


def write_text(path: Path, text: str) -> int:
    """Write a UTF-8 text file, in the place of one that is there. Returns the number of characters."""
    files, place = files_of(path)
    with files.open(place, "wb") as stream:
        stream.write(text.encode("utf-8"))
    return len(text)


# Copying


def put_local_file_to_remote(
    local_path: Path, remote_path: Path, filemode: int | None = None, over_write: bool = False
) -> None:
    """Copy a local file. Folders above the target are made; where the target is a folder, the file goes into it.

    Args:
        local_path: the file.
        remote_path: where to.
        filemode: permissions of the copy, such as ``0o644``, where the file system has them.
        over_write: whether a file that is there is replaced.

    Raises:
        FileExistsError: the target exists, and ``over_write`` is not set.
    """
    files, target = files_of(remote_path)
    if filemode is not None and not files.has_modes:
        raise UnsupportedError(f"filemode: the file system of {remote_path} has no permissions to set")
    source = _local(local_path)
    target = _inside(files, target, source)
    _copy_all(_LOCAL, files, [(source, target)], over_write)
    if filemode is not None:
        files.set_mode(target, filemode)


def put_local_dir_to_remote(local_dir: Path, remote_dir: Path, over_write: bool = False) -> None:
    """Copy the files that lie directly in a local folder. ``FileExistsError`` before anything is copied."""
    source = _local(local_dir)
    names = [name for name in _LOCAL.names(source) if os.path.isfile(os.path.join(source, name))]
    _copy_names(_LOCAL, source, *files_of(remote_dir), names, over_write)


def put_local_dir_tree_to_remote(local_dir: Path, remote_dir: Path, over_write: bool = False) -> None:
    """Copy a local folder with its subfolders. ``FileExistsError`` before anything is copied."""
    source = _local(local_dir)
    _copy_names(_LOCAL, source, *files_of(remote_dir), _LOCAL.tree(source), over_write)


def put_local_files_with_prefix_to_remote(local_path_prefix: Path, remote_dir: Path, over_write: bool = False) -> None:
    """Copy the local files whose path begins so, such as ``/tmp/model.ckpt``, into a folder."""
    folder, names = _with_prefix(_LOCAL, _local(local_path_prefix))
    _copy_names(_LOCAL, folder, *files_of(remote_dir), names, over_write)


def get_remote_file_to_local(remote_path: Path, local_path: Path, over_write: bool = False) -> None:
    """Copy a file to a local path, or into a local folder. ``FileExistsError`` as for the other direction."""
    files, source = files_of(remote_path)
    _copy_all(files, _LOCAL, [(source, _inside(_LOCAL, _local(local_path), source))], over_write)


def get_remote_dir_to_local(remote_dir: Path, local_dir: Path, over_write: bool = False) -> None:
    """Copy a folder with its subfolders to a local one. ``FileExistsError`` before anything is copied."""
    files, source = files_of(remote_dir)
    if not files.exists(source):
        raise FileNotFoundError(f"No such file or directory: {remote_dir}")
    _copy_names(files, source, _LOCAL, _local(local_dir), files.tree(source), over_write)


def get_remote_files_with_prefix_to_local(remote_path_prefix: Path, local_dir: Path, over_write: bool = False) -> str:
    """Copy the files whose path begins so into a local folder. Returns the local path that the copies begin with."""
    files, prefix = files_of(remote_path_prefix)
    folder, names = _with_prefix(files, prefix)
    target = _local(local_dir)
    _copy_names(files, folder, _LOCAL, target, names, over_write)
    return os.path.join(target, prefix.rpartition("/")[2])


def _with_prefix(files: Files, prefix: str) -> tuple[str, list[str]]:
    folder, _, begin = prefix.rpartition("/")
    folder = folder or ("/" if prefix.startswith("/") else ".")
    names = [name for name in files.names(folder) if name.startswith(begin) and files.is_file(f"{folder}/{name}")]
    if not names:
        raise FileNotFoundError(f"No such file or directory: no file begins with {prefix}")
    return folder, names


def _inside(files: Files, target: str, source: str) -> str:
    is_folder = files.exists(target) and not files.is_file(target)
    return f"{target.rstrip('/')}/{os.path.basename(source)}" if is_folder else target


def _copy_names(
    source_files: Files, source: str, target_files: Files, target: str, names: Iterable[str], over_write: bool
) -> None:
    pairs = [(f"{source.rstrip('/')}/{name}", f"{target.rstrip('/')}/{name}") for name in names]
    target_files.make_folder(target)
    _copy_all(source_files, target_files, pairs, over_write)


def _copy_all(source_files: Files, target_files: Files, pairs: list[tuple[str, str]], over_write: bool) -> None:
    if not over_write:
        for _, target in pairs:
            if target_files.exists(target):
                raise FileExistsError(f"{target} exists; pass over_write=True to replace it")
    for source, _ in pairs:
        if not source_files.is_file(source):
            raise FileNotFoundError(f"No such file or directory: {source}")
    for source, target in pairs:
        target_files.make_folder(target.rpartition("/")[0] or ("/" if target.startswith("/") else "."))
        with source_files.open(source, "rb") as reader, target_files.open(target, "wb") as writer:
            shutil.copyfileobj(reader, writer, 1 << 20)


# For other modules: one face for the local file system and fsspec's


class Files(Protocol):
    """What is asked of a file system. Paths are those that ``files_of`` gives: without ``file://``, for example."""

    is_local: bool
    has_modes: bool

    def open(self, path: str, mode: str) -> IO[bytes]:
        """A stream of bytes: ``"rb"`` or ``"wb"``."""
        ...

    def exists(self, path: str) -> bool:
        """Whether there is a file or folder."""
        ...

    def is_file(self, path: str) -> bool:
        """Whether there is a file."""
        ...

    def names(self, folder: str) -> list[str]:
        """The names in a folder, sorted."""
        ...

    def tree(self, folder: str) -> list[str]:
        """The files below a folder, relative to it, sorted."""
        ...

    def glob(self, pattern: str) -> list[str]:
        """The paths that match, sorted."""
        ...

    def make_folder(self, path: str) -> None:
        """Make a folder and its parents where they are not there."""
        ...

    def remove_tree(self, path: str) -> None:
        """Remove a folder and everything in it."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file."""
        ...

    def move(self, source: str, target: str) -> None:
        """Give a file or folder another name; the target must not exist."""
        ...

    def replace(self, source: str, target: str) -> None:
        """Give a file the name of another, which goes: at once on a local disk, elsewhere one after the other."""
        ...

    def set_mode(self, path: str, mode: int) -> None:
        """Set a file's permissions."""
        ...

    def copy_mode(self, source: str, target: str) -> None:
        """Give a folder another's permissions, where there are any."""
        ...

    def url(self, path: str) -> str:
        """The path as other processes can find it."""
        ...


class _Local:
    """The local file system. Methods are those of ``Files``."""

    is_local = True
    has_modes = True

    def open(self, path: str, mode: str) -> IO[bytes]:
        return open(path, mode)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_file(self, path: str) -> bool:
        return os.path.isfile(path)

    def names(self, folder: str) -> list[str]:
        return sorted(os.listdir(folder))

    def tree(self, folder: str) -> list[str]:
        if not os.path.isdir(folder):
            raise FileNotFoundError(f"No such file or directory: {folder}")
        found = (os.path.join(top, name) for top, _, names in os.walk(folder) for name in names)
        return sorted(os.path.relpath(path, folder) for path in found)

    def glob(self, pattern: str) -> list[str]:
        return sorted(globs.glob(pattern, recursive=True))

    def make_folder(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def remove_tree(self, path: str) -> None:
        shutil.rmtree(path)

    def move(self, source: str, target: str) -> None:
        os.rename(source, target)

    def remove(self, path: str) -> None:
        os.remove(path)

    def replace(self, source: str, target: str) -> None:
        os.replace(source, target)

    def set_mode(self, path: str, mode: int) -> None:
        os.chmod(path, mode)

    def copy_mode(self, source: str, target: str) -> None:
        shutil.copymode(source, target)

    def url(self, path: str) -> str:
        return os.path.abspath(path)


class _Remote:
    """A file system of fsspec's. Methods are those of ``Files``."""

    is_local = False

    def __init__(self, system: Any) -> None:
        self.system = system
        self.has_modes = hasattr(system, "chmod")

    def open(self, path: str, mode: str) -> IO[bytes]:
        return self.system.open(path, mode)  # type: ignore[no-any-return]

    def exists(self, path: str) -> bool:
        return bool(self.system.exists(path))

    def is_file(self, path: str) -> bool:
        return bool(self.system.isfile(path))

    def names(self, folder: str) -> list[str]:
        here = folder.strip("/")
        found = {str(path).rstrip("/") for path in self.system.ls(folder, detail=False)}
        # Object stores list a folder's own marker among its contents.
        return sorted(path.rpartition("/")[2] for path in found if path.strip("/") != here)

    def tree(self, folder: str) -> list[str]:
        here = folder.strip("/")
        return sorted(str(path).strip("/").removeprefix(here).lstrip("/") for path in self.system.find(folder))

    def glob(self, pattern: str) -> list[str]:
        return sorted(map(str, self.system.glob(pattern)))

    def make_folder(self, path: str) -> None:
        self.system.makedirs(path, exist_ok=True)

    def remove_tree(self, path: str) -> None:
        self.system.rm(path, recursive=True)

    def move(self, source: str, target: str) -> None:
        self.system.mv(source, target, recursive=True)

    def remove(self, path: str) -> None:
        self.system.rm_file(path)

    def replace(self, source: str, target: str) -> None:
        if self.exists(target):
            self.remove(target)
        self.system.mv(source, target)

    def set_mode(self, path: str, mode: int) -> None:
        self.system.chmod(path, mode)

    def copy_mode(self, source: str, target: str) -> None:
        pass

    def url(self, path: str) -> str:
        return str(self.system.unstrip_protocol(path))


_LOCAL: Files = _Local()


def files_of(path: Path) -> tuple[Files, str]:
    """The file system that a path speaks of, and the path as that knows it.

    Raises:
        ImportError: a remote path, and fsspec or the package for this file system is not installed.
        PlanError: a scheme that nobody knows.
    """
    text: Any = os.fspath(path)
    if not isinstance(text, str) or not text:
        raise PlanError(f"a path must be a string that is not empty, found {path!r}")
    match = _SCHEME.match(text)
    if match is None:
        return _LOCAL, text
    scheme, rest = match[1].lower(), text[match.end() - 1 :]
    if scheme == "file":
        return _LOCAL, "/" + rest.lstrip("/")
    if scheme == "dbfs":
        if os.path.isdir(_DBFS_MOUNT):
            return _LOCAL, f"{_DBFS_MOUNT}/{rest.lstrip('/')}"
        text = f"dbfs:///{rest.lstrip('/')}"
    try:
        from fsspec.core import url_to_fs  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        raise missing_extra("fsspec", "files") from None
    try:
        system, place = url_to_fs(text)
    except ValueError as error:  # fsspec's words name the scheme
        raise PlanError(f"cannot read {text}: {error}") from error
    return _Remote(system), str(place)


def read_bytes(path: Path) -> bytes:
    """A file's contents."""
    files, place = files_of(path)
    with files.open(place, "rb") as stream:
        return stream.read()


def decode_image(data: bytes, path: Path) -> Image:
    """A Pillow image of a file's contents; ``path`` is for messages."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise missing_extra("pillow", "images") from None
    try:
        return Image.open(BytesIO(data))
    except UnidentifiedImageError as error:
        raise UnidentifiedImageError(f"{os.fspath(path)} is no image that Pillow can read") from error


def _local(path: Path) -> str:
    files, place = files_of(path)
    if files is not _LOCAL:
        raise PlanError(f"{path} must be a local path")
    return place
