"""A Keras program living in a process: forward, backward, update, and its state as safetensors.

The backend's part is in a file of its own (``tensorflow``); here is what is the same on all: which arrays are
inputs, how gradients lie in flat buffers, what of the state travels.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from firesteel.core.errors import PlanError, UnsupportedError
from firesteel.core.program import Program
from firesteel.core.spec import Batch, rows_of
from firesteel.frameworks.keras.figures import KerasFigures, read_states
from firesteel.frameworks.keras.program import KerasContent, input_names, make_model, output_names
from firesteel.frameworks.keras.state import header_of, load_model, load_optimizer, pack_model, pack_optimizer

__all__ = ["KerasReplica", "build", "build_metrics"]

Array = npt.NDArray[Any]


class KerasReplica:
    """One replica; see ``core.ports.Trainable``."""

    def __init__(self, program: Program) -> None:
        content: KerasContent = program.content
        self._content = content
        self.model = make_model(content)
        self.main: Any = None
        self.runner: Any = None
        self.scheduler = None
        self.loss_function = None
        self._steps: Any = None
        self._inputs: list[list[Any]] | None = None
        self._state = program.state
        self._last: tuple[Batch, float] | None = None
        self._flats: list[Array] = []
        self._marked = 0
        if program.state is not None:
            self.load(program.state)

    @property
    def optimizer(self) -> Any:
        """The model's own."""
        return self.model.optimizer

    # --- scoring ---

    def forward(self, batch: Batch) -> dict[str, Any]:
        """Outputs in inference mode; see ``Replica``."""
        self.prepare(batch)
        return _named(self._steps.forward(self._features(batch)), output_names(self.model))

    def measure(self, batch: Batch, metrics: Mapping[str, Any]) -> None:
        """Add these rows to the model's loss and metrics; all figures are Keras's own. See ``Replica``."""
        self.prepare(batch)
        for metric in metrics.values():
            if isinstance(metric, KerasFigures):
                about = [[name, v.dtype.str, list(v.shape[1:])] for name, v in batch.items()]
                metric.measure(self.model, lambda: self._steps.test(*self._whole(batch)), about)

    def load(self, state: dict[str, bytes]) -> None:
        """Take over weights, and the optimizer's state if it is there."""
        if not self.model.built:
            inputs = header_of(state["model"]).get("inputs")
            if inputs is None:
                raise PlanError("the model is not built, and its saved state does not say what its inputs look like")
            build(self.model, inputs)
        load_model(self.model, state["model"])
        if "optimizer" in state and self.model.optimizer is not None:
            self.model.optimizer.build(self.model.trainable_variables)
            load_optimizer(self.model.optimizer, state["optimizer"])

    def prepare(self, batch: Batch) -> None:
        """Build what needs a batch to be built, once; rows do not matter, only shapes."""
        if self._steps is not None:
            return
        one = {name: np.zeros((1, *values.shape[1:]), values.dtype) for name, values in batch.items()}
        self._inputs = [[name, v.dtype.str, list(v.shape[1:])] for name, v in batch.items() if name[0] == "x"]
        x, y, w = self._whole(one)
        if not self.model.built:
            self.model(x)  # by a call, as Keras itself does: the model may be of any class
        if y is not None and self.model.compiled:
            self.model._symbolic_build(data_batch=(x, y, w))
        self._steps = _steps(self._content, self.model)

    # --- learning ---

    def start(self, state: dict[str, bytes] | None) -> None:
        """See ``Trainable``. What depends on the data's shapes waits for ``prepare``."""
        if type(self.model).train_step is not keras.Model.train_step:
            raise UnsupportedError(
                f"{type(self.model).__qualname__} has its own train_step, which cannot be shared by replicas: put what "
                f"it does into compute_loss(), compute_metrics() and call()"
            )
        if self.model._compile_loss is None and type(self.model).compute_loss is keras.Model.compute_loss:
            raise PlanError("fit needs a loss: compile the model with one")

    def go_native(self) -> bool:
        """Keras has no collective of its own here."""
        return False

    def seed(self, *numbers: int) -> None:
        """Make dropout and other random layers a function of these numbers."""
        first, second = (hash((*numbers, place)) & 0x7FFFFFFF for place in (0, 1))
        for variable in self._seeds():
            variable.assign(np.array([first, second], dtype=np.uint32))

    def backward(self, batch: Batch, share: float) -> float | None:
        """Gradients of these rows' loss times ``share``; see ``Trainable``."""
        self.prepare(batch)
        self._last = (batch, share)
        if not self._flats:
            self._flats = [np.zeros(size, dtype) for dtype, size in self._groups()]
        if rows_of(batch) == 0 or share == 0.0:
            for flat in self._flats:
                flat[:] = 0
            return None
        loss, gradients = self._steps.backward(*self._whole(batch), share)
        for flat, members in zip(self._flats, self._members(), strict=True):
            np.concatenate([gradients[place] for place in members], out=flat)
        return loss

    def mass(self, batch: Batch) -> float | None:
        """Keras divides by the number of rows, whatever their weights."""
        return None

    def again(self) -> None:
        """Run the last backward once more."""
        assert self._last is not None
        self.backward(*self._last)

    def gradients(self) -> list[Array]:
        """The gradient buffers, in place."""
        return self._flats

    def update(self, again: Callable[[], None] | None = None) -> None:
        """Apply the agreed gradients with the model's own optimizer."""
        parts: list[Any] = [None] * len(self.model.trainable_variables)
        for flat, members in zip(self._flats, self._members(), strict=True):
            sizes = [int(np.prod(self.model.trainable_variables[place].shape)) for place in members]
            for place, part in zip(members, np.split(flat, np.cumsum(sizes)[:-1]), strict=True):
                parts[place] = part
        self._steps.update(parts)

    def bounds(self, rank: int, size: int) -> list[tuple[int, int]] | None:
        """A Keras optimizer works on whole variables."""
        return None

    def weights(self) -> list[Array]:
        """Trainable weights as flat buffers."""
        variables = self.model.trainable_variables
        return [
            np.concatenate([np.asarray(variables[place]).reshape(-1) for place in members])
            for members in self._members()
        ]

    def load_weights(self, weights: Sequence[Array]) -> None:
        """Take over what ``weights`` gave."""
        variables = self.model.trainable_variables
        for flat, members in zip(weights, self._members(), strict=True):
            sizes = [int(np.prod(variables[place].shape)) for place in members]
            for place, part in zip(members, np.split(flat, np.cumsum(sizes)[:-1]), strict=True):
                variables[place].assign(part.reshape(variables[place].shape))

    def buffers(self) -> list[Array]:
        """Running means and the like, as float64 copies."""
        return [np.asarray(v).astype(np.float64).reshape(-1) for v in self._running()]

    def load_buffers(self, buffers: Sequence[Array]) -> None:
        """Take over what ``buffers`` gave."""
        for variable, values in zip(self._running(), buffers, strict=True):
            variable.assign(values.reshape(variable.shape).astype(variable.dtype))

    def frozen(self) -> list[Array]:
        """Everything of the weights that no gradient reaches, as bytes."""
        found = [np.ascontiguousarray(np.asarray(v)) for v in self.model.non_trainable_weights]
        return [array.reshape(-1).view(np.uint8).copy() for array in found if array.size]

    def load_frozen(self, values: Sequence[Array]) -> None:
        """Take over what ``frozen`` gave."""
        variables = [v for v in self.model.non_trainable_weights if np.prod(v.shape)]
        for variable, data in zip(variables, values, strict=True):
            own = np.asarray(variable)
            variable.assign(np.frombuffer(data.tobytes(), own.dtype).reshape(own.shape))

    def state(self, slices: Sequence[bytes] | None = None) -> dict[str, bytes]:
        """Everything needed to go on elsewhere."""
        found = {"model": pack_model(self.model, self._inputs)}
        if self.model.optimizer is not None and self.model.optimizer.built:
            found["optimizer"] = pack_optimizer(self.model.optimizer)
        return found

    @property
    def learning_rate(self) -> float:
        """The rate of the next update."""
        return float(np.asarray(self.model.optimizer.learning_rate))

    def schedule(self, event: str, figures: Mapping[str, float] | None = None) -> None:
        """Keras's schedules count the optimizer's own updates."""

    def follow(self, group: Any) -> None:
        """What callbacks did to the model on rank 0 reaches all: the learning rate, and weights that were changed."""
        rate = np.array([self.learning_rate])
        group.broadcast(rate)
        optimizer = self.model.optimizer
        if not isinstance(optimizer._learning_rate, keras.optimizers.schedules.LearningRateSchedule):
            optimizer.learning_rate = float(rate[0])
        mark = np.array([float(self._mark() != self._marked)])
        group.broadcast(mark)
        if mark[0]:
            for values, load in ((self.weights(), self.load_weights), (self.frozen(), self.load_frozen)):
                for array in values:
                    group.broadcast(array)
                load(values)

    def mark(self) -> None:
        """Remember the weights as they are, so that ``follow`` can tell whether somebody changed them."""
        self._marked = self._mark()

    def _mark(self) -> int:
        mark = 0
        for array in (*self.weights(), *self.frozen()):
            mark = zlib.crc32(np.ascontiguousarray(array).view(np.uint8), mark)
        return mark

    # --- an epoch's figures ---

    def tally(self) -> list[Array]:
        """The states of loss and metrics since the epoch began: they add up over replicas."""
        return read_states(self.model)

    def figures(self, tallies: Sequence[Sequence[Array]]) -> dict[str, float]:
        """What they come to, all replicas together; the states start anew."""
        found = KerasFigures.of(tallies).result(self.model)
        self.model.reset_metrics()
        return found

    # --- feeding ---

    def _whole(self, batch: Batch) -> tuple[Any, Any, Any]:
        """Inputs, labels and row weights as Keras takes them."""
        y = _structure(batch, "y", output_names(self.model))
        return self._features(batch), y, self._row_weights(batch, y)

    def _features(self, batch: Batch) -> Any:
        return _structure(batch, "x", input_names(self.model))

    def _row_weights(self, batch: Batch, y: Any) -> Any:
        weights = batch["w"].reshape(-1).astype(np.float32) if "w" in batch else None
        table = self._content.class_weight
        if table is None or y is None:
            return weights
        if isinstance(y, (dict, list)):
            raise PlanError("class_weight is for a model with one output")
        classes = y.argmax(-1) if y.ndim > 1 and y.shape[-1] > 1 else y.reshape(-1)
        by_class = np.ones(max([*table, int(classes.max(initial=0))]) + 1, dtype=np.float32)
        for label, weight in table.items():
            by_class[label] = weight
        found = by_class[classes.astype(np.int64)]
        return found if weights is None else found * weights

    def _members(self) -> list[list[int]]:
        """Places of the trainable variables in each flat buffer: one buffer for a dtype."""
        found: dict[str, list[int]] = {}
        for place, variable in enumerate(self.model.trainable_variables):
            found.setdefault(str(variable.dtype), []).append(place)
        if not found:
            raise PlanError("the model has no trainable weights: there is nothing to train")
        return list(found.values())

    def _groups(self) -> list[tuple[str, int]]:
        variables = self.model.trainable_variables
        return [
            (str(variables[members[0]].dtype), sum(int(np.prod(variables[place].shape)) for place in members))
            for members in self._members()
        ]

    def _running(self) -> list[Any]:
        """State that training changes without a gradient. Not weights that are frozen: those stay as they are."""
        found: dict[int, Any] = {}
        for layer in self.model._flatten_layers(include_self=False):
            if layer.trainable:
                found |= {id(v): v for v in layer.non_trainable_weights if str(v.dtype).startswith(("float", "bfloat"))}
        return list(found.values())

    def _seeds(self) -> list[Any]:
        known = {id(v) for v in self.model.weights}
        return [
            v for v in self.model.non_trainable_variables
            if id(v) not in known and str(v.dtype) == "uint32" and tuple(v.shape) == (2,)
        ]  # fmt: skip


