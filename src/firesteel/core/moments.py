"""Named moments in a rank's life, told to a probe where there is one: how faults are put into a real training.

A training has no probe, and a moment then costs one comparison. ``firesteel.testing.faults`` gives one to the driver;
it travels with the plan to tasks and children.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["MOMENTS", "Probe", "install", "installed", "passing"]

MOMENTS = (
    "seated",  # the task has its seat; before the first row
    "spool",  # before each record batch that the task writes down
    "ready",  # the task has all its rows
    "wake",  # the child has the program, and no replica yet
    "join",  # before the child meets the others
    "restore",  # before a state is taken over
    "epoch",  # before an epoch's first step
    "step",  # before a step's gradients
    "agree",  # after the gradients, before replicas exchange them
    "update",  # after a step is whole
    "commit",  # inside a commit point: written, not yet said
    "validate",  # before each batch of a validation
    "checkpoint",  # before a checkpoint is handed over
    "result",  # before the result is handed over
)


class Probe(Protocol):
    """Called at every moment, in the process that it happens in; may do anything to that process."""

    def __call__(self, name: str, *, rank: int, generation: int, epoch: int, step: int) -> None:
        """``epoch`` and ``step`` count what is done; -1 before the training begins."""
        ...


_probe: Probe | None = None


def install(probe: Probe | None) -> None:
    """From now on tell this probe; ``None`` for nobody."""
    global _probe
    _probe = probe


def installed() -> Probe | None:
    """The probe of this process."""
    return _probe


def passing(name: str, *, rank: int, generation: int, epoch: int = -1, step: int = -1) -> None:
    """The moment ``name`` has come."""
    if _probe is not None:
        _probe(name, rank=rank, generation=generation, epoch=epoch, step=step)
