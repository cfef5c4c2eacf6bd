"""What the doors that train have in common: fit, evaluate, predict and checkpoints, as plans for the engine.

A door says how its words become a program, what its callbacks and figures are, and how a state gets into the user's own
objects; the rest is here.
"""

from __future__ import annotations

import math
import secrets
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from firesteel.core.errors import PlanError, UnknownName, UnsupportedError
from firesteel.core.plan import (
    Clipping,
    EarlyStopping,
    Exchange,
    Fit,
    Launch,
    Map,
    Position,
    Reduce,
    Validation,
    positive,
)
from firesteel.core.program import Program
from firesteel.core.spec import Batch, example_of
from firesteel.core.triggers import Trigger, as_trigger
from firesteel.core.validation import rows_together
from firesteel.data.shards import XShards
from firesteel.data.sources import Columns, Frame, Local, Source, Streamed, as_dataset, is_pandas, is_rdd
from firesteel.data.sources.arrays import batch_from
from firesteel.data.tf import Dataset
from firesteel.engine import checkpoint, export, local
from firesteel.engine.callbacks import Callback, find_main
from firesteel.engine.evaluate import evaluate
from firesteel.engine.files import local_path
from firesteel.engine.fit import fit
from firesteel.engine.fold import Fold
from firesteel.engine.history import History, Summaries
from firesteel.engine.job import Stream
from firesteel.engine.listener import Outputs, Recorder
from firesteel.engine.outputs import add_columns, contained
from firesteel.engine.score import score_frame
from firesteel.engine.scorer import make_scorer
from firesteel.frontends.estimator import Estimator
from firesteel.frontends.session import session_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["TrainingEstimator", "session_of", "split_stopping"]

_DEFAULT_ROWS = 32
_SCORING_ROWS = 256


