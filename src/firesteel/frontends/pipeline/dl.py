"""``DLEstimator`` and ``DLModel``: any torch or Keras model as a stage of Spark ML."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.ml import Estimator, Model
from pyspark.ml.util import MLReadable, MLWritable

from firesteel.core.errors import CheckpointError, PlanError, UnsupportedError
from firesteel.core.imports import follow, path_of
from firesteel.core.plan import EarlyStopping, Map
from firesteel.data.reading import Reading, make_reading
from firesteel.engine.score import sample, score_frame
from firesteel.engine.scorer import Scorer, make_scorer
from firesteel.frontends.pipeline.checkpoints import CheckpointRun
from firesteel.frontends.pipeline.columns import Finish, check_new
from firesteel.frontends.pipeline.failures import as_failures
from firesteel.frontends.pipeline.keras_side import KerasSide
from firesteel.frontends.pipeline.openvino_side import OpenVINOSide
from firesteel.frontends.pipeline.params import Stage, choice, declare, flag, names, optional, real, text, whole
from firesteel.frontends.pipeline.persistence import Fetch, StageReader, StageWriter
from firesteel.frontends.pipeline.torch_side import TorchSide
from firesteel.frontends.pipeline.validation import hold_out

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["DLEstimator", "DLModel", "TrainingSummary"]

_SIDES: tuple[Any, ...] = (KerasSide, TorchSide, OpenVINOSide)
_TASKS = ("binary", "multiclass", "raw")
_SYNCS = {"allreduce": "all-reduce", "hogwild": "hogwild", "locked": "locked", "sharded": "sharded"}
_ROWS = 256


@dataclass(frozen=True)
class TrainingSummary:
    """How a fit went."""

    history: dict[str, list[float]]
    """One list for each figure, with one value per epoch; ``val_…`` for rows that were held out."""

    @property
    def objectiveHistory(self) -> list[float]:
        """The training loss after each epoch."""
        return list(self.history.get("loss", []))

    @property
    def totalIterations(self) -> int:
        """How many epochs there were."""
        return len(self.objectiveHistory)


class _Common(Stage):
    """What a fitted model has of its estimator."""

    featuresCol = declare("featuresCol", "column of the model's one input", text, "features")
    inputCols = declare("inputCols", "one column for each of the model's inputs, in order", optional(names), None)
    predictionCol = declare(
        "predictionCol", "column of the model's one output, or of what the task makes of it", text, "prediction"
    )
    outputCols = declare("outputCols", "one column for each of the model's outputs, in order", optional(names), None)
    task = declare("task", "what is predicted: raw, binary or multiclass", choice("task", _TASKS), "raw")
    threshold = declare("threshold", "the probability from which on a row counts as 1.0", real, 0.5)
    rawPredictionCol = declare("rawPredictionCol", "column of scores for each class; '' for none", text, "")
    probabilityCol = declare("probabilityCol", "column of probabilities of each class; '' for none", text, "")
    fromLogits = declare("fromLogits", "whether the model ends before softmax or sigmoid", flag, False)
    outputType = declare("outputType", "auto or array", choice("outputType", ("array", "auto")), "auto")
    inferenceBatchSize = declare("inferenceBatchSize", "rows of a call when scoring; 0: chosen", whole, 0)
    device = declare("device", "auto, cpu or cuda", choice("device", ("auto", "cpu", "cuda")), "auto")
    verbose = declare("verbose", "progress on the driver", whole, 0)

    def _features(self) -> list[str]:
        return list(self._value("inputCols") or [self._value("featuresCol")])

    def _finish(self) -> Finish:
        """What ``transform`` makes of outputs; ``PlanError`` where Params do not go together."""
        task, is_array = self._value("task"), self._value("outputType") == "array"
        columns = tuple(self._value("outputCols") or [self._value("predictionCol")])
        raw, probability = self._value("rawPredictionCol"), self._value("probabilityCol")
        if task == "raw" and (raw or probability):
            raise PlanError("rawPredictionCol and probabilityCol are for task='binary' or 'multiclass'")
        if task != "raw" and len(columns) > 1:
            raise PlanError(f"task={task!r} is for a model with one output; outputCols names {len(columns)}")
        if task != "raw" and is_array:
            raise PlanError("outputType='array' is for task='raw'")
        if self._value("inferenceBatchSize") < 0:
            raise PlanError(f"inferenceBatchSize must not be negative, not {self._value('inferenceBatchSize')}")
        return Finish(
            columns, task, self._value("threshold"), self._value("fromLogits"), raw, probability, is_array=is_array
        )

    def _reading(self, df: DataFrame, side: Any, model: Any, labels: list[str], weight: str | None) -> Reading:
        reading = make_reading(df.schema, self._features(), labels, weight, side.inputs(model))
        adapted: Reading = side.adapted(reading, model)
        return adapted


class DLEstimator(_Common, Estimator[Any], MLReadable[Any], MLWritable):
    """Trains a torch or Keras model on a DataFrame.

    Args:
        model: an ``nn.Module``, a Keras 3 model, a function ``f(config)`` that makes one, or its import path
            ``"package.module:function"``. It is not changed.
        loss: an ``nn`` loss object or its class's name, or ``f(output, target)``; a Keras name, object or function.
        optimizer: a ``torch.optim`` class or name, or ``f(parameters)``; a Keras name or object. Default Adam, or what
            a Keras model was compiled with.
        metrics: names of figures that ``history`` shall have.
        config: a dict of JSON values for the function.
        **params: the Params; see ``explainParams``.
    """

    __module__ = "firesteel.pipeline"

    labelCol = declare("labelCol", "column of the one target", text, "label")
    labelCols = declare("labelCols", "one column for each target, in order", optional(names), None)
    weightCol = declare("weightCol", "column of row weights; '' for none", text, "")
    batchSize = declare("batchSize", "rows of a step, over all replicas together", whole, 32)
    epochs = declare("epochs", "passes over the data", whole, 1)
    learningRate = declare("learningRate", "in the place of the optimizer's own", optional(real), None)
    sync = declare(
        "sync", "how replicas agree: allreduce, sharded, hogwild, locked", choice("sync", tuple(_SYNCS)), "allreduce"
    )
    staleness = declare(
        "staleness", "hogwild, locked: steps that a replica may be ahead of the slowest; -1: any", whole, -1
    )
    numReplicas = declare("numReplicas", "how many replicas; 0: one for each executor", whole, 0)
    shuffle = declare("shuffle", "rows in a new order in each epoch", flag, True)
    seed = declare("seed", "of orders, dropout, and the rows held out", whole, 0)
    validationIndicatorCol = declare(
        "validationIndicatorCol", "boolean column of rows to hold out; '' for none", text, ""
    )
    validationFraction = declare("validationFraction", "part of the rows to hold out", real, 0.0)
    earlyStoppingPatience = declare(
        "earlyStoppingPatience", "epochs without a better value of monitor; 0: off", whole, 0
    )
    monitor = declare("monitor", "the figure of history that early stopping watches", text, "val_loss")
    checkpointDir = declare("checkpointDir", "folder of checkpoints, one after each epoch; '' for none", text, "")
    resume = declare("resume", "go on from a checkpoint of a fit that was interrupted", flag, True)

    def __init__(
        self,
        model: Any,
        *,
        loss: Any = None,
        optimizer: Any = None,
        metrics: Any = None,
        config: dict[str, Any] | None = None,
        **params: Any,
    ) -> None:
        super().__init__()
        self._given = _Given(model, _checked_config(config))
        self._parts = {"loss": loss, "optimizer": optimizer, "metrics": metrics}
        self._watch: Callable[[dict[str, float]], None] | None = None
        self.setParams(**params)

    # --- training ---

    def _fit(self, dataset: DataFrame) -> DLModel:
        self._check()
        self._finish()  # says at once which Params do not go together
        side, model = self._given.make()
        labels = list(self._value("labelCols") or [self._value("labelCol")])
        weight = self._value("weightCol") or None
        reading = self._reading(dataset, side, model, labels, weight)  # says at once what does not fit
        estimator = side.estimator(model, **self._parts, rate=self._value("learningRate"), seed=self._value("seed"))
        estimator.asked_replicas = self._value("numReplicas")
        estimator._sync = _SYNCS[self._value("sync")]
        estimator._staleness = None if self._value("staleness") < 0 else self._value("staleness")
        estimator._device = self._value("device")
        estimator._on_epoch = self._watching(side)
        training, held_out = hold_out(
            dataset, self._value("validationIndicatorCol"), self._value("validationFraction"), self._value("seed")
        )
        options: dict[str, Any] = {
            "batch_size": self._value("batchSize"),
            "feature_cols": self._features(),
            "label_cols": labels,
            "sample_weight_col": weight,
            "validation_data": held_out,
            "shuffle": self._value("shuffle"),
            "early_stopping": self._stopping(side),
            "verbose": self._value("verbose"),
        }
        checkpoints = CheckpointRun(
            self._value("checkpointDir"), self._mark(), self._value("epochs"), self._value("resume")
        )
        with as_failures(), checkpoints as run:
            found = side.history(run.fit(estimator, training, options))
            history = run.joined(found)
        row = sample(dataset, Reading(tuple(t for t in reading.tensors if t.name.startswith("x"))))
        trained = DLModel(side.settled(estimator.get_model()), config=self._given.config)
        trained._path = self._given.path
        trained._history = history
        trained._remember(row)
        self._copyValues(trained)
        return trained

    def _check(self) -> None:
        for name, least in (("batchSize", 1), ("epochs", 1), ("numReplicas", 0), ("earlyStoppingPatience", 0)):
            if self._value(name) < least:
                raise PlanError(f"{name} must be at least {least}, not {self._value(name)}")
        fraction = self._value("validationFraction")
        if not 0.0 <= fraction < 1.0:
            raise PlanError(f"validationFraction must be at least 0 and below 1, not {fraction}")
        if fraction and self._value("validationIndicatorCol"):
            raise PlanError("rows are held out by validationFraction or by validationIndicatorCol, not by both")
        has_held_out = bool(fraction or self._value("validationIndicatorCol"))
        monitor = self._value("monitor")
        if self._value("earlyStoppingPatience") and monitor.startswith("val_") and not has_held_out:
            raise PlanError(
                f"early stopping watches {monitor!r}: hold out rows by validationFraction or validationIndicatorCol"
            )

    def _stopping(self, side: Any) -> EarlyStopping | None:
        patience = self._value("earlyStoppingPatience")
        if not patience:
            return None
        monitor = side.monitor(self._value("monitor"))
        return EarlyStopping(monitor=monitor, patience=patience, restore_best_weights=True)

    def _watching(self, side: Any) -> Callable[[dict[str, Any]], None] | None:
        """Told of each epoch as it ends, in the words of ``history``."""
        watch = self._watch
        if watch is None:
            return None
        return lambda record: watch({name: values[-1] for name, values in side.curves([record]).items()})

    def _mark(self) -> dict[str, Any]:
        """What makes one fit another one, but for how long it trains and its data."""
        skipped = ("epochs", "resume", "checkpointDir", "verbose", "inferenceBatchSize")
        return {param.name: value for param, value in self.extractParamMap().items() if param.name not in skipped}

    # --- Spark ML ---

    def copy(self, extra: dict[Any, Any] | None = None) -> DLEstimator:
        """A copy with the same uid and further Params."""
        found: DLEstimator = super().copy(extra)
        return found

    def write(self) -> StageWriter:
        """Spark's writer; see ``persistence``."""
        return StageWriter(self)

    @classmethod
    def read(cls) -> StageReader:
        """Spark's reader."""
        return StageReader(cls)

    def _contents(self) -> tuple[dict[str, Any], dict[str, bytes], set[str]]:
        facts, files, side = self._given.contents()
        return {**facts, "parts": side.refer(self._parts)}, files, set()

    @classmethod
    def _from_contents(cls, facts: dict[str, Any], fetch: Fetch) -> DLEstimator:
        side = _side_of(facts["framework"])
        model = facts["function"] or side.load(facts["form"], fetch)
        return cls(model, config=facts["config"], **side.follow(facts["parts"]))


