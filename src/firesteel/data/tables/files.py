"""The files of the pandas engine: found on the driver, read whole by tasks, through Python's own file systems."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from firesteel.core.errors import PlanError
from firesteel.data.file import Files, files_of
from firesteel.data.structure import even_boundaries

__all__ = ["as_paths", "group", "list_files"]

_PATTERN = re.compile(r"[*?\[]")


def as_paths(reader: str, file_path: Any) -> list[str]:
    """One path or several, as text."""
    given = list(file_path) if isinstance(file_path, (list, tuple)) else [file_path]
    if not given or not all(isinstance(path, (str, os.PathLike)) and os.fspath(path) for path in given):
        raise PlanError(f"{reader}: file_path must be a path, a pattern or a list of these, found {file_path!r}")
    paths = [os.fspath(path) for path in given]
    twice = sorted({path for path in paths if paths.count(path) > 1})
    if twice:
        raise PlanError(f"{reader}: file_path has {twice[0]} twice; each file can be read once")
    return paths


def list_files(reader: str, paths: Sequence[str]) -> list[str]:
    """The files under these paths, sorted by name, as any process can find them (driver).

    Args:
        reader: for messages.
        paths: files, folders and patterns. Folders in a folder do not count.

    Raises:
        PlanError: a path that does not exist, or no file at all.
    """
    found: list[str] = []
    for path in paths:
        files, place = files_of(path)
        if not files.exists(place) and not _PATTERN.search(place):
            raise PlanError(f"{reader}: Path does not exist: {path}")
        matches = [place] if files.exists(place) else [each for each in files.glob(place) if not _is_hidden(each)]
        for match in matches:
            inside = [match] if files.is_file(match) else _inside(files, match)
            found.extend(files.url(each) for each in inside)
    if not found:
        raise PlanError(f"{reader}: no file found under {', '.join(paths)} (names with _ or . in front do not count)")
    return sorted(set(found))


def _inside(files: Files, folder: str) -> list[str]:
    seen = [f"{folder.rstrip('/')}/{name}" for name in files.names(folder) if not _is_hidden(name)]
    return [path for path in seen if files.is_file(path)]


def _is_hidden(path: str) -> bool:
    return path.rstrip("/").rpartition("/")[2].startswith((".", "_"))


def group(files: Sequence[str], slots: int) -> list[list[str]]:
    """The files of each task: one, or neighbours where there are more files than slots."""
    bounds = even_boundaries(len(files), min(len(files), slots))
    return [list(files[begin:end]) for begin, end in pairwise(bounds)]
