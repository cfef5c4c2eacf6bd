"""What turns gradients into updates, as a value: BigDL's optimizers, with their names, settings and defaults.

A value says which arithmetic with which numbers; a framework's bench builds its own optimizer from it. What does not
depend on a framework is here: the checks, and the learning rate of every update.

>>> [round(SGD(0.1, learningrate_decay=1.0).rate(n), 6) for n in range(3)]
[0.1, 0.05, 0.033333]
"""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
from dataclasses import KW_ONLY, InitVar, dataclass
from typing import Any, ClassVar, Self

from firesteel.core.errors import CheckpointError, PlanError
from firesteel.core.schedules import (
    Count,
    Default,
    Factors,
    Flag,
    NonNegative,
    NonPositive,
    PositiveCount,
    Schedule,
    SequentialSchedule,
    Share,
    Value,
    Whole,
)

__all__ = ["LBFGS", "SGD", "Adadelta", "Adagrad", "Adam", "Adamax", "Ftrl", "OptimMethod", "ParallelAdam", "RMSprop"]


@dataclass(frozen=True)
class OptimMethod(Value):
    """An optimizer's settings. Every optimizer accepts a schedule, under both spellings of BigDL's parameter."""

    _abstract: ClassVar[bool] = True
    _: KW_ONLY
    leaningrate_schedule: InitVar[Schedule | None] = None

    def __post_init__(self, bigdl_type: str, leaningrate_schedule: Schedule | None) -> None:
        super().__post_init__(bigdl_type)
        both = (getattr(self, "learningrate_schedule", None), leaningrate_schedule)
        given = [one for one in both if one is not None]
        if len(given) == 2:
            raise PlanError(f"{type(self).__name__} takes learningrate_schedule or leaningrate_schedule, not both.")
        for schedule in given:
            if not isinstance(schedule, Schedule):
                raise self._wrong("learningrate_schedule", "a schedule", schedule)
            copy = schedule.finished() if isinstance(schedule, SequentialSchedule) else schedule
            object.__setattr__(self, "learningrate_schedule", copy)

    @property
    def schedule(self) -> Schedule:
        """How the rate moves: the schedule given, else BigDL's ``Default``."""
        return getattr(self, "learningrate_schedule", None) or Default()

    @property
    def base_rate(self) -> float:
        """The rate that the schedule starts from. `Adadelta` has none of its own: 1."""
        return float(getattr(self, "learningrate", 1.0))

    @property
    def decay(self) -> float:
        """``learningrate_decay``, which only `Default` heeds; 0 where the optimizer has none."""
        return float(getattr(self, "learningrate_decay", 0.0))

    @property
    def is_constant(self) -> bool:
        """Whether all updates have the same rate."""
        return isinstance(self.schedule, Default) and self.decay == 0

    def rate(self, n: int) -> float:
        """The rate of update ``n``, counted from 0. With a ``Plateau``, the rate before anything was observed."""
        return self.schedule.rate(n, self.base_rate, self.decay)

    def part(self, start: int, stop: int) -> Self:
        """The optimizer for elements ``start`` to ``stop`` of all parameters laid end to end: one rank's slice."""
        return self

    # --- what a training left behind; beside the value, which stays as it is ---

    @property
    def state(self) -> bytes | None:
        """What the last training with this optimizer left behind (moments, the number of updates), as safetensors."""
        found: bytes | None = self.__dict__.get("_state")
        return found

    @property
    def start_state(self) -> bytes | None:
        """What a training with this optimizer begins with: the state that came with `load`, else nothing."""
        found: bytes | None = self.__dict__.get("_start_state")
        return found

    def keep_state(self, state: bytes | None) -> None:
        """Remember what a training left behind, for `save`."""
        object.__setattr__(self, "_state", state)

    def save(self, path: str, overWrite: bool = False) -> None:  # noqa: N803 - BigDL's spelling
        """Write settings and state into one safetensors file, the settings as JSON in its header.

        Raises:
            FileExistsError: there is such a file already, unless ``overWrite``.
        """
        target = os.fspath(path).removeprefix("file://")
        if not overWrite and os.path.exists(target):
            raise FileExistsError(f"{path} exists already; pass overWrite=True to replace it")
        header, content = _parted(self.state or _EMPTY)
        header.setdefault("__metadata__", {})[_SETTINGS] = json.dumps(self.settings())
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        os.makedirs(os.path.dirname(target) or ".", exist_ok=True)
        beside = f"{target}.{secrets.token_hex(4)}.part"
        with open(beside, "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text + content)
        os.replace(beside, target)

    @staticmethod
    def load(path: str) -> OptimMethod:
        """What `save` wrote; a training with it begins with the state that was saved."""
        with open(os.fspath(path).removeprefix("file://"), "rb") as file:
            data = file.read()
        try:
            header, content = _parted(data)
            settings = json.loads(header["__metadata__"].pop(_SETTINGS))
        except (ValueError, KeyError, AttributeError, TypeError):
            raise CheckpointError(f"{path} is not an optim method that was saved", path=os.fspath(path)) from None
        method = OptimMethod.from_settings(settings)
        if header["__metadata__"] or content:
            text = json.dumps(header).encode()
            state = len(text).to_bytes(8, "little") + text + content
            method.keep_state(state)
            object.__setattr__(method, "_start_state", state)
        return method


_SETTINGS = "firesteel.method"
_EMPTY = (2).to_bytes(8, "little") + b"{}"


def _parted(data: bytes) -> tuple[dict[str, Any], bytes]:
    """A safetensors file's header and the rest."""
    end = 8 + int.from_bytes(data[:8], "little")
    if not 8 < end <= len(data):
        raise ValueError
    return json.loads(data[8:end]), data[end:]


@dataclass(frozen=True)
class _Scheduled(OptimMethod):
    # Apart from OptimMethod, because in SGD this field has a place among the positional ones.
    _abstract: ClassVar[bool] = True
    _: KW_ONLY
    learningrate_schedule: Schedule | None = None


@dataclass(frozen=True)
class SGD(OptimMethod):
    """Gradient descent with momentum.

    ``dampening`` not given means equal to ``momentum``, unlike torch's 0. ``learningrates`` multiply the rate and
    ``weightdecays`` stand for ``weightdecay``: one number for each element of the parameters laid end to end.
    """

    learningrate: NonNegative = 1e-3
    learningrate_decay: NonNegative = 0.0
    weightdecay: NonNegative = 0.0
    momentum: NonNegative = 0.0
    dampening: NonNegative | None = None
    nesterov: Flag = False
    learningrate_schedule: Schedule | None = None
    learningrates: Factors | None = None
    weightdecays: Factors | None = None

    def __post_init__(self, bigdl_type: str, leaningrate_schedule: Schedule | None) -> None:
        super().__post_init__(bigdl_type, leaningrate_schedule)
        if self.nesterov and (self.momentum == 0 or self.damping != 0):
            raise PlanError(
                "SGD with nesterov needs a momentum > 0 and dampening=0; dampening not given means equal to momentum."
            )
        if self.weightdecay and self.weightdecays is not None:
            raise PlanError("SGD takes weightdecay for all elements or weightdecays for each, not both.")
        lengths = {len(factors) for factors in (self.learningrates, self.weightdecays) if factors is not None}
        if len(lengths) > 1:
            raise PlanError("SGD's learningrates and weightdecays must have the same length: one for each element.")

    @property
    def damping(self) -> float:
        """The dampening in force."""
        return self.momentum if self.dampening is None else self.dampening

    def part(self, start: int, stop: int) -> Self:
        """The same with the factors of those elements only."""
        return dataclasses.replace(
            self,
            learningrates=self.learningrates and self.learningrates[start:stop],
            weightdecays=self.weightdecays and self.weightdecays[start:stop],
        )


@dataclass(frozen=True)
class Adam(_Scheduled):
    """Adam whose epsilon is added before the bias correction: it differs from torch's by about epsilon."""

    learningrate: NonNegative = 1e-3
    learningrate_decay: NonNegative = 0.0
    beta1: Share = 0.9
    beta2: Share = 0.999
    epsilon: NonNegative = 1e-8


@dataclass(frozen=True)
class ParallelAdam(Adam):
    """`Adam`. ``parallel_num`` set BigDL's threads; here the framework has its own."""

    parallel_num: Whole = -1


@dataclass(frozen=True)
class Adagrad(_Scheduled):
    """Adagrad."""

    learningrate: NonNegative = 1e-3
    learningrate_decay: NonNegative = 0.0
    weightdecay: NonNegative = 0.0


@dataclass(frozen=True)
class RMSprop(_Scheduled):
    """RMSprop."""

    learningrate: NonNegative = 1e-2
    learningrate_decay: NonNegative = 0.0
    decayrate: Share = 0.99
    epsilon: NonNegative = 1e-8


@dataclass(frozen=True)
class Adadelta(_Scheduled):
    """Adadelta. It finds its own rate; a schedule's base is 1."""

    decayrate: Share = 0.9
    epsilon: NonNegative = 1e-10


@dataclass(frozen=True)
class Adamax(_Scheduled):
    """Adamax."""

    learningrate: NonNegative = 0.002
    beta1: Share = 0.9
    beta2: Share = 0.999
    epsilon: NonNegative = 1e-38


@dataclass(frozen=True)
class Ftrl(_Scheduled):
    """Follow the regularized leader, for sparse linear models: weights whose gradients sum up to little become 0."""

    learningrate: NonNegative = 1e-3
    learningrate_power: NonPositive = -0.5
    initial_accumulator_value: NonNegative = 0.1
    l1_regularization_strength: NonNegative = 0.0
    l2_regularization_strength: NonNegative = 0.0
    l2_shrinkage_regularization_strength: NonNegative = 0.0


@dataclass(frozen=True)
class LBFGS(_Scheduled):
    """L-BFGS with steps of a fixed length.

    Each update evaluates its batch up to ``max_eval`` times, by default ``max_iter * 5 // 4``.
    """

    max_iter: PositiveCount = 20
    max_eval: PositiveCount | None = None
    tolfun: NonNegative = 1e-5
    tolx: NonNegative = 1e-9
    ncorrection: Count = 100
    learningrate: NonNegative = 1.0
    verbose: Flag = False
    linesearch: None = None
    linesearch_options: None = None

    def __post_init__(self, bigdl_type: str, leaningrate_schedule: Schedule | None) -> None:
        super().__post_init__(bigdl_type, leaningrate_schedule)
        for name in ("linesearch", "linesearch_options"):
            if getattr(self, name) is not None:
                raise self._wrong(name, "None, for its steps have a fixed length", getattr(self, name))