def build(model: Any, inputs: Sequence[Sequence[Any]]) -> None:
    """Build a model for inputs of these names, dtypes and shapes."""
    batch = {name: np.zeros((1, *shape), dtype) for name, dtype, shape in inputs}
    model(_structure(batch, "x", input_names(model)))


def build_metrics(model: Any, about: Sequence[Sequence[Any]]) -> None:
    """Build a model's metrics as they are after rows of these names, dtypes and shapes."""
    batch = {name: np.zeros((1, *shape), dtype) for name, dtype, shape in about}
    x, y = (_structure(batch, letter, None) for letter in "xy")
    if not model.built:
        model(x)
    weights = np.ones(1, np.float32) if "w" in batch else None
    model._symbolic_build(data_batch=(x, y, weights))


def _structure(batch: Batch, letter: str, names: Sequence[str] | None) -> Any:
    """An array, a list of them, or a dict by name; ``None`` where there is none."""
    named = {name[2:]: _float(value) for name, value in batch.items() if name.startswith(f"{letter}.")}
    if named:
        return named
    listed = [_float(batch[name]) for name in batch if name[0] == letter and name[1:].isdigit()]
    return None if not listed else listed[0] if len(listed) == 1 else listed


def _float(values: Array) -> Array:
    """Real numbers in Keras's own precision, as its data adapters have them."""
    return values.astype(keras.config.floatx()) if values.dtype.kind == "f" else values


def _named(output: Any, names: Sequence[str] | None) -> dict[str, Any]:
    if isinstance(output, dict):
        return {str(key): value for key, value in output.items()}
    if isinstance(output, (list, tuple)):
        known = names if names is not None and len(names) == len(output) else [f"_{i}" for i in range(len(output))]
        return dict(zip(known, output, strict=True))
    return {"prediction": output}


def _steps(content: KerasContent, model: Any) -> Any:
    if content.backend == "tensorflow":
        from firesteel.frameworks.keras.tensorflow import TensorFlowSteps

        return TensorFlowSteps(model, content.clipping)
    raise UnsupportedError(f"Keras on {content.backend} cannot be used yet; start Python with KERAS_BACKEND=tensorflow")
