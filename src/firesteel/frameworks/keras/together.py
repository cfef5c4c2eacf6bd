"""A user's own Keras model, in a program of the user's own, whose ``fit`` works together with others'.

Keras's loop stays as it is. What is put into it is one exchange where the optimizer gets its gradients: they become the
mean over all rows that all processes saw in this step. A process that has no rows for a step takes part with none, so
that nobody waits for nobody; an epoch ends when all have ended.
"""

from __future__ import annotations

import json
import queue
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from firesteel.core.errors import PlanError, UnsupportedError
from firesteel.core.ports import Group
from firesteel.frameworks.keras.figures import read_states

__all__ = ["Together"]

Array = npt.NDArray[Any]

_IDLE_SECONDS = 0.05
_SEED_STATE = "seed_generator_state"
_END = object()


class Together:
    """The ``fit`` of one model, with others.

    Args:
        model: a compiled Keras 3 model.
        group: those who train it.
        is_starved: whether this process waits for rows of which none are on their way.
    """

    def __init__(self, model: Any, group: Group, is_starved: Callable[[], bool]) -> None:
        import keras

        self._keras = keras
        backends: dict[str, type[_Steps]] = {"tensorflow": _TensorFlowSteps, "torch": _TorchSteps}
        name = keras.backend.backend()
        if name not in backends:
            raise UnsupportedError(f"distribute works with Keras on {' or '.join(backends)}, not on {name}")
        if not isinstance(model, keras.Model):
            raise PlanError(f"distribute takes a compiled Keras 3 model, not {type(model).__name__}")
        self._model = model
        self._group = group
        self._is_starved = is_starved
        self._steps = backends[name](self)
        self._has_met = False
        self._rows_seen = 0.0
        self._is_training = False
        self._tallies: list[list[Array]] = []

    def fit(self, *arguments: Any, **options: Any) -> Any:
        """Keras's own ``fit``, with the others."""
        model = self._model
        if not model.compiled or model.optimizer is None:
            raise PlanError("distribute takes a compiled model: call model.compile(optimizer=…, loss=…) first")
        self._has_met = False
        options["callbacks"] = self._callbacks(options.get("callbacks"))
        if arguments and isinstance(arguments[0], types.GeneratorType):
            arguments = (self._served(arguments[0]), *arguments[1:])
        elif isinstance(options.get("x"), types.GeneratorType):
            options["x"] = self._served(options["x"])
        apply, read = model.optimizer.apply, model._get_metrics_result_or_logs
        model.train_function = self._steps.make()
        model.optimizer.apply = lambda grads, variables=None: self._steps.apply(apply, grads, variables)
        model._get_metrics_result_or_logs = lambda logs: self._read(read, logs)
        self._steps.update = self._steps.make_update(apply)
        try:
            return type(model).fit(model, *arguments, **options)
        finally:
            del model.optimizer.apply, model._get_metrics_result_or_logs
            model.train_function = None  # Keras makes its own again

    # --- a step ---

    def average(self, rows: float, gradients: Sequence[Array]) -> list[Array]:
        """The mean of all processes' gradients, weighted by rows. Called once a step, with this process's rows."""
        self._rows_seen += rows
        total, _ = self._agree(rows, is_ended=False)
        return self._exchange([gradient * np.float32(rows) for gradient in gradients], total)

    def serve(self, *, is_ended: bool) -> bool:
        """Take part in a step without rows. False where all have ended, or nobody had any."""
        self.meet(None)
        total, ended = self._agree(0.0, is_ended=is_ended)
        if not total:
            return ended < self._group.size
        variables = self._model.trainable_variables
        zeros = [np.zeros(tuple(variable.shape), np.float32) for variable in variables]
        self._steps.update(self._exchange(zeros, total))
        return True

    def _served(self, rows: Iterator[Any]) -> Iterator[Any]:
        """The same batches. Where Keras asks for them in this very thread, it is not kept from the others' steps.

        Keras looks at a generator's first batch before it begins. In its loop, on TensorFlow, batches are asked for by
        threads of their own, and this one waits for them in ``wait_for``.
        """
        home = threading.get_ident()
        while True:
            box = _ahead(lambda: next(rows, _END))
            item = self.wait_for(box) if threading.get_ident() == home else _open(box.get())
            if item is _END:
                return
            yield item

    def wait_for(self, box: queue.SimpleQueue[Any]) -> Any:
        """What comes out of the box; while this process can get no rows, it takes part in the others' steps."""
        while True:
            try:
                return _open(box.get(timeout=_IDLE_SECONDS))
            except queue.Empty:
                if self._is_starved():
                    self.serve(is_ended=False)

    def meet(self, batch: Any) -> None:
        """Before the first step: a model with variables everywhere, and all with the first process's values."""
        if self._has_met:
            return
        self._has_met = True
        about = None if batch is None else _about(batch)
        all_about = [json.loads(each) for each in self._group.gather_bytes(json.dumps(about).encode())]
        known = next((each for each in all_about if each is not None), None)
        if known is None:
            self._has_met = False  # nobody has any rows, yet
            return
        model = self._model
        model._symbolic_build(data_batch=_blank(known) if batch is None else batch)
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        for variable in [*model.variables, *model.optimizer.variables]:
            if variable.name != _SEED_STATE:
                self._take_over(variable)

    def _agree(self, rows: float, *, is_ended: bool) -> tuple[float, int]:
        """Rows of this step over all processes, and how many of these have ended."""
        header = np.array([rows, float(is_ended)])
        self._group.all_reduce(header)
        return float(header[0]), int(header[1])

    def _exchange(self, weighted: Sequence[Array], total: float) -> list[Array]:
        flat = np.concatenate([np.asarray(each, np.float32).reshape(-1) for each in weighted])
        self._group.all_reduce(flat)
        flat /= np.float32(total)
        edges = np.cumsum([each.size for each in weighted])[:-1]
        return [part.reshape(each.shape) for part, each in zip(np.split(flat, edges), weighted, strict=True)]

    def _take_over(self, variable: Any) -> None:
        value = np.array(self._keras.ops.convert_to_numpy(variable))
        flat = np.ascontiguousarray(value).reshape(-1).view(np.uint8).copy()
        self._group.broadcast(flat)
        if self._group.rank:
            variable.assign(flat.view(value.dtype).reshape(value.shape))

    # --- the end of an epoch ---

    def _read(self, read: Callable[[Any], Any], logs: Any) -> Any:
        """Where Keras reads its metrics: at the end of an epoch's training, and of its validation."""
        if self._is_training:
            while self.serve(is_ended=True):
                pass
            self._settle()
            self._is_training = False
        self._tallies.append(read_states(self._model))
        return read(logs)

    def _settle(self) -> None:
        """State that no gradient reaches (batch normalisation's means) becomes the mean of all, by rows."""
        variables = [
            variable
            for variable in self._model.non_trainable_variables
            if np.dtype(str(variable.dtype).replace("bfloat16", "float32")).kind == "f"
        ]
        weight = self._rows_seen
        self._rows_seen = 0.0
        values = [np.asarray(self._keras.ops.convert_to_numpy(variable), np.float64) for variable in variables]
        packed = np.concatenate([*(value.reshape(-1) * weight for value in values), [weight]])
        self._group.all_reduce(packed)
        if not variables or not packed[-1]:
            return
        edges = np.cumsum([value.size for value in values])
        for variable, value in zip(variables, np.split(packed[:-1] / packed[-1], edges[:-1]), strict=True):
            variable.assign(value.reshape(tuple(variable.shape)).astype(str(variable.dtype)))

    def _callbacks(self, given: Any) -> Any:
        base = self._keras.callbacks.Callback

        class First(base):  # type: ignore[misc, valid-type]
            def on_epoch_begin(callback, epoch: int, logs: Any = None) -> None:  # noqa: N805
                self._is_training, self._tallies = True, []

            def on_epoch_end(callback, epoch: int, logs: Any = None) -> None:  # noqa: N805
                if logs is not None:
                    logs.update(self._merge())

        class Last(base):  # type: ignore[misc, valid-type]
            def on_epoch_end(callback, epoch: int, logs: Any = None) -> None:  # noqa: N805
                # One that stops, stops all: nobody could train on without it.
                flag = np.array([float(callback.model.stop_training)])
                self._group.all_reduce(flag)
                callback.model.stop_training = bool(flag[0])

        if isinstance(given, self._keras.callbacks.CallbackList):
            raise UnsupportedError("pass callbacks to fit as a list, not as a CallbackList")
        listed = list(given) if isinstance(given, (list, tuple)) else [] if given is None else [given]
        return [First(), *listed, Last()]

    def _merge(self) -> dict[str, Any]:
        """The epoch's metrics over all processes: of training, and of validation where anybody had one."""
        found: dict[str, Any] = {}
        before = read_states(self._model)
        for prefix, mine in zip(("", "val_"), (*self._tallies, None, None), strict=False):
            merged = self._sum(mine)
            if merged is not None and mine is not None:
                _write_states(self._model, merged)
                values = self._model.get_metrics_result()
                found |= {f"{prefix}{name}": float(np.asarray(value)) for name, value in values.items()}
        _write_states(self._model, before)
        return found

    def _sum(self, mine: list[Array] | None) -> list[Array] | None:
        """Metric states add up: see ``figures``. Nothing where no process has any."""
        sizes = [json.loads(each) for each in self._group.gather_bytes(json.dumps(_sizes(mine)).encode())]
        there = [each for each in sizes if each is not None]
        if not there:
            return None
        flat = np.zeros(sum(there[0])) if mine is None else np.concatenate([each.reshape(-1) for each in mine])
        flat = flat.astype(np.float64)
        self._group.all_reduce(flat)
        if mine is None:
            return None
        parts = np.split(flat, np.cumsum(_sizes(mine))[:-1])
        return [part.reshape(each.shape) for part, each in zip(parts, mine, strict=True)]


