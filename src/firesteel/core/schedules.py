"""How a learning rate moves: each schedule is a value, and a pure function from the number of an update to a rate.

Updates count from 0. A schedule in a `SequentialSchedule` starts to count where the one before it ended, and takes that
one's last rate as its base. `Plateau` alone needs more than a number: it looks at one value per epoch, and what it has
seen lives in a `PlateauState`.

>>> [round(Poly(2, 4).rate(n, 0.1), 6) for n in range(6)]
[0.1, 0.05625, 0.025, 0.00625, 0.0, 0.0]
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import reprlib
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Self, TypeVar

from firesteel.core.errors import PlanError, UnknownName

__all__ = [
    "Default",
    "Exponential",
    "MultiStep",
    "Plateau",
    "PlateauState",
    "Poly",
    "Schedule",
    "SequentialSchedule",
    "Step",
    "Value",
    "Warmup",
]


_PLAIN: dict[type, Callable[[Any], float]] = {numbers.Real: float, numbers.Integral: int, bool: bool}


@dataclass(frozen=True)
class Limit:
    """What a setting must be. It stands in the setting's annotation, where a reader looks for it."""

    words: str
    holds: Callable[[Any], bool] = lambda value: True
    kind: type = numbers.Real
    many: bool = False

    def plain(self, value: Any) -> Any:
        """The value as a float, int, bool or a tuple of them, so that JSON can hold it; or a ``ValueError``."""
        if self.many:
            # A BigDL user has a JTensor, others an ndarray, a tensor or a list.
            array = value.to_ndarray() if hasattr(value, "to_ndarray") else value
            return tuple(self._one(item) for item in (array.tolist() if hasattr(array, "tolist") else array))
        return self._one(value)

    def _one(self, value: Any) -> Any:
        if not isinstance(value, self.kind) or (isinstance(value, bool) and self.kind is not bool):
            raise ValueError
        number = _PLAIN[self.kind](value)
        if not (math.isfinite(number) and self.holds(number)):
            raise ValueError
        return number


Number = Annotated[float, Limit("a number")]
NonNegative = Annotated[float, Limit("a number >= 0", lambda value: value >= 0)]
NonPositive = Annotated[float, Limit("a number <= 0", lambda value: value <= 0)]
Share = Annotated[float, Limit("a number >= 0 and < 1", lambda value: 0 <= value < 1)]
Whole = Annotated[int, Limit("a whole number", kind=numbers.Integral)]
Count = Annotated[int, Limit("a whole number >= 0", lambda value: value >= 0, numbers.Integral)]
_AT_LEAST_1 = Limit("a whole number >= 1", lambda value: value >= 1, numbers.Integral)
PositiveCount = Annotated[int, _AT_LEAST_1]
Counts = Annotated[
    Sequence[int], Limit("a sequence of whole numbers >= 0", lambda value: value >= 0, numbers.Integral, many=True)
]
Factors = Annotated[Sequence[float], Limit("a flat sequence of numbers >= 0", lambda value: value >= 0, many=True)]
Flag = Annotated[bool, Limit("True or False", kind=bool)]


@cache
def _limits(cls: Any) -> dict[str, tuple[Limit, bool]]:
    """For each setting of a class that has one: its limit, and whether it may be ``None``."""
    found = {}
    for name, hint in typing.get_type_hints(cls, include_extras=True).items():
        choices = (hint, *typing.get_args(hint))
        limits = [part for choice in choices for part in getattr(choice, "__metadata__", ()) if isinstance(part, Limit)]
        if limits:
            found[name] = (limits[0], type(None) in choices)
    return found


def check_settings(owner: Any) -> None:
    """Make every limited setting of ``owner`` plain, in place; ``PlanError`` where one breaks its limit."""
    kind: Any = type(owner)  # mypy takes a dataclass for unhashable, its class included
    for name, (limit, may_be_none) in _limits(kind).items():
        given = getattr(owner, name)
        if given is None and may_be_none:
            continue
        try:
            object.__setattr__(owner, name, limit.plain(given))
        except (TypeError, ValueError):
            raise wrong_setting(owner, name, limit.words, given) from None


def wrong_setting(owner: object, name: str, words: str, found: object) -> PlanError:
    """What to raise when a setting is not what it must be."""
    return PlanError(f"{type(owner).__name__}'s {name} must be {words}, not {reprlib.repr(found)}.")


