"""OpenVINO's tools report to nobody while they work for us."""

from __future__ import annotations

from contextlib import AbstractContextManager

from firesteel.core.environment import with_variables

__all__ = ["private"]


def private() -> AbstractContextManager[None]:
    """Import OpenVINO, and convert models, inside.

    It tells its makers of every import and conversion, from a process that it forks from this one, unless it believes
    to run in a CI job. Nobody asked our users, and a fork of a driver or a task with its threads is no small thing.
    """
    return with_variables({"CI": "true", "NNCF_CI": "true"})
