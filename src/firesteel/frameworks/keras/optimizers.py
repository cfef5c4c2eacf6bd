"""BigDL's optimizers in Keras: an optimizer value becomes a ``keras.optimizers.Optimizer`` with BigDL's arithmetic.

The rate is a Python function of the update's number (or of what an epoch showed), so it is set before each update, not
traced. What these keep is variables of Keras's own kind: saved, loaded and sent as those of any Keras optimizer.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from firesteel.core import optimizers
from firesteel.core.errors import PlanError, UnsupportedError
from firesteel.core.optimizers import OptimMethod
from firesteel.core.schedules import Plateau, PlateauState
from firesteel.frameworks.keras.variables import numpy_of

__all__ = ["MethodOptimizer", "build"]


class MethodOptimizer(keras.optimizers.Optimizer):
    """The walk over variables, and the rate; a class below says what happens to one variable.

    Args:
        method: the optimizer's settings.
    """

    _slots: ClassVar[tuple[str, ...]] = ()

    def __init__(self, method: OptimMethod, name: str | None = None, **options: Any) -> None:
        options.pop("learning_rate", None)
        super().__init__(learning_rate=method.rate(0), name=name or type(method).__name__, **options)
        self.method = method
        self._plateau = method.schedule if isinstance(method.schedule, Plateau) else None

    def build(self, variables: list[Any]) -> None:
        """Make the slots."""
        if self.built:
            return
        super().build(variables)
        self._kept: dict[str, list[Any]] = {
            slot: [self.add_variable_from_reference(v, slot, initializer=self._first(slot)) for v in variables]
            for slot in self._slots
        }
        if self._plateau is not None:
            self._seen = self.add_variable((4,), dtype="float32", name="plateau")

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """One variable's update."""
        place = self._get_variable_index(variable)
        slots = {slot: kept[place] for slot, kept in self._kept.items()}
        rate = ops.cast(learning_rate, variable.dtype)
        count = ops.cast(self.iterations + 1, variable.dtype)
        self.assign(variable, self._moved(ops.cast(gradient, variable.dtype), variable, slots, rate, count))

    def prepare_update(self) -> None:
        """Set the next update's rate."""
        if self._plateau is None:
            self.learning_rate = self.method.rate(int(numpy_of(self.iterations)))

    def observe(self, figures: Mapping[str, float]) -> None:
        """An epoch was done, and this is what it showed; see ``Trainable.schedule``."""
        if self._plateau is None:
            return
        wanted = "score" if self._plateau.monitor == "score" else "train_loss"
        if wanted not in figures:
            raise PlanError("Plateau watches the score, which needs validation_data")
        # What was seen so far lies in a variable, so that it is saved with the rest.
        has_best, best, bad_epochs, cooldown = numpy_of(self._seen).tolist()
        rate = float(numpy_of(self.learning_rate))
        state = PlateauState(self._plateau, rate, best if has_best else None, int(bad_epochs), int(cooldown))
        self.learning_rate = state.observe(float(figures[wanted]))
        self._seen.assign([state.best is not None, state.best or 0.0, state.bad_epochs, state.cooldown_left])

    def get_config(self) -> dict[str, Any]:
        """Settings that ``from_config`` takes."""
        found = super().get_config()
        return {"name": found["name"], "method": self.method.settings()}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """The reverse of ``get_config``."""
        return build(OptimMethod.from_settings(config["method"]))

    def _first(self, slot: str) -> Any:
        return "zeros"

    @abstractmethod
    def _moved(self, gradient: Any, variable: Any, slots: dict[str, Any], rate: Any, count: Any) -> Any:
        """The variable's next value; ``count`` is this update's number, from 1."""


