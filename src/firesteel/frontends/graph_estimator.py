"""``Estimator.from_graph``: placeholders, a loss tensor and a session, as plans for the engine."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from firesteel.core import registry
from firesteel.core.errors import CheckpointError, PlanError, SchemaError, UnknownName, UnsupportedError
from firesteel.core.metrics import Metric, as_metrics
from firesteel.core.plan import Clipping, EarlyStopping, Position
from firesteel.core.program import Program
from firesteel.data.sources import Columns, Frame, Local, Packed, Source, Streamed
from firesteel.engine.callbacks import Callback, MainCallback
from firesteel.engine.files import local_path, read_bytes, write_bytes
from firesteel.engine.fold import Fold
from firesteel.engine.history import Curves, History
from firesteel.frontends.training import TrainingEstimator, split_stopping

__all__ = ["GraphEstimator", "clipping_of", "flattened"]

_BACKENDS = ("bigdl", "ray", "spark", "tf2")
_KINDS = (
    "a Spark DataFrame, an XShards, ndarrays as (x, y) or {'x': …, 'y': …}, a pandas DataFrame, an RDD with one such "
    "row to an element, a tf.data.Dataset, or a creator (config, batch_size)"
)
_DROPPED = ("batch_count", "num_samples", "last_train_loss", "val_num_samples")
_BESIDE = "firesteel"
"""Prefix of what a checkpoint holds besides variables."""


class GraphEstimator(TrainingEstimator):
    """See ``Estimator.from_graph``."""

    _kinds = _KINDS

    def __init__(
        self,
        *,
        inputs: Any,
        outputs: Any,
        labels: Any,
        loss: Any,
        optimizer: Any,
        metrics: Any,
        clip_norm: Any,
        clip_value: Any,
        updates: Any,
        sess: Any,
        model_dir: str | None,
        backend: str | None,
        workers_per_node: int,
        seed: int | None,
        flags: Mapping[Any, Any] | None = None,
        **parts: Any,
    ) -> None:
        if backend is not None and backend not in _BACKENDS:
            raise UnknownName("backend", backend, _BACKENDS)
        framework: Any = registry.framework("tfgraph")
        super().__init__(
            framework=framework,
            config={},
            workers_per_node=workers_per_node,
            model_dir=model_dir,
            seed=seed,
        )
        self._inputs_given, self._labels_given = flattened(inputs), flattened(labels)
        if not self._inputs_given:
            raise PlanError("from_graph needs inputs: the placeholders that features are fed to")
        self._outputs_given = outputs
        self._loss, self._optimizer, self._metrics = loss, optimizer, metrics
        self._updates = flattened(updates)
        self._flags: dict[Any, Any] = dict(flags or {})
        self._parts = {name: part for name, part in parts.items() if part is not None}
        self._can_train = optimizer is not None or "train_op" in self._parts
        self._clipping = clipping_of(clip_norm, clip_value)
        ends = [
            *self._inputs_given,
            *self._labels_given,
            *flattened(outputs),
            *self._updates,
            *self._tensors_of(metrics),
        ]
        opened = framework.open_tensors([*ends, *([] if loss is None else [loss])], sess)
        self._graph = opened.graph
        self._is_own_session = sess is None
        self._measures(None)
        self.sess: Any = framework.sessions.start_session(self._graph, self._seed) if sess is None else sess
        """The session with the variables' values: after ``fit`` the trained ones."""
        try:
            if loss is not None:
                self._capture(is_trained=self._can_train)  # says at once what does not fit
        except PlanError:
            self.shutdown()
            raise

    # --- what the engine is told ---

    def _program(self, *, is_trained: bool = True, class_weight: dict[int, float] | None = None) -> Program:
        if class_weight is not None:
            raise UnsupportedError("class_weight is not for graphs: weigh the rows in the loss tensor")
        program = self._capture(is_trained=is_trained)
        optimizer = self._state.get("optimizer") if is_trained else None
        return (
            program if optimizer is None else replace(program, state={**(program.state or {}), "optimizer": optimizer})
        )

    def _capture(self, *, is_trained: bool) -> Program:
        measures, _ = self._measured
        parts = {"optimizer": self._optimizer, **self._parts} if is_trained else {"config": self._parts.get("config")}
        has_labels = bool(self._labels_given) or self._loss is not None
        feeds = self._feeds()
        found: Program = self._framework.capture(
            self._inputs_given,
            inputs={name: tensor for name, tensor in feeds.items() if name.startswith("x")},
            labels={name: tensor for name, tensor in feeds.items() if name.startswith("y")},
            outputs=self._outputs_given,
            loss=self._loss,
            updates=self._updates if is_trained else (),
            clipping=self._clipping if is_trained else None,
            measures=measures if has_labels else None,
            tallied=self._tallied() if is_trained and has_labels else None,
            session=self.sess,
            flags=self._flags,
            seed=self._seed,
            **parts,
        )
        return found

    def _take(self, state: dict[str, bytes]) -> None:
        self._framework.sessions.load_session(self.sess, state["model"])
        self._state = dict(state)

    def _whole_state(self) -> dict[str, bytes]:
        state = {"model": (self._capture(is_trained=self._can_train).state or {})["model"]}
        return {**state, "optimizer": self._state["optimizer"]} if "optimizer" in self._state else state

    def _check_can_train(self, callbacks: tuple[Any, ...]) -> None:
        for name, given in (("labels", self._labels_given), ("loss", self._loss), ("optimizer", self._optimizer)):
            if given is None or given == []:
                raise PlanError(f"{name} should not be None in training: pass it to from_graph")

    def _check_can_measure(self, metrics: Any, main: Any) -> None:
        if self._loss is None and not metrics:
            raise PlanError("evaluate needs a loss or metrics: pass them to from_graph")
        if not self._labels_given:
            raise PlanError("labels should not be None in evaluation: pass them to from_graph")

    def _measures(self, replacement: Any) -> Any:
        given = self._metrics if replacement is None else replacement
        tensors = {} if not isinstance(given, Mapping) else {k: v for k, v in given.items() if self._is_tensor(v)}
        rest = {k: v for k, v in given.items() if k not in tensors} if isinstance(given, Mapping) else given
        if self._is_tensor(given) or (isinstance(given, (list, tuple)) and any(map(self._is_tensor, given))):
            raise PlanError("metrics that are tensors need names: pass a dict of name → tensor")
        applied = as_metrics(rest)
        if applied and not (self._labels_given and self._outputs_given is not None):
            raise PlanError(f"{next(iter(applied))} is applied to outputs and labels: pass both to from_graph")
        pairs = {name: (flattened(self._outputs_given)[0], self._labels_given[0]) for name in applied}
        metrics: dict[str, Metric] = {name: self._framework.mean(name) for name in tensors}
        self._measured = {**tensors, **pairs}, {**metrics, **applied}
        return self._measured[1]

    def _tallied(self) -> dict[str, Metric]:
        """The figures that are kept of the rows that are learnt from."""
        return dict(self._measured[1])

    def _is_tensor(self, value: Any) -> bool:
        return bool(self._framework.accepts(value)) and not isinstance(value, (list, tuple, Metric))

    def _tensors_of(self, metrics: Any) -> list[Any]:
        return [v for v in metrics.values() if self._is_tensor(v)] if isinstance(metrics, Mapping) else []

    def _found(self, fold: Fold) -> dict[str, Any]:
        return ({} if fold.loss is None else {"loss": fold.loss}) | fold.figures()

    def _monitors(self) -> tuple[str, ...]:
        names = list(self._measures(None))
        return ("loss", "train_loss", "val_loss", *names, *(f"val_{name}" for name in names))

    def _split_callbacks(
        self, callbacks: Any, stopping: EarlyStopping | None
    ) -> tuple[tuple[Any, ...], EarlyStopping | None]:
        rest, found = split_stopping(callbacks, stopping)
        for each in rest:
            if not isinstance(each, Callback) or isinstance(each, MainCallback):
                kind = type(each).__qualname__
                raise PlanError(f"callbacks of a graph must be firesteel.learn.pytorch.callbacks.Callback, not {kind}")
        if found is not None and found.monitor == "loss":
            found = replace(found, monitor="train_loss")
        return rest, found

    def _history(self, history: History) -> Any:
        records = []
        for record in history.epochs:
            named = {"loss" if key == "train_loss" else key: value for key, value in record.items()}
            records.append({key: value for key, value in named.items() if key not in _DROPPED})
        return Curves(records, history)

    def _inputs(self) -> tuple[int, int | None]:
        return len(self._inputs_given), len(self._inputs_given)

    def _outputs(self) -> int | None:
        ranks = [tensor.shape.rank for tensor in self._labels_given]
        return None if ranks == [1] else len(ranks)  # a placeholder of one number a row takes no joined ones

    def _dtypes(self) -> dict[str, str]:
        return {name: tensor.dtype.name for name, tensor in self._feeds().items()}

    def _take_feed_dict(self, feed_dict: Any) -> None:
        if feed_dict is not None:
            self._flags = dict(feed_dict)

    def _source(self, data: Any, columns: Columns, *, counts_inputs: bool) -> Source:
        from firesteel.data.tf import Dataset

        if columns.weight is not None:
            raise UnsupportedError("sample_weight_col is not for graphs: feed weights as an input of the loss")
        if isinstance(data, Dataset):
            data = data.xshards
        feeds = self._feeds()
        if self._framework.is_loader(data):
            names = [[name for name in feeds if name.startswith(letter)] for letter in "xy"]
            ranks = {name: tensor.shape.rank for name, tensor in feeds.items()}
            packed, has_rows = self._framework.travelling(data, *names, ranks, verb=columns.verb)
            return Streamed(packed, is_creator=has_rows)
        source = super()._source(data, columns, counts_inputs=counts_inputs)
        if not isinstance(source, Streamed):
            self._check_source(source, columns, feeds)
        return source

    def _feeds(self) -> dict[str, Any]:
        """The placeholders by their names in a batch."""
        found = {f"x{place}": tensor for place, tensor in enumerate(self._inputs_given)}
        return found | {f"y{place}": tensor for place, tensor in enumerate(self._labels_given)}

    def _check_source(self, source: Frame | Packed | Local, columns: Columns, feeds: Mapping[str, Any]) -> None:
        """As many labels as placeholders for them; and arrays that are here can be looked at."""
        if isinstance(source, Local):
            names = tuple(source.batch)
            for name in feeds.keys() & source.batch.keys():
                self._framework.check_rows(name, feeds[name], source.batch[name])
        else:
            names = source.reading.names if isinstance(source, Frame) else source.names
        found, wanted = [sum(name.startswith("y") for name in each) for each in (names, feeds)]
        if columns.verb != "prediction" and found != wanted:
            raise SchemaError(f"the graph takes {wanted} labels, but there are {found} in the data")

    # --- the session ---

    def get_model(self) -> Any:
        """A graph is not a model of its own: its variables are in ``sess``."""
        raise UnsupportedError("a graph has no model object; its variables' values are in the estimator's sess")

    def save_tf_checkpoint(self, path: str) -> str:
        """A TensorFlow checkpoint that ``tf.compat.v1.train.Saver`` restores; the optimizer's state lies beside it."""
        local = local_path(path)
        facts = {"position": asdict(self._position), "seed": self._seed}
        state = {f"{_BESIDE}/training": np.frombuffer(json.dumps(facts).encode(), np.uint8)}
        if "optimizer" in self._state:
            state[f"{_BESIDE}/optimizer"] = np.frombuffer(self._state["optimizer"], np.uint8)
        if local is not None:
            self._framework.sessions.save_checkpoint(local, self.sess, state)
            return path
        with tempfile.TemporaryDirectory() as folder:
            self._framework.sessions.save_checkpoint(os.path.join(folder, os.path.basename(path)), self.sess, state)
            for name in sorted(os.listdir(folder)):
                with open(os.path.join(folder, name), "rb") as file:
                    write_bytes(f"{os.path.dirname(path)}/{name}", file.read())
        return path

    def load_tf_checkpoint(self, path: str) -> None:
        """What ``save_tf_checkpoint`` or a ``Saver`` wrote: the prefix, or the folder whose newest it is."""
        local = local_path(path)
        with tempfile.TemporaryDirectory() as folder:
            if local is None:
                local = os.path.join(folder, os.path.basename(path))
                for ending in (".index", ".data-00000-of-00001"):
                    try:
                        data = read_bytes(path + ending)
                    except FileNotFoundError as error:
                        raise CheckpointError(f"there is no TensorFlow checkpoint at {path}", path=path) from error
                    write_bytes(local + ending, data)
            beside = self._framework.sessions.restore_checkpoint(local, self.sess, f"{_BESIDE}/")
        self._state = {name: beside[name].tobytes() for name in ("optimizer",) if name in beside}
        if "training" in beside:
            facts = json.loads(beside["training"].tobytes())
            self._position, self._seed = Position(**facts["position"]), int(facts["seed"])

    def save(self, path: str) -> str:
        """``save_tf_checkpoint``."""
        return self.save_tf_checkpoint(path)

    def load(self, path: str) -> None:
        """``load_tf_checkpoint``."""
        self.load_tf_checkpoint(path)

    def shutdown(self) -> None:
        """Close the session, if it was made here. May be called twice."""
        if self._is_own_session:
            self.sess.close()


