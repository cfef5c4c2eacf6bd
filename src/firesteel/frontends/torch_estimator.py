"""``Estimator.from_torch``: a torch model, its optimizer and loss, as plans for the engine."""

from __future__ import annotations

import secrets
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from firesteel.core import registry
from firesteel.core.errors import CheckpointError, PlanError, SchemaError, UnknownName, UnsupportedError
from firesteel.core.metrics import as_metrics
from firesteel.core.optimizers import OptimMethod
from firesteel.core.plan import Clipping, EarlyStopping, Fit, Launch, Map, Position, Validation, positive
from firesteel.core.program import Program
from firesteel.core.triggers import as_trigger
from firesteel.data.shards import XShards
from firesteel.data.sources import Columns, Frame, Local, Source, Streamed, as_dataset, batch_of_pandas, is_pandas, shard_batch
from firesteel.engine import checkpoint, local
from firesteel.engine.callbacks import Callback, find_main
from firesteel.engine.files import local_path, read_bytes, write_bytes
from firesteel.engine.fit import Outputs, fit
from firesteel.engine.history import History, Summaries
from firesteel.engine.job import Stream
from firesteel.engine.score import fields_of, make_scorer, output_fields, probe, score_frame
from firesteel.frontends.estimator import Estimator

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["TorchEstimator"]

_SYNC_OF_BACKEND = {"bigdl": "sharded", "torch_distributed": "native", "spark": "native", "ray": "native"}
_KINDS = (
    "a Spark DataFrame, an XShards, ndarrays as (x, y) or {'x': …, 'y': …}, a pandas DataFrame, a DataLoader, "
    "or a creator (config, batch_size)"
)
_SCORING_ROWS = 256


