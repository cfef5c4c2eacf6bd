"""``TFOptimizer``: a loss tensor, an optim method and a dataset, trained on Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from firesteel.core import registry
from firesteel.core.errors import CheckpointError, PlanError
from firesteel.core.metrics import Metric, as_metrics
from firesteel.core.optimizers import OptimMethod
from firesteel.core.plan import Fit, Launch, Validation, positive
from firesteel.core.triggers import EveryEpoch, MaxEpoch, Progress, as_trigger
from firesteel.data.sources import Source, Streamed
from firesteel.data.sources.kinds import Columns as Asked
from firesteel.engine import checkpoint
from firesteel.engine.job import Stream
from firesteel.engine.listener import Outputs
from firesteel.frontends.bigdl.summaries import ParameterHistograms, TrainSummary, ValidationSummary
from firesteel.frontends.graph_estimator import GraphEstimator, clipping_of, flattened
from firesteel.frontends.tfpark.dataset import TFDataset, dataset_of
from firesteel.frontends.tfpark.matching import check_model, keras_estimator
from firesteel.frontends.tfpark.origins import Origin, Streams
from firesteel.frontends.training import TrainingEstimator

__all__ = ["TFOptimizer", "check_summary"]

_CHECKPOINT = "TFParkTraining"
_FROM_ONE = ("Top1Accuracy", "Top5Accuracy", "TreeNNAccuracy")


class TFOptimizer:
    """Trains the variables that a loss depends on; see the constructor and the three ``from_…`` functions.

    Gradients are averaged over replicas weighted by rows; nothing is added to the user's graph.

    Args:
        loss: a scalar tensor, the mean over the rows that are fed.
        optim_method: one of ``firesteel.bigdl``, or a dict of variable name prefix → such; the longest prefix counts.
        sess: holds start values; without it one is made and variables are initialized.
        dataset: a ``TFDataset``; found from the loss.
        inputs: the placeholders that its rows are fed to; default its own tensors.
        grads: gradients of the user's own, one for each of ``variables``.
        variables: which to train; default all trainable ones that the loss depends on.
        graph: that of the loss, for old scripts' sake.
        val_outputs: predictions for ``val_method``, and ``val_labels`` its targets.
        val_labels: see there.
        val_method: one or several validation methods, run when the checkpoint trigger fires.
        val_split: the part of the rows that is held out for that, where the dataset has none.
        tensors_with_value: tensor → (value in training, value in validation).
        session_config: a ``ConfigProto`` for the replicas' sessions.
        clip_norm: gradients scaled to this length over all variables.
        clip_value: gradients into ``(-c, c)``, or into a pair.
        metrics: name → scalar tensor, reported like validation methods.
        updates: ops run with each step, besides the graph's ``UPDATE_OPS``.
        model_dir: where checkpoints go.
        replicas: how many replicas train; default one on each node.
        tensor_with_value: the same as ``tensors_with_value``.

    Attributes:
        dataset: what it trains on.
        optim_method: what was given.
        model_dir: likewise.
        metrics: likewise.
        estimator: what carries the training out; it has ``set_tensorboard`` and the summaries too.
    """

    def __init__(
        self,
        loss: Any,
        optim_method: Any,
        sess: Any = None,
        dataset: TFDataset | None = None,
        inputs: Any = None,
        grads: Sequence[Any] | None = None,
        variables: Sequence[Any] | None = None,
        graph: Any = None,
        val_outputs: Any = None,
        val_labels: Any = None,
        val_method: Any = None,
        val_split: float = 0.0,
        tensors_with_value: Mapping[Any, Any] | None = None,
        session_config: Any = None,
        clip_norm: float | None = None,
        clip_value: Any = None,
        metrics: Mapping[str, Any] | None = None,
        updates: Any = None,
        model_dir: str | None = None,
        replicas: int | None = None,
        *,
        tensor_with_value: Mapping[Any, Any] | None = None,
    ) -> None:
        _check_method(optim_method)
        if (grads is None) != (variables is None) and grads is not None:
            raise PlanError("grads need the variables that they are of: pass variables= too")
        found = _dataset(loss, dataset, inputs)
        estimator = _learner(
            loss,
            found,
            inputs,
            _flags(tensors_with_value, tensor_with_value),
            optimizer=optim_method,
            sess=sess,
            metrics=metrics,
            validation=(val_outputs, val_labels, val_method),
            clip_norm=clip_norm,
            clip_value=clip_value,
            updates=updates,
            model_dir=model_dir,
            gradients=None if grads is None else list(grads),
            variables=None if variables is None else list(variables),
            config=session_config,
        )
        if graph is not None and graph is not estimator.graph:
            raise PlanError("graph is another than that of the loss")
        self._begin(estimator, found, optim_method, model_dir, metrics, replicas, float(val_split))
        if val_method is not None and found.validation is None and not val_split:
            estimator.shutdown()
            raise PlanError("val_method needs rows to validate on: give the dataset some, or set val_split")

    @classmethod
    def from_loss(
        cls,
        loss: Any,
        optim_method: Any,
        session: Any = None,
        inputs: Any = None,
        dataset: TFDataset | None = None,
        val_outputs: Any = None,
        val_labels: Any = None,
        val_method: Any = None,
        clip_norm: float | None = None,
        clip_value: Any = None,
        metrics: Mapping[str, Any] | None = None,
        tensor_with_value: Mapping[Any, Any] | None = None,
        session_config: Any = None,
        model_dir: str | None = None,
        updates: Any = None,
        val_split: float = 0.0,
        replicas: int | None = None,
        *,
        tensors_with_value: Mapping[Any, Any] | None = None,
    ) -> TFOptimizer:
        """The constructor with its arguments in another order."""
        return cls(
            loss,
            optim_method,
            sess=session,
            dataset=dataset,
            inputs=inputs,
            val_outputs=val_outputs,
            val_labels=val_labels,
            val_method=val_method,
            val_split=val_split,
            tensors_with_value=tensors_with_value,
            tensor_with_value=tensor_with_value,
            session_config=session_config,
            clip_norm=clip_norm,
            clip_value=clip_value,
            metrics=metrics,
            updates=updates,
            model_dir=model_dir,
            replicas=replicas,
        )

    @classmethod
    def from_train_op(
        cls,
        train_op: Any,
        loss: Any,
        *,
        inputs: Any = None,
        labels: Any = None,
        metrics: Mapping[str, Any] | None = None,
        updates: Any = None,
        sess: Any = None,
        dataset: TFDataset | None = None,
        tensor_with_value: Mapping[Any, Any] | None = None,
        session_config: Any = None,
        model_dir: str | None = None,
        replicas: int | None = None,
    ) -> TFOptimizer:
        """Trains by an op that ``ZooOptimizer(tf_optimizer).minimize(loss)`` made.

        The wrapped optimizer is applied to gradients averaged over replicas; its slots are variables of the graph, and
        end in ``sess`` with the others.
        """
        given = None if inputs is None else [*flattened(inputs), *flattened(labels)]
        found = _dataset(loss, dataset, given)
        estimator = _learner(
            loss,
            found,
            given,
            _flags(tensor_with_value, None),
            train_op=train_op,
            sess=sess,
            metrics=metrics,
            updates=updates,
            model_dir=model_dir,
            config=session_config,
        )
        made = cls.__new__(cls)
        made._begin(estimator, found, None, model_dir, metrics, replicas, 0.0)
        return made

    @classmethod
    def from_keras(
        cls,
        keras_model: Any,
        dataset: TFDataset,
        session_config: Any = None,
        model_dir: str | None = None,
        metrics: Any = None,
        optimizer: Any = None,
        replicas: int | None = None,
    ) -> TFOptimizer:
        """Trains a compiled Keras model; its own optimizer is used unless ``optimizer`` gives a method of ours.

        Trained weights are in the model, and ``sess`` is ``None``. ``session_config`` has no meaning for Keras 3.
        """
        _check_dataset(dataset)
        if optimizer is not None:
            _check_method(optimizer)
        estimator = keras_estimator(keras_model, optimizer, metrics=metrics, model_dir=model_dir)
        check_model(keras_model, dataset.layout)
        made = cls.__new__(cls)
        made._begin(estimator, dataset, optimizer, model_dir, metrics, replicas, 0.0)
        return made

    def _begin(
        self,
        estimator: TrainingEstimator,
        dataset: TFDataset,
        optim_method: Any,
        model_dir: str | None,
        metrics: Any,
        replicas: int | None,
        val_split: float,
    ) -> None:
        if not 0 <= val_split < 1:
            raise PlanError(f"val_split must be at least 0 and below 1, not {val_split!r}")
        self.estimator = estimator
        self.dataset, self.optim_method = dataset, optim_method
        self.model_dir, self.metrics = model_dir, metrics
        self._replicas = positive(replicas, "replicas", none=True)
        self._val_split = val_split
        self._origins: tuple[Origin, Origin | None] | None = None

    # --- training ---

    def optimize(self, end_trigger: Any = None, checkpoint_trigger: Any = None) -> None:
        """Train until the end trigger fires; validate and keep a checkpoint when the other one does.

        Args:
            end_trigger: default ``MaxEpoch(1)``. It counts from the very first step of the first call.
            checkpoint_trigger: default ``EveryEpoch()``.

        Raises:
            ReplicaFailed: with the replica's own traceback; ``sess`` then has the values from before the call.
        """
        end = as_trigger(MaxEpoch(1) if end_trigger is None else end_trigger)
        keep = as_trigger(EveryEpoch() if checkpoint_trigger is None else checkpoint_trigger)
        estimator = self.estimator
        position = estimator.position
        if end.fires(Progress(position.epoch, position.step, is_epoch_end=False)):
            return
        spark = self.dataset.origin.session()
        world = self._replicas or estimator.replicas(spark)
        source, held_out = self._sources(world)
        summary = estimator.recorders.get("train")
        callbacks: tuple[Any, ...] = ()
        if isinstance(summary, TrainSummary) and summary.parameters_trigger is not None:
            callbacks = (ParameterHistograms(summary.parameters_trigger, summary.folder),)
        plan = Fit(
            program=estimator.program(),
            launch=Launch(world),
            batch_size=None if self._has_own_batches(source) else self.dataset.batch_size,
            epochs=position.epoch + 1,
            end_trigger=end,
            sync="sharded",
            shuffle=self.dataset.is_shuffled,
            seed=estimator.seed,
            validation=None if held_out is None else Validation(max(1, self.dataset.batch_size), trigger=keep),
            checkpoint_trigger=None if self.model_dir is None else keep,
            callbacks=callbacks,
            metrics=estimator.measures(),
            position=position,
        )
        folder = None
        if self.model_dir is not None:
            folder = checkpoint.CheckpointFolder(self.model_dir, name=_CHECKPOINT)
        outputs = Outputs(estimator.summaries, folder, estimator.event_folder, recorders=estimator.recorders)
        estimator.carry_out(spark, plan, source, held_out, outputs, partial(_stream, estimator.config))

    def _sources(self, world: int) -> tuple[Source, Source | None]:
        if self._origins is None:
            train, held = self.dataset.origin, self.dataset.validation
            if self._val_split:
                train, held = train.split(self._val_split, self.estimator.seed)
            self._origins = train, held
        train, held = self._origins
        if self.dataset.hard_code_batch_size:
            rows = self.dataset.static_rows()
            if rows is None or rows * world != self.dataset.batch_size:
                raise PlanError(
                    f"hard_code_batch_size fixed {rows} rows for each replica, which {world} replicas do not make "
                    f"batch_size={self.dataset.batch_size} of"
                )
            train = train.even(world, self.dataset.batch_size)
        return self._source(train), None if held is None else self._source(held)

    def _source(self, origin: Origin) -> Source:
        if isinstance(origin, Streams) and not isinstance(self.estimator, GraphEstimator):
            # Each framework runs a tf.data.Dataset in its own way.
            return self.estimator.source_of(origin.plain()[0], Asked.of(None, None, None, "training"))
        return origin.source()

    def _has_own_batches(self, source: Source) -> bool:
        return isinstance(source, Streamed) and not source.is_creator

    @property
    def sess(self) -> Any:
        """The session whose variables have the trained values after ``optimize``; ``None`` for a Keras model."""
        return getattr(self.estimator, "sess", None)

    @property
    def batch_size(self) -> int:
        """Rows of a step over all replicas."""
        return self.dataset.batch_size

    # --- settings and results ---

    def set_train_summary(self, summary: TrainSummary) -> None:
        """Write every step's scalars there. Before ``optimize``."""
        check_summary(summary, TrainSummary)
        self.estimator.record("train", summary)

    def set_val_summary(self, summary: ValidationSummary) -> None:
        """Write every validation's results there. Before ``optimize``."""
        check_summary(summary, ValidationSummary)
        self.estimator.record("validation", summary)

    def set_tensorboard(self, log_dir: str, app_name: str) -> None:
        """Both summaries at once. Before ``optimize``."""
        self.estimator.set_tensorboard(log_dir, app_name)

    def get_train_summary(self, tag: str | None = None) -> Any:
        """``[step, value, wall time]`` of every step for a tag; see ``set_tensorboard``."""
        return self.estimator.get_train_summary(tag)

    def get_validation_summary(self, tag: str | None = None) -> Any:
        """``[step, value, wall time]`` of every validation for a tag; see ``set_tensorboard``."""
        return self.estimator.get_validation_summary(tag)

    def set_constant_gradient_clipping(self, min_value: float, max_value: float) -> None:
        """Each element of a step's gradient into this range. Before ``optimize``."""
        self.estimator.set_constant_gradient_clipping(min_value, max_value)

    def set_gradient_clipping_by_l2_norm(self, clip_norm: float) -> None:
        """A step's gradient scaled down to this length over all variables. Before ``optimize``."""
        self.estimator.set_l2_norm_gradient_clipping(clip_norm)

    def load_checkpoint(self, path: str, version: int | None = None) -> None:
        """Go on from a checkpoint: variables, the optimizer's state, epoch and iteration. The newest by default."""
        self.estimator.load_checkpoint(path, version)

    @staticmethod
    def export_training_model(
        export_dir: str,
        loss: Any,
        sess: Any,
        inputs: Any,
        labels: Any = None,
        predictions: Any = None,
        metrics: Mapping[str, Any] | None = None,
        tensor_with_value: Mapping[Any, Any] | None = None,
        updates: Any = None,
    ) -> None:
        """Write a graph that can be trained elsewhere: ``training_meta.json``, ``model.meta``, and the variables."""
        framework: Any = registry.framework("tfgraph")
        framework.sessions.export_training(
            export_dir,
            sess,
            {
                "inputs": flattened(inputs),
                "labels": flattened(labels),
                "predictions": flattened(predictions),
                "loss": [loss],
                "updates": flattened(updates),
            },
            dict(metrics or {}),
            dict(tensor_with_value or {}),
        )