class DLModel(_Common, Model, MLReadable[Any], MLWritable):
    """A trained model that adds its outputs to a DataFrame. Made by ``DLEstimator.fit``, or around any trained model.

    Args:
        model: as ``DLEstimator`` takes it.
        config: likewise.
        **params: the Params; see ``explainParams``.
    """

    __module__ = "firesteel.pipeline"

    def __init__(self, model: Any, *, config: dict[str, Any] | None = None, **params: Any) -> None:
        super().__init__()
        self._given = _Given(model, _checked_config(config))
        self._path = self._given.path
        self._history: dict[str, list[float]] | None = None
        self._samples: list[tuple[list[int], str]] | None = None
        self._look: Callable[[], dict[str, Any] | None] | None = None
        self._is_graph = False
        self._opened: tuple[Any, Any] | None = None
        self._scorers: dict[Any, Scorer] = {}
        self._schemas: dict[Any, Any] = {}
        self.setParams(**params)

    @property
    def model(self) -> Any:
        """The framework's own object, trained. Driver only."""
        if self._is_graph:
            raise UnsupportedError(
                "this model was saved as a graph, for its class could not be imported: it transforms, and there is no "
                "object to train on. DLModel.load(path, model=f) takes the class from the caller"
            )
        return self._open()[1]

    @property
    def history(self) -> dict[str, list[float]]:
        """One list for each figure of the fit, with one value per epoch; ``val_…`` for rows that were held out."""
        return {} if self._history is None else {name: list(values) for name, values in self._history.items()}

    @property
    def hasSummary(self) -> bool:
        """Whether this model comes from a fit."""
        return self._history is not None

    @property
    def summary(self) -> TrainingSummary:
        """How the fit went; ``PlanError`` for a model that was not fitted here."""
        if self._history is None:
            raise PlanError("this model was not made by a fit, so there is no summary of one")
        return TrainingSummary(self.history)

    # --- scoring ---

    def _transform(self, dataset: DataFrame) -> DataFrame:
        finish = self._finish()
        side, model = self._open()
        reading = self._reading(dataset, side, model, [], None)
        check_new(dataset, finish.names)
        scorer = self._scorer(dataset, side, model, finish)
        self._look = partial(sample, dataset, reading)
        schema = finish.known_schema() or self._schema(dataset, reading, scorer, finish)
        return score_frame(dataset, reading, scorer, finish.names, schema)

    def _open(self) -> tuple[Any, Any]:
        if self._opened is None:
            self._opened = self._given.make(is_own=False)
        return self._opened

    def _scorer(self, dataset: DataFrame, side: Any, model: Any, finish: Finish) -> Scorer:
        """Packed once, so that processes know it again."""
        spark = dataset.sparkSession
        rows = self._value("inferenceBatchSize") or _ROWS
        device = self._value("device")
        key = (finish, rows, device, str(getattr(spark, "session_id", id(spark))))
        if key not in self._scorers:
            plan = Map(side.program(model), rows, finish.names, finish, device=device)
            self._scorers[key] = make_scorer(spark, plan)
        return self._scorers[key]

    def _schema(self, dataset: DataFrame, reading: Reading, scorer: Scorer, finish: Finish) -> Any:
        """The outputs' types, from a row of zeros where its shape is known; no job then."""
        key = (
            finish,
            tuple(dataset.schema[name].dataType.simpleString() for name in self._features() if name in dataset.columns),
        )
        if key not in self._schemas:
            batch = zeros(reading, self._samples) or sample(dataset, reading)
            if batch is None:
                raise PlanError(
                    "the DataFrame has no rows, and how long its vectors are is not known, so the output's type is not "
                    "known either; transform some rows first"
                )
            self._remember(batch)
            self._schemas[key] = finish.schema(scorer.try_out(batch))
        return self._schemas[key]

    def _remember(self, batch: dict[str, Any] | None) -> None:
        """What a row of inputs looks like: a model whose class cannot be imported is saved as what it does to one."""
        if self._samples is None and batch is not None:
            self._samples = [(list(each.shape[1:]), each.dtype.str) for each in batch.values()]

    # --- Spark ML ---

    def copy(self, extra: dict[Any, Any] | None = None) -> DLModel:
        """A copy with the same uid and further Params."""
        found: DLModel = super().copy(extra)
        return found

    def write(self) -> StageWriter:
        """Spark's writer; see ``persistence``."""
        return StageWriter(self)

    @classmethod
    def read(cls) -> StageReader:
        """Spark's reader."""
        return StageReader(cls)

    @classmethod
    def load(cls, path: str, model: Callable[[dict[str, Any]], Any] | None = None) -> DLModel:
        """The model saved in this folder; ``model``: a function ``f(config)`` that makes it, instead of an import."""
        found: DLModel = StageReader(cls, model=model).load(path)
        return found

    def _contents(self) -> tuple[dict[str, Any], dict[str, bytes], set[str]]:
        side, model = self._open()
        function = None if self._path is None else self._path
        facts, files = ({"form": "function"}, side.weights(model)) if function else self._saved(side, model)
        about = {"framework": side.name, "function": function, "config": self._given.config}
        return {**about, **facts, "history": self._history, "samples": self._samples}, files, set()

    def _saved(self, side: Any, model: Any) -> tuple[dict[str, Any], dict[str, bytes]]:
        try:
            found: tuple[dict[str, Any], dict[str, bytes]] = side.save(model, self._samples)
        except PlanError:
            if self._samples is not None or self._look is None:
                raise
            self._remember(self._look())  # a row of what was transformed last
            found = side.save(model, self._samples)
        return found

    @classmethod
    def _from_contents(cls, facts: dict[str, Any], fetch: Fetch, model: Any = None) -> DLModel:
        side = _side_of(facts["framework"])
        config = facts["config"]
        made = None
        if model is not None:
            made = model(dict(config))
        elif facts["function"]:
            try:
                made = follow(facts["function"])(dict(config))
            except CheckpointError as error:
                raise CheckpointError(
                    f"{error}, or pass DLModel.load(path, model=f) a function that makes it"
                ) from error
        found = cls(side.load(facts["form"], fetch, made), config=config)
        found._path = facts["function"]
        found._history = facts["history"]
        found._samples = facts["samples"]
        found._is_graph = facts["form"] == "graph" and model is None
        return found