class TorchEstimator(Estimator):
    """See ``Estimator.from_torch``."""

    def __init__(
        self,
        *,
        model: Any,
        optimizer: Any,
        loss: Any,
        metrics: Any,
        config: dict[str, Any] | None,
        backend: str,
        workers_per_node: int,
        model_dir: str | None,
        seed: int | None,
        sync: str | None,
        **parts: Any,
    ) -> None:
        if model is None:
            raise PlanError("from_torch needs a model: a module, a class of one, or model_creator(config)")
        if backend not in _SYNC_OF_BACKEND:
            raise UnknownName("backend", backend, _SYNC_OF_BACKEND)
        if config is not None and not isinstance(config, dict):
            raise PlanError(f"config must be a dict, not {type(config).__qualname__}")
        if "batch_size" in (config or {}):
            raise PlanError("config must not hold 'batch_size': pass batch_size to fit, where it means the global batch")
        as_metrics(metrics)
        self._framework: Any = registry.framework("torch")
        self._seed = secrets.randbelow(2**31) if seed is None else int(seed)
        self._workers_per_node = positive(workers_per_node, "workers_per_node") or 1
        self._sync = sync or _SYNC_OF_BACKEND[backend]
        self._metrics = metrics
        self._config = dict(config or {})
        self._parts = {
            "optimizer": optimizer,
            "loss": loss,
            "config": dict(self._config),
            "seed": self._seed,
            **parts,
        }
        self._model_given = model
        self._model_dir = None if model_dir is None else (local_path(model_dir) or model_dir)
        self._made: Any = model if self._framework.accepts(model) and not isinstance(model, type) else None
        self._state: dict[str, bytes] = {}
        self._position = Position()
        self._clipping: Clipping | None = None
        self._summaries = Summaries()
        self._event_folder: str | None = None
        self._has_fitted = False
        self._framework.capture(model, **self._parts)  # says at once what does not fit

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
        auto_shard: bool = True,
        verbose: int = 1,
        feed_dict: None = None,
    ) -> History:
        """Train for ``epochs`` more epochs; goes on from the weights and optimizer state of the fit before.

        Args:
            data: a Spark DataFrame, an XShards, ndarrays, pandas, a DataLoader, or a creator ``(config, batch_size)``.
            batch_size: rows of a step over all replicas together; default 32, or the data's own batches.
            class_weight: class index → weight of its rows.
            sample_weight_col: a column of row weights. The loss is ``sum(w·l) / rows``.
            shuffle: rows in an order that is a function of seed and epoch. Loaders keep their own.
            steps_per_epoch: cut epochs; the next goes on where the last stopped.
            max_steps: stop after so many updates, over as many epochs as that takes.
            checkpoint_trigger: when to write a checkpoint into ``model_dir``; ``keep_checkpoints`` keeps the newest so many.
            resume: go on from the newest checkpoint in ``model_dir`` until ``epochs`` (or ``max_steps``) are reached in all.
            verbose: 0 = no progress.

        Returns:
            One record per epoch; ``.history`` and ``.to_pandas()`` give it as columns.

        Raises:
            PlanError: the request makes no sense; before anything runs.
            ReplicaFailed: with the replica's traceback, when the user's code raised in a replica.
        """
        if feed_dict is not None:
            raise UnsupportedError("feed_dict is for graphs; torch models take their inputs from the data")
        epochs = positive(epochs, "epochs") or 1
        if self._parts["optimizer"] is None:
            raise PlanError("fit needs an optimizer: pass one to from_torch")
        listed, stopping = _split_callbacks(callbacks, early_stopping)
        if self._parts["loss"] is None and find_main(listed) is None:
            raise PlanError("fit needs a loss: pass one to from_torch, or a MainCallback that sets runner.loss")
        if checkpoint_trigger is not None and self._model_dir is None:
            raise PlanError("checkpoint_trigger needs a model_dir: pass one to from_torch")
        if resume and self._model_dir is None:
            raise PlanError("resume needs a model_dir: pass one to from_torch")
        columns = Columns.of(feature_cols, label_cols, sample_weight_col, "training")
        source = self._source(data, columns)
        own_batches = isinstance(source, Streamed) and not source.is_creator
        if own_batches and batch_size is not None:
            raise PlanError("a DataLoader's batches are the global batches: leave batch_size out, or change the loader's")
        size = positive(batch_size, "batch_size", none=True) or (None if own_batches else 32)
        _check_endless(source, steps_per_epoch, max_steps)
        held_out = None if validation_data is None else self._source(validation_data, columns)
        validation = self._validation(
            held_out, size, validation_batch_size, validation_freq, validation_trigger, validation_steps
        )
        if stopping is not None and stopping.monitor.startswith("val_") and validation is None:
            raise PlanError(f"early stopping watches {stopping.monitor!r}, which needs validation_data")
        spark = _session(data)
        position, used_seed = self._start(resume, initial_epoch, seed)
        plan = Fit(
            program=self._program(class_weight=_class_weights(class_weight)),
            launch=Launch(self._world(spark)),
            batch_size=size,
            epochs=epochs if resume else position.epoch + epochs,
            sync=self._sync,
            shuffle=bool(shuffle),
            seed=used_seed,
            initial_epoch=position.epoch,
            steps_per_epoch=positive(steps_per_epoch, "steps_per_epoch", none=True),
            max_steps=_total_steps(max_steps, 0 if resume else position.step),
            validation=validation,
            checkpoint_trigger=None if checkpoint_trigger is None else as_trigger(checkpoint_trigger),
            early_stopping=stopping,
            callbacks=listed,
            metrics=self._metrics,
            position=position,
        )
        if resume and (position.step >= plan.max_steps if plan.max_steps else position.epoch >= plan.epochs):
            return History()
        keep = positive(keep_checkpoints, "keep_checkpoints", none=True)
        folder = None if self._model_dir is None else checkpoint.CheckpointFolder(self._model_dir, keep)
        outputs = Outputs(self._summaries, folder, self._events(), verbose)
        self._has_fitted = True
        stream = partial(_stream, config={**self._config, **(data_config or {})}, auto_shard=auto_shard)
        outcome = fit(spark, plan, source, held_out, outputs, stream=stream, config=self._config)
        if outcome.state is not None:
            self._take(outcome.state)
        self._position = replace(outcome.position, pass_step=0) if not steps_per_epoch else outcome.position
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
        auto_shard: bool = True,
        verbose: int = 1,
    ) -> dict[str, Any]:
        """Loss and metrics over every row once, exactly as a single process would compute them.

        Returns:
            ``num_samples``, ``val_loss`` (with a loss) and each metric by its name.
        """
        metrics = as_metrics(self._metrics if validation_metrics is None else validation_metrics)
        listed, _ = _split_callbacks(callbacks, None)
        if self._parts["loss"] is None and not metrics and find_main(listed) is None:
            raise PlanError("evaluate needs a loss or metrics: pass them to from_torch, or validation_metrics")
        size = positive(batch_size, "batch_size", none=True)
        columns = Columns.of(feature_cols, label_cols, sample_weight_col, "training")
        source = self._source(data, columns)
        if isinstance(source, Streamed) and not source.is_creator and size is not None:
            raise PlanError("a DataLoader's batches are the global batches: leave batch_size out, or change the loader's")
        steps = positive(num_steps, "num_steps", none=True)
        spark = _session(data)
        scorer = make_scorer(spark, Map(self._program(), size or (32 if steps else _SCORING_ROWS)), listed, self._config)
        stream = None
        if isinstance(source, Streamed):
            stream = _stream(source, size or 32, config={**self._config, **(data_config or {})}, auto_shard=auto_shard)
        fold = local.evaluate(spark, scorer, source, stream, metrics, world=self._world(spark), steps=steps)
        found: dict[str, Any] = {"num_samples": fold.rows}
        if fold.loss is not None:
            found["val_loss"] = fold.loss
        return found | fold.figures()

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

        On a DataFrame and an XShards it is lazy. The schema comes from one row put through the model on the driver, or from
        ``output_schema`` (a DDL string or ``StructType``) without any run.
        """
        size = positive(batch_size, "batch_size", none=True) or _SCORING_ROWS
        limit = positive(steps, "steps", none=True)
        names = Columns.of(output_cols, None, None, "prediction").features
        columns = Columns.of(feature_cols, None, None, "prediction")
        listed, _ = _split_callbacks(callbacks, None)
        plan = Map(self._program(is_trained=False), size, names)
        spark = _session(data)
        if isinstance(data, XShards):
            scorer = make_scorer(spark, plan, listed, self._config)
            return _predict_shards(data, scorer, columns, self._inputs, names)
        source = self._source(data, columns)
        scorer = make_scorer(spark, plan, listed, self._config)
        if isinstance(source, Frame):
            if output_schema is not None:
                fields = fields_of(output_schema)
            else:
                fields = output_fields(probe(source.df, source.reading, scorer.open()), names)
            return score_frame(source.df, source.reading, scorer, fields)
        if isinstance(source, Streamed):
            stream = _stream(source, size, config={**self._config, **(data_config or {})}, auto_shard=True)
            return local.score_stream(spark, scorer, stream, limit)
        assert isinstance(source, Local)
        batch = source.batch if limit is None else {k: v[: limit * size] for k, v in source.batch.items()}
        outputs = local.score_arrays(spark, scorer, batch, self._world(spark))
        return add_columns(data, outputs, names) if is_pandas(data) else local.contained(outputs)

    # --- settings ---

    def set_constant_gradient_clipping(self, min: float, max: float) -> None:  # noqa: A002 - the document's names
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
        """``[step, value, wall time]`` of each step: ``"Loss"``, ``"LearningRate"``, ``"Throughput"``; all for ``None``."""
        return self._summaries.train(tag)

    def get_validation_summary(self, tag: str | None = None) -> Any:
        """``[step, value, wall time]`` of each validation: ``"Loss"`` and the metrics' names; all for ``None``."""
        return self._summaries.validation(tag)

    @property
    def num_workers(self) -> int:
        """How many replicas train."""
        return self._world(_session(None))

    def shutdown(self) -> None:
        """Nothing is held between calls; here for symmetry with other doors. May be called twice."""

    def __enter__(self) -> TorchEstimator:
        return self

    def __exit__(self, *exc: object) -> None:
        self.shutdown()

    # --- the model ---

    def get_model(self) -> Any:
        """The trained model; for an instance that was given, that same object."""
        if self._made is None:
            made = self._framework.make_model(self._program(is_trained=False).content)
            if "model" in self._state:
                self._framework.load_into(made, self._state["model"])
            self._made = made
        return self._made

    def get_state_dict(self) -> dict[str, Any]:
        """``{"epoch", "models": [state dict], "optimizers": [state dict]}``."""
        tree = self._framework.unpack_tree(self._optimizer_state()) if self._optimizer_state() else None
        optimizers = [] if tree is None else [tree["optimizer"]]
        return {"epoch": self._position.epoch, "models": [self.get_model().state_dict()], "optimizers": optimizers}

    def save(self, model_path: str, entire: bool = False, overwrite: bool = True) -> str:
        """One safetensors file at that path: weights under their own names, optimizer state, counters. No pickle."""
        if entire:
            raise UnsupportedError("entire=True would pickle the model's class; save weights, and make the model from its code")
        facts = {"position": _as_json(self._position), "seed": self._seed}
        write_bytes(str(model_path), self._framework.pack_file(self._whole_state(), facts), overwrite=overwrite)
        return str(model_path)

    def load(self, model_path: str) -> None:
        """What ``save`` wrote, or a state dict from ``torch.save`` (read with ``weights_only=True``)."""
        data = read_bytes(str(model_path))
        try:
            state, facts = self._framework.unpack_file(data)
        except CheckpointError:
            state, facts = self._framework.read_state_dict(data, str(model_path)), {}
        self._take(state)
        if "position" in facts:
            self._position = Position(**facts["position"])

    def save_checkpoint(self, path: str) -> str:
        """Write a checkpoint (``model.<step>`` and its companions) into the folder ``path``."""
        kept = checkpoint.Checkpoint(self._whole_state(), self._position, self._seed)
        return checkpoint.write(local_path(path) or path, kept)

    def load_checkpoint(self, path: str, version: int | None = None) -> None:
        """Go on from a checkpoint: a file, a dated folder, or a ``model_dir``; the newest, or that of step ``version``."""
        found = checkpoint.load(path, version)
        self._take(found.state)
        self._position = found.position
        self._seed = found.seed

    def load_orca_checkpoint(self, path: str, version: int | None = None, prefix: str | None = None) -> None:
        """``load_checkpoint`` under its old name; ``prefix`` is never needed."""
        self.load_checkpoint(path, version)

    # --- from words to plans ---

    def _program(self, *, is_trained: bool = True, class_weight: dict[int, float] | None = None) -> Program:
        parts = {**self._parts, "class_weight": class_weight}
        if not is_trained:
            parts |= {"optimizer": None, "scheduler_creator": None}
        elif self._clipping is not None:
            parts["clipping"] = self._clipping
        model = self._model_given if self._made is None or not self._framework.accepts(self._model_given) else self._made
        program: Program = self._framework.capture(model, **parts)
        state: dict[str, bytes] = {}
        if self._made is None:
            state = {key: value for key, value in self._state.items() if key == "model"}
        elif model is not self._made:
            state["model"] = self._framework.pack_model(self._made.state_dict())
        optimizer = self._optimizer_state() if is_trained else None
        if optimizer and self._state:
            state["optimizer"] = optimizer
        return replace(program, state=state or None)

    def _optimizer_state(self) -> bytes | None:
        """The optimizer's state as it is now: an instance in the user's hands may have been changed there."""
        given = self._parts["optimizer"]
        kept = self._state.get("optimizer")
        if hasattr(given, "state_dict"):
            scheduler = None if kept is None else self._framework.unpack_tree(kept)["scheduler"]
            tree = {"optimizer": given.state_dict(), "scheduler": scheduler}
            return bytes(self._framework.pack_tree(tree))
        return kept

    def _whole_state(self) -> dict[str, bytes]:
        state = {"model": self._framework.pack_model(self.get_model().state_dict())}
        optimizer = self._optimizer_state()
        return {**state, "optimizer": optimizer} if optimizer else state

    def _take(self, state: dict[str, bytes]) -> None:
        """Make this the estimator's state, in the user's own objects where they gave some."""
        if self._made is not None:
            self._framework.load_into(self._made, state["model"])
        given = self._parts["optimizer"]
        if "optimizer" in state and hasattr(given, "load_state_dict") and not isinstance(given, OptimMethod):
            given.load_state_dict(self._framework.unpack_tree(state["optimizer"])["optimizer"])
        self._state = dict(state)

    def _start(self, resume: bool, initial_epoch: int, seed: int | None) -> tuple[Position, int]:
        if isinstance(initial_epoch, bool) or not isinstance(initial_epoch, int) or initial_epoch < 0:
            raise PlanError(f"initial_epoch must be a non-negative int, not {initial_epoch!r}")
        if resume:
            assert self._model_dir is not None
            try:
                self.load_checkpoint(self._model_dir)
            except CheckpointError as error:
                if "damaged" in str(error):
                    raise
        position = self._position
        if initial_epoch:
            position = replace(position, epoch=initial_epoch)
        return position, self._seed if seed is None else int(seed)

    def _source(self, data: Any, columns: Columns) -> Source:
        return as_dataset(
            data, columns, inputs=self._inputs, is_loader=self._framework.is_loader, kinds=_KINDS
        )

    def _inputs(self) -> tuple[int, int | None]:
        """How many inputs the model takes; a creator is asked for a model, for only that knows."""
        if isinstance(self._model_given, type):
            return tuple(self._framework.input_range(self._model_given))  # type: ignore[return-value]
        return tuple(self._framework.input_range(self.get_model()))  # type: ignore[return-value]

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
        )

    def _world(self, spark: SparkSession) -> int:
        from firesteel.cluster.preflight import nodes

        return nodes(spark) * self._workers_per_node

    def _events(self) -> str | None:
        if self._event_folder is None and self._model_dir is not None:
            return f"{self._model_dir}/summary"
        return self._event_folder


