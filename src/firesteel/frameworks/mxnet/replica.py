"""An MXNet program living in a process: forward, backward, update, and its state as safetensors.

What differs between Gluon and symbolic modules is in two files of their own, with the same methods; here is what is
the same: which arrays are inputs, how gradients lie in flat buffers, what of the state travels.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mxnet as mx
import numpy as np
import numpy.typing as npt

from firesteel.core.errors import CheckpointError, PlanError
from firesteel.core.program import Program
from firesteel.core.spec import Batch, rows_of
from firesteel.frameworks.mxnet.figures import MXNetFigures, make_metric, read_states, values_of, write_states
from firesteel.frameworks.mxnet.gluon import GluonStyle
from firesteel.frameworks.mxnet.module import ModuleStyle
from firesteel.frameworks.mxnet.program import MXNetContent, is_module, make_model, own_numbers
from firesteel.frameworks.mxnet.state import pack_model, pack_optimizer, unpack_model, unpack_optimizer

__all__ = ["MXNetReplica"]

Array = npt.NDArray[Any]

_EXACT_IN_FLOAT32 = 2**24


class MXNetReplica:
    """One replica; see ``core.ports.Trainable``."""

    def __init__(self, program: Program, device: str = "cpu", threads: int = 1) -> None:
        content: MXNetContent = program.content
        self._content = content
        self._context = mx.gpu(0) if device.startswith("cuda") and mx.context.num_gpus() else mx.cpu()
        with own_numbers(threads == 0):  # the driver's random numbers are the user's
            self.model = make_model(content)
        style = ModuleStyle if is_module(self.model) else GluonStyle
        self._style: Any = style(self.model, content, self._context)
        self.main: Any = None
        self.runner: Any = None
        self.scheduler = None
        self.optimizer: Any = None
        self._updater: Any = None
        self._saved: bytes | None = None  # an optimizer's state, until there is an optimizer
        self._seen: list[list[Any]] | None = None
        self._last: tuple[Batch, float] | None = None
        self._flats: list[Array] = []
        self._metric = make_metric(content.eval_metrics_creator, content.config)
        self._began = time.perf_counter()
        self._is_learning = False
        if program.state is not None:
            self.load(program.state)

    @property
    def loss_function(self) -> Callable[..., Any] | None:
        """What the loss creator made."""
        found: Callable[..., Any] | None = self._style.loss
        return found

    # --- scoring ---

    def forward(self, batch: Batch) -> dict[str, Any]:
        """Outputs in inference mode; see ``Replica``."""
        self.prepare(batch)
        outputs = self._style.infer(self._arrays(batch, "x"), [])
        if len(outputs) == 1:
            return {"prediction": outputs[0].asnumpy()}
        return {f"_{place}": output.asnumpy() for place, output in enumerate(outputs)}

    def measure(self, batch: Batch, metrics: Mapping[str, Any]) -> tuple[float, float] | None:
        """Feed the metrics with these rows, and give the sum of their losses; see ``Replica``."""
        self.prepare(batch)
        labels = self._arrays(batch, "y")
        outputs = self._style.infer(self._arrays(batch, "x"), labels)
        for metric in metrics.values():
            if isinstance(metric, MXNetFigures):
                metric.measure(labels, outputs)
        losses = self._style.losses(outputs, labels)
        return None if losses is None else (float(losses.asnumpy().mean()) * rows_of(batch), rows_of(batch))

    def load(self, state: dict[str, bytes]) -> None:
        """Take over weights, and the optimizer's state once there is an optimizer."""
        arrays, seen = unpack_model(state["model"])
        if seen and not self._style.is_ready:
            self.prepare({name: np.zeros((1, *shape), dtype) for name, dtype, shape in seen})
        self._check(arrays)
        self._style.load(arrays)
        self._saved = state.get("optimizer", self._saved)
        if self._updater is not None and self._saved is not None:
            unpack_optimizer(self._saved, self._updater, self._context)
            self._saved = None

    def _check(self, arrays: Mapping[str, Array]) -> None:
        wanted = self._style.shapes()
        missing = [name for name in wanted if name not in arrays]
        unknown = [name for name in arrays if name not in wanted]
        if missing or unknown:
            raise CheckpointError(
                f"these weights are of another model: it has {', '.join(wanted)}; "
                f"{'missing' if missing else 'unknown'} is {(missing or unknown)[0]!r}"
            )
        for name, shape in wanted.items():
            if shape is not None and shape != arrays[name].shape:
                raise CheckpointError(
                    f"these weights are of another model: {name!r} has shape {arrays[name].shape}, not {shape}"
                )

    def prepare(self, batch: Batch) -> None:
        """Make what needs to see rows; how many there are does not matter."""
        if self._seen is None:
            self._seen = [[name, values.dtype.str, list(values.shape[1:])] for name, values in batch.items()]
        if not self._style.is_ready:
            one = {name: np.zeros((1, *values.shape[1:]), values.dtype) for name, values in batch.items()}
            self._style.prepare(self._arrays(one, "x"), self._arrays(one, "y"))
        if self._is_learning and self._updater is None:
            self._make_updater()

    # --- learning ---

    def start(self, state: dict[str, bytes] | None) -> None:
        """See ``Trainable``. What depends on the data's shapes waits for the first rows."""
        if state is not None and "optimizer" in state:
            self._saved = state["optimizer"]
        if not is_module(self.model) and self._style.loss is None:
            raise PlanError("fit needs a loss for a Gluon model: pass loss_creator to from_mxnet")
        self._is_learning = True
        self._began = time.perf_counter()

    def _make_updater(self) -> None:
        if not self._style.trained:
            raise PlanError("the model has no weights that are trained")
        self.optimizer = self._style.make_optimizer()
        self._updater = mx.optimizer.get_updater(self.optimizer)
        if self._saved is not None:
            unpack_optimizer(self._saved, self._updater, self._context)
            self._saved = None

    def go_native(self, *, is_nearby: bool) -> bool:
        """Gradients are agreed on by the sync."""
        return False

    def seed(self, *numbers: int) -> None:
        """Make dropout and other random layers a function of these numbers."""
        mx.random.seed(hash(numbers) & 0x7FFFFFFF)

    def backward(self, batch: Batch, share: float) -> float | None:
        """Gradients of these rows' loss times ``share``; see ``Trainable``."""
        self.prepare(batch)
        self._last = (batch, share)
        members = self._members()
        if not self._flats:
            self._flats = [np.zeros(sum(sizes), dtype) for dtype, _, sizes in members]
        rows = rows_of(batch)
        if rows == 0 or share == 0.0:
            for flat in self._flats:
                flat[:] = 0
            return None
        labels = self._arrays(batch, "y")
        if not labels:
            raise PlanError("the training data has no labels")
        inputs = self._arrays(batch, "x")
        outputs, losses, scale = self._style.learn(inputs, labels, share)
        trained = self._style.trained
        for flat, (_, places, _) in zip(self._flats, members, strict=True):
            np.concatenate([_dense(trained[place][2]).asnumpy().reshape(-1) for place in places], out=flat)
            if scale != 1.0:
                flat *= scale
        if self._metric is not None:
            self._metric.update(labels, outputs)
        mean = None if losses is None else float(losses.asnumpy().mean())
        if self.runner is not None:
            self.runner.batch, self.runner.output = (*inputs, *labels), outputs
            self.runner.target, self.runner.loss = labels, mean
        return mean

    def mass(self, batch: Batch) -> float | None:
        """A step's gradient is divided by its rows."""
        return None

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
        """See ``Trainable``. MXNet's arrays are its own."""
        return False

    def update(self, again: Callable[[], None] | None = None) -> None:
        """Apply the agreed gradients with the program's own optimizer."""
        trained = self._style.trained
        for flat, (_, places, sizes) in zip(self._flats, self._members(), strict=True):
            gradients, weights = [], []
            for place, part in zip(places, np.split(flat, np.cumsum(sizes)[:-1]), strict=True):
                _, weight, gradient = trained[place]
                gradients.append(mx.nd.array(part.reshape(gradient.shape), ctx=weight.context, dtype=gradient.dtype))
                weights.append(weight)
            if mx.util.is_np_array():
                gradients = [each.as_np_ndarray() for each in gradients]
            self._updater(list(places), gradients, weights)

    def bounds(self, rank: int, size: int) -> list[tuple[int, int]] | None:
        """MXNet's optimizers work on whole arrays."""
        return None

    def weights(self) -> list[Array]:
        """Trainable weights as flat buffers, copied."""
        trained = self._style.trained
        return [
            np.concatenate([trained[place][1].asnumpy().reshape(-1) for place in places])
            for _, places, _ in self._members()
        ]

    def load_weights(self, weights: Sequence[Array]) -> None:
        """Take over what ``weights`` gave."""
        trained = self._style.trained
        for flat, (_, places, sizes) in zip(weights, self._members(), strict=True):
            for place, part in zip(places, np.split(flat, np.cumsum(sizes)[:-1]), strict=True):
                trained[place][1][:] = part.reshape(trained[place][1].shape)

    def buffers(self) -> list[Array]:
        """Running means and the like, as float64 copies."""
        return [value.asnumpy().astype(np.float64).reshape(-1) for _, value, _ in self._style.others]

    def load_buffers(self, buffers: Sequence[Array]) -> None:
        """Take over what ``buffers`` gave."""
        for (_, value, _), values in zip(self._style.others, buffers, strict=True):
            value[:] = values.reshape(value.shape).astype(value.dtype)

    def frozen(self) -> list[Array]:
        """Everything that no gradient reaches, as bytes."""
        return [value.asnumpy().reshape(-1).view(np.uint8).copy() for _, value, _ in self._style.others]

    def load_frozen(self, values: Sequence[Array]) -> None:
        """Take over what ``frozen`` gave."""
        for (_, value, _), data in zip(self._style.others, values, strict=True):
            value[:] = np.frombuffer(data.tobytes(), value.dtype).reshape(value.shape)

    def state(self, slices: Sequence[bytes] | None = None) -> dict[str, bytes]:
        """Everything needed to go on elsewhere."""
        arrays = {name: value.asnumpy() for name, value, _ in [*self._style.trained, *self._style.others]}
        found = {"model": pack_model(arrays, self._seen)}
        if self._updater is not None:
            found["optimizer"] = pack_optimizer(self._updater)
        elif self._saved is not None:
            found["optimizer"] = self._saved
        return found

    @property
    def learning_rate(self) -> float:
        """The rate of the next update."""
        return 0.0 if self.optimizer is None else float(self.optimizer.learning_rate)

    def schedule(self, event: str, figures: Mapping[str, float] | None = None) -> None:
        """MXNet's schedules count the optimizer's own updates."""

    # --- an epoch's figures ---

    def tally(self) -> list[Array]:
        """The states of the training metrics since the epoch began: they add up over replicas."""
        return read_states(self._metric)

    def figures(self, tallies: Sequence[Sequence[Array]]) -> dict[str, Any]:
        """What they come to, all replicas together, and how long the epoch took; the states start anew."""
        if len(tallies) > 1:
            write_states(self._metric, tallies)
        found: dict[str, Any] = values_of(self._metric)
        if self._metric is not None:
            self._metric.reset()
        now = time.perf_counter()
        found["epoch_time"], self._began = now - self._began, now
        if is_module(self.model):
            found["train_loss"] = found["last_train_loss"] = None  # a symbol's loss has no value
        return found

    def files(self, epoch: int) -> dict[str, bytes]:
        """The model as MXNet saves it after an epoch, by the end of each file's name."""
        with tempfile.TemporaryDirectory(prefix="firesteel-") as folder:
            self._style.save(os.path.join(folder, "model"), epoch)
            found = {}
            for name in sorted(os.listdir(folder)):
                with open(os.path.join(folder, name), "rb") as file:
                    found[name.removeprefix("model")] = file.read()
            return found

    # --- feeding ---

    def _arrays(self, batch: Batch, letter: str) -> list[Any]:
        """Features or labels as MXNet's arrays, in order."""
        wanted = getattr(self.model, "data_names" if letter == "x" else "label_names", None)
        names = [name for name in batch if name[0] == letter and (name[1:].isdigit() or name[1:2] == ".")]
        if wanted and sorted(name[2:] for name in names) == sorted(wanted):
            names = [f"{letter}.{name}" for name in wanted]
        return [self._array(batch[name]) for name in names]

    def _array(self, values: Array) -> Any:
        # Whatever the data's types, MXNet's own arrays are float32 unless somebody says otherwise; so are weights, and
        # the two do not mix. Whole numbers beyond what that holds (ids) stay.
        is_large = values.dtype.kind in "iu" and values.size and np.abs(values).max() >= _EXACT_IN_FLOAT32
        dtype = values.dtype if is_large else self._float()
        make = mx.np.array if mx.util.is_np_array() else mx.nd.array
        return make(np.ascontiguousarray(values), ctx=self._context, dtype=dtype)

    def _float(self) -> Any:
        if not self._style.is_ready:
            return np.float32
        kinds = {np.dtype(value.dtype) for _, value, _ in self._style.trained if np.dtype(value.dtype).kind == "f"}
        return kinds.pop() if len(kinds) == 1 else np.dtype(np.float32)

    def _members(self) -> list[tuple[str, tuple[int, ...], list[int]]]:
        """Of each flat buffer: its dtype, the places of its weights among the trained ones, and their sizes."""
        found: dict[str, list[tuple[int, int]]] = {}
        for place, (_, value, _) in enumerate(self._style.trained):
            found.setdefault(np.dtype(value.dtype).name, []).append((place, value.size))
        return [
            ("float32" if dtype == "float16" else dtype, tuple(p for p, _ in members), [s for _, s in members])
            for dtype, members in found.items()
        ]


def _dense(gradient: Any) -> Any:
    return gradient if gradient.stype == "default" else gradient.tostype("default")
