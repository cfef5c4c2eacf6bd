"""``Estimator.from_bigdl``: a model of BigDL's layers, its criterion and optim method, as plans for the engine."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from firesteel.core import registry
from firesteel.core.errors import CheckpointError, PlanError
from firesteel.core.metrics import Metric, as_metrics
from firesteel.core.optimizers import SGD, OptimMethod
from firesteel.core.plan import Position, Validation, positive
from firesteel.core.program import Program
from firesteel.core.schedules import Plateau
from firesteel.data.sources import Columns, Source
from firesteel.engine.callbacks import find_main
from firesteel.engine.files import exists, local_path, read_bytes, write_bytes
from firesteel.engine.fold import Fold
from firesteel.engine.history import Curves, History
from firesteel.frontends.bigdl import saving
from firesteel.frontends.bigdl.criterions import Criterion
from firesteel.frontends.bigdl.layer import Layer, as_layer
from firesteel.frontends.bigdl.preprocessing import shapes_of
from firesteel.frontends.training import TrainingEstimator

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["BigDLEstimator"]

_KINDS = (
    "a Spark DataFrame, an XShards, ndarrays as (x, y) or {'x': …, 'y': …}, a pandas DataFrame, an RDD with one such "
    "row to an element, a DataLoader, or a creator (config, batch_size)"
)
_NAMES = {"Accuracy": "Top1Accuracy", "AUC": "AucScore"}
"""What BigDL calls our metrics."""
_JSON, _WEIGHTS = "model.json", "model.safetensors"


class BigDLEstimator(TrainingEstimator):
    """See ``Estimator.from_bigdl``."""

    _kinds = _KINDS
    _vectors = False

    def __init__(
        self,
        *,
        model: Any,
        loss: Any = None,
        optimizer: Any = None,
        metrics: Any = None,
        feature_preprocessing: Any = None,
        label_preprocessing: Any = None,
        model_dir: str | None = None,
        workers_per_node: int = 1,
        seed: int | None = None,
        replicas: int | None = None,
    ) -> None:
        framework: Any = registry.framework("bigdl")
        super().__init__(
            framework=framework,
            config={},
            workers_per_node=workers_per_node,
            model_dir=model_dir,
            seed=seed,
        )
        self._sync = "sharded"
        self._replicas = positive(replicas, "replicas", none=True)
        self._given = model
        self._layer = _as_model(model)
        if seed is not None:
            framework.seeded(self._seed, self._layer.to_torch)
        self._metrics = metrics
        self._parts: dict[str, Any] = {}
        self._set_parts(loss, optimizer, feature_preprocessing, label_preprocessing)
        self._measures(None)
        self._program()  # says at once what does not fit

    def _set_parts(self, loss: Any, optimizer: Any, features: Any, labels: Any) -> None:
        self._parts |= {
            "optimizer": SGD() if optimizer is None else optimizer,
            "loss": loss.to_torch() if isinstance(loss, Criterion) else loss,
            "features": shapes_of(features, "feature_preprocessing"),
            "labels": shapes_of(labels, "label_preprocessing"),
        }

    # --- what the engine is told ---

    def _program(self, *, is_trained: bool = True, class_weight: dict[int, float] | None = None) -> Program:
        parts = {
            **self._parts,
            "class_weight": class_weight,
            "row_shape": self._layer.row_shape(),
            "seed": self._seed,
        }
        if not is_trained:
            parts["optimizer"] = None
        elif self._clipping is not None:
            parts["clipping"] = self._clipping
        program: Program = self._framework.capture(self._layer.to_torch(), **parts)
        state = self._optimizer_state() if is_trained else None
        return replace(program, state=None if state is None else {"optimizer": state})

    def _optimizer_state(self) -> bytes | None:
        kept = self._state.get("optimizer")
        method = self._parts["optimizer"]
        return method.start_state if kept is None and isinstance(method, OptimMethod) else kept

    def _whole_state(self) -> dict[str, bytes]:
        state = {"model": self._framework.pack_model(self._layer.to_torch().state_dict())}
        optimizer = self._optimizer_state()
        return {**state, "optimizer": optimizer} if optimizer else state

    def _take(self, state: dict[str, bytes]) -> None:
        """Make this the estimator's state, in the user's own model."""
        self._framework.load_into(self._layer.to_torch(), state["model"])
        self._state = dict(state)
        method = self._parts["optimizer"]
        if isinstance(method, OptimMethod):
            method.keep_state(state.get("optimizer"))

    def _check_can_train(self, callbacks: tuple[Any, ...]) -> None:
        if self._parts["loss"] is None and find_main(callbacks) is None:
            raise PlanError("fit needs a loss: pass a criterion to from_bigdl")

    def _check_can_measure(self, metrics: Any, main: Any) -> None:
        if self._parts["loss"] is None and not metrics and main is None:
            raise PlanError("evaluate needs a loss or metrics: pass them to from_bigdl, or validation_metrics")

    def _measures(self, replacement: Any) -> dict[str, Metric]:
        given = self._metrics if replacement is None else replacement
        found = as_metrics(given)
        if isinstance(given, Mapping):
            return found
        renamed: dict[str, Metric] = {}
        for name, metric in found.items():
            wanted = _NAMES.get(name, name)
            choices = (wanted, *(f"{wanted}_{number}" for number in range(1, len(found) + 1)))
            renamed[next(choice for choice in choices if choice not in renamed)] = metric
        return renamed

    def _found(self, fold: Fold) -> dict[str, Any]:
        return ({} if fold.loss is None else {"Loss": fold.loss}) | fold.figures()

    def _monitors(self) -> tuple[str, ...]:
        return (*super()._monitors(), *(f"val_{name}" for name in self._measures(None)))

    def _validation(
        self, source: Source | None, size: int | None, own_size: Any, every: Any, trigger: Any, steps: Any
    ) -> Validation | None:
        schedule = getattr(self._parts["optimizer"], "schedule", None)
        if source is None and isinstance(schedule, Plateau) and schedule.monitor == "score":
            raise PlanError('Plateau("score") watches the first validation method: pass validation_data')
        return super()._validation(source, size, own_size, every, trigger, steps)

    def _history(self, history: History) -> Any:
        records = []
        for record in history.epochs:
            kept = {key: value for key, value in record.items() if key.startswith("val_") and key != "val_num_samples"}
            records.append({"epoch": record["epoch"], "loss": record["train_loss"], **kept})
        return Curves(records, history)

    def _inputs(self) -> tuple[int, int | None]:
        """As the model has them; where columns are dealt out, any number of them may be joined."""
        return (1, None) if self._parts["features"] is not None else self._layer.input_range()

    def _columns(self, features: Any, labels: Any, weight: str | None, verb: str) -> Columns:
        """BigDL's own names where none are given."""
        labels = "label" if labels is None and verb != "prediction" else labels
        return super()._columns("features" if features is None else features, labels, weight, verb)

    def _world(self, spark: SparkSession) -> int:
        return super()._world(spark) if self._replicas is None else self._replicas

    def fold(
        self,
        data: Any,
        batch_size: int,
        metrics: Mapping[str, Metric],
        feature_cols: Any = None,
        label_cols: Any = None,
    ) -> Fold:
        """Metrics over all rows, with their number: what ``Layer.evaluate`` is made of."""
        return self._fold(data, batch_size, self._columns(feature_cols, label_cols, None, "training"), dict(metrics))

    # --- the model ---

    def get_model(self) -> Any:
        """The model with the trained weights: the same object that was given, until another was loaded."""
        return self._given

    def save(self, model_path: str, overwrite: bool = True) -> str:
        """A folder with ``model.json`` (the layers) and ``model.safetensors`` (weights, optimizer state). No pickle."""
        folder = str(model_path)
        if not overwrite and exists(folder):
            raise FileExistsError(f"{folder} exists already; pass overwrite=True to replace it")
        facts = {"position": asdict(self._position), "seed": self._seed}
        text = json.dumps(saving.describe(self._layer), indent=1)
        weights = self._framework.pack_file(self._whole_state(), facts)
        write_bytes(posixpath.join(folder, _WEIGHTS), weights)
        write_bytes(posixpath.join(folder, _JSON), text.encode())
        return folder

    def load(
        self,
        checkpoint: str,
        optimizer: Any = None,
        loss: Any = None,
        feature_preprocessing: Any = None,
        label_preprocessing: Any = None,
        model_dir: str | None = None,
        is_checkpoint: bool = False,
    ) -> None:
        """What ``save`` wrote, into this estimator's model if it has the same layers, else as a new model.

        Args:
            checkpoint: the folder; with ``is_checkpoint`` a checkpoint, as ``load_checkpoint`` takes it.
            optimizer: in the place of the one there is, as the three that follow.
            loss: see ``from_bigdl``.
            feature_preprocessing: see ``from_bigdl``.
            label_preprocessing: see ``from_bigdl``.
            model_dir: where checkpoints go from now on.
            is_checkpoint: whether this is a checkpoint of a training.
        """
        if model_dir is not None:
            self._model_dir = local_path(model_dir) or model_dir
        before = dict(self._parts)
        self._set_parts(
            before["loss"] if loss is None else loss,
            before["optimizer"] if optimizer is None else optimizer,
            before["features"] if feature_preprocessing is None else feature_preprocessing,
            before["labels"] if label_preprocessing is None else label_preprocessing,
        )
        try:
            if is_checkpoint:
                self.load_checkpoint(checkpoint)
            else:
                self._load_folder(str(checkpoint))
        except BaseException:
            self._parts = before
            raise
        if optimizer is not None:
            self._state.pop("optimizer", None)  # it belongs to the optimizer before

    def _load_folder(self, folder: str) -> None:
        path = posixpath.join(folder, _JSON)
        if not exists(path):
            raise CheckpointError(f"{folder} has no {_JSON}: it is not a model that an estimator saved", path=folder)
        found = saving.read_description(path)
        state, facts = self._framework.unpack_file(read_bytes(posixpath.join(folder, _WEIGHTS)))
        layer = self._layer
        if not _is_same(saving.describe(layer), found):
            layer = saving.from_description(found)
        try:
            self._framework.load_into(layer.to_torch(), state["model"])
        except CheckpointError as error:
            raise CheckpointError(f"{folder} does not fit: {error}", path=folder) from error
        if layer is not self._layer:
            self._layer = self._given = layer
        self._state = dict(state)
        self._position = Position(**facts["position"]) if "position" in facts else Position()


def _as_model(model: Any) -> Layer:
    if model is None:
        raise PlanError("from_bigdl needs a model: layers of firesteel.bigdl.nn.layer, or a torch module")
    return as_layer(model)


def _is_same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two descriptions are of the same layers, whatever their names."""

    def plain(found: dict[str, Any]) -> list[dict[str, Any]]:
        return [{key: value for key, value in entry.items() if key in _COMPARED} for entry in found["layers"]]

    return json.dumps(plain(one), sort_keys=True) == json.dumps(plain(other), sort_keys=True)


_COMPARED = ("class", "settings", "layers", "bigdl_type", "module")