class _Learner(GraphEstimator):
    """A graph's estimator whose figures are those of the TFPark door."""

    def __init__(self, *, feeds: Mapping[str, Any], figures: Mapping[str, tuple[Any, Metric]], **parts: Any) -> None:
        self._fed = dict(feeds)
        self._figures = dict(figures)
        named = {letter: [t for name, t in feeds.items() if name.startswith(letter)] for letter in "xy"}
        super().__init__(inputs=named["x"], labels=named["y"], **parts)

    def _feeds(self) -> dict[str, Any]:
        return self._fed

    @property
    def graph(self) -> Any:
        return self._graph

    def _measures(self, replacement: Any) -> Any:
        self._measured = (
            {name: tensors for name, (tensors, _) in self._figures.items()},
            {name: metric for name, (_, metric) in self._figures.items()},
        )
        return self._measured[1]

    def _tallied(self) -> dict[str, Metric]:
        return {}  # this door has no figures of the rows that are learnt from

    def _take(self, state: dict[str, bytes]) -> None:
        mine = set(self._framework.sessions.state_names(self._whole_state()["model"]))
        theirs = set(self._framework.sessions.state_names(state["model"]))
        if mine != theirs:
            missing, extra = (", ".join(sorted(each)) or "none" for each in (mine - theirs, theirs - mine))
            raise CheckpointError(f"the checkpoint is of another graph: missing are {missing}; too many are {extra}")
        super()._take(state)