@dataclass(frozen=True)
class Value:
    """A frozen value whose settings are checked when it is made, and which JSON can hold.

    Every class takes BigDL's ``bigdl_type``. It changes nothing: an optimizer computes in its parameters' dtype.
    """

    _abstract: ClassVar[bool] = True
    _: KW_ONLY
    bigdl_type: InitVar[str] = "float"

    def __post_init__(self, bigdl_type: str) -> None:
        if bigdl_type not in ("float", "double"):
            raise self._wrong("bigdl_type", '"float" or "double"', bigdl_type)
        check_settings(self)

    def _wrong(self, name: str, words: str, found: object) -> PlanError:
        return wrong_setting(self, name, words, found)

    def settings(self) -> dict[str, Any]:
        """The value as JSON can hold it: the name of its class under ``"class"``, and its fields."""
        fields = {field.name: _encode(getattr(self, field.name)) for field in dataclasses.fields(self)}
        return {"class": type(self).__name__, **fields}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """The value that ``settings()`` described, of this class or one below it; anything else is a ``PlanError``."""
        known = {kind.__name__: kind for kind in _family(cls) if "_abstract" not in vars(kind)}
        name = settings.get("class")
        if name not in known:
            raise UnknownName(cls.__name__, name, known)
        try:
            return known[name](**{key: _decode(item) for key, item in settings.items() if key != "class"})
        except TypeError as error:  # a missing or an unknown setting
            raise PlanError(f"These are not the settings of {name}: {error}.") from None


V = TypeVar("V", bound=Value)


def _family(cls: type[V]) -> list[type[V]]:
    return [cls, *(kind for below in cls.__subclasses__() for kind in _family(below))]


def _encode(value: Any) -> Any:
    if isinstance(value, Value):
        return value.settings()
    return [_encode(item) for item in value] if isinstance(value, tuple) else value


def _decode(value: Any) -> Any:
    if isinstance(value, Mapping):
        return Schedule.from_settings(value)
    return tuple(_decode(item) for item in value) if isinstance(value, (list, tuple)) else value


@dataclass(frozen=True)
class Schedule(Value):
    """A learning rate for every update."""

    _abstract: ClassVar[bool] = True
    _counts_from_start: ClassVar[bool] = True

    def rate(self, n: int, base: float, decay: float = 0.0, start: int = 0) -> float:
        """The rate of update ``n``.

        Args:
            n: the update, counted from 0 since training began.
            base: the optimizer's own rate, or the last rate of the schedule before this one.
            decay: the optimizer's ``learningrate_decay``; only `Default` heeds it.
            start: the update from which this schedule counts.
        """
        return float(self._rate(n - start if self._counts_from_start else n, base, decay))

    def _rate(self, n: int, base: float, decay: float) -> float:
        raise NotImplementedError


@dataclass(frozen=True)
class Default(Schedule):
    """``base / (1 + n * decay)``."""

    def _rate(self, n: int, base: float, decay: float) -> float:
        return base / (1 + n * decay)


