"""Which processes run below this one; any may end while it is looked at, and is then not there."""

from __future__ import annotations

from collections.abc import Iterable

import psutil

__all__ = ["below", "left", "words"]


def words(process: psutil.Process) -> list[str]:
    """Its command line; nothing of one that has ended."""
    try:
        return [] if process.status() == psutil.STATUS_ZOMBIE else process.cmdline()
    except (psutil.Error, OSError):
        return []


def below(word: str, among: Iterable[psutil.Process] | None = None) -> list[psutil.Process]:
    """Those whose command line has a word that begins so."""
    found = psutil.Process().children(recursive=True) if among is None else among
    return [process for process in found if any(each.startswith(word) for each in words(process))]


def left(among: Iterable[psutil.Process] | None = None) -> list[str]:
    """Command lines of ours; stems aside, which the tests' session asks Spark to keep."""
    lines = [" ".join(words(process)) for process in below("firesteel.", among)]
    return [line for line in lines if line and "firesteel.cluster.stem" not in line]