def _session(data: Any) -> SparkSession:
    """The session of a DataFrame, else the active one, else a new one of ours."""
    from pyspark.sql import SparkSession

    if hasattr(data, "sparkSession"):
        return data.sparkSession  # type: ignore[no-any-return]
    from firesteel.cluster.context import init_context

    init_context()
    return SparkSession.builder.getOrCreate()


def _stream(source: Streamed, batch_size: int | None, *, config: dict[str, Any], auto_shard: bool) -> Stream:
    return Stream(source.source, source.is_creator, config, batch_size, auto_shard)


def _split_callbacks(callbacks: Any, stopping: EarlyStopping | None) -> tuple[tuple[Any, ...], EarlyStopping | None]:
    listed = [] if callbacks is None else list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks]
    found = [each for each in listed if isinstance(each, EarlyStopping)]
    if len(found) + (stopping is not None) > 1:
        raise PlanError("there may be one EarlyStopping")
    rest = tuple(each for each in listed if not isinstance(each, EarlyStopping))
    for each in rest:
        if not isinstance(each, Callback):
            raise PlanError(f"callbacks must be firesteel.learn.pytorch.callbacks.Callback, not {type(each).__qualname__}")
    find_main(rest)
    return rest, found[0] if found else stopping


def _class_weights(weights: dict[int, float] | None) -> dict[int, float] | None:
    if weights is None:
        return None
    if any(int(label) < 0 or value < 0 for label, value in weights.items()):
        raise PlanError(f"class_weight maps class indices from 0 to weights that are not negative, not {weights!r}")
    return {int(label): float(value) for label, value in weights.items()}