class TrainingEstimator(Estimator):
    """An estimator that trains; see ``Estimator``."""

    _kinds: str
    """What this door takes as data, for messages."""
    _vectors = True
    """Whether an output of one axis is an ML vector in a DataFrame; else it is an array."""

    def __init__(
        self, *, framework: Any, config: dict[str, Any], workers_per_node: Any, model_dir: str | None, seed: Any
    ) -> None:
        self._framework = framework
        self._seed = secrets.randbelow(2**31) if seed is None else _checked_seed(seed)
        self._workers_per_node = positive(workers_per_node, "workers_per_node") or 1
        self._sync = "all-reduce"
        self._exchange = Exchange()
        self._threads: int | None = None
        self._pass_steps: int | None = None
        self._progress_steps: int | None = None
        self._averaging_steps = 1
        self._staleness: int | None = None
        self._device = "auto"
        self._on_epoch: Callable[[dict[str, Any]], None] | None = None
        self._config = config
        self._model_dir = None if model_dir is None else (local_path(model_dir) or model_dir)
        self._state: dict[str, bytes] = {}
        self._position = Position()
        self._clipping: Clipping | None = None
        self._summaries = Summaries()
        self._event_folder: str | None = None
        self._recorders: Mapping[str, Recorder] = {}
        self._end_trigger: Trigger | None = None
        self._has_fitted = False
        self._seen: list[list[Any]] = []  # what the inputs of the last fit looked like

    # --- what a door says ---

    @abstractmethod
    def _program(self, *, is_trained: bool = True, class_weight: dict[int, float] | None = None) -> Program:
        """The program as it is now, its state included."""

    @abstractmethod
    def _take(self, state: dict[str, bytes]) -> None:
        """Make this the estimator's state, in the user's own objects where they gave some; all of it or nothing."""

    @abstractmethod
    def _whole_state(self) -> dict[str, bytes]:
        """Model and optimizer as they are now."""

    @abstractmethod
    def _check_can_train(self, callbacks: tuple[Any, ...]) -> None:
        """Raise ``PlanError`` where something is missing for a fit."""

    @abstractmethod
    def _measures(self, replacement: Any) -> Any:
        """The metrics of an evaluation."""

    @abstractmethod
    def _found(self, fold: Fold) -> dict[str, Any]:
        """What an evaluation returns."""

    def _split_callbacks(
        self, callbacks: Any, stopping: EarlyStopping | None
    ) -> tuple[tuple[Any, ...], EarlyStopping | None]:
        """Callbacks that can travel, and the early stopping among them."""
        rest, found = split_stopping(callbacks, stopping)
        for each in rest:
            if not isinstance(each, Callback):
                kind = type(each).__qualname__
                raise PlanError(f"callbacks must be firesteel.learn.pytorch.callbacks.Callback, not {kind}")
        find_main(rest)  # there may be one
        return rest, found

    def _finish(self) -> None:
        """What a framework does at the end of a training, besides."""

    def _monitors(self) -> tuple[str, ...]:
        """Figures that an early stopping may watch."""
        return ("train_loss", "last_train_loss", "val_loss")

    def _history(self, history: History) -> History:
        """A fit's records in this door's words."""
        return history

    def _take_feed_dict(self, feed_dict: Any) -> None:
        """Values that a graph is fed beside the rows."""
        if feed_dict is not None:
            raise UnsupportedError("feed_dict is for graphs; this model takes its inputs from the data")

    def _dtypes(self) -> dict[str, str] | None:
        """Which numbers the model wants of columns, by tensor; ``"string"`` where it takes strings."""
        return None

    def _columns(self, features: Any, labels: Any, weight: str | None, verb: str) -> Columns:
        """What was said about columns; a door may have names of its own where nothing was."""
        return Columns.of(features, labels, weight, verb)

    def _check_can_measure(self, metrics: Any, main: Any) -> None:
        """Raise ``PlanError`` where there is nothing to evaluate."""

    # --- training ---

    def fit(
        self,
        data: Any,
        epochs: int = 1,
        batch_size: int | None = None,
        *,
        feature_cols: Any = None,
        label_cols: Any = None,
        validation_data: Any = None,
        callbacks: Any = None,
        class_weight: dict[int, float] | None = None,
        sample_weight_col: str | None = None,
        shuffle: bool = True,
        seed: int | None = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        max_steps: int | None = None,
        validation_steps: int | None = None,
        validation_freq: int = 1,
        validation_trigger: Any = None,
        validation_batch_size: int | None = None,
        checkpoint_trigger: Any = None,
        keep_checkpoints: int | None = None,
        resume: bool = False,
        early_stopping: EarlyStopping | None = None,
        data_config: dict[str, Any] | None = None,
        auto_shard: bool | None = True,
        max_failures: int = 3,
        min_workers: int | None = None,
        verbose: int = 1,
        feed_dict: Any = None,
    ) -> History:
        """Train for ``epochs`` more epochs; goes on from the weights and optimizer state of the fit before.

        Args:
            data: a Spark DataFrame, an XShards, ndarrays, pandas, an RDD of rows ``(x, y)``, a DataLoader, or a creator
                ``(config, batch_size)``.
            epochs: how many to run now.
            batch_size: rows of a step over all replicas together; default 32, or the data's own batches.
            feature_cols: a column's name or a list; as many as the model has inputs, or all joined into one.
            label_cols: likewise, for the loss.
            validation_data: any kind of data, evaluated completely after each epoch.
            callbacks: ``firesteel.learn.pytorch.callbacks``; they run in every replica.
            class_weight: class index → weight of its rows, for learning; a validation is not weighed by them.
            sample_weight_col: a column of row weights. The loss is ``sum(w·l) / rows``.
            shuffle: rows in an order that is a function of seed and epoch. Loaders keep their own.
            seed: for this fit; default the estimator's.
            initial_epoch: number of the first epoch minus one, for callbacks and records.
            steps_per_epoch: cut epochs; the next goes on where the last stopped.
            max_steps: stop after so many updates, over as many epochs as that takes.
            validation_steps: cut the validation after so many batches.
            validation_freq: validate after every so many epochs.
            validation_trigger: validate when it fires, instead.
            validation_batch_size: default ``batch_size``.
            checkpoint_trigger: when to write a checkpoint into ``model_dir``.
            keep_checkpoints: keep only the newest so many of this fit.
            resume: go on from the newest checkpoint in ``model_dir`` until ``epochs`` (or ``max_steps``) in all.
            early_stopping: stop when a figure no longer improves.
            data_config: laid over ``config`` for a data creator.
            auto_shard: whether creators yield all rows, to be divided by us, or each replica's own.
            max_failures: how many losses of processes, connections or hosts to get over; the training goes on from
                its last commit point, and every row still counts once per epoch. 0 = none, and no commit points.
            min_workers: with how many replicas to go on when a lost one is not replaced in time; default all.
            verbose: 0 = no progress.
            feed_dict: for graphs: tensor → (value while training, value while validating).

        Returns:
            One record per epoch; ``.history`` and ``.to_pandas()`` give it as columns.

        Raises:
            PlanError: the request makes no sense; before anything runs.
            ReplicaFailed: with the replica's traceback, when the user's code raised in a replica.
        """
        self._take_feed_dict(feed_dict)
        epochs = positive(epochs, "epochs") or 1
        listed, stopping = self._split_callbacks(callbacks, early_stopping)
        self._check_can_train(listed)
        if checkpoint_trigger is not None and self._model_dir is None:
            raise PlanError("checkpoint_trigger needs a model_dir: pass one when the estimator is made")
        if resume and self._model_dir is None:
            raise PlanError("resume needs a model_dir: pass one when the estimator is made")
        positive(batch_size, "batch_size", none=True)  # before a job may run over the data
        positive(steps_per_epoch, "steps_per_epoch", none=True)
        positive(max_steps, "max_steps", none=True)
        positive(validation_freq, "validation_freq")
        positive(validation_steps, "validation_steps", none=True)
        positive(validation_batch_size, "validation_batch_size", none=True)
        class_weights = _class_weights(class_weight)
        own_seed = None if seed is None else _checked_seed(seed)
        _check_verbose(verbose)
        _check_config(data_config)
        columns = self._columns(feature_cols, label_cols, sample_weight_col, "training")
        is_counted = find_main(listed) is None
        source = self._source(data, columns, counts_inputs=is_counted)
        own_batches = isinstance(source, Streamed) and not source.is_creator
        size = _checked_size(source, batch_size) or (None if own_batches else _DEFAULT_ROWS)
        _check_endless(source, steps_per_epoch, max_steps)
        held_out = None
        if validation_data is not None:
            held_out = self._source(validation_data, columns, counts_inputs=is_counted)
        validation = self._validation(
            held_out, size, validation_batch_size, validation_freq, validation_trigger, validation_steps
        )
        if stopping is not None:
            _check_monitor(stopping.monitor, validation, self._monitors())
        keep = positive(keep_checkpoints, "keep_checkpoints", none=True)
        spark = session_of(data)
        is_done = partial(_is_done, epochs=epochs, max_steps=max_steps)
        position = self._start(resume, initial_epoch, is_done)
        self._seed = self._seed if own_seed is None else own_seed
        plan = Fit(
            program=self._program(class_weight=class_weights),
            launch=_launch(self._world(spark), max_failures, min_workers, self._threads),
            batch_size=size,
            epochs=epochs if resume else position.epoch + epochs,
            sync=self._sync,
            averaging_steps=self._averaging_steps,
            staleness=self._staleness,
            device=self._device,
            shuffle=bool(shuffle),
            seed=self._seed,
            steps_per_epoch=positive(steps_per_epoch, "steps_per_epoch", none=True),
            max_steps=_total_steps(max_steps, 0 if resume else position.step),
            end_trigger=self._end_trigger,
            validation=validation,
            checkpoint_trigger=None if checkpoint_trigger is None else as_trigger(checkpoint_trigger),
            early_stopping=stopping,
            callbacks=listed,
            metrics=self._measures(None),
            exchange=self._exchange,
            pass_steps=self._pass_steps,
            progress_steps=self._progress_steps,
            position=position,
            is_resumed=bool(resume),
        )
        if resume and is_done(position):
            return self._history(History())
        folder = None if self._model_dir is None else checkpoint.CheckpointFolder(self._model_dir, keep)
        outputs = Outputs(self._summaries, folder, self._events(), verbose, self._recorders, self._on_epoch)
        stream = partial(_stream, config={**self._config, **(data_config or {})}, auto_shard=auto_shard)
        history = self.carry_out(spark, plan, source, held_out, outputs, stream)
        is_cut = self._position.pass_step and not steps_per_epoch and self._end_trigger is None
        if is_cut:  # ended inside an epoch; the next fit begins a new one
            self._position = self._position.next_pass()
        return self._history(history)

    def carry_out(
        self,
        spark: SparkSession,
        plan: Fit,
        source: Source,
        held_out: Source | None,
        outputs: Outputs,
        stream: Callable[[Streamed, int | None], Stream],
    ) -> History:
        """Train as planned, and take over what comes of it: for doors that make the plan in other words."""
        self._has_fitted = True
        outcome = fit(spark, plan, source, held_out, outputs, stream=stream, config=self._config)
        if outcome.state is not None:
            self._take(outcome.state)
            self._finish()
        self._position = outcome.position
        self._seen = outcome.inputs or self._seen
        return outcome.history

    def evaluate(
        self,
        data: Any,
        batch_size: int | None = None,
        *,
        feature_cols: Any = None,
        label_cols: Any = None,
        num_steps: int | None = None,
        sample_weight_col: str | None = None,
        validation_metrics: Any = None,
        callbacks: Any = None,
        data_config: dict[str, Any] | None = None,
        auto_shard: bool | None = True,
        verbose: int = 1,
    ) -> dict[str, Any]:
        """Loss and metrics over every row once, exactly as a single process would compute them.

        Returns:
            The loss and each metric by its name.
        """
        _check_verbose(verbose)
        _check_config(data_config)
        columns = self._columns(feature_cols, label_cols, sample_weight_col, "training")
        metrics = self._measures(validation_metrics)
        return self._found(
            self._fold(data, batch_size, columns, metrics, num_steps, callbacks, data_config, auto_shard)
        )

    def _fold(
        self,
        data: Any,
        batch_size: Any,
        columns: Columns,
        metrics: Any,
        num_steps: Any = None,
        callbacks: Any = None,
        data_config: dict[str, Any] | None = None,
        auto_shard: bool | None = True,
    ) -> Fold:
        listed, _ = self._split_callbacks(callbacks, None)
        main = find_main(listed)
        self._check_can_measure(metrics, main)
        steps = positive(num_steps, "num_steps", none=True)
        source = self._source(data, columns, counts_inputs=main is None)
        size = _checked_size(source, batch_size)
        spark = session_of(data)
        # Only where rows are counted off by steps does it show how many there are in one.
        rows = size or (_DEFAULT_ROWS if steps else _SCORING_ROWS)
        plan = Reduce(self._program(is_trained=False), rows, metrics, steps)
        scorer = make_scorer(spark, plan, listed, self._config)
        stream = None
        if isinstance(source, Streamed):
            config = {**self._config, **(data_config or {})}
            stream = _stream(source, size or _DEFAULT_ROWS, config=config, auto_shard=auto_shard)
        return evaluate(spark, plan, scorer, source, stream, world=self._world(spark))

    def predict(
        self,
        data: Any,
        batch_size: int | None = None,
        feature_cols: Any = None,
        *,
        output_cols: Any = None,
        output_schema: Any = None,
        steps: int | None = None,
        callbacks: Any = None,
        data_config: dict[str, Any] | None = None,
        verbose: int = 1,
    ) -> Any:
        """Outputs for every row, in the shape of what was given: a DataFrame for a DataFrame, an array for an array.

        On a DataFrame and an XShards it is lazy. A DataFrame's schema comes from one row put through the model on the
        driver, or from ``output_schema`` (a DDL string or ``StructType``) without any run. ``steps`` cuts after so many
        batches; a loader's or creator's predictions come as an XShards of ``{"prediction": …}``, those of an RDD of
        rows as an RDD of arrays.
        """
        _check_verbose(verbose)
        _check_config(data_config)
        limit = positive(steps, "steps", none=True)
        names = Columns.of(output_cols, None, None, "prediction").features
        columns = self._columns(feature_cols, None, None, "prediction")
        listed, _ = self._split_callbacks(callbacks, None)
        is_counted = find_main(listed) is None
        positive(batch_size, "batch_size", none=True)
        # An XShards is scored shard by shard, as it is; an RDD's rows in blocks.
        is_dataset = isinstance(data, Dataset)
        data = data.xshards if is_dataset else data
        is_shards = isinstance(data, XShards) or is_rdd(data)
        columns = self._ordered(columns) if is_shards else columns
        source = None if is_shards else self._source(data, columns, counts_inputs=is_counted)
        size = _checked_size(source, batch_size)
        rows = size or (_DEFAULT_ROWS if limit or isinstance(source, Streamed) else _SCORING_ROWS)
        _check_outputs(source, data, names, output_schema)
        spark = session_of(data)
        scorer = make_scorer(spark, Map(self._program(is_trained=False), rows, names), listed, self._config)
        if source is None:
            if limit is not None:
                raise PlanError("steps does not cut an XShards or an RDD; predict on what is wanted of it")
            inputs = self._inputs if is_counted else lambda: (0, None)
            score = local.score_rows if is_rdd(data) else local.score_shards
            found: Any = score(data, scorer, columns, inputs, names)
            return found.transform_shard(_predictions) if is_dataset else found
        if isinstance(source, Frame):
            df = source.df if limit is None else source.df.limit(limit * rows)
            return score_frame(df, source.reading, scorer, names, output_schema, vectors=self._vectors)
        if isinstance(source, Streamed):
            config = {**self._config, **(data_config or {})}
            stream = _stream(source, rows, config=config, auto_shard=True)
            return local.score_stream(spark, scorer, stream, limit, self._inputs()[0])
        assert isinstance(source, Local)
        batch = source.batch if limit is None else {k: v[: limit * rows] for k, v in source.batch.items()}
        outputs = local.score_arrays(spark, scorer, batch, self._world(spark))
        if not is_pandas(data):
            return contained(outputs)
        return add_columns(data if limit is None else data[: limit * rows], outputs, names)

    # --- for doors that make plans in other words ---

    @property
    def position(self) -> Position:
        """Where the training stands."""
        return self._position

    @property
    def seed(self) -> int:
        """Of shuffling and dropout."""
        return self._seed

    @property
    def config(self) -> dict[str, Any]:
        """What creators get a copy of."""
        return self._config

    @property
    def summaries(self) -> Summaries:
        """The scalars of all trainings until now."""
        return self._summaries

    @property
    def recorders(self) -> Mapping[str, Recorder]:
        """Who writes ``"train"`` and ``"validation"`` scalars down, in the place of TensorBoard files."""
        return self._recorders

    def record(self, name: str, recorder: Recorder) -> None:
        """Let somebody write ``"train"`` or ``"validation"`` scalars down from the next training on."""
        self._recorders = {**self._recorders, name: recorder}

    @property
    def event_folder(self) -> str | None:
        """Where TensorBoard files go, if ``set_tensorboard`` said so."""
        return self._event_folder

    def program(self, *, is_trained: bool = True) -> Program:
        """The program as it is now, its state included."""
        return self._program(is_trained=is_trained)

    def measures(self) -> Any:
        """The metrics of a validation."""
        return self._measures(None)

    def replicas(self, spark: SparkSession) -> int:
        """How many replicas train on this Spark."""
        return self._world(spark)

    def source_of(self, data: Any, columns: Columns) -> Source:
        """Data as the engine takes it."""
        return self._source(data, columns, counts_inputs=True)

    # --- for other runtimes ---

    def to_onnx(self, path: str, *, inputs: Any = None, overwrite: bool = True) -> str:
        """Write the trained model as an ONNX file, for any number of rows. Returns the path.

        Args:
            path: local, ``file://``, ``hdfs://``, ``s3://``, ``dbfs:/``.
            inputs: rows as for ``predict`` on arrays, to tell what they look like; not needed after a ``fit``, nor for
                a Keras model that knows its inputs.
            overwrite: whether a file that is there may be replaced, else ``FileExistsError``.
        """
        return export.to_onnx(self._framework, self.get_model(), self._example(inputs), path, overwrite)

    def to_openvino(
        self, path: str, *, inputs: Any = None, fp16: bool = False, int8: Any = None, overwrite: bool = True
    ) -> str:
        """Write the trained model as an OpenVINO IR, an ``.xml`` with its ``.bin``. Returns the path of the ``.xml``.

        Args:
            path: as for ``to_onnx``; ``.xml`` is added where it has no such ending.
            inputs: as for ``to_onnx``.
            fp16: keep weights as float16: half the size, and some thousandths off.
            int8: some hundred rows, as for ``predict`` on arrays: weights and activations become int8 by their values.
                Faster, and less exact. Needs nncf.
            overwrite: as for ``to_onnx``.
        """
        rows = None if int8 is None else self._example(int8)
        return export.to_openvino(
            self._framework,
            self.get_model(),
            self._example(inputs),
            path,
            is_half=fp16,
            calibration=rows,
            overwrite=overwrite,
        )

    def _example(self, inputs: Any) -> Batch | None:
        """Some rows as the model takes them: the user's own, or what the last fit saw."""
        if inputs is None:
            return example_of(self._seen, 2) if self._seen else None
        batch = batch_from(inputs, Columns(None, None, None, "prediction"))
        if batch is None:
            raise PlanError("inputs must be rows: an ndarray, or a list or dict of them for several inputs")
        return batch

    # --- settings ---

    def set_constant_gradient_clipping(self, min: float, max: float) -> None:
        """Each element of a step's gradient into [min, max]. Before ``fit``."""
        self._clipping = Clipping.constant(min, max)

    def set_l2_norm_gradient_clipping(self, clip_norm: float) -> None:
        """A step's gradient scaled down to this norm over all parameters. Before ``fit``."""
        self._clipping = Clipping.l2_norm(clip_norm)

    def clear_gradient_clipping(self) -> None:
        """No clipping."""
        self._clipping = None

    def set_tensorboard(self, log_dir: str, app_name: str) -> None:
        """Write TensorBoard files into ``log_dir/app_name/train`` and ``…/validation`` from the next fit on."""
        self._event_folder = f"{local_path(log_dir) or log_dir}/{app_name}"

    def get_train_summary(self, tag: str | None = None) -> Any:
        """``[step, value, wall time]`` of each step for ``"Loss"``, ``"LearningRate"`` or ``"Throughput"``; or all."""
        return self._summaries.train(tag)

    def get_validation_summary(self, tag: str | None = None) -> Any:
        """``[step, value, wall time]`` of each validation: ``"Loss"`` and the metrics' names; all for ``None``."""
        return self._summaries.validation(tag)

    @property
    def num_workers(self) -> int:
        """How many replicas train."""
        return self._world(session_of(None))

    def shutdown(self) -> None:
        """Nothing is held between calls; here for symmetry with other doors. May be called twice."""

    def __enter__(self) -> TrainingEstimator:
        return self

    def __exit__(self, *exc: object) -> None:
        self.shutdown()

    def save_checkpoint(self, path: str) -> str:
        """Write a checkpoint (``model.<step>`` and its companions) into the folder ``path``."""
        kept = checkpoint.Checkpoint(self._whole_state(), self._position, self._seed)
        return checkpoint.write(local_path(path) or path, kept)

    def load_checkpoint(self, path: str, version: int | None = None) -> None:
        """Go on from a checkpoint: a file, a dated folder, or a ``model_dir``; the newest, or step ``version``."""
        self._go_on(checkpoint.load(path, version))

    def _go_on(self, found: checkpoint.Checkpoint) -> None:
        self._take(found.state)
        self._position, self._seed = found.position, found.seed

    def load_orca_checkpoint(self, path: str, version: int | None = None, prefix: str | None = None) -> None:
        """``load_checkpoint`` under its old name; ``prefix`` is never needed."""
        self.load_checkpoint(path, version)

    # --- from words to plans ---

    def _start(self, resume: bool, initial_epoch: Any, is_done: Callable[[Position], bool]) -> Position:
        """Where training begins: at the newest checkpoint when it is to be resumed, else where the last fit ended."""
        if isinstance(initial_epoch, bool) or not isinstance(initial_epoch, int) or initial_epoch < 0:
            raise PlanError(f"initial_epoch must be a non-negative int, not {initial_epoch!r}")
        if resume:
            assert self._model_dir is not None
            found = checkpoint.find(self._model_dir)
            if found is not None:
                # An estimator that is further than its last checkpoint does not go back where nothing is left to do.
                if not is_done(found.position) or self._position.step < found.position.step:
                    self._go_on(found)
                return self._position
        fresh = replace(self._position, best=None, waited=0)
        return replace(fresh, epoch=initial_epoch) if initial_epoch else fresh

    def _source(self, data: Any, columns: Columns, *, counts_inputs: bool) -> Source:
        wanted = self._dtypes() or {}
        return as_dataset(
            data,
            columns,
            inputs=self._inputs,
            is_loader=getattr(self._framework, "is_loader", lambda data: False),  # not every bench has loaders
            kinds=self._kinds,
            counts_inputs=counts_inputs,
            takes_strings="string" in wanted.values(),
            dtypes={name: dtype for name, dtype in wanted.items() if dtype != "string"},
            outputs=self._outputs(),
        )

    def _ordered(self, columns: Columns) -> Columns:
        """The columns in the order of the model's inputs, where these have names."""
        return columns

    def _outputs(self) -> int | None:
        """How many outputs the labels are for; ``None`` where the loss alone knows."""
        return None

    @abstractmethod
    def get_model(self) -> Any:
        """The trained model."""

    @abstractmethod
    def _inputs(self) -> tuple[int, int | None]:
        """How many inputs the model takes, at least and at most."""

    def _validation(
        self, source: Source | None, size: int | None, own_size: Any, every: Any, trigger: Any, steps: Any
    ) -> Validation | None:
        if source is None:
            return None
        return Validation(
            batch_size=positive(own_size, "validation_batch_size", none=True) or size or 32,
            every_epochs=positive(every, "validation_freq") or 1,
            trigger=None if trigger is None else as_trigger(trigger),
            steps=positive(steps, "validation_steps", none=True),
            rows_together=rows_together(self._measures(None)),
        )

    def _world(self, spark: SparkSession) -> int:
        from firesteel.cluster.preflight import nodes

        return nodes(spark) * self._workers_per_node

    def _events(self) -> str | None:
        if self._event_folder is None and self._model_dir is not None:
            return f"{self._model_dir}/summary"
        return self._event_folder