def _learner(
    loss: Any,
    dataset: TFDataset,
    inputs: Any,
    flags: Mapping[Any, Any],
    *,
    metrics: Mapping[str, Any] | None,
    validation: tuple[Any, Any, Any] = (None, None, None),
    optimizer: Any = None,
    clip_norm: Any = None,
    clip_value: Any = None,
    updates: Any = None,
    sess: Any = None,
    model_dir: str | None = None,
    **parts: Any,
) -> _Learner:
    feeds = _feeds(dataset, inputs)
    clipping_of(clip_norm, clip_value)
    return _Learner(
        feeds=feeds,
        figures=_figures(metrics, *validation),
        outputs=None,
        loss=loss,
        optimizer=optimizer,
        metrics=None,
        clip_norm=clip_norm,
        clip_value=clip_value,
        updates=updates,
        sess=sess,
        model_dir=model_dir,
        backend=None,
        workers_per_node=1,
        seed=None,
        flags=flags,
        **parts,
    )


def _figures(metrics: Any, outputs: Any, labels: Any, methods: Any) -> dict[str, tuple[Any, Metric]]:
    """Validation methods first, then metrics, each with its tensors."""
    framework: Any = registry.framework("tfgraph")
    found: dict[str, tuple[Any, Metric]] = {}
    if methods is not None:
        predicted, targets = flattened(outputs), flattened(labels)
        if len(predicted) != 1 or len(targets) != 1:
            raise PlanError("val_method is fed one tensor of val_outputs and one of val_labels: pass both")
        for name, metric in as_metrics(methods).items():
            found[name] = (predicted[0], targets[0], int(_counts_from_one(metric))), metric
    for name, tensor in (metrics or {}).items():
        if not framework.accepts(tensor):
            raise PlanError(f"metrics are name → tensor, and {name!r} is {type(tensor).__qualname__}")
        found[str(name)] = tensor, framework.mean(str(name))
    return found