class _Steps:
    """What is the backend's own in a step."""

    def __init__(self, together: Together) -> None:
        self._together = together
        self._model = together._model
        self.update: Callable[[list[Array]], None]
        """Applies gradients that are the mean already."""

    def make(self) -> Callable[[Any], Any]:
        """Keras's ``train_function``."""
        raise NotImplementedError

    def make_update(self, apply: Callable[..., None]) -> Callable[[list[Array]], None]:
        """See ``update``."""
        raise NotImplementedError

    def apply(self, apply: Callable[..., None], gradients: Any, variables: Any) -> None:
        """The optimizer's ``apply``, with the mean of all processes' gradients."""
        raise NotImplementedError


class _TensorFlowSteps(_Steps):
    def make(self) -> Callable[[Any], Any]:
        import tensorflow as tf

        model, together = self._model, self._together

        def one_step(data: Any) -> Any:
            leaves = [leaf for leaf in tf.nest.flatten(data) if leaf is not None]
            self._rows = tf.cast(tf.shape(leaves[0])[0], tf.float32)
            return model.train_step(data)

        # Not jit: XLA cannot leave its program in the middle of a step.
        step = one_step if model.run_eagerly else tf.function(one_step, autograph=False, reduce_retracing=True)
        step = model._autoconvert_optionals(step)

        def train_function(iterator: Iterator[Any]) -> Any:
            outputs: Any = None
            for place in range(model.steps_per_execution):
                batch = together.wait_for(_ahead(lambda: next(iterator, None)))
                if batch is None and not place:
                    raise StopIteration
                if batch is None:
                    break
                together.meet(batch)
                outputs = step(batch)
            return outputs

        return train_function

    def make_update(self, apply: Callable[..., None]) -> Callable[[list[Array]], None]:
        import tensorflow as tf

        def update(gradients: list[Any]) -> None:
            variables = self._model.trainable_variables
            apply(
                [tf.cast(each, variable.dtype) for each, variable in zip(gradients, variables, strict=True)], variables
            )

        compiled = tf.function(update, autograph=False, reduce_retracing=True)
        return lambda gradients: compiled([tf.constant(each) for each in gradients])

    def apply(self, apply: Callable[..., None], gradients: Any, variables: Any) -> None:
        import tensorflow as tf

        gradients = list(gradients)
        shapes = [variable.shape for variable in (variables or self._model.trainable_variables)]
        dense = [
            tf.zeros(shape) if each is None else tf.cast(tf.convert_to_tensor(each), tf.float32)
            for each, shape in zip(gradients, shapes, strict=True)
        ]

        def average(rows: Any, *arrays: Any) -> list[Array]:
            return self._together.average(float(rows), arrays)

        mean = tf.numpy_function(average, [self._rows, *dense], [tf.float32] * len(dense))
        found = []
        for each, value, shape in zip(gradients, mean, shapes, strict=True):
            value.set_shape(shape)
            found.append(None if each is None else tf.cast(value, each.dtype))
        apply(found, variables)


