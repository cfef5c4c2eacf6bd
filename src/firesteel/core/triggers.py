"""Triggers: questions about a run's progress, asked after every update and answered with yes or no.

They are values: the engine asks, and acts (validate, write a checkpoint, stop) elsewhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, InitVar, dataclass
from math import isnan
from numbers import Integral, Real
from typing import Any

from firesteel.core.errors import PlanError

__all__ = [
    "EveryEpoch",
    "MaxEpoch",
    "MaxIteration",
    "MaxScore",
    "MinLoss",
    "Progress",
    "SeveralIteration",
    "Trigger",
    "TriggerAnd",
    "TriggerOr",
    "as_trigger",
]


@dataclass(frozen=True)
class Progress:
    """Where a run stands after an update, counted from its very beginning: a resumed run goes on counting.

    Attributes:
        epoch: epochs done.
        step: updates done.
        is_epoch_end: whether the last update was its epoch's last; ``epoch`` counts that epoch already.
        loss: the last update's loss, None before the first.
        score: the first figure of the last validation, None before the first.
    """

    epoch: int
    step: int
    is_epoch_end: bool
    loss: float | None = None
    score: float | None = None


class Trigger(ABC):
    """A question about progress."""

    @property
    def needs_loss(self) -> bool:
        """Whether ``Progress.loss`` matters: agreeing on it after every update costs the replicas an exchange."""
        return False

    @abstractmethod
    def fires(self, progress: Progress) -> bool:
        """Whether it is time."""


@dataclass(frozen=True)
class _Value(Trigger):
    # Each takes BigDL's bigdl_type, which changes nothing.
    _: KW_ONLY
    bigdl_type: InitVar[str] = "float"

    def __post_init__(self, bigdl_type: str) -> None:
        if bigdl_type not in ("float", "double"):
            raise PlanError(f'{type(self).__name__}\'s bigdl_type is "float" or "double", not {bigdl_type!r}.')


@dataclass(frozen=True)
class EveryEpoch(_Value):
    """At each epoch's end."""

    def fires(self, progress: Progress) -> bool:
        """Whether the last update ended an epoch."""
        return progress.is_epoch_end


@dataclass(frozen=True)
class SeveralIteration(_Value):
    """After every ``interval`` updates."""

    interval: int

    def __post_init__(self, bigdl_type: str) -> None:
        super().__post_init__(bigdl_type)
        _check_count(self, "interval", self.interval)

    def fires(self, progress: Progress) -> bool:
        """Whether the number of updates is a multiple of the interval."""
        return progress.step > 0 and progress.step % self.interval == 0


@dataclass(frozen=True)
class MaxEpoch(_Value):
    """Once ``max_epoch`` epochs are done."""

    max_epoch: int

    def __post_init__(self, bigdl_type: str) -> None:
        super().__post_init__(bigdl_type)
        _check_count(self, "max_epoch", self.max_epoch)

    def fires(self, progress: Progress) -> bool:
        """Whether so many epochs are done."""
        return progress.epoch >= self.max_epoch


@dataclass(frozen=True)
class MaxIteration(_Value):
    """Once ``max`` updates are done."""

    max: int

    def __post_init__(self, bigdl_type: str) -> None:
        super().__post_init__(bigdl_type)
        _check_count(self, "max", self.max)

    def fires(self, progress: Progress) -> bool:
        """Whether so many updates are done."""
        return progress.step >= self.max


@dataclass(frozen=True)
class MaxScore(_Value):
    """When the last score is above ``max``; never before a validation."""

    max: float

    def __post_init__(self, bigdl_type: str) -> None:
        super().__post_init__(bigdl_type)
        _check_bound(self, "max", self.max)

    def fires(self, progress: Progress) -> bool:
        """Whether there is a score, and it is above the bound."""
        return progress.score is not None and progress.score > self.max


@dataclass(frozen=True)
class MinLoss(_Value):
    """When the last update's loss is below ``min``."""

    min: float

    def __post_init__(self, bigdl_type: str) -> None:
        super().__post_init__(bigdl_type)
        _check_bound(self, "min", self.min)

    @property
    def needs_loss(self) -> bool:
        """Always."""
        return True

    def fires(self, progress: Progress) -> bool:
        """Whether there is a loss, and it is below the bound."""
        return progress.loss is not None and progress.loss < self.min


@dataclass(frozen=True, init=False)
class _Combined(Trigger):
    first: Trigger
    other: tuple[Trigger, ...]

    # Written out because a dataclass cannot take *other, which is how BigDL's users write it.
    def __init__(self, first: Trigger | str, *other: Trigger | str) -> None:
        object.__setattr__(self, "first", as_trigger(first))
        object.__setattr__(self, "other", tuple(as_trigger(trigger) for trigger in other))

    @property
    def needs_loss(self) -> bool:
        """Whether one of them does."""
        return any(trigger.needs_loss for trigger in (self.first, *self.other))


@dataclass(frozen=True, init=False)
class TriggerAnd(_Combined):
    """When all of them fire."""

    def fires(self, progress: Progress) -> bool:
        """Whether all of them fire."""
        return all(trigger.fires(progress) for trigger in (self.first, *self.other))


@dataclass(frozen=True, init=False)
class TriggerOr(_Combined):
    """When any of them fires."""

    def fires(self, progress: Progress) -> bool:
        """Whether at least one of them fires."""
        return any(trigger.fires(progress) for trigger in (self.first, *self.other))


def as_trigger(value: Any) -> Trigger:
    """A trigger as it is, or the one that the string ``"everyepoch"`` (in any case) means.

    Raises:
        PlanError: anything else, with a list of what works.
    """
    if isinstance(value, Trigger):
        return value
    if isinstance(value, str) and value.lower() == "everyepoch":
        return EveryEpoch()
    raise PlanError(
        f"{value!r} is not a trigger: give 'everyepoch', EveryEpoch(), SeveralIteration(interval), "
        f"MaxEpoch(max_epoch), MaxIteration(max), MaxScore(max), MinLoss(min), TriggerAnd(first, *other) "
        f"or TriggerOr(first, *other)."
    )


def _check_count(trigger: Trigger, name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or value <= 0:
        raise PlanError(f"{type(trigger).__name__} needs a positive integer as {name}, not {value!r}.")


def _check_bound(trigger: Trigger, name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, Real) or isnan(value):
        raise PlanError(f"{type(trigger).__name__} needs a number as {name}, not {value!r}.")