def _counts_from_one(metric: Metric) -> bool:
    """BigDL's methods count classes from 1, and TensorFlow's labels from 0."""
    return type(metric).__name__ in _FROM_ONE and type(metric).__module__ != "firesteel.core.metrics"


def _check_method(method: Any) -> None:
    methods = list(method.values()) if isinstance(method, Mapping) else [method]
    for each in methods:
        if not isinstance(each, OptimMethod):
            raise PlanError(
                f"optim_method must be one of firesteel.bigdl (Adam, SGD, …), or a dict of such, not "
                f"{type(each).__qualname__}; an optimizer of TensorFlow's goes through from_train_op and ZooOptimizer"
            )


def _check_dataset(dataset: Any) -> None:
    if not isinstance(dataset, TFDataset):
        raise PlanError(f"dataset must be a TFDataset, not {type(dataset).__qualname__}")
    if dataset.batch_size <= 0 and not _is_batched(dataset):
        raise PlanError("training needs a dataset with batch_size: set it where the TFDataset is made")


def _is_batched(dataset: TFDataset) -> bool:
    form = getattr(getattr(dataset.origin, "packed", None), "form", None)
    return bool(form is not None and form.is_batched)


def _dataset(loss: Any, dataset: Any, inputs: Any) -> TFDataset:
    framework: Any = registry.framework("tfgraph")
    if not framework.accepts(loss) or isinstance(loss, (list, tuple)):
        raise PlanError(f"the loss must be a scalar tensor of a graph, not {type(loss).__qualname__}")
    found = dataset
    if found is None:
        found = dataset_of(flattened(inputs) or framework.placeholders([loss]))
        if found is None:
            raise PlanError(
                "the loss depends on no tensor of a TFDataset: build it on dataset.tensors, or pass dataset="
            )
    _check_dataset(found)
    checked: TFDataset = found
    return checked