def flattened(tensors: Any) -> list[Any]:
    """Tensors in lists and tuples of any depth, one after the other; nothing for ``None``."""
    if tensors is None:
        return []
    if isinstance(tensors, Mapping):
        tensors = list(tensors.values())
    if isinstance(tensors, (list, tuple)):
        return [leaf for each in tensors for leaf in flattened(each)]
    return [tensors]


def clipping_of(clip_norm: Any, clip_value: Any) -> Clipping | None:
    """What ``clip_norm`` and ``clip_value`` mean; both given is a ``PlanError``."""
    if clip_norm is not None and clip_value is not None:
        raise PlanError("gradients are clipped by clip_norm or by clip_value, not by both")
    if clip_norm is not None:
        if isinstance(clip_norm, bool) or not isinstance(clip_norm, (int, float)):
            raise PlanError(f"clip_norm must be a positive number, not {clip_norm!r}")
        return Clipping.l2_norm(clip_norm)
    if clip_value is None:
        return None
    if isinstance(clip_value, (tuple, list)) and len(clip_value) == 2:
        return Clipping.constant(*clip_value)
    if isinstance(clip_value, bool) or not isinstance(clip_value, (int, float)) or not clip_value > 0:
        raise PlanError(f"clip_value must be a number > 0 or a pair (min, max), not {clip_value!r}")
    return Clipping.constant(-clip_value, clip_value)