class _TorchSteps(_Steps):
    def make(self) -> Callable[[Any], Any]:
        import torch

        model, together = self._model, self._together

        def train_function(data: Any) -> Any:
            batch = data[0]
            leaves = [leaf for leaf in _flatten(batch) if leaf is not None]
            self._rows = float(torch.as_tensor(leaves[0]).shape[0])
            together.meet(batch)
            return model.train_step(batch)

        return train_function

    def make_update(self, apply: Callable[..., None]) -> Callable[[list[Array]], None]:
        import torch

        def update(gradients: list[Array]) -> None:
            variables = self._model.trainable_variables
            with torch.no_grad():
                apply([torch.from_numpy(each.copy()) for each in gradients], variables)

        return update

    def apply(self, apply: Callable[..., None], gradients: Any, variables: Any) -> None:
        import torch

        gradients = list(gradients)
        shapes = [tuple(variable.shape) for variable in (variables or self._model.trainable_variables)]
        dense = [
            np.zeros(shape, np.float32) if each is None else each.detach().cpu().float().numpy()
            for each, shape in zip(gradients, shapes, strict=True)
        ]
        mean = self._together.average(self._rows, dense)
        found = [
            None if each is None else torch.from_numpy(value).to(each)
            for each, value in zip(gradients, mean, strict=True)
        ]
        apply(found, variables)