def _feeds(dataset: TFDataset, inputs: Any) -> dict[str, Any]:
    if inputs is None:
        return dataset.feeds()
    given, names = flattened(inputs), list(dataset.layout.fields)
    if len(given) != len(names):
        raise PlanError(
            f"inputs are {len(given)} tensors, and the dataset has {len(names)}: {', '.join(dataset.input_names)}"
        )
    return dict(zip(names, given, strict=True))


def _flags(one: Mapping[Any, Any] | None, other: Mapping[Any, Any] | None) -> dict[Any, Any]:
    if one is not None and other is not None:
        raise PlanError("tensor_with_value and tensors_with_value are the same argument: give one")
    found = dict(one or other or {})
    for tensor, values in found.items():
        if not isinstance(values, (tuple, list)) or len(values) != 2:
            name = getattr(tensor, "name", tensor)
            raise PlanError(f"tensor_with_value gives {name!r} a pair (in training, in validation), not {values!r}")
    return found


def check_summary(summary: Any, kind: type) -> None:
    """Raise ``PlanError`` where this is no such summary."""
    if not isinstance(summary, kind):
        raise PlanError(f"a {kind.__name__} is needed, not {type(summary).__qualname__}")


def _stream(config: dict[str, Any], source: Streamed, batch_size: int | None) -> Stream:
    return Stream(source.source, source.is_creator, config, batch_size, True)
