"""Our optimizers in TensorFlow: an optim method as ops on one flat run of weights.

A run is a slice of all weights of one buffer, or all of them: each rank updates its own. Rates and counts are numbers
that Python feeds, so that a schedule is no part of the graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from firesteel.core import optimizers
from firesteel.core.errors import PlanError, UnsupportedError
from firesteel.core.optimizers import OptimMethod

__all__ = ["Run", "check_factors", "is_elementwise", "slot_names"]

Array = npt.NDArray[Any]

_SLOTS: dict[type, tuple[str, ...]] = {
    optimizers.Adam: ("m", "v"),
    optimizers.ParallelAdam: ("m", "v"),
    optimizers.Adagrad: ("accumulator",),
    optimizers.RMSprop: ("square",),
    optimizers.Adadelta: ("accumulator", "update"),
    optimizers.Adamax: ("m", "norm"),
    optimizers.Ftrl: ("accumulator", "linear"),
}


def slot_names(method: OptimMethod) -> tuple[str, ...]:
    """What this optimizer keeps for each weight."""
    if isinstance(method, optimizers.SGD):
        return ("momentum",) if method.momentum else ()
    if type(method) not in _SLOTS:
        raise UnsupportedError(f"TensorFlow graphs have no optimizer for {type(method).__name__}")
    return _SLOTS[type(method)]


def is_elementwise(method: OptimMethod) -> bool:
    """Whether updating slices gives the numbers of updating the whole: true of all but L-BFGS."""
    return not isinstance(method, optimizers.LBFGS)


def check_factors(method: OptimMethod, size: int) -> None:
    """One factor for each weight, where there are factors."""
    for factors in (getattr(method, "learningrates", None), getattr(method, "weightdecays", None)):
        if factors is not None and len(factors) != size:
            raise PlanError(f"SGD has {len(factors)} factors for {size} parameter elements: give one for each element.")


class Run:
    """One run of weights and its slots, as variables of a session; ``update`` is the op that moves them.

    Args:
        method: its factors, if any, are those of this run.
        size: how many weights.
        dtype: theirs.
        name: of the ops.
    """

    def __init__(self, method: OptimMethod, size: int, dtype: str, name: str) -> None:
        self.method = method
        self.size = size
        self._dtype = tf.as_dtype(dtype)
        self._numpy = self._dtype.as_numpy_dtype
        self.slots = slot_names(method)
        with tf.name_scope(f"firesteel/{name}/"):
            self.gradient = tf.compat.v1.placeholder(self._dtype, [size], "gradient")
            self._given = {
                slot: tf.compat.v1.placeholder(self._dtype, [size], slot) for slot in ("weights", *self.slots)
            }
            self._handles = {slot: self._variable(f"{name}/{slot}") for slot in self._given}
            self._writes = {
                slot: tf.raw_ops.AssignVariableOp(resource=handle, value=self._given[slot])
                for slot, handle in self._handles.items()
            }
            self._reads = {slot: self._read(slot) for slot in self._handles}
            self._numbers: dict[str, Any] = {}
            self.update = tf.group(*self._update())
            with tf.control_dependencies([self.update]):
                self.updated = self._read("weights")

    # --- values ---

    def set(self, session: Any, values: Mapping[str, Array]) -> None:
        """Set weights or slots."""
        feeds = {self._given[slot]: np.asarray(value, self._numpy) for slot, value in values.items()}
        session.run([self._writes[slot] for slot in values], feeds)

    def get(self, session: Any) -> dict[str, Array]:
        """The slots."""
        found = session.run({slot: self._reads[slot] for slot in self.slots})
        return {slot: np.array(value) for slot, value in found.items()}

    def start(self) -> dict[str, Array]:
        """The slots before the first update."""
        first = (
            {"accumulator": self.method.initial_accumulator_value} if isinstance(self.method, optimizers.Ftrl) else {}
        )
        return {slot: np.full(self.size, first.get(slot, 0.0), self._numpy) for slot in self.slots}

    @property
    def feeds(self) -> list[Any]:
        """What ``update`` is fed besides the gradient; ``numbers`` gives their values."""
        return list(self._numbers.values())

    def numbers(self, rate: float, updates: int) -> list[Array]:
        """Rate, powers and the like for the update after so many."""
        method = self.method
        count = updates + 1
        known = {"rate": rate}
        if isinstance(method, optimizers.Adam):
            known |= {"power1": method.beta1**count, "power2": method.beta2**count}
        elif isinstance(method, optimizers.Adamax):
            known["rate"] = rate / (1 - method.beta1**count)
        elif isinstance(method, optimizers.SGD):
            # The first gradient is the momentum, undampened.
            known |= {"kept": method.momentum if updates else 0.0, "new": 1 - method.damping if updates else 1.0}
        return [np.asarray(known[name], self._numpy) for name in self._numbers]

    # --- the arithmetic ---

    def _update(self) -> list[Any]:
        method, w, g = self.method, self._handles["weights"], self.gradient
        match method:
            case optimizers.SGD():
                return self._sgd(method, w, self._decayed(g))
            case optimizers.Adam():
                op = tf.raw_ops.ResourceApplyAdam(
                    var=w,
                    m=self._handles["m"],
                    v=self._handles["v"],
                    beta1_power=self._number("power1"),
                    beta2_power=self._number("power2"),
                    lr=self._number("rate"),
                    beta1=self._constant(method.beta1),
                    beta2=self._constant(method.beta2),
                    epsilon=self._constant(method.epsilon),
                    grad=g,
                )
            case optimizers.Adagrad():
                op = tf.raw_ops.ResourceApplyAdagradV2(
                    var=w,
                    accum=self._handles["accumulator"],
                    lr=self._number("rate"),
                    epsilon=self._constant(1e-10),
                    grad=self._decayed(g),
                )
            case optimizers.RMSprop():
                square = method.decayrate * self._reads["square"] + (1 - method.decayrate) * g * g
                return [
                    self._assign("square", square),
                    self._move(self._number("rate") * g / (tf.sqrt(square) + self._constant(method.epsilon))),
                ]
            case optimizers.Adadelta():
                op = tf.raw_ops.ResourceApplyAdadelta(
                    var=w,
                    accum=self._handles["accumulator"],
                    accum_update=self._handles["update"],
                    lr=self._number("rate"),
                    rho=self._constant(method.decayrate),
                    epsilon=self._constant(method.epsilon),
                    grad=g,
                )
            case optimizers.Adamax():
                m = method.beta1 * self._reads["m"] + (1 - method.beta1) * g
                norm = tf.maximum(method.beta2 * self._reads["norm"], tf.abs(g) + self._constant(method.epsilon))
                # Where no gradient ever came, an epsilon as small as the default's counts as 0 for TensorFlow.
                step = self._number("rate") * tf.math.divide_no_nan(m, norm)
                return [self._assign("m", m), self._assign("norm", norm), self._move(step)]
            case optimizers.Ftrl():
                return self._ftrl(method, w, g)
        return [op]

    def _sgd(self, method: optimizers.SGD, w: Any, g: Any) -> list[Any]:
        done: list[Any] = []
        if method.momentum:
            kept = self._number("kept") * self._reads["momentum"] + self._number("new") * g
            done.append(self._assign("momentum", kept))
            g = g + method.momentum * kept if method.nesterov else kept
        if method.learningrates is not None:
            g = g * self._constant(method.learningrates)
        with tf.control_dependencies(done):
            done.append(tf.raw_ops.ResourceApplyGradientDescent(var=w, alpha=self._number("rate"), delta=g))
        return done

    def _ftrl(self, method: optimizers.Ftrl, w: Any, g: Any) -> list[Any]:
        rate, weights = self._number("rate"), self._reads["weights"]
        if method.l2_shrinkage_regularization_strength:
            g = g + 2 * method.l2_shrinkage_regularization_strength * weights
        if method.is_constant and method.learningrate:
            op = tf.raw_ops.ResourceApplyFtrl(
                var=w,
                accum=self._handles["accumulator"],
                linear=self._handles["linear"],
                grad=g,
                lr=rate,
                l1=self._constant(method.l1_regularization_strength),
                l2=self._constant(method.l2_regularization_strength),
                lr_power=self._constant(method.learningrate_power),
            )
            return [op]
        # By hand: a schedule that has ended has the rate 0, by which the kernel would divide. Nothing moves then.
        is_on = rate > 0
        divisor = tf.where(is_on, rate, tf.ones_like(rate))
        before, power = self._reads["accumulator"], -method.learningrate_power
        accumulator = before + g * g
        after = tf.pow(accumulator, power)
        linear = self._reads["linear"] + g + (tf.pow(before, power) - after) / divisor * weights
        bound = method.l1_regularization_strength
        whole = after / divisor + 2 * method.l2_regularization_strength
        moved = tf.where(tf.abs(linear) <= bound, tf.zeros_like(linear), (tf.sign(linear) * bound - linear) / whole)
        kept = {
            "accumulator": (accumulator, before),
            "linear": (linear, self._reads["linear"]),
            "weights": (moved, weights),
        }
        return [self._assign(slot, tf.where(is_on, new, old)) for slot, (new, old) in kept.items()]

    def _decayed(self, g: Any) -> Any:
        factors = getattr(self.method, "weightdecays", None)
        decay = factors if factors is not None else self.method.weightdecay
        return g + self._constant(decay) * self._reads["weights"] if factors is not None or decay else g

    # --- ops ---

    def _variable(self, name: str) -> Any:
        return tf.raw_ops.VarHandleOp(dtype=self._dtype, shape=[self.size], shared_name=f"firesteel/{name}")

    def _read(self, slot: str) -> Any:
        return tf.raw_ops.ReadVariableOp(resource=self._handles[slot], dtype=self._dtype)

    def _assign(self, slot: str, value: Any) -> Any:
        return tf.raw_ops.AssignVariableOp(resource=self._handles[slot], value=value)

    def _move(self, step: Any) -> Any:
        return tf.raw_ops.AssignSubVariableOp(resource=self._handles["weights"], value=step)

    def _constant(self, value: Any) -> Any:
        return tf.constant(value, self._dtype)

    def _number(self, name: str) -> Any:
        if name not in self._numbers:
            # Never after anything: TensorFlow takes an order that leads through a fed tensor for kept, and it is not.
            with tf.control_dependencies(None):
                self._numbers[name] = tf.compat.v1.placeholder(self._dtype, [], name)
        return self._numbers[name]
