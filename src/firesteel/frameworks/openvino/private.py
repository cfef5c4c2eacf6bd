"""OpenVINO's tools report to nobody while they work for us."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

__all__ = ["private"]


@contextlib.contextmanager
def private() -> Iterator[None]:
    """Import OpenVINO, and convert models, inside.

    It tells its makers of every import and conversion, from a process that it forks from this one, unless it believes
    to run in a CI job. Nobody asked our users, and a fork of a driver or a task with its threads is no small thing.
    """
    before = {name: os.environ.get(name) for name in ("CI", "NNCF_CI")}
    os.environ.update(dict.fromkeys(before, "true"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