def _total_steps(steps: Any, done: int) -> int | None:
    more = positive(steps, "max_steps", none=True)
    return None if more is None else done + more


def _check_endless(source: Source, steps_per_epoch: Any, max_steps: Any) -> None:
    endless = isinstance(source, Streamed) and getattr(source.source, "is_endless", False)
    if endless and steps_per_epoch is None and max_steps is None:
        raise PlanError("this data has no end: pass steps_per_epoch or max_steps")


def _as_json(position: Position) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(position)


# --- shards and pandas, in tasks ---


def _predict_shards(
    shards: XShards, scorer: Any, columns: Columns, inputs: Any, names: tuple[str, ...] | None
) -> XShards:
    try:
        first = shards.first()
    except ValueError as error:
        raise PlanError("the XShards has no shard to predict") from error
    if is_pandas(first):
        takes = inputs()
        batch_of_pandas(first, columns, takes)  # says at once what does not fit
        read = partial(batch_of_pandas, columns=columns, inputs=takes)
        return local.score_shards(shards, scorer, read, partial(add_columns, names=names))
    shard_batch(first, "prediction")
    return local.score_shards(shards, scorer, partial(shard_batch, verb="prediction"), _finish_shard)


def _finish_shard(shard: Any, outputs: dict[str, Any]) -> Any:
    prediction = local.contained(outputs)
    if isinstance(shard, dict):
        return {**shard, "prediction": prediction}
    return {"x": shard[0] if isinstance(shard, tuple) else shard, "prediction": prediction}


def add_columns(frame: Any, outputs: dict[str, Any], names: tuple[str, ...] | None) -> Any:
    """A pandas frame with the outputs as columns; one cell per row, an array where a row's output is one."""
    if list(outputs) == ["prediction"]:
        wanted = names or ("prediction",)
    else:
        wanted = names or tuple(f"prediction.{name.lstrip('_')}" for name in outputs)
    if len(wanted) != len(outputs):
        raise SchemaError(f"output_cols has {len(wanted)} names, but the model has {len(outputs)} outputs")
    taken = [name for name in wanted if name in frame.columns]
    if taken:
        raise SchemaError(f"the frame has a column {taken[0]!r} already; pass output_cols with another name", column=taken[0])
    return frame.assign(
        **{
            name: value if not isinstance(value, dict) and value.ndim == 1 else _cells(value, len(frame))
            for name, value in zip(wanted, outputs.values(), strict=True)
        }
    )


def _cells(value: Any, rows: int) -> list[Any]:
    if isinstance(value, dict):
        return [{key: part[row] for key, part in value.items()} for row in range(rows)]
    return list(value)