class _Given:
    """A model as the user gave it, and the function that makes it where it was one."""

    def __init__(self, model: Any, config: dict[str, Any]) -> None:
        self.config = config
        self._model = model
        is_function = isinstance(model, str) or not any(side.accepts(model) for side in _SIDES)
        if is_function and not isinstance(model, str) and not callable(model):
            raise PlanError(
                f"model must be a torch module, a Keras 3 model, a function f(config) that makes one, or its import "
                f"path, not {type(model).__module__}.{type(model).__qualname__}"
            )
        if isinstance(model, str) and ":" not in model:
            raise PlanError(f"an import path is written 'package.module:function', not {model!r}")
        self._is_function = is_function

    @property
    def path(self) -> str | None:
        """The function's import path, if that can be followed."""
        if isinstance(self._model, str):
            return self._model
        return path_of(self._model) if self._is_function else None

    def make(self, *, is_own: bool = True) -> tuple[Any, Any]:
        """The framework's side, and the model; with ``is_own`` one that may be changed."""
        model = follow(self._model) if isinstance(self._model, str) else self._model
        if self._is_function:
            model = model(copy.deepcopy(self.config))
        for side in _SIDES:
            if side.accepts(model):
                return side, side.own(model) if is_own and not self._is_function else model
        raise PlanError(
            f"the function returned {type(model).__qualname__}, which is neither a torch module nor a Keras 3 model"
        )

    def contents(self) -> tuple[dict[str, Any], dict[str, bytes], Any]:
        """Facts and files of the model as it was given, and its side; ``PlanError`` where it cannot be saved."""
        if self._is_function:
            path = self.path
            if path is None:
                name = getattr(self._model, "__qualname__", type(self._model).__qualname__)
                raise PlanError(
                    f"the model's function {name} cannot be saved, for another process could not import it: move it "
                    f"into a module"
                )
            side, _ = self.make()
            return {"framework": side.name, "function": path, "config": self.config, "form": "function"}, {}, side
        side, model = self.make(is_own=False)
        facts, files = side.save(model, None)
        return {"framework": side.name, "function": None, "config": self.config, **facts}, files, side