def _ahead(get: Callable[[], Any]) -> queue.SimpleQueue[Any]:
    """What ``get`` gives, once it does: in a thread of its own, so that the caller may do something else meanwhile."""
    box: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def run() -> None:
        try:
            box.put((get(), None))
        except BaseException as error:  # noqa: BLE001 - raised by whoever waits
            box.put((None, error))

    threading.Thread(target=run, name="firesteel-batch", daemon=True).start()
    return box


def _open(found: tuple[Any, BaseException | None]) -> Any:
    value, error = found
    if error is not None:
        raise error
    return value


def _sizes(states: list[Array] | None) -> list[int] | None:
    return None if states is None else [each.size for each in states]


def _write_states(model: Any, states: Sequence[Array]) -> None:
    seen: set[int] = set()
    variables = []
    for metric in model.metrics:
        for variable in metric.variables:
            if id(variable) not in seen:
                seen.add(id(variable))
                variables.append(variable)
    for variable, value in zip(variables, states, strict=True):
        variable.assign(np.asarray(value).astype(variable.dtype))


# --- what a batch looks like, for a process that has none -----------------------------------------------------------


def _about(batch: Any) -> Any:
    """The batch as JSON: its nesting, and each part's row shape and dtype."""
    if isinstance(batch, dict):
        return {"dict": {key: _about(value) for key, value in batch.items()}}
    if isinstance(batch, (list, tuple)):
        return {type(batch).__name__ if type(batch) in (list, tuple) else "tuple": [_about(value) for value in batch]}
    if batch is None:
        return {"none": True}
    return {"shape": [int(length) for length in batch.shape[1:]], "dtype": _dtype(batch)}


def _dtype(leaf: Any) -> str:
    import keras

    return str(keras.backend.standardize_dtype(leaf.dtype))


def _blank(about: Any) -> Any:
    """A batch of one row that looks so."""
    if "dict" in about:
        return {key: _blank(value) for key, value in about["dict"].items()}
    if "list" in about:
        return [_blank(value) for value in about["list"]]
    if "tuple" in about:
        return tuple(_blank(value) for value in about["tuple"])
    if "none" in about:
        return None
    import keras

    return keras.ops.zeros((1, *about["shape"]), dtype=about["dtype"])


def _flatten(batch: Any) -> Iterator[Any]:
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)):
        for part in batch:
            yield from _flatten(part)
    else:
        yield batch