class _SGD(MethodOptimizer):
    @property
    def _slots(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("momentum",) if self.method.momentum else ()

    def build(self, variables: list[Any]) -> None:
        super().build(variables)
        self._factors = {
            name: _cut(getattr(self.method, name), variables) for name in ("learningrates", "weightdecays")
        }

    def _moved(self, gradient: Any, variable: Any, slots: dict[str, Any], rate: Any, count: Any) -> Any:
        method: Any = self.method
        place = self._get_variable_index(variable)
        decays, rates = self._factors["weightdecays"], self._factors["learningrates"]
        if decays is not None:
            gradient = gradient + variable * ops.cast(decays[place], variable.dtype)
        elif method.weightdecay:
            gradient = gradient + variable * method.weightdecay
        if method.momentum:
            kept = slots["momentum"]
            later = kept * method.momentum + gradient * (1 - method.damping)
            self.assign(kept, ops.where(count == 1, gradient, later))
            gradient = gradient + kept * method.momentum if method.nesterov else ops.convert_to_tensor(kept)
        if rates is not None:
            gradient = gradient * ops.cast(rates[place], variable.dtype)
        return variable - rate * gradient


class _Adam(MethodOptimizer):
    _slots = ("mean", "square")

    def _moved(self, gradient: Any, variable: Any, slots: dict[str, Any], rate: Any, count: Any) -> Any:
        method: Any = self.method
        mean, square = slots["mean"], slots["square"]
        self.assign(mean, mean * method.beta1 + gradient * (1 - method.beta1))
        self.assign(square, square * method.beta2 + gradient * gradient * (1 - method.beta2))
        step = rate * ops.sqrt(1 - ops.power(method.beta2, count)) / (1 - ops.power(method.beta1, count))
        return variable - step * mean / (ops.sqrt(square) + method.epsilon)


class _Adagrad(MethodOptimizer):
    _slots = ("sum",)

    def _moved(self, gradient: Any, variable: Any, slots: dict[str, Any], rate: Any, count: Any) -> Any:
        method: Any = self.method
        if method.weightdecay:
            gradient = gradient + variable * method.weightdecay
        self.assign(slots["sum"], slots["sum"] + gradient * gradient)
        return variable - rate * gradient / (ops.sqrt(slots["sum"]) + 1e-10)


class _RMSprop(MethodOptimizer):
    _slots = ("square",)

    def _moved(self, gradient: Any, variable: Any, slots: dict[str, Any], rate: Any, count: Any) -> Any:
        method: Any = self.method
        square = slots["square"]
        self.assign(square, square * method.decayrate + gradient * gradient * (1 - method.decayrate))
        return variable - rate * gradient / (ops.sqrt(square) + method.epsilon)


class _Adadelta(MethodOptimizer):
    _slots = ("square", "moves")

    def _moved(self, gradient: Any, variable: Any, slots: dict[str, Any], rate: Any, count: Any) -> Any:
        method: Any = self.method
        square, moves, keep = slots["square"], slots["moves"], method.decayrate
        self.assign(square, square * keep + gradient * gradient * (1 - keep))
        move = gradient * ops.sqrt(moves + method.epsilon) / ops.sqrt(square + method.epsilon)
        self.assign(moves, moves * keep + move * move * (1 - keep))
        return variable - rate * move


class _Adamax(MethodOptimizer):
    _slots = ("mean", "largest")

    def _moved(self, gradient: Any, variable: Any, slots: dict[str, Any], rate: Any, count: Any) -> Any:
        method: Any = self.method
        mean, largest = slots["mean"], slots["largest"]
        self.assign(mean, mean * method.beta1 + gradient * (1 - method.beta1))
        self.assign(largest, ops.maximum(largest * method.beta2, ops.abs(gradient) + method.epsilon))
        return variable - rate / (1 - ops.power(method.beta1, count)) * mean / largest


class _Ftrl(MethodOptimizer):
    _slots = ("accumulator", "linear")

    def _first(self, slot: str) -> Any:
        method: Any = self.method
        return keras.initializers.Constant(method.initial_accumulator_value) if slot == "accumulator" else "zeros"

    def _moved(self, gradient: Any, variable: Any, slots: dict[str, Any], rate: Any, count: Any) -> Any:
        method: Any = self.method
        accumulator, linear, power = slots["accumulator"], slots["linear"], -method.learningrate_power
        if method.l2_shrinkage_regularization_strength:
            gradient = gradient + variable * (2 * method.l2_shrinkage_regularization_strength)
        before = ops.power(accumulator, power)
        self.assign(accumulator, accumulator + gradient * gradient)
        after = ops.power(accumulator, power)
        # Where the rate is 0 a schedule has ended: nothing moves, where the formula divides by 0.
        safe = ops.where(rate > 0, rate, ops.ones_like(rate))
        self.assign(linear, ops.where(rate > 0, linear + gradient - (after - before) / safe * variable, linear))
        l1 = method.l1_regularization_strength
        divisor = after / safe + 2 * method.l2_regularization_strength
        moved = (ops.sign(linear) * l1 - linear) / ops.where(divisor == 0, ops.ones_like(divisor), divisor)
        moved = ops.where(ops.abs(linear) <= l1, ops.zeros_like(moved), moved)
        return ops.where(rate > 0, moved, ops.convert_to_tensor(variable))


_CLASSES: dict[type[OptimMethod], type[MethodOptimizer]] = {
    optimizers.SGD: _SGD,
    optimizers.Adam: _Adam,
    optimizers.ParallelAdam: _Adam,
    optimizers.Adagrad: _Adagrad,
    optimizers.RMSprop: _RMSprop,
    optimizers.Adadelta: _Adadelta,
    optimizers.Adamax: _Adamax,
    optimizers.Ftrl: _Ftrl,
}


def build(method: OptimMethod) -> MethodOptimizer:
    """The Keras optimizer of this value."""
    found = _CLASSES.get(type(method))
    if found is None:
        raise UnsupportedError(
            f"{type(method).__name__} asks for a step's gradient more than once, which Keras optimizers cannot; "
            f"take one of {', '.join(sorted(each.__name__ for each in _CLASSES))}"
        )
    return found(method)


def _cut(factors: Any, variables: list[Any]) -> list[Any] | None:
    """One number for each element of all variables laid end to end, as an array for each variable."""
    if factors is None:
        return None
    sizes = [int(np.prod(variable.shape)) for variable in variables]
    if len(factors) != sum(sizes):
        raise PlanError(
            f"SGD has {len(factors)} factors for {sum(sizes)} parameter elements: give one for each element."
        )
    parts = np.split(np.asarray(factors, dtype=np.float32), np.cumsum(sizes)[:-1])
    return [part.reshape(tuple(variable.shape)) for part, variable in zip(parts, variables, strict=True)]


for _class in {*_CLASSES.values()}:
    keras.saving.register_keras_serializable("firesteel")(_class)