def zeros(reading: Reading, samples: list[tuple[list[int], str]] | None) -> dict[str, Any] | None:
    """A batch of one row of zeros; ``None`` where the rows' shapes are not known."""
    import numpy as np

    if samples is not None and len(samples) == len(reading.tensors):
        return {
            t.name: np.zeros((1, *shape), dtype) for t, (shape, dtype) in zip(reading.tensors, samples, strict=True)
        }
    batch = {}
    for tensor in reading.tensors:
        shape = tensor.shape
        if shape is None:
            shapes = [() if c.kind == "scalar" else c.shape for c in tensor.columns]
            if any(each is None or None in each for each in shapes):
                return None
            arrays = [np.zeros((1, *each), c.dtype) for each, c in zip(shapes, tensor.columns, strict=True)]  # type: ignore[misc]
            batch[tensor.name] = tensor.join(arrays)
        else:
            batch[tensor.name] = np.zeros((1, *shape), tensor.columns[0].dtype)
    return batch


def _side_of(name: str) -> Any:
    return next(side for side in _SIDES if side.name == name)


def _checked_config(config: dict[str, Any] | None) -> dict[str, Any]:
    if config is None:
        return {}
    if not isinstance(config, dict):
        raise PlanError(f"config must be a dict, not {type(config).__qualname__}")
    try:
        json.dumps(config)
    except (TypeError, ValueError) as error:
        raise PlanError(f"config must hold JSON values alone, for it is saved with the stage: {error}") from error
    return config
