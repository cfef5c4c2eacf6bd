"""A program on its way to the workers, and alive there: what scores rows in a task.

Scoring runs in Spark's own Python workers, which keep a few replicas between tasks.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from firesteel.cluster.devices import task_device
from firesteel.cluster.failure import Failure
from firesteel.cluster.parcel import Parcel
from firesteel.cluster.preflight import cores_per_task
from firesteel.cluster.travel import pack as pack_object
from firesteel.cluster.travel import unpack as unpack_object
from firesteel.core import registry
from firesteel.core.errors import FiresteelError, SchemaError
from firesteel.core.plan import Map, Reduce
from firesteel.core.spec import Batch, rows_of
from firesteel.engine.callbacks import Callbacks, Runner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Living", "Outputs", "Scorer", "first_rows", "join_rows", "make_scorer", "pieces"]

Outputs = dict[str, Any]
"""Arrays by name, or dicts of them; a single output is called ``prediction``."""

_REPLICAS_KEPT = 3
_living: OrderedDict[str, Living] = OrderedDict()


@dataclass(frozen=True)
class Living:
    """A replica in this process, who watches it, and what is made of its outputs."""

    replica: Any
    callbacks: Callbacks
    finish: Callable[[Outputs], Outputs] | None = None


@dataclass(frozen=True)
class Scorer:
    """What a task needs in order to score."""

    parcel: Parcel
    framework: str
    batch_size: int
    threads: int
    sys_path: tuple[str, ...]
    device: str = "auto"

    @contextlib.contextmanager
    def open(self) -> Iterator[Callable[[Batch], Outputs]]:
        """The function that scores a batch, between the hooks of one prediction. Runs in a task."""
        living = self.wake()
        living.callbacks.call("before_pred_epoch")
        yield partial(self._score, living, living.callbacks)
        living.callbacks.call("after_pred_epoch")

    def wake(self) -> Living:
        """The program alive in this task's process, which keeps it."""
        device = task_device(self.device)
        key = f"{self.parcel.digest} on {device}"
        living = _living.pop(key, None) or self._bring_to_life(self.threads, device)
        _living[key] = living
        while len(_living) > _REPLICAS_KEPT:
            _living.popitem(last=False)
        return living

    def try_out(self, batch: Batch) -> Outputs:
        """Outputs for these few rows, computed on the driver, which keeps nothing of it. Calls no hooks.

        Raises:
            ReplicaFailed: the user's code raised, as it would in a task.
        """
        try:
            return self._score(self._bring_to_life(0), None, batch)
        except FiresteelError:
            raise
        except Exception as error:
            raise Failure.of(error, rank=0, host=socket.gethostname()).error() from error

    def unpack(self, payload: bytes) -> Any:
        """Open what the driver packed, with the driver's modules within reach. Runs in a task."""
        sys.path.extend(path for path in self.sys_path if path not in sys.path)
        return unpack_object(payload)

    def _bring_to_life(self, threads: int, device: str = "cpu") -> Living:
        plan, callbacks, config = self.unpack(self.parcel.read())
        replica: Any = registry.framework(plan.program.framework).replica(plan.program, device, threads)
        runner = Runner(rank=0, num_workers=1, config=config)
        listed = Callbacks(callbacks, runner)
        if listed:
            replica.main, replica.runner = listed.main, runner
            runner.model, runner.criterion = replica.model, replica.loss_function
        return Living(replica, listed, getattr(plan, "finish", None))

    def _score(self, living: Living, callbacks: Callbacks | None, batch: Batch) -> Outputs:
        if rows_of(batch) == 0:
            # Not every model takes no rows, but each knows its outputs for one.
            one = {name: np.zeros((1, *values.shape[1:]), values.dtype) for name, values in batch.items()}
            return first_rows(self._score(living, None, one), 0)
        parts = []
        for piece in pieces(batch, self.batch_size):
            if callbacks is not None:
                callbacks.call("before_pred_iter")
            outputs = dict(living.replica.forward(piece))
            _check_rows(outputs, rows_of(piece))
            if living.finish is not None:
                outputs = living.finish(outputs)
            parts.append(outputs)
            if callbacks is not None:
                callbacks.call("after_pred_iter")
        return join_rows(parts)


def make_scorer(spark: SparkSession, plan: Map | Reduce, callbacks: Sequence[Any] = (), config: Any = None) -> Scorer:
    """Pack a plan for the workers. Driver only."""
    payload = pack_object((plan, tuple(callbacks), dict(config or {})), "the program")
    reach = tuple(path for path in sys.path if path)
    parcel, device = Parcel.of(spark, [payload]), plan.device if isinstance(plan, Map) else "auto"
    return Scorer(parcel, plan.program.framework, plan.batch_size, cores_per_task(spark), reach, device)


def pieces(batch: Batch, size: int) -> Iterator[Batch]:
    """The rows, at most ``size`` at a time."""
    for begin in range(0, rows_of(batch), size):
        yield {name: values[begin : begin + size] for name, values in batch.items()}


def first_rows(outputs: Outputs, count: int) -> Outputs:
    """The outputs of the first rows alone."""
    return {
        name: first_rows(value, count) if isinstance(value, dict) else value[:count] for name, value in outputs.items()
    }


def _check_rows(outputs: Outputs, rows: int) -> None:
    for name, value in outputs.items():
        if isinstance(value, dict):
            _check_rows(value, rows)
        elif value.ndim == 0 or len(value) != rows:
            raise SchemaError(
                f"the model must give one row of output for each row of input: for {rows} rows its output {name!r} has "
                f"shape {value.shape}",
                expected=f"({rows}, …)",
                found=str(value.shape),
            )


def join_rows(parts: Sequence[Outputs]) -> Outputs:
    """Outputs of pieces as those of the whole."""
    return parts[0] if len(parts) == 1 else dict(_concatenate(parts))


def _concatenate(parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], dict):
        return {name: _concatenate([part[name] for part in parts]) for name in parts[0]}
    return np.concatenate(parts)