def _stream(source: Streamed, batch_size: int | None, *, config: dict[str, Any], auto_shard: bool | None) -> Stream:
    return Stream(source.source, source.is_creator, config, batch_size, auto_shard)


def split_stopping(callbacks: Any, stopping: EarlyStopping | None) -> tuple[tuple[Any, ...], EarlyStopping | None]:
    """Callbacks without our early stopping, and that: given as such, or among them."""
    if stopping is not None and not isinstance(stopping, EarlyStopping):
        raise PlanError(f"early_stopping must be an EarlyStopping, not {stopping!r}")
    listed = [] if callbacks is None else list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks]
    found = [each for each in listed if isinstance(each, EarlyStopping)]
    if len(found) + (stopping is not None) > 1:
        raise PlanError("there may be one EarlyStopping")
    rest = tuple(each for each in listed if not isinstance(each, EarlyStopping))
    return rest, found[0] if found else stopping


def _check_monitor(monitor: str, validation: Validation | None, known: tuple[str, ...]) -> None:
    if monitor not in known:
        raise UnknownName("value for early stopping to monitor", monitor, known)
    if monitor.startswith("val_") and validation is None:
        raise PlanError(f"early stopping watches {monitor!r}, which needs validation_data")


def _checked_seed(seed: Any) -> int:
    if isinstance(seed, bool) or not isinstance(seed, Integral) or seed < 0:
        raise PlanError(f"seed must be a non-negative int, not {seed!r}")
    return int(seed)


