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
from firesteel.frameworks.keras.assets import refresh
from firesteel.frameworks.keras.feeding import features, labels, shapes_of, sized
from firesteel.frameworks.keras.figures import Accounts, KerasFigures, check_adds_up, own_metrics
from firesteel.frameworks.keras.program import KerasContent, check_can_train, make_model, output_names, seeded
from firesteel.frameworks.keras.reduction import Reduction
from firesteel.frameworks.keras.state import load_state, pack_state
from firesteel.frameworks.keras.variables import numpy_of

__all__ = ["KerasReplica"]

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
        self._accounts = Accounts(self.model)
        self._reduction: Reduction | None = None
        self._inputs: list[list[Any]] | None = None
        self._last: tuple[Batch, float] | None = None
        self._flats: list[Array] = []
        self._marked = 0
        self._adds_up = False
        self._drawn: list[Any] | None = None  # what random layers draw from, once all layers are there
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
        return _named(self._steps.forward(features(self.model, batch)), output_names(self.model))

    def measure(self, batch: Batch, metrics: Mapping[str, Any]) -> None:
        """Add these rows to the model's loss and metrics; all figures are Keras's own. See ``Replica``."""
        self.adopt(metrics)
        for metric in metrics.values():
            if isinstance(metric, KerasFigures):
                self.prepare(batch)
                metric.about = shapes_of(batch)
                self._accounts.enter(metric)
                self._check_metrics(batch)
                # Class weights are for learning alone, as in Keras.
                self._steps.test(*self._whole(batch, has_class_weights=False))

    def adopt(self, metrics: Mapping[str, Any]) -> None:
        """Let figures that have seen no row yet be of this model all the same."""
        for metric in metrics.values():
            if isinstance(metric, KerasFigures):
                metric.accounts = self._accounts

    def load(self, state: dict[str, bytes]) -> None:
        """Take over weights, and the optimizer's state if it is there."""
        load_state(self.model, state)

    def prepare(self, batch: Batch) -> None:
        """Build what needs a batch to be built, once; rows do not matter, only shapes."""
        if self._steps is not None:
            return
        one = sized(shapes_of(batch))
        self._inputs = shapes_of(batch, "x")
        x, y, w = self._whole(one)
        if not self.model.built:
            with seeded(self._content.seed):
                self.model(x)  # by a call, as Keras itself does: the model may be of any class
        if y is not None and self.model.compiled:
            try:
                self.model._symbolic_build(data_batch=(x, y, w))
            except (TypeError, ValueError) as error:
                raise PlanError(_misfit(self.model, x, y, error)) from error
        self._drawn = self._seeds()
        self._reduction = Reduction.of(self.model)
        self._steps = _steps(self._content, self.model, self._members(), self._reduction)

    # --- learning ---

    def start(self, state: dict[str, bytes] | None) -> None:
        """See ``Trainable``. What depends on the data's shapes waits for ``prepare``."""
        check_can_train(self.model)

    def go_native(self, *, is_nearby: bool) -> bool:
        """Keras has no collective of its own here."""
        return False

    def seed(self, *numbers: int) -> None:
        """Make dropout and other random layers a function of these numbers."""
        first, second = (hash((*numbers, place)) & 0x7FFFFFFF for place in (0, 1))
        for variable in self._seeds() if self._drawn is None else self._drawn:
            variable.assign(np.array([first, second], dtype=variable.dtype))

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
        self._accounts.enter(None)
        self._check_metrics(batch)
        self._schedule_update()
        return float(self._steps.backward(*self._whole(batch), share, self._flats))

    def mass(self, batch: Batch) -> float | None:
        """Keras divides by the number of rows, whatever their weights, unless the loss was told otherwise."""
        self.prepare(batch)
        assert self._reduction is not None
        if not self._reduction.is_by_weight:
            return None
        weights = self._row_weights(batch, labels(self.model, batch))
        return float(rows_of(batch) if weights is None else weights.sum())

    def again(self) -> None:
        """Run the last backward once more."""
        assert self._last is not None
        self.backward(*self._last)

    def gradients(self) -> list[Array]:
        """The gradient buffers, in place."""
        return self._flats

    def bind_gradients(self, buffers: Sequence[Array]) -> Callable[[], None]:
        """See ``Trainable``."""
        flats = list(buffers)

        def use() -> None:
            self._flats = flats

        return use

    def bind_weights(self, buffers: Sequence[Array]) -> bool:
        """See ``Trainable``. A backend's variables are where it has put them."""
        return False

    def update(self, again: Callable[[], None] | None = None) -> None:
        """Apply the agreed gradients with the model's own optimizer."""
        self._steps.update(self._flats)

    def bounds(self, rank: int, size: int) -> list[tuple[int, int]] | None:
        """A Keras optimizer works on whole variables."""
        return None

    def weights(self) -> list[Array]:
        """Trainable weights as flat buffers."""
        variables = self.model.trainable_variables
        return [
            np.concatenate([numpy_of(variables[place]).reshape(-1) for place in members]) for members in self._members()
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
        return [numpy_of(v).astype(np.float64).reshape(-1) for v in self._running()]

    def load_buffers(self, buffers: Sequence[Array]) -> None:
        """Take over what ``buffers`` gave."""
        for variable, values in zip(self._running(), buffers, strict=True):
            variable.assign(values.reshape(variable.shape).astype(variable.dtype))

    def frozen(self) -> list[Array]:
        """Everything of the weights that no gradient reaches, as bytes."""
        found = [np.ascontiguousarray(numpy_of(v)) for v in self.model.non_trainable_weights]
        return [array.reshape(-1).view(np.uint8).copy() for array in found if array.size]

    def load_frozen(self, values: Sequence[Array]) -> None:
        """Take over what ``frozen`` gave."""
        variables = [v for v in self.model.non_trainable_weights if np.prod(v.shape)]
        for variable, data in zip(variables, values, strict=True):
            own = numpy_of(variable)
            variable.assign(np.frombuffer(data.tobytes(), own.dtype).reshape(own.shape))
        refresh(self.model)

    def state(self, slices: Sequence[bytes] | None = None) -> dict[str, bytes]:
        """Everything needed to go on elsewhere."""
        return pack_state(self.model, self._inputs)

    @property
    def learning_rate(self) -> float:
        """The rate of the next update."""
        if self._steps is not None and self._steps.rate is not None:
            return float(self._steps.rate)
        self._schedule_update()
        return float(numpy_of(self.model.optimizer.learning_rate))

    def schedule(self, event: str, figures: Mapping[str, float] | None = None) -> None:
        """Keras's schedules count the optimizer's own updates; one of ours may want to see an epoch's figures."""
        observe = getattr(self.model.optimizer, "observe", None)
        if event == "epoch" and observe is not None:
            observe(figures or {})

    def _schedule_update(self) -> None:
        """For an optimizer of ours, whose rate is a Python function of the update's number."""
        prepare = getattr(self.model.optimizer, "prepare_update", None)
        if prepare is not None:
            prepare()

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
        return self._accounts.training()

    def load_tally(self, tallies: Sequence[Sequence[Array]]) -> None:
        """Go on from the sum of these; from nothing where there are none."""
        found = KerasFigures.of(tallies).parts
        if found and self._steps is not None:
            self._accounts.load_training(found)

    def figures(self, tallies: Sequence[Sequence[Array]]) -> dict[str, float]:
        """What they come to, all replicas together; the states start anew."""
        found = self.figures_so_far(tallies)
        self.model.reset_metrics()
        return found

    def figures_so_far(self, tallies: Sequence[Sequence[Array]]) -> dict[str, float]:
        """The same in the middle of an epoch: the states stay."""
        self._accounts.enter(None)
        return KerasFigures.of(tallies).values(self.model)

    def _check_metrics(self, batch: Batch) -> None:
        """Once, on the first rows that can be halved, where there is a metric that Keras does not vouch for."""
        rows = rows_of(batch)
        if self._adds_up or rows < 2:
            return
        self._adds_up = True
        if own_metrics(self.model):

            def run(part: slice) -> None:
                some = {name: values[part] for name, values in batch.items()}
                self._steps.test(*self._whole(some, has_class_weights=False))

            check_adds_up(self.model, run, rows)

    # --- feeding ---

    def _whole(self, batch: Batch, *, has_class_weights: bool = True) -> tuple[Any, Any, Any]:
        """Inputs, labels and row weights as Keras takes them."""
        y = labels(self.model, batch)
        return features(self.model, batch), y, self._row_weights(batch, y, has_class_weights=has_class_weights)

    def _row_weights(self, batch: Batch, y: Any, *, has_class_weights: bool = True) -> Any:
        weights = batch["w"].reshape(-1).astype(np.float32) if "w" in batch else None
        table = self._content.class_weight if has_class_weights else None
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
        layers = self.model._flatten_layers()
        return [each.state for layer in layers for each in getattr(layer, "_seed_generators", ())]


def _misfit(model: Any, x: Any, y: Any, error: Exception) -> str:
    def described(tree: Any) -> str:
        return ", ".join(f"{each.dtype} {list(each.shape[1:])}" for each in keras.tree.flatten(tree))

    outputs = ", ".join(str(list(each.shape[1:])) for each in getattr(model, "outputs", None) or [])
    loss = getattr(model.loss, "__name__", None) or getattr(model.loss, "name", None) or model.loss
    return (
        f"labels ({described(y)} a row) do not fit the loss {loss!r} of the model's outputs "
        f"({outputs or 'of unknown shape'}) for inputs ({described(x)} a row). Keras says: {str(error).splitlines()[0]}"
    )


def _named(output: Any, names: Sequence[str] | None) -> dict[str, Any]:
    if isinstance(output, dict):
        return {str(key): value for key, value in output.items()}
    if isinstance(output, (list, tuple)):
        known = names if names is not None and len(names) == len(output) else [f"_{i}" for i in range(len(output))]
        return dict(zip(known, output, strict=True))
    return {"prediction": output}


def _steps(content: KerasContent, model: Any, groups: list[list[int]], reduction: Reduction) -> Any:
    if content.backend == "tensorflow":
        from firesteel.frameworks.keras.tensorflow import TensorFlowSteps

        return TensorFlowSteps(model, groups, reduction.weigh, content.clipping)
    if content.backend == "torch":
        from firesteel.frameworks.keras.torch import TorchSteps

        return TorchSteps(model, groups, reduction.weigh, content.clipping)
    if content.backend == "jax":
        from firesteel.frameworks.keras.jax import JaxSteps

        return JaxSteps(model, groups, reduction.weigh, content.clipping)
    raise UnsupportedError(
        f"Keras on {content.backend} cannot be used here; start Python with KERAS_BACKEND=tensorflow, torch or jax"
    )