@dataclass(frozen=True)
class Step(Schedule):
    """``base * gamma ** (n // step_size)``."""

    step_size: PositiveCount
    gamma: NonNegative

    def _rate(self, n: int, base: float, decay: float) -> float:
        return base * self.gamma ** (n // self.step_size)


@dataclass(frozen=True)
class MultiStep(Schedule):
    """``base * gamma ** k``, where k of the ``step_sizes`` are at or below n: they are updates, not distances."""

    step_sizes: Counts
    gamma: NonNegative

    def _rate(self, n: int, base: float, decay: float) -> float:
        return base * self.gamma ** sum(step <= n for step in self.step_sizes)


@dataclass(frozen=True)
class Exponential(Schedule):
    """``base * decay_rate ** (n / decay_step)``; with ``stair_case`` the division is a whole one."""

    decay_step: PositiveCount
    decay_rate: NonNegative
    stair_case: Flag = False

    def _rate(self, n: int, base: float, decay: float) -> float:
        return base * self.decay_rate ** (n // self.decay_step if self.stair_case else n / self.decay_step)


@dataclass(frozen=True)
class Poly(Schedule):
    """``base * (1 - n / max_iteration) ** power``, and 0 after ``max_iteration``.

    It counts from the very first update wherever it stands in a `SequentialSchedule`, as BigDL's does.
    """

    _counts_from_start: ClassVar[bool] = False
    power: NonNegative
    max_iteration: PositiveCount

    def _rate(self, n: int, base: float, decay: float) -> float:
        return 0.0 if n > self.max_iteration else base * (1 - n / self.max_iteration) ** self.power


@dataclass(frozen=True)
class Warmup(Schedule):
    """``base + delta * n``, without an end: in a `SequentialSchedule` the next one ends it."""

    delta: Number

    def _rate(self, n: int, base: float, decay: float) -> float:
        return base + self.delta * n


@dataclass(frozen=True)
class SequentialSchedule(Schedule):
    """One schedule after another; the last one goes on after its end.

    The first serves updates 0 to M₁ (both included), the next M₁+1 to M₁+M₂, and so on. It is the one schedule that is
    built step by step, so that it changes while `add` is called; an optimizer takes a copy. ``iteration_per_epoch`` has
    no effect, since no schedule here counts epochs but `Plateau`, which cannot be part of a sequence.
    """

    iteration_per_epoch: PositiveCount
    parts: tuple[tuple[Schedule, int], ...] = dataclasses.field(default=(), kw_only=True)

    def __post_init__(self, bigdl_type: str) -> None:
        super().__post_init__(bigdl_type)
        parts = self.parts
        object.__setattr__(self, "parts", ())
        for scheduler, max_iteration in parts:
            self.add(scheduler, max_iteration)

    def add(self, scheduler: Schedule, max_iteration: int) -> Self:
        """Appends ``scheduler`` for ``max_iteration`` updates, and returns this same object."""
        given: object = scheduler
        if not isinstance(given, Schedule) or isinstance(given, Plateau):
            raise self._wrong("scheduler", "a schedule that counts updates", scheduler)
        if isinstance(scheduler, SequentialSchedule):
            scheduler = scheduler.finished()
        try:
            length = _AT_LEAST_1.plain(max_iteration)
        except ValueError:
            raise self._wrong("max_iteration", _AT_LEAST_1.words, max_iteration) from None
        object.__setattr__(self, "parts", (*self.parts, (scheduler, length)))
        return self

    def finished(self) -> Self:
        """A copy that a later `add` does not change; a ``PlanError`` when there is nothing in it."""
        if not self.parts:
            raise PlanError(
                "A SequentialSchedule needs at least one schedule: call add(scheduler, max_iteration) first."
            )
        return dataclasses.replace(self)

    def rate(self, n: int, base: float, decay: float = 0.0, start: int = 0) -> float:
        """The rate of update ``n``, from the schedule whose turn it is."""
        *earlier, (last, _) = self.parts or self.finished().parts
        for schedule, length in earlier:
            end = start + length
            if n <= end:
                return schedule.rate(n, base, decay, start)
            base = schedule.rate(end, base, decay, start)
            start = end
        return last.rate(n, base, decay, start)


@dataclass(frozen=True)
class Plateau(Schedule):
    """Lowers the rate once a value has stopped improving: torch's ``ReduceLROnPlateau`` with an absolute threshold.

    ``monitor`` is ``"Loss"`` (training) or ``"score"`` (the first validation method). `rate` knows the base only; the
    rate in force is that of the state which `start` gives.
    """

    monitor: str
    factor: Share = 0.1
    patience: Count = 10
    mode: str = "min"
    epsilon: NonNegative = 1e-4
    cooldown: Count = 0
    min_lr: NonNegative = 0.0

    def __post_init__(self, bigdl_type: str) -> None:
        super().__post_init__(bigdl_type)
        if self.monitor not in ("Loss", "score"):
            raise self._wrong("monitor", '"Loss" or "score"', self.monitor)
        if self.mode not in ("min", "max"):
            raise self._wrong("mode", '"min" or "max"', self.mode)

    def _rate(self, n: int, base: float, decay: float) -> float:
        return base

    def start(self, base: float) -> PlateauState:
        """The state before the first epoch, at rate ``base``."""
        return PlateauState(self, base)


@dataclass
class PlateauState:
    """What a `Plateau` has seen: all that a checkpoint must hold of a schedule, besides the number of updates."""

    plateau: Plateau
    rate: float
    best: float | None = None
    bad_epochs: int = 0
    cooldown_left: int = 0

    def observe(self, value: float) -> float:
        """Takes the epoch's value, and returns the rate from now on."""
        sign = 1.0 if self.plateau.mode == "min" else -1.0
        best = sign * math.inf if self.best is None else self.best
        if sign * value < sign * best - self.plateau.epsilon:
            self.best, self.bad_epochs = float(value), 0
        else:  # NaN too: a diverged epoch is not a better one
            self.bad_epochs += 1
        if self.cooldown_left > 0:
            self.cooldown_left -= 1
            self.bad_epochs = 0
        if self.bad_epochs > self.plateau.patience:
            lower = max(self.rate * self.plateau.factor, self.plateau.min_lr)
            if self.rate - lower > 1e-8:  # torch's: a smaller change is not worth one
                self.rate = lower
            self.cooldown_left, self.bad_epochs = self.plateau.cooldown, 0
        return self.rate

    def settings(self) -> dict[str, Any]:
        """What was seen, without the plateau itself, as JSON can hold it."""
        return {name: value for name, value in vars(self).items() if name != "plateau"}