def _check_verbose(verbose: Any) -> None:
    if not isinstance(verbose, Integral) or verbose < 0:
        raise PlanError(f"verbose must be 0 for no progress, or a positive int, not {verbose!r}")


def _check_config(config: Any) -> None:
    if config is not None and not isinstance(config, Mapping):
        raise PlanError(f"data_config must be a dict, not {config!r}")


def _class_weights(weights: Any) -> dict[int, float] | None:
    if weights is None:
        return None
    if not isinstance(weights, Mapping) or not all(map(_is_class_weight, weights, weights.values())):
        raise PlanError(f"class_weight maps class indices from 0 to weights that are not negative, not {weights!r}")
    return {int(label): float(value) for label, value in weights.items()}


def _is_class_weight(label: Any, value: Any) -> bool:
    is_number = isinstance(label, Real) and isinstance(value, Real) and math.isfinite(value)
    return is_number and label >= 0 and label == int(label) and value >= 0


def _is_done(position: Position, epochs: int, max_steps: int | None) -> bool:
    return position.step >= max_steps if max_steps else position.epoch >= epochs


def _total_steps(steps: Any, done: int) -> int | None:
    more = positive(steps, "max_steps", none=True)
    return None if more is None else done + more


def _check_endless(source: Source, steps_per_epoch: Any, max_steps: Any) -> None:
    endless = isinstance(source, Streamed) and getattr(source.source, "is_endless", False)
    if endless and steps_per_epoch is None and max_steps is None:
        raise PlanError("this data has no end: pass steps_per_epoch or max_steps")


def _launch(world: int, max_failures: int, min_workers: int | None, threads: int | None) -> Launch:
    launch = Launch(world, max_failures=max_failures, min_workers=min_workers, threads=threads)
    return launch if max_failures else replace(launch, max_preemptions=0)  # who wants no loss got over means any


def _predictions(shard: Any) -> dict[str, Any]:
    return {"prediction": shard["prediction"]}


def _checked_size(source: Source | None, batch_size: Any) -> int | None:
    """The batch size that the user asked for; a loader has its own."""
    size = positive(batch_size, "batch_size", none=True)
    if size is not None and isinstance(source, Streamed) and not source.is_creator:
        raise PlanError("a DataLoader's batches are the global batches: leave batch_size out, or change the loader's")
    return size


def _check_outputs(source: Source | None, data: Any, names: Any, schema: Any) -> None:
    """Names and types of output columns are for data that has columns."""
    if schema is not None and not isinstance(source, Frame):
        raise PlanError("output_schema is for a Spark DataFrame; other data shows what it holds")
    if names is not None and (isinstance(source, Streamed) or (isinstance(source, Local) and not is_pandas(data))):
        raise PlanError("output_cols names columns, and this data has none")
